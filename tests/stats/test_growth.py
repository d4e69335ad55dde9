"""Growth with the run number, on series that grow by known laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.stats import growth


@settings(max_examples=40, derandomize=True)
@given(
    seed=st.integers(0, 2**32),
    n=st.integers(60, 1500),
    rise=st.floats(0.2, 5),
    power=st.sampled_from([1.0, 2.0]),
    unit=st.sampled_from([1e-6, 1.0, 1e9]),
)
def test_the_exponent_interval_holds_one_for_linear_and_two_for_quadratic(
    seed, n, rise, power, unit
):
    x = np.arange(1, n + 1)
    noise = 0.01 * np.random.default_rng(seed).normal(size=n)
    result = growth(x, unit * (1 + rise * (x / n) ** power + noise), confidence=0.999)
    assert result.grows
    assert result.exponent_interval.holds(power)
    assert not result.exponent_interval.holds(3 - power)
    assert not result.mean_is_meaningful


@settings(max_examples=40)
@given(
    n=st.integers(12, 3000),
    start=st.floats(1, 1e6),
    rise=st.floats(0.05, 100),
    power=st.sampled_from([1.0, 2.0]),
)
def test_without_noise_the_exponent_is_exact(n, start, rise, power):
    x = np.arange(1, n + 1)
    result = growth(x, start * (1 + rise * (x / n) ** power))
    assert result.exponent == power
    assert result.exponent_interval.holds(power)
    assert result.exponent_interval.half_width <= 0.06
    assert result.model == ("n" if power == 1 else "n^2")
    assert result.starts_at == 1


def test_the_exponent_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(1)
    x = np.arange(1, 101)
    held = np.mean(
        [
            growth(x, 1 + x / 100 + 0.05 * rng.normal(size=100)).exponent_interval.holds(1)
            for _ in range(100)
        ]
    )
    assert held >= 0.9


@pytest.mark.parametrize(
    ("model", "law"),
    [
        ("log n", np.log),
        ("n", lambda x: x),
        ("n log n", lambda x: x * np.log(x)),
        ("n^2", np.square),
    ],
)
def test_each_law_is_recognised(model, law):
    rng = np.random.default_rng(2)
    x = np.arange(1, 2001)
    g = law(x.astype(float))
    result = growth(x, 10 + 10 * g / g.max() + 0.05 * rng.normal(size=x.size))
    assert result.model == model
    assert result.models[0].weight > 0.9
    assert sum(m.weight for m in result.models) == pytest.approx(1)
    assert [m.aic for m in result.models] == sorted(m.aic for m in result.models)
    assert result.change_ratio == pytest.approx(1, abs=0.03)


def test_the_slope_is_in_units_per_run():
    rng = np.random.default_rng(3)
    x = np.arange(1, 301)
    result = growth(x, 500 + 0.25 * x + rng.normal(size=300))
    assert result.slope == pytest.approx(0.25, rel=0.02)
    assert result.slope_interval.low < 0.25 < result.slope_interval.high


def test_the_start_of_late_growth_is_found():
    rng = np.random.default_rng(4)
    x = np.arange(1, 1001)
    result = growth(x, 1 + np.maximum(0, x - 400) / 1000 + 0.01 * rng.normal(size=1000))
    assert result.starts_at == pytest.approx(400, abs=40)
    assert result.exponent_interval.holds(1)


def test_flat_noise_keeps_its_mean():
    rng = np.random.default_rng(5)
    x = np.arange(1, 201)
    results = [growth(x, 1 + 0.05 * rng.normal(size=200)) for _ in range(100)]
    assert np.mean([r.mean_is_meaningful for r in results]) >= 0.95
    quiet = next(r for r in results if r.mean_is_meaningful)
    assert quiet.model == "1"
    assert quiet.exponent is None
    assert quiet.starts_at is None


def test_a_change_below_the_margin_is_no_growth():
    x = np.arange(1, 101)
    assert not growth(x, 1 + 0.005 * x / 100).grows
    assert growth(x, 1 + 0.005 * x / 100, margin_ratio=0.001).grows


def test_a_falling_series_shrinks():
    x = np.arange(1, 101)
    result = growth(x, 2 - x / 100)
    assert result.shrinks
    assert not result.grows
    assert not result.mean_is_meaningful
    assert result.slope == pytest.approx(-0.01)


def test_outliers_do_not_choose_the_exponent():
    rng = np.random.default_rng(6)
    x = np.arange(1, 401)
    y = 1 + x / 400 + 0.01 * rng.normal(size=400)
    y[[30, 200, 390]] += 5
    result = growth(x, y)
    assert result.exponent_interval.holds(1)
    assert result.exponent == pytest.approx(1, abs=0.05)


@settings(max_examples=30)
@given(st.integers(0, 2**32))
def test_the_order_of_runs_does_not_matter(seed):
    rng = np.random.default_rng(seed)
    x = np.arange(1, 81)
    y = 1 + x / 80 + 0.02 * rng.normal(size=80)
    shuffled = rng.permutation(80)
    assert growth(x, y) == growth(x[shuffled], y[shuffled])


def test_few_runs_show_no_growth():
    result = growth([1, 2, 3], [1, 2, 3])
    assert not result.grows
    assert result.slope is None
    assert result.mean_is_meaningful
    assert growth([1] * 20, np.arange(20)).slope is None


def test_constant_and_zero_values_do_not_grow():
    x = np.arange(50)
    assert not growth(x, np.zeros(50)).grows
    assert not growth(x, np.full(50, 7.0)).grows


def test_misuse_is_refused():
    with pytest.raises(UsageError, match="2 run numbers do not fit 1 values"):
        growth([1, 2], [1])
    with pytest.raises(UsageError, match="run number -1 is negative"):
        growth([-1, 2], [1, 2])
    with pytest.raises(UsageError, match="margin_ratio"):
        growth([1], [1], margin_ratio=-1)
