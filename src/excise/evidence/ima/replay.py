"""Replay a measurement list into PCR values, natively, and hold the result with its types.

The rules of the replay are those of Linux, `security/integrity/ima` (`ima_queue.c`,
`ima_crypto.c`, `ima_template_lib.c`): a bank's register is extended with the bank's own digest of
the template data (kernels from 5.8), or with the zero-padded SHA-1 digest (before, and for banks
whose hash the kernel cannot compute); a violation extends 0xff bytes in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar

from excise import _core
from excise.evidence.ima.source import Source
from excise.evidence.pcr import BANK_SIZES_BYTES

T = TypeVar("T")

REPLAYED_BANKS: Final = ("sha1", "sha256", "sha384", "sha512", "sm3_256")
"""Banks whose hash the native replay computes."""

OWN: Final = "own"
PADDED: Final = "padded-sha1"
PADDED_WIDE: Final = "padded-sha1-wide-violations"
OWN_ZERO: Final = "own-zero-violations"
PADDED_ZERO: Final = "padded-sha1-zero-violations"
RECORDED: Final = "recorded"


@dataclass(frozen=True, slots=True)
class Place:
    """An entry's place: position from 0, byte offset, and line (0 in a binary list)."""

    index: int
    offset: int
    line: int

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        return f"entry {self.index} at offset {self.offset}{line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where a replay starts: offset, position and line of its first entry."""

    offset: int = 0
    index: int = 0
    line: int = 1


class Layout(NamedTuple):
    """How a list is laid out; `None` is found out from its first entries.

    Attributes:
        format: `binary` or `ascii`.
        byte_order: `little` or `big`.
        header_bank: Bank of the template hashes that the list shows.
    """

    format: str | None = None
    byte_order: str | None = None
    header_bank: str | None = None


class ChainSpec(NamedTuple):
    """One register of one bank to replay under one rule, and the value looked for."""

    pcr: int
    bank: str
    rule: str
    start: bytes
    target: bytes | None

    def native(self) -> tuple[int, str, str, bytes, bytes | None]:
        """Return the chain as the native replay takes it."""
        return (self.pcr, self.bank, self.rule, self.start, self.target)


class Hit(NamedTuple):
    """Where a chain reached the value looked for.

    Attributes:
        place: The entry that led there.
        end: Byte offset after it.
        register_entries: Entries of the register up to it, counted from the replay's start.
        states: Every chain's value at this point, by PCR, bank and rule.
    """

    place: Place
    end: int
    register_entries: int
    states: Mapping[tuple[int, str, str], bytes]


class Chain(NamedTuple):
    """One register of one bank after a replay.

    Attributes:
        pcr: Its index.
        bank: Its bank.
        rule: The rule it was extended by.
        value: Its value after the last entry.
        hit: Where the value looked for was first reached, if it was.
        broken_at: Position of the first entry whose value could not be known.
    """

    pcr: int
    bank: str
    rule: str
    value: bytes
    hit: Hit | None
    broken_at: int | None


class Register(NamedTuple):
    """One PCR that the list extends: its index, entries, first entry, and chains."""

    pcr: int
    entries: int
    first: Place | None
    chains: tuple[Chain, ...]


class BadHash(NamedTuple):
    """An entry whose recorded template hash (`got`) is not that of its data (`expected`)."""

    place: Place
    expected: bytes
    got: bytes


class Malformed(NamedTuple):
    """An entry with a field that contradicts its template."""

    place: Place
    field: str
    reason: str


class BootAggregate(NamedTuple):
    """An entry named `boot_aggregate`; `algorithm` is empty in the old `ima` template."""

    place: Place
    pcr: int
    algorithm: str
    digest: bytes


class Fault(NamedTuple):
    """Why reading stopped before the end of the input.

    Attributes:
        record_offset: Byte offset of the record that could not be read.
        offset: Byte offset of the field at fault.
        line: Its line, 0 in a binary list.
        field: The field.
        reason: What is wrong.
        truncated: Whether the input merely ends inside the record.
    """

    record_offset: int
    offset: int
    line: int
    field: str
    reason: str
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed(Generic[T]):
    """Findings of one kind: all are counted, the first thousand are listed."""

    count: int
    items: tuple[T, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """All that one pass over a list gave.

    Attributes:
        layout: How the list is laid out; empty when nothing could be read.
        detect_records: Entries that were looked at to find the layout.
        detect_verified: Of these, entries whose template hash is right under it.
        kexec: Buffer bytes and entry count announced by a kexec header, if there is one.
        entries: Entries read.
        first: Byte range of the first entry.
        last: Byte range of the last entry.
        end: Offset, position and line after the last whole entry.
        trailing_bytes: Bytes after it that were not read.
        padding_bytes: Zero bytes after the end that a kexec header announces.
        fault: Why reading stopped before the end, if it did.
        templates: Entries for each template name.
        violations: Violations.
        opaque: Entries of an ascii list whose template data cannot be rebuilt.
        bad_hashes: Entries with a wrong template hash.
        malformed: Entries with a field that contradicts the template.
        boot_aggregates: Entries named `boot_aggregate`.
        registers: The PCRs that the list extends, with their chains.
    """

    layout: Layout
    detect_records: int
    detect_verified: int
    kexec: tuple[int, int] | None
    entries: int
    first: tuple[int, int] | None
    last: tuple[int, int] | None
    end: Start
    trailing_bytes: int
    padding_bytes: int
    fault: Fault | None
    templates: Mapping[str, int]
    violations: Listed[Place]
    opaque: Listed[Place]
    bad_hashes: Listed[BadHash]
    malformed: Listed[Malformed]
    boot_aggregates: Listed[BootAggregate]
    registers: tuple[Register, ...]

    def register(self, pcr: int) -> Register | None:
        """Return the register of an index, if it was asked for or met."""
        return next((register for register in self.registers if register.pcr == pcr), None)

    def chain(self, pcr: int, bank: str, rule: str = OWN) -> Chain | None:
        """Return one chain, if it was carried."""
        register = self.register(pcr)
        chains = register.chains if register else ()
        return next((c for c in chains if c.bank == bank and c.rule == rule), None)


def replay(
    source: Source,
    *,
    chains: Iterable[ChainSpec] = (),
    others: Iterable[tuple[str, str]] = (),
    layout: Layout | None = None,
    start: Start | None = None,
    end_offset: int | None = None,
) -> Replay:
    """Replay a list, or the part of it from a start to an end offset, in one pass.

    Args:
        source: The list.
        chains: Registers to carry, with their start and the value looked for.
        others: Bank and rule of the chains that any other register met gets, from zero.
        layout: What is known of the layout.
        start: Where to start; the list's beginning if not given.
        end_offset: Byte offset to stop at.

    Raises:
        OSError: The file cannot be read.
    """
    layout, start = layout or Layout(), start or Start()
    raw = _core.ima_replay(
        source.native,
        [chain.native() for chain in chains],
        list(others),
        known=(layout.format, layout.byte_order, layout.header_bank),
        start=(start.offset, start.index, start.line),
        end=end_offset,
    )
    return _typed(raw)


def zero(bank: str) -> bytes:
    """Return the value of a register after a reset: zeros over the bank's width."""
    return bytes(BANK_SIZES_BYTES[bank])


def _typed(raw: Mapping[str, Any]) -> Replay:
    fault = raw["fault"]
    return Replay(
        layout=Layout(
            format=raw["format"], byte_order=raw["byte_order"], header_bank=raw["header_bank"]
        ),
        detect_records=raw["detect_records"],
        detect_verified=raw["detect_verified"],
        kexec=raw["kexec"],
        entries=raw["entries"],
        first=raw["first"],
        last=raw["last"],
        end=Start(offset=raw["end_offset"], index=raw["next_index"], line=raw["next_line"]),
        trailing_bytes=raw["trailing_bytes"],
        padding_bytes=raw["padding_bytes"],
        fault=fault_of(fault),
        templates=raw["templates"],
        violations=_listed(raw["violations"], lambda row: Place(*row)),
        opaque=_listed(raw["opaque"], lambda row: Place(*row)),
        bad_hashes=_listed(
            raw["bad_hashes"],
            lambda row: BadHash(place=Place(*row[0]), expected=row[1], got=row[2]),
        ),
        malformed=_listed(
            raw["malformed"],
            lambda row: Malformed(place=Place(*row[0]), field=row[1], reason=row[2]),
        ),
        boot_aggregates=_listed(
            raw["boot_aggregates"],
            lambda row: BootAggregate(
                place=Place(*row[0]), pcr=row[1], algorithm=row[2], digest=row[3]
            ),
        ),
        registers=tuple(_register(register) for register in raw["registers"]),
    )


def fault_of(raw: Any) -> Fault | None:
    """Return the native reader's fault with its types."""
    if raw is None:
        return None
    (record_offset, offset, line), field, reason, truncated = raw
    return Fault(
        record_offset=record_offset,
        offset=offset,
        line=line,
        field=field,
        reason=reason,
        truncated=truncated,
    )


def _listed(raw: tuple[int, list[Any]], make: Callable[[Any], T]) -> Listed[T]:
    count, rows = raw
    return Listed(count=count, items=tuple(make(row) for row in rows))


def _register(raw: Mapping[str, Any]) -> Register:
    first = raw["first"]
    return Register(
        pcr=raw["pcr"],
        entries=raw["entries"],
        first=Place(*first) if first else None,
        chains=tuple(_chain(raw["pcr"], chain) for chain in raw["chains"]),
    )


def _chain(pcr: int, raw: Mapping[str, Any]) -> Chain:
    hit = raw["hit"]
    return Chain(
        pcr=pcr,
        bank=raw["bank"],
        rule=raw["rule"],
        value=raw["value"],
        broken_at=raw["broken_at"],
        hit=None
        if hit is None
        else Hit(
            place=Place(hit["index"], hit["offset"], hit["line"]),
            end=hit["end"],
            register_entries=hit["register_entries"],
            states={(pcr, bank, rule): value for pcr, bank, rule, value in hit["snapshot"]},
        ),
    )
