"""What a series does over its runs: level changes, warm-up, slow-down, drift, or none of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excise.stats._arrays import FloatArray, as_positive, as_values, check_at_least

POINT_LIMIT = 1000
"""Longest series given to the search; longer ones are reduced to medians of successive runs."""
STEADY_SHARE = 0.25
"""Share of the runs, at the end, that must be level for a steady state (500 of 2000 in krun)."""
MIN_RUNS = 12
"""Fewer runs than this are not classified."""
_LEAST_NOISE = 1e-6
"""Noise of ln values below which steps are rounding (one millionth)."""


class SeriesKind(StrEnum):
    """What a series does over its runs."""

    FLAT = "flat"
    WARM_UP = "warm-up"
    SLOW_DOWN = "slow-down"
    DRIFTING = "drifting"
    NO_STEADY_STATE = "no steady state"
    TOO_SHORT = "too short"


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Successive runs on one level.

    Attributes:
        start: Index of the first run, from 0.
        stop: Index after the last run.
        median: Median of the runs, in the unit of the values.
    """

    start: int
    stop: int
    median: float

    @property
    def n(self) -> int:
        """Number of runs."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesAnalysis:
    """A series cut into levels, and the word for it.

    Attributes:
        kind: What the series does.
        n: Number of runs.
        segments: Successive levels; one when the series has no change of level.
        steady_from: Index of the first run of the steady state; 0 when flat, None without one.
        change_ratio: Last level over first level (fitted line when drifting); 1 when flat.
        noise_ratio: Noise within a level, as a share of the level (sd of ln values).
        resolution_runs: Change points are known to this many runs; 1 unless the series was reduced.
    """

    kind: SeriesKind
    n: int
    segments: tuple[Segment, ...]
    steady_from: int | None
    change_ratio: float
    noise_ratio: float
    resolution_runs: int


def reduce_series(values: ArrayLike, *, limit: int = POINT_LIMIT) -> tuple[FloatArray, int]:
    """Return medians of successive runs, at most `limit` of them, and how many runs each holds.

    Args:
        values: Series in the order of measurement, any unit, shape (n,).
        limit: Largest number of points.

    Returns:
        The medians, and the runs in each (the last may hold fewer).

    Raises:
        UsageError: Values empty or not finite, or a limit below 1.
    """
    series = as_values(values)
    check_at_least(limit, minimum=1, name="limit")
    size = -(-series.size // limit)
    if size == 1:
        return series, 1
    whole = series.size // size * size
    medians = np.median(series[:whole].reshape(-1, size), axis=1)
    if whole < series.size:
        medians = np.append(medians, np.median(series[whole:]))
    return np.asarray(medians, dtype=np.float64), size


def long_run_variance(points: FloatArray) -> tuple[float, float]:
    """Return the variance within a level, and that times what autocorrelation makes of it.

    Both come from successive differences, which a change of level hardly touches: with lag-1
    autocorrelation r of the differences, an AR(1) series has coefficient 1 + 2 r. Differences
    beyond 3.5 scaled MADs are left out, the coefficient is kept within 0 to 0.95.

    Source: Box and Jenkins, Time Series Analysis, for both identities of AR(1).
    """
    steps = np.diff(points)
    if steps.size < 3:
        return 0.0, 0.0
    centre = float(np.median(steps))
    scale = 1.4826 * float(np.median(np.abs(steps - centre)))
    kept = np.abs(steps - centre) <= 3.5 * scale if scale > 0 else np.ones(steps.size, dtype=bool)
    steps = np.where(kept, steps - steps[kept].mean(), 0.0)
    power = float(steps @ steps) / int(kept.sum())
    both = int((kept[:-1] & kept[1:]).sum())
    if power == 0 or both == 0:
        return 0.0, 0.0
    coefficient = min(0.95, max(0.0, 1 + 2 * float(steps[:-1] @ steps[1:]) / both / power))
    variance = power / (2 * (1 - coefficient))
    return variance, variance * (1 + coefficient) / (1 - coefficient)


def tame_outliers(points: FloatArray) -> FloatArray:
    """Return the points with those far from their neighbours pulled in; levels stay.

    A point farther than three scaled MADs from the running median of seven is set to that distance
    (Hampel filter). One slow run is no change of level.
    """
    if points.size < 7:
        return points
    padded = np.pad(points, 3, mode="reflect")
    running = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7), axis=1)
    off = points - running
    reach = 3 * 1.4826 * float(np.median(np.abs(off)))
    if reach == 0:
        return points
    return np.asarray(running + np.clip(off, -reach, reach), dtype=np.float64)


def change_points(values: ArrayLike, *, limit: int = POINT_LIMIT) -> tuple[int, ...]:
    """Return the indices of the runs at which a new level begins, without 0.

    PELT on ln values with squared error and the penalty 3 v ln(m), where v is the long-run variance
    and m the number of points, so that autocorrelated noise is not cut into levels; single
    outliers are pulled in first.

    Args:
        values: Series in the order of measurement, positive, any unit, shape (n,).
        limit: Points searched at most; a longer series is reduced by medians.

    Raises:
        UsageError: A value is not positive or not finite.

    Source: Killick, Fearnhead and Eckley, JASA 107 (2012); use on benchmark series after Barrett
    et al., Virtual Machine Warmup Blows Hot and Cold (OOPSLA 2017).
    """
    series = as_positive(values)
    points, size = reduce_series(np.log(series), limit=limit)
    points = tame_outliers(points)
    return tuple(int(at) * size for at in _search(points))


def _search(points: FloatArray) -> list[int]:
    """Return the change points of a short series by PELT."""
    if points.size < 6 or np.ptp(points) <= _LEAST_NOISE:
        return []
    from ruptures import KernelCPD  # here, because it takes most of a second to import

    _, variance = long_run_variance(points)
    penalty = 3 * max(variance, _LEAST_NOISE**2) * math.log(points.size)
    search = KernelCPD(kernel="linear", min_size=2).fit(points - points.mean())
    return [int(at) for at in search.predict(pen=penalty)[:-1]]


def analyse_series(
    values: ArrayLike, *, tolerance_ratio: float = 0.01, limit: int = POINT_LIMIT
) -> SeriesAnalysis:
    """Cut a series into levels and say in one word what it does.

    Levels count as the same when they differ by less than the tolerance, or than the MAD of the
    last level. Flat: all levels are the same. Warm-up: those before the steady state are higher.
    Slow-down: one of them is lower. Drifting: a straight line of ln values, with a change above the
    tolerance, describes the series as well as the levels do. No steady state: the last quarter
    of the runs is not on one level.

    Args:
        values: Series in the order of measurement, positive, any unit, shape (n,).
        tolerance_ratio: Change that matters, 0.01 for 1 %.
        limit: Points searched at most; a longer series is reduced by medians.

    Raises:
        UsageError: A value is not positive or not finite, or the tolerance is negative.

    Source: Barrett et al., Virtual Machine Warmup Blows Hot and Cold (OOPSLA 2017).
    """
    check_at_least(tolerance_ratio, minimum=0, name="tolerance_ratio")
    series = as_positive(values)
    logs = np.log(series)
    points, size = reduce_series(logs, limit=limit)
    points = tame_outliers(points)
    edges = np.array([0, *(at * size for at in _search(points)), series.size])
    segments = tuple(
        Segment(start=int(a), stop=int(b), median=float(np.median(series[a:b])))
        for a, b in pairwise(edges)
    )
    noise, long_run = long_run_variance(points)
    kind, steady_from, change = SeriesKind.TOO_SHORT, None, 1.0
    if series.size >= MIN_RUNS:
        levels = np.log([segment.median for segment in segments])
        line = _line_change(points, long_run=long_run)
        same = _same_as_last(logs, segments, levels, tolerance_ratio=tolerance_ratio)
        straight = _line_fits(points, edges // size, line=line)
        if abs(line) > math.log1p(tolerance_ratio) and (straight or same.all()):
            kind, change = SeriesKind.DRIFTING, math.exp(line)
        else:
            kind, steady_from = _classify(segments, levels, same)
            change = 1.0 if kind is SeriesKind.FLAT else math.exp(levels[-1] - levels[0])
    return SeriesAnalysis(
        kind=kind,
        n=series.size,
        segments=segments,
        steady_from=steady_from,
        change_ratio=change,
        noise_ratio=math.sqrt(noise),
        resolution_runs=size,
    )


def _same_as_last(
    logs: FloatArray,
    segments: tuple[Segment, ...],
    levels: FloatArray,
    *,
    tolerance_ratio: float,
) -> NDArray[np.bool_]:
    """Tell for each segment whether it is on the level of the last one."""
    tail = logs[segments[-1].start :]
    mad = float(np.median(np.abs(tail - np.median(tail))))
    return np.asarray(np.abs(levels - levels[-1]) <= max(math.log1p(tolerance_ratio), mad))


def _classify(
    segments: tuple[Segment, ...], levels: FloatArray, same: NDArray[np.bool_]
) -> tuple[SeriesKind, int | None]:
    """Return the kind of a series that is not a straight line, and where it gets steady."""
    if same.all():
        return SeriesKind.FLAT, 0
    first = int(np.flatnonzero(~same)[-1]) + 1
    steady_from = segments[first].start
    if segments[-1].stop - steady_from < STEADY_SHARE * segments[-1].stop:
        return SeriesKind.NO_STEADY_STATE, None
    before = levels[:first][~same[:first]]
    if (before < levels[-1]).any():
        return SeriesKind.SLOW_DOWN, steady_from
    return SeriesKind.WARM_UP, steady_from


def _line_change(points: FloatArray, *, long_run: float) -> float:
    """Return the change of a fitted line over the series, in ln; 0 when noise explains it."""
    x = np.arange(points.size) - (points.size - 1) / 2
    squares = float(x @ x)
    slope = float(x @ points) / squares
    if abs(slope) <= 3 * math.sqrt(long_run / squares):
        return 0.0
    return slope * (points.size - 1)


def _line_fits(points: FloatArray, edges: NDArray[np.int64], *, line: float) -> bool:
    """Tell whether the line leaves hardly more error than the levels do, with fewer parameters."""
    if line == 0 or edges.size <= 2:
        return line != 0
    edges = np.append(edges[:-1], points.size)
    x = np.arange(points.size) / (points.size - 1) - 0.5
    of_line = points - points.mean() - x * line
    of_levels = np.concatenate(
        [part - part.mean() for part in np.split(points, edges[1:-1]) if part.size]
    )
    left_line, left_levels = float(of_line @ of_line), float(of_levels @ of_levels)
    parameters = 2 * (edges.size - 2) + 1
    free = max(1, points.size - parameters)
    return left_line / (points.size - 2) <= 1.1 * left_levels / free
