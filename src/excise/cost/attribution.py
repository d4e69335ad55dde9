"""Attribution: how much of a total its child events explain, and what remains.

Children and remainder always sum to the total. A share above 100 % is shown and flagged, never
clipped: it means that children overlap, were counted twice, or come from another workload.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

import polars as pl

from excise.cost.series import series_of
from excise.events.dataset import Dataset

Role = Literal["child", "probe", "remainder"]
PROBE_LAYER: Final = "probe"
# Events by which a known instrument reports its own cost.
PROBE_EVENTS: Final = frozenset({"perf_flush"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a total.

    Attributes:
        role: `child`; `probe` for the instrument's own cost; `remainder` for what is unexplained.
        value: Mean per run, in the attribution's unit; negative for a remainder above 100 %.
        share: Value over total, without unit.
        runs: Runs in which it occurred.
        depth: 0 for a direct child of the run, 1 for a child of such a child, ...
    """

    layer: str
    event: str
    labels: str
    role: Role
    value: float
    share: float
    runs: int
    depth: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What explains one task's total under one configuration.

    Attributes:
        total: Mean per run, in `unit`.
        n: Counted runs that have child events.
        parts: Children in order of size, each followed by its own children, then the probe's own
            cost, then the remainder. Parts of depth 0 sum to the total.
        explained: Share of the total that children and probe explain together.
        flags: What is wrong or doubtful about it.
    """

    task: str
    configuration: str
    metric: str
    unit: str
    total: float
    n: int
    parts: tuple[Part, ...]
    explained: float
    flags: tuple[str, ...] = ()


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
        runs = dataset.runs.filter(
            (pl.col("task") == series.task)
            & (pl.col("configuration") == series.configuration)
            & (pl.col("phase") == "measured")
            & pl.col("ok").fill_null(True)
        )
        if series.metric == "op_ns":
            if attribution := _probe_only(series.task, series.configuration, runs, resolution):
                yield attribution
            continue
        events = dataset.events.join(runs.select("sequence", total=series.metric), on="sequence")
        if events.height:
            yield _attribution(series.task, series.configuration, series.metric, events)


def _attribution(task: str, configuration: str, metric: str, events: pl.DataFrame) -> Attribution:
    runs = events.unique("sequence")
    n, total = runs.height, float(runs.get_column("total").mean() or 0.0)  # type: ignore[arg-type]
    units = events.get_column("unit").unique().to_list()
    flags = [] if units == ["ns"] else [f"events are in {', '.join(map(str, units))}, not in ns"]
    means = (
        events.group_by("layer", "event", "labels", "parent")
        .agg(value=pl.col("value").sum() / n, runs=pl.col("sequence").n_unique())
        .sort("value", descending=True)
    )
    parts = list(_tree(means, total, parent=None, depth=0))
    top = sum(part.value for part in parts if part.depth == 0)
    remainder = total - top
    explained = top / total if total else 0.0
    if explained > 1.0:
        flags.append("children explain more than 100 %: they overlap or are counted twice")
    parts.append(
        Part(
            layer="",
            event="remainder",
            labels="",
            role="remainder",
            value=remainder,
            share=remainder / total if total else 0.0,
            runs=n,
        )
    )
    return Attribution(
        task=task,
        configuration=configuration,
        metric=metric,
        unit="ns",
        total=total,
        n=n,
        parts=tuple(parts),
        explained=explained,
        flags=tuple(flags),
    )


def _tree(means: pl.DataFrame, total: float, *, parent: str | None, depth: int) -> Iterator[Part]:
    """Yield the children of a parent, largest first, each followed by its own children."""
    here = pl.col("parent").is_null() if parent is None else pl.col("parent") == parent
    for row in means.filter(here).iter_rows(named=True):
        is_probe = row["layer"] == PROBE_LAYER or row["event"] in PROBE_EVENTS
        yield Part(
            layer=row["layer"],
            event=row["event"],
            labels=row["labels"],
            role="probe" if is_probe else "child",
            value=row["value"],
            share=row["value"] / total if total else 0.0,
            runs=row["runs"],
            depth=depth,
        )
        name = f"{row['layer']}|{row['event']}"
        if depth < 16 and name != parent:
            yield from _tree(means, total, parent=name, depth=depth + 1)


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
