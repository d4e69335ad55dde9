"""Boot logs of the firmware: read them strictly, and replay them into registers.

Three forms: the SHA-1 log of TPM 1.2 days, the crypto-agile log that begins with a Spec ID event,
and the log of confidential guests (CCEL), which is crypto-agile and extends RTMRs. A log is what
somebody says; only registers that it leads to make it evidence (`verify_event_log`).

Source: TCG PC Client Platform Firmware Profile 1.06, section 10; TCG EFI Platform 1.22 (SHA-1 log);
UEFI 2.10, 38.4.1 (measurement register indices of confidential guests).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from excise import _core
from excise.errors import FormatError
from excise.evidence.eventlog_types import EV_EFI_HCRTM_EVENT, EV_NO_ACTION, type_name
from excise.evidence.ima.replay import REPLAYED_BANKS
from excise.evidence.pcr import ALGORITHM_BANKS, BANK_SIZES_BYTES

LogFormat = Literal["sha1", "crypto-agile", "ccel"]

NO_REGISTER: Final = 0xFFFFFFFF
"""Index of events that are for no register, as Windows and CCEL write them."""
LAST_PCR: Final = 23
RTMRS: Final = 4
MAX_EVENTS: Final = 1 << 16
"""Events read at most; real logs have some hundreds."""

_SPEC_ID: Final = b"Spec ID Event03\0"
_LOCALITY: Final = b"StartupLocality\0"
_OLD_HEAD: Final = struct.Struct("<II20sI")
_HEAD: Final = struct.Struct("<III")
_MAX_ALGORITHMS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event.

    Attributes:
        index: Position in the log, from 0; the Spec ID event is 0.
        offset: Byte offset of its first byte.
        register: PCR index, or the measurement register's index of a CCEL.
        type: Event type.
        digests: Digest by bank; digests of unknown hashes are not kept.
        data: The event's data, which nothing authenticates but a digest that happens to be its.
    """

    index: int
    offset: int
    register: int
    type: int
    digests: Mapping[str, bytes]
    data: bytes

    @property
    def name(self) -> str:
        """Return the name of its type."""
        return type_name(self.type)

    @property
    def extends(self) -> bool:
        """Return whether the event was extended into its register."""
        return self.type != EV_NO_ACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLog:
    """What a log says.

    Attributes:
        format: `sha1`, `crypto-agile` or `ccel`.
        banks: Banks whose digests the log holds and that can be replayed.
        unknown_algorithms: TPM_ALG_ID of digests that cannot be replayed.
        events: All events up to the fault, if there is one.
        padding_bytes: Bytes after the last event that are all ones or all zeros.
        trailing_bytes: Bytes after the last whole event that are neither events nor padding.
        fault: Why reading stopped before the end; None if it did not.
    """

    format: LogFormat
    banks: tuple[str, ...]
    unknown_algorithms: tuple[int, ...]
    events: tuple[Event, ...]
    padding_bytes: int
    trailing_bytes: int
    fault: FormatError | None

    @property
    def startup_locality(self) -> int:
        """Return the locality that the TPM was started from, which PCR 0 begins with."""
        for event in self.events:
            if event.type == EV_NO_ACTION and event.data.startswith(_LOCALITY):
                return event.data[len(_LOCALITY)] if len(event.data) > len(_LOCALITY) else 0
        # A hardware CRTM starts the TPM from locality 4, and its log need not say it again.
        return 4 if any(event.type == EV_EFI_HCRTM_EVENT for event in self.events) else 0

    def registers(self) -> tuple[int, ...]:
        """Return the registers that events were extended into, in ascending order."""
        return tuple(sorted({event.register for event in self.events if event.extends}))


def read_event_log(data: bytes, *, source: str | None = None) -> EventLog:
    """Return the events of a log; a fault after the first event ends them and is kept.

    Args:
        data: The whole log.
        source: Its name in messages.

    Raises:
        FormatError: The data is no log at all: empty, an ACPI table, or cut inside its first event.
    """
    _refuse_others(data, source)
    first = _with_source(source, _read_old, data, 0, 0)
    algorithms: Mapping[int, int] = {0x0004: 20}
    kind: LogFormat = "sha1"
    if first.type == EV_NO_ACTION and first.data.startswith(_SPEC_ID):
        algorithms = _with_source(source, _algorithms, first)
        kind = "ccel" if first.register == 1 else "crypto-agile"
    events, place = [first], _OLD_HEAD.size + len(first.data)
    fault: FormatError | None = None
    # Looked for once: a check at every event would read a hostile log as often as it has events.
    end_of_events = max(place, _padding_from(data))
    while place < end_of_events:
        try:
            event, end = _read_event(data, place, len(events), kind, algorithms)
        except FormatError as error:
            error.source, fault = source, error
            break
        events.append(event)
        place = end
    rest = len(data) - place
    known = {number: ALGORITHM_BANKS.get(number) for number in algorithms}
    return EventLog(
        format=kind,
        banks=tuple(bank for bank in known.values() if bank in REPLAYED_BANKS),
        unknown_algorithms=tuple(n for n, bank in known.items() if bank not in REPLAYED_BANKS),
        events=tuple(events),
        padding_bytes=0 if fault else rest,
        trailing_bytes=rest if fault else 0,
        fault=fault,
    )


def _with_source(source: str | None, read: Any, *arguments: Any) -> Any:
    try:
        return read(*arguments)
    except FormatError as error:
        error.source = source
        raise


def _refuse_others(data: bytes, source: str | None) -> None:
    if not data:
        raise FormatError(
            "empty: no log, which proves nothing",
            source=source,
            hint="Read securityfs files to their end; they tell no size.",
        )
    if data[:4] in (b"CCEL", b"TDEL", b"TPM2"):
        raise FormatError(
            f"the ACPI table {data[:4].decode()}, which says where the log is, and not the log",
            source=source,
            hint="The log itself is in /sys/firmware/acpi/tables/data.",
        )


def _padding_from(data: bytes) -> int:
    """Return the offset from which on the data is nothing but zeros, or nothing but ones."""
    return min(len(data.rstrip(b"\0")), len(data.rstrip(b"\xff")))


def _read_event(
    data: bytes, place: int, index: int, kind: LogFormat, algorithms: Mapping[int, int]
) -> tuple[Event, int]:
    if index >= MAX_EVENTS:
        raise FormatError(f"more than {MAX_EVENTS} events", offset=place)
    if kind == "sha1":
        event = _read_old(data, place, index)
        end = place + _OLD_HEAD.size + len(event.data)
    else:
        event, end = _read_agile(data, place, index, algorithms)
    last = RTMRS if kind == "ccel" else LAST_PCR
    if event.register > last and not (event.register == NO_REGISTER and not event.extends):
        raise FormatError(
            f"event {index} ({event.name}) is for register {event.register}, which cannot exist",
            offset=place,
            field="PCRIndex",
        )
    return event, end


def _read_old(data: bytes, place: int, index: int) -> Event:
    head = data[place : place + _OLD_HEAD.size]
    if len(head) < _OLD_HEAD.size:
        raise FormatError(f"cut inside event {index}", offset=place, field="TCG_PCR_EVENT")
    register, kind, digest, size = _OLD_HEAD.unpack(head)
    start = place + _OLD_HEAD.size
    return Event(
        index=index,
        offset=place,
        register=register,
        type=kind,
        digests={"sha1": digest},
        data=_event_data(data, start, size, index),
    )


def _event_data(data: bytes, start: int, size: int, index: int) -> bytes:
    if size > len(data) - start:
        raise FormatError(
            f"event {index} announces {size} bytes, and {len(data) - start} are left",
            offset=start - 4,
            field="EventSize",
        )
    return data[start : start + size]


def _read_agile(
    data: bytes, place: int, index: int, algorithms: Mapping[int, int]
) -> tuple[Event, int]:
    try:
        register, kind, count = _HEAD.unpack_from(data, place)
        at = place + _HEAD.size
        if not 1 <= count <= len(algorithms):
            raise FormatError(
                f"event {index} has {count} digests; the log announces {len(algorithms)} hashes",
                offset=place + 8,
                field="DigestCount",
            )
        digests: dict[str, bytes] = {}
        seen: set[int] = set()
        for _ in range(count):
            (algorithm,) = struct.unpack_from("<H", data, at)
            if algorithm not in algorithms or algorithm in seen:
                why = "twice" if algorithm in seen else "which the log does not announce"
                raise FormatError(
                    f"event {index} has a digest of algorithm 0x{algorithm:04x}, {why}",
                    offset=at,
                    field="AlgorithmId",
                )
            seen.add(algorithm)
            size = algorithms[algorithm]
            value = data[at + 2 : at + 2 + size]
            if bank := ALGORITHM_BANKS.get(algorithm):
                digests[bank] = value
            at += 2 + size
        (size,) = struct.unpack_from("<I", data, at)
    except struct.error:
        raise FormatError(
            f"cut inside event {index}", offset=place, field="TCG_PCR_EVENT2"
        ) from None
    content = _event_data(data, at + 4, size, index)
    event = Event(
        index=index, offset=place, register=register, type=kind, digests=digests, data=content
    )
    return event, at + 4 + size


def _algorithms(first: Event) -> dict[int, int]:
    """Return the digest sizes that the Spec ID event announces, by TPM_ALG_ID."""
    content = first.data
    at = _OLD_HEAD.size
    try:
        (count,) = struct.unpack_from("<I", content, 24)
        if not 1 <= count <= _MAX_ALGORITHMS:
            raise FormatError(
                f"announces {count} hashes", offset=at + 24, field="numberOfAlgorithms"
            )
        found: dict[int, int] = {}
        for number in range(count):
            algorithm, size = struct.unpack_from("<HH", content, 28 + 4 * number)
            bank = ALGORITHM_BANKS.get(algorithm)
            wrong = bank is not None and size != BANK_SIZES_BYTES[bank]
            if algorithm in found or not 0 < size <= 64 or wrong:
                raise FormatError(
                    f"announces algorithm 0x{algorithm:04x} with {size} bytes",
                    offset=at + 28 + 4 * number,
                    field="digestSizes",
                )
            found[algorithm] = size
        (vendor,) = struct.unpack_from("<B", content, 28 + 4 * count)
    except struct.error:
        raise FormatError("cut", offset=at, field="TCG_EfiSpecIdEvent") from None
    if 29 + 4 * count + vendor != len(content):
        raise FormatError(
            f"{len(content)} bytes, but its own counts make {29 + 4 * count + vendor}",
            offset=at,
            field="TCG_EfiSpecIdEvent",
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRegister:
    """Where a log leads a register: computed from digests that nothing has proven yet.

    Attributes:
        register: PCR index, or the measurement register's index of a CCEL.
        bank: The bank.
        value: The value after all events.
        events: Number of events extended into it.
        broken_at: Index of the first event without a digest of this bank; the value is then that
            before it.
    """

    register: int
    bank: str
    value: bytes
    events: int
    broken_at: int | None


def start_value(log: EventLog, register: int, bank: str) -> bytes:
    """Return a register's value before the log's first event.

    Source: TCG PC Client Platform TPM Profile, 4.6.2 (PCR initial values, D-RTM and H-CRTM).
    """
    size = BANK_SIZES_BYTES[bank]
    if log.format != "ccel" and register == 0:
        return log.startup_locality.to_bytes(size, "big")
    return bytes(size)


def replay_event_log(log: EventLog) -> tuple[ReplayedRegister, ...]:
    """Return where the log leads every register it extends, in every bank it has."""
    found = []
    for register in log.registers():
        mine = [event for event in log.events if event.extends and event.register == register]
        for bank in log.banks:
            value, broken = start_value(log, register, bank), None
            for event in mine:
                more = event.digests.get(bank)
                if more is None:
                    broken = event.index
                    break
                value = extend(bank, value, more)
            found.append(
                ReplayedRegister(
                    register=register, bank=bank, value=value, events=len(mine), broken_at=broken
                )
            )
    return tuple(found)


def digest(bank: str, data: bytes) -> bytes:
    """Return the digest of data by a bank's hash."""
    return _core.ima_digest(bank, data)


def extend(bank: str, value: bytes, more: bytes) -> bytes:
    """Return a register's value after one more digest."""
    return digest(bank, value + more)
