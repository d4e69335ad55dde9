"""Series: the counted values of one task under one configuration, in the order measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.schema import METRIC_UNITS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TIME_METRICS: Final = ("op_ns", "wall_ns")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one metric of one task under one configuration.

    Attributes:
        values: In `unit`, float64, shape (n,): runs that were ok and are not warm-up.
        blocks: Block of each value, int64, shape (n,).
        runs: Run number of each value, int64, shape (n,).
        first: The first run's value, kept apart; None if it failed or was not made.
        failed: Runs that were not ok, of any phase.
    """

    task: str
    configuration: str
    metric: str
    unit: str
    values: FloatArray
    blocks: IntArray
    runs: IntArray
    first: float | None
    failed: int


def metrics_of(dataset: Dataset) -> list[str]:
    """Return the metrics that at least one run has, in the order of reports."""
    runs = dataset.runs
    return [name for name in METRIC_UNITS if runs.get_column(name).null_count() < runs.height]


def series_of(dataset: Dataset, *, metric: str | None = None) -> Iterator[Series]:
    """Yield the series of every task and configuration, in the order they first ran.

    Args:
        dataset: Where the runs are.
        metric: Column of the runs table; by default a task's own: time per operation for a
            workload of the probe, else wall time.

    Raises:
        UsageError: If no run has that metric; those that exist are in the hint.
    """
    if metric is not None and metric not in metrics_of(dataset):
        names = ", ".join(metrics_of(dataset)) or "none"
        raise UsageError(f"no run has the metric {metric!r}", hint=f"Metrics here: {names}")
    columns = ["block", "run", "phase", "ok"]
    chosen = [metric] if metric else list(TIME_METRICS)
    frame = dataset.runs.select("task", "configuration", "sequence", *columns, *chosen)
    if not frame.get_column("sequence").is_sorted():
        frame = frame.sort("sequence")
    parts = frame.partition_by(["task", "configuration"], maintain_order=True, as_dict=True)
    tasks = {name: index for index, name in enumerate(dataset.tasks)}
    arms = {name: index for index, name in enumerate(dataset.configurations)}
    for task, configuration in sorted(parts, key=lambda key: (tasks[key[0]], arms[key[1]])):
        part = parts[task, configuration]
        name = metric or _own_metric(part)
        if name is not None:
            yield _series(part, task=str(task), configuration=str(configuration), metric=name)


def _own_metric(part: pl.DataFrame) -> str | None:
    for name in TIME_METRICS:
        if part.get_column(name).null_count() < part.height:
            return name
    return None


def _series(part: pl.DataFrame, *, task: str, configuration: str, metric: str) -> Series:
    good = part.filter(pl.col("ok").fill_null(True) & pl.col(metric).is_not_null())
    counted = good.filter(pl.col("phase") == "measured")
    first = good.filter(pl.col("phase") == "first").get_column(metric)
    return Series(
        task=task,
        configuration=configuration,
        metric=metric,
        unit=METRIC_UNITS[metric],
        values=counted.get_column(metric).cast(pl.Float64).to_numpy(),
        blocks=counted.get_column("block").to_numpy(),
        runs=counted.get_column("run").to_numpy(),
        first=float(first[0]) if first.len() else None,
        failed=int((~part.get_column("ok").fill_null(True)).sum()),
    )
