"""Writes measurement lists as a kernel does, with the traits that tests ask for."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SIZES = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64, "sm3_256": 32}
FORMATS = {
    "ima": "d|n",
    "ima-ng": "d-ng|n-ng",
    "ima-sig": "d-ng|n-ng|sig",
    "ima-buf": "d-ng|n-ng|buf",
    "ima-modsig": "d-ng|n-ng|sig|d-modsig|modsig",
    "evm-sig": "d-ng|n-ng|evmsig|xattrnames|xattrlengths|xattrvalues|iuid|igid|imode",
    "ima-ngv2": "d-ngv2|n-ng",
    "ima-sigv2": "d-ngv2|n-ng|sig",
}


def digest(bank: str, message: bytes) -> bytes:
    return hashlib.new("sm3" if bank == "sm3_256" else bank, message).digest()


def u32(value: int, order: str) -> bytes:
    return struct.pack("<I" if order == "little" else ">I", value)


def u16(value: int, order: str) -> bytes:
    return struct.pack("<H" if order == "little" else ">H", value)


@dataclass(frozen=True)
class Entry:
    """One entry; `values` are the fields' values, numbers for iuid, igid and imode."""

    template: str = "ima-ng"
    values: Mapping[str, bytes | int] = field(default_factory=dict)
    pcr: int = 10
    violation: bool = False
    raw: bytes | None = None  # data of an unknown template

    def fields(self) -> list[str]:
        return FORMATS.get(self.template, self.template).split("|")

    def value(self, name: str, order: str) -> bytes:
        value = self.values.get(name, b"")
        if isinstance(value, int):
            return u16(value, order) if name == "imode" else u32(value, order)
        return value

    def data(self, order: str = "little") -> bytes:
        """Return the bytes that the template hash is computed over."""
        if self.raw is not None:
            return self.raw
        if self.template == "ima":
            return self.value("d", order) + self.value("n", order).ljust(256, b"\0")
        out = b""
        for name in self.fields():
            value = self.value(name, order)
            out += u32(len(value), order) + value
        return out

    def template_hash(self, bank: str, order: str = "little") -> bytes:
        return bytes(SIZES[bank]) if self.violation else digest(bank, self.data(order))

    def binary(self, bank: str = "sha1", order: str = "little") -> bytes:
        name = self.template.encode()
        head = u32(self.pcr, order) + self.template_hash(bank, order) + u32(len(name), order) + name
        if self.template == "ima" and self.raw is None:
            text = self.value("n", order)
            return head + self.value("d", order) + u32(len(text), order) + text
        data = self.data(order)
        return head + u32(len(data), order) + data

    def ascii(self, bank: str = "sha1", order: str = "little") -> bytes:
        head = f"{self.pcr:2d} {self.template_hash(bank, order).hex()} {self.template}".encode()
        if self.raw is not None:
            return head + b" " + self.raw.hex().encode() + b"\n"
        return head + b"".join(b" " + self.printed(name, order) for name in self.fields()) + b"\n"

    def printed(self, name: str, order: str) -> bytes:
        value = self.values.get(name, b"")
        if isinstance(value, int):
            return str(value).encode()
        if name in ("n", "n-ng", "xattrnames"):
            return value.split(b"\0")[0]
        if name in ("d-ng", "d-ngv2", "d-modsig") and value:
            head, _, raw = value.partition(b"\0")
            return head + raw.hex().encode()
        return value.hex().encode()


def d_ng(algorithm: str, value: bytes) -> bytes:
    return algorithm.encode() + b":\0" + value


def ng(name: str | bytes, content: bytes = b"content", *, pcr: int = 10) -> Entry:
    """Return an ima-ng entry of a file with that content."""
    raw = name.encode() if isinstance(name, str) else name
    values = {"d-ng": d_ng("sha256", digest("sha256", content)), "n-ng": raw + b"\0"}
    return Entry(values=values, pcr=pcr)


def violation(name: str = "/var/log/open") -> Entry:
    values = {"d-ng": d_ng("sha256", bytes(32)), "n-ng": name.encode() + b"\0"}
    return Entry(values=values, violation=True)


def boot_aggregate(pcrs: Mapping[int, bytes], bank: str = "sha256") -> Entry:
    last = 7 if bank == "sha1" else 9
    value = digest(bank, b"".join(pcrs[i] for i in range(last + 1)))
    return Entry(values={"d-ng": d_ng(bank, value), "n-ng": b"boot_aggregate\0"})


def files(count: int, *, prefix: str = "/usr/bin/prog", pcr: int = 10) -> list[Entry]:
    return [ng(f"{prefix}{i}", f"{prefix}{i}".encode(), pcr=pcr) for i in range(count)]


def binary_list(entries: Iterable[Entry], bank: str = "sha1", order: str = "little") -> bytes:
    return b"".join(entry.binary(bank, order) for entry in entries)


def ascii_list(entries: Iterable[Entry], bank: str = "sha1", order: str = "little") -> bytes:
    return b"".join(entry.ascii(bank, order) for entry in entries)


def extended_with(entry: Entry, bank: str, rule: str, order: str = "little") -> bytes:
    """Return what a TPM bank is extended with for an entry under a kernel's rule."""
    size = SIZES[bank]
    if entry.violation:
        wide = rule in ("own", "padded-sha1-wide-violations")
        return b"\xff" * size if wide else (b"\xff" * 20).ljust(size, b"\0")
    if rule == "own":
        return digest(bank, entry.data(order))
    return digest("sha1", entry.data(order)).ljust(size, b"\0")


def pcr_after(
    entries: Iterable[Entry],
    bank: str,
    *,
    pcr: int = 10,
    rule: str = "own",
    order: str = "little",
    start: bytes | None = None,
) -> bytes:
    """Return the register of a TPM that saw these entries."""
    register = bytes(SIZES[bank]) if start is None else start
    for entry in entries:
        if entry.pcr == pcr:
            register = digest(bank, register + extended_with(entry, bank, rule, order))
    return register


def pcrs_after(
    entries: Iterable[Entry], *banks: str, rule: str = "own", order: str = "little"
) -> dict[str, dict[int, bytes]]:
    """Return PCR 10 of each bank, as `verify_list` takes it."""
    known = list(entries)
    return {b: {10: pcr_after(known, b, rule=rule, order=order)} for b in banks or ("sha256",)}
