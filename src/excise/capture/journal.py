"""Journal records: one JSON object a line, told apart by `kind`.

A `run` line is written by the native launcher the moment a run ends (see `excise-probe launch`);
all other lines are written from Python. Unknown members are ignored on reading, so that an older
excise reads a newer journal.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Phase = Literal["first", "warmup", "measured"]


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe printed about one workload run.

    Attributes:
        workload: Name of the system call workload, such as `open_close`.
        operations: Operations in each batch.
        op_ns: Nanoseconds per operation, one value a batch; empty where instructions were counted.
        first_op_ns: Nanoseconds of the very first operation, timed alone.
        op_instructions: Instructions per operation, one value a batch, where the clock counts them.
        first_op_instructions: Instructions of the very first operation.
        clock: Clock the batches were timed with.
        clock_resolution_ns: Its measured resolution, in nanoseconds.
        mechanism: What the probe put on itself first, and the proof that it holds.
    """

    workload: str
    operations: int
    op_ns: list[float] = []
    first_op_ns: float | None = None
    op_instructions: list[float] = []
    first_op_instructions: float | None = None
    clock: str = ""
    clock_resolution_ns: float | None = None
    mechanism: dict[str, Any] = {}


class RunHead(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """Identity of a run: the part of a `run` line that is known before it starts."""

    sequence: int
    block: int
    task: str
    configuration: str
    run: int
    phase: Phase


class Run(RunHead, frozen=True, kw_only=True, tag_field="kind", tag="run"):
    """One run of a task under a configuration, measured from outside.

    Attributes:
        sequence: Position in the order of execution, from 0, unique in the capture.
        block: Randomised block that holds every configuration once.
        run: Number of this run among those of its task and configuration, from 0.
        phase: `first` is kept apart, `warmup` is not counted, `measured` counts.
        start_ns: CLOCK_MONOTONIC when the child was started.
        ok: The exit code was an expected one and no timeout struck.
        instructions: What a hardware counter or, in a counting guest, the guest's clock says.
        ima_entries: Entries that the run added to the kernel's IMA measurement list.
    """

    start_ns: int | None = None
    wall_ns: int | None = None
    user_ns: int | None = None
    system_ns: int | None = None
    max_rss_bytes: int | None = None
    minor_faults: int | None = None
    major_faults: int | None = None
    voluntary_switches: int | None = None
    involuntary_switches: int | None = None
    instructions: int | None = None
    cycles: int | None = None
    ima_entries: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    ok: bool = True
    stderr: str | None = None
    error: str | None = None
    probe: Probe | None = None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="event"):
    """One child event inside a run: a hook, a TPM command, a protocol step.

    Attributes:
        sequence: The run it belongs to.
        layer: Where it was measured, such as `host`, `ta`, `kernel`.
        event: Its name.
        parent: `layer|event` of the event that contains it, or None for a child of the run.
        labels: Further keys as `name=value`, joined by `,`, sorted by name.
        start_ns: Start on the run's clock, or None.
        value: Duration or count.
        unit: Unit of `value`, such as `ns`, `cycles`, `1`.
    """

    sequence: int
    layer: str
    event: str
    value: float
    unit: str = "ns"
    parent: str | None = None
    labels: str = ""
    start_ns: int | None = None


class Aggregate(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="aggregate"):
    """A value that its source had already summarised: a row of somebody's table.

    Attributes:
        task: What was done, such as `stat`.
        configuration: Under what, such as `SELinux`.
        layer: `task` for a total, else where the part was measured.
        event: Name of the part, or "" for the total.
        metric: `duration`, `count`, `max_rss`, ...
        count: Number of observations behind the row, or calls per operation for `per_call`.
        first: The first observation, where the source kept it apart.
        note: What the source says in place of a number (`n/a`), or beside it.
    """

    task: str
    configuration: str
    metric: str
    unit: str
    layer: str = "task"
    event: str = ""
    labels: str = ""
    count: float | None = None
    sum: float | None = None
    min: float | None = None
    mean: float | None = None
    median: float | None = None
    max: float | None = None
    sd: float | None = None
    first: float | None = None
    note: str = ""


class Loss(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="loss"):
    """Input that could not be used, and why; printed by every report.

    Attributes:
        source: File or stream.
        line: Line number from 1, if text.
        offset: Byte offset from 0, if binary.
        count: How many lines, records or events are lost here.
        reason: Why, in one clause.
        text: The beginning of what was lost, at most 200 characters.
    """

    reason: str
    source: str = ""
    line: int | None = None
    offset: int | None = None
    count: int = 1
    text: str = ""


class Effect(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="effect"):
    """The answer to "did this configuration take effect?", asked before it was measured.

    Attributes:
        check: How it was asked: `command ...`, `file ...`, `environment ...`, `probe ...`.
        outcome: `PASSED` or `FAILED`.
    """

    configuration: str
    check: str
    expected: str
    got: str
    outcome: Literal["PASSED", "FAILED"]


class Calibration(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="calibration"):
    """Operations per batch of a probe task: found once, used by every configuration."""

    task: str
    operations: int


class Session(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="session"):
    """A span of work on this capture: started or resumed, finished or interrupted.

    Attributes:
        state: `started`, `resumed`, `interrupted`, `finished`.
        at: Wall clock time, ISO 8601 in UTC.
        runs_done: Complete runs in the journal at that moment.
    """

    state: Literal["started", "resumed", "interrupted", "finished"]
    at: str
    runs_done: int = 0
    excise_version: str = ""
    boot_id: str = ""


Record = Run | Event | Aggregate | Loss | Effect | Calibration | Session

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    """Return the record as one journal line, with its newline."""
    return _encoder.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """Return the record of one journal line.

    Raises:
        msgspec.DecodeError: If the line is not a record; `capture.store` adds file and line.
    """
    return _decoder.decode(line)
