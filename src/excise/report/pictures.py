"""From results to charts, reduced to what is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from excise.cost.attribution import Attribution
from excise.cost.compared import Comparisons
from excise.cost.series import OWN_METRICS, metrics_of
from excise.events.dataset import Dataset
from excise.events.schema import METRIC_UNITS
from excise.report.model import Chart, file_safe
from excise.report.tables import part_label, shown, verdict_text

POINTS_PER_CHART: Final = 2000
CHARTED_TASKS: Final = 12
_AXIS: Final = {
    "op_ns": "time per operation",
    "op_instructions": "instructions per operation",
    "wall_ns": "wall time",
    "max_rss_bytes": "max RSS",
}


def interval_chart(found: Comparisons) -> Chart | None:
    """Return every ratio with its interval, or None where no comparison has one."""
    rows = [
        {
            "label": " · ".join(part for part in (row.task, row.event, row.configuration) if part),
            "ratio": row.ratio,
            "low": row.low,
            "high": row.high,
            "verdict": verdict_text(row),
            "margin_low": 1.0 / (1.0 + found.margin_ratio),
            "margin_high": 1.0 + found.margin_ratio,
        }
        for row in found.rows
        if not math.isnan(row.ratio) and (row.low is not None or row.order == "published values")
    ]
    if not rows:
        return None
    return Chart(
        name="interval",
        kind="interval",
        title=f"Cost against {found.baseline}",
        rows=rows[:200],
        unit="",
        caption=f"Ratio of each configuration to {found.baseline} with {_known(found)}; "
        f"inside the band a difference would not matter (margin {found.margin_ratio:.1%})",
        axis=f"ratio to {found.baseline}",
    )


def _known(found: Comparisons) -> str:
    exact = all(row.order == "exact counts" for row in found.rows)
    return "what the noise floor leaves open" if exact else "its 95 % interval"


def run_charts(dataset: Dataset, *, metric: str | None = None) -> Iterator[Chart]:
    """Yield, for each task, its distribution by configuration and its values by run number."""
    if not dataset.runs.height:
        return
    available = metrics_of(dataset)
    for task in dataset.tasks[:CHARTED_TASKS]:
        runs = dataset.runs.filter((pl.col("task") == task) & pl.col("ok").fill_null(True))
        chosen = metric or _own_metric(runs)
        if chosen is None or chosen not in available:
            continue
        rows = _points(runs.drop_nulls(chosen), chosen, order=dataset.configurations)
        if not rows:
            continue
        name, axis = file_safe(task), _AXIS.get(chosen, chosen)
        unit = METRIC_UNITS[chosen]
        yield Chart(
            name=f"distribution-{name}",
            kind="distribution",
            title=f"{task}: {axis} by configuration",
            rows=rows,
            unit=unit,
            caption=f"Each run of {task}; the first run of each configuration is marked apart",
            axis=axis,
        )
        yield Chart(
            name=f"run-order-{name}",
            kind="run_order",
            title=f"{task}: {axis} by run number",
            rows=rows,
            unit=unit,
            caption=f"{task} in the order of its runs: drift and warm-up would show as a slope",
            axis=axis,
        )


def _own_metric(runs: pl.DataFrame) -> str | None:
    for name in OWN_METRICS:
        if runs.get_column(name).null_count() < runs.height:
            return name
    return None


def _points(runs: pl.DataFrame, metric: str, *, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the points of a chart: all of them, or an even choice that keeps first runs.

    They come by configuration in the campaign's order, then by run.
    """
    arms = max(1, runs.get_column("configuration").n_unique())
    step = max(1, math.ceil(runs.height / POINTS_PER_CHART))
    # A step that shares no factor with the number of arms takes from every arm alike.
    while math.gcd(step, arms) != 1:
        step += 1
    kept = runs.filter((pl.col("phase") == "first") | (pl.col("sequence") % step == 0))
    rank = {name: index for index, name in enumerate(order)}
    points = kept.select("configuration", "run", "phase", metric).rows(named=True)
    points.sort(key=lambda row: (rank[row["configuration"]], row["run"]))
    return [
        {
            "configuration": row["configuration"],
            "run": row["run"],
            "value": row[metric],
            "phase": "rest" if row["phase"] == "measured" else row["phase"],
        }
        for row in points
    ]


def waterfall_chart(found: Attribution) -> Chart:
    """Return the total, its direct children one after the other, and the remainder."""
    rows: list[dict[str, Any]] = [
        {
            "label": "total",
            "start": 0.0,
            "end": found.total,
            "role": "total",
            "text": shown(found.total, found.unit),
        }
    ]
    at = 0.0
    for part in found.parts:
        if part.depth:
            continue
        row = {
            "label": part_label(part),
            "start": at,
            "end": at + part.value,
            "role": part.role,
            "text": f"{shown(part.value, found.unit)}, {part.share:.1%}",
        }
        if part.role == "remainder" and part.value < 0:
            row["flag"] = "sum above 100 %"
        rows.append(row)
        at += part.value
    return Chart(
        name=file_safe(f"waterfall-{found.task}-{found.configuration}"),
        kind="waterfall",
        title=f"What explains {found.task} under {found.configuration}",
        rows=rows,
        unit=found.unit,
        caption=f"Child events of {found.task}, one after the other, and what remains "
        f"unexplained ({1 - found.explained:.1%})",
        axis="mean per run",
    )


def waterfalls(found: Sequence[Attribution]) -> list[Chart]:
    """Return a waterfall for each attribution that has more than the probe's own cost."""
    return [waterfall_chart(each) for each in found if each.has_children]
