"""List the benchmarks, or run one: `python -m benchmarks`, `python -m benchmarks NAME --help`.

Each is a script of its own that measures side by side in one run and prints JSON or a table.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def scripts() -> dict[str, Path]:
    """Return every benchmark by name."""
    return {path.stem: path for path in sorted(HERE.glob("*.py")) if not path.stem.startswith("_")}


def main() -> int:
    words = sys.argv[1:]
    found = scripts()
    if not words or words[0] in ("-h", "--help"):
        print("usage: python -m benchmarks NAME [OPTION...]\n")
        width = max(map(len, found))
        for name, path in found.items():
            title = (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]
            print(f"  {name:<{width}}  {title}")
        return 0
    if words[0] not in found:
        print(f"no benchmark is called {words[0]!r}: {', '.join(found)}", file=sys.stderr)
        return 2
    # As a program of its own: some start processes, which import what they were started from.
    return subprocess.call([sys.executable, str(found[words[0]]), *words[1:]])


if __name__ == "__main__":
    sys.exit(main())
