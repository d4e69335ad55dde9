"""The parts of a task's runs, one on the other over the run number: as a chart a configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import polars as pl

from excise.events.dataset import Dataset
from excise.report.model import Chart, file_safe
from excise.report.tables import shown

REST: Final = "not in a step"
BARS: Final = 240
"""Bars of a chart: more runs than that are drawn as medians of successive ones."""

_PARTS: Final = 8
_CONFIGURATIONS: Final = 8
_MIN_RUNS: Final = 3
_INNER_TOTAL: Final = "host|total"  # the client's own total, where the run was timed outside it
_NANOSECONDS: Final = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}


def stack_charts(dataset: Dataset) -> Iterator[Chart]:
    """Yield a chart for each task and configuration whose runs have parts that are times.

    A part is an event that is a child of the run itself; what none of them holds is the rest. All
    charts of a task have one scale, so that configurations can be compared. First runs, and runs
    that failed, are in no bar; a first run's whole is told in words.
    """
    if not dataset.events.height:
        return
    parts = _parts(dataset)
    for task in dataset.tasks:
        of_task = parts.filter(pl.col("task") == task)
        names = _names(of_task)
        if len(names) < 2:
            continue
        arms = [name for name in dataset.configurations if name not in dataset.manifest.twins]
        found = {name: _bars(of_task, name, names) for name in arms[:_CONFIGURATIONS]}
        top = max((row["high"] for rows in found.values() for row in rows), default=0.0)
        for configuration, rows in found.items():
            if rows:
                yield _chart(task, configuration, rows, top, _first(of_task, configuration))


def _parts(dataset: Dataset) -> pl.DataFrame:
    """Return one row for each run and part: task, configuration, run, phase, wall_ns, part, ns."""
    unit = pl.col("unit").cast(pl.String).replace_strict(_NANOSECONDS, default=None)
    name = pl.concat_str("layer", "event", separator="|", ignore_nulls=True)
    parent = pl.col("parent").cast(pl.String)
    events = (
        dataset.events.filter(
            (parent.is_null() & (name != _INNER_TOTAL)) | (parent == _INNER_TOTAL)
        )
        .with_columns(part=pl.col("event").cast(pl.String), ns=pl.col("value") * unit)
        .drop_nulls("ns")
        .group_by("sequence", "part", maintain_order=True)
        .agg(pl.col("ns").sum())
    )
    good = dataset.runs.filter(pl.col("ok").fill_null(True)).drop_nulls("wall_ns")
    columns = ["sequence", "task", "configuration", "run", "phase", "wall_ns"]
    return good.select(columns).join(events, on="sequence", how="inner", maintain_order="right")


def _names(parts: pl.DataFrame) -> list[str]:
    """Return the parts in the order they happen; all beyond the largest few are in the rest."""
    order = parts.get_column("part").unique(maintain_order=True).to_list()
    sums = parts.group_by("part").agg(pl.col("ns").sum()).sort("ns", descending=True)
    largest = set(sums.get_column("part").head(_PARTS).to_list())
    return [name for name in order if name in largest]


def _bars(parts: pl.DataFrame, configuration: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows of a configuration's chart: bars from the lowest part upwards."""
    counted = parts.filter(
        (pl.col("configuration") == configuration) & (pl.col("phase") == "measured")
    )
    if counted.get_column("sequence").n_unique() < _MIN_RUNS:
        return []
    wide = (
        counted.filter(pl.col("part").is_in(list(names)))
        .pivot("part", index=["sequence", "run", "wall_ns"], values="ns")
        .sort("run", "sequence")
        .fill_null(0.0)
    )
    known = [name for name in names if name in wide.columns]
    rest = (pl.col("wall_ns") - pl.sum_horizontal(known)).clip(0.0).alias(REST)
    size = -(-wide.height // BARS)
    binned = (
        wide.with_columns(rest, bar=pl.int_range(pl.len()) // size)
        .group_by("bar", maintain_order=True)
        .agg(
            pl.col("run").min().alias("run"),
            pl.col("run").max().alias("last"),
            *(pl.col(name).median() for name in (*known, REST)),
        )
    )
    rows = []
    for row in binned.rows(named=True):
        low = 0.0
        for name in (*known, REST):
            high = low + row[name]
            where = {"run": row["run"], "end": row["last"] + 1, "part": name}
            rows.append({**where, "low": low, "high": high, "value": row[name]})
            low = high
    return rows


def _first(parts: pl.DataFrame, configuration: str) -> float | None:
    firsts = parts.filter(
        (pl.col("configuration") == configuration) & (pl.col("phase") == "first")
    ).get_column("wall_ns")
    return float(firsts[0]) if len(firsts) else None


def _chart(
    task: str, configuration: str, rows: list[dict[str, Any]], top: float, first: float | None
) -> Chart:
    said = "" if first is None else f"; the first run, {shown(first, 'ns')}, is not drawn"
    bars = len({row["run"] for row in rows})
    runs = max(row["end"] for row in rows) - min(row["run"] for row in rows)
    each = "each bar a run" if runs <= bars else "each bar the medians of successive runs"
    return Chart(
        name=file_safe(f"steps-{task}-{configuration}"),
        kind="stack",
        title=f"Steps of {task} under {configuration} by run number",
        rows=[{**row, "top": top} for row in rows],
        unit="ns",
        caption=f"The steps of {task} one on the other, {each}{said}",
        axis="wall time",
    )
