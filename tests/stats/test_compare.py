"""Paired comparisons: the verdict, its invariances, and its error rates by simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.signal import lfilter
from scipy.stats import false_discovery_control, wilcoxon

from excise.errors import UsageError
from excise.stats import (
    AAOutcome,
    Note,
    Verdict,
    check_aa,
    compare_paired,
    holm,
    pair_blocks,
    wilcoxon_test_p,
)

TIMES = hnp.arrays(np.float64, st.shared(st.integers(6, 40), key="n"), elements=st.floats(0.5, 2))


def noisy(rng, n, *, ratio=1.0, noise=0.02):
    """Return a baseline under common noise, and another arm at a ratio to it."""
    baseline = rng.lognormal(0, 0.1, n)
    return baseline, baseline * ratio * rng.lognormal(0, noise, n)


def test_a_clear_difference_costs_and_the_reverse_saves():
    baseline, other = noisy(np.random.default_rng(1), 60, ratio=1.05)
    result = compare_paired(baseline, other)
    assert result.verdict is Verdict.COSTS
    assert result.interval.low < 1.05 < result.interval.high
    assert result.runs_needed == 0
    assert result.low_percent < result.change_percent < result.high_percent
    assert compare_paired(other, baseline).verdict is Verdict.SAVES


def test_no_difference_is_equivalent_only_inside_the_margin():
    baseline, other = noisy(np.random.default_rng(2), 400, noise=0.01)
    assert compare_paired(baseline, other).verdict is Verdict.EQUIVALENT
    assert compare_paired(baseline, other, margin_ratio=1e-4).verdict is Verdict.INCONCLUSIVE


def test_a_real_but_negligible_difference_is_equivalent():
    baseline, other = noisy(np.random.default_rng(3), 400, ratio=1.003, noise=0.005)
    result = compare_paired(baseline, other)
    assert result.interval.low > 1
    assert result.verdict is Verdict.EQUIVALENT


def test_too_few_pairs_are_inconclusive_without_an_interval():
    for n in range(1, 6):
        result = compare_paired(np.ones(n), np.full(n, 2.0))
        assert result.verdict is Verdict.INCONCLUSIVE
        assert result.interval is None
        assert result.low_percent is None
        assert Note.TOO_FEW_PAIRS in result.notes
        assert result.runs_needed == 6 - n


def test_runs_needed_decide_in_about_four_of_five_campaigns():
    rng = np.random.default_rng(4)
    spread, ratio = 0.03, 1.012
    logs = np.log(ratio) + spread * rng.normal(size=20_000)
    needed = compare_paired(np.ones(40), np.exp(logs[:40])).runs_needed
    assert needed > 0
    # the exact need for the planted median and spread, at the same power
    s = spread * np.sqrt(np.pi / 2)
    total = ((1.96 + 0.8416) * s / np.log(ratio)) ** 2
    trials = logs[: 20_000 // round(total) * round(total)].reshape(-1, round(total))
    decided = [compare_paired(np.ones(t.size), np.exp(t)).verdict is Verdict.COSTS for t in trials]
    assert np.mean(decided) == pytest.approx(0.8, abs=0.1)


def test_runs_needed_estimates_the_order_of_the_true_need():
    rng = np.random.default_rng(5)
    spread, ratio = 0.03, 1.012
    total = ((1.96 + 0.8416) * spread * np.sqrt(np.pi / 2) / np.log(ratio)) ** 2
    pilots = [
        compare_paired(np.ones(60), ratio * np.exp(spread * rng.normal(size=60)))
        for _ in range(200)
    ]
    estimates = [p.runs_needed + 60 for p in pilots if p.runs_needed]
    assert total / 3 < np.median(estimates) < total * 3


@settings(max_examples=40)
@given(baseline=TIMES, other=TIMES, factor=st.floats(1e-9, 1e9))
def test_the_unit_of_the_values_does_not_matter(baseline, other, factor):
    a = compare_paired(baseline, other, resolution=0)
    b = compare_paired(baseline * factor, other * factor, resolution=0)
    assert b.ratio == pytest.approx(a.ratio)
    assert b.interval.low == pytest.approx(a.interval.low)
    assert b.interval.high == pytest.approx(a.interval.high)


@given(baseline=TIMES, other=TIMES)
def test_exchanging_the_arms_inverts_the_ratio(baseline, other):
    a = compare_paired(baseline, other, resolution=0)
    b = compare_paired(other, baseline, resolution=0)
    assert b.ratio == pytest.approx(1 / a.ratio)
    assert b.interval.low == pytest.approx(1 / a.interval.high)
    assert b.interval.high == pytest.approx(1 / a.interval.low)
    assert b.sign_p == pytest.approx(a.sign_p)
    opposite = {Verdict.COSTS: Verdict.SAVES, Verdict.SAVES: Verdict.COSTS}
    edge = 1.01
    assume(all(abs(abs(np.log(x)) - np.log(edge)) > 1e-9 for x in (a.interval.low, b.interval.low)))
    assert b.verdict is opposite.get(a.verdict, a.verdict)


@settings(max_examples=40)
@given(baseline=TIMES, other=TIMES, seed=st.integers(0, 2**32))
def test_the_order_of_rows_does_not_matter_when_blocks_are_named(baseline, other, seed):
    blocks = np.arange(baseline.size)
    shuffled = np.random.default_rng(seed).permutation(baseline.size)
    a = compare_paired(baseline, other, blocks=blocks)
    b = compare_paired(baseline[shuffled], other[shuffled], blocks=blocks[shuffled])
    assert a == b


@given(baseline=TIMES, other=TIMES)
def test_the_interval_holds_the_ratio(baseline, other):
    result = compare_paired(baseline, other)
    assert result.interval.low <= result.ratio * (1 + 1e-12)
    assert result.interval.high >= result.ratio * (1 - 1e-12)


def test_the_interval_covers_the_true_ratio_at_least_as_often_as_it_says():
    rng = np.random.default_rng(6)
    held = 0
    for _ in range(1000):
        baseline, other = noisy(rng, 30, ratio=1.04, noise=0.05)
        held += compare_paired(baseline, other).interval.holds(1.04)
    assert held / 1000 > 0.94


def drifting(rng, n):
    """Return a strongly autocorrelated AR(1) level with drift on top, in ln."""
    level = lfilter([1.0], [1.0, -0.9], rng.normal(size=n) * 0.02)
    return level + np.linspace(0, 0.3, n)


def test_aa_fails_in_at_most_5_percent_under_drift_in_randomised_blocks():
    rng = np.random.default_rng(8)
    failed = 0
    for _ in range(1000):
        runs = np.exp(drifting(rng, 120)).reshape(60, 2)
        first = rng.integers(0, 2, 60)
        rows = np.arange(60)
        failed += check_aa(runs[rows, first], runs[rows, 1 - first]).outcome is AAOutcome.FAILED
    assert failed / 1000 <= 0.05


def test_a_planted_difference_is_found_under_the_same_drift():
    rng = np.random.default_rng(9)
    found = 0
    for _ in range(200):
        runs = np.exp(drifting(rng, 120)).reshape(60, 2)
        first = rng.integers(0, 2, 60)
        rows = np.arange(60)
        result = compare_paired(runs[rows, first], runs[rows, 1 - first] * 1.027)
        found += result.verdict is Verdict.COSTS
    assert found / 200 > 0.95


def test_a_failed_aa_arm_makes_everything_not_comparable():
    baseline, other = noisy(np.random.default_rng(10), 60, ratio=1.05)
    check = check_aa(baseline, other)
    assert check.outcome is AAOutcome.FAILED
    assert not check.passed
    assert check.interval.low > 1
    result = compare_paired(baseline, other, aa=check)
    assert result.verdict is Verdict.NOT_COMPARABLE
    assert Note.AA_FAILED in result.notes
    assert result.runs_needed is None


def test_an_aa_arm_of_few_pairs_is_not_covered_rather_than_passed():
    check = check_aa([1.0] * 5, [1.0] * 5)
    assert check.outcome is AAOutcome.NOT_COVERED
    assert not check.passed
    assert Note.AA_NOT_COVERED in compare_paired([1.0] * 9, [1.2] * 9, aa=check).notes
    assert check_aa([1.0] * 6, [1.0] * 6).passed


def test_values_equal_by_coarse_printing_are_not_called_equivalent():
    result = compare_paired([0.10] * 30, [0.10] * 30)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.resolution_ratio >= 0.1
    assert {Note.MOSTLY_TIED, Note.RESOLUTION_LIMITS} <= set(result.notes)
    assert result.runs_needed is None
    assert compare_paired([0.10] * 30, [0.10] * 30, resolution=0).verdict is Verdict.EQUIVALENT


def test_a_step_is_looked_for_from_half_of_the_pairs_that_tie():
    baseline = [1.0, 1.1, 1.2, 1.0, 1.1, 1.2]
    half = compare_paired(baseline, [1.0, 1.1, 1.2, 1.1, 1.2, 1.3])
    assert (half.tied, half.resolution_ratio) == (3, pytest.approx(0.1 / 1.1))
    fewer = compare_paired(baseline, [1.0, 1.1, 1.3, 1.1, 1.2, 1.3])
    assert (fewer.tied, fewer.resolution_ratio) == (2, 0.0)


def test_a_given_resolution_widens_the_interval():
    baseline, other = noisy(np.random.default_rng(12), 60, ratio=1.02)
    bare = compare_paired(baseline, other)
    wide = compare_paired(baseline, other, resolution=0.05)
    share = 1 + 0.05 / np.median(baseline)
    assert wide.interval.low == pytest.approx(bare.interval.low / share)
    assert wide.interval.high == pytest.approx(bare.interval.high * share)
    assert Note.RESOLUTION_LIMITS in wide.notes


def test_ratios_that_depend_on_each_other_are_flagged():
    rng = np.random.default_rng(14)
    slow = lfilter([1.0], [1.0, -0.9], rng.normal(size=100)) * 0.02
    assert Note.DEPENDENT_PAIRS in compare_paired(np.ones(100), np.exp(slow)).notes
    quiet = [compare_paired(*noisy(rng, 60)).notes for _ in range(100)]
    assert sum(Note.DEPENDENT_PAIRS in notes for notes in quiet) <= 2


def test_disagreement_of_the_two_tests_is_flagged():
    # 14 small gains against 26 larger losses: the signs are not decisive, the ranks are
    logs = np.concatenate((-np.linspace(0.001, 0.002, 14), np.linspace(0.01, 0.02, 26)))
    result = compare_paired(np.ones(40), np.exp(logs))
    assert result.sign_p > 0.05 > result.wilcoxon_p
    assert Note.TESTS_DISAGREE in result.notes


@given(hnp.arrays(np.int64, st.integers(1, 40), elements=st.integers(-9, 9)))
def test_wilcoxon_with_ties_is_scipys_normal_approximation_with_pratts_zeros(values):
    assume(0 in values or np.unique(np.abs(values)).size < values.size)
    if not values.any():
        assert wilcoxon_test_p(values) == 1
    else:
        theirs = wilcoxon(values, zero_method="pratt", method="asymptotic").pvalue
        assert wilcoxon_test_p(values) == pytest.approx(theirs)


@given(st.sets(st.integers(1, 1000), min_size=1, max_size=40), st.integers(0, 2**32))
def test_wilcoxon_without_ties_is_exact(sizes, seed):
    values = np.array(list(sizes)) * np.random.default_rng(seed).choice([-1, 1], len(sizes))
    assert wilcoxon_test_p(values) == wilcoxon(values, method="exact").pvalue


def test_blocks_reduce_to_medians_and_orphans_are_counted():
    pairs = pair_blocks(
        [1, 2, 3, 10, 20, 7],
        [5, 6, 8],
        blocks=["b", "b", "b", "a", "a", "c"],
        other_blocks=["b", "a", "d"],
    )
    assert pairs.blocks.tolist() == ["a", "b"]
    assert pairs.baseline.tolist() == [15, 2]
    assert pairs.other.tolist() == [6, 5]
    assert (pairs.baseline_only, pairs.other_only) == (1, 1)
    more = pair_blocks([1, 2, 3, 4], [1, 2], blocks=[1, 2, 3, 4], other_blocks=[1, 9])
    assert (more.baseline_only, more.other_only) == (3, 1)
    result = compare_paired([1, 2], [3, 4], blocks=[0, 1], other_blocks=[1, 2])
    assert Note.BLOCKS_LEFT_OUT in result.notes
    assert result.ratio == pytest.approx(1.5)


@settings(max_examples=50)
@given(
    values=hnp.arrays(np.float64, 30, elements=st.floats(0.1, 10)),
    labels=hnp.arrays(np.int64, 30, elements=st.integers(0, 6)),
)
def test_block_medians_are_numpys(values, labels):
    pairs = pair_blocks(values, values, blocks=labels)
    slow = [np.median(values[labels == label]) for label in np.unique(labels)]
    assert pairs.baseline.tolist() == pytest.approx(slow)


@pytest.mark.parametrize(
    ("baseline", "other", "options", "message"),
    [
        ([1, 0], [1, 1], {}, "baseline values hold 1 values that are not above zero"),
        ([1, 1], [1, -2], {}, "other values hold 1 values that are not above zero, the first -2"),
        ([1, 1], [1, float("nan")], {}, "not finite"),
        ([], [], {}, "hold no value"),
        ([1, 1], [1], {}, "cannot be paired"),
        ([1], [1], {"blocks": [1], "other_blocks": [2]}, "no block holds both arms"),
        ([1], [1], {"other_blocks": [2]}, "for one arm only"),
        ([1, 2], [1, 2], {"blocks": [1]}, "there are 2 values"),
        ([1], [1], {"margin_ratio": -0.1}, "margin_ratio is -0.1"),
        ([1], [1], {"resolution": -1}, "resolution is -1"),
    ],
)
def test_misuse_is_refused_with_its_reason(baseline, other, options, message):
    with pytest.raises(UsageError, match=message):
        compare_paired(baseline, other, **options)


@given(hnp.arrays(np.float64, st.integers(1, 20), elements=st.floats(0, 1)))
def test_holm_is_between_the_raw_and_the_bonferroni_p(p):
    adjusted = holm(p)
    assert (adjusted >= p).all()
    assert (adjusted <= np.minimum(1, p * p.size) + 1e-15).all()
    assert (np.diff(adjusted[np.argsort(p, kind="stable")]) >= 0).all()
    # never less strict than a method that controls the false discovery rate only
    assert (adjusted >= false_discovery_control(p) - 1e-12).all()


def test_holm_matches_a_worked_example():
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]).size == 0
    with pytest.raises(UsageError, match="from 0 to 1"):
        holm([1.2])
