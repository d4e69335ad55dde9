"""Fixed looks: the plan is valid, stopping follows the width, and the interval still covers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.stats import Decision, Note, pairs_for_interval, plan_looks, take_look


@given(
    first=st.integers(1, 50),
    extra=st.integers(0, 500),
    factor=st.floats(1.05, 4),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
def test_each_planned_look_has_an_interval(first, extra, factor, confidence):
    plan = plan_looks(first=first, last=16 + first + extra, factor=factor, confidence=confidence)
    assert plan.looks == tuple(sorted(set(plan.looks)))
    assert plan.looks[-1] == 16 + first + extra
    assert plan.looks[0] >= pairs_for_interval(confidence=confidence, family=len(plan.looks))


def test_the_default_plan_doubles():
    assert plan_looks().looks == (20, 40, 80, 160, 320)


def measure(rng, n, noise):
    return np.ones(n), np.exp(0.02 + noise * rng.normal(size=n))


def test_it_stops_at_the_first_look_that_is_narrow_enough():
    plan = plan_looks(target_half_width_ratio=0.01)
    baseline, other = measure(np.random.default_rng(1), 320, 0.03)
    decisions = [take_look(baseline[:n], other[:n], plan=plan) for n in plan.looks]
    widths = [look.half_width_ratio for look in decisions]
    reached = next(i for i, width in enumerate(widths) if width <= 0.01)
    assert reached > 0
    assert all(look.decision is Decision.CONTINUE for look in decisions[:reached])
    assert decisions[reached].decision is Decision.STOP_REACHED
    assert decisions[0].next_pairs == 40
    assert decisions[reached].next_pairs is None
    assert decisions[0].comparison.family == 5


def test_an_interval_exactly_as_wide_as_asked_is_narrow_enough():
    baseline, other = measure(np.random.default_rng(1), 40, 0.03)
    wide = plan_looks(target_half_width_ratio=1e-9)
    look = take_look(baseline, other, plan=wide)
    interval = look.comparison.interval
    half = np.log(interval.high / interval.low) / 2
    assert look.half_width_ratio == pytest.approx(half, rel=1e-12)
    reached = take_look(
        baseline, other, plan=plan_looks(target_half_width_ratio=look.half_width_ratio)
    )
    assert reached.decision is Decision.STOP_REACHED


def test_it_says_when_the_target_was_not_reached():
    plan = plan_looks(last=80, target_half_width_ratio=1e-4)
    look = take_look(*measure(np.random.default_rng(2), 80, 0.05), plan=plan)
    assert look.decision is Decision.STOP_EXHAUSTED
    assert look.number == 3
    assert Note.TOO_FEW_PAIRS not in look.comparison.notes


def test_the_interval_at_the_stop_covers_as_often_as_it_says():
    rng = np.random.default_rng(3)
    plan = plan_looks(first=20, last=160, target_half_width_ratio=0.012)
    held = 0
    for _ in range(400):
        baseline, other = measure(rng, 160, 0.03)
        for n in plan.looks:
            look = take_look(baseline[:n], other[:n], plan=plan)
            if look.decision is not Decision.CONTINUE:
                break
        held += look.comparison.interval.holds(np.exp(0.02))
    assert held / 400 >= 0.95


def test_an_unplanned_look_is_refused():
    with pytest.raises(UsageError, match="21 pairs are not a planned look"):
        take_look([1.0] * 21, [1.0] * 21, plan=plan_looks())


def test_a_plan_that_cannot_be_is_refused():
    with pytest.raises(UsageError, match="5 pairs have no interval"):
        plan_looks(last=5)
    with pytest.raises(UsageError, match="not above 0"):
        plan_looks(target_half_width_ratio=0)
    with pytest.raises(UsageError, match="factor is 1"):
        plan_looks(factor=1)
