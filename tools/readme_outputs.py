"""Put the outputs of commands into README.md, or check that they are still true.

A block `<!-- output: COMMAND -->` is followed by a fenced block with the command and what it
prints. Usage: python tools/readme_outputs.py [--check]
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
BLOCK = re.compile(r"<!-- output: (.+?) -->\n(?:\n```console\n.*?\n```\n)?", re.S)


def output_of(command: str) -> str:
    """Return what a command prints, up to the first section that is not about results."""
    words = [sys.executable, "-c", "from excise.cli.main import main; main()"]
    done = subprocess.run(
        [*words, *shlex.split(command)[1:]], capture_output=True, text=True, check=True
    )
    kept = re.split(r"\n(?:Configurations in effect|Facts)\n─+\n", done.stdout)[0]
    return kept.rstrip()


def filled(text: str) -> str:
    """Return the README with every output as it is now."""
    return BLOCK.sub(
        lambda match: (
            f"<!-- output: {match[1]} -->\n\n```console\n$ {match[1]}\n{output_of(match[1])}\n```\n"
        ),
        text,
    )


def main() -> int:
    """Write or check; 1 when an output is not what the README says."""
    text = README.read_text()
    now = filled(text)
    if "--check" in sys.argv:
        return 0 if text == now else 1
    README.write_text(now)
    return 0


if __name__ == "__main__":
    sys.exit(main())
