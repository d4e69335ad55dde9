"""What explains the difference of a task between two configurations: calls × cost of each part.

For each part, such as a hook: calls per operation × (cost here − cost in the baseline), plus the
cost of the calls that only one of the two makes. What the parts do not explain is the remainder, so
that parts and remainder are the difference, always.

LSMPMON (Matsuda, Tabata and Munetoh) explained differences by a hook's mean over a mixed workload.
The cost of a hook in the system call at hand may be far from it, and a share then be far from the
truth, or above 100 %. Costs that are given for a task itself are taken where they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from excise.cost.attribution import REST, Attribution, Part, with_unattributed
from excise.cost.difference_rows import (
    FUNCTION_LAYER,
    DifferenceRows,
    PartKey,
    Value,
    rows_of,
)
from excise.cost.uncertainty import EXACT, Uncertainty, share_interval, summed
from excise.events.dataset import Dataset
from excise.formats.trace_syscalls import task_name

_LITTLE: Final = 0.5
# What is less than this share of the figures is no difference: no clock and no count tells it.
_NOTHING: Final = 1e-5
_ROUNDING: Final = 1e-12  # of the numbers as a computer keeps them
_WHOLE: Final = 1.0005  # printed as 100.0 % up to here
_HOW_THEY_ADD: Final = (
    "±: 95 % of independent errors, added in quadrature; rounding and the tracer's calibration, "
    "which parts share, as they are"
)
_OF_RUNS: Final = "±: 95 %, by the spread over runs, of parts and remainder in the same runs"


def difference_attributions(
    *datasets: Dataset,
    task: str | None = None,
    baseline: str | None = None,
    configuration: str | None = None,
    calls: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Attribution]:
    """Return what explains each configuration's difference to the baseline, task by task.

    Only tasks with a total, calls per operation and unit costs, or whose runs have child events;
    others are left out.

    Args:
        *datasets: Rows of one or several captures or tables: a total per task, and per part its
            `duration` and `per_call`. Those of several are taken together.
        task: Only this task.
        baseline: The configuration that others are compared with; by default the first dataset's
            own, else its only one.
        configuration: Only this one against the baseline.
        calls: Calls per operation by task and part, for tables that do not give them.
    """
    rows = rows_of(datasets, baseline=baseline, calls=calls or {})
    if rows is None:
        return []
    return [
        _attribution(rows, name, arm)
        for name, arm in rows.totals
        if arm != rows.baseline
        and configuration in (None, arm)
        and (name, rows.baseline) in rows.totals
        and (task is None or task_name(task) == name)
        and any(rows.part_calls(name, arm))
    ]


@dataclass(frozen=True, slots=True)
class _Found:
    """One part's share of a difference, before it is set against the total."""

    key: PartKey
    value: float
    error: Uncertainty
    words: str


def _attribution(rows: DifferenceRows, task: str, arm: str) -> Attribution:
    here, before = rows.totals[task, arm], rows.totals[task, rows.baseline]
    difference = _settled(here.value - before.value, of=(here.value, before.value), least=_NOTHING)
    n = rows.runs(task, arm)
    missing: list[str] = []
    found = sorted(_tops(rows, task, arm, missing), key=lambda part: -part.value)
    parts: list[Part] = []
    for each in found:
        parts.append(_part(each, difference))
        parts += _inner(rows, task, arm, each, difference)
    top = sum(each.value for each in found)
    errors = _errors(rows, task, arm, found)
    explained = top / difference if difference else 0.0
    interval = share_interval(
        top,
        difference,
        part_error=errors.top,
        whole_error=errors.whole,
        rest_spread=errors.rest.spread,
    )
    may_be_none = 0.0 < abs(difference) <= errors.whole.margin
    flags = [
        *([] if difference else ["there is no difference to explain"]),
        *(["the difference is within its error: it may be none"] if may_be_none else []),
        *_missing_flags(missing),
        *_call_flags(rows, task, arm),
        *rows.notes,
    ]
    if difference:
        flags += _share_flags(
            rows, task, arm, explained=explained, interval=interval, missing=missing
        )
    remainder = Part(
        layer="",
        event="remainder",
        labels="",
        role="remainder",
        value=_settled(difference - top, of=(difference, *(each.value for each in found))),
        share=1.0 - explained,
        runs=1,
        margin=errors.rest.margin or None,
    )
    return Attribution(
        task=task,
        configuration=f"{arm} − {rows.baseline_shown}",
        metric="difference",
        unit=here.unit,
        total=difference,
        n=n,
        parts=with_unattributed([replace(part, runs=n) for part in (*parts, remainder)]),
        explained=explained,
        explained_interval=interval,
        flags=tuple(flags),
        notes=tuple(filter(None, (errors.words, _about_calibration(rows, task, arm)))),
    )


def _settled(value: float, *, of: Sequence[float], least: float = _ROUNDING) -> float:
    """Return a difference, or 0 where it is nothing beside the figures it is a difference of."""
    return 0.0 if abs(value) <= least * max(map(abs, of), default=0.0) else value


@dataclass(frozen=True, slots=True)
class _Errors:
    """The errors of a difference, of what its parts explain, and of what remains; how they add."""

    whole: Uncertainty
    top: Uncertainty
    rest: Uncertainty
    words: str


def _errors(rows: DifferenceRows, task: str, arm: str, found: Sequence[_Found]) -> _Errors:
    arms = [(task, arm), (task, rows.baseline)]
    whole = summed(rows.totals[place].error for place in arms)
    top = summed(each.error for each in found)
    rest = summed((whole, top))
    together = [rows.together[place] for place in arms if place in rows.together]
    if len(together) == len(arms):
        # Parts and totals are of the same runs: their errors depend on each other.
        top, rest = (
            summed(Uncertainty(limit / len(arms), spread) for spread in spreads)
            for limit, spreads in zip(
                (top.limit, rest.limit), zip(*together, strict=True), strict=True
            )
        )
        return _Errors(whole, top, rest, _OF_RUNS)
    return _Errors(whole, top, rest, _HOW_THEY_ADD if rest.spread else "")


def _about_calibration(rows: DifferenceRows, task: str, arm: str) -> str:
    """Return how right the calibration is by which the tracer's cost was taken out."""
    found = [
        rows.calibrations[task, name]
        for name in (arm, rows.baseline)
        if (task, name) in rows.calibrations
    ]
    if not found:
        return ""
    floor, nested = (max(errors) for errors in zip(*found, strict=True))
    unit = rows.totals[task, arm].unit
    return (
        f"the tracer's cost is taken out to within {floor:,.3g} {unit} a call, and {nested:,.3g} "
        "for each traced call inside"
    )


def _part(found: _Found, difference: float, *, depth: int = 0) -> Part:
    return Part(
        layer=found.key.layer,
        event=found.key.event,
        labels=found.words,
        role="child",
        value=found.value,
        share=found.value / difference if difference else 0.0,
        runs=1,
        depth=depth,
        margin=found.error.margin or None,
    )


def _tops(rows: DifferenceRows, task: str, arm: str, missing: list[str]) -> Iterator[_Found]:
    """Yield the outermost parts, from the calls of both configurations."""
    calls, base_calls = rows.part_calls(task, arm), rows.part_calls(task, rows.baseline)
    keys = [key for key in {**calls, **base_calls} if key.layer != FUNCTION_LAYER]
    whole_runs = rows.is_per_run(task, arm) or rows.is_per_run(task, rows.baseline)
    for key in keys:
        count = calls.get(key, 0.0)
        # A table that gives calls once means them for every configuration.
        base_count = base_calls.get(key, 0.0) if base_calls else count
        here, before = rows.cost(task, arm, key), rows.cost(task, rows.baseline, key)
        if (here is None and count) or (before is None and base_count):
            missing.append(key.event)
            continue
        share = _share(key, count, here, base_count, before)
        yield replace(share, words=key.labels) if whole_runs else share


def _share(
    key: PartKey, count: float, here: Value | None, base_count: float, before: Value | None
) -> _Found:
    value = count * (here.value if here else 0.0) - base_count * (before.value if before else 0.0)
    error = summed(
        (
            here.error.times(count) if here else EXACT,
            before.error.times(base_count) if before else EXACT,
        )
    )
    words = f"{count:g} call" if count == 1 else f"{count:g} calls"
    if count != base_count and (base_count or key.layer != FUNCTION_LAYER):
        words = f"{base_count:g} → {words}"
    elif key.labels and key.layer != FUNCTION_LAYER:
        words = f"{key.labels}, {words}"
    return _Found(key=key, value=value, error=error, words=words)


def _inner(
    rows: DifferenceRows, task: str, arm: str, outer: _Found, difference: float
) -> list[Part]:
    """Return where in a part the difference lies: traced functions, and what is in none."""
    hook = f"hook={outer.key.event}"
    calls, base_calls = rows.part_calls(task, arm), rows.part_calls(task, rows.baseline)
    inside = [
        key for key in {**calls, **base_calls} if key.layer == FUNCTION_LAYER and key.labels == hook
    ]
    found = [
        _share(
            key,
            calls.get(key, 0.0),
            rows.cost(task, arm, key),
            base_calls.get(key, 0.0),
            rows.cost(task, rows.baseline, key),
        )
        for key in inside
    ]
    if rows.is_per_run(task, arm):
        found = [replace(each, words="") for each in found]
    found = sorted((each for each in found if each.value), key=lambda part: -part.value)
    if not found:
        return []
    parts = [_part(each, difference, depth=1) for each in found]
    left = outer.value - sum(each.value for each in found)
    error = summed((outer.error, *(each.error for each in found)))
    rest = _Found(PartKey(FUNCTION_LAYER, REST, hook), left, error, "")
    return [*parts, _part(rest, difference, depth=1)]


def _missing_flags(missing: Sequence[str]) -> list[str]:
    if not missing:
        return []
    return [f"no unit cost is given for {', '.join(missing)}: its part is in the remainder"]


def _call_flags(rows: DifferenceRows, task: str, arm: str) -> list[str]:
    """Return which hooks only one of the two configurations calls."""
    here, before = rows.part_calls(task, arm), rows.part_calls(task, rows.baseline)
    if not before:
        return []
    flags = []
    for one, other, name in ((here, before, arm), (before, here, rows.baseline)):
        only = [
            key.event
            for key, count in one.items()
            if key.layer != FUNCTION_LAYER and count and not other.get(key)
        ]
        if only:
            flags.append(f"only {name} calls {', '.join(only)}")
    return flags


def _share_flags(
    rows: DifferenceRows,
    task: str,
    arm: str,
    *,
    explained: float,
    interval: tuple[float, float] | None,
    missing: Sequence[str],
) -> list[str]:
    flags = []
    published = rows.is_published(task, arm)
    if explained > _WHOLE:
        flags.append(f"children explain more than 100 %: {_causes(rows, published, interval)}")
    if published and 0.0 <= explained < _LITTLE:
        gone = f"; nothing is known of {', '.join(missing)}" if missing else ""
        flags.append(
            "children explain less than half: a mean over a mixed workload may be below the cost "
            f"in this task, or the cost lies outside of these hooks{gone}"
        )
    in_task = _with_costs_in_task(rows, task, arm)
    if in_task is not None:
        flags.append(in_task)
    return flags


def _causes(rows: DifferenceRows, published: bool, interval: tuple[float, float] | None) -> str:
    causes = []
    if published:
        causes.append("a mean over a mixed workload is not the cost in this task")
    else:
        causes.append("something outside of the hooks became cheaper, or hooks contain each other")
    if interval is not None and interval[0] <= 1.0:
        causes.append(
            f"within what the figures are known to ({interval[0]:.1%} to {interval[1]:.1%}) it may "
            "be 100 %"
        )
    if rows.has_tracer_cost:
        causes.append("the tracer's own cost is in the figures")
    return "; or ".join(causes)


def _with_costs_in_task(rows: DifferenceRows, task: str, arm: str) -> str | None:
    """Return what would be explained with the costs that a source gives for the task itself."""
    given = rows.in_task(task, arm)
    if not given:
        return None
    total = rows.totals[task, arm].value - rows.totals[task, rows.baseline].value
    top = 0.0
    for key, count in rows.part_calls(task, arm).items():
        here = given.get(key) or rows.cost(task, arm, key)
        before = rows.cost(task, rows.baseline, key)
        if here is not None and before is not None:
            top += count * (here.value - before.value)
    names = ", ".join(
        f"{key.event} ({value.value:,.4g} {value.unit})" for key, value in given.items()
    )
    return (
        f"with the cost that the source gives in this task, {names}, {top / total:.1%} would be "
        "explained"
    )
