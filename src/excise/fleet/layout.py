"""Which file of a host's folder is which piece of evidence.

One folder a host; the folder's name is the host's. The names are those under which Linux and the
tools show each piece, so that a collector has only to copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from excise.capture.archive import SUFFIX
from excise.fleet.places import Item

IMA_LISTS: Final = (
    "binary_runtime_measurements",
    "binary_runtime_measurements_sha256",
    "binary_runtime_measurements_sha1",
    "binary_runtime_measurements_sha384",
    "binary_runtime_measurements_sha512",
    "ima_binary_runtime_measurements",
    "ascii_runtime_measurements",
    "ascii_runtime_measurements_sha256",
    "ascii_runtime_measurements_sha1",
    "ascii_runtime_measurements_sha384",
    "ascii_runtime_measurements_sha512",
)
"""The first of these that is there is verified: binary before ascii, which is ambiguous."""
QUOTED_PCRS: Final = "quote.pcrs"
PCRS: Final = ("pcrs.txt", "pcrs.yaml", "pcrs", "pcrs.bin")
EVENT_LOGS: Final = ("binary_bios_measurements",)
CCELS: Final = ("CCEL", "ccel")
RTMRS: Final = "rtmrs.txt"
QUOTE: Final = "quote.attest"
SIGNATURE: Final = "quote.signature"
PUBLIC: Final = "quote.public"
NONCE: Final = "quote.nonce"
CAPTURE_ENDINGS: Final = (".excise", SUFFIX)
PCRS_READ: Final = (*PCRS, QUOTED_PCRS)
_PCRS_QUOTED: Final = (QUOTED_PCRS, *PCRS)
_SEVERAL: Final = frozenset({*IMA_LISTS, *PCRS_READ})
_SINGLE: Final = frozenset({QUOTE, SIGNATURE, PUBLIC, NONCE, RTMRS})
OTHERS: Final = frozenset({*EVENT_LOGS, *CCELS, *_SINGLE})
"""Evidence beside a measurement list and PCR values."""
_ALL: Final = _SEVERAL | OTHERS

KINDS: Final = ("ima", "quote", "eventlog", "capture")
"""Kinds of evidence that can be required of every host."""


def wanted(require: Iterable[str]) -> str:
    """Return in words what evidence a host must have."""
    return ", ".join(require) or "any evidence"


class Evidence(NamedTuple):
    """What there is of a host.

    Attributes:
        files: Items by name.
        captures: Names of captures: folders and archives.
        unused: Names of files that are no evidence, or a second form of what is verified.
    """

    files: Mapping[str, Item]
    captures: tuple[str, ...]
    unused: tuple[str, ...]

    def first(self, names: Iterable[str]) -> str | None:
        """Return the first of some names that is there."""
        for name in names:
            if name in self.files:
                return name
        return None

    @property
    def pcrs(self) -> str | None:
        """Return the file of PCR values: beside a quote, those that it is over come first."""
        quoted = QUOTE in self.files
        return self.first(_PCRS_QUOTED if quoted else PCRS_READ)

    @property
    def modified_ns(self) -> int | None:
        """Return when the newest piece was written, where the store tells."""
        return max(
            (each.modified_ns for each in self.files.values() if each.modified_ns is not None),
            default=None,
        )


def sort_items(items: Iterable[Item]) -> Evidence:
    """Return the pieces of evidence among what is in a host's folder."""
    files: dict[str, Item] = {}
    captures, unused = [], []
    for item in items:
        if item.name.endswith(CAPTURE_ENDINGS):
            captures.append(item.name)
        elif item.name in _ALL and item.is_file:
            files[item.name] = item
        else:
            unused.append(item.name)
    found = Evidence(files=files, captures=tuple(captures), unused=())
    used = (found.first(IMA_LISTS), found.pcrs)
    unused += [name for name in files if name in _SEVERAL and name not in used]
    return Evidence(found.files, found.captures, tuple(sorted(unused)))
