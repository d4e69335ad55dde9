"""What series do over their runs, as tables: growth with the run number, and stability."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from excise.cost.summary import TaskSummary
from excise.cost.trend import SeriesStability
from excise.report.model import Block, Cell, Column, Paragraph, Section, Table
from excise.report.tables import DASH, shown
from excise.stats import Growth, Interval
from excise.units import format_ratio

# Rows of advice that a reader still reads.
ADVICE_ROWS: Final = 40


def trend_sections(
    rows: Sequence[TaskSummary], stabilities: Sequence[SeriesStability]
) -> list[Section]:
    """Return sections on growth and stability; none where nothing is to be said."""
    sections = []
    growing = [row for row in rows if row.growth is not None]
    if growing:
        text = (
            f"{len(growing)} of {len(rows)} series grow with the run number: they have no mean, "
            "and a later run costs more than an earlier one."
        )
        blocks: list[Block] = [Paragraph(text=text, kind="warning"), growth_table(growing)]
        sections.append(Section(heading="Growth", blocks=blocks))
    if stabilities:
        sections.append(Section(heading="Stability", blocks=[_stability(stabilities)]))
    return sections


def growth_table(rows: Sequence[TaskSummary]) -> Table:
    """Return slope, law, exponent and start of every series that grows."""
    units = {row.unit for row in rows}
    unit = units.pop() if len(units) == 1 else ""
    return Table(
        name="growth",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="slope", heading="Slope per run", value_unit=unit),
            Column(name="slope_interval", heading="95 % interval", value_unit=unit, bounded=True),
            Column(name="model", heading="Law", align="left"),
            Column(name="exponent", heading="Exponent"),
            Column(name="starts_at", heading="From run"),
            Column(name="change_ratio", heading="In all"),
        ],
        rows=[_growth_row(row, row.growth) for row in rows if row.growth is not None],
        caption="Growth with the run number",
        notes=[
            "Slope: Theil-Sen, interval by Kendall's test, widened for autocorrelation.",
            "Exponent: k of y0 + c run^k, with its 95 % profile interval.",
        ],
    )


def _growth_row(row: TaskSummary, found: Growth) -> list[Cell]:
    change = None if found.change_ratio is None else 1.0 + found.change_ratio
    return [
        _word(row.task),
        _word(row.configuration),
        Cell(text=shown(found.slope, row.unit), value=found.slope),
        _interval(found.slope_interval, unit=row.unit),
        _word(found.model),
        _exponent(found),
        Cell(text="–" if found.starts_at is None else f"{found.starts_at:.0f}"),
        Cell(text="–" if change is None else format_ratio(change), value=change),
    ]


def _exponent(found: Growth) -> Cell:
    if found.exponent is None:
        return DASH
    text = f"{found.exponent:.2f}"
    if (interval := found.exponent_interval) is None:
        return Cell(text=text, value=found.exponent)
    text += f" [{interval.low:.2f}, {interval.high:.2f}]"
    return Cell(text=text, value=found.exponent, bounds=(interval.low, interval.high))


def _interval(interval: Interval | None, *, unit: str) -> Cell:
    if interval is None:
        return DASH
    text = f"[{shown(interval.low, unit)}, {shown(interval.high, unit)}]"
    return Cell(text=text, bounds=(interval.low, interval.high))


def _stability(found: Sequence[SeriesStability]) -> Block:
    """Return what is doubtful about each series and what to do; a count of those without fault.

    Where nothing is doubtful the count is all: a table would be empty.
    """
    advised: dict[tuple[str, str], list[SeriesStability]] = {}
    for each in found:
        for advice in each.stability.advice:
            advised.setdefault((advice.found, advice.action), []).append(each)
    rows = [
        [_word(what), _word(action), _series(those, of=len(found))]
        for (what, action), those in sorted(advised.items(), key=lambda item: -len(item[1]))
    ]
    stable = sum(each.stability.is_stable for each in found)
    count = f"{stable} of {len(found)} series are stable"
    if not rows:
        return Paragraph(text=f"{count}.")
    notes = []
    if len(rows) > ADVICE_ROWS:
        notes.append(f"and {len(rows) - ADVICE_ROWS:,} more; --json has them all")
    return Table(
        name="stability",
        columns=[
            Column(name="found", heading="Found", align="left"),
            Column(name="action", heading="What to do", align="left"),
            Column(name="series", heading="Series", align="left"),
        ],
        rows=rows[:ADVICE_ROWS],
        caption=count + ("" if stable == len(found) else "; what is doubtful about the others"),
        notes=notes,
    )


def _series(those: Sequence[SeriesStability], *, of: int) -> Cell:
    """Return which series are meant: task and configurations, or how many where it is all."""
    by_task: dict[str, list[str]] = {}
    for each in those:
        by_task.setdefault(each.task, []).append(each.configuration)
    names = "; ".join(f"{task}: {', '.join(arms)}" for task, arms in by_task.items())
    return Cell(text=f"all {of}" if len(those) == of > 1 else names, value=names)


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)
