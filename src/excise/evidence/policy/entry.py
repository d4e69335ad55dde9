"""What a policy needs of one entry of a measurement list."""

from __future__ import annotations

from typing import Final, Protocol

_HASH_ALIASES: Final = {"sm3": "sm3_256", "sm3-256": "sm3_256"}
_BARE_DIGESTS: Final = {20: "sha1", 16: "md5"}


class PolicyEntry(Protocol):
    """What is needed of one entry of a measurement list."""

    @property
    def position(self) -> int:
        """Position in the list, from 0."""

    @property
    def offset(self) -> int:
        """Byte offset of its record."""

    @property
    def template(self) -> str:
        """Name of the template."""

    @property
    def name(self) -> bytes | None:
        """Event name; None where the template has none."""

    @property
    def digest_type(self) -> str:
        """`ima`, `verity`, or empty where the template does not say."""

    @property
    def algorithm(self) -> str:
        """Hash of the file digest; empty in the old `ima` template, which has SHA-1 or MD5."""

    @property
    def digest(self) -> bytes:
        """File digest."""

    @property
    def signature(self) -> bytes | None:
        """The `sig` field; None where the template has none."""

    @property
    def buf(self) -> bytes | None:
        """The measured buffer; None for files."""

    @property
    def violation(self) -> bool:
        """Whether the entry records a violation."""


def algorithm_of(entry: PolicyEntry) -> str:
    """Return the hash of an entry's digest, by the name that policies have for it."""
    if not entry.algorithm:
        return _BARE_DIGESTS.get(len(entry.digest), "")
    return _HASH_ALIASES.get(entry.algorithm, entry.algorithm)


def table_algorithm(entry: PolicyEntry) -> str:
    """Return the name under which a table of digests lists an entry's digest."""
    algorithm = algorithm_of(entry)
    # An fs-verity digest is the root of a hash tree, never the digest of the file's bytes.
    return f"verity:{algorithm}" if entry.digest_type == "verity" else algorithm
