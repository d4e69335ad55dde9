"""A dataset: a capture's manifest and its tables, wherever they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from excise.capture.journal import Calibration, Effect, Loss, Session
from excise.capture.manifest import Manifest
from excise.events.schema import AGGREGATES, BATCHES, EVENTS, METRIC_UNITS, RUNS
from excise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Everything that analysis needs of one capture, import or reference.

    Attributes:
        name: What the user called it: a path's last part or `reference:NAME`.
        runs: Schema `RUNS`.
        events: Schema `EVENTS`.
        aggregates: Schema `AGGREGATES`.
        op_ns_batches: Schema `BATCHES`; empty unless it was loaded with batches.
    """

    name: str
    manifest: Manifest
    runs: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=RUNS))
    events: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=EVENTS))
    aggregates: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=AGGREGATES))
    op_ns_batches: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=BATCHES))
    losses: Sequence[Loss] = ()
    effects: Sequence[Effect] = ()
    calibrations: Sequence[Calibration] = ()
    sessions: Sequence[Session] = ()

    @property
    def configurations(self) -> list[str]:
        """Return configuration names in the campaign's order, else in the order they first ran."""
        return _in_order(self, "configuration", "configurations")

    @property
    def tasks(self) -> list[str]:
        """Return task names in the campaign's order, else in the order they first ran."""
        return _in_order(self, "task", "tasks")


def _in_order(dataset: Dataset, column: str, key: str) -> list[str]:
    measured = dataset.runs.select(pl.col(column).unique(maintain_order=True).cast(pl.String))
    found = pl.concat([measured.to_series(), dataset.aggregates.get_column(column)])
    names: list[str] = found.unique(maintain_order=True).to_list()
    planned = [str(each["name"]) for each in dataset.manifest.campaign.get(key, ())]
    if key == "configurations" and dataset.manifest.baseline in planned:
        place = planned.index(dataset.manifest.baseline) + 1
        planned[place:place] = dataset.manifest.twins
    return sorted(names, key=lambda name: planned.index(name) if name in planned else len(planned))


def never_succeeded(dataset: Dataset) -> list[str]:
    """Return a line for each task and configuration of which every run failed, and how."""
    ends = pl.format("exit code {}", "exit_code").fill_null(pl.format("signal {}", "signal"))
    ended = pl.when("timed_out").then(pl.lit("timed out")).otherwise(ends)
    whole = (
        dataset.runs.group_by("task", "configuration", maintain_order=True)
        .agg(
            pl.len(),
            pl.col("ok").fill_null(True).any(),
            ended.drop_nulls().unique(maintain_order=True),
        )
        .filter(~pl.col("ok"))
    )
    return sorted(
        f"{task} under {configuration}: {runs} of {counted(runs, 'run')} "
        f"({', '.join(how) or 'not started'})"
        for task, configuration, runs, _, how in whole.iter_rows()
    )


def tidy(dataset: Dataset) -> pl.DataFrame:
    """Return runs as one row a value: campaign, configuration, task, run, metric, value, unit."""
    metrics = [
        name
        for name in METRIC_UNITS
        if dataset.runs.get_column(name).null_count() < dataset.runs.height
    ]
    return (
        dataset.runs.unpivot(
            on=metrics,
            index=["sequence", "configuration", "task", "block", "run", "phase", "start_ns"],
            variable_name="metric",
            value_name="value",
        )
        .with_columns(
            campaign=pl.lit(dataset.manifest.title),
            unit=pl.col("metric").replace_strict(METRIC_UNITS, default="1"),
        )
        .drop_nulls("value")
    )
