"""The state after a verified part of a list, from which the next verification goes on.

A checkpoint is a small JSON document. It is as good as the place it is kept in: whoever can change
it can change what the next verification starts from.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Final

import msgspec

from excise.errors import FormatError
from excise.evidence.ima.source import Source
from excise.evidence.pcr import BANK_SIZES_BYTES

KIND: Final = "excise.ima.checkpoint"
VERSION: Final = 1
_PROBE_BYTES: Final = 64

Bank = Annotated[str, msgspec.Meta(pattern="^(sha1|sha256|sha384|sha512|sm3_256)$")]
Rule = Annotated[str, msgspec.Meta(pattern="^(own|padded-sha1(-wide-violations)?)$")]
Hex = Annotated[str, msgspec.Meta(pattern="^([0-9a-f]{2})+$")]
Index = Annotated[int, msgspec.Meta(ge=0, le=63)]
Count = Annotated[int, msgspec.Meta(ge=1)]
Offset = Annotated[int, msgspec.Meta(ge=0)]


class RegisterState(msgspec.Struct, frozen=True, kw_only=True):
    """A register of one bank at the checkpoint: PCR index, bank, rule of its replay, hex value."""

    pcr: Index
    bank: Bank
    rule: Rule
    value: Hex


class RecordMark(msgspec.Struct, frozen=True, kw_only=True):
    """What identifies a record without keeping it.

    Attributes:
        size_bytes: Its length.
        sha256: Digest of its bytes, hex.
        head: Its first bytes (64 at most), hex, by which it is searched for.
    """

    size_bytes: Count
    sha256: Hex
    head: Hex

    @classmethod
    def of(cls, record: bytes) -> RecordMark:
        """Return the mark of a record's bytes."""
        return cls(
            size_bytes=len(record),
            sha256=hashlib.sha256(record).hexdigest(),
            head=record[:_PROBE_BYTES].hex(),
        )

    def is_at(self, source: Source, offset: int) -> bool:
        """Return whether the record stands at an offset of a list."""
        if offset < 0:
            return False
        record = source.read(offset, self.size_bytes)
        return len(record) == self.size_bytes and RecordMark.of(record) == self


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
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

    list_format: Annotated[str, msgspec.Meta(pattern="^(binary|ascii)$")]
    byte_order: Annotated[str, msgspec.Meta(pattern="^(little|big)$")]
    header_bank: Bank
    base_offset: Offset
    offset: Count
    count: Count
    line: Count
    first_record: RecordMark
    last_record: RecordMark
    registers: tuple[RegisterState, ...]
    policy_digest: str | None = None
    kind: str = KIND
    version: int = VERSION

    def to_json(self) -> bytes:
        """Return the checkpoint as a JSON document."""
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
        try:
            checkpoint = msgspec.json.decode(document, type=cls)
        except msgspec.DecodeError as error:
            raise FormatError(f"it is not an IMA checkpoint ({error})", source=source) from error
        if checkpoint.kind != KIND or checkpoint.version != VERSION:
            raise FormatError(
                f"it is {checkpoint.kind} version {checkpoint.version}, not {KIND} {VERSION}",
                source=source,
                hint="Verify the list from its start to get a new checkpoint.",
            )
        checkpoint._validate(source)
        return checkpoint

    def _validate(self, source: str | None) -> None:
        if self.base_offset > self.offset:
            raise FormatError("its base is beyond its offset", source=source, field="base_offset")
        if not self.registers:
            raise FormatError("it holds no PCR", source=source, field="registers")
        for register in self.registers:
            if len(register.value) != 2 * BANK_SIZES_BYTES[register.bank]:
                reason = f"the value of PCR {register.pcr} is not one of the {register.bank} bank"
                raise FormatError(reason, source=source, field="registers")

    def state(self, pcr: int, bank: str) -> RegisterState | None:
        """Return a register's state, if the checkpoint holds it."""
        return next((r for r in self.registers if r.pcr == pcr and r.bank == bank), None)
