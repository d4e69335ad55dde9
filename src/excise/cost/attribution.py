"""Attribution: how much of a total its child events explain, and what remains.

Children and remainder always sum to the total. A share above 100 % is shown and flagged, never
clipped: it means that children overlap, were counted twice, or come from another workload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import polars as pl

from excise.cost.series import Series, series_of
from excise.events.dataset import Dataset

REST: Final = "in no traced function"
"""The part of a hook that no function in it explains."""
Role = Literal["child", "probe", "remainder"]
PROBE_LAYER: Final = "probe"
# Events by which a known instrument reports its own cost.
PROBE_EVENTS: Final = frozenset({"perf_flush"})
# Units of what stands beside a time, such as the IMA entries of a boot, and is no part of it.
_SIZES: Final = ("1", "B")
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a total.

    Attributes:
        role: `child`; `probe` for the instrument's own cost; `remainder` for what is unexplained.
        value: Mean per run, in the attribution's unit; negative for a remainder above 100 %.
        share: Value over total, without unit.
        runs: Runs in which it occurred.
        depth: 0 for a direct child of the run, 1 for a child of such a child, ...
        margin: By how much the value may be wrong: rounding of a table, and 95 % of its spread;
            None where that is not known, or nothing.
        unattributed: What of the value its own children do not explain; None without children.
    """

    layer: str
    event: str
    labels: str
    role: Role
    value: float
    share: float
    runs: int
    depth: int = 0
    margin: float | None = None
    unattributed: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What explains one task's total under one configuration.

    Attributes:
        total: Mean per run, in `unit`.
        n: Counted runs that have child events.
        parts: Children in order of size, each followed by its own children, the probe's own cost
            after its siblings, and the remainder last. Parts of depth 0 sum to the total.
        explained: Share of the total that children and probe explain together.
        explained_interval: Between what it lies, by the errors of parts and total.
        flags: What is wrong or doubtful about it.
        notes: How its margins were found.
    """

    task: str
    configuration: str
    metric: str
    unit: str
    total: float
    n: int
    parts: tuple[Part, ...]
    explained: float
    explained_interval: tuple[float, float] | None = None
    flags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_children(self) -> bool:
        """Whether there is more in it than the probe's own cost."""
        return any(part.role == "child" for part in self.parts)


def with_unattributed(parts: Sequence[Part]) -> tuple[Part, ...]:
    """Return the parts, each with what its own children leave of it unexplained.

    Args:
        parts: Each followed by its own children, one deeper; a child `REST` explains nothing.
    """
    left: list[float | None] = [None] * len(parts)
    above: list[int] = []
    for at, part in enumerate(parts):
        del above[part.depth :]
        if above and part.role != "remainder":
            parent = above[-1]
            before = parts[parent].value if left[parent] is None else left[parent]
            assert before is not None
            left[parent] = before - (0.0 if part.event == REST else part.value)
        above.append(at)
    return tuple(replace(part, unattributed=rest) for part, rest in zip(parts, left, strict=True))


def run_attributions(dataset: Dataset, *, task: str | None = None) -> Iterator[Attribution]:
    """Yield the attribution of every task and configuration whose runs have child events.

    A workload of the probe is attributed to the probe's own clock and to the rest.

    Args:
        dataset: Runs with events.
        task: Only this task.
    """
    resolution = {
        clock.name: clock.resolution_ns for clock in dataset.manifest.clocks if clock.resolution_ns
    }
    for series in series_of(dataset):
        if task is not None and series.task != task:
            continue
        if series.metric == "op_ns":
            runs = _counted_runs(dataset, series)
            if attribution := _probe_only(series.task, series.configuration, runs, resolution):
                yield attribution
            continue
        counted, events = counted_events(dataset, series)
        parts = events.filter(~_stands_beside(series.unit))
        if parts.height:
            yield _attribution(series, parts, counted=counted)


def counted_events(dataset: Dataset, series: Series) -> tuple[int, pl.DataFrame]:
    """Return how many runs of a series count, and the events of those that have any.

    The events have a further column `total`: the metric of their run.
    """
    totals = _counted_runs(dataset, series).select("sequence", total=series.metric).drop_nulls()
    return totals.height, dataset.events.join(totals, on="sequence")


def _stands_beside(unit: str) -> pl.Expr:
    """Tell which events are no part of a total in this unit: counts and sizes of a time."""
    sizes = () if unit in _SIZES else _SIZES
    return pl.col("unit").cast(pl.String).is_in(sizes)


def _counted_runs(dataset: Dataset, series: Series) -> pl.DataFrame:
    return dataset.runs.filter(
        (pl.col("task") == series.task)
        & (pl.col("configuration") == series.configuration)
        & (pl.col("phase") == "measured")
        & pl.col("ok").fill_null(True)
    )


def _attribution(series: Series, events: pl.DataFrame, *, counted: int) -> Attribution:
    runs = events.unique("sequence")
    n, total = runs.height, float(np.mean(runs.get_column("total").to_numpy()))
    timed = events.filter(pl.col("unit") == series.unit)
    tree = _Tree(timed, n=n, total=total)
    parts = list(tree.parts())
    top = sum(part.value for part in parts if part.depth == 0)
    explained = top / total if total else 0.0
    flags = [*tree.flags]
    if timed.height < events.height:
        flags.append(_in_another_unit(events.filter(pl.col("unit") != series.unit), series.unit))
    if n < counted:
        flags.append(f"{counted - n:,} of {counted:,} runs have no child events and are left out")
    if explained > 1.0:
        flags.append("children explain more than 100 %: they overlap or are counted twice")
    remainder = Part(
        layer="",
        event="remainder",
        labels="",
        role="remainder",
        value=total - top,
        share=1.0 - explained if total else 0.0,
        runs=n,
    )
    return Attribution(
        task=series.task,
        configuration=series.configuration,
        metric=series.metric,
        unit=series.unit,
        total=total,
        n=n,
        parts=with_unattributed([*parts, remainder]),
        explained=explained,
        flags=tuple(flags),
    )


def _in_another_unit(events: pl.DataFrame, unit: str) -> str:
    """Return why events explain nothing of a total, and what to do about it."""
    text = pl.col("layer", "event", "unit").cast(pl.String)
    found = events.select(text).unique().sort("layer", "event", "unit").rows()
    names = [f"{layer}|{event} in {own}" for layer, event, own in found]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"events in another unit explain nothing of a total in {unit}: {', '.join(names[:_NAMED])}"
        f"{more}; record them in {unit} to have them attributed"
    )


_Row = dict[str, Any]


class _Tree:
    """Events by the event that contains them; each is given out once, whatever its parent."""

    def __init__(self, events: pl.DataFrame, *, n: int, total: float) -> None:
        rows = (
            events.group_by("layer", "event", "labels", "parent")
            .agg(value=pl.col("value").sum() / n, runs=pl.col("sequence").n_unique())
            .sort("value", "layer", "event", "labels", descending=[True, False, False, False])
            .rows(named=True)
        )
        self.flags: list[str] = []
        self._total = total
        self._rows = sorted(rows, key=_is_probe)
        self._children: dict[str, list[_Row]] = {}
        for row in self._rows:
            self._children.setdefault(row["parent"] or "", []).append(row)
        self._given: set[int] = set()

    def parts(self) -> Iterator[Part]:
        """Yield direct children of the run, largest first, each followed by its own."""
        names = {_name(row) for row in self._rows}
        lost = [row for row in self._rows if row["parent"] and row["parent"] not in names]
        if lost:
            parents = ", ".join(sorted({row["parent"] for row in lost}))
            self.flags.append(f"events name a parent that was not recorded: {parents}")
        for row in [*self._children.get("", []), *lost]:
            yield from self._with_children(row, depth=0)
        circle = [row for row in self._rows if id(row) not in self._given]
        if circle:
            self.flags.append("events that contain each other stand directly under the run")
        for row in circle:
            yield from self._with_children(row, depth=0)

    def _with_children(self, row: _Row, *, depth: int) -> Iterator[Part]:
        if id(row) in self._given:
            return
        self._given.add(id(row))
        yield Part(
            layer=row["layer"],
            event=row["event"],
            labels=row["labels"],
            role="probe" if _is_probe(row) else "child",
            value=row["value"],
            share=row["value"] / self._total if self._total else 0.0,
            runs=row["runs"],
            depth=depth,
        )
        for child in self._children.get(_name(row), []):
            yield from self._with_children(child, depth=depth + 1)


def _name(row: _Row) -> str:
    return f"{row['layer']}|{row['event']}"


def _is_probe(row: _Row) -> bool:
    return row["layer"] == PROBE_LAYER or row["event"] in PROBE_EVENTS


def _probe_only(
    task: str, configuration: str, runs: pl.DataFrame, resolution: dict[str, float]
) -> Attribution | None:
    """Attribute a workload's time per operation to the probe's clock and to the operation.

    A batch is timed by two clock readings; their cost, as measured by the probe on this host, is
    spread over the operations of the batch.
    """
    clock_ns = resolution.get("CLOCK_MONOTONIC_RAW")
    operations = runs.get_column("operations").median()
    total = runs.get_column("op_ns").mean()
    if clock_ns is None or not operations or not total:
        return None
    own = clock_ns / float(operations)  # type: ignore[arg-type]
    total = float(total)  # type: ignore[arg-type]
    return Attribution(
        task=task,
        configuration=configuration,
        metric="op_ns",
        unit="ns",
        total=total,
        n=runs.height,
        parts=(
            Part(
                layer=PROBE_LAYER,
                event="clock readings",
                labels="",
                role="probe",
                value=own,
                share=own / total,
                runs=runs.height,
            ),
            Part(
                layer="",
                event="remainder",
                labels="",
                role="remainder",
                value=total - own,
                share=1.0 - own / total,
                runs=runs.height,
            ),
        ),
        explained=own / total,
    )
