"""Change points and the word for a series, on series whose course is known."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from excise.errors import UsageError
from excise.stats import SeriesKind, analyse_series, change_points, reduce_series
from excise.stats.series import long_run_variance, tame_outliers


def noise(rng, n, spread=0.02):
    return spread * rng.normal(size=n)


def ar1(rng, n, rho, spread):
    return (
        spread * np.sqrt(1 - rho**2) * lfilter([1.0], [1.0, -rho], rng.normal(size=n + 300))[300:]
    )


def courses(n):
    """Return the course (in ln) of each kind, for n runs."""
    at = np.arange(n)
    return {
        SeriesKind.FLAT: np.zeros(n),
        SeriesKind.WARM_UP: 0.2 * (at < n // 5),
        SeriesKind.SLOW_DOWN: -0.2 * (at < n // 5),
        SeriesKind.DRIFTING: 0.2 * at / n,
        SeriesKind.NO_STEADY_STATE: 0.2 * (at > 0.85 * n),
    }


@pytest.mark.parametrize("kind", list(courses(10)))
@pytest.mark.parametrize("n", [200, 3000])
def test_a_known_course_gets_its_word(kind, n):
    rng = np.random.default_rng(1)
    words = Counter(
        analyse_series(np.exp(courses(n)[kind] + noise(rng, n))).kind for _ in range(30)
    )
    assert words[kind] >= 29


def test_heavy_tails_and_slow_noise_are_no_change_of_level():
    rng = np.random.default_rng(2)
    heavy = [np.exp(0.02 * rng.standard_t(2, size=300)) for _ in range(40)]
    slow = [np.exp(ar1(rng, 3000, 0.9, 0.05)) for _ in range(40)]
    assert sum(analyse_series(x).kind is SeriesKind.FLAT for x in heavy) >= 36
    assert sum(analyse_series(x).kind is SeriesKind.FLAT for x in slow) >= 38


def test_switching_between_levels_has_no_steady_state():
    rng = np.random.default_rng(3)
    levels = 0.2 * (np.arange(300) // 50 % 2)
    result = analyse_series(np.exp(levels + noise(rng, 300)))
    assert result.kind is SeriesKind.NO_STEADY_STATE
    assert result.steady_from is None


def test_warm_up_tells_where_it_ends_and_how_much_it_was():
    rng = np.random.default_rng(4)
    series = 1000 * np.exp(courses(500)[SeriesKind.WARM_UP] + noise(rng, 500))
    result = analyse_series(series)
    assert result.steady_from == pytest.approx(100, abs=2)
    assert result.change_ratio == pytest.approx(np.exp(-0.2), rel=0.02)
    assert result.noise_ratio == pytest.approx(0.02, rel=0.25)
    assert [s.n for s in result.segments] == [s.stop - s.start for s in result.segments]
    assert result.segments[-1].median == pytest.approx(1000, rel=0.01)


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(12, 400), st.floats(1e-6, 1e6))
def test_segments_cover_the_series_and_the_unit_does_not_matter(seed, n, factor):
    rng = np.random.default_rng(seed)
    series = np.exp(rng.choice([0, 0.3], n) * rng.integers(0, 2) + noise(rng, n))
    one, two = analyse_series(series), analyse_series(series * factor)
    edges = [0, *(s.stop for s in one.segments)]
    assert edges[-1] == n
    assert [s.start for s in one.segments] == edges[:-1]
    assert (two.kind, two.steady_from) == (one.kind, one.steady_from)


def test_change_points_are_where_the_level_changes():
    rng = np.random.default_rng(5)
    series = np.exp(np.repeat([0.0, 0.3, 0.1], 100) + noise(rng, 300))
    assert change_points(series) == pytest.approx((100, 200), abs=1)
    assert change_points([1.0] * 50) == ()
    assert change_points([1.0, 2.0]) == ()


def test_a_constant_series_is_flat_and_a_short_one_is_not_judged():
    assert analyse_series([3.0] * 50).kind is SeriesKind.FLAT
    assert analyse_series([3.0] * 11).kind is SeriesKind.TOO_SHORT


def test_a_hundred_thousand_runs_take_less_than_a_second():
    rng = np.random.default_rng(6)
    series = np.exp(courses(100_000)[SeriesKind.WARM_UP] + noise(rng, 100_000))
    analyse_series(series[:2000])
    start = time.process_time()
    result = analyse_series(series)
    assert time.process_time() - start < 1
    assert result.kind is SeriesKind.WARM_UP
    assert result.resolution_runs == 100
    assert result.steady_from == pytest.approx(20_000, abs=100)


def test_reducing_takes_medians_and_keeps_the_rest():
    points, size = reduce_series(np.arange(25.0), limit=10)
    assert size == 3
    assert points.tolist() == [1, 4, 7, 10, 13, 16, 19, 22, 24]
    with pytest.raises(UsageError, match="limit is 0"):
        reduce_series([1.0], limit=0)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.8])
def test_long_run_variance_is_that_of_an_ar1_series_despite_steps(rho):
    rng = np.random.default_rng(7)
    series = ar1(rng, 20_000, rho, 1.0) + 8 * (np.arange(20_000) // 5000 % 2)
    variance, long_run = long_run_variance(series)
    assert variance == pytest.approx(1.0, rel=0.1)
    assert long_run == pytest.approx((1 + rho) / (1 - rho), rel=0.3)


def test_outliers_are_pulled_in_and_levels_stay():
    rng = np.random.default_rng(8)
    points = np.repeat([0.0, 1.0], 50) + noise(rng, 100)
    spiked = points.copy()
    spiked[20] += 5
    tamed = tame_outliers(spiked)
    assert tamed[20] < 0.2
    assert tamed[48:52] == pytest.approx(points[48:52], abs=0.05)


def test_zero_values_are_refused():
    with pytest.raises(UsageError, match="not above zero"):
        analyse_series([1.0, 0.0])
    with pytest.raises(UsageError, match="tolerance_ratio is -1"):
        analyse_series([1.0], tolerance_ratio=-1)
