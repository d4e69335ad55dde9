"""Bootstrap tools: percentile and BCa intervals, and the exact bootstrap of a median."""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from excise.errors import UsageError
from excise.stats._arrays import FloatArray, check_confidence
from excise.stats.interval import Interval

Method = Literal["percentile", "bca"]
MIN_RESAMPLES = 200
"""Fewer resamples than this give no usable 95 % ends."""


def check_resamples(resamples: int) -> None:
    """Refuse too few resamples.

    Raises:
        UsageError: Below 200.
    """
    if resamples < MIN_RESAMPLES:
        raise UsageError(f"{resamples} resamples are too few", hint=f"Give {MIN_RESAMPLES} or more")


def bootstrap_interval(
    replicates: FloatArray,
    *,
    estimate: float,
    jackknife: FloatArray | None = None,
    method: Method = "percentile",
    confidence: float = 0.95,
) -> Interval:
    """Return the interval between two percentiles of the bootstrap replicates.

    Args:
        replicates: Statistic of each resample, any unit, shape (r,).
        estimate: Statistic of the sample itself; used by BCa.
        jackknife: Statistic without each unit in turn, for the acceleration of BCa, shape (n,).
        method: `percentile`, or `bca` (bias corrected and accelerated).
        confidence: Confidence of the interval.

    Raises:
        UsageError: Unknown method, BCa without a jackknife, or confidence out of range.

    Source: B. Efron, Better Bootstrap Confidence Intervals, JASA 82 (1987).
    """
    level = check_confidence(confidence)
    tails = np.array([(1 - level) / 2, (1 + level) / 2])
    if method == "bca":
        if jackknife is None:
            raise UsageError("BCa needs jackknife values")
        tails = _bca_levels(tails, replicates, estimate=estimate, jackknife=jackknife)
    elif method != "percentile":
        raise UsageError(f"unknown bootstrap method {method!r}", hint="Use percentile or bca")
    low, high = (float(q) for q in np.quantile(replicates, tails))
    return Interval(low=low, high=high, confidence=confidence, coverage=confidence)


def _bca_levels(
    tails: FloatArray, replicates: FloatArray, *, estimate: float, jackknife: FloatArray
) -> FloatArray:
    """Return the percentiles that BCa takes in place of the plain ones."""
    below = (replicates < estimate).mean() + (replicates == estimate).mean() / 2
    edge = 1 / (2 * replicates.size)
    bias = ndtri(np.clip(below, edge, 1 - edge))
    deviation = jackknife.mean() - jackknife
    squares = float((deviation**2).sum())
    acceleration = float((deviation**3).sum()) / (6 * squares**1.5) if squares > 0 else 0.0
    shifted = bias + ndtri(tails)
    return np.asarray(ndtr(bias + shifted / (1 - acceleration * shifted)), dtype=np.float64)


def median_replicates(
    ordered: FloatArray, *, resamples: int, rng: np.random.Generator
) -> FloatArray:
    """Return medians of bootstrap resamples of sorted values, without drawing the resamples.

    The k-th smallest of n uniform draws is Beta(k, n - k + 1); the draw at level u picks the value
    of rank floor(u n). So one Beta draw (and one more for even n, for the upper of the two
    middle draws given the lower) gives a median with exactly the bootstrap's distribution, in time
    that does not grow with n.

    Args:
        ordered: Values in ascending order, shape (n,).
        resamples: Number of medians.
        rng: Source of randomness.

    Source: order statistics of uniform draws, as in David and Nagaraja, Order Statistics.
    """
    n = ordered.size
    k = (n + 1) // 2
    lower = rng.beta(k, n - k + 1, size=resamples)
    at_lower = ordered[np.minimum((lower * n).astype(np.int64), n - 1)]
    if n % 2:
        return at_lower
    upper = 1 - (1 - lower) * rng.random(resamples) ** (1 / (n - k))
    at_upper = ordered[np.minimum((upper * n).astype(np.int64), n - 1)]
    return np.asarray((at_lower + at_upper) / 2, dtype=np.float64)
