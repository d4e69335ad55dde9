"""The message of a biometric sensor: what it saw, and in which state it was when it saw it.

Layout, all numbers big-endian:

    "excise sensor message 1" 0x0a
    then fields, each once, in ascending order of their tag:
    tag (2 bytes) | length (4 bytes) | value

    1  list offset     8 bytes: where the entries of field 2 begin in the whole measurement list
    2  list entries    bytes as the kernel gives them (binary_runtime_measurements)
    3  list SHA-512    64 bytes, over the whole list from its beginning to the end of field 2
    4  PCR values      for each bank: name length (1), name, count (1), for each PCR its
                       index (1), value length (1), value
    5  embedder        name of the model, UTF-8
    6  embedding       for each number 4 bytes, IEEE 754
    7  image SHA-256   32 bytes, over the image the embedding is of

No two different messages have the same bytes. What is signed is `framed_message` over it, with the
verifier's nonce and the purpose `PURPOSE`. The contents follow the sensor of M. Preisach's thesis
(log hash, all PCRs, embedding), whose own format is not published.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from excise.errors import FormatError, UsageError

MAGIC: Final = b"excise sensor message 1\n"
PURPOSE: Final = "excise sensor transaction"
MAX_EMBEDDING: Final = 4096
MAX_PCRS_BYTES: Final = 1 << 16
_HEAD: Final = struct.Struct(">HI")
_TAGS: Final = (1, 2, 3, 4, 5, 6, 7)

PcrBanks = Mapping[str, Mapping[int, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorMessage:
    """What a sensor says; nothing of it is verified yet.

    Attributes:
        list_offset: Byte offset in the whole list of the first entry that is here.
        list_entries: Entries from there to the end, as the kernel gives them.
        list_sha512: SHA-512 of the whole list, 64 bytes.
        pcrs: PCR values by index by bank, read before the list.
        embedder: Name of the model that made the embedding.
        embedding: The face's numbers; as float32.
        image_sha256: SHA-256 of the image, 32 bytes.
    """

    list_offset: int
    list_entries: bytes
    list_sha512: bytes
    pcrs: PcrBanks
    embedder: str
    embedding: tuple[float, ...]
    image_sha256: bytes

    def to_bytes(self) -> bytes:
        """Return the message's one form.

        Raises:
            UsageError: A field does not fit its form.
        """
        if len(self.list_sha512) != 64 or len(self.image_sha256) != 32:
            raise UsageError("a digest has not its algorithm's length", source="sensor message")
        if not 0 <= self.list_offset < 1 << 63:
            raise UsageError(f"no list has an offset of {self.list_offset}", source="list offset")
        if len(self.embedding) > MAX_EMBEDDING:
            raise UsageError(f"an embedding has at most {MAX_EMBEDDING} numbers")
        values = (
            struct.pack(">Q", self.list_offset),
            self.list_entries,
            self.list_sha512,
            _pcr_bytes(self.pcrs),
            self.embedder.encode(),
            struct.pack(f">{len(self.embedding)}f", *self.embedding),
            self.image_sha256,
        )
        fields = (
            _HEAD.pack(tag, len(value)) + value for tag, value in zip(_TAGS, values, strict=True)
        )
        return MAGIC + b"".join(fields)

    @property
    def list_end(self) -> int:
        """Return the byte offset in the whole list after the last entry that is here."""
        return self.list_offset + len(self.list_entries)


def read_sensor_message(data: bytes) -> SensorMessage:
    """Return a message from its bytes.

    Raises:
        FormatError: They are not of this form; the field is named.
    """
    if not data.startswith(MAGIC):
        raise FormatError("does not begin as a sensor message", offset=0, field="magic")
    values = _fields(data)
    offset = values[1]
    if len(offset) != 8 or offset[0] & 0x80:
        raise FormatError("is no offset of 8 bytes", field="list offset")
    for tag, size, name in ((3, 64, "list SHA-512"), (7, 32, "image SHA-256")):
        if len(values[tag]) != size:
            raise FormatError(f"has {len(values[tag])} bytes, not {size}", field=name)
    return SensorMessage(
        list_offset=int.from_bytes(offset, "big"),
        list_entries=values[2],
        list_sha512=values[3],
        pcrs=_read_pcrs(values[4]),
        embedder=_text(values[5], "embedder"),
        embedding=_numbers(values[6]),
        image_sha256=values[7],
    )


def message_sha512(data: bytes) -> str:
    """Return SHA-512 of a message in hexadecimal, by which transactions are told apart."""
    return hashlib.sha512(data).hexdigest()


def _fields(data: bytes) -> dict[int, bytes]:
    at = len(MAGIC)
    found: dict[int, bytes] = {}
    for tag in _TAGS:
        if len(data) - at < _HEAD.size:
            raise FormatError("ends before the field", offset=at, field=f"tag {tag}")
        got, size = _HEAD.unpack_from(data, at)
        if got != tag:
            raise FormatError(f"has tag {got} where {tag} belongs", offset=at, field=f"tag {tag}")
        at += _HEAD.size
        if size > len(data) - at:
            reason = f"is {size} bytes long, and {len(data) - at} are left"
            raise FormatError(reason, offset=at, field=f"tag {tag}")
        found[tag] = data[at : at + size]
        at += size
    if at != len(data):
        raise FormatError(f"{len(data) - at} bytes stand after the last field", offset=at)
    return found


def _pcr_bytes(pcrs: PcrBanks) -> bytes:
    parts = []
    for bank in sorted(pcrs):
        name = bank.encode()
        if not 0 < len(name) < 32 or len(pcrs[bank]) > 32:
            raise UsageError(f"{bank!r} is no bank of at most 32 PCRs")
        parts.append(bytes([len(name)]) + name + bytes([len(pcrs[bank])]))
        for index in sorted(pcrs[bank]):
            value = pcrs[bank][index]
            if not 0 <= index < 32 or not 0 < len(value) <= 64:
                raise UsageError(f"PCR {index} of the {bank} bank has no value of a PCR")
            parts.append(bytes([index, len(value)]) + value)
    return b"".join(parts)


def _read_pcrs(data: bytes) -> dict[str, dict[int, bytes]]:
    if len(data) > MAX_PCRS_BYTES:
        raise FormatError(f"is longer than {MAX_PCRS_BYTES} bytes", field="PCR values")
    banks: dict[str, dict[int, bytes]] = {}
    at = 0

    def take(size: int) -> bytes:
        nonlocal at
        if size > len(data) - at:
            raise FormatError("ends within a value", offset=at, field="PCR values")
        at += size
        return data[at - size : at]

    while at < len(data):
        name = _text(take(take(1)[0]), "PCR values")
        if not name or name in banks or (banks and name < max(banks)):
            raise FormatError(f"the bank {name!r} is not in order", offset=at, field="PCR values")
        values = banks.setdefault(name, {})
        for _ in range(take(1)[0]):
            index = take(1)[0]
            if index > 31 or (values and index <= max(values)):
                raise FormatError(f"PCR {index} is not in order", offset=at, field="PCR values")
            value = take(take(1)[0])
            if not 0 < len(value) <= 64:
                raise FormatError(f"PCR {index} has {len(value)} bytes", field="PCR values")
            values[index] = value
    return banks


def _text(data: bytes, field: str) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError("is not UTF-8", field=field) from error
    if len(text) > 200 or not text.isprintable():
        raise FormatError("is no printable text of at most 200 signs", field=field)
    return text


def _numbers(data: bytes) -> tuple[float, ...]:
    if len(data) % 4 or len(data) > 4 * MAX_EMBEDDING:
        raise FormatError(f"is no list of at most {MAX_EMBEDDING} numbers", field="embedding")
    numbers = struct.unpack(f">{len(data) // 4}f", data)
    if not all(abs(number) < float("inf") for number in numbers):
        raise FormatError("holds what is no number", field="embedding")
    return numbers
