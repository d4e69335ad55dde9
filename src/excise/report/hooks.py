"""Reports of traced hooks: each hook, each in its system call, the tracer's own cost, coverage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import median
from typing import TYPE_CHECKING, Any, Final, get_args

import polars as pl

from excise.cost.hook_coverage import GroupCoverage, coverage_by_group
from excise.cost.hook_operations import hook_name, is_hook
from excise.cost.hook_trace import BPFTRACE, HookTrace, Measure, TraceSummary
from excise.report import tables
from excise.report.model import Block, Cell, Column, Paragraph, Report, Section, Table
from excise.units import counted, format_ns

if TYPE_CHECKING:
    from excise.stats import PairedComparison

_MOST_ROWS: Final = 60
_INTERRUPTIONS: Final = {"interrupt": "Interrupts", "off_cpu": "Off CPU"}
_STATISTICS: Final = ("min", "median", "mean", "p99", "max", "self")


def build_hook_trace(found: HookTrace, *, title: str, by_syscall: bool = True) -> Report:
    """Return a trace of hooks as a report.

    Args:
        found: The trace.
        title: What was traced.
        by_syscall: Whether to show each hook in each system call.
    """
    sections = [
        Section(heading="What was traced", blocks=_traced(found)),
        Section(
            heading="Functions",
            blocks=[_functions_table(found, found.functions, keys=("function",), name="functions")],
        ),
    ]
    if by_syscall and found.summary.syscalls:
        table = _functions_table(
            found, found.by_syscall, keys=("syscall", "function"), name="by-syscall"
        )
        sections.append(
            Section(heading="By system call", blocks=[table, _syscalls_table(found.syscalls)])
        )
    if (histogram := _histogram_table(found)) is not None:
        sections.append(Section(heading="Histograms", blocks=[histogram]))
    if found.callers.height:
        sections.append(Section(heading="Who calls them", blocks=[_callers_table(found)]))
    sections.append(Section(heading="The tracer's own cost", blocks=_tracer(found)))
    sections.append(Section(heading="Coverage", blocks=_coverage(found)))
    if found.losses:
        table = tables.losses_table(found.losses)
        sections.append(Section(heading="Lost data", blocks=[table]))
    return Report(title=title, sections=sections, data=_data(found))


def _traced(found: HookTrace) -> list[Block]:
    known = found.summary
    how = f"Traced by {known.backend}: {known.reason}."
    where = f"in an instance of its own, {known.instance}" if known.instance else "at the top"
    if known.backend == BPFTRACE:
        where = "by BPF programs, which end with bpftrace"
    patterns = ", ".join(f"{each.pattern}: {each.functions}" for each in known.matched)
    text = (
        f"{counted(len(known.functions), 'function')} ({patterns}) of Linux "
        f"{known.kernel_release}, "
        f"{where}; "
        f"security modules: {known.lsm or 'unknown (securityfs is not mounted)'}."
    )
    blocks: list[Block] = [Paragraph(text=part) for part in (how, text, _interruptions(known))]
    blocks.append(_slowdown(known))
    lost = sum(loss.count for loss in found.losses)
    if lost:
        blocks.append(
            Paragraph(
                text=f"{counted(lost, 'record is', 'records are')} missing (see below).",
                kind="warning",
            )
        )
    if known.full:
        text = (
            f"The trace ended early, when it was {known.trace_bytes / 1e6:,.0f} MB long: see "
            "--most-mb, or trace fewer functions, or by bpftrace, which keeps sums alone."
        )
        blocks.append(Paragraph(text=text, kind="warning"))
    if known.stopped:
        blocks.append(Paragraph(text="A signal ended the trace early.", kind="warning"))
    return blocks


def _slowdown(known: TraceSummary) -> Block:
    """Return what tracing cost the workload, with what it lies between."""
    found = known.slowdown()
    if found is None or known.untraced_ns is None:
        return Paragraph(text="What tracing cost the workload was not measured (see --pairs).")
    traced_ns = median(run.wall_ns for run in known.runs if run.traced)
    pairs = f"{found.n} pair{'s' if found.n > 1 else ''} of runs"
    text = (
        f"Traced the workload takes {format_ns(traced_ns)}, untraced "
        f"{format_ns(known.untraced_ns)}: {_change(found)}, in {pairs}"
    )
    if (processor := known.slowdown("cpu_ns")) is not None:
        text += f"; of processor time {_change(processor)}"
    return Paragraph(text=f"{text}.", kind="result")


def _change(found: PairedComparison) -> str:
    """Return the change of the median pair, with its interval where there are enough pairs."""
    change = f"{found.change_percent:+.1f} %"
    if found.low_percent is None or found.high_percent is None:
        return f"{change} (too few pairs for an interval)"
    between = f"{100 * found.confidence:.0f} %: {found.low_percent:+.1f} to "
    apart = "" if found.low_percent > 0 or found.high_percent < 0 else ", not told apart from none"
    return f"{change} ({between}{found.high_percent:+.1f} %{apart})"


def _functions_table(
    found: HookTrace, rows: pl.DataFrame, *, keys: Sequence[str], name: str
) -> Table:
    shown = rows.head(_MOST_ROWS)
    state = "without" if found.subtracted else "with"
    notes = []
    if rows.height > shown.height:
        notes.append(
            f"{rows.height - shown.height:,} more rows, those that took least, are in the capture"
        )
    if found.tracer is None and found.summary.calibration_calls:
        notes.append("The tracer's own cost is not known: it gives no durations.")
    columns = [Column(name=key, heading=key.capitalize(), align="left") for key in keys]
    columns.append(Column(name="calls", heading="Calls"))
    columns += [
        Column(
            name=each,
            heading=each,
            value_unit=found.unit,
            optional=each in ("p99", "self", "max", "min", "median"),
        )
        for each in _STATISTICS
    ]
    columns.append(Column(name="disturbed", heading="Disturbed", optional=True))
    columns += [
        Column(name=name, heading=heading, value_unit=found.unit, optional=True)
        for name, heading in _INTERRUPTIONS.items()
    ]
    columns.append(Column(name="below", heading="Noise", align="left"))
    return Table(
        name=name,
        columns=columns,
        rows=[_function_row(found, row, keys) for row in shown.iter_rows(named=True)],
        caption=f"Durations {state} the tracer's own cost; {_about_interruptions(found)}"
        "≤ floor: not above what the tracer itself adds",
        notes=notes,
    )


def _about_interruptions(found: HookTrace) -> str:
    if found.summary.backend == BPFTRACE:
        return "interrupts and other tasks inside are in them; "
    return (
        "disturbed: calls with interrupts or other tasks inside, whose time (of all calls together)"
        " is in none of the durations; "
    )


def _interruptions(known: TraceSummary) -> str:
    """Return what the durations are without, as this kernel and back-end tell it."""
    if known.backend == BPFTRACE:
        return "Interrupts and other tasks inside of a call are in its duration."
    if not known.interruptions:
        return "Interrupts and other tasks were not recorded: they are in the durations."
    events = set(known.interruption_events)
    # An interrupt is told by its begin and its end; the timer's is a device's on some processors.
    kinds = {name.removesuffix("_entry") for name in events if name.endswith("_entry")}
    kinds = {kind for kind in kinds if f"{kind}_exit" in events}
    told = f"interrupts by the events {', '.join(sorted(kinds))}" if kinds else ""
    if known.backend == "function_graph":
        functions = "by the functions that serve them where these can be traced"
        told = f"{told}, and {functions}" if told else f"interrupts {functions}"
    if not told:
        told = "this kernel has no events of interrupts, which are in the durations"
    switched = "sched_switch" in events
    other = "other tasks by sched_switch" if switched else "nothing tells of other tasks"
    return f"Told apart from the durations: {told}; {other}. Code around these stays in."


def _function_row(found: HookTrace, row: Mapping[str, Any], keys: Sequence[str]) -> list[Cell]:
    return [
        *(Cell(text=str(row[key]) or "(none)") for key in keys),
        Cell(text=f"{row['calls']:,}", value=row["calls"]),
        *(tables.value_cell(row[each], found.unit) for each in _STATISTICS),
        tables.DASH
        if row["disturbed"] is None
        else Cell(text=f"{row['disturbed']:,}", value=row["disturbed"]),
        *(tables.value_cell(row[name], found.unit) for name in _INTERRUPTIONS),
        Cell(text="≤ floor", emphasis="muted") if row["below_floor"] else Cell(text=""),
    ]


def _syscalls_table(rows: pl.DataFrame) -> Table:
    return Table(
        name="syscalls",
        columns=[
            Column(name="syscall", heading="System call", align="left"),
            Column(name="entered", heading="Entered"),
        ],
        rows=[
            [
                Cell(text=row["syscall"] or "(none)"),
                Cell(text=f"{row['entered']:,}", value=row["entered"]),
            ]
            for row in rows.head(_MOST_ROWS).iter_rows(named=True)
        ],
        caption="How often each system call was entered",
    )


def _callers_table(found: HookTrace) -> Table:
    rows = found.callers
    return Table(
        name="callers",
        columns=[
            Column(name="function", heading="Function", align="left"),
            Column(name="caller", heading="Called by", align="left"),
            Column(name="calls", heading="Calls"),
        ],
        rows=[
            [Cell(text=function), Cell(text=caller), Cell(text=f"{calls:,}", value=calls)]
            for function, caller, calls in rows.head(2 * _MOST_ROWS).iter_rows()
        ],
        caption=f"Call sites that the workload reached in Linux {found.summary.kernel_release}",
    )


def _tracer(found: HookTrace) -> list[Block]:
    cost = found.tracer
    if cost is None:
        text = "Not measured: this back-end gives no durations, or the calibration was left out."
        return [Paragraph(text=text)]
    rows = [
        ("empty function", cost.floor, counted(cost.calls, "call")),
        ("5th percentile", cost.floor_p05, ""),
        ("95th percentile: the noise floor", cost.floor_p95, ""),
        ("added by each traced call inside", cost.nested, ""),
    ]
    return [
        Table(
            name="tracer",
            columns=[
                Column(name="what", heading="What", align="left"),
                Column(name="value", heading=found.summary.backend, value_unit=found.unit),
                Column(name="note", heading="", align="left"),
            ],
            rows=[
                [Cell(text=what), tables.value_cell(value, found.unit), Cell(text=note)]
                for what, value, note in rows
            ],
            caption="Measured on an empty function in this run; "
            + ("taken out of the figures" if found.subtracted else "left in the figures"),
        )
    ]


def _coverage(found: HookTrace) -> list[Block]:
    """Return which hooks the workload reached; of other functions, how many."""
    traced, never = found.summary.functions, set(found.never)
    blocks: list[Block] = []
    if groups := [each for each in coverage_by_group(found) if each.reachable]:
        blocks.append(_groups_table(groups))
    for what, names in (
        ("hooks", [name for name in traced if is_hook(name)]),
        ("other functions", [name for name in traced if not is_hook(name)]),
    ):
        if not names:
            continue
        called = sum(name not in never for name in names)
        text = f"{called:,} of {len(names):,} {what} were called ({called / len(names):.0%})."
        blocks.append(Paragraph(text=text))
        if what == "hooks" and called < len(names):
            rest = ", ".join(hook_name(name) for name in names if name in never)
            blocks.append(Paragraph(text=f"Never called: {rest}."))
    return blocks


def _groups_table(groups: Sequence[GroupCoverage]) -> Table:
    counts = {"hooks": "Hooks", "reachable": "Reachable", "fired": "Fired", "never": "Never fired"}
    return Table(
        name="coverage",
        columns=[
            Column(name="group", heading="Group", align="left"),
            *(Column(name=name, heading=heading) for name, heading in counts.items()),
            Column(name="which", heading="Fired hooks", align="left", optional=True),
        ],
        rows=[
            [
                Cell(text=each.group),
                *(
                    Cell(text=f"{count:,}", value=count)
                    for count in (each.hooks, each.reachable, len(each.fired), len(each.never))
                ),
                Cell(text=", ".join(each.fired)),
            ]
            for each in groups
        ],
        caption="Hooks of the kernel by group; reachable: those whose caller was traced",
    )


def _histogram_table(found: HookTrace) -> Table | None:
    """Return the histogram of each function, where bpftrace summed up."""
    if found.histogram is None or not found.histogram.height:
        return None
    rows = (
        found.histogram.group_by("function", "from_ns", "to_ns")
        .agg(pl.col("count").sum())
        .sort("function", "from_ns")
    )
    return Table(
        name="histogram",
        columns=[
            Column(name="function", heading="Function", align="left"),
            Column(name="from", heading="From", value_unit="ns"),
            Column(name="to", heading="To below", value_unit="ns"),
            Column(name="calls", heading="Calls"),
        ],
        rows=[
            [
                Cell(text=function),
                tables.value_cell(low, "ns"),
                tables.value_cell(high, "ns"),
                Cell(text=f"{count:,}", value=count),
            ]
            for function, low, high, count in rows.head(4 * _MOST_ROWS).iter_rows()
        ],
        caption="Durations with the tracer's own cost, in powers of two",
    )


def _data(found: HookTrace) -> dict[str, Any]:
    import msgspec

    cost = found.tracer
    return {
        "summary": msgspec.to_builtins(found.summary),
        "unit": found.unit,
        "slowdown": {
            measure: None if (each := found.summary.slowdown(measure)) is None else asdict(each)
            for measure in get_args(Measure)
        },
        "tracer": None if cost is None else {**asdict(cost), "subtracted": found.subtracted},
        "functions": found.functions.to_dicts(),
        "by_syscall": found.by_syscall.to_dicts(),
        "syscalls": found.syscalls.to_dicts(),
        "callers": found.callers.to_dicts(),
        "never": list(found.never),
        "coverage": found.coverage,
        "groups": [
            {**asdict(each), "hooks": each.hooks, "reachable": each.reachable}
            for each in coverage_by_group(found)
        ],
        "histogram": None if found.histogram is None else found.histogram.to_dicts(),
        "losses": [
            {"source": loss.source, "reason": loss.reason, "count": loss.count}
            for loss in found.losses
        ],
    }


def lost_lines(found: HookTrace) -> list[str]:
    """Return a line for each place and reason of what is missing, with the number of records."""
    counts: dict[tuple[str, str], int] = {}
    for loss in found.losses:
        key = loss.source, loss.reason
        counts[key] = counts.get(key, 0) + loss.count
    return [f"{source}: {reason} ({count:,})" for (source, reason), count in counts.items()]


def lsmpmon_text(found: HookTrace) -> str:
    """Return the hooks as LSMPMON printed them: hook, min, max, ave, count.

    Columns are whole numbers, in the trace's unit, which the first line says; `# clock_hz` lets
    `excise import` read it back, and `# lost` what is missing.
    """
    lines = [f"# unit: {found.unit}", f"# configuration: {found.summary.lsm or 'unknown'}"]
    if found.unit == "ns":
        lines.append("# clock_hz: 1e9")
    elif found.summary.cycles_per_s is not None:
        lines.append(f"# clock_hz: {found.summary.cycles_per_s:.0f}")
    lines += [f"# lost: {line}" for line in lost_lines(found)]
    lines.append(f"{'hook':<32} {'min':>12} {'max':>14} {'ave':>12} {'count':>12}")
    for row in found.functions.sort("function").iter_rows(named=True):
        if row["mean"] is None:
            continue
        name = hook_name(row["function"])
        least, most, mean = (max(row[key], 0.0) for key in ("min", "max", "mean"))
        lines.append(f"{name:<32} {least:>12.0f} {most:>14.0f} {mean:>12.0f} {row['calls']:>12}")
    return "\n".join(lines) + "\n"
