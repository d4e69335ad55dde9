"""Sections about traces and profiles: what functions took, the call tree, and their pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from excise.cost.call_tree import (
    TRACE_LAYERS,
    CallNode,
    CallTree,
    FunctionCost,
    call_trees,
    flat_trees,
    function_costs,
    histograms,
    is_trace,
)
from excise.cost.summary import TaskSummary
from excise.cost.trace_counts import TraceCount, event_counts, syscall_counts
from excise.events.dataset import Dataset
from excise.report.model import Block, Cell, Column, Paragraph, Section, Table, file_safe
from excise.report.tables import DASH, value_cell
from excise.report.trace_pictures import heat_chart, histogram_chart, tree_charts
from excise.units import counted

MAX_FUNCTIONS: Final = 100
MAX_TREES: Final = 4
MAX_NODES: Final = 120
LEAST_SHARE: Final = 0.001
"""Nodes that take less of their tree are added up in one line."""
_UNTIMED: Final = "No flame graph: this trace counts calls and tells no durations."


def untraced(rows: Sequence[TaskSummary], dataset: Dataset) -> list[TaskSummary]:
    """Return the summaries that no section about a trace prints."""
    if not is_trace(dataset):
        return [*rows]
    return [row for row in rows if not (row.published and row.layer in TRACE_LAYERS)]


def trace_sections(dataset: Dataset, *, pictures: bool = False) -> list[Section]:
    """Return what functions, system calls and call trees took; none where the dataset is no trace.

    Args:
        dataset: Rows as the readers of traces and profiles give them.
        pictures: Whether to draw them as well.
    """
    if not is_trace(dataset):
        return []
    sections = []
    costs = function_costs(dataset)
    if costs:
        blocks: list[Block] = [functions_table(costs)]
        if pictures and (heat := heat_chart(costs)):
            blocks.append(heat)
        if pictures and (chart := histogram_chart(histograms(dataset))):
            blocks.append(chart)
        sections.append(Section(heading="What functions took", blocks=blocks))
    if calls := syscall_counts(dataset):
        sections.append(Section(heading="System calls", blocks=[syscalls_table(calls)]))
    if events := event_counts(dataset):
        sections.append(Section(heading="Events", blocks=[events_table(events)]))
    trees = deep_trees(dataset)
    if trees:
        found: list[Block] = []
        for tree in trees[:MAX_TREES]:
            found.append(tree_table(tree))
            if pictures:
                found += tree_charts(tree)
        sections.append(Section(heading="Call trees", blocks=found))
    elif pictures and costs:
        sections.append(Section(heading="Call trees", blocks=_flat_pictures(dataset)))
    return sections


def _flat_pictures(dataset: Dataset) -> list[Block]:
    """Return pictures of a trace without functions inside others, or say why there are none."""
    charts: list[Block] = []
    for tree in flat_trees(dataset)[:MAX_TREES]:
        charts += tree_charts(tree, flat=True)
    return charts or [Paragraph(text=_UNTIMED)]


def trace_data(dataset: Dataset) -> dict[str, Any]:
    """Return functions and call trees as plain values, whole."""
    if not is_trace(dataset):
        return {}
    return {
        "functions": [dataclasses.asdict(cost) for cost in function_costs(dataset)],
        "syscalls": [dataclasses.asdict(each) for each in syscall_counts(dataset)],
        "events": [dataclasses.asdict(each) for each in event_counts(dataset)],
        "call_trees": [dataclasses.asdict(tree) for tree in deep_trees(dataset)],
    }


def deep_trees(dataset: Dataset) -> list[CallTree]:
    """Return the trees with at least one function inside another, by root and without others."""
    found = []
    for tree in call_trees(dataset):
        roots = tuple(root for root in tree.roots if root.children)
        if roots:
            found.append(dataclasses.replace(tree, roots=roots))
    return found


def functions_table(costs: Sequence[FunctionCost]) -> Table:
    """Return calls, total, self and net durations of the functions that took most."""
    shown = costs[:MAX_FUNCTIONS]
    arms = len({cost.configuration for cost in costs}) > 1
    units = {cost.unit for cost in shown}
    unit = units.pop() if len(units) == 1 else ""
    parted = any(cost.interrupt or cost.off_cpu for cost in shown)
    columns = [Column(name="task", heading="Task", align="left")]
    if arms:
        columns.append(Column(name="configuration", heading="Configuration", align="left"))
    columns += [
        Column(name="function", heading="Function", align="left"),
        Column(name="calls", heading="Calls"),
        Column(name="total", heading="Total", value_unit=unit),
        Column(name="self", heading="Self", value_unit=unit),
        Column(name="mean", heading="Mean", value_unit=unit),
        Column(name="min", heading="Min", value_unit=unit, optional=True),
        Column(name="median", heading="Median", value_unit=unit, optional=True),
        Column(name="max", heading="Max", value_unit=unit, optional=True),
    ]
    if parted:
        columns += [
            Column(name="interrupt", heading="Interrupts", value_unit=unit, optional=True),
            Column(name="off_cpu", heading="Off CPU", value_unit=unit, optional=True),
        ]
    rows = [_function_row(cost, arms=arms, parted=parted) for cost in shown]
    words = "Total and self are as printed; min, median and max are without interrupts and other "
    notes = [words + "tasks; self is what no traced function inside explains."]
    if len(costs) > len(shown):
        notes.append(
            f"--json alone has {counted(len(costs) - len(shown), 'function')} that took less."
        )
    return Table(
        name="functions",
        columns=columns,
        rows=rows,
        caption="Functions by task, those that took most first",
        notes=notes,
    )


def _function_row(cost: FunctionCost, *, arms: bool, parted: bool) -> list[Cell]:
    cells = [Cell(text=cost.task, value=cost.task)]
    if arms:
        cells.append(Cell(text=cost.configuration, value=cost.configuration))
    name = f"{cost.layer}|{cost.function}" if cost.layer != "function" else cost.function
    cells.append(Cell(text=name, value=name))
    cells.append(_count(cost.calls))
    values = [cost.total, cost.own, cost.mean, cost.min, cost.median, cost.max]
    if parted:
        values += [cost.interrupt, cost.off_cpu]
    return [*cells, *(value_cell(value, cost.unit) for value in values)]


def _count(value: float | None) -> Cell:
    return DASH if value is None else Cell(text=f"{value:,.0f}", value=value)


def syscalls_table(counts: Sequence[TraceCount]) -> Table:
    """Return calls, failed calls and durations of the system calls that took most."""
    shown = counts[:MAX_FUNCTIONS]
    units = {each.unit for each in shown if each.total is not None}
    unit = units.pop() if len(units) == 1 else ""
    timed = any(each.total is not None for each in shown)
    failed = any(each.errors for each in shown)
    columns, rows = _counted(shown, "System call", "Calls")
    if failed:
        columns.append(Column(name="errors", heading="Failed"))
    for name in ("total", "mean", "min", "max") if timed else ():
        columns.append(
            Column(
                name=name,
                heading=name.capitalize(),
                value_unit=unit,
                optional=name in ("min", "max"),
            )
        )
    for row, each in zip(rows, shown, strict=True):
        row += [_count(each.errors or 0.0)] if failed else []
        values = (each.total, each.mean, each.min, each.max) if timed else ()
        row += [value_cell(value, each.unit) for value in values]
    return Table(
        name="syscalls",
        columns=columns,
        rows=rows,
        caption="System calls, those that took most first",
        notes=_left_out(counts, "system calls"),
    )


def events_table(counts: Sequence[TraceCount]) -> Table:
    """Return how often the most frequent events occurred."""
    columns, rows = _counted(counts[:MAX_FUNCTIONS], "Event", "Count")
    return Table(
        name="events",
        columns=columns,
        rows=rows,
        caption="Events, the most frequent first",
        notes=_left_out(counts, "events"),
    )


def _counted(
    shown: Sequence[TraceCount], heading: str, count: str
) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns that every table of counts begins with, and their cells."""
    arms = len({each.configuration for each in shown}) > 1
    told_apart = any(each.labels for each in shown)
    columns = [Column(name="name", heading=heading, align="left")]
    if told_apart:
        columns.append(Column(name="labels", heading="Of", align="left"))
    if arms:
        columns.append(Column(name="configuration", heading="Configuration", align="left"))
    columns.append(Column(name="count", heading=count))
    rows = [
        [
            Cell(text=each.name, value=each.name),
            *([Cell(text=each.labels, value=each.labels)] if told_apart else []),
            *([Cell(text=each.configuration, value=each.configuration)] if arms else []),
            _count(each.count),
        ]
        for each in shown
    ]
    return columns, rows


def _left_out(counts: Sequence[TraceCount], what: str) -> list[str]:
    more = len(counts) - MAX_FUNCTIONS
    return [f"{more:,} further {what} are in --json alone."] if more > 0 else []


def tree_table(tree: CallTree) -> Table:
    """Return the nodes of a tree, each before its children, with what no child explains."""
    total = tree.total
    rows: list[list[Cell]] = []
    left: list[CallNode] = []
    for root in tree.roots:
        _tree_rows(root, tree, total, rows, left)
    several = f" under {tree.configuration}" if tree.configuration != "imported" else ""
    notes = ["Self is unattributed: time of the node that no function inside it explains."]
    if left:
        notes.append(f"Without {counted(len(left), 'function')} that took less than the others.")
    return Table(
        name=file_safe(f"calls-{tree.task}-{tree.configuration}"),
        columns=[
            Column(name="function", heading="Function", align="left"),
            Column(name="calls", heading="Calls"),
            Column(name="total", heading="Total", value_unit=tree.unit),
            Column(name="share", heading="Share"),
            Column(name="self", heading="Self (unattributed)", value_unit=tree.unit),
            Column(name="self_share", heading="of node"),
        ],
        rows=rows,
        caption=f"Calls of {tree.task}{several}",
        notes=notes,
    )


def _tree_rows(
    node: CallNode,
    tree: CallTree,
    total: float,
    rows: list[list[Cell]],
    left: list[CallNode],
) -> None:
    if len(rows) >= MAX_NODES or (total and node.total < LEAST_SHARE * total):
        left.extend(node.walk())
        return
    share = node.total / total if total else 0.0
    own = node.own / node.total if node.total else 0.0
    rows.append(
        [
            Cell(text=f"{'  ' * node.depth}{node.function}", value=node.function),
            _count(node.calls),
            value_cell(node.total, tree.unit),
            Cell(text=f"{share:.1%}", value=share),
            value_cell(node.own, tree.unit),
            Cell(text=f"{own:.1%}", value=own),
        ]
    )
    for child in node.children:
        _tree_rows(child, tree, total, rows, left)
