"""Reference values of rpm's database, as `rpm -qa --dump` prints it.

A line is a path, then size, time, digest, mode, owner, group, three flags, and where a link leads.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from excise.errors import FormatError
from excise.units import counted

_LINE: Final = re.compile(
    rb"(?P<path>/.*) [0-9]+ [0-9]+ (?P<digest>[0-9a-f]*) (?P<mode>0[0-7]{5,6}) "
    rb"[^ ]+ [^ ]+ [01] [01] [0-9]+ (?:X|.+)"
)
_ALGORITHMS: Final = {32: "md5", 40: "sha1", 64: "sha256", 96: "sha384", 128: "sha512"}
_NO_FILES: Final = b"(contains no files)"


class RpmFile(NamedTuple):
    """A file of a package; the digest is empty where rpm has none, as of `%ghost` files."""

    name: bytes
    algorithm: str
    digest: bytes


def is_rpm_dump(head: bytes) -> bool:
    """Return whether the first lines of a file are those of `rpm --dump`."""
    lines = (line.rstrip(b"\r") for line in head.split(b"\n"))
    first = next((line for line in lines if line and line != _NO_FILES), b"")
    return _LINE.fullmatch(first) is not None


def read_rpm_dump(lines: Iterable[bytes]) -> Iterator[RpmFile]:
    """Give the regular files of a dump; folders, links and devices are passed over.

    Raises:
        FormatError: A line is none of a dump; with its number.
    """
    for number, line in enumerate(lines, start=1):
        text = line.rstrip(b"\r\n")
        if not text or text == _NO_FILES:
            continue
        found = _LINE.fullmatch(text)
        if found is None:
            raise FormatError(
                "not as `rpm -qa --dump` prints a file",
                line=number,
                hint="A path with a line break splits its line: leave that file out",
            )
        if not stat.S_ISREG(int(found["mode"], 8)):
            continue
        yield _file(found["path"], found["digest"], number)


def _file(name: bytes, digits: bytes, number: int) -> RpmFile:
    if not digits.strip(b"0"):
        return RpmFile(name, "", b"")
    algorithm = _ALGORITHMS.get(len(digits))
    if algorithm is None:
        raise FormatError(
            f"a digest of {counted(len(digits), 'digit')} is of no known hash",
            line=number,
            field="digest",
        )
    return RpmFile(name, algorithm, bytes.fromhex(digits.decode()))
