"""Which package a file belongs to, from what package managers print or keep.

A map is text of lines `package: /path` (`dpkg -S`), lists of `/var/lib/dpkg/info`, or
`/path<TAB>package`. Paths through a merged `/usr` are found under both names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from excise.errors import FormatError
from excise.files import read_whole

_LIMIT_BYTES: Final = 256 << 20
DPKG: Final = "dpkg"
_INFO: Final = Path("/var/lib/dpkg/info")
_MERGED: Final = ("/bin/", "/sbin/", "/lib/", "/lib32/", "/lib64/", "/libx32/")


class PackageMap:
    """Names of packages by path."""

    def __init__(self, packages: Mapping[str, str]) -> None:
        self._packages = packages

    def __len__(self) -> int:
        return len(self._packages)

    def package_of(self, path: str) -> str | None:
        """Return the package that a path belongs to, if it is known."""
        found = self._packages.get(path)
        if found is None and path.startswith("/usr/"):
            found = self._packages.get(path.removeprefix("/usr"))
        elif found is None and path.startswith(_MERGED):
            found = self._packages.get("/usr" + path)
        return found


def read_packages(where: str) -> PackageMap:
    """Return the map of a file, of a folder of dpkg's lists, or (`dpkg`) of this machine.

    Raises:
        FormatError: It cannot be read, or a line says no package.
    """
    if where == DPKG or Path(where).is_dir():
        return _dpkg(_INFO if where == DPKG else Path(where))
    try:
        text = _text(Path(where))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=where) from error
    packages: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.startswith(("#", "diversion by ")):
            continue
        path, tab, package = line.partition("\t")
        if not tab:
            package, colon, path = line.partition(": ")
            if not colon:
                raise FormatError(
                    "says no package",
                    source=where,
                    line=number,
                    hint="Lines are 'package: /path', as dpkg -S prints them, or /path TAB package",
                )
        packages[path.strip()] = package.strip()
    return PackageMap(packages)


def _dpkg(folder: Path) -> PackageMap:
    try:
        lists = sorted(folder.glob("*.list"))
        if not lists:
            raise FormatError("holds no list of dpkg's", source=str(folder))
        packages = {path: file.stem.partition(":")[0] for file in lists for path in _lines(file)}
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(folder)) from error
    return PackageMap(packages)


def _lines(file: Path) -> Iterable[str]:
    return _text(file).splitlines()


def _text(path: Path) -> str:
    return read_whole(path, limit_bytes=_LIMIT_BYTES).decode("utf-8", "backslashreplace")
