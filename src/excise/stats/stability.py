"""Whether a series can be trusted as it is, and if not, what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike

from excise.stats._arrays import FloatArray, as_positive, as_values, check_at_least
from excise.stats.autocorrelation import effective_sample_size
from excise.stats.quantisation import COARSE_RATIO, find_quantisation
from excise.stats.series import MIN_RUNS, POINT_LIMIT, SeriesKind, analyse_series

FIRST_RUN_MADS = 10.0
"""Scaled MADs by which the first run must stand out."""
OUTLIER_MADS = 5.0
"""Scaled MADs beyond which a value is an outlier (two in a million of a normal)."""
OUTLIER_SHARE = 0.01
"""Share of outliers that is worth a word."""
FEW_EFFECTIVE = 30.0
"""Effective sample size below which a series is thin, when n itself is above it."""
MODE_SHARE = 0.1
"""Share of values that the smaller of two modes must hold."""
SPLIT_SHARE = 0.8
"""Share of the variance that two groups must explain (0.64 for a normal, 0.75 for a uniform)."""


class AdviceCode(StrEnum):
    """Stable names of what may be wrong with a series."""

    TOO_FEW_RUNS = "too-few-runs"
    FIRST_RUN_OUTLIER = "first-run-outlier"
    FEW_EFFECTIVE_SAMPLES = "few-effective-samples"
    WARM_UP = "warm-up"
    DRIFT = "drift"
    NO_STEADY_STATE = "no-steady-state"
    BIMODAL = "bimodal"
    OUTLIERS = "outliers"
    COARSE_RESOLUTION = "coarse-resolution"


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """One thing that is wrong, and what to do.

    Attributes:
        code: Stable name.
        found: What was found, with its figures, in one clause.
        action: What to do, in one clause.
    """

    code: AdviceCode
    found: str
    action: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stability:
    """The verdict on one series.

    Attributes:
        is_stable: Nothing was found.
        advice: What was found, in the order of `AdviceCode`.
        effective_n: Number of independent values the series is worth.
        outliers: Number of values beyond five scaled MADs from the median.
        kind: What the series does over its runs.
    """

    is_stable: bool
    advice: tuple[Advice, ...]
    effective_n: float
    outliers: int
    kind: SeriesKind


def judge_stability(
    values: ArrayLike,
    *,
    first: float | None = None,
    resolution: float | None = None,
    tolerance_ratio: float = 0.01,
    limit: int = POINT_LIMIT,
) -> Stability:
    """Judge a series and say what to do about it.

    Args:
        values: Series in the order of measurement, positive, any unit, shape (n,).
        first: The first run, where it is kept apart. None: the first value is taken for it.
        resolution: Step of the values in their unit; looked for in them when None.
        tolerance_ratio: Change of level that matters.
        limit: Points searched for changes of level at most; a longer series is reduced for that.

    Raises:
        UsageError: A value is not positive or not finite, or a parameter is out of range.

    Source: outliers by MAD after Iglewicz and Hoaglin (1993); two groups after N. Otsu (1979).
    """
    series = as_positive(values)
    check_at_least(tolerance_ratio, minimum=0, name="tolerance_ratio")
    kind = analyse_series(series, tolerance_ratio=tolerance_ratio, limit=limit).kind
    effective = effective_sample_size(series)
    outliers = count_outliers(series)
    found = [
        _few_runs(series),
        _first_run(series, first=first),
        _few_effective(series, effective=effective),
        _kind_advice(kind),
        _bimodal(series),
        _outliers(series, outliers=outliers),
        _resolution(series, resolution=resolution),
    ]
    advice = tuple(item for item in found if item is not None)
    return Stability(
        is_stable=not advice,
        advice=advice,
        effective_n=effective,
        outliers=outliers,
        kind=kind,
    )


def count_outliers(values: ArrayLike) -> int:
    """Return how many values lie beyond five scaled MADs from the median.

    With a MAD of 0 (half the values are equal) none is counted: there is no scale to judge by.

    Raises:
        UsageError: Values empty or not finite.
    """
    series = as_values(values)
    off = np.abs(series - np.median(series))
    scale = 1.4826 * float(np.median(off))
    return int((off > OUTLIER_MADS * scale).sum()) if scale > 0 else 0


def split_share(values: ArrayLike) -> tuple[float, float, bool]:
    """Return how well two groups describe the values, and whether a valley lies between them.

    Args:
        values: Any unit, shape (n,).

    Returns:
        Share of the variance between the two groups of the best split; share of values in the
        smaller group; whether the middle between the groups' medians holds fewer than half as many
        values as either median's surroundings (of a quarter of the distance).

    Raises:
        UsageError: Values empty or not finite.

    Source: N. Otsu, IEEE Transactions on Systems, Man and Cybernetics 9 (1979).
    """
    ordered = np.sort(as_values(values))
    n = ordered.size
    total = float(((ordered - ordered.mean()) ** 2).sum())
    if n < 4 or total <= (8 * np.finfo(float).eps * np.abs(ordered).max()) ** 2 * n:
        return 0.0, 0.0, False
    sums = np.cumsum(ordered - ordered.mean())[:-1]
    counts = np.arange(1, n)
    between = sums**2 * n / (counts * (n - counts))
    cut = int(np.argmax(between)) + 1
    low, high = float(np.median(ordered[:cut])), float(np.median(ordered[cut:]))
    reach = (high - low) / 8
    near = [_count_near(ordered, at, reach) for at in (low, (low + high) / 2, high)]
    valley = 2 * near[1] < min(near[0], near[2])
    return float(between[cut - 1]) / total, min(cut, n - cut) / n, valley


def _count_near(ordered: FloatArray, at: float, reach: float) -> int:
    """Return how many sorted values lie within reach of a place."""
    low, high = np.searchsorted(ordered, (at - reach, at + reach))
    return int(high - low)


def _few_runs(series: FloatArray) -> Advice | None:
    if series.size >= MIN_RUNS:
        return None
    few = f"{series.size} runs show" if series.size > 1 else "a single run shows"
    return Advice(
        code=AdviceCode.TOO_FEW_RUNS,
        found=f"{few} neither warm-up nor drift",
        action=f"measure {MIN_RUNS} runs or more",
    )


def _first_run(series: FloatArray, *, first: float | None) -> Advice | None:
    rest = series if first is not None else series[1:]
    value = float(series[0]) if first is None else float(as_positive([first], name="first")[0])
    if rest.size < 5:
        return None
    median = float(np.median(rest))
    scale = max(1.4826 * float(np.median(np.abs(rest - median))), 0.001 * median)
    if abs(value - median) <= FIRST_RUN_MADS * scale:
        return None
    return Advice(
        code=AdviceCode.FIRST_RUN_OUTLIER,
        found=f"the first run took {value / median:.3g} times the median of the others",
        action="keep the first run apart, or warm up the caches it fills",
    )


def _few_effective(series: FloatArray, *, effective: float) -> Advice | None:
    if effective >= min(FEW_EFFECTIVE, series.size / 2):
        return None
    return Advice(
        code=AdviceCode.FEW_EFFECTIVE_SAMPLES,
        found=f"{series.size} runs are worth {effective:.0f} independent ones",
        action="spread the runs over more blocks, processes or boots instead of adding runs",
    )


def _kind_advice(kind: SeriesKind) -> Advice | None:
    if kind is SeriesKind.WARM_UP:
        return Advice(
            code=AdviceCode.WARM_UP,
            found="the early runs are slower than the steady state",
            action="warm up longer, and leave out runs before the steady state",
        )
    if kind in (SeriesKind.DRIFTING, SeriesKind.SLOW_DOWN):
        return Advice(
            code=AdviceCode.DRIFT,
            found=f"the series is {kind.value}",
            action="compare within randomised blocks only; look for growth with the run number",
        )
    if kind is SeriesKind.NO_STEADY_STATE:
        return Advice(
            code=AdviceCode.NO_STEADY_STATE,
            found="the last quarter of the runs is not on one level",
            action="quiet the machine or measure longer; do not quote a single figure",
        )
    return None


def _bimodal(series: FloatArray) -> Advice | None:
    if series.size < 20:
        return None
    explained, smaller, valley = split_share(np.log(series))
    if explained < SPLIT_SHARE or smaller < MODE_SHARE or not valley:
        return None
    return Advice(
        code=AdviceCode.BIMODAL,
        found=f"the values form two groups, the smaller one with {smaller:.0%} of them",
        action="find what switches (CPU, frequency, cache, placement) and measure each by itself",
    )


def _outliers(series: FloatArray, *, outliers: int) -> Advice | None:
    if outliers <= OUTLIER_SHARE * series.size:
        return None
    return Advice(
        code=AdviceCode.OUTLIERS,
        found=f"{outliers} of {series.size} values lie beyond {OUTLIER_MADS:g} scaled MADs",
        action="quote median and p95, not the mean; look for other load on the machine",
    )


def _resolution(series: FloatArray, *, resolution: float | None) -> Advice | None:
    median = float(np.median(series))
    if resolution is None:
        if series.size < 2:  # the zeros at the end of one value are no steps
            return None
        found = find_quantisation(series)
        resolution = found.step if found.step is not None else 0.0
        if found.distinct <= 2 and found.printed_step is not None:
            resolution = found.printed_step
    check_at_least(resolution, minimum=0, name="resolution")
    if resolution <= COARSE_RATIO * median:
        return None
    return Advice(
        code=AdviceCode.COARSE_RESOLUTION,
        found=f"the values come in steps of {resolution / median:.2%} of the median",
        action="use a finer clock, or time a batch of operations",
    )
