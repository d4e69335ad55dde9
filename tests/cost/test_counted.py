"""Counts of guests: steady values, the noise floor of A/A guests, and verdicts that rest on it."""

from __future__ import annotations

import pytest

from cost_counted import GUESTS, counted
from excise.cost.comparison import compare_configurations, compare_datasets
from excise.cost.gate import judge
from excise.cost.series import series_of
from excise.stats import Verdict


def test_counts_are_instructions_and_no_time() -> None:
    series = {each.configuration: each for each in series_of(counted(GUESTS))}
    assert {(each.metric, each.unit) for each in series.values()} == {
        ("op_instructions", "instructions")
    }
    assert series["selinux"].values.tolist() == [1200.0, 1200.0, 1300.0]
    assert series["selinux"].first == 900.0


def test_a_difference_is_known_to_within_what_a_a_guests_differ_by() -> None:
    found = {row.configuration: row for row in compare_configurations(counted(GUESTS)).rows}
    assert list(found) == ["yama", "selinux"]
    selinux = found["selinux"]
    assert (selinux.baseline_value, selinux.value, selinux.ratio) == (1000.0, 1200.0, 1.2)
    assert selinux.noise_ratio == pytest.approx(0.001)
    assert (selinux.low, selinux.high) == pytest.approx((1.2 / 1.001, 1.2 * 1.001))
    assert selinux.verdict is Verdict.COSTS
    assert found["yama"].verdict is Verdict.EQUIVALENT
    assert {row.order for row in found.values()} == {"exact counts"}


def test_a_difference_below_the_floor_costs_nothing_whatever_the_margin() -> None:
    rows = compare_configurations(counted(GUESTS), margin_ratio=0.0001).rows
    assert rows[0].verdict is Verdict.INCONCLUSIVE
    assert rows[0].low is not None
    assert rows[0].low < 1.0 < rows[0].ratio


def test_without_an_a_a_guest_there_is_no_interval() -> None:
    alone = {name: GUESTS[name] for name in ("none", "selinux")}
    [row] = compare_configurations(counted(alone)).rows
    assert (row.low, row.high, row.noise_ratio) == (None, None, None)
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "measured, not assumed" in row.notes[0]


def test_instructions_of_paired_runs_have_noise_like_any_time() -> None:
    [row, *_] = compare_configurations(counted(GUESTS, paired=True)).rows
    assert row.order == "paired blocks"


def test_two_captures_are_compared_with_the_larger_floor() -> None:
    quiet = {name: values for name, values in GUESTS.items() if name != "none (A/A 2)"}
    found = compare_datasets(counted(quiet), counted(GUESTS))
    assert [row.configuration for row in found.rows] == ["none", "yama", "selinux"]
    assert all(row.noise_ratio == pytest.approx(0.001) for row in found.rows)
    assert found.notes == ()


def test_the_gate_judges_counts() -> None:
    result = judge(counted(GUESTS), baseline="none", max_regression_ratio=0.05)
    assert not result.passed
    assert [line.split(":")[0] for line in result.failures] == ["stat under selinux"]
    allowed = judge(counted(GUESTS), baseline="none", max_regression_ratio=0.25)
    assert allowed.passed
