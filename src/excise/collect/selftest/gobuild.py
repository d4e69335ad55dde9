"""Whether a Go program runs self-tests, from its file and the GODEBUG it was started with.

Go decides once, before main: the last `fips140=` of the environment's GODEBUG counts, else that of
the defaults which were linked in. Sources: packages `internal/godebug`, `debug/buildinfo` and
`crypto/internal/fips140` of Go 1.24.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARK: Final = b"\xff Go buildinf:"
MODULE: Final = b"crypto/internal/fips140"
# The runtime's table of functions keeps this name in stripped programs too.
CHECK: Final = b"crypto/internal/fips140/check.init"
ON: Final = frozenset({"on", "only", "debug"})
_HEADER, _ALIGNMENT, _FLAGS, _INLINE = 32, 16, 15, 2
_FRAME: Final = 16
_PLAIN_VERSION = re.compile(r"go\d+\.\d+(\.\d+)?((rc|beta)\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoBuild:
    """What a Go program's file says of its build.

    Attributes:
        version: Such as `go1.24.4`; with more words where the toolchain is another's.
        settings: Build settings by name, such as `CGO_ENABLED`.
        module: Whether the FIPS 140 module is linked in.
        check: Whether the module's integrity check is.
    """

    version: str
    settings: Mapping[str, str]
    module: bool
    check: bool

    @property
    def plain(self) -> bool:
        """Return whether it is the usual toolchain, without another's cryptography in it."""
        known = _PLAIN_VERSION.fullmatch(self.version) is not None
        return known and "GOEXPERIMENT" not in self.settings

    @property
    def own_code_only(self) -> bool:
        """Return whether no C code is linked in, as the file itself says."""
        return self.settings.get("CGO_ENABLED") == "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoVerdict:
    """What is known of one started Go program.

    Attributes:
        tests: Whether self-tests ran; None where it is not known.
        why: What says so, or what is missing.
    """

    tests: bool | None
    why: str


def read_build(path: Path) -> GoBuild | None:
    """Return what a file says of its build; None where it is no Go program, or older than 1.18."""
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            at = _header(data)
            if at is None:
                return None
            version, position = _text(data, at + _HEADER)
            module, _ = _text(data, position)
            has_module, has_check = data.find(MODULE) >= 0, data.find(CHECK) >= 0
    except (OSError, ValueError, IndexError):  # gone, empty, or cut off
        return None
    # The text stands between two marks of 16 bytes.
    lines = module[_FRAME:-_FRAME].decode("utf-8", "replace").splitlines()
    pairs = (line.removeprefix("build\t").partition("=") for line in lines if line[:6] == "build\t")
    return GoBuild(
        version=version.decode("utf-8", "replace"),
        settings={name: value for name, _, value in pairs},
        module=has_module,
        check=has_check,
    )


def fips_setting(build: GoBuild, godebug: str) -> tuple[str, str]:
    """Return the value of `fips140` for a start, and where it comes from."""
    for text, source in (
        (godebug, "GODEBUG"),
        (build.settings.get("DefaultGODEBUG", ""), "its own default"),
    ):
        for field in reversed(text.split(",")):
            name, equals, value = field.partition("=")
            if equals and name == "fips140":
                return value, source
    return "", "no setting"


def judge(build: GoBuild, godebug: str | None) -> GoVerdict:
    """Return whether a start of a Go program ran self-tests.

    Args:
        build: What its file says.
        godebug: GODEBUG of its environment, "" where unset, None where it is not known.
    """
    if not build.plain:
        text = f"a Go program of another toolchain or with experiments ({build.version})"
        return GoVerdict(tests=None, why=text)
    if not build.module:
        return GoVerdict(tests=False, why=f"{build.version}, no FIPS 140 module in it")
    if godebug is None:
        return GoVerdict(tests=None, why="a Go program whose GODEBUG is not known")
    value, source = fips_setting(build, godebug)
    if value in ON and build.check:
        return GoVerdict(tests=True, why=f"fips140={value} by {source}")
    if value in ("", "off"):
        return GoVerdict(tests=False, why=f"{build.version}, fips140 is off by {source}")
    return GoVerdict(tests=None, why=f"a Go program with fips140={value} by {source}")


def _header(data: mmap.mmap) -> int | None:
    """Return where the build information is: the mark at its alignment, of the form since 1.18."""
    at = data.find(MARK)
    while at >= 0:
        if at % _ALIGNMENT == 0 and data[at + _FLAGS] & _INLINE:
            return at
        at = data.find(MARK, at + 1)
    return None


def _text(data: mmap.mmap, at: int) -> tuple[bytes, int]:
    """Return a text behind its length, a base-128 number, and where the next one begins."""
    size = shift = 0
    while data[at] & 0x80:
        size |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    size |= data[at] << shift
    return data[at + 1 : at + 1 + size], at + 1 + size
