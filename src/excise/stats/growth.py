"""Growth with the run number: does it grow, how steeply, by which law, and from which run.

A list that gets longer with each run makes run 10,000 dearer than run 1. Such a series has no mean
that says anything; its slope and exponent do.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import fdtri, stdtrit

from excise.errors import UsageError
from excise.stats._arrays import FloatArray, as_values, check_at_least, check_confidence
from excise.stats.autocorrelation import integrated_autocorrelation_time
from excise.stats.interval import Interval
from excise.stats.series import long_run_variance

MIN_RUNS = 8
"""Fewer runs than this show no growth."""
POINT_LIMIT = 512
"""Points fitted at most; a longer series is reduced to medians of successive runs."""
EXPONENTS: Final[FloatArray] = np.arange(5, 401) / 100
"""Exponents tried, 0.05 to 4 in steps of 0.01."""
STARTS = 48
"""Runs tried as the start of growth, spread evenly over the first four fifths."""
LATE_START_GAIN = 10.0
"""A late start must better the AIC by this; 10 is called decisive by Burnham and Anderson."""

_BASES: Final[dict[str, Callable[[FloatArray], FloatArray]]] = {
    "1": lambda x: np.zeros_like(x),
    "log n": lambda x: np.log(x),
    "n": lambda x: x,
    "n log n": lambda x: x * np.log(x),
    "n^2": lambda x: x**2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFit:
    """One law y = y0 + c g(run) fitted by least squares.

    Attributes:
        name: The law: `1`, `log n`, `n`, `n log n` or `n^2`.
        aic: Akaike's criterion less that of the best law: 0 for the best.
        weight: Akaike weight, the share of belief among these laws, 0 to 1.
    """

    name: str
    aic: float
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """How values change with the run number.

    Attributes:
        n: Number of runs.
        grows: The slope's interval is above 0 and the change is above the margin.
        shrinks: The slope's interval is below 0 and the change is above the margin.
        slope: Theil-Sen slope, in the unit of the values per run; None for too few runs.
        slope_interval: Its interval (Kendall), widened for autocorrelation.
        change_ratio: Change of the fitted law over all runs as a share of the value at the start,
            None when that is not above zero.
        model: Name of the best law by AIC; `1` when it neither grows nor shrinks.
        models: All laws, best first.
        exponent: k of y - y0 ~ run^k; None unless it grows or shrinks.
        exponent_interval: Profile interval of k; None when there are too few independent points.
        starts_at: Run number from which it grows or shrinks: the first one unless a later start is
            evident; None unless it grows or shrinks.
        mean_is_meaningful: A mean over the runs says something: it neither grows nor shrinks.
        margin_ratio: Change that matters.
        confidence: Confidence of the intervals.
    """

    n: int
    grows: bool
    shrinks: bool
    slope: float | None
    slope_interval: Interval | None
    change_ratio: float | None
    model: str
    models: tuple[ModelFit, ...]
    exponent: float | None
    exponent_interval: Interval | None
    starts_at: float | None
    mean_is_meaningful: bool
    margin_ratio: float
    confidence: float


@dataclass(frozen=True, slots=True)
class _Power:
    """Best power law: start, exponent, its error profile over EXPONENTS, and residuals."""

    start: float | None
    exponent: float
    profile: FloatArray
    residuals: FloatArray


def growth(
    run_numbers: ArrayLike,
    values: ArrayLike,
    *,
    margin_ratio: float = 0.01,
    confidence: float = 0.95,
) -> Growth:
    """Tell whether and how values grow with the run number.

    A long series is first reduced to medians of successive runs. Slope: median of all pairwise
    slopes with Kendall's interval. Exponent: least squares of y0 + c run^k for each k, and the
    interval of those k whose error an F test does not tell from the least; 0.05, the smallest
    tried, stands for logarithmic growth. Start: the same with max(0, run - start)^k, taken when it
    betters the AIC by 10. Autocorrelation widens both intervals and weakens the AIC, through the
    effective number of points.

    Args:
        run_numbers: Number of each run, in any order, from 0 or 1, shape (n,).
        values: Value of each run, any unit, shape (n,).
        margin_ratio: Change over the series that matters, as a share of the median.
        confidence: Confidence of the intervals.

    Raises:
        UsageError: Not one run number for each value, a value is not finite, a run number is
            negative, or a parameter is out of range.

    Source: P. K. Sen, JASA 63 (1968); Burnham and Anderson, Model Selection, for AIC and its
    weights; Seber and Wild, Nonlinear Regression, for the profile interval.
    """
    level = check_confidence(confidence)
    check_at_least(margin_ratio, minimum=0, name="margin_ratio")
    x, y = _in_order(run_numbers, values)
    n = x.size
    if n < MIN_RUNS or np.unique(x).size < MIN_RUNS:
        return _unknown(n, margin_ratio=margin_ratio, confidence=confidence)
    first, last, centre = float(x[0]), float(x[-1]), float(np.median(y))
    x, y = _reduce(x, y)
    scale = max(float(np.abs(y).max()), np.finfo(float).tiny)
    y = y / scale
    power = _fit_power(x, y)
    dependence = _dependence(power.residuals)
    worth = x.size / dependence
    slope = _theil_sen(x, y, dependence=dependence, confidence=level)
    models, change, initial = _fit_models(x, y, start=power.start, worth=worth, ends=(first, last))
    material = abs(change) * scale > margin_ratio * abs(centre)
    grows = slope.low > 0 and material
    shrinks = slope.high < 0 and material
    moves = grows or shrinks
    return Growth(
        n=n,
        grows=grows,
        shrinks=shrinks,
        slope=_middle_slope(x, y) * scale,
        slope_interval=_scaled(slope, scale),
        change_ratio=change / initial if initial > 0 else None,
        model=models[0].name if moves else "1",
        models=models,
        exponent=power.exponent if moves else None,
        exponent_interval=_exponent_interval(power, worth, confidence=level) if moves else None,
        starts_at=(first if power.start is None else power.start) if moves else None,
        mean_is_meaningful=not moves,
        margin_ratio=margin_ratio,
        confidence=confidence,
    )


def _in_order(run_numbers: ArrayLike, values: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return checked run numbers and values, sorted by run number."""
    x, y = as_values(run_numbers, name="run numbers"), as_values(values)
    if x.size != y.size:
        raise UsageError(f"{x.size} run numbers do not fit {y.size} values")
    if x.min() < 0:
        raise UsageError(f"run number {x.min():g} is negative")
    order = np.argsort(x, kind="stable")
    return x[order], y[order]


def _unknown(n: int, *, margin_ratio: float, confidence: float) -> Growth:
    """Return the result of too few runs: nothing is known to grow."""
    return Growth(
        n=n,
        grows=False,
        shrinks=False,
        slope=None,
        slope_interval=None,
        change_ratio=None,
        model="1",
        models=(),
        exponent=None,
        exponent_interval=None,
        starts_at=None,
        mean_is_meaningful=True,
        margin_ratio=margin_ratio,
        confidence=confidence,
    )


def _reduce(x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Reduce to medians of successive runs at their mean run number, equal blocks only."""
    size = -(-x.size // POINT_LIMIT)
    if size == 1:
        return x, y
    edges = np.linspace(0, x.size, x.size // size + 1).astype(np.int64)
    starts, stops = edges[:-1], edges[1:]
    centres = np.add.reduceat(x, starts) / (stops - starts)
    medians = np.array([np.median(y[a:b]) for a, b in zip(starts, stops, strict=True)])
    return centres, medians


def _dependence(residuals: FloatArray) -> float:
    """Return how many points are worth one: by their autocorrelation, or by differences if more.

    A flexible curve follows slow noise, so that its residuals look more independent than the
    points are; successive differences are hardly fooled by it.
    """
    if float(residuals @ residuals) <= _rounding_error(residuals.size):
        return 1.0
    variance, long_run = long_run_variance(residuals)
    by_differences = long_run / variance if variance > 0 else 1.0
    return max(integrated_autocorrelation_time(residuals), by_differences)


def _pair_slopes(x: FloatArray, y: FloatArray) -> FloatArray:
    """Return the slopes between all pairs of points with different run numbers."""
    first, second = np.triu_indices(x.size, 1)
    run = x[second] - x[first]
    apart = run > 0
    return np.asarray((y[second] - y[first])[apart] / run[apart], dtype=np.float64)


def _middle_slope(x: FloatArray, y: FloatArray) -> float:
    """Return the Theil-Sen slope."""
    return float(np.median(_pair_slopes(x, y)))


def _theil_sen(x: FloatArray, y: FloatArray, *, dependence: float, confidence: float) -> Interval:
    """Return Kendall's interval of the Theil-Sen slope, its variance times the dependence.

    Student's t in place of the normal, because the dependence is itself an estimate.
    """
    slopes = np.sort(_pair_slopes(x, y))
    m = x.size
    spread = math.sqrt(m * (m - 1) * (2 * m + 5) / 18 * dependence)
    freedom = max(1.0, m / dependence - 2)
    reach = float(stdtrit(freedom, (1 + confidence) / 2)) * spread
    low = max(0, math.floor((slopes.size - reach) / 2) - 1)
    high = min(slopes.size - 1, math.ceil((slopes.size + reach) / 2))
    return Interval(
        low=float(slopes[low]),
        high=float(slopes[high]),
        confidence=confidence,
        coverage=confidence,
    )


def _scaled(interval: Interval, scale: float) -> Interval:
    """Return the interval in the unit of the values."""
    return Interval(
        low=interval.low * scale,
        high=interval.high * scale,
        confidence=interval.confidence,
        coverage=interval.coverage,
    )


def _errors(basis: FloatArray, y: FloatArray) -> FloatArray:
    """Return the squared error left by y0 + c g for each row g of the basis, shape (rows,)."""
    basis = basis - basis.mean(axis=-1, keepdims=True)
    y = y - y.mean()
    squares = (basis**2).sum(axis=-1)
    products = basis @ y
    explained = np.divide(products**2, squares, out=np.zeros_like(squares), where=squares > 0)
    return np.asarray(np.maximum(y @ y - explained, 0.0), dtype=np.float64)


def _powers(x: FloatArray, *, start: float | None, exponents: FloatArray) -> FloatArray:
    """Return run^k, or max(0, run - start)^k, scaled to 1 at the end, shape (exponents, m)."""
    t = x if start is None else np.maximum(0.0, x - start)
    t = t / t.max()
    with np.errstate(divide="ignore"):
        return np.asarray(np.exp(np.log(t) * exponents[:, np.newaxis]), dtype=np.float64)


def _fit_power(x: FloatArray, y: FloatArray) -> _Power:
    """Fit the power law from the first run, and from each later start; take the better one.

    Values far from a first fit are pulled in to four scaled MADs of it, so that outliers do not
    choose the exponent.
    """
    candidates = np.unique(np.quantile(x, np.linspace(0, 0.8, STARTS + 1)[1:]))
    coarse = EXPONENTS[15::10]
    for _ in range(2):
        plain = _errors(_powers(x, start=None, exponents=EXPONENTS), y)
        late = np.array(
            [_errors(_powers(x, start=s, exponents=coarse), y).min() for s in candidates]
        )
        start, exponent = _choose(x, y, candidates, plain=plain, late=late)
        basis = _powers(x, start=start, exponents=np.array([exponent]))[0]
        residuals = _residuals(basis, y)
        scale = 4 * 1.4826 * float(np.median(np.abs(residuals - np.median(residuals))))
        if scale > 0:
            y = y - residuals + np.clip(residuals, -scale, scale)
    profile = plain
    if start is not None:
        near = candidates[np.abs(candidates - start) <= 0.1 * (x[-1] - x[0])]
        profile = np.min(
            [_errors(_powers(x, start=s, exponents=EXPONENTS), y) for s in near], axis=0
        )
    return _Power(start, float(EXPONENTS[np.argmin(profile)]), profile, residuals)


def _choose(
    x: FloatArray, y: FloatArray, candidates: FloatArray, *, plain: FloatArray, late: FloatArray
) -> tuple[float | None, float]:
    """Return the start (None for the first run) and the best exponent for it."""
    floor = _rounding_error(y.size)
    best = int(np.argmin(late))
    fine = _errors(_powers(x, start=float(candidates[best]), exponents=EXPONENTS), y)
    exponent = float(EXPONENTS[np.argmin(fine)])
    basis = _powers(x, start=float(candidates[best]), exponents=np.array([exponent]))[0]
    worth = x.size / integrated_autocorrelation_time(_residuals(basis, y))
    gain = worth * math.log(max(plain.min(), floor) / max(fine.min(), floor)) - 2
    if gain > LATE_START_GAIN:
        return float(candidates[best]), exponent
    return None, float(EXPONENTS[np.argmin(plain)])


def _residuals(basis: FloatArray, y: FloatArray) -> FloatArray:
    """Return what least squares of y on the basis and a constant leaves."""
    centred, above = basis - basis.mean(), y - y.mean()
    squares = float(centred @ centred)
    return np.asarray(above - centred * (float(centred @ above) / squares if squares else 0.0))


def _rounding_error(points: int) -> float:
    """Return the squared error that float rounding may leave of points scaled to 1 at most."""
    return points * (64 * float(np.finfo(float).eps)) ** 2


def _exponent_interval(power: _Power, worth: float, *, confidence: float) -> Interval | None:
    """Return the exponents whose error an F test does not tell from the least, one step wider."""
    free = worth - 3
    if free < 1:
        return None
    least = max(float(power.profile.min()), _rounding_error(power.residuals.size))
    limit = least * (1 + float(fdtri(1, free, confidence)) / free)
    inside = np.flatnonzero(power.profile <= limit)
    low = EXPONENTS[max(0, int(inside[0]) - 1)]
    high = EXPONENTS[min(EXPONENTS.size - 1, int(inside[-1]) + 1)]
    return Interval(low=float(low), high=float(high), confidence=confidence, coverage=confidence)


def _fit_models(
    x: FloatArray, y: FloatArray, *, start: float | None, worth: float, ends: tuple[float, float]
) -> tuple[tuple[ModelFit, ...], float, float]:
    """Fit every law; return them best first, the best one's change between the ends, and its start.

    Laws are in run numbers from 1; with a late start in runs since it, plus 1.
    """
    origin = min(ends[0], 1.0) if start is None else start
    t = np.maximum(0.0, x - origin) + 1
    floor = _rounding_error(y.size)
    aic: dict[str, float] = {}
    for name, law in _BASES.items():
        error = float(_errors(law(t)[np.newaxis], y)[0])
        aic[name] = worth * math.log(max(error, floor)) + (2 if name == "1" else 4)
    best = min(aic, key=lambda name: aic[name])
    weights = {name: math.exp(-(value - aic[best]) / 2) for name, value in aic.items()}
    total = sum(weights.values())
    fits = tuple(
        ModelFit(name=name, aic=aic[name] - aic[best], weight=weights[name] / total)
        for name in sorted(aic, key=lambda name: aic[name])
    )
    fitted = y - _residuals(_BASES[best](t), y)
    law_at = _BASES[best](np.array([t[0], t[-1], *(max(0.0, x - origin) + 1 for x in ends)]))
    rise = float(law_at[1] - law_at[0])
    unit = float(fitted[-1] - fitted[0]) / rise if rise else 0.0
    initial = float(fitted[0]) + unit * float(law_at[2] - law_at[0])
    return fits, unit * float(law_at[3] - law_at[2]), initial
