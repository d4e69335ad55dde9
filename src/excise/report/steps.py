"""The steps inside runs that have a total: how long each took, over the runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from excise.cost.summary import TaskSummary
from excise.report import tables
from excise.report.model import Block, Cell, Column, Section, Table, file_safe

SHOWN: Final = 40
_STATISTICS: Final = ("first", "mean", "median", "p95", "max")


def step_sections(rows: Sequence[TaskSummary]) -> list[Section]:
    """Return a table of the steps of each task under each configuration, the largest first.

    Args:
        rows: What `step_summaries` gives.
    """
    grouped: dict[tuple[str, str], list[TaskSummary]] = {}
    for row in rows:
        grouped.setdefault((row.task, row.configuration), []).append(row)
    blocks: list[Block] = [_table(each) for each in grouped.values()]
    return [Section(heading="Steps inside the runs", blocks=blocks)] if blocks else []


def _table(rows: Sequence[TaskSummary]) -> Table:
    largest = sorted(rows, key=lambda row: -(row.median or row.first or 0.0))
    shown = [each for each in _STATISTICS if any(getattr(row, each) is not None for row in rows)]
    task, configuration = rows[0].task, rows[0].configuration
    left = len(rows) - SHOWN
    return Table(
        name=file_safe(f"steps-{task}-{configuration}"),
        columns=[
            Column(name="step", heading="Step", align="left"),
            Column(name="n", heading="n"),
            *(
                Column(name=each, heading=each, optional=each in ("first", "mean"))
                for each in shown
            ),
        ],
        rows=[_row(row, shown) for row in largest[:SHOWN]],
        caption=f"{task} under {configuration}; the first run is not among the rest",
        notes=[f"{left} more are not printed; --format json has them."] if left > 0 else [],
    )


def _row(row: TaskSummary, statistics: Sequence[str]) -> list[Cell]:
    return [
        Cell(text=f"{row.layer}|{row.event}", value=f"{row.layer}|{row.event}"),
        Cell(text=f"{row.n or 0:,}", value=row.n),
        *(tables.value_cell(getattr(row, each), row.unit) for each in statistics),
    ]
