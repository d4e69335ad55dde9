"""Entries that measure a buffer: keys put into keyrings, and other data of the kernel."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import TYPE_CHECKING

from excise.errors import FormatError
from excise.evidence.policy.classes import EntryClass
from excise.evidence.policy.model import Description
from excise.evidence.signature import Keyring

if TYPE_CHECKING:
    from excise.evidence.policy.entry import PolicyEntry


class LearnKeys(StrEnum):
    """Which measured keys verify the file signatures after them.

    `approved`: those whose digest the policy lists for their keyring. `all`: every key the list
    shows, which trusts the host's keyrings as they are. `none`: none.
    """

    APPROVED = "approved"
    ALL = "all"
    NONE = "none"


class BufferJudge:
    """Judges buffer entries by a policy, and learns keys from them."""

    def __init__(self, description: Description, *, keyring: Keyring, learn: LearnKeys) -> None:
        self._keyrings = _by_name(description.keyrings)
        self._buffers = _by_name(description.buffers)
        self._ignored = {name.encode("utf-8") for name in description.ignored_keyrings}
        self._keyring = keyring
        self._learn = learn
        self._seen: set[bytes] = set()
        self.learnt = 0

    @property
    def has_references(self) -> bool:
        """Return whether the policy lists any key or buffer."""
        return bool(self._keyrings or self._buffers or self._ignored)

    def expected(self, name: bytes) -> tuple[str, ...]:
        """Return the digests listed for a name."""
        listed = self._keyrings.get(name, frozenset()) | self._buffers.get(name, frozenset())
        return tuple(sorted(listed))

    def judge(self, entry: PolicyEntry) -> EntryClass:
        """Return the class of a buffer entry, and take its key where it may be learnt."""
        name, digest = entry.name or b"", entry.digest.hex()
        if name in self._keyrings or name in self._buffers:
            found = EntryClass.BUFFER_DIFFERS
            if digest in self._keyrings.get(name, ()):
                found = EntryClass.BUFFER_ALLOWED
                if self._learn is LearnKeys.APPROVED:
                    self._take_key(entry)
            elif digest in self._buffers.get(name, ()):
                found = EntryClass.BUFFER_ALLOWED
        elif name in self._ignored or (b"*" in self._ignored and self._is_key(entry)):
            found = EntryClass.EXCLUDED
        else:
            found = EntryClass.BUFFER_UNKNOWN
        if self._learn is LearnKeys.ALL:
            self._take_key(entry)
        return found

    def _take_key(self, entry: PolicyEntry) -> None:
        data = entry.buf or b""
        if data in self._seen or not _digest_fits(entry):
            return
        self._seen.add(data)
        source = (
            f"entry {entry.position}, {(entry.name or b'').decode('utf-8', 'backslashreplace')}"
        )
        try:
            self._keyring.add_bytes(data, source=source)
        except FormatError:
            return  # a buffer that is no key, such as kernel_version
        self.learnt += 1

    def _is_key(self, entry: PolicyEntry) -> bool:
        try:
            Keyring().add_bytes(entry.buf or b"", source="")
        except FormatError:
            return False
        return True


def _by_name(listed: dict[str, tuple[str, ...]]) -> dict[bytes, frozenset[str]]:
    return {
        name.encode("utf-8", "surrogateescape"): frozenset(digests)
        for name, digests in listed.items()
    }


def is_buffer(entry: PolicyEntry) -> bool:
    """Return whether an entry is of a measured buffer, by what its PCR covers.

    The PCR covers the template's data and not its name: an entry of a file can be called one of a
    buffer, its name or signature then standing for the buffer. Its digest gives it away: that of a
    buffer is the digest of the bytes themselves.
    """
    return bool(entry.name) and bool(entry.buf) and _digest_fits(entry)


def _digest_fits(entry: PolicyEntry) -> bool:
    name = {"sm3_256": "sm3"}.get(entry.algorithm, entry.algorithm)
    try:
        return hashlib.new(name, entry.buf or b"").digest() == entry.digest
    except ValueError:
        return False
