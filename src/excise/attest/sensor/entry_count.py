"""Counts the entries of a binary measurement list that comes in parts, by their lengths alone."""

from __future__ import annotations

import struct
from typing import Final

_HEAD_BYTES: Final = 28  # PCR, SHA-1 of the template data, length of the template's name
_MAX_NAME: Final = 1024
_OLD_TEMPLATE: Final = b"ima"  # whose data begins with a digest and has no length of its own
_OLD_DIGEST_BYTES: Final = 20


class EntryCounter:
    """Counts entries; what is no list it does not count.

    Attributes:
        count: Entries that were given whole.
    """

    def __init__(self) -> None:
        """Make a counter of a list's entries from its head."""
        self.count = 0
        self._rest = b""
        self._readable = True

    def add(self, data: bytes) -> None:
        """Count the entries that end in the next part of the list."""
        if not self._readable:
            return
        data = self._rest + data
        at = 0
        while (end := self._end(data, at)) is not None:
            at = end
            self.count += 1
        self._rest = data[at:] if self._readable else b""

    def _end(self, data: bytes, at: int) -> int | None:
        """Return where the entry at an offset ends; None where that is not here yet."""
        if len(data) < at + _HEAD_BYTES:
            return None
        # A PCR's number is small: its bytes tell their order (boot option ima_canonical_fmt).
        order = "<" if data[at] else ">"
        (name_size,) = struct.unpack_from(f"{order}I", data, at + _HEAD_BYTES - 4)
        if name_size > _MAX_NAME:
            self._readable = False
            return None
        name_end = at + _HEAD_BYTES + name_size
        old = data[at + _HEAD_BYTES : name_end] == _OLD_TEMPLATE
        size_at = name_end + (_OLD_DIGEST_BYTES if old else 0)
        if len(data) < size_at + 4:
            return None
        (size,) = struct.unpack_from(f"{order}I", data, size_at)
        end: int = size_at + 4 + size
        return end if end <= len(data) else None
