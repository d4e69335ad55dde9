"""Summary of one sample: location, spread, tails, and what n is worth."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from excise.stats._arrays import as_values, check_confidence
from excise.stats.autocorrelation import autocorrelation, time_from_autocorrelation
from excise.stats.interval import Interval, quantile_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One sample in figures; every quantity is in the unit of the values unless stated.

    Attributes:
        n: Number of values.
        effective_n: Number of independent values they are worth, 1 to n (Geyer 1992).
        min: Smallest value.
        mean: Arithmetic mean.
        median: 50th percentile.
        p95: 95th percentile (linear between order statistics, Hyndman and Fan type 7).
        p99: 99th percentile, likewise.
        max: Largest value.
        mad: Median absolute deviation from the median, not scaled to a normal.
        sd: Sample standard deviation (n - 1); 0 for a single value.
        lag1: Autocorrelation at lag 1, without unit; 0 where it is not defined.
        median_interval: Order-statistic interval of the median, None when n is too small.
        p95_interval: The same for the 95th percentile.
        p99_interval: The same for the 99th percentile.
        confidence: Confidence of the intervals.
    """

    n: int
    effective_n: float
    min: float
    mean: float
    median: float
    p95: float
    p99: float
    max: float
    mad: float
    sd: float
    lag1: float
    median_interval: Interval | None
    p95_interval: Interval | None
    p99_interval: Interval | None
    confidence: float


def summarise(
    values: ArrayLike, *, confidence: float = 0.95, assume_independent: bool = False
) -> Summary:
    """Summarise values given in the order in which they were measured.

    Args:
        values: Any unit, shape (n,). The first run belongs elsewhere if it is kept apart.
        confidence: Confidence of the intervals.
        assume_independent: Find the intervals for n values. By default they are found for
            `effective_n` values, because successive runs are seldom independent.

    Raises:
        UsageError: Values empty or not finite, or confidence out of range.

    Source: Geyer, Statistical Science 7 (1992), for the effective sample size; Conover,
    Practical Nonparametric Statistics, for the intervals.
    """
    series = as_values(values)
    level = check_confidence(confidence)
    ordered = np.sort(series)
    n = series.size
    rho = autocorrelation(series)
    effective = n / time_from_autocorrelation(rho)
    median, p95, p99 = (float(q) for q in np.quantile(ordered, (0.5, 0.95, 0.99)))
    worth = None if assume_independent else effective

    def interval(quantile: float) -> Interval | None:
        return quantile_interval(ordered, quantile=quantile, confidence=level, effective_n=worth)

    return Summary(
        n=n,
        effective_n=effective,
        min=float(ordered[0]),
        mean=float(np.clip(series.mean(), ordered[0], ordered[-1])),
        median=median,
        p95=p95,
        p99=p99,
        max=float(ordered[-1]),
        mad=float(np.median(np.abs(series - median))),
        # Equal values have no spread, though their rounded mean may differ from them.
        sd=float(series.std(ddof=1)) if n > 1 and np.ptp(series) > 0 else 0.0,
        lag1=float(rho[1]) if n > 1 else 0.0,
        median_interval=interval(0.5),
        p95_interval=interval(0.95),
        p99_interval=interval(0.99),
        confidence=confidence,
    )
