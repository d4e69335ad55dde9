"""The registry of foreign formats: detection, and one reader each."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from excise.capture.journal import Aggregate, Event, Loss, Run
from excise.capture.manifest import Fact
from excise.clock import Clock
from excise.errors import FormatError, UsageError
from excise.files import FileOnDisk, read_whole

HEAD_BYTES: Final = 65_536
DEFAULT_CONFIGURATION: Final = "imported"
MAX_UNPACKED_BYTES: Final = 1 << 30
MAX_HELD_BYTES: Final = 64 << 20
"""Larger files are read by the formats that do so in pieces."""

_GZIP_MAGIC: Final = b"\x1f\x8b\x08"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader found in some bytes.

    Attributes:
        format: Name of the format that was read.
        runs: Runs, numbered by `sequence` from 0 in this reading.
        events: Child events; `sequence` refers to a run of this reading.
        aggregates: Rows that the source had already summarised.
        losses: What was not used, and why. Nothing is dropped without a row here.
        clock: Clock of the runs' values, as far as the format tells.
        clocks: Further clocks, of the events of single layers.
        facts: What the input says about the machine it was made on.
        notes: What a reader of the report should know (a rule chosen, an ambiguity).
    """

    format: str
    runs: Sequence[Run] = ()
    events: Sequence[Event] = ()
    aggregates: Sequence[Aggregate] = ()
    losses: Sequence[Loss] = ()
    clock: Clock = field(default_factory=lambda: Clock(name="unknown"))
    clocks: Sequence[Clock] = ()
    facts: Sequence[Fact] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices that some formats need and their bytes do not hold.

    Attributes:
        source: Name for error texts and losses (a path, or `-`).
        configuration: Configuration name; None leaves it to the bytes, where they tell it.
        task: Task name; "" leaves it to the bytes, where they tell it.
        clock_hz: Frequency of a cycle counter, in Hz, for tables in cycles.
        inner_total: What the bytes call a run's total becomes an event that holds the others, where
            the format has one: the run itself is timed from outside.
    """

    source: str = "-"
    configuration: str | None = None
    task: str = ""
    clock_hz: float | None = None
    inner_total: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One foreign format.

    Attributes:
        name: Name for `--format`, such as `ra-perf`.
        title: One line for `excise import --list`.
        detect: Given the first `head_bytes`, return how sure it is, from 0.0 (no) to 1.0.
        read: Given all bytes, return rows or raise FormatError.
        head_bytes: How much `detect` looks at; more than 64 KiB only where the format stands
            anywhere in a log and `detect` is a plain search.
        read_path: As `read`, given a file that is read in pieces; None where all of it is needed.
    """

    name: str
    title: str
    detect: Callable[[bytes], float]
    read: Callable[[bytes, Options], Reading]
    head_bytes: int = HEAD_BYTES
    read_path: Callable[[Path, Options], Reading] | None = None


def formats() -> tuple[Format, ...]:
    """Return every known format."""
    from excise.formats.all import FORMATS

    return FORMATS


def by_name(name: str) -> Format:
    """Return the format of that name.

    Raises:
        UsageError: If there is none; the names that exist are in the hint.
    """
    for known in formats():
        if known.name == name:
            return known
    names = ", ".join(sorted(known.name for known in formats()))
    raise UsageError(f"no format is called {name!r}", hint=f"Known formats: {names}")


def unpack(data: bytes, *, source: str = "-") -> bytes:
    """Return the bytes, decompressed if they are gzip.

    Raises:
        FormatError: If the gzip stream is damaged, cut, or larger than 1 GiB when unpacked.
    """
    if not data.startswith(_GZIP_MAGIC):
        return data
    parts: list[bytes] = []
    size, rest = 0, data
    while rest.startswith(_GZIP_MAGIC):
        stream = zlib.decompressobj(wbits=31)
        try:
            part = stream.decompress(rest, MAX_UNPACKED_BYTES - size + 1)
        except zlib.error as error:
            raise FormatError(f"damaged gzip data ({error})", source=source, offset=0) from error
        size += len(part)
        if size > MAX_UNPACKED_BYTES:
            raise FormatError("more than 1 GiB of unpacked data", source=source, offset=0)
        if not stream.eof:
            raise FormatError("the gzip data is cut short", source=source, offset=len(data))
        parts.append(part)
        rest = stream.unused_data
    return b"".join(parts)


def claims(data: bytes) -> list[tuple[float, Format]]:
    """Return the formats that claim these (unpacked) bytes, the surest first."""
    found = [(known.detect(data[: known.head_bytes]), known) for known in formats()]
    return sorted((pair for pair in found if pair[0] > 0.0), key=lambda pair: -pair[0])


def detect(data: bytes, *, source: str = "-") -> Format:
    """Return the format that claims these bytes most surely.

    Raises:
        FormatError: If the input is empty, no format claims it, or two claim it alike.
    """
    data = unpack(data, source=source)
    if not data.strip():
        raise FormatError("the input is empty", source=source)
    ranked = claims(data)
    if not ranked:
        raise FormatError(
            "no known format fits this input",
            source=source,
            hint="Give --format NAME; `excise import --list` shows the names",
        )
    best = [known.name for confidence, known in ranked if confidence == ranked[0][0]]
    if len(best) > 1:
        raise FormatError(
            f"the input fits {' and '.join(best)} alike", source=source, hint="Give --format NAME"
        )
    return ranked[0][1]


def read(data: bytes | FileOnDisk, *, options: Options, format_name: str | None = None) -> Reading:
    """Return what the bytes hold, in the given or the detected format; gzip is unpacked first.

    A file stays on disk where its format can be read in pieces.

    Raises:
        FormatError: If the bytes are not of that format; it names line and reason. If a file has
            more than `MAX_HELD_BYTES` and has to be read whole.
        UsageError: If `format_name` is unknown.
        OSError: If a file cannot be read.
    """
    if isinstance(data, FileOnDisk):
        head = data.head(max(known.head_bytes for known in formats()))
        if not head.startswith(_GZIP_MAGIC):
            known = by_name(format_name) if format_name else detect(head, source=options.source)
            if known.read_path is not None:
                return known.read_path(data.path, options)
        data = read_whole(data.path, limit_bytes=MAX_HELD_BYTES)
    data = unpack(data, source=options.source)
    chosen = by_name(format_name) if format_name else detect(data, source=options.source)
    return chosen.read(data, options)
