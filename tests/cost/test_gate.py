"""The gate: what passes, what fails, and that nothing unjudged passes."""

from __future__ import annotations

import dataclasses

import msgspec
import polars as pl
import pytest

from captures import run
from cost_datasets import TWIN, dataset, event, paired_dataset, paired_runs
from excise.capture.journal import Aggregate, Session
from excise.cost.gate import GateResult, judge
from excise.errors import Refused, UsageError
from excise.events.dataset import Dataset
from excise.reference import load


def judged(
    ratio: float, *, limit: float = 0.02, strict: bool = False, **options: float
) -> GateResult:
    data = paired_dataset({"b": ratio}, **options)  # type: ignore[arg-type]
    return judge(data, baseline="none", max_regression_ratio=limit, strict=strict)


def test_a_cost_above_the_limit_fails_and_says_so() -> None:
    found = judged(1.1)
    assert not found.passed
    (failure,) = found.failures
    assert failure.startswith("t under b: +")
    assert failure.endswith("costs more than +2.0 %")
    assert found.lines[0].startswith("FAIL ")


@pytest.mark.parametrize("ratio", [0.8, 1.0, 1.01])
def test_costs_below_the_limit_pass(ratio: float) -> None:
    found = judged(ratio)
    assert found.passed
    assert found.failures == ()
    assert found.lines[0].startswith("ok  ")


def test_strict_fails_what_cannot_be_ruled_out() -> None:
    lenient = judged(1.0, noise=0.2)
    assert lenient.passed
    assert lenient.lines[0].endswith("; more than +2.0 % is not ruled out (--strict fails it)")
    assert "ruled out" not in judged(1.0).lines[0]
    strict = judged(1.0, noise=0.2, strict=True)
    assert not strict.passed
    assert "cannot be ruled out" in strict.failures[0]
    assert judged(1.0, strict=True).passed


def test_a_task_that_ran_once_everywhere_is_named_and_fails_nothing() -> None:
    runs = paired_runs({"none": 1.0, "b": 1.0})
    boots = [
        run(1000 + n, task="boot", configuration=arm, phase="first", wall_ns=10**9)
        for n, arm in enumerate(("none", "b"))
    ]
    plan = {"tasks": [{"name": "t"}, {"name": "boot"}], "configurations": [{"name": "b"}]}
    data = dataset([*runs, *boots], baseline="none", paired=True, campaign=plan)
    found = judge(data, baseline="none", max_regression_ratio=0.05)
    assert found.passed
    assert "--   boot under b: ran once, a first run: not judged" in found.lines
    between = judge(data, baseline="", other=data, max_regression_ratio=0.05)
    assert between.passed


def test_captures_of_one_configuration_each_are_judged_whatever_its_name() -> None:
    before = dataset(paired_runs({"before": 1.0}), name="one")
    for ratio, passes in ((1.0, True), (1.2, False)):
        after = dataset(paired_runs({"patched": ratio}, seed=2), name="two")
        found = judge(after, baseline="", other=before, max_regression_ratio=0.05)
        assert found.passed == passes
        assert found.lines[0].split(":")[0].endswith("t under patched")


def test_a_largest_cost_below_zero_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"largest cost that passes is -5%, below zero"):
        judged(1.0, limit=-0.05)
    assert judged(1.0).as_dict()["lines"] == list(judged(1.0).lines)


def test_too_few_blocks_for_an_interval_do_not_pass() -> None:
    found = judged(1.0, blocks=4)
    assert not found.passed
    assert "4 pairs are too few for an interval at 95 %: it takes at least 6" in found.failures[0]


def test_a_failed_a_a_arm_does_not_pass() -> None:
    data = paired_dataset({"b": 1.0, TWIN: 1.05})
    found = judge(data, baseline="none", max_regression_ratio=0.02)
    assert not found.passed
    assert "not comparable: the A/A arm differs" in found.failures[0]


def test_runs_that_all_failed_do_not_pass() -> None:
    records = [
        msgspec.structs.replace(each, ok=each.configuration != "b")
        for each in paired_runs({"none": 1.0, "b": 1.0})
    ]
    found = judge(
        dataset(records, baseline="none", paired=True), baseline="none", max_regression_ratio=0.5
    )
    assert found.failures == ("t under b: no ratio: not comparable: no counted run of b succeeded",)


def test_a_published_zero_does_not_pass() -> None:
    rows = [
        Aggregate(task="t", configuration=c, metric="duration", unit="ns", mean=mean)
        for c, mean in (("a", 0.0), ("b", 5.0))
    ]
    data = dataset(rows, origin="reference")
    found = judge(data, baseline="a", max_regression_ratio=0.5)
    assert found.failures == ("t under b: no ratio: there is no ratio",)


def test_published_values_are_judged_by_value() -> None:
    rows = [
        Aggregate(task="t", configuration=c, metric="duration", unit="ns", mean=mean)
        for c, mean in (("a", 4.0), ("b", 5.0))
    ]
    data = dataset(rows, origin="reference")
    assert judge(data, baseline="a", max_regression_ratio=0.3).passed
    assert judge(data, baseline="a", max_regression_ratio=0.25).passed  # as much as is allowed
    assert not judge(data, baseline="a", max_regression_ratio=0.2).passed
    assert judge(load("lsmpmon-2008"), baseline="None", max_regression_ratio=1e9).passed


def test_a_gate_that_judged_nothing_does_not_pass() -> None:
    empty = GateResult(compared=0, failures=(), lines=(), max_regression_ratio=0.1)
    assert not empty.passed
    assert dataclasses.replace(empty, compared=1).passed


def test_child_events_are_not_judged() -> None:
    runs = paired_runs({"none": 1.0, "b": 1.0})
    events = [
        event(each.sequence, "hook", 1000.0 * (9.0 if each.configuration == "b" else 1.0))
        for each in runs
    ]
    data = dataset([*runs, *events], baseline="none", paired=True)
    found = judge(data, baseline="none", max_regression_ratio=0.02)
    assert found.passed
    assert found.compared == 1


def test_two_captures_are_judged_the_second_being_the_baseline() -> None:
    old, new = paired_dataset({"b": 1.0}), paired_dataset({"b": 1.2}, seed=2)
    found = judge(new, baseline="old", other=old, max_regression_ratio=0.05)
    assert [failure.split(":")[0] for failure in found.failures] == ["t under b"]
    assert judge(old, baseline="new", other=new, max_regression_ratio=0.05).passed


def test_captures_of_different_machines_are_refused_unless_forced() -> None:
    from excise.capture.manifest import Fact

    old, new = (
        paired_dataset({"b": 1.0}, facts=[Fact(name="cpu.model", value=name, must_agree=True)])
        for name in ("A", "B")
    )
    with pytest.raises(Refused, match="different conditions"):
        judge(new, baseline="old", other=old, max_regression_ratio=0.05)
    assert judge(new, baseline="old", other=old, max_regression_ratio=0.05, force=True).passed


def test_an_unknown_baseline_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no configuration 'x'"):
        judge(paired_dataset({"b": 1.0}), baseline="x", max_regression_ratio=0.02)


def planned(data: Dataset, *tasks: str) -> Dataset:
    campaign = {
        "tasks": [{"name": name} for name in tasks],
        "configurations": [{"name": "none"}, {"name": "b"}],
    }
    manifest = msgspec.structs.replace(data.manifest, campaign=campaign)
    return dataclasses.replace(data, manifest=manifest)


def test_what_was_planned_and_not_measured_does_not_pass() -> None:
    data = paired_dataset({"b": 1.0})
    assert judge(planned(data, "t"), baseline="none", max_regression_ratio=0.02).passed
    found = judge(planned(data, "t", "u"), baseline="none", max_regression_ratio=0.02)
    assert found.failures == ("u under b: not measured",)


def test_a_task_that_only_the_baseline_has_does_not_pass() -> None:
    old = paired_dataset({"b": 1.0})
    new = dataclasses.replace(old, runs=old.runs.filter(pl.col("configuration") != "b"))
    found = judge(new, baseline="", other=old, max_regression_ratio=0.5)
    assert "t under b: not measured" in found.failures


def test_an_incomplete_campaign_does_not_pass() -> None:
    data = dataclasses.replace(
        paired_dataset({"b": 1.0}), sessions=[Session(state="interrupted", at="", runs_done=3)]
    )
    found = judge(data, baseline="none", max_regression_ratio=0.02)
    assert not found.passed
    assert "not complete" in found.failures[0]
