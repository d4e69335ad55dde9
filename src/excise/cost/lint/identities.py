"""Identities over the events of each run, within what the clocks' steps allow."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import polars as pl

from excise.cost.difference import difference_attributions
from excise.cost.lint.rules import Identity, Rules
from excise.cost.series import FloatArray
from excise.events.dataset import Dataset
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.units import NS_PER_US, counted

_RUN: Final = "run"
_INNER_TOTAL: Final = "host|total"  # what a client says of the run where its run was timed outside


def lint_dataset(dataset: Dataset, rules: Rules) -> Iterator[AppraisalResult]:
    """Yield what the events of each configuration keep: identities, and no part above its whole.

    Args:
        dataset: Runs with events, or tables whose differences parts explain.
        rules: Identities to check; those of which no run has the total are left out.
    """
    yield from _explained(dataset)
    if dataset.events.is_empty():
        return
    steps = _steps_ns(dataset)
    values = _values(dataset)
    for configuration in dataset.configurations:
        mine = values.filter(pl.col("configuration") == configuration)
        if mine.is_empty():
            continue
        checks = [
            _check(rule, mine, steps)
            for rule in rules.identity
            if rule.total in mine.columns and _asked(rule, mine).get_column(rule.total).count()
        ]
        if nested := _covers(dataset, mine, steps):
            checks.append(nested)
        if checks:
            yield AppraisalResult(
                subject=f"events of {configuration}",
                checks=tuple(checks),
                facts={"runs": mine.height},
            )


def _explained(dataset: Dataset) -> Iterator[AppraisalResult]:
    """Yield whether parts explain more than there is of each published difference."""
    found = difference_attributions(dataset)
    step_ns = max((clock.resolution_ns or 0.0 for clock in dataset.manifest.clocks), default=0.0)
    over = [
        f"{each.task}, {each.configuration}: {each.explained:.1%}"
        for each in found
        # Each part and the total itself are differences of two figures with half a step of error.
        if (each.explained - 1.0) * abs(each.total) > len(each.parts) * step_ns
    ]
    if found:
        check = Check(
            id="lint.explained",
            outcome=Outcome.FAILED if over else Outcome.PASSED,
            expected="parts explain at most 100 % of each difference",
            got=f"{len(found) - len(over)} of {len(found)}",
            detail="; ".join(over),
        )
        yield AppraisalResult(subject="parts of differences", checks=(check,), facts={})


def _covers(dataset: Dataset, runs: pl.DataFrame, steps: dict[str, float]) -> Check | None:
    """Return whether every whole is at least as long as its parts together, run by run."""
    events = dataset.events.filter(pl.col("unit") == "ns").join(
        runs.select("sequence"), on="sequence"
    )
    parents = events.with_columns(
        parent=pl.col("parent").cast(pl.String).fill_null(_RUN),
        step=pl.col("layer").cast(pl.String).replace_strict(steps, default=steps.get("", 0.0)),
    )
    sums = parents.group_by("sequence", "parent").agg(
        pl.col("value").sum(), allowed=pl.col("step").sum()
    )
    fine, wrong = 0, []
    for parent in sums.get_column("parent").unique().sort().to_list():
        if parent not in runs.columns:
            continue
        both = sums.filter(pl.col("parent") == parent).join(
            runs.select("sequence", total=parent).drop_nulls(), on="sequence"
        )
        beyond = both.get_column("value") - both.get_column("total")
        allowed = both.get_column("allowed") + _step_ns(parent, steps)
        over = int((beyond > allowed).sum())
        if over:
            wrong.append(f"{parent} in {over} of {counted(both.height, 'run')}")
        elif both.height:
            fine += 1
    if not fine and not wrong:
        return None
    return Check(
        id="lint.covers",
        outcome=Outcome.FAILED if wrong else Outcome.PASSED,
        expected="no whole shorter than its parts together, within the clocks' steps",
        got=f"{fine} of {counted(fine + len(wrong), 'whole')}",
        detail="; ".join(wrong),
    )


def _values(dataset: Dataset) -> pl.DataFrame:
    """Return one row a run: task, configuration, total and the sum of each event, in ns."""
    name = pl.concat_str("layer", "event", separator="|", ignore_nulls=True)
    summed = (
        dataset.events.filter(pl.col("unit") == "ns")
        .with_columns(pl.col("layer", "event").cast(pl.String))
        .group_by("sequence", name=name)
        .agg(pl.col("value").sum())
    )
    wide = summed.pivot(on="name", index="sequence", values="value")
    runs = dataset.runs.select(
        "sequence",
        pl.col("task", "configuration").cast(pl.String),
        pl.col("wall_ns").cast(pl.Float64).alias(_RUN),
    )
    joined = runs.join(wide, on="sequence")
    if _INNER_TOTAL in joined.columns:
        joined = joined.with_columns(pl.coalesce(_INNER_TOTAL, _RUN).alias(_RUN))
    return joined


def _steps_ns(dataset: Dataset) -> dict[str, float]:
    """Return the step of the clock of each layer; a clock names its layer in parentheses."""
    found = {}
    for clock in dataset.manifest.clocks:
        layer = re.search(r"\(([a-z0-9_]+)\)", clock.name)
        found[layer[1] if layer else ""] = clock.resolution_ns or 0.0
    return found


def _step_ns(name: str, steps: dict[str, float]) -> float:
    layer = "host" if name == _RUN else name.partition("|")[0]
    return steps.get(layer, steps.get("", 0.0))


@dataclass(frozen=True, slots=True)
class _Difference:
    """Total less parts of every run that has them, and how far off it may be; all in ns."""

    difference_ns: FloatArray
    allowed_ns: FloatArray
    sequence: FloatArray

    def failing(self, relation: str) -> FloatArray:
        """Return by how much each run is beyond what is allowed; 0 or less: it is not."""
        off = np.abs(self.difference_ns) if relation == "equal" else -self.difference_ns
        return off - self.allowed_ns


def _check(rule: Identity, runs: pl.DataFrame, steps: dict[str, float]) -> Check:
    expected = _expected(rule)
    found = _difference(rule, runs, steps)
    if found is None or not found.sequence.size:
        return Check(
            id=f"lint.identity.{rule.id}",
            outcome=Outcome.NOT_COVERED,
            expected=expected,
            got="no run has all of these events",
            clause=rule.source,
        )
    beyond = found.failing(rule.relation)
    failed = int((beyond > 0).sum())
    worst = int(np.argmax(beyond))
    detail = rule.because
    if failed:
        detail = (
            f"The worst is run {found.sequence[worst]:.0f}: {_us(found.difference_ns[worst])} us "
            f"beside the parts, where {_us(found.allowed_ns[worst])} us are allowed."
        )
    return Check(
        id=f"lint.identity.{rule.id}",
        outcome=Outcome.FAILED if failed else Outcome.PASSED,
        expected=expected,
        got=f"{found.sequence.size - failed} of {counted(found.sequence.size, 'run')}; "
        f"{_range(rule, found)}",
        clause=rule.source,
        detail=detail,
    )


def _difference(rule: Identity, runs: pl.DataFrame, steps: dict[str, float]) -> _Difference | None:
    """Return total less parts for each run that has the total and every required part."""
    required = [rule.total, *rule.parts]
    runs = _asked(rule, runs)
    if any(name not in runs.columns for name in required):
        return None
    runs = runs.drop_nulls(required)
    optional = [name for name in rule.optional if name in runs.columns]
    total = runs.get_column(rule.total).to_numpy()
    parts = np.zeros_like(total)
    allowed = np.maximum(rule.tolerance_ratio * total, rule.floor_us * NS_PER_US)
    allowed += _step_ns(rule.total, steps)
    for name in [*rule.parts, *optional]:
        column = runs.get_column(name)
        parts = parts + column.fill_null(0.0).to_numpy()
        allowed = allowed + np.where(column.is_null().to_numpy(), 0.0, _step_ns(name, steps))
    sequence = runs.get_column("sequence").to_numpy().astype(np.float64)
    return _Difference(total - parts, allowed, sequence)


def _asked(rule: Identity, runs: pl.DataFrame) -> pl.DataFrame:
    return runs.filter(pl.col("task").is_in(rule.tasks)) if rule.tasks else runs


def _expected(rule: Identity) -> str:
    parts = [*rule.parts, *(f"[{name}]" for name in rule.optional)]
    sign = "=" if rule.relation == "equal" else "≥"
    floor = f" or {rule.floor_us:g} us" if rule.floor_us else ""
    tolerance = f"{rule.tolerance}{floor} and the clocks' steps"
    return f"{rule.total} {sign} {' + '.join(parts)}, within {tolerance}"


def _range(rule: Identity, found: _Difference) -> str:
    values = found.difference_ns
    return (
        f"{rule.remainder} {_us(float(np.median(values)))} us "
        f"({_us(float(values.min()))} to {_us(float(values.max()))})"
    )


def _us(value_ns: float) -> str:
    return f"{value_ns / 1e3:,.1f}".removesuffix(".0")
