"""A slow, plain reading and replay of binary lists, written apart from the native one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

SIZES = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64, "sm3_256": 32}
RULES = ("own", "padded-sha1", "padded-sha1-wide-violations", "own-zero-violations")


@dataclass
class Read:
    """What the reference found."""

    entries: int = 0
    consumed: int = 0
    violations: list[int] = field(default_factory=list)
    bad: list[tuple[int, int, bytes, bytes]] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    registers: dict[int, dict[tuple[str, str], bytes]] = field(default_factory=dict)
    values_after: list[tuple[int, dict[tuple[str, str], bytes]]] = field(default_factory=list)


def hashed(bank: str, message: bytes) -> bytes:
    return hashlib.new("sm3" if bank == "sm3_256" else bank, message).digest()


class EndError(Exception):
    """The list ends, or goes wrong."""


class Cursor:
    """Reads from bytes, or ends."""

    def __init__(self, data: bytes, at: int, order: str) -> None:
        self.data, self.at, self.order = data, at, order

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            raise EndError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, limit: int) -> int:
        value = int.from_bytes(self.take(4), self.order)  # type: ignore[arg-type]
        if value > limit:
            raise EndError
        return value


def read(data: bytes, bank: str, order: str, banks: tuple[str, ...]) -> Read:
    out, at = Read(), 0
    while at < len(data):
        cursor = Cursor(data, at, order)
        try:
            pcr = cursor.number(63)
            shown = cursor.take(SIZES[bank])
            size = cursor.number(255)
            name = cursor.take(size)
            if not name or any(not 33 <= byte <= 126 for byte in name):
                raise EndError
            if name == b"ima":
                file_digest = cursor.take(20)
                template_data = file_digest + cursor.take(cursor.number(255)).ljust(256, b"\0")
            else:
                template_data = cursor.take(cursor.number(16 << 20))
        except EndError:
            break
        step(out, at, pcr, shown, template_data, bank, banks)
        out.names.append(name)
        at = cursor.at
    out.consumed = at
    return out


def step(
    out: Read,
    at: int,
    pcr: int,
    shown: bytes,
    template_data: bytes,
    bank: str,
    banks: tuple[str, ...],
) -> None:
    register = out.registers.setdefault(
        pcr, {(b, rule): bytes(SIZES[b]) for b in banks for rule in RULES}
    )
    violation = not any(shown)
    for (b, rule), value in register.items():
        size = SIZES[b]
        own = hashed(b, template_data)
        padded = hashed("sha1", template_data) + bytes(size - 20)
        ones, ones_20 = b"\xff" * size, b"\xff" * 20 + bytes(size - 20)
        extend = {
            "own": ones if violation else own,
            "padded-sha1": ones_20 if violation else padded,
            "padded-sha1-wide-violations": ones if violation else padded,
            "own-zero-violations": bytes(size) if violation else own,
        }[rule]
        register[b, rule] = hashed(b, value + extend)
    if violation:
        out.violations.append(at)
    elif hashed(bank, template_data) != shown:
        out.bad.append((out.entries, at, hashed(bank, template_data), shown))
    out.entries += 1
    out.values_after.append((pcr, dict(register)))
