"""What a TPM says of itself: properties, algorithms, curves, commands, banks, handles, PCRs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from excise.collect.tpm.codes import ALGORITHMS, CURVES, DIGEST_BYTES
from excise.collect.tpm.wire import Link, Reader, u16, u32

_ALGS: Final = 0
_HANDLES: Final = 1
_COMMANDS: Final = 2
_PCRS: Final = 5
_PROPERTIES: Final = 6
_CURVES: Final = 8
_MOST: Final = 254

PERSISTENT: Final = 0x81000000
TRANSIENT: Final = 0x80000000
NV_INDEX: Final = 0x01000000
LOADED_SESSION: Final = 0x02000000
SAVED_SESSION: Final = 0x03000000
_KINDS: Final = {
    "persistent": PERSISTENT,
    "nv": NV_INDEX,
    "transient": TRANSIENT,
    "loaded_sessions": LOADED_SESSION,
    "saved_sessions": SAVED_SESSION,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a command could leave behind in a TPM.

    Attributes:
        handles: Handles in use, by kind: `persistent`, `nv`, `transient`, `loaded_sessions`,
            `saved_sessions`.
        pcrs: Value of each PCR by bank and index.
    """

    handles: Mapping[str, tuple[int, ...]]
    pcrs: Mapping[str, Mapping[int, bytes]]

    def differences(self, after: State) -> list[Difference]:
        """Return each thing that is not as it was, compared with the state later."""
        found = []
        for kind, before in self.handles.items():
            now = after.handles.get(kind, ())
            found += [Difference(kind=kind, number=h, change="new") for h in now if h not in before]
            found += [
                Difference(kind=kind, number=h, change="gone") for h in before if h not in now
            ]
        for bank, values in self.pcrs.items():
            found += [
                Difference(kind=f"PCR of {bank}", number=index, change="changed")
                for index, value in values.items()
                if after.pcrs.get(bank, {}).get(index) != value
            ]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing in a TPM that is not as it was.

    Attributes:
        kind: As in `State.handles`, or `PCR of ` and the bank.
        number: Handle, or index of the PCR.
        change: `new`, `gone`, `changed`.
    """

    kind: str
    number: int
    change: str

    @property
    def is_pcr(self) -> bool:
        """Return whether it is a PCR."""
        return self.kind.startswith("PCR")

    def __str__(self) -> str:
        if self.is_pcr:
            return f"PCR {self.number} of {self.kind.removeprefix('PCR of ')} {self.change}"
        return f"{self.kind.replace('_', ' ')} {self.number:#010x} is {self.change}"


def read_state(link: Link) -> State:
    """Return handles in use and all PCRs."""
    handles = {kind: tuple(read_handles(link, first)) for kind, first in _KINDS.items()}
    pcrs = {
        ALGORITHMS.get(bank, f"{bank:#06x}"): read_pcrs(link, bank, indices)
        for bank, indices in allocated(link).items()
    }
    return State(handles=handles, pcrs=pcrs)


def properties(link: Link) -> dict[int, int]:
    """Return fixed and variable properties by number (TPM2_PT)."""
    found: dict[int, int] = {}
    for first in (0x100, 0x200):
        found |= {
            reader.number(4): reader.number(4) for reader in _list(link, _PROPERTIES, first, size=8)
        }
    return found


def algorithms(link: Link) -> list[int]:
    """Return the numbers of the algorithms that the TPM implements."""
    return [reader.number(2) for reader in _list(link, _ALGS, 0, size=6)]


def commands(link: Link) -> frozenset[int]:
    """Return the codes of the commands that the TPM implements."""
    return frozenset(r.number(4) & 0x2000FFFF for r in _list(link, _COMMANDS, 0, size=4))


def curves(link: Link) -> list[int]:
    """Return the numbers of the elliptic curves that the TPM implements."""
    return [reader.number(2) for reader in _list(link, _CURVES, 0, size=2)]


def allocated(link: Link) -> dict[int, tuple[int, ...]]:
    """Return the PCRs of every bank that has any, by the number of its hash."""
    reply = link.send("GetCapability", parameters=u32(_PCRS) + u32(0) + u32(_MOST))
    reader = Reader(reply.parameters, command="GetCapability", source=link.tcti)
    reader.take(5)
    banks = {}
    for _ in range(reader.number(4)):
        bank, bitmap = reader.number(2), reader.take(reader.number(1))
        indices = tuple(i for i in range(8 * len(bitmap)) if bitmap[i // 8] >> i % 8 & 1)
        if indices:
            banks[bank] = indices
    return banks


def selection(banks: Mapping[int, tuple[int, ...]]) -> bytes:
    """Return TPML_PCR_SELECTION of PCRs by bank."""
    data = u32(len(banks))
    for bank, indices in banks.items():
        bitmap = bytearray(3)
        for index in indices:
            bitmap[index // 8] |= 1 << index % 8
        data += u16(bank) + b"\x03" + bytes(bitmap)
    return data


def read_pcrs(link: Link, bank: int, indices: tuple[int, ...]) -> dict[int, bytes]:
    """Return the values of PCRs of one bank by index."""
    values: dict[int, bytes] = {}
    while left := tuple(index for index in indices if index not in values):
        reply = link.send("PCR_Read", parameters=selection({bank: left[:8]}))
        reader = Reader(reply.parameters, command="PCR_Read", source=link.tcti)
        reader.take(4 + 4 + 2)
        bitmap = reader.take(reader.number(1))
        read = [i for i in range(8 * len(bitmap)) if bitmap[i // 8] >> i % 8 & 1]
        count = reader.number(4)
        if not count:
            break
        values |= dict(zip(read[:count], (reader.sized() for _ in range(count)), strict=True))
    return values


def names_of(numbers: list[int], table: Mapping[int, str]) -> list[str]:
    """Return names of algorithms or curves; those without one as numbers."""
    return [table.get(number, f"{number:#06x}") for number in numbers]


def curve_names(link: Link) -> list[str]:
    """Return the names of the elliptic curves that the TPM implements."""
    return names_of(curves(link), CURVES)


def digest_banks(link: Link) -> dict[int, tuple[int, ...]]:
    """Return allocated banks of a hash whose digests have a known size."""
    return {bank: held for bank, held in allocated(link).items() if bank in DIGEST_BYTES}


def read_handles(link: Link, first: int) -> list[int]:
    """Return the handles in use from a first one on, all of its kind."""
    return [reader.number(4) for reader in _list(link, _HANDLES, first, size=4)]


def _list(link: Link, capability: int, first: int, *, size: int) -> Iterator[Reader]:
    """Yield a reader for each entry of a list of fixed-size entries, all rounds of it."""
    at = first
    while True:
        reply = link.send("GetCapability", parameters=u32(capability) + u32(at) + u32(_MOST))
        reader = Reader(reply.parameters, command="GetCapability", source=link.tcti)
        more = reader.number(1)
        reader.take(4)
        count = reader.number(4)
        entry = b""
        for _ in range(count):
            entry = reader.take(size)
            yield Reader(entry, command="GetCapability", source=link.tcti)
        if not more or not count:
            return
        key = entry[: 4 if capability != _ALGS and capability != _CURVES else 2]
        at = int.from_bytes(key, "big") + 1
