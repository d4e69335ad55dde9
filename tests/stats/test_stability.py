"""Each piece of advice appears where it is due and not on clean series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from excise.errors import UsageError
from excise.stats import AdviceCode, count_outliers, judge_stability
from excise.stats.stability import split_share


def clean(rng, n=200):
    return np.exp(0.02 * rng.normal(size=n))


def codes(values, **options):
    return {advice.code for advice in judge_stability(values, **options).advice}


def test_clean_series_are_stable():
    rng = np.random.default_rng(1)
    results = [judge_stability(clean(rng)) for _ in range(100)]
    assert np.mean([r.is_stable for r in results]) >= 0.95


def test_a_slow_first_run_is_named_in_place_or_apart():
    values = clean(np.random.default_rng(2))
    assert codes(np.concatenate(([6.7], values))) == {AdviceCode.FIRST_RUN_OUTLIER}
    assert codes(values, first=6.7) == {AdviceCode.FIRST_RUN_OUTLIER}
    assert codes(values, first=1.0) == set()
    assert codes(values, first=0.1) == {AdviceCode.FIRST_RUN_OUTLIER}  # faster is as odd
    found = judge_stability(values, first=6.7).advice[0]
    assert "6.7" in found.found
    assert "first run" in found.action


def test_dependent_runs_are_told_what_they_are_worth():
    rng = np.random.default_rng(3)
    slow = lfilter([1.0], [1.0, -0.99], rng.normal(size=2000)) * 0.003
    assert AdviceCode.FEW_EFFECTIVE_SAMPLES in codes(np.exp(slow))


def test_warm_up_drift_and_unsteady_series_are_named():
    rng = np.random.default_rng(4)
    at = np.arange(300)
    assert AdviceCode.WARM_UP in codes(clean(rng, 300) * np.exp(0.2 * (at < 60)))
    assert AdviceCode.DRIFT in codes(clean(rng, 300) * np.exp(0.2 * at / 300))
    assert AdviceCode.DRIFT in codes(clean(rng, 300) * np.exp(-0.2 * (at < 60)))
    assert AdviceCode.NO_STEADY_STATE in codes(clean(rng, 300) * np.exp(0.2 * (at > 260)))


def test_two_modes_are_seen_and_one_skewed_or_flat_mode_is_not():
    rng = np.random.default_rng(5)
    two = clean(rng, 400) * np.exp(0.2 * (rng.random(400) < 0.3))
    assert AdviceCode.BIMODAL in codes(two)
    for one in (rng.lognormal(0, 0.5, 400), rng.uniform(1, 2, 400), 1 + rng.exponential(size=400)):
        assert AdviceCode.BIMODAL not in codes(one)


def test_outliers_are_counted_by_the_mad():
    rng = np.random.default_rng(6)
    values = clean(rng)
    values[:10] = 3.0
    rng.shuffle(values)
    assert count_outliers(values) == 10
    assert AdviceCode.OUTLIERS in codes(values)
    assert count_outliers([1.0] * 9 + [100.0]) == 0


def test_one_outlier_in_a_hundred_is_no_word_worth_and_two_are():
    values = clean(np.random.default_rng(7))[:100]
    for places, told in (([50], False), ([30, 60], True)):
        odd = values.copy()
        odd[places] = 2.0
        assert count_outliers(odd) == len(places)
        assert (AdviceCode.OUTLIERS in codes(odd)) == told


def test_coarse_values_are_told_their_step():
    values = np.round(clean(np.random.default_rng(7)), 2)
    assert codes(values) == {AdviceCode.COARSE_RESOLUTION}
    assert codes([0.1] * 30) == {AdviceCode.COARSE_RESOLUTION}
    assert codes([0.1] * 30, resolution=1e-9) == set()
    assert AdviceCode.COARSE_RESOLUTION in codes(clean(np.random.default_rng(7)), resolution=0.01)


def test_few_runs_are_not_called_stable():
    assert codes([1.0] * 5, resolution=0) == {AdviceCode.TOO_FEW_RUNS}


@settings(max_examples=50)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_a_split_explains_a_share_of_the_variance(values):
    explained, smaller, _ = split_share(values)
    assert 0 <= explained <= 1 + 1e-9
    assert 0 <= smaller <= 0.5


def test_split_of_a_normal_explains_two_over_pi():
    values = np.random.default_rng(8).normal(size=100_000)
    explained, smaller, valley = split_share(values)
    assert explained == pytest.approx(2 / np.pi, abs=0.01)
    assert smaller == pytest.approx(0.5, abs=0.02)
    assert not valley


def test_misuse_is_refused():
    with pytest.raises(UsageError, match="not above zero"):
        judge_stability([0.0])
    with pytest.raises(UsageError, match="first hold 1 values that are not above zero"):
        judge_stability([1.0] * 9, first=0)
    with pytest.raises(UsageError, match="resolution is -1"):
        judge_stability([1.0] * 9, resolution=-1)


def test_one_value_is_one_run_and_shows_no_steps() -> None:
    report = judge_stability(np.array([7e9]))
    assert [(each.code, each.found) for each in report.advice] == [
        (AdviceCode.TOO_FEW_RUNS, "a single run shows neither warm-up nor drift")
    ]
    coarse = judge_stability(np.array([20e6, 30e6, 20e6, 30e6] * 5)).advice
    steps = next(each for each in coarse if each.code == AdviceCode.COARSE_RESOLUTION)
    assert steps.found == "the values come in steps of 40.00% of the median"
