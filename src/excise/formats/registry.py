"""The registry of foreign formats: detection, and one reader each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from excise.capture.journal import Aggregate, Event, Loss, Run
from excise.clock import Clock
from excise.errors import FormatError, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reader found in some bytes.

    Attributes:
        format: Name of the format that was read.
        runs: Runs, numbered by `sequence` from 0 in this reading.
        events: Child events; `sequence` refers to a run of this reading.
        aggregates: Rows that the source had already summarised.
        losses: What was not used, and why. Nothing is dropped without a row here.
        clock: Clock of the values, as far as the format tells.
        notes: What a reader of the report should know (a rule chosen, an ambiguity).
    """

    format: str
    runs: Sequence[Run] = ()
    events: Sequence[Event] = ()
    aggregates: Sequence[Aggregate] = ()
    losses: Sequence[Loss] = ()
    clock: Clock = field(default_factory=lambda: Clock(name="unknown"))
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices that some formats need and their bytes do not hold.

    Attributes:
        source: Name for error texts and losses (a path, or `-`).
        configuration: Configuration name for formats that have none.
        task: Task name for formats that have none.
        clock_hz: Frequency of a cycle counter, in Hz, for tables in cycles.
    """

    source: str = "-"
    configuration: str = "imported"
    task: str = ""
    clock_hz: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """One foreign format.

    Attributes:
        name: Name for `--format`, such as `ra-perf`.
        title: One line for `excise import --list`.
        detect: Given the first 64 KiB, return how sure it is, from 0.0 (no) to 1.0.
        read: Given all bytes, return rows or raise FormatError.
    """

    name: str
    title: str
    detect: Callable[[bytes], float]
    read: Callable[[bytes, Options], Reading]


HEAD_BYTES = 65_536


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


def detect(data: bytes, *, source: str = "-") -> Format:
    """Return the format that claims these bytes most surely.

    Raises:
        FormatError: If the input is empty or no format claims it.
    """
    if not data.strip():
        raise FormatError("the input is empty", source=source)
    head = data[:HEAD_BYTES]
    ranked = sorted(((known.detect(head), known.name, known) for known in formats()), reverse=True)
    confidence, _, best = ranked[0]
    if confidence <= 0.0:
        raise FormatError(
            "no known format fits this input",
            source=source,
            hint="Give --format NAME; `excise import --list` shows the names",
        )
    return best


def read(data: bytes, *, options: Options, format_name: str | None = None) -> Reading:
    """Return what the bytes hold, in the given or the detected format.

    Raises:
        FormatError: If the bytes are not of that format; it names line and reason.
        UsageError: If `format_name` is unknown.
    """
    chosen = by_name(format_name) if format_name else detect(data, source=options.source)
    return chosen.read(data, options)
