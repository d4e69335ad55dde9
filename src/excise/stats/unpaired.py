"""Compare samples that were not measured in blocks: imported data whose order is unknown.

Nothing here can tell drift between the two samples from a difference between the arms; every result
says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit

from excise.stats._arrays import FloatArray, as_positive, check_at_least, check_confidence
from excise.stats.bootstrap import bootstrap_interval, check_resamples, median_replicates
from excise.stats.compare import Note, Verdict, decide
from excise.stats.interval import Interval, pairs_for_interval
from excise.stats.quantisation import find_quantisation


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpairedComparison:
    """Two independent samples compared; the order of measurement is not known.

    Attributes:
        n_baseline: Number of baseline values.
        n_other: Number of values of the other sample.
        ratio: Median of the other over median of the baseline, without unit.
        interval: Bootstrap interval of the ratio; None when a sample is too small for one.
        probability_greater: P(other > baseline) + P(equal) / 2: 0.5 when neither tends to be more.
        probability_interval: Interval of that probability; None when a sample is too small.
        brunner_munzel_p: Two-sided p-value of probability 0.5; None when a sample is too small.
        cliffs_delta: P(other > baseline) - P(other < baseline), -1 to 1.
        confidence: Confidence of the intervals.
        margin_ratio: Margin of equivalence.
        resolution_ratio: Resolution of the values over the baseline's median; 0 when exact.
        verdict: The answer in words: interval of the ratio and test must agree on a difference.
        order: Always `unknown`.
        notes: What else the reader should know; the unknown order is always among it.
    """

    n_baseline: int
    n_other: int
    ratio: float
    interval: Interval | None
    probability_greater: float
    probability_interval: Interval | None
    brunner_munzel_p: float | None
    cliffs_delta: float
    confidence: float
    margin_ratio: float
    resolution_ratio: float
    verdict: Verdict
    order: Literal["unknown"]
    notes: tuple[Note, ...]

    @property
    def change_percent(self) -> float:
        """Change against the baseline in per cent of the baseline."""
        return (self.ratio - 1) * 100


def compare_unpaired(
    baseline: ArrayLike,
    other: ArrayLike,
    *,
    seed: int = 0,
    resamples: int = 5000,
    margin_ratio: float = 0.01,
    confidence: float = 0.95,
    family: int = 1,
    resolution: float | None = None,
) -> UnpairedComparison:
    """Compare two samples by Brunner-Munzel, Cliff's delta and the ratio of medians.

    Args:
        baseline: Values of the baseline, positive, any unit, shape (n,).
        other: Values of the other sample in the same unit, shape (m,).
        seed: Seed of the bootstrap of the ratio.
        resamples: Number of resamples, 200 or more.
        margin_ratio: Margin of equivalence.
        confidence: Confidence of the intervals, for the family together.
        family: Number of comparisons that shall hold together.
        resolution: Step of the values, in their unit; the interval of the ratio is widened by it. 0
            for exact values. None: looked for when fewer than half of the values are distinct.

    Raises:
        UsageError: A value is not positive or not finite, or a parameter is out of range.

    Source: E. Brunner and U. Munzel, Biometrical Journal 42 (2000); N. Cliff, Psychological
    Bulletin 114 (1993). Samples that do not overlap have no variance to test with: then
    min(n, m) independent pairs all agree, which bounds the probability exactly. No p-value is below
    that of the most extreme of all ways to part the values, 2 / C(n + m, n): with little variance
    Student's t would give smaller ones, and samples that do not overlap have just this one. Source:
    K. Neubert and E. Brunner, Computational Statistics & Data Analysis 51 (2007).
    """
    each = check_confidence(confidence, family=family)
    check_resamples(resamples)
    check_at_least(margin_ratio, minimum=0, name="margin_ratio")
    a = np.sort(as_positive(baseline, name="baseline values"))
    b = np.sort(as_positive(other, name="other values"))
    ratio = float(np.median(b) / np.median(a))
    greater, probability, p_value = _brunner_munzel(a, b, confidence=each)
    enough = min(a.size, b.size) >= pairs_for_interval(confidence=each)
    step_ratio = _resolution_ratio(a, b, resolution=resolution)
    interval = None
    if enough:
        rng = np.random.default_rng(seed)
        below = median_replicates(a, resamples=resamples, rng=rng)
        above = median_replicates(b, resamples=resamples, rng=rng)
        bare = bootstrap_interval(above / below, estimate=ratio, confidence=each)
        interval = replace(bare, low=bare.low / (1 + step_ratio), high=bare.high * (1 + step_ratio))
    verdict = decide(interval, margin_ratio=margin_ratio)
    differs = p_value is not None and p_value <= 1 - each
    if verdict in (Verdict.COSTS, Verdict.SAVES) and not differs:
        verdict = Verdict.INCONCLUSIVE
    found = {
        Note.TOO_FEW_PAIRS: not enough,
        Note.UNKNOWN_ORDER: True,
        Note.SEPARATED: greater in (0.0, 1.0),
    }
    return UnpairedComparison(
        n_baseline=a.size,
        n_other=b.size,
        ratio=ratio,
        interval=interval,
        probability_greater=greater,
        probability_interval=probability if enough else None,
        brunner_munzel_p=p_value if enough else None,
        cliffs_delta=2 * greater - 1,
        confidence=confidence,
        margin_ratio=margin_ratio,
        resolution_ratio=step_ratio,
        verdict=verdict,
        order="unknown",
        notes=tuple(note for note, applies in found.items() if applies),
    )


def runs_for_difference(*, confidence: float = 0.95, family: int = 1) -> int:
    """Return how many values of each sample it takes at least to state a difference.

    So many have an interval of this confidence, and samples that do not overlap a p-value that is
    small enough: 2 / C(2n, n), which Holm multiplies by the family in its first step. Samples that
    overlap take more.

    Args:
        confidence: Confidence of one interval, and of all tests together.
        family: Number of comparisons that are tested together.

    Raises:
        UsageError: Confidence or family out of range.

    Examples:
        >>> runs_for_difference(), runs_for_difference(family=60)
        (6, 7)
    """
    check_confidence(confidence, family=family)
    alpha = 1 - confidence
    n = pairs_for_interval(confidence=confidence)
    while _smallest_p(n, n) * family > alpha:
        n += 1
    return n


def _resolution_ratio(a: FloatArray, b: FloatArray, *, resolution: float | None) -> float:
    """Return the step of the values over the median of the baseline, 0 when there is none."""
    if resolution is None:
        found = find_quantisation(np.concatenate((a, b)))
        resolution = 0.0
        if found.distinct_ratio < 0.5:
            resolution = found.step or found.printed_step or 0.0
    check_at_least(resolution, minimum=0, name="resolution")
    return float(resolution / np.median(a))


def _mid_ranks(ordered: FloatArray, within: FloatArray) -> FloatArray:
    """Return for each value how many of sorted `within` are below, ties counted half."""
    below = np.searchsorted(within, ordered, side="left")
    not_above = np.searchsorted(within, ordered, side="right")
    return (below + not_above) / 2


def _brunner_munzel(
    a: FloatArray, b: FloatArray, *, confidence: float
) -> tuple[float, Interval | None, float | None]:
    """Return P(b > a) + P(b = a) / 2 of sorted samples, its interval, and the p-value of 0.5."""
    placed_a, placed_b = _mid_ranks(a, b) / b.size, _mid_ranks(b, a) / a.size
    estimate = float(placed_b.mean())
    if min(a.size, b.size) < 2:
        return estimate, None, None
    part_a = float(placed_a.var(ddof=1)) / a.size
    part_b = float(placed_b.var(ddof=1)) / b.size
    variance = part_a + part_b
    if variance <= 0:
        return _separated(estimate, a.size, b.size, confidence=confidence)
    freedom = variance**2 / (part_a**2 / (a.size - 1) + part_b**2 / (b.size - 1))
    error = math.sqrt(variance)
    p_value = 2 * float(stdtr(freedom, -abs(estimate - 0.5) / error))
    p_value = max(p_value, _smallest_p(a.size, b.size))
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * error
    interval = Interval(
        low=max(0.0, estimate - reach),
        high=min(1.0, estimate + reach),
        confidence=confidence,
        coverage=confidence,
    )
    return estimate, interval, p_value


def _smallest_p(n: int, m: int) -> float:
    """Return the p-value of samples that do not overlap, by permutation: 2 / C(n + m, n)."""
    return 2 / math.comb(n + m, n)


def _separated(
    estimate: float, n: int, m: int, *, confidence: float
) -> tuple[float, Interval, float]:
    """Return what is known when no variance is left: all pairs agree, or all tie."""
    tail = ((1 - confidence) / 2) ** (1 / min(n, m))
    if estimate == 1.0:
        low, high, p_value = tail, 1.0, _smallest_p(n, m)
    elif estimate == 0.0:
        low, high, p_value = 0.0, 1 - tail, _smallest_p(n, m)
    else:
        low, high, p_value = tail / 2, 1 - tail / 2, 1.0
    interval = Interval(low=low, high=high, confidence=confidence, coverage=confidence)
    return estimate, interval, min(1.0, p_value)
