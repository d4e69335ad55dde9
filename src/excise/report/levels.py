"""The cross-check by hierarchical bootstrap beside the sign test."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from excise.cost.levels import LevelComparison
from excise.report.model import Cell, Column, Section, Table
from excise.report.tables import interval_cell, ratio_cell


def level_sections(found: Sequence[LevelComparison]) -> list[Section]:
    """Return the table of cross-checks in a section of its own; nothing where there is none."""
    if not found:
        return []
    table = Table(
        name="bootstrap",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="sign_interval", heading="Sign test", optional=True, bounded=True),
            Column(name="ratio", heading="Bootstrap"),
            Column(name="interval", heading="95 % interval", bounded=True),
            Column(name="verdict", heading="Verdict", align="left"),
        ],
        rows=[_row(each) for each in found],
        caption="Blocks, and the batches within them, resampled: a check of the table above",
    )
    return [Section(heading="Check by bootstrap", blocks=[table])]


def level_rows(found: Sequence[LevelComparison]) -> list[dict[str, Any]]:
    """Return the cross-checks as plain values, for `--json`."""
    return [
        {
            "task": each.row.task,
            "configuration": each.row.configuration,
            "ratio": each.levels.ratio,
            "low": each.levels.interval.low if each.levels.interval else None,
            "high": each.levels.interval.high if each.levels.interval else None,
            "blocks": each.levels.blocks[0],
            "values": list(each.levels.values),
            "resamples": each.levels.resamples,
            "seed": each.levels.seed,
            "verdict": str(each.levels.verdict),
        }
        for each in found
    ]


def _row(each: LevelComparison) -> list[Cell]:
    interval = each.levels.interval
    ends = (interval.low, interval.high) if interval else (None, None)
    agrees = each.levels.verdict is each.row.verdict
    return [
        Cell(text=each.row.task, value=each.row.task),
        Cell(text=each.row.configuration, value=each.row.configuration),
        interval_cell(each.row.low, each.row.high),
        ratio_cell(each.levels.ratio, *ends),
        interval_cell(*ends),
        Cell(
            text=str(each.levels.verdict),
            value=str(each.levels.verdict),
            emphasis="none" if agrees else "warn",
        ),
    ]
