"""What single runs with child events, and traces of system calls, say of a task and its parts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from excise.cost.attribution import counted_events
from excise.cost.series import FloatArray, series_of
from excise.events.dataset import Dataset
from excise.formats.trace_rows import (
    FUNCTION,
    PATH,
    SYSCALL,
    is_security,
    labels_of,
    layer_and_event,
)
from excise.formats.trace_syscalls import canonical_syscall, task_name
from excise.stats import summarise

_Z_95: Final = 1.96


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedPart:
    """A part of a task: how often it is called, and what a call takes.

    Attributes:
        labels: Of a part inside another: `hook=` and the event of that.
        calls: In one run or system call; 1 where `value` is the sum over a run.
        margin: 95 % of the error of `value`; 0 where the spread is not known.
    """

    layer: str
    event: str
    labels: str
    calls: float
    value: float
    margin: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedTask:
    """One task under one configuration: mean duration of a run or system call, and its parts.

    Attributes:
        syscall: The system call whose entry is traced in the task's runs; else the task's name.
        margin: 95 % of the error of `total`; 0 where the spread is not known.
        n: Runs, or timed calls.
        together: 95 % of the error of the sum of all parts, and of what they leave of the total,
            by the spread over the runs; None where the runs are not known.
    """

    task: str
    configuration: str
    n: int
    syscall: str
    unit: str
    total: float
    margin: float
    parts: tuple[TracedPart, ...]
    together: tuple[float, float] | None = None


def event_parts(dataset: Dataset) -> Iterator[TracedTask]:
    """Yield every task whose counted runs have child events, but for A/A arms.

    Values are means over the runs that have child events; an event that does not occur in a run
    counts as 0 there. Children of the run are parts; their children stand inside of them.
    """
    for series in series_of(dataset):
        if series.configuration in dataset.manifest.twins or series.metric == "op_ns":
            continue
        _, events = counted_events(dataset, series)
        events = events.filter(pl.col("unit") == series.unit)
        if not events.height:
            continue
        runs = events.unique("sequence").sort("sequence")
        totals = runs.get_column("total").to_numpy()
        explained = _explained(events, runs)
        yield TracedTask(
            task=task_name(series.task),
            configuration=series.configuration,
            n=totals.size,
            syscall=canonical_syscall(series.task),
            unit=series.unit,
            total=float(np.mean(totals)),
            margin=_margin(totals),
            parts=tuple(_event_parts(events, runs.get_column("sequence").to_numpy())),
            together=(_margin(explained), _margin(totals - explained)),
        )


def _explained(events: pl.DataFrame, runs: pl.DataFrame) -> FloatArray:
    """Return by run what its direct children take together."""
    names = (f"{layer}|{event}" for layer, event in events.select("layer", "event").iter_rows())
    tops = events.filter(~pl.col("parent").fill_null("").is_in(list(set(names))))
    sums = tops.group_by("sequence").agg(explained=pl.col("value").sum())
    found = runs.join(sums, on="sequence", how="left", maintain_order="left")
    return found.get_column("explained").fill_null(0.0).to_numpy()


def _event_parts(events: pl.DataFrame, sequences: NDArray[np.integer[Any]]) -> Iterator[TracedPart]:
    """Yield the parts of runs, each with its values in the order of these: `sequences`, sorted."""
    summed = events.group_by("layer", "event", "labels", "parent", "sequence").agg(
        pl.col("value").sum()
    )
    names = {f"{layer}|{event}" for layer, event in events.select("layer", "event").iter_rows()}
    keys = ["layer", "event", "labels", "parent"]
    tops: dict[str, str] = {}
    inner: list[tuple[str, str, FloatArray]] = []
    parts = summed.sort(*keys, "sequence").partition_by(keys, as_dict=True, maintain_order=True)
    for (layer, event, labels, parent), part in parts.items():
        values = np.zeros(sequences.size)
        values[np.searchsorted(sequences, part.get_column("sequence").to_numpy())] = part["value"]
        if parent and parent in names:
            inner.append((str(parent), str(event), values))
            continue
        # A hook has the same name as in a trace of many system calls.
        place = (str(layer), str(event))
        shown = layer_and_event(place[1]) if is_security(place[1]) else place
        tops[f"{layer}|{event}"] = shown[1]
        yield _summed(*shown, str(labels), values)
    for parent, event, values in inner:
        if parent in tops:
            yield _summed(FUNCTION, event, f"hook={tops[parent]}", values)


def _summed(layer: str, event: str, labels: str, values: FloatArray) -> TracedPart:
    return TracedPart(
        layer=layer,
        event=event,
        labels=labels,
        calls=1.0,
        value=float(np.mean(values)),
        margin=_margin(values),
    )


def _margin(values: FloatArray) -> float:
    """Return 95 % of the error of a mean, for as many values as the sample is worth."""
    if values.size < 2:
        return 0.0
    found = summarise(values)
    return float(_Z_95 * (found.sd or 0.0) / math.sqrt(found.effective_n or values.size))


def syscall_parts(dataset: Dataset) -> Iterator[TracedTask]:
    """Yield every system call that a trace timed, with the hooks that it calls.

    A hook inside another belongs to the outer one; a module's function that no traced hook calls
    stands for itself. Where the capture itself says how often each is called, nothing is yielded.
    """
    rows = dataset.aggregates
    said = set(rows.filter(metric="per_call").select("task", "configuration").iter_rows())
    timed = rows.filter(
        (pl.col("layer") == SYSCALL)
        & (pl.col("event") == "")
        & (pl.col("metric") == "duration")
        & (pl.col("count") > 0)
        & pl.col("mean").is_not_null()
    )
    for row in timed.iter_rows(named=True):
        place = (row["task"], row["configuration"])
        if place in said:
            continue
        paths = rows.filter(
            (pl.col("layer") == PATH)
            & (pl.col("metric") == "duration")
            & (pl.col("task") == place[0])
            & (pl.col("configuration") == place[1])
        )
        if parts := tuple(_outermost(paths.iter_rows(named=True), row["count"])):
            yield TracedTask(
                task=canonical_syscall(place[0]),
                configuration=place[1],
                n=int(row["count"]),
                syscall=canonical_syscall(place[0]),
                unit=row["unit"],
                total=row["mean"],
                margin=0.0,
                parts=parts,
            )


def _outermost(paths: Iterator[dict[str, Any]], entered: float) -> Iterator[TracedPart]:
    """Yield hooks and modules' functions that no other one calls, by name."""
    sums: dict[tuple[str, str], tuple[float, float]] = {}
    for row in paths:
        *above, function = labels_of(row["labels"]).get("path", row["event"]).split(";")
        if not is_security(function) or any(map(is_security, above)) or not row["count"]:
            continue
        calls, total = sums.get(layer_and_event(function), (0.0, 0.0))
        sums[layer_and_event(function)] = (calls + row["count"], total + (row["sum"] or 0.0))
    for (layer, event), (calls, total) in sums.items():
        yield TracedPart(
            layer=layer,
            event=event,
            labels="",
            calls=calls / entered,
            value=total / calls,
            margin=0.0,
        )
