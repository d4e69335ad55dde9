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
# What runs are judged by, the first that they have: times, or the counts of a counting guest.
OWN_METRICS: Final = ("op_ns", "op_instructions", "wall_ns", "instructions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Values of one metric of one task under one configuration.

    Attributes:
        values: In `unit`, float64, shape (n,): runs that were ok and are not warm-up.
        blocks: Block of each value, int64, shape (n,).
        runs: Run number of each value, int64, shape (n,).
        first: The first run's value, kept apart; None if it failed or was not made.
        failed: Runs that were not ok, of any phase.
        layer: Where a part was measured; `task` for the whole.
        event: Name of the part; "" for the whole task.
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
    layer: str = "task"
    event: str = ""


def metrics_of(dataset: Dataset) -> list[str]:
    """Return the metrics that at least one run has, in the order of reports."""
    runs = dataset.runs
    return [name for name in METRIC_UNITS if runs.get_column(name).null_count() < runs.height]


def series_of(dataset: Dataset, *, metric: str | None = None) -> Iterator[Series]:
    """Yield the series of every task and configuration, in the campaign's order.

    Args:
        dataset: Where the runs are.
        metric: Column of the runs table; by default a task's own: time or instructions per
            operation for a workload of the probe, else wall time, else instructions.

    Raises:
        UsageError: If no run has that metric; those that exist are in the hint.
    """
    return SeriesReader(dataset).read(metric=metric)


class SeriesReader:
    """Reads series of several metrics from one dataset, whose runs it sorts once."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._runs = dataset.runs
        self._metrics: dict[str, FloatArray] = {}
        self._ok = dataset.runs.get_column("ok").fill_null(True).to_numpy()
        phase = dataset.runs.get_column("phase")
        self._measured = (phase == "measured").to_numpy()
        self._first = (phase == "first").to_numpy()
        self._blocks = dataset.runs.get_column("block").to_numpy()
        self._run_numbers = dataset.runs.get_column("run").to_numpy()
        self._groups = _groups(dataset)

    @property
    def metrics(self) -> list[str]:
        """Return the metrics that at least one run has."""
        return metrics_of(self._dataset)

    def read(self, *, metric: str | None = None) -> Iterator[Series]:
        """Yield the series of every task and configuration; see `series_of`."""
        if metric is not None and metric not in self.metrics:
            names = ", ".join(self.metrics) or "none"
            raise UsageError(f"no run has the metric {metric!r}", hint=f"Metrics here: {names}")
        for (task, configuration), rows in self._groups.items():
            name = metric or self._own_metric(rows)
            if name is not None:
                yield self._series(rows, task=task, configuration=configuration, metric=name)

    def _own_metric(self, rows: IntArray) -> str | None:
        """Return the metric that runs of their kind are judged by; None if they have neither."""
        for name in OWN_METRICS:
            if not np.isnan(self._metric(name)[rows]).all():
                return name
        return None

    def _series(self, rows: IntArray, *, task: str, configuration: str, metric: str) -> Series:
        """Return one series of these rows."""
        values = self._metric(metric)[rows]
        good = self._ok[rows] & ~np.isnan(values)
        counted = good & self._measured[rows]
        first = values[good & self._first[rows]]
        return Series(
            task=task,
            configuration=configuration,
            metric=metric,
            unit=METRIC_UNITS[metric],
            values=values[counted],
            blocks=self._blocks[rows[counted]],
            runs=self._run_numbers[rows[counted]],
            first=float(first[0]) if first.size else None,
            failed=int((~self._ok[rows]).sum()),
        )

    def _metric(self, name: str) -> FloatArray:
        """Return a metric's column; NaN where it was not measured."""
        if name not in self._metrics:
            column = self._runs.get_column(name)
            if column.null_count() == column.len():
                self._metrics[name] = np.full(column.len(), np.nan)
            else:
                self._metrics[name] = column.cast(pl.Float64).to_numpy()
        return self._metrics[name]


def _groups(dataset: Dataset) -> dict[tuple[str, str], IntArray]:
    """Return the rows of each task and configuration, in the order they ran."""
    runs = dataset.runs
    if not runs.height:
        return {}
    tasks, arms = runs.get_column("task"), runs.get_column("configuration")
    arm_codes = _dense(arms)
    codes = _dense(tasks) * (int(arm_codes.max()) + 1) + arm_codes
    sequence = runs.get_column("sequence")
    # Stable, and by counting where the numbers are short: faster than any table operation.
    order = (
        np.argsort(codes.astype(np.uint16 if codes.max() < 65_536 else np.int64), kind="stable")
        if sequence.is_sorted()
        else np.lexsort((sequence.to_numpy(), codes))
    )
    edges = np.flatnonzero(np.diff(codes[order])) + 1
    found = {
        (str(tasks[int(rows[0])]), str(arms[int(rows[0])])): rows for rows in np.split(order, edges)
    }
    ranks = [
        {name: rank for rank, name in enumerate(names)}
        for names in (dataset.tasks, dataset.configurations)
    ]
    ordered = sorted(found, key=lambda key: (ranks[0][key[0]], ranks[1][key[1]]))
    return {key: found[key] for key in ordered}


def _dense(names: pl.Series) -> IntArray:
    """Return each row's name as a number, those in use numbered from 0 without gaps."""
    codes = names.to_physical().to_numpy()
    used = np.bincount(codes) > 0
    return np.asarray((np.cumsum(used) - 1)[codes], dtype=np.int64)


def event_series_of(dataset: Dataset) -> Iterator[Series]:
    """Yield the series of every child event, by task, configuration, layer and event.

    An event that occurs several times in a run counts with its sum; one that does not occur in a
    run has no value there.
    """
    if not dataset.events.height:
        return
    runs = dataset.runs.select("sequence", "task", "configuration", "block", "run", "phase", "ok")
    summed = (
        dataset.events.group_by("sequence", "layer", "event", "unit", maintain_order=True)
        .agg(pl.col("value").sum())
        .join(runs, on="sequence")
        .sort("sequence")
    )
    keys = ["task", "configuration", "layer", "event", "unit"]
    for key, part in summed.partition_by(keys, maintain_order=True, as_dict=True).items():
        task, configuration, layer, event, unit = map(str, key)
        good = part.filter(pl.col("ok").fill_null(True))
        counted = good.filter(pl.col("phase") == "measured")
        first = good.filter(pl.col("phase") == "first").get_column("value")
        yield Series(
            task=task,
            configuration=configuration,
            metric="duration",
            unit=unit,
            values=counted.get_column("value").to_numpy(),
            blocks=counted.get_column("block").to_numpy(),
            runs=counted.get_column("run").to_numpy(),
            first=float(first[0]) if first.len() else None,
            failed=0,
            layer=layer,
            event=event,
        )
