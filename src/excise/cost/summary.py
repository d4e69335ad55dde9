"""Summaries: one row for each task and configuration, measured or published."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from excise.cost.attribution import PROBE_LAYER
from excise.cost.series import Series, event_series_of, series_of
from excise.cost.trend import growth_of
from excise.events.dataset import Dataset
from excise.formats.trace_rows import DETAIL_METRICS, PATH
from excise.stats import Growth, summarise


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """What one task takes under one configuration; values in `unit`, None where unknown.

    Attributes:
        event: Part of the task that the row is about; "" for the whole task.
        n: Counted values.
        effective_n: Independent values they are worth.
        first: The first run, never among the others.
        failed: Runs that were not ok.
        growing: Whether it grows with the run number, so that a mean has no meaning.
        growth: How it grows, if it does.
        published: Whether it is a row of somebody's table, not of runs that we have.
        note: What the source says in place of or beside a value.
    """

    task: str
    configuration: str
    metric: str
    unit: str
    layer: str = "task"
    event: str = ""
    labels: str = ""
    n: int | None = None
    effective_n: float | None = None
    first: float | None = None
    min: float | None = None
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None
    sd: float | None = None
    failed: int = 0
    growing: bool = False
    growth: Growth | None = None
    published: bool = False
    note: str = ""

    @property
    def typical(self) -> float | None:
        """Return the median, or the mean where a source gives no median, or the minimum."""
        for value in (self.median, self.mean, self.min):
            if value is not None:
                return value
        return None


def summaries(
    dataset: Dataset, *, metric: str | None = None, series: Sequence[Series] | None = None
) -> list[TaskSummary]:
    """Return one summary for each task and configuration, then the rows of published tables.

    Args:
        dataset: Runs, aggregates, or both.
        metric: Metric of the runs; a task's own by default. Aggregates are always given whole.
        series: What `series_of` gives for both, where it is at hand already.

    Raises:
        UsageError: If no run has that metric.
    """
    found = series if series is not None else series_of(dataset, metric=metric)
    return [*map(summary_of, found), *published_summaries(dataset)]


def step_summaries(dataset: Dataset) -> list[TaskSummary]:
    """Return one summary for each step inside the runs, of tasks that have a total.

    A step that occurs several times in a run counts with its sum; one that does not occur in a run
    has no value there. The probe's own cost is no step.
    """
    totalled = {(each.task, each.configuration) for each in series_of(dataset)}
    return [
        summary_of(each)
        for each in event_series_of(dataset)
        if (each.task, each.configuration) in totalled and each.layer != PROBE_LAYER
    ]


def summary_of(series: Series) -> TaskSummary:
    """Return the summary of one measured series."""
    if not series.values.size:
        return TaskSummary(
            task=series.task,
            configuration=series.configuration,
            metric=series.metric,
            unit=series.unit,
            layer=series.layer,
            event=series.event,
            n=0,
            first=series.first,
            failed=series.failed,
            note="no counted run" if not series.failed else "every counted run failed",
        )
    found = summarise(series.values)
    grown = growth_of(series)
    return TaskSummary(
        task=series.task,
        configuration=series.configuration,
        metric=series.metric,
        unit=series.unit,
        layer=series.layer,
        event=series.event,
        n=found.n,
        effective_n=found.effective_n,
        first=series.first,
        min=found.min,
        mean=found.mean,
        median=found.median,
        p95=found.p95,
        p99=found.p99,
        max=found.max,
        sd=found.sd,
        failed=series.failed,
        growing=grown is not None,
        growth=grown,
    )


def published_summaries(dataset: Dataset) -> Iterator[TaskSummary]:
    """Yield the rows of published tables, as their sources give them.

    What stands beside a duration (self time, a histogram) and the paths of a call tree are no rows
    of a table.
    """
    for row in dataset.aggregates.iter_rows(named=True):
        if row["metric"] in DETAIL_METRICS or row["layer"] == PATH:
            continue
        yield TaskSummary(
            task=row["task"],
            configuration=row["configuration"],
            metric=row["metric"],
            unit=row["unit"],
            layer=row["layer"],
            event=row["event"],
            labels=row["labels"],
            n=None if row["count"] is None else int(row["count"]),
            first=row["first"],
            min=row["min"],
            mean=row["mean"],
            median=row["median"],
            max=row["max"],
            sd=row["sd"],
            published=True,
            note=row["note"],
        )
