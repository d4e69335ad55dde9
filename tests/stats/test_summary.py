"""Summaries against numpy, effective sample size against theory, and the speed promised."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.signal import lfilter

from excise.errors import UsageError
from excise.stats import (
    autocorrelation,
    effective_sample_size,
    integrated_autocorrelation_time,
    ljung_box,
    quantile_interval,
    summarise,
)
from excise.stats.autocorrelation import time_from_autocorrelation

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def ar1(rng, n, rho):
    """Return a stationary AR(1) series of variance 1."""
    noise = rng.normal(size=n) * np.sqrt(1 - rho**2)
    noise[0] /= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise)


@given(st.lists(FINITE, min_size=1, max_size=50))
def test_summary_agrees_with_numpy_and_orders_its_figures(values):
    s = summarise(values)
    assert s.n == len(values)
    assert s.min <= s.median <= s.p95 <= s.p99 <= s.max
    assert s.min <= s.mean <= s.max
    assert s.p95 == pytest.approx(np.percentile(values, 95))
    assert s.mad == pytest.approx(np.median(np.abs(np.array(values) - np.median(values))))
    assert 1 <= s.effective_n <= s.n
    if s.n > 1:
        # Of equal values numpy's is what rounding leaves; here it is 0.
        rounding = max(map(abs, values)) * 1e-12
        assert s.sd == pytest.approx(np.std(values, ddof=1), abs=rounding)


@given(st.lists(st.floats(0.1, 1e3), min_size=4, max_size=60), st.floats(1e-6, 1e6))
def test_scaling_the_values_scales_the_summary(values, factor):
    a, b = summarise(values), summarise(np.array(values) * factor)
    for name in ("min", "mean", "median", "p95", "p99", "max"):
        assert getattr(b, name) == pytest.approx(getattr(a, name) * factor, rel=1e-9)
    assert b.mad == pytest.approx(a.mad * factor, rel=1e-9, abs=a.max * factor * 1e-12)


def test_a_single_value_has_no_interval_and_no_spread():
    s = summarise([5])
    assert (s.n, s.effective_n, s.sd, s.mad, s.lag1) == (1, 1, 0, 0, 0)
    assert s.median_interval is None


def test_constant_values_are_taken_as_independent():
    s = summarise([0.1 + 0.2] * 100)
    assert s.effective_n == 100
    assert s.lag1 == 0


def test_autocorrelation_equals_the_sum_it_is_defined_by():
    x = ar1(np.random.default_rng(3), 257, 0.6)
    centred = x - x.mean()
    slow = [centred[: 257 - k] @ centred[k:] / (centred @ centred) for k in range(257)]
    assert autocorrelation(x) == pytest.approx(slow, abs=1e-12)
    assert autocorrelation(x, lags=5) == pytest.approx(slow[:6], abs=1e-12)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_integrated_time_of_an_ar1_series_is_what_theory_says(rho):
    rng = np.random.default_rng(11)
    times = [integrated_autocorrelation_time(ar1(rng, 20_000, rho)) for _ in range(10)]
    assert np.mean(times) == pytest.approx((1 + rho) / (1 - rho), rel=0.1)


def test_the_integrated_time_sums_pairs_while_they_are_positive_and_do_not_rise():
    # Gamma: 1.5, 0.3, then 0.5 that counts as 0.3, then -0.1 that ends the sum.
    rho = np.array([1.0, 0.5, 0.2, 0.1, 0.3, 0.2, -0.2, 0.1, 0.4, 0.4])
    assert time_from_autocorrelation(rho) == pytest.approx(2 * (1.5 + 0.3 + 0.3) - 1)


def test_strong_dependence_leaves_few_effective_values_and_no_tail_interval():
    s = summarise(ar1(np.random.default_rng(5), 4000, 0.98))
    assert s.effective_n < 120
    assert s.lag1 > 0.95
    assert s.p99_interval is None
    assert s.median_interval is not None


def test_median_interval_of_dependent_values_covers_where_the_naive_one_fails():
    rng = np.random.default_rng(13)
    held = naive = 0
    for _ in range(300):
        x = ar1(rng, 600, 0.9)
        held += summarise(x).median_interval.holds(0)
        naive += quantile_interval(np.sort(x)).holds(0)
    assert naive / 300 < 0.6
    assert held / 300 > 0.88


def test_alternating_values_get_no_credit_above_n():
    assert effective_sample_size([1, 2] * 50) == 100


def test_ljung_box_rejects_dependence_and_holds_its_level():
    rng = np.random.default_rng(17)
    rejected = np.mean([ljung_box(rng.normal(size=200)).p_value < 0.05 for _ in range(600)])
    assert rejected == pytest.approx(0.05, abs=0.03)
    assert ljung_box(ar1(rng, 200, 0.5)).p_value < 1e-6
    assert ljung_box([1.0] * 20) is None
    assert ljung_box(np.arange(5)) is None


def test_ljung_box_matches_a_worked_example():
    # Q = n (n + 2) rho1^2 / (n - 1) for one lag; rho1 of 1..10 is 0.7
    result = ljung_box(np.arange(1.0, 11.0), lags=1)
    assert result.statistic == pytest.approx(10 * 12 * 0.7**2 / 9)


def test_lags_that_do_not_exist_are_refused():
    with pytest.raises(UsageError, match="lag 3 does not exist"):
        autocorrelation([1, 2, 3], lags=3)
    with pytest.raises(UsageError, match="9 lags cannot"):
        ljung_box(np.arange(9.0), lags=9)


def test_a_million_values_are_summarised_in_half_a_second():
    values = np.random.default_rng(1).lognormal(size=1_000_000)
    summarise(values[:1000])
    best = min(_seconds(values) for _ in range(3))
    assert best < 0.5


def _seconds(values):
    start = time.process_time()
    summarise(values)
    return time.process_time() - start
