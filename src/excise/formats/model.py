"""What a reader of a foreign format is, what it is asked, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from excise.capture.journal import Aggregate, Event, Loss, Run
from excise.capture.manifest import Fact
from excise.clock import Clock

HEAD_BYTES: Final = 65_536
DEFAULT_CONFIGURATION: Final = "imported"


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
