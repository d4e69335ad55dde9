"""Dependence between successive values: autocorrelation, effective sample size, Ljung-Box."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.fft import irfft, next_fast_len, rfft
from scipy.special import chdtrc

from excise.errors import UsageError
from excise.stats._arrays import FloatArray, as_values


@dataclass(frozen=True, slots=True, kw_only=True)
class LjungBox:
    """The Ljung-Box test of "no autocorrelation up to this lag".

    Attributes:
        lags: Number of lags summed.
        statistic: Q, chi-squared with `lags` degrees of freedom if there is no autocorrelation.
        p_value: Probability of a larger Q if there is none.
    """

    lags: int
    statistic: float
    p_value: float


def autocorrelation(values: ArrayLike, *, lags: int | None = None) -> FloatArray:
    """Return the sample autocorrelation at lags 0 to `lags`, float64, shape (lags + 1,).

    The biased estimator (divided by n), by FFT in O(n log n). A constant series, whose
    autocorrelation is not defined, gives 1 at lag 0 and 0 elsewhere.

    Args:
        values: Series in the order of measurement, any unit, shape (n,).
        lags: Largest lag; n - 1 when None.

    Raises:
        UsageError: Values empty or not finite, or lags outside 0 to n - 1.

    Source: Box and Jenkins, Time Series Analysis, chapter 2.
    """
    series = as_values(values)
    n = series.size
    last = n - 1 if lags is None else lags
    if not 0 <= last < n:
        raise UsageError(f"lag {last} does not exist in a series of {n} values")
    centred = series - series.mean()
    scale = np.abs(centred).max()
    result = np.zeros(last + 1)
    result[0] = 1.0
    if scale <= 4 * np.finfo(float).eps * np.abs(series).max():
        return result
    centred /= scale
    size = next_fast_len(n + last, real=True)
    spectrum = rfft(centred, size)
    power = spectrum.real**2 + spectrum.imag**2
    covariance = irfft(power, size)[: last + 1]
    return np.asarray(covariance / covariance[0], dtype=np.float64)


def integrated_autocorrelation_time(values: ArrayLike) -> float:
    """Return how many successive values are worth one independent value (1 when independent).

    tau = -1 + 2 sum of Gamma_m, with Gamma_m = rho(2m) + rho(2m + 1), summed while positive and
    made non-increasing (initial monotone sequence). At least 1: series that alternate, which are
    better than independent ones for the mean, get no credit.

    Raises:
        UsageError: Values empty or not finite.

    Source: C. J. Geyer, Practical Markov Chain Monte Carlo, Statistical Science 7 (1992).
    """
    return time_from_autocorrelation(autocorrelation(values))


def time_from_autocorrelation(rho: FloatArray) -> float:
    """Return the integrated autocorrelation time from all autocorrelations, lag 0 to n - 1."""
    if rho.size < 4:
        return 1.0
    pairs = rho[: rho.size // 2 * 2].reshape(-1, 2).sum(axis=1)
    negative = np.flatnonzero(pairs <= 0)
    positive = pairs[: negative[0]] if negative.size else pairs
    monotone = np.minimum.accumulate(positive)
    return float(min(rho.size, max(1.0, 2 * monotone.sum() - 1)))


def effective_sample_size(values: ArrayLike) -> float:
    """Return the number of independent values that the series is worth, from 1 to n.

    Raises:
        UsageError: Values empty or not finite.
    """
    series = as_values(values)
    return series.size / integrated_autocorrelation_time(series)


def ljung_box(values: ArrayLike, *, lags: int | None = None) -> LjungBox | None:
    """Return the Ljung-Box test, or None for fewer than 8 values or a constant series.

    Args:
        values: Series in the order of measurement, shape (n,).
        lags: Lags summed; the smaller of 10 and n / 5 when None.

    Raises:
        UsageError: Values empty or not finite, or lags outside 1 to n - 1.

    Source: G. M. Ljung and G. E. P. Box, Biometrika 65 (1978).
    """
    series = as_values(values)
    n = series.size
    if n < 8 or np.ptp(series) == 0:
        return None
    used = max(1, min(10, n // 5)) if lags is None else lags
    if not 1 <= used < n:
        raise UsageError(f"{used} lags cannot be tested in a series of {n} values")
    rho = autocorrelation(series, lags=used)[1:]
    statistic = n * (n + 2) * float((rho**2 / (n - np.arange(1, used + 1))).sum())
    return LjungBox(lags=used, statistic=statistic, p_value=float(chdtrc(used, statistic)))
