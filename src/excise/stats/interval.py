"""Distribution-free intervals for quantiles: exact binomial ranks, nothing assumed of the shape."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import bdtr

from excise.stats._arrays import FloatArray, as_values, check_confidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided confidence interval, both ends included.

    Attributes:
        low: Lower end, in the unit of the estimate.
        high: Upper end, in the unit of the estimate.
        confidence: Confidence asked for, as a fraction.
        coverage: Confidence reached. By order statistics it is exact, and not below what was
            asked; for bootstrap and asymptotic intervals it repeats `confidence`.
    """

    low: float
    high: float
    confidence: float
    coverage: float

    @property
    def half_width(self) -> float:
        """Half the distance between the ends, in the unit of the estimate."""
        return (self.high - self.low) / 2

    def holds(self, value: float) -> bool:
        """Tell whether the value lies in the interval."""
        return self.low <= value <= self.high


def binomial_cdf(k: int, n: int, p: float) -> float:
    """Return P(X <= k) for X ~ Bin(n, p), exact, for every integer k."""
    if k < 0:
        return 0.0
    if k >= n:
        return 1.0
    return float(bdtr(k, n, p))


def _largest_rank_within(n: int, p: float, tail: float) -> int:
    """Return the largest rank r in 0..n with P(X <= r - 1) <= tail; 0 when there is none above."""
    low, high = 0, n
    while low < high:
        middle = (low + high + 1) // 2
        if binomial_cdf(middle - 1, n, p) <= tail:
            low = middle
        else:
            high = middle - 1
    return low


def quantile_ranks(
    n: int, *, quantile: float = 0.5, confidence: float = 0.95
) -> tuple[int, int] | None:
    """Return the ranks (from 1) of the order statistics that enclose a quantile, or None.

    The tails are equal: each holds at most (1 - confidence) / 2. For the median this is the
    inversion of the sign test.

    Args:
        n: Number of independent values.
        quantile: Probability of the quantile, 0 to 1 exclusive.
        confidence: Confidence of the interval.

    Returns:
        Lower and upper rank, or None when n is too small for any such interval.

    Source: W. J. Conover, Practical Nonparametric Statistics, quantile test and its interval.
    """
    tail = (1 - confidence) / 2
    lower = _largest_rank_within(n, quantile, tail)
    upper = n + 1 - _largest_rank_within(n, 1 - quantile, tail)
    if lower < 1 or upper > n:
        return None
    return lower, upper


def rank_coverage(lower: int, upper: int, n: int, *, quantile: float = 0.5) -> float:
    """Return the exact probability that order statistics `lower` to `upper` enclose a quantile."""
    return binomial_cdf(upper - 1, n, quantile) - binomial_cdf(lower - 1, n, quantile)


def quantile_interval(
    ordered: FloatArray,
    *,
    quantile: float = 0.5,
    confidence: float = 0.95,
    effective_n: float | None = None,
) -> Interval | None:
    """Return the order-statistic interval of a quantile, or None when n is too small.

    With `effective_n` below n the ranks are found for that many independent values and carried
    over to the n sorted ones at the same level r / (n + 1), rounded outwards: dependent values
    give the wider interval they deserve. That step is an approximation; without it the
    interval is exact.

    Args:
        ordered: Values in ascending order, any unit, shape (n,).
        quantile: Probability of the quantile.
        confidence: Confidence of the interval.
        effective_n: Number of independent values that these are worth; None for all.
    """
    n = ordered.size
    worth = n if effective_n is None else max(1, min(n, int(effective_n)))
    ranks = quantile_ranks(worth, quantile=quantile, confidence=confidence)
    if ranks is None:
        return None
    coverage = rank_coverage(*ranks, worth, quantile=quantile)
    lower, upper = ranks
    if worth < n:
        lower = max(1, int(np.floor(lower * (n + 1) / (worth + 1))))
        upper = min(n, int(np.ceil(upper * (n + 1) / (worth + 1))))
    return Interval(
        low=float(ordered[lower - 1]),
        high=float(ordered[upper - 1]),
        confidence=confidence,
        coverage=coverage,
    )


def median_interval(
    values: ArrayLike, *, confidence: float = 0.95, family: int = 1
) -> Interval | None:
    """Return the sign-test interval of the median, or None when n allows none.

    Args:
        values: Independent values in any unit, shape (n,).
        confidence: Confidence of the whole family.
        family: Number of intervals that shall hold together.

    Raises:
        UsageError: Values empty or not finite; confidence or family out of range.
    """
    each = check_confidence(confidence, family=family)
    return quantile_interval(np.sort(as_values(values)), confidence=each)


def sign_test_p(values: ArrayLike) -> float:
    """Return the two-sided sign-test p-value of median zero, ties counted against rejection.

    p = 2 P(X <= min(#(v <= 0), #(v >= 0))) with X ~ Bin(n, 1/2), at most 1. A value of exactly
    zero counts on both sides. So p is below alpha exactly when the interval of `median_interval`
    at 1 - alpha leaves zero out, also with ties.

    Raises:
        UsageError: Values empty or not finite.
    """
    array = as_values(values)
    fewer = min(int((array <= 0).sum()), int((array >= 0).sum()))
    return min(1.0, 2 * binomial_cdf(fewer, array.size, 0.5))


def pairs_for_interval(*, confidence: float = 0.95, family: int = 1) -> int:
    """Return the smallest number of pairs that has a sign-test interval of this confidence."""
    each = check_confidence(confidence, family=family)
    n = max(1, int(np.ceil(1 - np.log2(1 - each))) - 2)
    while quantile_ranks(n, confidence=each) is None:
        n += 1
    return n
