"""Comparisons: each configuration against the baseline, task by task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from excise.cost.compared import Comparison, Comparisons, Order
from excise.cost.containers import only_like_wholes, parts_of
from excise.cost.counted import (
    is_counted,
    larger_floors,
    noise_floors,
    steady,
    within_floor,
)
from excise.cost.facts import require_agreement
from excise.cost.series import Series, event_series_of, series_of
from excise.cost.summary import TaskSummary, published_summaries, summaries
from excise.cost.versions import side_by_side
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.stats import (
    AACheck,
    Verdict,
    check_aa,
    compare_paired,
    compare_unpaired,
    decide,
    holm,
    pairs_for_interval,
    runs_for_difference,
)
from excise.units import NS_PER_MS, NS_PER_S, NS_PER_US, counted

ALPHA: Final = 0.05
_NS_PER: Final = {"ns": 1, "us": NS_PER_US, "µs": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_Key = tuple[str, str, str, str]  # task, configuration, layer, event
_NOT_SURVIVED: Final = "does not survive Holm"
_DRIFT: Final = "measured one after the other: drift between the captures looks like a cost"
_TESTED: Final = ("paired blocks", "order unknown")


def compare_configurations(
    dataset: Dataset,
    *,
    baseline: str | None = None,
    metric: str | None = None,
    margin_ratio: float = 0.01,
) -> Comparisons:
    """Compare every configuration of one dataset with its baseline.

    Measured campaigns are compared over their paired blocks, and only where the A/A arm agrees
    with the baseline; counts of guests by their steady value, to within the noise floor that A/A
    guests show; imported runs as samples of unknown order; published tables value by value, without
    an interval.

    Args:
        dataset: What to compare within.
        baseline: Configuration to compare with; the campaign's own by default.
        metric: Metric of the runs; a task's own by default.
        margin_ratio: Difference that would not matter, as a ratio: 0.01 is 1 %.

    Raises:
        UsageError: If there is no such baseline, or nothing to compare with it.
    """
    name = _baseline(dataset, baseline)
    series = _keyed(dataset, metric)
    manifest = dataset.manifest
    aa = _twin_checks(dataset, series, margin_ratio)
    noise = noise_floors(series.values(), manifest)
    rows = []
    first_only = []
    for (task, configuration, layer, event), other in series.items():
        base = series.get((task, name, layer, event))
        if configuration in (name, *manifest.twins) or base is None:
            continue
        if _is_first_only(base) and _is_first_only(other):
            first_only += [] if event else [(task, configuration)]
            continue
        if manifest.paired:
            rows.append(
                _paired(base, other, aa.get(task), margin_ratio, has_twin=bool(manifest.twin))
            )
        elif is_counted(base, manifest):
            rows.append(_counted(base, other, noise.get(task), margin_ratio))
        else:
            rows.append(_unpaired(base, other, margin_ratio))
    parts = parts_of(dataset)
    rows = only_like_wholes(rows, ours=parts, theirs=parts)
    rows += _published(dataset, name, margin_ratio)
    if not rows:
        raise UsageError(
            f"nothing to compare with {name!r}",
            source=dataset.name,
            hint=f"Configurations here: {', '.join(dataset.configurations)}"
            + (". Each ran once: a first run is compared with nothing" if first_only else ""),
        )
    return Comparisons(
        baseline=name,
        rows=_with_holm(rows),
        aa=aa,
        margin_ratio=margin_ratio,
        first_only=tuple(first_only),
    )


def compare_datasets(
    first: Dataset,
    second: Dataset,
    *,
    metric: str | None = None,
    margin_ratio: float = 0.01,
    force: bool = False,
) -> Comparisons:
    """Compare what two datasets have in common, the first being the baseline.

    Where each has one configuration, these are compared, whatever they are called; of self-tests
    the versions of a library, whose differences are noted.

    Raises:
        Refused: If facts that must agree differ, and `force` is not given.
        UsageError: If they have no task and configuration in common.
    """
    aligned = side_by_side(first, second)
    first, second = aligned.first, aligned.second
    forced = require_agreement(first.manifest, second.manifest, force=force)
    twins = {*first.manifest.twins, *second.manifest.twins}
    ours, names = _keyed(first, metric), _counterparts(first, second, twins)
    theirs = {
        (key[0], names.get(key[1], key[1]), *key[2:]): each
        for key, each in _keyed(second, metric).items()
    }
    common = [key for key in ours if key in theirs and key[1] not in twins]
    keys = [k for k in common if not (_is_first_only(ours[k]) and _is_first_only(theirs[k]))]
    first_only = [k for k in common if k not in keys and not k[3]]
    floors = larger_floors(
        noise_floors(ours.values(), first.manifest), noise_floors(theirs.values(), second.manifest)
    )
    rows = [
        _counted(ours[key], theirs[key], floors.get(key[0]), margin_ratio)
        if is_counted(ours[key], first.manifest) and is_counted(theirs[key], second.manifest)
        else _unpaired(ours[key], theirs[key], margin_ratio)
        for key in keys
    ]
    rows = only_like_wholes(rows, ours=parts_of(first), theirs=parts_of(second))
    counted = all(row.order == "exact counts" for row in rows)
    rows += _published_pairs(first, second, margin_ratio, names)
    if not rows:
        raise _nothing_common(first, second, names)
    return Comparisons(
        baseline=first.name,
        rows=_with_holm(rows),
        aa={},
        margin_ratio=margin_ratio,
        forced=forced,
        first_only=tuple((key[0], theirs[key].configuration) for key in first_only),
        notes=aligned.differences if counted else (*aligned.differences, _DRIFT),
    )


def _is_first_only(series: Series) -> bool:
    """Tell whether a series is one first run, and none that failed."""
    return not series.values.size and not series.failed and series.first is not None


def _counterparts(first: Dataset, second: Dataset, twins: set[str]) -> dict[str, str]:
    """Return what the second dataset's only configuration is called in the first, if it has one."""
    ours = [name for name in first.configurations if name not in twins]
    theirs = [name for name in second.configurations if name not in twins]
    return {theirs[0]: ours[0]} if len(ours) == len(theirs) == 1 else {}


def _nothing_common(first: Dataset, second: Dataset, names: Mapping[str, str]) -> UsageError:
    if set(first.tasks) & set(second.tasks):
        ours, theirs = first.configurations, second.configurations
        units = [_units(dataset) for dataset in (first, second)]
        if (names or set(ours) & set(theirs)) and not set.intersection(*map(set, units)):
            return UsageError(
                "the captures have no figure of one task in the same unit",
                hint=f"Units: {' against '.join(map(', '.join, units))}",
            )
        return UsageError(
            "no task has a figure under the same configuration in both captures",
            hint=f"Configurations: {', '.join(ours)} against {', '.join(theirs)}",
        )
    return UsageError(
        "the captures have no task in common",
        hint=f"Tasks: {', '.join(first.tasks)} against {', '.join(second.tasks)}",
    )


def _units(dataset: Dataset) -> list[str]:
    found = (_as_duration(row).unit for row in summaries(dataset) if row.typical is not None)
    return list(dict.fromkeys(found))


def _keyed(dataset: Dataset, metric: str | None) -> dict[_Key, Series]:
    """Return every series of a dataset, whole tasks first, then their child events."""
    series = list(series_of(dataset, metric=metric))
    if metric is None:
        series += event_series_of(dataset)
    return {(s.task, s.configuration, s.layer, s.event): s for s in series}


def _baseline(dataset: Dataset, asked: str | None) -> str:
    names = dataset.configurations
    name = asked or dataset.manifest.baseline or (names[0] if names else None)
    if name is None or name not in names:
        raise UsageError(
            f"there is no configuration {name!r}" if name else "there is nothing in it",
            source=dataset.name,
            hint=f"Configurations here: {', '.join(names)}" if names else None,
        )
    return name


def _twin_checks(
    dataset: Dataset, series: dict[_Key, Series], margin_ratio: float
) -> dict[str, AACheck]:
    """Return the A/A check of each task, whichever configuration others are compared with."""
    twin, baseline = dataset.manifest.twin, dataset.manifest.baseline
    if twin is None or not dataset.manifest.paired:
        return {}
    pairs = {
        task: (base, series[task, twin, layer, event])
        for (task, name, layer, event), base in series.items()
        if name == baseline and not event and (task, twin, layer, event) in series
    }
    return {
        task: check_aa(
            base.values,
            other.values,
            blocks=base.blocks,
            other_blocks=other.blocks,
            margin_ratio=margin_ratio,
            family=len(pairs),
        )
        for task, (base, other) in pairs.items()
        if _obstacle(base, other, paired=True) is None
    }


def _paired(
    base: Series, other: Series, aa: AACheck | None, margin_ratio: float, *, has_twin: bool
) -> Comparison:
    if reason := _obstacle(base, other, paired=True):
        return _not_comparable(base, other, margin_ratio, "paired blocks", reason)
    found = compare_paired(
        base.values,
        other.values,
        blocks=base.blocks,
        other_blocks=other.blocks,
        margin_ratio=margin_ratio,
        # Counts are exact; of times the step is looked for where half the pairs tie.
        resolution=0.0 if base.unit == "1" else None,
        aa=aa,
    )
    notes = [str(note) for note in found.notes]
    if has_twin and aa is None:
        notes.append("no run of the A/A arm can be used: nothing vouches for this machine")
    return Comparison(
        **_names(base, other, margin_ratio),
        ratio=found.ratio,
        low=found.interval.low if found.interval else None,
        high=found.interval.high if found.interval else None,
        n=found.n,
        effective_n=found.effective_n,
        p=found.sign_p,
        p_holm=None,
        p_check=found.wilcoxon_p,
        verdict=found.verdict,
        runs_needed=found.runs_needed,
        order="paired blocks",
        aa=aa,
        notes=tuple(notes),
    )


def _counted(
    base: Series, other: Series, noise_ratio: float | None, margin_ratio: float
) -> Comparison:
    """Compare steady counts; without an A/A guest nobody knows how well the ratio is known."""
    if reason := _obstacle(base, other):
        return _not_comparable(base, other, margin_ratio, "exact counts", reason)
    before, after = steady(base.values), steady(other.values)
    interval = None if noise_ratio is None else within_floor(after / before, noise_ratio)
    names = _names(base, other, margin_ratio) | {"baseline_value": before, "value": after}
    return Comparison(
        **names,
        ratio=after / before,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        n=min(base.values.size, other.values.size),
        effective_n=None,
        p=None,
        p_holm=None,
        p_check=None,
        verdict=decide(interval, margin_ratio=margin_ratio),
        runs_needed=None,
        order="exact counts",
        noise_ratio=noise_ratio,
        notes=() if interval else ("no A/A guest: the noise floor is measured, not assumed",),
    )


def _unpaired(base: Series, other: Series, margin_ratio: float) -> Comparison:
    if reason := _obstacle(base, other):
        return _not_comparable(base, other, margin_ratio, "order unknown", reason)
    found = compare_unpaired(base.values, other.values, margin_ratio=margin_ratio)
    return Comparison(
        **_names(base, other, margin_ratio),
        ratio=found.ratio,
        low=found.interval.low if found.interval else None,
        high=found.interval.high if found.interval else None,
        n=min(found.n_baseline, found.n_other),
        effective_n=None,
        p=found.brunner_munzel_p,
        p_holm=None,
        p_check=None,
        verdict=found.verdict,
        runs_needed=None,
        order="order unknown",
        notes=tuple(str(note) for note in found.notes),
    )


def _names(base: Series, other: Series, margin_ratio: float) -> dict[str, Any]:
    return {
        "task": other.task,
        "configuration": other.configuration,
        "baseline": base.configuration,
        "metric": other.metric,
        "unit": other.unit,
        "layer": other.layer,
        "event": other.event,
        "baseline_value": float(np.median(base.values)) if base.values.size else math.nan,
        "value": float(np.median(other.values)) if other.values.size else math.nan,
        "margin_ratio": margin_ratio,
    }


def _not_comparable(
    base: Series, other: Series, margin_ratio: float, order: Order, reason: str
) -> Comparison:
    return Comparison(
        **_names(base, other, margin_ratio),
        ratio=math.nan,
        low=None,
        high=None,
        n=0,
        effective_n=None,
        p=None,
        p_holm=None,
        p_check=None,
        verdict=Verdict.NOT_COMPARABLE,
        runs_needed=None,
        order=order,
        notes=(reason,),
    )


def _obstacle(base: Series, other: Series, *, paired: bool = False) -> str | None:
    """Return why two series have no ratio, or None if they have one."""
    if (base.metric, base.unit) != (other.metric, other.unit):
        return f"{base.metric} in {base.unit} against {other.metric} in {other.unit}"
    for series in (base, other):
        if not series.values.size:
            return f"no counted run of {series.configuration} succeeded"
        if series.values.min() <= 0:
            return f"{series.metric} is not above zero in every run: there is no ratio"
    if paired and not np.isin(base.blocks, other.blocks).any():
        return "no block holds a good run of both"
    return None


def _published(dataset: Dataset, baseline: str, margin_ratio: float) -> list[Comparison]:
    rows = [row for row in published_summaries(dataset) if _is_published(row)]
    base = {_key(row): row for row in rows if row.configuration == baseline}
    return [
        _by_value(base[_key(row)], row, margin_ratio)
        for row in rows
        if row.configuration != baseline and _key(row) in base
    ]


def _published_pairs(
    first: Dataset, second: Dataset, margin_ratio: float, names: Mapping[str, str]
) -> list[Comparison]:
    ours = {
        (*_key(row), row.configuration): row
        for row in map(_as_duration, summaries(first))
        if row.typical is not None
    }
    rows = []
    for row in map(_as_duration, summaries(second)):
        base = ours.get((*_key(row), names.get(row.configuration, row.configuration)))
        if base is not None and (_is_published(row) or _is_published(base)):
            rows.append(_by_value(base, row, margin_ratio))
    return rows


def _as_duration(row: TaskSummary) -> TaskSummary:
    """Return a time in ns under one name, so that runs stand beside a table in ms or s."""
    factor = _NS_PER.get(row.unit)
    if factor is None or row.metric not in ("duration", "wall_ns", "op_ns"):
        return row
    scaled: dict[str, Any] = {
        name: None if value is None else value * factor
        for name in ("first", "min", "mean", "median", "p95", "p99", "max", "sd")
        for value in [getattr(row, name)]
    }
    return replace(row, metric="duration", unit="ns", **scaled)


def _is_published(row: TaskSummary) -> bool:
    return row.published and row.metric == "duration" and row.typical is not None


def _key(row: TaskSummary) -> tuple[str, ...]:
    return (row.task, row.metric, row.unit, row.layer, row.event, row.labels)


def _by_value(base: TaskSummary, other: TaskSummary, margin_ratio: float) -> Comparison:
    before, after = float(base.typical or 0.0), float(other.typical or 0.0)
    return Comparison(
        task=other.task,
        configuration=other.configuration,
        baseline=base.configuration,
        metric=other.metric,
        unit=other.unit,
        layer=other.layer,
        event=other.event,
        baseline_value=before,
        value=after,
        ratio=after / before if before > 0 else math.nan,
        low=None,
        high=None,
        n=1,
        effective_n=None,
        p=None,
        p_holm=None,
        p_check=None,
        verdict=Verdict.INCONCLUSIVE,
        runs_needed=None,
        margin_ratio=margin_ratio,
        order="published values",
        notes=("a published value: no interval can be given",),
    )


def _with_holm(rows: Sequence[Comparison]) -> list[Comparison]:
    """Adjust p over all rows; a difference that does not survive becomes inconclusive.

    What is inconclusive for want of runs says how many it takes at least.
    """
    return _with_runs_needed(_holm_adjusted(rows))


def _with_runs_needed(rows: Sequence[Comparison]) -> list[Comparison]:
    tested = sum(row.order in _TESTED and not math.isnan(row.ratio) for row in rows)
    pairs, runs = pairs_for_interval(), runs_for_difference(family=max(1, tested))
    together = pairs_for_interval(family=max(1, tested))
    result = []
    for row in rows:
        found = row
        why = "an interval" if row.n < pairs else f"a difference among {tested} comparisons"
        if row.verdict is not Verdict.INCONCLUSIVE:
            pass
        elif row.order == "order unknown" and row.n < runs:
            text = (
                f"{counted(row.n, 'run is', 'runs are')} too few for {why} at 95 %: it "
                f"takes at least {runs} of each"
            )
            found = replace(row, runs_needed=runs - row.n, too_few=text)
        elif row.order == "paired blocks" and row.n < pairs:
            text = (
                f"{counted(row.n, 'pair is', 'pairs are')} too few for {why} at 95 %: it "
                f"takes at least {pairs}"
            )
            found = replace(row, too_few=text)
        elif row.order == "paired blocks" and row.n < together and _lost_to_holm(row):
            text = (
                f"{counted(row.n, 'pair is', 'pairs are')} too few for {why} at 95 %: it "
                f"takes at least {together}"
            )
            found = replace(row, too_few=text)
        result.append(found)
    return result


def _lost_to_holm(row: Comparison) -> bool:
    return any(note.startswith(_NOT_SURVIVED) for note in row.notes)


def _holm_adjusted(rows: Sequence[Comparison]) -> list[Comparison]:
    tested = [row.p for row in rows if row.p is not None]
    adjusted = iter(holm(tested).tolist())
    result = []
    for row in rows:
        if row.p is None:
            result.append(row)
            continue
        p_holm = next(adjusted)
        lost = row.verdict in (Verdict.COSTS, Verdict.SAVES) and p_holm > ALPHA
        notes = (*row.notes, f"{_NOT_SURVIVED} over {counted(len(tested), 'comparison')}")
        result.append(
            replace(row, p_holm=p_holm, verdict=Verdict.INCONCLUSIVE, notes=notes)
            if lost
            else replace(row, p_holm=p_holm)
        )
    return result
