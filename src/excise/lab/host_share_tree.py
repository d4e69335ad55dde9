"""What a guest needs of this host to run this excise: interpreter, packages, shared libraries.

Everything keeps the path it has here, but third-party packages, which come together in one folder:
so it does not matter whether they are in a virtual environment or the system's.
"""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from excise.errors import HostError

SITE: Final = "opt/site"
ROOTS: Final = (
    "msgspec",
    "typer",
    "rich",
    "numpy",
    "cryptography",
    "tpm2-pytss",
    "gmpy2",
    "httpx",
    "starlette",
    "uvicorn",
    "cbor2",
    "dlib-bin",
    "face_recognition_models",
    "pillow",
    "linuxpy",
)
"""What a sensor and a member of a group import; not what reads and compares captures."""

_NEEDED: Final = {
    "tpm2-pytss": "tpm",
    "httpx": "attest",
    "starlette": "attest",
    "gmpy2": "attest",
    "cbor2": "attest",
}
_LEFT_OUT: Final = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "turtledemo", "ensurepip",
    "config-*", "*.a", "*.pyc.*",
)  # fmt: skip
_LINKED: Final = re.compile(r"^\s*(?:\S+ => )?(/\S+) \(0x", re.MULTILINE)


def distributions(names: Iterable[str] = ROOTS) -> dict[str, importlib.metadata.Distribution]:
    """Return the installed distributions of these names and all that they require, by name.

    What is not installed is left out: a guest can do what this host can do.

    Raises:
        HostError: If one is missing without which no member of a group works.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if (key := _normal(name)) in found:
            continue
        try:
            found[key] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            if name in _NEEDED:
                raise HostError(
                    f"a guest with this Python needs {name}, which is not installed",
                    hint=f"pip install 'excise[{_NEEDED[name]}]'",
                ) from None
            continue
        needed = (line for line in found[key].requires or () if "extra ==" not in line)
        waiting += [re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0] for line in needed]
    return dict(sorted(found.items()))


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def interpreter() -> Path:
    """Return the interpreter itself, not the link of a virtual environment."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def fill(tree: Path) -> None:
    """Copy interpreter, standard library, packages and their shared libraries below a folder.

    Raises:
        HostError: If something cannot be read or copied.
    """
    try:
        _copy_python(tree)
        for found in distributions().values():
            _copy_distribution(found, tree / SITE)
        for library in sorted(_libraries(tree)):
            target = tree / library.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(library, target)
    except (OSError, shutil.Error) as error:
        raise HostError(f"this host's Python cannot be copied: {error}") from error
    for folder in (sysconfig.get_path("stdlib").lstrip("/"), SITE):
        compileall.compile_dir(tree / folder, quiet=2, ddir=f"/{folder}", workers=1)
    for folder in ("proc", "sys", "dev", "run", "tmp", "excise", "etc"):
        (tree / folder).mkdir(exist_ok=True)
    (tree / "etc/passwd").write_text("root:x:0:0:root:/tmp:/bin/sh\n")
    (tree / "etc/hosts").write_text("127.0.0.1 localhost\n")


def _copy_python(tree: Path) -> None:
    program = interpreter()
    target = tree / str(program).lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, target)
    folders = {sysconfig.get_path(name, vars=_base()) for name in ("stdlib", "platstdlib")}
    for folder in sorted(folders):
        copied = tree / folder.lstrip("/")
        shutil.copytree(folder, copied, ignore=_LEFT_OUT, dirs_exist_ok=True)


def _base() -> dict[str, str]:
    return {
        "base": sys.base_prefix,
        "platbase": sys.base_exec_prefix,
        "installed_base": sys.base_prefix,
    }


def _copy_distribution(found: importlib.metadata.Distribution, site: Path) -> None:
    for file in found.files or ():
        if ".." in file.parts or file.is_absolute():
            continue  # programs, manual pages
        source = Path(str(found.locate_file(file)))
        if source.is_file():
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)


def _libraries(tree: Path) -> set[str]:
    """Return the paths of all shared libraries that the tree's programs and modules link to."""
    found: set[str] = set()
    for path in _elf_files(tree):
        found |= set(linked_libraries(path))
    # What the TPM's software stack opens by name when it is told where the TPM is.
    for library in list(found):
        if Path(library).name.startswith("libtss2-tctildr"):
            found |= set(map(str, Path(library).parent.glob("libtss2-tcti-device.so*")))
    inside = {f"/{path.relative_to(tree)}" for path in tree.rglob("*.so*")}
    return {path for path in found if path not in inside and f"/{SITE}/" not in path}


def _elf_files(tree: Path) -> Iterator[Path]:
    yield tree / str(interpreter()).lstrip("/")
    yield from sorted(path for path in tree.rglob("*.so*") if path.is_file())


def linked_libraries(path: Path) -> list[str]:
    """Return the paths of the shared libraries that a program or library is linked to."""
    done = subprocess.run(
        ["ldd", str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )
    return _LINKED.findall(done.stdout)


def program_files(program: Path) -> dict[str, bytes]:
    """Return a program of this host and the libraries it is linked to, by their path in a root."""
    paths = [str(program), *linked_libraries(program)]
    return {path.lstrip("/"): Path(path).read_bytes() for path in paths}
