"""Unpaired comparisons agree with scipy, and never forget that the order is unknown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import brunnermunzel

from excise.errors import UsageError
from excise.stats import Note, Verdict, compare_unpaired, runs_for_difference

SAMPLES = hnp.arrays(np.float64, st.integers(6, 30), elements=st.integers(1, 50).map(float))


@given(SAMPLES, SAMPLES)
def test_p_value_and_delta_are_those_of_the_definition(a, b):
    result = compare_unpaired(a, b, resamples=200)
    above = (b[:, None] > a).mean()
    below = (b[:, None] < a).mean()
    assert result.cliffs_delta == pytest.approx(above - below, abs=1e-12)
    assert result.probability_greater == pytest.approx((1 + above - below) / 2)
    assert result.order == "unknown"
    assert Note.UNKNOWN_ORDER in result.notes
    if 0 < above < 1 and 0 < below < 1:
        assert result.brunner_munzel_p == pytest.approx(brunnermunzel(a, b).pvalue, abs=1e-9)
    assert result.probability_interval.holds(result.probability_greater)


@given(SAMPLES, SAMPLES)
def test_exchanging_the_samples_mirrors_the_result(a, b):
    one, two = compare_unpaired(a, b, resamples=200), compare_unpaired(b, a, resamples=200)
    assert two.ratio == pytest.approx(1 / one.ratio)
    assert two.cliffs_delta == pytest.approx(-one.cliffs_delta, abs=1e-12)
    assert two.brunner_munzel_p == pytest.approx(one.brunner_munzel_p)
    assert two.probability_interval.low == pytest.approx(1 - one.probability_interval.high)


def test_intervals_cover_under_unequal_spread():
    rng = np.random.default_rng(1)
    held = ratio_held = 0
    for seed in range(400):
        a, b = rng.lognormal(0, 0.05, 40), 1.1 * rng.lognormal(0, 0.2, 25)
        result = compare_unpaired(a, b, seed=seed, resamples=400)
        # P(B > A) of two normals in ln
        held += result.probability_interval.holds(_normal_cdf(np.log(1.1) / np.hypot(0.05, 0.2)))
        ratio_held += result.interval.holds(1.1)
    assert held / 400 > 0.92
    assert ratio_held / 400 > 0.92


def _normal_cdf(x):
    from scipy.special import ndtr

    return float(ndtr(x))


def test_samples_that_do_not_overlap_get_an_exact_bound():
    result = compare_unpaired([1, 2, 3, 4, 5, 6.5], [10, 11, 12, 13, 14, 15.5, 16])
    assert result.cliffs_delta == 1
    assert result.brunner_munzel_p == pytest.approx(2 / 1716)  # of 13 values, 6 are the baseline's
    assert result.probability_interval.low == pytest.approx(0.025 ** (1 / 6))
    assert Note.SEPARATED in result.notes
    assert result.verdict is Verdict.COSTS


def test_samples_that_all_tie_say_nothing_below_their_resolution():
    result = compare_unpaired([0.1] * 9, [0.1] * 8)
    assert result.cliffs_delta == 0
    assert result.brunner_munzel_p == 1
    assert result.probability_interval.low < 0.4
    assert result.probability_interval.high > 0.6
    assert result.verdict is Verdict.INCONCLUSIVE
    assert compare_unpaired([0.1] * 9, [0.1] * 8, resolution=0).verdict is Verdict.EQUIVALENT


def test_a_given_resolution_widens_the_interval_on_both_sides():
    rng = np.random.default_rng(4)
    a, b = rng.lognormal(0, 0.1, 50), rng.lognormal(0, 0.1, 50)
    bare = compare_unpaired(a, b, resolution=0).interval
    wide = compare_unpaired(a, b, resolution=0.05 * np.median(a)).interval
    assert wide.low == pytest.approx(bare.low / 1.05)
    assert wide.high == pytest.approx(bare.high * 1.05)


def test_few_values_are_inconclusive_without_intervals():
    result = compare_unpaired([1.0, 1.1], [2.0, 2.1, 2.2])
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.interval is None
    assert result.probability_interval is None
    assert result.brunner_munzel_p is None
    assert result.change_percent == pytest.approx(100)
    assert Note.TOO_FEW_PAIRS in result.notes


def test_a_difference_needs_both_the_ratio_and_the_test():
    rng = np.random.default_rng(2)
    a, b = rng.lognormal(0, 0.1, 60), 1.2 * rng.lognormal(0, 0.1, 60)
    assert compare_unpaired(a, b).verdict is Verdict.COSTS
    assert compare_unpaired(b, a).verdict is Verdict.SAVES
    assert compare_unpaired(a, rng.lognormal(0, 0.1, 60)).verdict is Verdict.INCONCLUSIVE
    # The median of b is 5 % higher, and yet b is as often below a as above it.
    near = np.linspace(0.999, 1.001, 1760)
    a = np.concatenate((near, np.linspace(1.99, 2.01, 240)))
    b = np.concatenate((near[:880] / 2, 1.05 * near[:1120]))
    found = compare_unpaired(a, b)
    assert found.interval.low > 1.02
    assert found.brunner_munzel_p > 0.05
    assert found.verdict is Verdict.INCONCLUSIVE


def test_misuse_is_refused():
    with pytest.raises(UsageError, match="other values hold 1 values that are not above zero"):
        compare_unpaired([1], [-1])
    with pytest.raises(UsageError, match="too few"):
        compare_unpaired([1], [1], resamples=1)


def test_a_greater_difference_never_has_the_greater_p_value():
    small = [647, 649, 653, 654, 664, 664, 667, 673, 699, 1351]
    apart = [2490, 2491, 2530, 2569, 2629, 2710, 4296, 4499, 5165, 6603]
    barely = [1350, *apart[1:]]  # one value below one of the other sample
    nearly = [660, *apart[1:]]
    far, near, nearer = (compare_unpaired(small, other) for other in (apart, barely, nearly))
    assert far.brunner_munzel_p == pytest.approx(2 / 184_756)
    assert far.brunner_munzel_p <= near.brunner_munzel_p <= nearer.brunner_munzel_p


def test_so_many_runs_it_takes_to_state_a_difference_and_one_fewer_states_none():
    for family, n in ((1, 6), (23, 6), (24, 7), (85, 7), (86, 8)):
        assert runs_for_difference(family=family) == n
    apart = np.arange(1.0, 7.0)
    assert compare_unpaired(apart, 10 * apart).verdict is Verdict.COSTS
    assert compare_unpaired(apart[:5], 10 * apart[:5]).verdict is Verdict.INCONCLUSIVE
    with pytest.raises(UsageError, match="a family of 0 comparisons cannot be"):
        runs_for_difference(family=0)
