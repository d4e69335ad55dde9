"""The gate: does any task cost more than is allowed?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from excise.cost.compared import Comparison, Comparisons
from excise.cost.comparison import compare_configurations, compare_datasets
from excise.cost.versions import side_by_side
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.stats import Verdict
from excise.units import counted, format_ratio, format_ratio_beside, format_ratio_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One comparison as the gate judged it.

    Attributes:
        row: The comparison.
        reason: Why it fails; "" where it passes.
        is_open: It passes, and its interval reaches above the limit.
    """

    row: Comparison
    reason: str
    is_open: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What a gate decided.

    Attributes:
        compared: Comparisons that were judged.
        failures: One line for each that failed.
        lines: One line for each comparison.
        judged: Each comparison with its judgement.
        unjudged: One line for each failure that is no comparison: what should have been measured.
        once: Tasks and configurations that ran once, a first run, which is not judged.
        added: Tasks and configurations that the other capture has nothing of.
        differences: What differs of the libraries whose self-tests are judged, one line each.
    """

    compared: int
    failures: tuple[str, ...]
    lines: tuple[str, ...]
    max_regression_ratio: float
    judged: tuple[Judged, ...] = ()
    unjudged: tuple[str, ...] = ()
    once: tuple[tuple[str, str], ...] = ()
    added: tuple[tuple[str, str], ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Tell whether nothing failed; with nothing compared, nothing passed."""
        return self.compared > 0 and not self.failures

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for `--json`."""
        return {
            "passed": self.passed,
            "compared": self.compared,
            "max_regression_ratio": self.max_regression_ratio,
            "failures": list(self.failures),
            "lines": list(self.lines),
            "differences": list(self.differences),
        }


def judge(
    dataset: Dataset,
    *,
    baseline: str,
    max_regression_ratio: float,
    other: Dataset | None = None,
    metric: str | None = None,
    strict: bool = False,
    force: bool = False,
) -> GateResult:
    """Judge every comparison of a dataset with its baseline.

    Args:
        dataset: What is to be let through.
        baseline: A configuration of `dataset`; unused when `other` is given.
        max_regression_ratio: Largest cost that passes: 0.02 is 2 %.
        other: The capture to compare with, in place of a configuration.
        metric: Metric of the runs; a task's own by default.
        strict: Whether an interval that reaches above the limit fails too.
        force: Whether to compare captures made under different conditions.

    Whole tasks are judged, not the child events in them.

    Raises:
        Refused: If the captures may not be compared.
        UsageError: If there is nothing to compare, or the largest cost is below zero.
    """
    if max_regression_ratio < 0:
        raise UsageError(
            f"the largest cost that passes is {100 * max_regression_ratio:g}%, below zero",
            hint="Name a cost: 0% lets nothing through that is surely dearer",
        )
    differences: tuple[str, ...] = ()
    if other is None:
        found = compare_configurations(
            dataset, baseline=baseline, metric=metric, margin_ratio=max_regression_ratio
        )
    else:
        aligned = side_by_side(other, dataset)
        other, dataset, differences = aligned.first, aligned.second, aligned.differences
        found = compare_datasets(
            other, dataset, metric=metric, margin_ratio=max_regression_ratio, force=force
        )
    limit = 1.0 + max_regression_ratio
    lines, failures, judged = [], [], []
    rows = [row for row in found.rows if not row.event]
    if not rows:
        raise UsageError("only child events can be compared here, no whole task")
    for row in rows:
        reason = _reason(row, limit, strict=strict)
        line = f"{row.task} under {row.configuration}: {_shown(row)}"
        is_open = not reason and row.high is not None and row.high > limit
        doubt = _doubt(limit) if is_open else ""
        judged.append(Judged(row=row, reason=reason or "", is_open=is_open))
        lines.append(f"{'FAIL' if reason else 'ok  '} {line}{doubt}")
        if reason:
            failures.append(f"{line}: {reason}")
    lines += [f"--   {t} under {c}: ran once, a first run: not judged" for t, c in found.first_only]
    added = _added(dataset, other, found, rows) if other is not None else ()
    lines += [f"--   {t} under {c}: not in the baseline: not judged" for t, c in added]
    missing = _missing(dataset, other, found, rows)
    for line in missing:
        lines.append(f"FAIL {line}")
        failures.append(line)
    return GateResult(
        compared=len(rows),
        failures=tuple(failures),
        lines=tuple(lines),
        max_regression_ratio=max_regression_ratio,
        judged=tuple(judged),
        unjudged=tuple(missing),
        once=found.first_only,
        added=added,
        differences=differences,
    )


def _added(
    dataset: Dataset, other: Dataset, found: Comparisons, rows: Sequence[Comparison]
) -> tuple[tuple[str, str], ...]:
    """Return what was measured and has no counterpart: a reader must know that nobody judged it."""
    twins = {*dataset.manifest.twins, *other.manifest.twins}
    judged = {*found.first_only, *((row.task, row.configuration) for row in rows)}
    return tuple((t, c) for t, c in _measured(dataset) if c not in twins and (t, c) not in judged)


def _measured(dataset: Dataset) -> list[tuple[str, str]]:
    """Return each task with each configuration that it has a value under."""
    pairs = pl.concat(
        table.select(pl.col("task", "configuration").cast(pl.String))
        for table in (dataset.runs, dataset.aggregates)
    )
    rows: list[tuple[str, str]] = pairs.unique(maintain_order=True).rows()
    return rows


def _missing(
    dataset: Dataset, other: Dataset | None, found: Comparisons, rows: Sequence[Comparison]
) -> list[str]:
    """Return what should have been judged and was not: silence about it would let it through."""
    lines = []
    if dataset.sessions and dataset.sessions[-1].state != "finished":
        lines.append("the campaign is not complete: run the same command again to go on")
    judged = {*found.first_only, *((row.task, row.configuration) for row in rows)}
    if other is not None:
        twins = {*dataset.manifest.twins, *other.manifest.twins}
        # An only configuration may have another name in the other capture.
        judged |= {(row.task, row.baseline) for row in rows}
        wanted = [(t, c) for t, c in _measured(other) if c not in twins]
    else:
        campaign = dataset.manifest.campaign
        tasks = [str(each["name"]) for each in campaign.get("tasks", ())]
        arms = [str(each["name"]) for each in campaign.get("configurations", ())]
        wanted = [(t, c) for t in tasks for c in arms if c != rows[0].baseline]
    lines += [f"{t} under {c}: not measured" for t, c in wanted if (t, c) not in judged]
    return lines


def _reason(row: Comparison, limit: float, *, strict: bool) -> str | None:
    """Return why a comparison fails; what cannot be judged fails, for it would always pass."""
    allowed = format_ratio(limit)
    if row.verdict is Verdict.NOT_COMPARABLE:
        return f"not comparable: {row.obstacle}"
    if math.isnan(row.ratio):
        return "there is no ratio"
    published = row.order == "published values"
    low, high = (row.ratio, row.ratio) if published else (row.low, row.high)
    if low is None or high is None:
        kind = "pair" if row.order == "paired blocks" else "run"
        few = f"{counted(row.n, f'{kind} is', f'{kind}s are')} too few to judge"
        return row.too_few or few
    if low > limit:
        return f"costs more than {allowed}"
    if strict and high > limit:
        return f"a cost above {allowed} cannot be ruled out"
    return None


def _doubt(limit: float) -> str:
    """Return what a comparison that passes leaves open."""
    return f"; more than {format_ratio(limit)} is not ruled out (--strict fails it)"


def _shown(row: Comparison) -> str:
    if math.isnan(row.ratio):
        return "no ratio"
    text = format_ratio_beside(row.ratio, row.low, row.high)
    if row.low is None or row.high is None:
        return f"{text} (no interval)"
    return f"{text} {format_ratio_interval(row.low, row.high)}"
