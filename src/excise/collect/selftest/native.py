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
INSTRUCTION_CLOCK: Final = "instruction_clock"
_SHARED: Final = frozenset({OBSERVE, INSTRUCTION_CLOCK})
_FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror")


def helper(name: str, *, machine: str | None = None) -> Path:
    """Return the path of a compiled helper: a program, or a shared object where it is one.

    Args:
        name: Name of its source.
        machine: Machine to compile for, such as `aarch64`; this one when None.

    Raises:
        HostError: If there is no C compiler, or it fails.
    """
    source = resources.files("excise.collect.selftest") / "native" / f"{name}.c"
    text = source.read_bytes()
    compiler = os.environ.get("CC") or "cc"
    if machine not in (None, os.uname().machine):
        compiler = f"{machine}-linux-gnu-gcc"
    flags = [*_FLAGS, *(["-shared", "-fPIC"] if name in _SHARED else [])]
    key = hashlib.sha256(b"\0".join([compiler.encode(), *map(str.encode, flags), text]))
    ending = ".so" if name in _SHARED else ""
    path = cache_folder() / "native" / f"{name}-{key.hexdigest()[:16]}{ending}"
    if not path.is_file():
        path.parent.mkdir(exist_ok=True)
        _compile(compiler, flags, text, path)
    return path


def _package(compiler: str) -> str:
    return f"gcc-{compiler.removesuffix('-gcc')}" if "-linux-gnu-" in compiler else "gcc libc6-dev"


def _compile(compiler: str, flags: list[str], source: bytes, path: Path) -> None:
    if shutil.which(compiler) is None:
        raise HostError(
            f"there is no C compiler {compiler!r}, which builds the helper that watches self-tests",
            hint=f"apt install {_package(compiler)}",
        )
    with tempfile.TemporaryDirectory(prefix=".cc-", dir=path.parent) as folder:
        built = Path(folder) / path.name
        words = [compiler, *flags, "-x", "c", "-", "-o", str(built), "-ldl"]
        done = subprocess.run(words, input=source, capture_output=True, check=False)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
            raise HostError(f"could not be compiled: {said[0]}", source=path.name)
        built.rename(path)
