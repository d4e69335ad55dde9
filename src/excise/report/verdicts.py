"""The verdict over all comparisons: the line that comes first, and `--brief`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from excise.cost.attribution import Attribution
from excise.cost.compared import Comparison, Comparisons
from excise.cost.gate import GateResult
from excise.report import tables
from excise.report.model import Brief
from excise.stats import Verdict
from excise.units import counted, format_ratio_beside


def headline(found: Comparisons) -> str:
    """Return how many comparisons cost, save, are equal and are open, as one sentence."""
    return (
        f"{counted(len(found.rows), 'comparison')} with {found.baseline}: "
        f"{_verdicts(found.rows, margin_ratio=found.margin_ratio)}."
    )


def comparison_brief(found: Comparisons, *, title: str) -> Brief:
    """Return each comparison in a line: change, interval, verdict, number of values."""
    return Brief(
        head=f"{title}: {headline(found).removesuffix('.')}",
        lines=[
            [
                *_words(row),
                tables.short_verdict(row),
                f"n={row.n}",
                *([row.obstacle] if row.obstacle else []),
            ]
            for row in found.rows
        ],
    )


def attribution_brief(found: Sequence[Attribution], *, title: str) -> Brief:
    """Return what is explained of each total, in a line each."""
    return Brief(
        head=f"{title}: {counted(len(found), 'total')} explained",
        lines=[
            [
                each.task,
                each.configuration,
                f"{each.explained:.1%}",
                f"of {tables.shown(each.total, each.unit)}",
                f"n={each.n}",
                *([counted(len(each.flags), "remark")] if each.flags else []),
            ]
            for each in found
        ],
    )


def gate_sentence(found: GateResult) -> str:
    """Return what the gate says, as one sentence."""
    limit = tables.per_cent(found.max_regression_ratio)
    words = f"{counted(found.compared, 'comparison')} with a limit of {limit}"
    if found.passed:
        return f"Passes: {words}, none fails"
    return f"Does not pass: {words}, {len(found.failures)} failed"


def gate_brief(found: GateResult, *, failures_only: bool = False) -> Brief:
    """Return each judged comparison in a line, those that fail first.

    Args:
        found: What the gate decided.
        failures_only: Whether to leave out what passes.
    """
    ordered = sorted(found.judged, key=lambda each: not each.reason)
    if failures_only:
        ordered = [each for each in ordered if each.reason]
    lines = [
        [
            "FAIL" if each.reason else "open" if each.is_open else "ok",
            *_words(each.row),
            each.reason,
        ]
        for each in ordered
    ]
    lines += [["FAIL", line] for line in found.unjudged]
    if not failures_only:
        lines += [
            ["-", f"{t} under {arm}: ran once, a first run: not judged"] for t, arm in found.once
        ]
        lines += [
            ["-", f"{t} under {arm}: not in the baseline: not judged"] for t, arm in found.added
        ]
        lines += [["-", line] for line in found.differences]
    return Brief(head=gate_sentence(found), lines=lines)


def _words(row: Comparison) -> list[str]:
    change = "no ratio"
    if not math.isnan(row.ratio):
        change = format_ratio_beside(row.ratio, row.low, row.high)
    interval = tables.interval_text(row.low, row.high)
    return [row.name, row.configuration, change, interval]


def _verdicts(rows: Sequence[Comparison], *, margin_ratio: float) -> str:
    if all(row.order == "published values" for row in rows):
        return "published values, which have no interval and no verdict"
    seen = Counter(row.verdict for row in rows)
    words = {
        Verdict.COSTS: "cost",
        Verdict.SAVES: "save",
        Verdict.EQUIVALENT: f"equivalent within {tables.per_cent(margin_ratio)}",
        Verdict.INCONCLUSIVE: "inconclusive",
        Verdict.NOT_COMPARABLE: "not comparable",
    }
    return ", ".join(
        f"{seen[verdict]:,} {word}" for verdict, word in words.items() if seen[verdict]
    )
