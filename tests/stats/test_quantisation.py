"""The step of a grid is found where there is one, and none is invented where there is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.stats import find_quantisation


def spread(seed=1, *, n=200, centre=9.0):
    return np.random.default_rng(seed).lognormal(centre, 0.3, n)


@pytest.mark.parametrize("step", [0.01, 0.001, 0.004, 1e-6])
def test_the_step_of_printed_seconds_is_found(step):
    values = np.round(spread(centre=np.log(step * 200)) / step) * step
    found = find_quantisation(values)
    assert found.step == pytest.approx(step)
    assert found.coarse


@pytest.mark.parametrize("hertz", [3e6, 24e6, 19.2e6, 54e6])
def test_the_tick_of_a_counter_is_found_in_rounded_nanoseconds(hertz):
    tick = 1e9 / hertz
    values = np.rint(np.round(spread(n=400) / tick) * tick)
    assert find_quantisation(values).step == pytest.approx(tick, rel=1e-4)


def test_a_third_of_a_microsecond_is_found_in_floats():
    values = np.round(spread(n=50) * 3) / 3
    assert find_quantisation(values).step == pytest.approx(1 / 3, rel=1e-9)


def test_nanoseconds_have_a_step_of_one_that_is_not_coarse():
    found = find_quantisation(np.rint(spread(centre=13)))
    assert found.step == 1
    assert not found.coarse


def test_continuous_values_have_no_step():
    rng = np.random.default_rng(2)
    for _ in range(500):
        found = find_quantisation(rng.normal(10, 1, rng.integers(3, 40)))
        assert found.step is None


def test_a_few_integers_do_not_share_a_step_by_chance():
    rng = np.random.default_rng(3)
    for _ in range(500):
        found = find_quantisation(rng.integers(900_000, 1_100_000, rng.integers(3, 30)))
        assert found.step in (None, 1)


@given(
    multiples=st.lists(st.integers(50, 500), min_size=40, max_size=200, unique=True),
    step=st.floats(1e-4, 1e4),
)
def test_multiples_of_any_step_give_that_step(multiples, step):
    shared = int(np.gcd.reduce(np.diff(np.sort(multiples))))
    found = find_quantisation(np.array(multiples) * step)
    assert found.step == pytest.approx(step * shared, rel=1e-6)


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=60))
def test_any_values_give_a_share_of_distinct_ones(values):
    found = find_quantisation(values)
    assert 1 <= found.distinct <= found.n == len(values)
    assert found.distinct_ratio == found.distinct / found.n
    assert found.step is None or found.step > 0


def test_constant_values_show_the_last_printed_digit_only():
    found = find_quantisation([0.1] * 20)
    assert found.step is None
    assert found.printed_step == pytest.approx(0.1)
    assert find_quantisation([4000] * 3).printed_step == 1000
    assert find_quantisation([0.0]).printed_step is None
    assert find_quantisation([1 / 3]).printed_step is None


def test_values_that_repeat_show_their_step_though_there_are_few_kinds():
    assert find_quantisation([100, 104, 112] * 20).step == 4
    assert find_quantisation([100, 104, 112]).step is None


def test_nothing_is_refused():
    with pytest.raises(UsageError, match="hold no value"):
        find_quantisation([])
