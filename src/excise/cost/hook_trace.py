"""What a trace says: each hook, each in its system call, the tracer's own cost, the loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from excise.capture.journal import Aggregate, Loss
from excise.cost.tracer_cost import TracerCost, calibrated
from excise.errors import FormatError
from excise.formats.trace_rows import (
    CALL_SITE,
    HOOK,
    INSIDE,
    histogram_rows,
    label,
    layer_and_event,
)
from excise.units import counted

if TYPE_CHECKING:
    import polars as pl

    from excise.formats.function_graph import FunctionGraph
    from excise.stats import PairedComparison

CYCLES: Final = "cycles"
BPFTRACE: Final = "bpftrace"
SLOWDOWN: Final = "slowdown"
Measure = Literal["wall_ns", "cpu_ns"]


class Cpu(msgspec.Struct, frozen=True, kw_only=True):
    """One processor's buffer: events lost, and read."""

    cpu: int
    overrun: int = 0
    dropped: int = 0
    commit_overrun: int = 0
    read: int = 0


class Matched(msgspec.Struct, frozen=True, kw_only=True):
    """How many functions a pattern chose."""

    pattern: str
    functions: int


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the command: whether it was traced, its time and processor time."""

    traced: bool
    wall_ns: int
    cpu_ns: int


class KernelHook(msgspec.Struct, frozen=True, kw_only=True):
    """A hook of the kernel, its group, and its caller; None where that cannot be traced."""

    hook: str
    group: str
    function: str | None = None


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether this kernel has a back-end, and in an instance of one's own."""

    backend: str
    offered: bool
    instance: bool
    why: str


class TraceSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the probe says of a trace; see `docs/trace.md`."""

    kernel_release: str
    lsm: str
    backend: str
    reason: str
    offers: list[Offer]
    instance: str | None
    matched: list[Matched]
    functions: list[str]
    refused: list[str]
    clock: str
    cycles_per_s: float | None
    syscalls: bool
    interruptions: bool
    calibration_calls: int
    cpus: list[Cpu]
    missed: int
    trace_bytes: int
    wall_ns: int
    runs: list[Run] = []
    interruption_events: list[str] = []
    exit_code: int | None
    stopped: bool
    full: bool = False
    machine: str = "x86_64"
    hooks: list[KernelHook] = []

    @property
    def untraced_ns(self) -> float | None:
        """Return the median time without the tracer; None where that was not measured."""
        found = [run.wall_ns for run in self.runs if not run.traced]
        return median(found) if found else None

    def slowdown(self, measure: Measure = "wall_ns") -> PairedComparison | None:
        """Return the traced runs against the untraced ones, pair by pair.

        Args:
            measure: Time on the clock, or processor time of the command.

        Returns:
            None where it was not measured, or no time passed.
        """
        from excise.stats import compare_paired

        arms: dict[bool, list[int]] = {False: [], True: []}
        for run in self.runs:
            arms[run.traced].append(getattr(run, measure))
        pairs = [pair for pair in zip(arms[False], arms[True], strict=False) if all(pair)]
        if not pairs:
            return None
        untraced, traced = zip(*pairs, strict=True)
        return compare_paired(untraced, traced)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookTrace:
    """A trace of hooks.

    Attributes:
        unit: `ns`, or `cycles` where the durations are of the time stamp counter.
        tracer: The tracer's own cost in that unit; None where nothing was calibrated.
        subtracted: Whether it was taken out of the durations.
        functions: One row for each traced function that was called: `function`, `calls`, `timed`,
            `disturbed`, `self`, `min`, `median`, `mean`, `p99`, `max`, `below_floor`, and how
            long all calls together were interrupted (`interrupt`) or off the processor
            (`off_cpu`), which is in none of the others; `inside` and `directly` say how many
            traced calls one call has inside, at any depth or the first. Null where the back-end
            does not tell.
        by_syscall: The same for each `syscall` and `function`.
        syscalls: `syscall` and `entered`.
        callers: Calls by `function` and `caller`, where the trace tells.
        never: Functions that were traced and not called.
        losses: Everything that is missing.
        histogram: Where bpftrace summed up: `syscall`, `function`, `from_ns`, `to_ns`, `count`.
    """

    summary: TraceSummary
    unit: str
    tracer: TracerCost | None
    subtracted: bool
    functions: pl.DataFrame
    by_syscall: pl.DataFrame
    syscalls: pl.DataFrame
    callers: pl.DataFrame
    never: tuple[str, ...]
    losses: tuple[Loss, ...]
    histogram: pl.DataFrame | None = None

    @property
    def coverage(self) -> float:
        """Return the part of the traced functions that was called."""
        traced = len(self.summary.functions)
        return (traced - len(self.never)) / traced if traced else 0.0


def read_hook_trace(
    trace: Path, *, summary: bytes, calibration: bytes, subtract: bool = False, cycles: bool = False
) -> HookTrace:
    """Return what a trace by the probe says.

    Args:
        trace: Its text.
        summary: The probe's JSON line about it.
        calibration: Text of the calibration.
        subtract: Take the tracer's own cost out of every duration.
        cycles: Give durations in cycles of the time stamp counter where they are.

    Raises:
        FormatError: If the summary is none, or the trace holds no line that can be read.
    """
    from excise.formats.function_graph import read_function_graph

    try:
        known = msgspec.json.decode(summary, type=TraceSummary)
    except msgspec.DecodeError as error:
        raise FormatError(f"is no summary of a trace: {error}", source=f"{trace.name}") from error
    if known.backend == BPFTRACE:
        return _summed(trace, known, calibration, subtract=subtract)
    graph = read_function_graph(trace, name=trace.name)
    factor, unit = _scale(graph, known, cycles=cycles)
    tracer = calibrated(calibration, source=f"{trace.name}, calibration", factor=factor)
    taken = tracer if subtract else None
    functions = _durations(graph, known, "function", factor=factor, tracer=tracer, taken=taken)
    by_syscall = _durations(
        graph, known, "syscall", "function", factor=factor, tracer=tracer, taken=taken
    )
    return HookTrace(
        summary=known,
        unit=unit,
        tracer=tracer,
        subtracted=taken is not None,
        functions=functions,
        by_syscall=by_syscall,
        syscalls=_entered(graph),
        callers=graph.callers,
        never=_never(known, functions),
        losses=(*graph.losses, *_losses(known, {cpu: events for cpu, events, _ in graph.lost})),
    )


def _summed(trace: Path, known: TraceSummary, calibration: bytes, *, subtract: bool) -> HookTrace:
    """Return what bpftrace summed up."""
    from excise.cost.hook_sums import calibrated_sums, merged_sums, read_hook_sums

    sums = read_hook_sums(
        trace.read_bytes(), source=trace.name, functions=known.functions, machine=known.machine
    )
    tracer = calibrated_sums(calibration, source=f"{trace.name}, calibration")
    floor = tracer.floor if tracer and subtract else 0.0
    limit = tracer.floor_p95 - floor if tracer else None

    functions = merged_sums(sums, "function", floor=floor, limit=limit)
    return HookTrace(
        summary=known,
        unit="ns",
        tracer=tracer,
        subtracted=subtract and tracer is not None,
        functions=functions,
        by_syscall=merged_sums(sums, "syscall", "function", floor=floor, limit=limit),
        syscalls=sums.syscalls,
        callers=_no_callers(),
        never=_never(known, functions),
        losses=(*sums.losses, *_losses(known, {})),
        histogram=sums.buckets,
    )


def _never(known: TraceSummary, functions: pl.DataFrame) -> tuple[str, ...]:
    called = set(functions.get_column("function"))
    return tuple(name for name in known.functions if name not in called)


def _scale(graph: FunctionGraph, summary: TraceSummary, *, cycles: bool) -> tuple[float, str]:
    """Return what durations are multiplied with, and their unit then."""
    if not graph.ticks or graph.graph_lines:
        return 1.0, "ns"
    if cycles or summary.cycles_per_s is None:
        return 1.0, CYCLES
    return 1e9 / summary.cycles_per_s, "ns"


def _durations(
    graph: FunctionGraph,
    known: TraceSummary,
    *keys: str,
    factor: float,
    tracer: TracerCost | None,
    taken: TracerCost | None,
) -> pl.DataFrame:
    import polars as pl

    floor, nested = (taken.floor, taken.nested) if taken else (0.0, 0.0)
    # Functions of interrupts and of the scheduler are traced to be told apart, not for themselves.
    own = pl.col("function").is_in(known.functions) if known.functions else pl.lit(True)
    net = pl.col("total_ns") - pl.col("interrupt_ns") - pl.col("off_cpu_ns")
    found = (
        graph.by(*keys)
        .filter(own)
        .join(_inside(graph, known, *keys), on=keys, how="left", nulls_equal=True)
        .with_columns(self_mean=pl.col("self_ns") / pl.col("timed"), net_mean=net / pl.col("timed"))
    )
    named = {
        "min": "min_ns",
        "median": "median_ns",
        "mean": "net_mean",
        "p99": "p99_ns",
        "max": "max_ns",
    }
    tracers = floor + nested * pl.col("inside").fill_null(0.0)
    columns = [(pl.col(old) * factor - tracers).alias(new) for new, old in named.items()]
    between = floor + (nested - floor) * pl.col("directly").fill_null(0.0)
    columns.append((pl.col("self_mean") * factor - between).alias("self"))
    columns += [(pl.col(f"{name}_ns") * factor).alias(name) for name in ("interrupt", "off_cpu")]
    limit = tracer.floor_p95 - floor if tracer else None
    below = pl.col("median") <= limit if limit is not None else pl.lit(None, dtype=pl.Boolean)
    return (
        found.select(*keys, "calls", "timed", "disturbed", *columns, "inside", "directly")
        .with_columns(below_floor=below)
        .sort(pl.col("calls") * pl.col("mean").fill_null(0.0), descending=True)
    )


def _inside(graph: FunctionGraph, known: TraceSummary, *keys: str) -> pl.DataFrame:
    """Return how many traced calls one call has inside, by these keys; no rows without nesting."""
    import polars as pl

    schema = {**dict.fromkeys(keys, pl.String), "inside": pl.Float64, "directly": pl.Float64}
    if not graph.paths.height:
        return pl.DataFrame(schema=schema)
    names = set(known.functions)
    paths = graph.paths.select("parent", "function", "calls").rows()
    inside, directly = [0] * len(paths), [0] * len(paths)
    for row in range(len(paths) - 1, -1, -1):  # a parent stands before its children
        parent, function, calls = paths[row]
        if parent is None or (names and function not in names):
            continue
        inside[parent] += inside[row] + calls
        directly[parent] += calls
    counts = {"inside": inside, "directly": directly}
    return (
        graph.paths.select(*keys, "calls")
        .with_columns(pl.Series(name, values) for name, values in counts.items())
        .group_by(keys)
        .agg(pl.col("inside", "directly").sum() / pl.col("calls").sum())
        .select(*keys, "inside", "directly")
    )


def _entered(graph: FunctionGraph) -> pl.DataFrame:
    import polars as pl

    return (
        graph.syscalls.group_by("syscall")
        .agg(entered=pl.col("entered").sum())
        .sort("entered", "syscall", descending=[True, False])
    )


def _no_callers() -> pl.DataFrame:
    import polars as pl

    schema = {"function": pl.String, "caller": pl.String, "calls": pl.Int64}
    return pl.DataFrame(schema=schema)


def _losses(summary: TraceSummary, told: Mapping[int, int]) -> Iterator[Loss]:
    """Yield what is missing beside what the text tells.

    Where events were overwritten before they were read, the kernel counts them as `overrun`, and
    prints a line in the place of those whose successors are read (`told`, by processor): these are
    the same events. What was dropped, or overrun at a commit, is in no such line.
    """
    for cpu in summary.cpus:
        for words, count in (
            ("overrun", cpu.overrun - told.get(cpu.cpu, 0)),
            ("dropped", cpu.dropped),
            ("commit overrun", cpu.commit_overrun),
        ):
            if count > 0:
                yield Loss(source=f"CPU {cpu.cpu}", reason=f"events lost: {words}", count=count)
    if summary.full:
        reason = f"the trace ended at its limit of {summary.trace_bytes:,} bytes: what came after"
        yield Loss(source=summary.backend, reason=reason)
    if summary.missed:
        yield Loss(source=summary.backend, reason="returns that had no room", count=summary.missed)
    if summary.refused:
        yield Loss(
            source=summary.backend,
            reason="functions that the kernel did not let be traced",
            count=len(summary.refused),
            text=", ".join(summary.refused)[:200],
        )


def trace_records(found: HookTrace, *, task: str, configuration: str) -> Iterator[Aggregate]:
    """Yield the journal's rows of a trace: by hook and system call, totals, the tracer's cost."""
    key: dict[str, Any] = {"task": task, "configuration": configuration}
    if (untraced_ns := found.summary.untraced_ns) is not None:
        yield Aggregate(**key, metric="duration", unit="ns", mean=untraced_ns, note="untraced")
    yield from _slowdown_rows(found, key)
    yield from _tracer_rows(found, key)
    # Functions inside of hooks are no parts of the whole beside them.
    hooks = [layer_and_event(name)[0] == HOOK for name in found.functions.get_column("function")]
    for row in found.by_syscall.iter_rows(named=True):
        yield from _function_rows(found, row, key, tops=HOOK if any(hooks) else None)
    for function, caller, count in found.callers.iter_rows():
        layer, event = layer_and_event(function)
        yield Aggregate(
            **{**key, "layer": layer, "event": event, "labels": label("caller", caller)},
            metric=CALL_SITE,
            unit="1",
            count=float(count),
        )
    for row in found.syscalls.iter_rows(named=True):
        yield Aggregate(
            **key,
            layer="syscall",
            event=row["syscall"] or "(none)",
            metric="count",
            unit="1",
            count=float(row["entered"]),
        )


def _slowdown_rows(found: HookTrace, key: Mapping[str, Any]) -> Iterator[Aggregate]:
    """Yield what tracing cost the workload, as ratio to the untraced runs, with its interval."""
    for measure in get_args(Measure):
        ratio = found.summary.slowdown(measure)
        if ratio is None:
            continue
        interval = ratio.interval
        yield Aggregate(
            **key,
            layer="probe",
            event=found.summary.backend,
            labels=label("of", measure.removesuffix("_ns")),
            metric=SLOWDOWN,
            unit="1",
            count=float(ratio.n),
            median=ratio.ratio,
            min=interval.low if interval else None,
            max=interval.high if interval else None,
            note="traced over untraced" + (f", {ratio.confidence:.0%} interval" * bool(interval)),
        )


def _tracer_rows(found: HookTrace, key: Mapping[str, Any]) -> Iterator[Aggregate]:
    if found.tracer is None:
        return
    state = "subtracted" if found.subtracted else "left_in"
    backend = found.summary.backend
    common: dict[str, Any] = {**key, "layer": "probe", "event": backend, "metric": "tracer_cost"}
    yield Aggregate(
        **common,
        labels=f"share=floor,state={state}",
        unit=found.unit,
        count=float(found.tracer.calls),
        median=found.tracer.floor,
        min=found.tracer.floor_p05,
        max=found.tracer.floor_p95,
        note="5th and 95th percentile of an empty function",
    )
    yield Aggregate(
        **common,
        labels=f"share=nested,state={state}",
        unit=found.unit,
        count=float(found.tracer.calls),
        median=found.tracer.nested,
    )


def _function_rows(
    found: HookTrace, row: Mapping[str, Any], key: Mapping[str, Any], *, tops: str | None
) -> Iterator[Aggregate]:
    layer, event = layer_and_event(row["function"])
    labels = f"syscall={row['syscall']}" if row["syscall"] else ""
    common: dict[str, Any] = {**key, "layer": layer, "event": event, "labels": labels}
    notes = []
    for metric, words in (("interrupt", "interrupts"), ("off_cpu", "other tasks")):
        if row[metric]:
            yield Aggregate(
                **common, metric=metric, unit=found.unit, sum=row[metric], note=f"{words} inside"
            )
    if row["inside"] is not None:
        yield Aggregate(**common, metric=INSIDE, unit="1", mean=row["inside"])
    if row["below_floor"]:
        notes.append("below the tracer's noise floor")
    if row["disturbed"]:
        notes.append(f"{counted(row['disturbed'], 'call')} with interrupts or other tasks inside")
    yield Aggregate(
        **common,
        metric="duration",
        unit=found.unit,
        count=float(row["calls"]),
        min=row["min"],
        median=row["median"],
        mean=row["mean"],
        max=row["max"],
        note="; ".join(notes),
    )
    yield from _histogram(found, row, common)
    if tops in (None, layer):
        yield Aggregate(**common, metric="per_call", unit="1", mean=float(row["calls"]))


def _histogram(
    found: HookTrace, row: Mapping[str, Any], common: Mapping[str, Any]
) -> Iterator[Aggregate]:
    """Yield the buckets of a function in a system call, where only they were kept."""
    if found.histogram is None:
        return
    buckets = found.histogram.filter(syscall=row["syscall"], function=row["function"])
    parts = buckets.select("count", "from_ns", "to_ns").iter_rows()
    yield from histogram_rows(parts, unit=found.unit, **common)
