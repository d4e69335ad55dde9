"""Totals, calls and unit costs of tasks, gathered from captures and tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from excise.cost.attribution import PROBE_LAYER
from excise.cost.series import series_of
from excise.cost.summary import TaskSummary, published_summaries, summary_of
from excise.cost.traced_parts import TracedTask, event_parts, syscall_parts
from excise.cost.uncertainty import Uncertainty, summed
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.formats.trace_rows import CALIBRATION_ERROR, INSIDE, labels_of

PER_CALL: Final = "per_call"
IN_TASK: Final = "duration_in_task"
FUNCTION_LAYER: Final = "function"
_Z_90: Final = 1.645
_Z_95: Final = 1.96


@dataclass(frozen=True, slots=True)
class PartKey:
    """A part of a task: a hook, or a function in one."""

    layer: str
    event: str
    labels: str = ""


@dataclass(frozen=True, slots=True)
class Value:
    """A figure and by how much it may be wrong."""

    value: float
    error: Uncertainty
    unit: str


@dataclass(slots=True)
class DifferenceRows:
    """Figures by task, configuration and part.

    Attributes:
        baseline: The configuration that others are compared with.
        baseline_shown: Its name, with that of its dataset where others have the name too.
        totals: Of a task under a configuration.
        has_tracer_cost: Whether the tracer's own cost is still in the unit costs.
        notes: What was done about the tracer's own cost.
        calibrations: Where a tracer's cost was taken out, by how much that may be off for a call,
            and for each traced call inside.
        together: Where single runs are known, 95 % of the error of the sum of all parts, and of
            what they leave of the total.
    """

    baseline: str
    baseline_shown: str = ""
    totals: dict[tuple[str, str], Value] = field(default_factory=dict)
    has_tracer_cost: bool = False
    notes: list[str] = field(default_factory=list)
    calibrations: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    together: dict[tuple[str, str], tuple[float, float]] = field(default_factory=dict)
    _costs: dict[tuple[str, str, PartKey], Value] = field(default_factory=dict)
    _calls: dict[tuple[str, str], dict[PartKey, float]] = field(default_factory=dict)
    _in_task: dict[tuple[str, str], dict[PartKey, Value]] = field(default_factory=dict)
    _published: set[tuple[str, str]] = field(default_factory=set)
    _whole_runs: set[tuple[str, str]] = field(default_factory=set)
    _runs: dict[tuple[str, str], int] = field(default_factory=dict)

    def part_calls(self, task: str, arm: str) -> Mapping[PartKey, float]:
        """Return the calls of each part in one operation of a task."""
        return self._calls.get((task, arm), {})

    def cost(self, task: str, arm: str, key: PartKey) -> Value | None:
        """Return what one call of a part costs in a task, None where it is not known."""
        return self._costs.get((task, arm, key))

    def in_task(self, task: str, arm: str) -> Mapping[PartKey, Value]:
        """Return the costs that a source gives for a task beside its means over all tasks."""
        return self._in_task.get((task, arm), {})

    def runs(self, task: str, arm: str) -> int:
        """Return how many runs or calls a difference to the baseline stands on; 1 for a table."""
        return min(self._runs.get((task, name), 1) for name in (arm, self.baseline))

    def is_per_run(self, task: str, arm: str) -> bool:
        """Return whether a task's parts are sums over a run, whose calls nobody counted."""
        return (task, arm) in self._whole_runs

    def is_published(self, task: str, arm: str) -> bool:
        """Return whether a task's total is a row of somebody's table."""
        return (task, arm) in self._published


def rows_of(
    datasets: Sequence[Dataset],
    *,
    baseline: str | None,
    calls: Mapping[str, Mapping[str, float]],
) -> DifferenceRows | None:
    """Return the rows of all datasets together; None where nothing says what the baseline is.

    Configurations of the same name in two datasets are told apart by the dataset's name.

    Raises:
        UsageError: If the baseline is not among the configurations, or not clear.
    """
    renamed = _names(datasets)
    pairs = list(zip(datasets, renamed, strict=True))
    name = _baseline(datasets, renamed, baseline)
    if name is None:
        return None
    twice = any(f"{dataset.name}: {name}" in names.values() for dataset, names in pairs)
    shown = f"{datasets[0].name}: {name}" if twice else name
    rows = DifferenceRows(baseline=name, baseline_shown=shown)
    for dataset, names in pairs:
        _take(rows, dataset, names)
    _take_calls(rows, calls)
    return rows


def _names(datasets: Sequence[Dataset]) -> list[dict[str, str]]:
    """Return by dataset what its configurations are called here."""
    found: list[dict[str, str]] = []
    taken: set[str] = set()
    for number, dataset in enumerate(datasets):
        own = {name: name for name in dataset.configurations}
        twice = [name for name in own if name in taken]
        # A table of totals and a table of hooks of the same configuration belong together.
        parts_only = not _has_totals(dataset) or not any(map(_has_totals, datasets[:number]))
        if twice and not parts_only:
            own.update({name: f"{dataset.name}: {name}" for name in twice})
        taken.update(own.values())
        found.append(own)
    return found


def _has_totals(dataset: Dataset) -> bool:
    rows = dataset.aggregates
    return dataset.runs.height > 0 or any(
        layer == "task" and not event and metric == "duration"
        for layer, event, metric in rows.select("layer", "event", "metric").iter_rows()
    )


def _baseline(
    datasets: Sequence[Dataset], renamed: Sequence[Mapping[str, str]], given: str | None
) -> str | None:
    every = [name for names in renamed for name in names.values()]
    if given is not None:
        if given not in every:
            raise UsageError(
                f"there is no configuration {given!r}",
                hint=f"Configurations: {', '.join(dict.fromkeys(every))}",
            )
        return given
    own = datasets[0].manifest.baseline
    if own is not None:
        return renamed[0].get(own, own)
    names = list(renamed[0].values())
    if len(names) == 1:
        return names[0]
    if len(datasets) > 1:
        raise UsageError(
            "which configuration is the baseline is not clear",
            source=datasets[0].name,
            hint=f"Say it with --baseline: {', '.join(names)}",
        )
    return None


def _take(rows: DifferenceRows, dataset: Dataset, names: Mapping[str, str]) -> None:
    summaries = list(published_summaries(dataset))
    # A figure of our own is not rounded; a table's is, to what it prints.
    steps = {} if dataset.manifest.origin == "measured" else _rounding_steps(summaries)
    for row in summaries:
        arm = names.get(row.configuration, row.configuration)
        key = PartKey(row.layer, row.event, row.labels)
        if row.metric == PER_CALL and row.typical:
            rows._calls.setdefault((row.task, arm), {})[key] = row.typical
        elif row.typical is None:
            continue
        elif row.metric == IN_TASK:
            value = _value(row, steps)
            rows._in_task.setdefault((row.task, arm), {})[key] = value
        elif row.metric != "duration":
            continue
        elif row.event:
            # A sum of calls is their number times the mean, which a median is not.
            cost = row if row.mean is None else replace(row, median=None)
            rows._costs[row.task, arm, key] = _value(cost, steps)
        elif row.layer == "task":
            rows.totals[row.task, arm] = _value(row, steps)
            if dataset.manifest.origin != "measured":
                rows._published.add((row.task, arm))
    _take_tracer_out(rows, dataset, names)
    _take_calibration_errors(rows, dataset, names)
    _take_traced(rows, dataset, names)
    _take_measured(rows, dataset, names)


def _take_traced(rows: DifferenceRows, dataset: Dataset, names: Mapping[str, str]) -> None:
    """Add what single runs with child events say, and what traces say of system calls."""
    with_events = list(event_parts(dataset))
    known = {(each.configuration, each.syscall) for each in with_events}
    for each in with_events:
        rows._whole_runs.add((each.task, names.get(each.configuration, each.configuration)))
        _take_task(rows, each, names)
    for each in syscall_parts(dataset):
        if (each.configuration, each.task) not in known:
            rows.has_tracer_cost = True
            _take_task(rows, each, names)


def _take_task(rows: DifferenceRows, found: TracedTask, names: Mapping[str, str]) -> None:
    place = (found.task, names.get(found.configuration, found.configuration))
    if place in rows.totals or place in rows._calls:
        return
    rows.totals[place] = Value(found.total, Uncertainty(spread=found.margin), found.unit)
    rows._runs[place] = found.n
    if found.together is not None:
        rows.together[place] = found.together
    for part in found.parts:
        key = PartKey(part.layer, part.event, part.labels)
        rows._calls.setdefault(place, {})[key] = part.calls
        rows._costs[*place, key] = Value(part.value, Uncertainty(spread=part.margin), found.unit)


def _take_tracer_out(rows: DifferenceRows, dataset: Dataset, names: Mapping[str, str]) -> None:
    """Take the tracer's own cost out of a traced capture's unit costs, where it was left in.

    One call holds the cost of an empty function, and what each traced call inside adds. How many of
    those there are, the capture must say.
    """
    left = [
        row
        for row in dataset.aggregates.iter_rows(named=True)
        if row["metric"] == "tracer_cost" and "state=left_in" in row["labels"]
    ]
    for task, arm in dict.fromkeys((row["task"], row["configuration"]) for row in left):
        shares = {
            row["labels"].split(",")[0]: row
            for row in left
            if (row["task"], row["configuration"]) == (task, arm)
        }
        name = names.get(arm, arm)
        inside = {
            (task, name, PartKey(row["layer"], row["event"], row["labels"])): row["mean"]
            for row in dataset.aggregates.filter(
                metric=INSIDE, task=task, configuration=arm
            ).iter_rows(named=True)
        }
        floor, nested = shares.get("share=floor"), shares.get("share=nested")
        if floor is None or nested is None or not inside:
            rows.has_tracer_cost = True
            rows.notes.append(
                f"the tracer's own cost is left in the figures of {name}: it does not say how many "
                "traced calls are inside of a hook (function_graph, kprobe and fprobe do)"
            )
            continue
        margin = _margin_of_floor(floor)
        for place, calls in inside.items():
            if (cost := rows._costs.get(place)) is not None and cost.unit == floor["unit"]:
                own = floor["median"] + calls * nested["median"]
                shared = Uncertainty(limit=(1 + calls) * margin)
                rows._costs[place] = Value(
                    cost.value - own, summed((cost.error, shared)), cost.unit
                )
        rows.notes.append(
            f"the tracer's own cost was taken out of {name}: {floor['median']:,.4g} "
            f"{floor['unit']} a call, {nested['median']:,.4g} for each traced call inside"
        )


def _take_calibration_errors(
    rows: DifferenceRows, dataset: Dataset, names: Mapping[str, str]
) -> None:
    """Add to unit costs what the calibration of a tracer, whose cost was taken out, may be off."""
    found = dataset.aggregates.filter(metric=CALIBRATION_ERROR)
    for row in found.iter_rows(named=True):
        arm = names.get(row["configuration"], row["configuration"])
        place = (row["task"], arm, PartKey(row["layer"], row["event"], row["labels"]))
        if (cost := rows._costs.get(place)) is not None:
            error = summed((cost.error, Uncertainty(limit=row["mean"])))
            rows._costs[place] = replace(cost, error=error)
        elif row["layer"] == PROBE_LAYER:
            floor, nested = rows.calibrations.get(place[:2], (0.0, 0.0))
            if labels_of(row["labels"])["share"] == "floor":
                floor = row["mean"]
            else:
                nested = row["mean"]
            rows.calibrations[place[:2]] = (floor, nested)


def _margin_of_floor(floor: Mapping[str, Any]) -> float:
    """Return 95 % of the error of the empty function's cost, from its 5th and 95th percentile."""
    if floor["min"] is None or floor["max"] is None or not floor["count"]:
        return 0.0
    spread = (floor["max"] - floor["min"]) / (2 * _Z_90)
    return float(_Z_95 * spread / math.sqrt(floor["count"]))


def _take_measured(rows: DifferenceRows, dataset: Dataset, names: Mapping[str, str]) -> None:
    """Add the totals of measured runs where no row gives them."""
    if not dataset.runs.height:
        return
    for series in series_of(dataset):
        key = (series.task, names.get(series.configuration, series.configuration))
        summary = summary_of(series)
        if key in rows.totals or summary.typical is None:
            continue
        n = summary.effective_n or summary.n or 1
        margin = _Z_95 * (summary.sd or 0.0) / math.sqrt(n)
        rows.totals[key] = Value(summary.typical, Uncertainty(spread=margin), summary.unit)


def _take_calls(rows: DifferenceRows, calls: Mapping[str, Mapping[str, float]]) -> None:
    """Add calls that were given by hand, to every configuration of their task.

    Unit costs that belong to no task stand for every task.
    """
    arms = {arm for _, arm in rows.totals}
    for task, counts in calls.items():
        for arm in arms:
            for event, count in counts.items():
                key = PartKey("hook", event)
                rows._calls.setdefault((task, arm), {})[key] = count
                if (task, arm, key) not in rows._costs:
                    found = [
                        value
                        for (_, other, each), value in rows._costs.items()
                        if other == arm and each == key
                    ]
                    if len(found) == 1:
                        rows._costs[task, arm, key] = found[0]


def _value(row: TaskSummary, steps: Mapping[tuple[str, str], float]) -> Value:
    assert row.typical is not None
    if row.sd is not None:
        return Value(row.typical, Uncertainty(spread=_Z_95 * row.sd), row.unit)
    rounding = steps.get((row.layer, row.metric), 0.0) / 2
    return Value(row.typical, Uncertainty(limit=rounding), row.unit)


def _rounding_steps(rows: Sequence[TaskSummary]) -> dict[tuple[str, str], float]:
    """Return the step that a table's values are printed to, by layer and metric.

    The largest power of ten that divides them all; 0 where there is none from a thousandth on.
    """
    values: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        if row.typical is not None and row.sd is None and row.metric in ("duration", IN_TASK):
            values.setdefault((row.layer, row.metric), []).append(row.typical)
    return {key: _step(found) for key, found in values.items()}


def _step(values: Sequence[float]) -> float:
    for power in range(6, -4, -1):
        step = 10.0**power
        if all(math.isclose(value / step, round(value / step), abs_tol=1e-6) for value in values):
            return step
    return 0.0
