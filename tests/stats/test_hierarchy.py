"""Hierarchical bootstrap: deterministic, fair to levels, and covering."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.stats import Verdict, bootstrap_interval, hierarchical_ratio, median_replicates


def arm(rng, *, blocks, runs=2, batches=5, ratio=1.0, level=None):
    """Return levels[block][run] with noise at each of the three levels."""
    level = rng.normal(0, 0.1, blocks) if level is None else level
    return [
        [
            ratio * np.exp(level[b] + rng.normal(0, 0.02) + rng.normal(0, 0.01, batches))
            for _ in range(runs)
        ]
        for b in range(blocks)
    ]


@pytest.mark.parametrize("statistic", ["median_ln_ratio", "median", "mean"])
@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_same_seed_gives_the_same_interval(statistic, method):
    rng = np.random.default_rng(1)
    a, b = arm(rng, blocks=12), arm(rng, blocks=12, ratio=1.1)
    options = {"statistic": statistic, "method": method, "resamples": 300}
    one = hierarchical_ratio(a, b, seed=7, **options)
    assert one == hierarchical_ratio(a, b, seed=7, **options)
    assert one.interval != hierarchical_ratio(a, b, seed=8, **options).interval
    assert one.interval.low <= one.ratio <= one.interval.high
    assert (one.blocks, one.runs, one.values) == ((12, 12), (24, 24), (120, 120))


@pytest.mark.parametrize("statistic", ["median_ln_ratio", "mean"])
def test_the_interval_covers_the_true_ratio(statistic):
    rng = np.random.default_rng(2)
    held = 0
    for trial in range(150):
        level = rng.normal(0, 0.1, 20)
        a = arm(rng, blocks=20, level=level)
        b = arm(rng, blocks=20, level=level, ratio=1.03)
        result = hierarchical_ratio(a, b, seed=trial, resamples=300, statistic=statistic)
        held += result.interval.holds(1.03)
    assert held / 150 >= 0.92


def test_unpaired_levels_need_no_partner():
    rng = np.random.default_rng(3)
    result = hierarchical_ratio(
        arm(rng, blocks=10),
        arm(rng, blocks=14, ratio=1.5),
        seed=1,
        paired=False,
        statistic="mean",
        method="bca",
    )
    assert result.blocks == (10, 14)
    assert result.verdict is Verdict.COSTS


def test_many_batches_in_one_run_do_not_make_an_interval_narrow():
    rng = np.random.default_rng(4)
    level = rng.normal(0, 0.1, 12)
    few = hierarchical_ratio(
        arm(rng, blocks=12, level=level), arm(rng, blocks=12, level=level), seed=1
    )
    many = hierarchical_ratio(
        arm(rng, blocks=12, level=level, batches=200),
        arm(rng, blocks=12, level=level, batches=200),
        seed=1,
    )
    assert many.interval.half_width > few.interval.half_width / 3


@settings(max_examples=40)
@given(st.data())
def test_ragged_levels_reduce_as_numpy_does(data):
    values = st.lists(st.floats(0.1, 10), min_size=1, max_size=4)
    levels = st.lists(st.lists(values, min_size=1, max_size=3), min_size=2, max_size=5)
    a = data.draw(levels)
    b = data.draw(
        st.lists(st.lists(values, min_size=1, max_size=3), min_size=len(a), max_size=len(a))
    )
    for statistic, reduce in (("median", np.median), ("mean", np.mean)):
        slow = [reduce([reduce([reduce(run) for run in block]) for block in x]) for x in (a, b)]
        result = hierarchical_ratio(a, b, seed=0, resamples=200, statistic=statistic)
        assert result.ratio == pytest.approx(slow[1] / slow[0])
    logs = [
        np.log(np.median([np.median(r) for r in y]) / np.median([np.median(r) for r in x]))
        for x, y in zip(a, b, strict=True)
    ]
    result = hierarchical_ratio(a, b, seed=0, resamples=200)
    assert result.ratio == pytest.approx(np.exp(np.median(logs)))


def test_few_blocks_have_no_interval():
    rng = np.random.default_rng(5)
    result = hierarchical_ratio(arm(rng, blocks=5), arm(rng, blocks=5, ratio=2), seed=1)
    assert result.interval is None
    assert result.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("n", [5, 6, 31])
def test_drawn_medians_are_distributed_as_bootstrap_medians(n):
    rng = np.random.default_rng(6)
    ordered = np.sort(rng.exponential(size=n))
    fast = median_replicates(ordered, resamples=40_000, rng=rng)
    slow = np.median(rng.choice(ordered, size=(40_000, n)), axis=1)
    for level in (0.025, 0.25, 0.5, 0.75, 0.975):
        at = np.quantile(slow, level)
        assert (fast <= at).mean() == pytest.approx((slow <= at).mean(), abs=0.015)


def test_bca_agrees_with_scipy():
    from scipy.stats import bootstrap

    rng = np.random.default_rng(7)
    x = rng.exponential(size=40)
    theirs = bootstrap((x,), np.mean, n_resamples=20_000, method="BCa", rng=rng)
    replicates = theirs.bootstrap_distribution
    jackknife = np.array([np.delete(x, i).mean() for i in range(x.size)])
    ours = bootstrap_interval(replicates, estimate=x.mean(), jackknife=jackknife, method="bca")
    assert ours.low == pytest.approx(theirs.confidence_interval.low, rel=1e-3)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, rel=1e-3)


@pytest.mark.parametrize(
    ("levels", "options", "message"),
    [
        ([], {}, "baseline has no block"),
        ([[]], {}, "baseline block 0 has no run"),
        ([[[]]], {}, "block 0, run 0 hold no value"),
        ([[[1.0], [0.0]]], {}, "run 1 hold 1 values that are not above zero"),
        ([[[1.0]], [[1.0]]], {}, "2 baseline blocks cannot be paired with 1"),
        ([[[1.0]]], {"resamples": 10}, "10 resamples are too few"),
        ([[[1.0]]], {"statistic": "mode"}, "unknown statistic 'mode'"),
        ([[[1.0]]], {"paired": False}, "needs paired blocks"),
        ([[[1.0]] * 6], {"margin_ratio": -1}, "margin_ratio is -1"),
    ],
)
def test_misuse_is_refused_with_its_reason(levels, options, message):
    with pytest.raises(UsageError, match=message):
        hierarchical_ratio(levels, [[[1.0]]], seed=0, **options)


def test_an_unknown_bootstrap_method_is_refused():
    with pytest.raises(UsageError, match="unknown bootstrap method"):
        bootstrap_interval(np.ones(300), estimate=1.0, method="magic")
    with pytest.raises(UsageError, match="BCa needs jackknife"):
        bootstrap_interval(np.ones(300), estimate=1.0, method="bca")
