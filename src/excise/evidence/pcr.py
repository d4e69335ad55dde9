"""PCR values from every form in which tools hand them over, each value under its bank and index.

A digest without its label proves nothing, so a form that does not say which PCR a digest belongs
to (the concatenated values of `tpm2_pcrread -o`) is read only together with its selection, and a
length that does not fit the bank is refused rather than padded or cut.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from excise.errors import FormatError, UsageError
from excise.files import read_whole
from excise.units import counted

BANK_SIZES_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {
        "sha1": 20,
        "sha256": 32,
        "sha384": 48,
        "sha512": 64,
        "sm3_256": 32,
        "sha3_256": 32,
        "sha3_384": 48,
        "sha3_512": 64,
    }
)
"""Digest size of each bank, by the name tpm2-tools gives it."""

ALGORITHM_BANKS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0x0004: "sha1",
        0x000B: "sha256",
        0x000C: "sha384",
        0x000D: "sha512",
        0x0012: "sm3_256",
        0x0027: "sha3_256",
        0x0028: "sha3_384",
        0x0029: "sha3_512",
    }
)
"""TPM_ALG_ID of each hash, from the TCG Algorithm Registry."""

MAX_PCR_INDEX: Final = 31
"""Highest index a four-byte selection can name; PC Client TPMs have 24 PCRs."""

_ALIASES: Final = {"sm3": "sm3_256"}

# The C structures that `tpm2_quote -o` writes: TPML_PCR_SELECTION with 16 entries of 8 bytes
# (7 and one of padding), a count, then TPML_DIGESTs of 8 TPM2B_DIGESTs of 66 bytes.
_SELECTION_ENTRIES: Final = 16
_SELECTION_BYTES: Final = 4 + _SELECTION_ENTRIES * 8
_DIGESTS_PER_LIST: Final = 8
_DIGEST_BYTES: Final = 66
_LIST_BYTES: Final = 4 + _DIGESTS_PER_LIST * _DIGEST_BYTES

PcrSelection = tuple[tuple[str, tuple[int, ...]], ...]
"""Banks in their order, each with its PCR indices in ascending order, as a TPM takes them."""


@dataclass(frozen=True, slots=True, eq=False)
class PcrValues(Mapping[str, Mapping[int, bytes]]):
    """PCR values by bank and index, and where they came from.

    Attributes:
        banks: Value by index, by bank; every value has the bank's size.
        sources: What was read, in order, for messages.
    """

    banks: Mapping[str, Mapping[int, bytes]]
    sources: tuple[str, ...] = ()

    def __getitem__(self, bank: str) -> Mapping[int, bytes]:
        """Return the values of one bank."""
        return self.banks[bank]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the banks, in the order read."""
        return iter(self.banks)

    def __len__(self) -> int:
        """Return the number of banks."""
        return len(self.banks)

    @property
    def selection(self) -> PcrSelection:
        """Return which PCRs are held."""
        return tuple((bank, tuple(sorted(values))) for bank, values in self.banks.items())

    def select(self, selection: PcrSelection) -> PcrValues:
        """Return exactly the PCRs of a selection, in its order.

        Raises:
            UsageError: A selected PCR is not held.
        """
        chosen: dict[str, dict[int, bytes]] = {}
        for bank, indices in selection:
            for index in indices:
                value = self.banks.get(bank, {}).get(index)
                if value is None:
                    raise UsageError(
                        f"no value of PCR {index} in the {bank} bank was given",
                        source=", ".join(self.sources) or None,
                    )
                chosen.setdefault(bank, {})[index] = value
        return _freeze(chosen, self.sources)


def canonical_bank(name: str) -> str:
    """Return the name of a bank as used here: lower case, `sm3_256` for `sm3` and `sm3-256`.

    Raises:
        FormatError: No TPM hash has this name.
    """
    spelled = name.strip().lower().replace("-", "_")
    spelled = _ALIASES.get(spelled, spelled)
    if spelled not in BANK_SIZES_BYTES:
        raise FormatError(
            f"unknown PCR bank {name!r}", field="bank", hint=f"Known: {', '.join(BANK_SIZES_BYTES)}"
        )
    return spelled


def parse_selection(text: str) -> PcrSelection:
    """Return a selection written as for tpm2-tools: `sha256:0,1,10+sha1:all`.

    `all` means PCR 0 to 23; ranges such as `0-7` are taken too.

    Raises:
        UsageError: The text names no PCR, or one that cannot exist.
    """
    chosen: list[tuple[str, tuple[int, ...]]] = []
    for part in text.split("+"):
        name, colon, listed = part.partition(":")
        if not colon:
            raise UsageError(
                f"PCR selection {part!r} is not BANK:INDEX,…", hint="Say sha256:0,1,10"
            )
        try:
            bank = canonical_bank(name)
        except FormatError as error:
            raise UsageError(error.reason, hint=error.hint) from None
        if bank in dict(chosen):
            raise UsageError(f"PCR selection names the {bank} bank twice")
        indices = sorted(set(_parse_indices(listed)))
        chosen.append((bank, tuple(indices)))
    return tuple(chosen)


def _parse_indices(listed: str) -> Iterator[int]:
    if listed.strip() == "all":
        yield from range(24)
        return
    for item in listed.split(","):
        matched = re.fullmatch(r"\s*([0-9]{1,2})(?:-([0-9]{1,2}))?\s*", item)
        if matched is None:
            raise UsageError(f"PCR index {item!r} is not a number")
        first = int(matched[1])
        last = int(matched[2] or first)
        if not first <= last <= MAX_PCR_INDEX:
            raise UsageError(f"PCR index {item.strip()} is not within 0..{MAX_PCR_INDEX}")
        yield from range(first, last + 1)


def parse_pcr_argument(text: str) -> PcrValues:
    """Return the one value of an argument `sha256:10=HEX`.

    Raises:
        UsageError: The text has another shape, or the value's size is not the bank's.
    """
    matched = re.fullmatch(_LABELLED, text)
    if matched is None:
        raise UsageError(f"{text!r} is not BANK:INDEX=HEX", hint="Say sha256:10=HEX")
    try:
        builder = _Builder(None)
        builder.add(matched[1], int(matched[2]), matched[3])
    except FormatError as error:
        raise UsageError(f"{text!r}: {error.reason}", hint=error.hint) from None
    return builder.finish("argument")


def merge_pcrs(parts: Iterable[PcrValues]) -> PcrValues:
    """Return the values of several sources together.

    Raises:
        UsageError: Two sources give different values for one PCR; neither is preferred.
    """
    merged: dict[str, dict[int, bytes]] = {}
    sources: list[str] = []
    for part in parts:
        sources.extend(part.sources)
        for bank, values in part.items():
            for index, value in values.items():
                held = merged.setdefault(bank, {}).setdefault(index, value)
                if held != value:
                    raise UsageError(
                        f"PCR {index} of the {bank} bank is given as {held.hex()} and as "
                        f"{value.hex()}",
                        source=", ".join(sources),
                    )
    return _freeze(merged, tuple(sources))


def read_pcr_path(
    path: Path, *, selection: PcrSelection | None = None, bank: str | None = None
) -> PcrValues:
    """Return the PCR values of a file in any known form, or of a sysfs folder.

    Args:
        path: A file (see `read_pcr_bytes`), a folder such as `/sys/class/tpm/tpm0`, or one of its
            `pcr-sha256` folders.
        selection: Which PCRs the file holds, needed for concatenated values only.
        bank: Bank of text whose lines do not name one; told by length when not given.

    Raises:
        FormatError: The path cannot be read as PCR values.
    """
    try:
        if path.is_dir():
            return _read_sysfs(path)
        data = read_whole(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise FormatError(f"cannot be read: {reason}", source=str(path)) from error
    return read_pcr_bytes(data, source=str(path), selection=selection, bank=bank)


def read_pcr_bytes(
    data: bytes,
    *,
    source: str = "PCR values",
    selection: PcrSelection | None = None,
    bank: str | None = None,
) -> PcrValues:
    """Return PCR values from text or from tpm2-tools' binary forms, told apart by content.

    Text may hold lines of `tpm2_pcrread` (YAML), of evmctl's `--pcrs` files (`PCR-10: aa bb`), or
    `sha256:10 HEX`. Binary is the `serialized` form of `tpm2_quote -o` in either byte order, or
    the `values` form, which needs its selection.

    Args:
        data: The whole content.
        source: Name for messages.
        selection: Which PCRs the data holds; compared where the data says so itself.
        bank: Bank of text whose lines do not name one; told by length when not given.

    Raises:
        FormatError: The data is none of these forms, or contradicts itself or the selection.
    """
    try:
        if _is_text(data):
            values = _read_text(data, bank)
        elif selection is not None and len(data) == _values_size(selection):
            values = _read_values(data, selection)
        else:
            values = _read_serialized(data, selection)
    except FormatError as error:
        error.source = source
        raise
    return PcrValues(values.banks, (source,))


class _Builder:
    """Values under way, with the rules every form shares."""

    def __init__(self, bank: str | None) -> None:
        self._bank = canonical_bank(bank) if bank is not None else None
        self._values: dict[str, dict[int, bytes]] = {}

    def add(self, bank: str | None, index: int, text: str, *, line: int | None = None) -> None:
        digits = "".join(text.split()).removeprefix("0x").removeprefix("0X")
        if len(digits) % 2:
            raise FormatError("odd number of hexadecimal digits", line=line, field="value")
        self.put(bank, index, bytes.fromhex(digits), line=line)

    def put(
        self,
        bank: str | None,
        index: int,
        value: bytes,
        *,
        line: int | None = None,
        offset: int | None = None,
    ) -> None:
        try:
            self._put(bank, index, value)
        except FormatError as error:
            error.line, error.offset = line, offset
            raise

    def _put(self, bank: str | None, index: int, value: bytes) -> None:
        bank = bank or self._bank or _bank_of_size(len(value))
        if bank is None:
            raise FormatError(f"{len(value)} bytes fit no bank", field="value")
        bank = canonical_bank(bank)
        if index > MAX_PCR_INDEX:
            raise FormatError(f"PCR {index} cannot exist", field="index")
        if len(value) != BANK_SIZES_BYTES[bank]:
            raise FormatError(
                f"PCR {index} of the {bank} bank has {len(value)} bytes, not "
                f"{BANK_SIZES_BYTES[bank]}",
                field="value",
            )
        held = self._values.setdefault(bank, {}).setdefault(index, value)
        if held != value:
            raise FormatError(
                f"PCR {index} of the {bank} bank appears with two values", field="value"
            )

    def finish(self, source: str) -> PcrValues:
        if not self._values:
            raise FormatError("no PCR value in it")
        return _freeze(self._values, (source,))


def _freeze(values: Mapping[str, Mapping[int, bytes]], sources: tuple[str, ...]) -> PcrValues:
    banks = {bank: MappingProxyType(dict(held)) for bank, held in values.items()}
    return PcrValues(MappingProxyType(banks), sources)


def _bank_of_size(size_bytes: int) -> str | None:
    # 32 and 48 and 64 bytes also fit SM3 and SHA-3, which nothing prints without their name.
    return {20: "sha1", 32: "sha256", 48: "sha384", 64: "sha512"}.get(size_bytes)


_BANK_NAME: Final = r"(s(?:ha|m)[0-9][0-9_\-]*)"
# Patterns, which `re` compiles and keeps when a file needs them: most calls need one.
_LABELLED: Final = rf"(?i)\s*{_BANK_NAME}\s*:\s*([0-9]{{1,2}})\s*[= ]\s*((?:0x)?[0-9a-f]+)\s*"
_NUMBERED: Final = r"(?i)\s*PCR[- ]?\s*([0-9]{1,2})\s*:\s*((?:[0-9a-f]{2}\s*)+)"
_PRINTED: Final = (
    # A row, or the line of a bank.
    rf"(?i)\s*(?:([0-9]{{1,2}})\s*:\s*((?:0x)?[0-9a-f]+)|{_BANK_NAME}\s*:)\s*"
)
_IGNORED: Final = (
    # Blank lines, comments, YAML's document mark, and the other keys `tpm2_quote` prints.
    r"\s*|\s*#.*|---\s*|\s*(?:pcrs|signature)\s*:\s*"
    r"|\s*(?:quoted|sig|calcDigest)\s*:\s*[0-9a-fA-F]*\s*|\s*alg\s*:\s*[a-z0-9]+\s*"
)


_TEXT: Final = b"\t\n\r" + bytes(range(0x20, 0x7F))


def _is_text(data: bytes) -> bool:
    if not data:
        raise FormatError("empty: no PCR value in it")
    return not data.translate(None, _TEXT)


def _read_text(data: bytes, bank: str | None) -> PcrValues:
    builder = _Builder(bank)
    current: str | None = None
    printed = re.compile(_PRINTED)
    for number, line in enumerate(data.decode("ascii").splitlines(), start=1):
        # No line is of two of these forms; those that tpm2_pcrread prints come first.
        matched = printed.fullmatch(line)
        if matched and matched[3]:
            current = matched[3]
        elif matched:
            if current is None and bank is None:
                raise FormatError("a PCR row before any bank was named", line=number, field="bank")
            builder.add(current, int(matched[1]), matched[2], line=number)
        elif matched := re.fullmatch(_LABELLED, line):
            builder.add(matched[1], int(matched[2]), matched[3], line=number)
        elif matched := re.fullmatch(_NUMBERED, line):
            builder.add(None, int(matched[1]), matched[2], line=number)
        elif re.fullmatch(_IGNORED, line) is None:
            raise FormatError(f"not a PCR value: {line.strip()[:60]!r}", line=number)
    return builder.finish("text")


def _values_size(selection: PcrSelection) -> int:
    unknown = [bank for bank, _ in selection if bank not in BANK_SIZES_BYTES]
    if unknown:
        raise FormatError(
            f"the selection names a bank of an unknown hash, {', '.join(unknown)}", field="bank"
        )
    return sum(BANK_SIZES_BYTES[bank] * len(indices) for bank, indices in selection)


def _read_values(data: bytes, selection: PcrSelection) -> PcrValues:
    builder = _Builder(None)
    offset = 0
    _values_size(selection)
    for bank, indices in selection:
        size = BANK_SIZES_BYTES[bank]
        for index in indices:
            builder.put(bank, index, data[offset : offset + size], offset=offset)
            offset += size
    return builder.finish("values")


def _read_serialized(data: bytes, selection: PcrSelection | None) -> PcrValues:
    size = len(data)
    lists, rest = divmod(size - _SELECTION_BYTES - 4, _LIST_BYTES)
    if lists < 1 or rest:
        if selection is not None:
            raise FormatError(
                f"{size} bytes, but the selected PCRs take {_values_size(selection)} bytes",
                hint="Give the selection the file was written with",
            )
        raise FormatError(
            f"{size} bytes are no serialised PCR structure "
            f"({_SELECTION_BYTES} + 4 + n × {_LIST_BYTES} bytes)",
            hint="Concatenated values (tpm2_pcrread -o) need the selection they were written with",
        )
    order = _byte_order(data, lists)
    entries = _serialized_selection(data, order)
    if selection is not None and entries != selection:
        raise FormatError(
            f"holds {format_selection(entries)}, not {format_selection(selection)}",
            field="TPML_PCR_SELECTION",
            offset=0,
        )
    labels = [(bank, index) for bank, indices in entries for index in indices]
    digests = list(_serialized_digests(data, order, lists))
    if len(labels) != len(digests):
        raise FormatError(
            f"{counted(len(digests), 'digest')} for {counted(len(labels), 'selected PCR')}",
            field="TPML_DIGEST",
            offset=_SELECTION_BYTES,
        )
    builder = _Builder(None)
    for (bank, index), (offset, value) in zip(labels, digests, strict=True):
        builder.put(bank, index, value, offset=offset)
    return builder.finish("serialized")


def _byte_order(data: bytes, lists: int) -> str:
    # Old tpm2-tools wrote the structures in the byte order of the machine; both counts must fit.
    for order in "<>":
        (entries,) = struct.unpack_from(f"{order}I", data, 0)
        (held,) = struct.unpack_from(f"{order}I", data, _SELECTION_BYTES)
        if 1 <= entries <= _SELECTION_ENTRIES and held == lists:
            return order
    (entries,) = struct.unpack_from("<I", data, 0)
    raise FormatError(
        f"neither byte order gives a valid count of banks (1..{_SELECTION_ENTRIES}) and of digest "
        f"lists ({lists}); little-endian count of banks is {entries}",
        field="count",
        offset=0,
    )


def _serialized_selection(data: bytes, order: str) -> PcrSelection:
    (count,) = struct.unpack_from(f"{order}I", data, 0)
    entries: list[tuple[str, tuple[int, ...]]] = []
    for number in range(count):
        offset = 4 + number * 8
        algorithm, size = struct.unpack_from(f"{order}HB", data, offset)
        if size > 4:
            raise FormatError(f"sizeofSelect {size} exceeds 4", field="sizeofSelect", offset=offset)
        bank = ALGORITHM_BANKS.get(algorithm)
        if bank is None:
            raise FormatError(f"unknown hash {algorithm:#06x}", field="hash", offset=offset)
        indices = bits_to_indices(data[offset + 3 : offset + 3 + size])
        if indices:
            entries.append((bank, indices))
    return tuple(entries)


def _serialized_digests(data: bytes, order: str, lists: int) -> Iterator[tuple[int, bytes]]:
    for number in range(lists):
        offset = _SELECTION_BYTES + 4 + number * _LIST_BYTES
        (count,) = struct.unpack_from(f"{order}I", data, offset)
        if count > _DIGESTS_PER_LIST:
            raise FormatError(
                f"{count} digests in a list of {_DIGESTS_PER_LIST}", field="count", offset=offset
            )
        for position in range(count):
            start = offset + 4 + position * _DIGEST_BYTES
            (size,) = struct.unpack_from(f"{order}H", data, start)
            if size > _DIGEST_BYTES - 2:
                raise FormatError(f"digest of {size} bytes", field="size", offset=start)
            yield start, data[start + 2 : start + 2 + size]


def bits_to_indices(bitmap: bytes) -> tuple[int, ...]:
    """Return the PCR indices of a TPMS_PCR_SELECTION bitmap: bit 0 of byte 0 is PCR 0."""
    return tuple(
        8 * place + bit for place, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1
    )


def format_selection(selection: PcrSelection) -> str:
    """Return a selection as tpm2-tools write it; `nothing` when it is empty."""
    parts = (f"{bank}:{','.join(map(str, indices))}" for bank, indices in selection)
    return "+".join(parts) or "nothing"


def _read_sysfs(folder: Path) -> PcrValues:
    banks = [folder] if folder.name.startswith("pcr-") else sorted(folder.glob("pcr-*"))
    if not banks:
        raise FormatError(
            "no pcr-* folder in it",
            source=str(folder),
            hint="The kernel shows PCRs here since Linux 5.12; older ones need tpm2_pcrread",
        )
    builder = _Builder(None)
    for bank in banks:
        for file in sorted(bank.iterdir(), key=lambda path: path.name.zfill(3)):
            if not file.name.isdigit():
                continue
            text = file.read_text(encoding="ascii", errors="replace").strip()
            try:
                if re.fullmatch(r"[0-9A-Fa-f]+", text) is None:
                    raise FormatError("not a hexadecimal digest", field="value")
                builder.add(bank.name.removeprefix("pcr-"), int(file.name), text)
            except FormatError as error:
                error.source = str(file)
                raise
    try:
        values = builder.finish("sysfs")
    except FormatError as error:
        error.source = str(folder)
        raise
    return PcrValues(values.banks, (str(folder),))
