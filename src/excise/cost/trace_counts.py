"""System calls and events of a trace: how often each occurred, and what its calls took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import polars as pl

from excise.events.dataset import Dataset
from excise.formats.trace_rows import EVENT, SYSCALL


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCount:
    """One system call, or one event; times in `unit`, None where the source has none.

    Attributes:
        name: The system call or the event.
        labels: What tells it apart from others of that name: thread, process, task.
        count: How often it was entered, or occurred.
        errors: Calls that failed.
    """

    configuration: str
    name: str
    labels: str
    unit: str
    count: float | None
    errors: float | None = None
    total: float | None = None
    mean: float | None = None
    min: float | None = None
    max: float | None = None


def syscall_counts(dataset: Dataset) -> list[TraceCount]:
    """Return the system calls of a dataset, those that took most first."""
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    for row in dataset.aggregates.filter(pl.col("layer") == SYSCALL).iter_rows(named=True):
        name = row["event"] or row["task"]
        words = [row["labels"], f"task={row['task']}" if row["event"] else ""]
        key = (row["configuration"], name, ",".join(filter(None, words)))
        found.setdefault(key, {})[row["metric"]] = row
    counts = [_syscall(key, metrics) for key, metrics in found.items()]
    return sorted(counts, key=lambda each: (-(each.total or 0.0), -(each.count or 0.0), each.name))


def _syscall(key: tuple[str, ...], metrics: dict[str, dict[str, Any]]) -> TraceCount:
    timed = metrics.get("duration", {})
    counted = metrics.get("count", timed)
    return TraceCount(
        configuration=key[0],
        name=key[1],
        labels=key[2],
        unit=timed.get("unit", "ns"),
        count=counted.get("count"),
        errors=metrics.get("errors", {}).get("count"),
        total=timed.get("sum"),
        mean=timed.get("mean"),
        min=timed.get("min"),
        max=timed.get("max"),
    )


def event_counts(dataset: Dataset) -> list[TraceCount]:
    """Return how often each event of a dataset occurred, the most frequent first."""
    rows: Iterable[dict[str, Any]] = dataset.aggregates.filter(
        (pl.col("layer") == EVENT) & (pl.col("metric") == "count")
    ).iter_rows(named=True)
    counts = [
        TraceCount(
            configuration=row["configuration"],
            name=row["event"],
            labels=row["labels"],
            unit="1",
            count=row["count"],
        )
        for row in rows
    ]
    return sorted(counts, key=lambda each: (-(each.count or 0.0), each.name))
