"""The state after a verified part of a list, from which the next verification goes on.

A checkpoint is a small JSON document. It is as good as the place it is kept in: whoever can change
it can change what the next verification starts from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from excise import _core
from excise.errors import FormatError
from excise.evidence.ima.source import Source
from excise.evidence.pcr import BANK_SIZES_BYTES

KIND: Final = "excise.ima.checkpoint"
VERSION: Final = 1
_HEAD_BYTES: Final = 64
_BANKS: Final = ("sha1", "sha256", "sha384", "sha512", "sm3_256")
_RULES: Final = ("own", "padded-sha1", "padded-sha1-wide-violations")
_HEX: Final = re.compile(r"[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterState:
    """A register of one bank at the checkpoint: PCR index, bank, rule of its replay, hex value."""

    pcr: int
    bank: str
    rule: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMark:
    """What identifies a record without keeping it.

    Attributes:
        size_bytes: Its length.
        sha256: Digest of its bytes, hex.
        head: Its first bytes (64 at most), hex, by which it is searched for.
    """

    size_bytes: int
    sha256: str
    head: str

    @classmethod
    def of(cls, record: bytes) -> RecordMark:
        """Return the mark of a record's bytes."""
        return cls(
            size_bytes=len(record),
            sha256=_core.ima_digest("sha256", record).hex(),
            head=record[:_HEAD_BYTES].hex(),
        )

    def is_at(self, source: Source, offset: int) -> bool:
        """Return whether the record stands at an offset of a list."""
        if offset < 0:
            return False
        record = source.read(offset, self.size_bytes)
        return len(record) == self.size_bytes and RecordMark.of(record) == self


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The verified state at a point of a list.

    Attributes:
        kind: `excise.ima.checkpoint`.
        version: Version of this document.
        list_format: `binary` or `ascii`.
        byte_order: `little` or `big`.
        header_bank: Bank of the template hashes that the list shows.
        base_offset: Bytes of the whole list before the first byte of the input it was taken from;
            not 0 once the kernel has handed over and deleted entries.
        offset: Bytes of the whole list that are covered.
        count: Entries that are covered.
        line: Line of the input that comes next (ascii lists).
        first_record: Mark of the first record that was ever read: the list's identity.
        last_record: Mark of the last covered record.
        registers: PCR values at this point.
        policy_digest: Digest of the policy that the covered entries were judged by, as given.
    """

    list_format: str
    byte_order: str
    header_bank: str
    base_offset: int
    offset: int
    count: int
    line: int
    first_record: RecordMark
    last_record: RecordMark
    registers: tuple[RegisterState, ...]
    policy_digest: str | None = None
    kind: str = KIND
    version: int = VERSION

    def to_json(self) -> bytes:
        """Return the checkpoint as a JSON document."""
        import msgspec

        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def from_json(cls, document: bytes | str, *, source: str | None = None) -> Checkpoint:
        """Return the checkpoint of a JSON document.

        Args:
            document: The document.
            source: Its name in messages.

        Raises:
            FormatError: The document is not a checkpoint, or of another version.
        """
        import msgspec

        try:
            checkpoint = msgspec.json.decode(document, type=cls)
        except (msgspec.DecodeError, RecursionError) as error:
            raise FormatError(f"it is not an IMA checkpoint ({error})", source=source) from error
        checkpoint.validate(source)
        return checkpoint

    def validate(self, source: str | None) -> None:
        """Refuse a checkpoint that nothing could go on from.

        Args:
            source: Its name in messages.

        Raises:
            FormatError: It is of another version, or holds what no checkpoint does.
        """
        if self.kind != KIND or self.version != VERSION:
            raise FormatError(
                f"it is {self.kind} version {self.version}, not {KIND} {VERSION}",
                source=source,
                hint="Verify the list from its start to get a new checkpoint.",
            )
        marks = (self.first_record, self.last_record)
        faults = {
            "list_format": self.list_format not in ("binary", "ascii"),
            "byte_order": self.byte_order not in ("little", "big"),
            "header_bank": self.header_bank not in _BANKS,
            "base_offset": not 0 <= self.base_offset <= self.offset,
            "count": self.count < 1,
            "line": self.line < 1,
            "records": any(
                mark.size_bytes < 1 or not (_is_hex(mark.sha256) and _is_hex(mark.head))
                for mark in marks
            ),
            "registers": not self.registers or not all(map(_is_register, self.registers)),
        }
        for field, faulty in faults.items():
            if faulty:
                hint = "Verify the list from its start to get a new checkpoint."
                raise FormatError(
                    "it holds what no checkpoint does", source=source, field=field, hint=hint
                )

    def state(self, pcr: int, bank: str) -> RegisterState | None:
        """Return a register's state, if the checkpoint holds it."""
        return next((r for r in self.registers if r.pcr == pcr and r.bank == bank), None)


def _is_register(register: RegisterState) -> bool:
    return (
        0 <= register.pcr <= 63
        and register.bank in _BANKS
        and register.rule in _RULES
        and len(register.value) == 2 * BANK_SIZES_BYTES[register.bank]
        and _is_hex(register.value)
    )


def _is_hex(text: str) -> bool:
    return len(text) % 2 == 0 and _HEX.fullmatch(text) is not None
