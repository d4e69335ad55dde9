"""Types of the native module, which `excise.formats` and `excise.evidence` wrap."""

from collections.abc import Sequence
from typing import Any

__version__: str

class FleetFollower:
    def __new__(
        cls,
        *,
        settings: str,
        wanted: str,
        max_list_bytes: int,
        violations: str,
        lists: Sequence[str],
        pcrs: Sequence[str],
        others: Sequence[str],
        capture_endings: Sequence[str],
        screen: PolicyScreen | None = ...,
        lists_buffers: bool = ...,
    ) -> FleetFollower: ...
    def follow_hosts(
        self, jobs: Sequence[tuple[str, str, bytes]], threads: int
    ) -> list[bytes | None]: ...
    def follow(
        self, tail: bytes, state: bytes, targets: Sequence[tuple[str, bytes]]
    ) -> bytes | None: ...

def function_graph_read(
    source: bytes | str, *, calls: int = ..., paths: bool = ...
) -> dict[str, Any]: ...
def ima_digest(bank: str, message: bytes) -> bytes: ...
def ima_replay(
    source: bytes | str,
    chains: list[tuple[int, str, str, bytes, bytes | None]],
    others: list[tuple[str, str]],
    *,
    known: tuple[str | None, str | None, str | None] = ...,
    start: tuple[int, int, int] = ...,
    end: int | None = ...,
) -> dict[str, Any]: ...
def ima_search(
    source: bytes | str,
    chain: tuple[int, str, str, bytes, bytes | None],
    *,
    known: tuple[str | None, str | None, str | None] = ...,
    start: tuple[int, int, int] = ...,
    end: int | None = ...,
    only: tuple[str, int] | None = ...,
) -> tuple[int, int, tuple[str, tuple[int, int, int], int] | None]: ...
def journal_read(lines: bytes, with_batches: bool) -> dict[str, Any]: ...

class ImaRows:
    def __new__(
        cls,
        source: bytes | str,
        *,
        known: tuple[str | None, str | None, str | None] = ...,
        start: tuple[int, int, int] = ...,
        end: int | None = ...,
        pcr: int | None = ...,
        screen: PolicyScreen | None = ...,
    ) -> ImaRows: ...
    def next_batch(self, count: int) -> list[list[Any]]: ...
    @property
    def ended(self) -> bool: ...
    @property
    def settled(self) -> tuple[int, int, int, int, int]: ...
    @property
    def layout(self) -> tuple[str, str, str, tuple[int, int] | None] | None: ...
    @property
    def offset(self) -> int: ...
    @property
    def fault(self) -> tuple[tuple[int, int, int], str, str, bool] | None: ...
    @property
    def names_ambiguous(self) -> bool: ...

# Reference digests ---------------------------------------------------------------------------

class DigestTableBuilder:
    def __new__(cls) -> DigestTableBuilder: ...
    def add(self, name: bytes, algorithm: str, digest: bytes) -> None: ...
    def read_checksums(
        self, source: bytes | str, *, root: bytes | None = ...
    ) -> tuple[int, int, int, int]: ...
    def read_keylime(self, source: bytes | str) -> tuple[str, int]: ...
    def finish(self) -> DigestTable: ...

class DigestTable:
    def lookup(self, name: bytes, algorithm: str, digest: bytes) -> int: ...
    def expected(self, name: bytes, algorithm: str) -> list[bytes]: ...
    def holds_digest(self, algorithm: str, digest: bytes) -> bool: ...
    def counts(self) -> list[tuple[str, int, int]]: ...
    @property
    def memory_bytes(self) -> int: ...
    def __len__(self) -> int: ...
    def digest(self, meta: bytes) -> bytes: ...
    def save(self, path: str, meta: bytes) -> bytes: ...
    @staticmethod
    def load(source: bytes | str) -> tuple[DigestTable, bytes, bytes]: ...

class PolicyScreen:
    def __new__(
        cls,
        table: DigestTable | None,
        *,
        prefixes: Sequence[bytes] = ...,
        digest_suffices: bool = ...,
        verifies_signatures: bool = ...,
        signature_hashes: Sequence[int] = ...,
    ) -> PolicyScreen: ...
