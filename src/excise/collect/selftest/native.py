"""The native helpers: shipped as C source, compiled at their first use, kept in the cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib import resources
from pathlib import Path
from typing import Final

from excise.collect.selftest.tree import cache_folder
from excise.errors import HostError

PROVIDER_LOAD: Final = "provider_load"
LIBRARY_START: Final = "library_start"
OBSERVE: Final = "observe"
FOLLOW: Final = "follow"
EVICT: Final = "evict"
_SHARED: Final = frozenset({OBSERVE})
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


def helper(name: str) -> Path:
    """Return the path of a compiled helper: a program, or a shared object for `observe`.

    Raises:
        HostError: If there is no C compiler, or it fails.
    """
    source = resources.files("excise.collect.selftest") / "native" / f"{name}.c"
    text = source.read_bytes()
    compiler = os.environ.get("CC") or "cc"
    flags = [*_FLAGS, *(["-shared", "-fPIC"] if name in _SHARED else [])]
    key = hashlib.sha256(b"\0".join([compiler.encode(), *map(str.encode, flags), text]))
    ending = ".so" if name in _SHARED else ""
    path = cache_folder() / "native" / f"{name}-{key.hexdigest()[:16]}{ending}"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        _compile(compiler, flags, text, path)
    return path


def _compile(compiler: str, flags: list[str], source: bytes, path: Path) -> None:
    if shutil.which(compiler) is None:
        raise HostError(
            f"there is no C compiler {compiler!r}, which builds the helper that watches self-tests",
            hint="apt install gcc libc6-dev, or set CC",
        )
    with tempfile.TemporaryDirectory(prefix=".cc-", dir=path.parent) as folder:
        built = Path(folder) / path.name
        words = [compiler, *flags, "-x", "c", "-", "-o", str(built), "-ldl"]
        done = subprocess.run(words, input=source, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise HostError(f"could not be compiled: {said[0]}", source=path.name)
        built.rename(path)
