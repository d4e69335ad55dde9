"""Writes boot logs as firmware does, and the registers that a TPM would have after them."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

ALGORITHMS = {"sha1": 4, "sha256": 0xB, "sha384": 0xC, "sha512": 0xD}
SIZES = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}
EV_NO_ACTION, EV_SEPARATOR, EV_IPL, EV_EFI_ACTION, EV_HCRTM = 3, 4, 13, 0x80000007, 0x80000010


@dataclass(frozen=True)
class LogEvent:
    """One event; its digests are those of its data unless given."""

    pcr: int
    kind: int
    data: bytes
    digests: Mapping[str, bytes] = field(default_factory=dict)

    def digest(self, bank: str) -> bytes:
        return self.digests.get(bank, hashlib.new(bank, self.data).digest())


def locality(number: int) -> LogEvent:
    return LogEvent(0, EV_NO_ACTION, b"StartupLocality\0" + bytes([number]))


def boot(*, first_pcr: int = 0) -> list[LogEvent]:
    """Return a small boot: a separator in each of eight registers, and an action in the sixth."""
    separators = [LogEvent(first_pcr + n, EV_SEPARATOR, bytes(4)) for n in range(8)]
    return [*separators, LogEvent(5, EV_EFI_ACTION, b"Calling EFI Application from Boot Option")]


def old_event(pcr: int, kind: int, digest: bytes, data: bytes) -> bytes:
    return struct.pack("<II20sI", pcr, kind, digest, len(data)) + data


def spec_id(banks: Sequence[str], *, register: int = 0, vendor: bytes = b"") -> bytes:
    data = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(banks))
    data += b"".join(struct.pack("<HH", ALGORITHMS[bank], SIZES[bank]) for bank in banks)
    return old_event(register, EV_NO_ACTION, bytes(20), data + bytes([len(vendor)]) + vendor)


def agile_event(event: LogEvent, banks: Sequence[str]) -> bytes:
    out = struct.pack("<III", event.pcr & 0xFFFFFFFF, event.kind, len(banks))
    for bank in banks:
        digest = bytes(SIZES[bank]) if event.kind == EV_NO_ACTION else event.digest(bank)
        out += struct.pack("<H", ALGORITHMS[bank]) + digest
    return out + struct.pack("<I", len(event.data)) + event.data


def agile_log(
    events: Sequence[LogEvent], *banks: str, register: int = 0, vendor: bytes = b""
) -> bytes:
    head = spec_id(banks, register=register, vendor=vendor)
    return head + b"".join(agile_event(event, banks) for event in events)


def sha1_log(events: Sequence[LogEvent]) -> bytes:
    return b"".join(
        old_event(
            event.pcr & 0xFFFFFFFF,
            event.kind,
            bytes(20) if event.kind == EV_NO_ACTION else event.digest("sha1"),
            event.data,
        )
        for event in events
    )


def registers_after(
    events: Sequence[LogEvent], *banks: str, start: int = 0
) -> dict[str, dict[int, bytes]]:
    """Return the registers after the events; PCR 0 starts from a locality."""
    found: dict[str, dict[int, bytes]] = {}
    for bank in banks:
        values: dict[int, bytes] = {}
        for event in events:
            if event.kind == EV_NO_ACTION:
                continue
            first = start if event.pcr == 0 else 0
            before = values.get(event.pcr, first.to_bytes(SIZES[bank], "big"))
            values[event.pcr] = hashlib.new(bank, before + event.digest(bank)).digest()
        found[bank] = values
    return found
