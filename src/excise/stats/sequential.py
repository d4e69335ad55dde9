"""When to stop measuring: fixed looks at an interval that shrinks, planned before the first run.

Looking after every block and stopping when it pleases makes any interval too narrow. Here the looks
are fixed in advance, the error is shared among them, and what is asked at each look is whether the
interval is narrow enough, never whether it leaves 1 out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from numpy.typing import ArrayLike

from excise.errors import UsageError
from excise.stats._arrays import check_at_least, check_confidence
from excise.stats.compare import PairedComparison, compare_paired
from excise.stats.interval import pairs_for_interval


class Decision(StrEnum):
    """What to do after a look."""

    STOP_REACHED = "stop: the interval is as narrow as asked"
    STOP_EXHAUSTED = "stop: the last look is done, and the interval is wider than asked"
    CONTINUE = "continue to the next look"


@dataclass(frozen=True, slots=True, kw_only=True)
class LookPlan:
    """The looks, fixed before the first run.

    Attributes:
        looks: Numbers of pairs at which to look, ascending.
        target_half_width_ratio: Half-width of the interval of the ratio at which to stop: 0.005
            for plus or minus 0.5 %.
        confidence: Confidence of the interval at whichever look it stops.
    """

    looks: tuple[int, ...]
    target_half_width_ratio: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One look and what follows from it.

    Attributes:
        decision: Stop or continue.
        number: Number of the look, from 1.
        next_pairs: Pairs at which to look next; None after stopping.
        half_width_ratio: Half-width of the interval in ln; None when there is no interval.
        comparison: The comparison at this look, with the confidence shared among all looks.
    """

    decision: Decision
    number: int
    next_pairs: int | None
    half_width_ratio: float | None
    comparison: PairedComparison


def plan_looks(
    *,
    first: int = 20,
    last: int = 320,
    factor: float = 2.0,
    target_half_width_ratio: float = 0.005,
    confidence: float = 0.95,
) -> LookPlan:
    """Plan looks at first, first * factor, ... up to last pairs.

    Args:
        first: Pairs at the first look; raised to the fewest that have an interval.
        last: Pairs at the last look.
        factor: Growth from look to look, above 1.
        target_half_width_ratio: Half-width of the interval at which to stop.
        confidence: Confidence of the interval at whichever look it stops.

    Raises:
        UsageError: A parameter is out of range, or `last` pairs have no interval.

    Source: Maricq et al., Taming Performance Variability (OSDI 2018), for stopping by width;
    Bonferroni over the looks for the error.
    """
    check_confidence(confidence)
    check_at_least(first, minimum=1, name="first")
    check_at_least(factor, minimum=1.05, name="factor")
    if not target_half_width_ratio > 0:
        raise UsageError(f"target_half_width_ratio is {target_half_width_ratio:g}, not above 0")
    count = 0
    looks: tuple[int, ...] = (last,)
    while len(looks) > count:
        count += 1
        fewest = pairs_for_interval(confidence=confidence, family=count)
        if last < fewest:
            raise UsageError(f"{last} pairs have no interval", hint=f"Plan {fewest} or more")
        looks = _spread(max(first, fewest), last, factor)
    return LookPlan(
        looks=looks, target_half_width_ratio=target_half_width_ratio, confidence=confidence
    )


def _spread(first: int, last: int, factor: float) -> tuple[int, ...]:
    """Return first, first * factor, ... and last, ascending without repeats."""
    looks, pairs = [], float(first)
    while pairs < last:
        looks.append(math.ceil(pairs))
        pairs = max(pairs * factor, pairs + 1)
    return tuple(sorted({*looks, last}))


def take_look(
    baseline: ArrayLike,
    other: ArrayLike,
    *,
    plan: LookPlan,
    margin_ratio: float = 0.01,
    resolution: float | None = None,
) -> Look:
    """Look at the pairs measured so far, whose number must be one of the plan.

    Args:
        baseline: Values of the baseline, one for each block, positive, shape (n,).
        other: Values of the other arm, shape (n,).
        plan: The looks, fixed before the first run.
        margin_ratio: Margin of equivalence.
        resolution: Step of the values, as in `compare_paired`.

    Raises:
        UsageError: The number of pairs is not a look of the plan, or as `compare_paired`.
    """
    comparison = compare_paired(
        baseline,
        other,
        margin_ratio=margin_ratio,
        confidence=plan.confidence,
        family=len(plan.looks),
        resolution=resolution,
    )
    if comparison.n not in plan.looks:
        raise UsageError(
            f"{comparison.n} pairs are not a planned look",
            hint=f"Looks are fixed at {', '.join(map(str, plan.looks))} pairs",
        )
    at = plan.looks.index(comparison.n)
    interval = comparison.interval
    width = None if interval is None else math.log(interval.high / interval.low) / 2
    if width is not None and width <= plan.target_half_width_ratio:
        decision = Decision.STOP_REACHED
    elif at + 1 == len(plan.looks):
        decision = Decision.STOP_EXHAUSTED
    else:
        decision = Decision.CONTINUE
    return Look(
        decision=decision,
        number=at + 1,
        next_pairs=plan.looks[at + 1] if decision is Decision.CONTINUE else None,
        half_width_ratio=width,
        comparison=comparison,
    )
