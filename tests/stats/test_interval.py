"""Order-statistic intervals and the sign test, against scipy's binomial and by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from excise.errors import UsageError
from excise.stats import (
    median_interval,
    pairs_for_interval,
    quantile_interval,
    quantile_ranks,
    sign_test_p,
)


@given(n=st.integers(1, 400), confidence=st.sampled_from([0.8, 0.9, 0.95, 0.99, 0.999]))
def test_median_ranks_are_the_tightest_with_the_exact_binomial_coverage(n, confidence):
    tail = (1 - confidence) / 2
    ranks = quantile_ranks(n, confidence=confidence)
    if ranks is None:
        assert binom.cdf(0, n, 0.5) > tail
        return
    lower, upper = ranks
    assert upper == n + 1 - lower
    assert binom.cdf(lower - 1, n, 0.5) <= tail < binom.cdf(lower, n, 0.5)
    interval = median_interval(np.arange(1, n + 1), confidence=confidence)
    assert (interval.low, interval.high) == (lower, upper)
    exact = binom.cdf(upper - 1, n, 0.5) - binom.cdf(lower - 1, n, 0.5)
    assert interval.coverage == pytest.approx(exact, abs=1e-12)
    assert interval.coverage >= confidence


@given(n=st.integers(1, 3000), quantile=st.sampled_from([0.05, 0.25, 0.9, 0.95, 0.99]))
def test_quantile_ranks_hold_each_tail_and_cannot_be_tightened(n, quantile):
    ranks = quantile_ranks(n, quantile=quantile)
    if ranks is None:
        assert binom.cdf(0, n, quantile) > 0.025 or binom.cdf(0, n, 1 - quantile) > 0.025
        return
    lower, upper = ranks
    assert binom.cdf(lower - 1, n, quantile) <= 0.025 < binom.cdf(lower, n, quantile)
    assert binom.sf(upper - 1, n, quantile) <= 0.025 < binom.sf(upper - 2, n, quantile)


def test_six_pairs_are_the_fewest_with_a_95_percent_interval():
    assert pairs_for_interval() == 6
    assert median_interval([1, 2, 3, 4, 5]) is None
    assert median_interval([1, 2, 3, 4, 5, 6]).coverage == 1 - 2 / 2**6
    assert pairs_for_interval(confidence=0.99) == 8
    assert pairs_for_interval(family=9) == 9


def test_the_99th_percentile_needs_368_values():
    assert quantile_ranks(367, quantile=0.99) is None
    assert quantile_ranks(368, quantile=0.99) == (360, 368)


def test_effective_n_widens_the_interval_to_that_of_fewer_values():
    ordered = np.arange(1.0, 4001.0)
    alone = quantile_interval(ordered)
    worth_21 = quantile_interval(ordered, effective_n=21)
    assert (alone.low, alone.high) == quantile_ranks(4000)
    lower, upper = quantile_ranks(21)
    assert worth_21.low == pytest.approx(lower / 22 * 4001, abs=1)
    assert worth_21.high == pytest.approx(upper / 22 * 4001, abs=1)
    assert quantile_interval(ordered, quantile=0.99, effective_n=21) is None


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=60))
def test_sign_p_is_below_alpha_exactly_when_the_interval_leaves_zero_out(values):
    interval = median_interval(values)
    left_out = interval is not None and not interval.holds(0)
    assert (sign_test_p(values) <= 0.05) == left_out


@given(st.lists(st.floats(-5, 5).filter(lambda x: x != 0), min_size=1, max_size=80))
def test_sign_p_equals_the_binomial_test_where_nothing_ties(values):
    positive = sum(v > 0 for v in values)
    assert sign_test_p(values) == pytest.approx(binomtest(positive, len(values)).pvalue)


def test_median_interval_covers_a_skewed_median_as_often_as_it_says():
    rng = np.random.default_rng(7)
    samples = rng.exponential(size=(4000, 25))
    median = np.log(2)
    held = np.mean([median_interval(s).holds(median) for s in samples])
    exact = median_interval(samples[0]).coverage
    assert held == pytest.approx(exact, abs=3 * np.sqrt(exact * (1 - exact) / 4000))


@settings(max_examples=30)
@given(st.integers(1, 10))
def test_a_family_shares_the_error(family):
    values = np.random.default_rng(1).normal(size=200)
    alone = median_interval(values)
    shared = median_interval(values, family=family)
    assert shared.low <= alone.low
    assert shared.high >= alone.high
    assert shared.coverage >= 1 - 0.05 / family


@pytest.mark.parametrize("confidence", [0.0, 0.4, 1.0, 1.5, float("nan")])
def test_a_confidence_that_cannot_be_is_refused(confidence):
    with pytest.raises(UsageError, match="outside 0\\.5 to 1"):
        median_interval([1, 2, 3], confidence=confidence)


def test_values_that_are_not_numbers_are_refused_with_the_place():
    with pytest.raises(UsageError, match="the first at index 1"):
        median_interval([1.0, float("nan"), float("inf")])
    with pytest.raises(UsageError, match="hold no value"):
        median_interval([])
    with pytest.raises(UsageError, match="not numbers"):
        median_interval(["a"])
    with pytest.raises(UsageError, match="2 dimensions"):
        median_interval([[1.0], [2.0]])
    with pytest.raises(UsageError, match="family of 0"):
        median_interval([1.0], family=0)
