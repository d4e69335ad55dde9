"""The classes an entry of a measurement list may fall into."""

from __future__ import annotations

from enum import StrEnum


class EntryClass(StrEnum):
    """What became of one entry."""

    ALLOWED = "allowed"
    SIGNED = "allowed by signature"
    UNKNOWN_FILE = "unknown file"
    DIGEST_DIFFERS = "digest differs"
    OTHER_ALGORITHM = "digest in another algorithm"
    NOT_SIGNED = "without a valid signature"
    EXCLUDED = "excluded"
    VIOLATION = "violation"
    PSEUDO_FILE = "pseudo file"
    BOOT_AGGREGATE = "boot_aggregate"
    BUFFER_ALLOWED = "buffer allowed"
    BUFFER_DIFFERS = "buffer differs"
    BUFFER_UNKNOWN = "buffer unknown"
    UNREADABLE = "without name or digest"
