"""Comparisons on data whose truth is known."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from captures import run
from cost_datasets import (
    TWIN,
    dataset,
    event,
    imported_dataset,
    paired_dataset,
    paired_runs,
)
from excise.capture.journal import Aggregate
from excise.capture.manifest import Fact
from excise.cost.compared import Comparison, Comparisons
from excise.cost.comparison import compare_configurations, compare_datasets
from excise.errors import Refused, UsageError
from excise.events.dataset import Dataset
from excise.report.build import result_line
from excise.report.tables import comparison_table
from excise.stats import AAOutcome, Verdict


def only(found: Comparisons) -> Comparison:
    (row,) = found.rows
    return row


def test_three_per_cent_are_found_under_a_threefold_drift() -> None:
    found = compare_configurations(paired_dataset({"b": 1.03}, drift=3.0))
    row = only(found)
    assert row.verdict is Verdict.COSTS
    assert row.order == "paired blocks"
    assert row.n == 60
    assert row.ratio == pytest.approx(1.03, abs=0.01)
    assert row.low is not None
    assert row.high is not None
    assert 1.0 < row.low < 1.03 < row.high < 1.05
    assert found.aa["t"].outcome is AAOutcome.PASSED


def test_first_and_warm_up_runs_never_count() -> None:
    shifted = [
        msgspec.structs.replace(each, wall_ns=each.wall_ns * 1000)
        if each.phase != "measured" and each.configuration == "b" and each.wall_ns
        else each
        for each in paired_runs({"none": 1.0, "b": 1.0})
    ]
    row = only(compare_configurations(dataset(shifted, baseline="none", paired=True)))
    assert row.verdict is Verdict.EQUIVALENT
    assert row.n == 60


@pytest.mark.parametrize("ratio", [1.0, 1.002])
def test_arms_that_do_not_differ_are_equivalent_within_the_margin(ratio: float) -> None:
    row = only(compare_configurations(paired_dataset({"b": ratio}), margin_ratio=0.01))
    assert row.verdict is Verdict.EQUIVALENT


def test_a_saving_is_called_a_saving() -> None:
    assert only(compare_configurations(paired_dataset({"b": 0.9}))).verdict is Verdict.SAVES


def test_too_much_noise_is_inconclusive_and_says_how_many_more_blocks() -> None:
    row = only(compare_configurations(paired_dataset({"b": 1.02}, noise=0.3)))
    assert row.verdict is Verdict.INCONCLUSIVE
    assert row.runs_needed is not None
    assert row.runs_needed > 100


def test_where_the_a_a_arm_differs_nothing_is_comparable() -> None:
    found = compare_configurations(paired_dataset({"b": 1.5, TWIN: 1.03}))
    row = only(found)
    assert found.aa["t"].outcome is AAOutcome.FAILED
    assert row.verdict is Verdict.NOT_COMPARABLE
    assert "the A/A arm differs from the baseline" in row.notes


def test_the_a_a_arm_judges_whatever_the_baseline() -> None:
    found = compare_configurations(paired_dataset({"b": 1.5, TWIN: 1.03}), baseline="b")
    assert {row.configuration: row.verdict for row in found.rows} == {
        "none": Verdict.NOT_COMPARABLE
    }


def test_an_a_a_arm_without_a_good_run_is_said() -> None:
    records = [
        msgspec.structs.replace(each, ok=each.configuration != TWIN)
        for each in paired_runs({"none": 1.0, TWIN: 1.0, "b": 1.5})
    ]
    found = compare_configurations(dataset(records, baseline="none", twin=TWIN, paired=True))
    assert found.aa == {}
    assert "nothing vouches for this machine" in only(found).notes[-1]


def test_failed_runs_are_left_out_with_their_whole_pair() -> None:
    records = [
        msgspec.structs.replace(each, ok=False, wall_ns=1)
        if each.configuration == "b" and each.block % 3 == 0
        else each
        for each in paired_runs({"none": 1.0, "b": 1.1})
    ]
    row = only(compare_configurations(dataset(records, baseline="none", paired=True)))
    assert row.n == 40
    assert row.ratio == pytest.approx(1.1, abs=0.01)
    assert "some blocks hold only one arm and were left out" in row.notes


def test_a_configuration_whose_every_run_failed_is_not_comparable() -> None:
    records = [
        msgspec.structs.replace(each, ok=each.configuration != "b")
        for each in paired_runs({"none": 1.0, "b": 1.1})
    ]
    row = only(compare_configurations(dataset(records, baseline="none", paired=True)))
    assert row.verdict is Verdict.NOT_COMPARABLE
    assert row.notes == ("no counted run of b succeeded",)
    assert math.isnan(row.ratio)


def test_arms_that_share_no_block_are_not_comparable() -> None:
    records = [
        msgspec.structs.replace(each, ok=(each.block % 2 == 0) == (each.configuration == "b"))
        for each in paired_runs({"none": 1.0, "b": 1.1})
    ]
    row = only(compare_configurations(dataset(records, baseline="none", paired=True)))
    assert row.notes == ("no block holds a good run of both",)


def test_values_of_zero_have_no_ratio() -> None:
    records = [
        msgspec.structs.replace(each, major_faults=0)
        for each in paired_runs({"none": 1.0, "b": 1.1})
    ]
    found = compare_configurations(
        dataset(records, baseline="none", paired=True), metric="major_faults"
    )
    assert only(found).notes == ("major_faults is not above zero in every run: there is no ratio",)


def test_what_was_measured_differently_is_not_compared() -> None:
    probe = {"workload": "stat", "operations": 10, "op_ns": [5.0]}
    records = [
        msgspec.convert({**msgspec.to_builtins(each), "probe": probe}, type=type(each))
        if each.configuration == "b"
        else each
        for each in paired_runs({"none": 1.0, "b": 1.1})
    ]
    row = only(compare_configurations(dataset(records, baseline="none", paired=True)))
    assert row.verdict is Verdict.NOT_COMPARABLE
    assert row.notes == ("wall_ns in ns against op_ns in ns",)


def test_a_difference_that_does_not_survive_holm_is_inconclusive() -> None:
    # One comparison at p = 0.03 among twenty is what chance gives.
    weak = paired_runs({"none": 1.0, "b": 1.0}, task="weak", blocks=20, noise=0.0)
    signs = [1.02] * 15 + [0.98] * 5
    weak = [
        msgspec.structs.replace(each, wall_ns=round(1e6 * signs[each.block - 2]))
        if each.configuration == "b" and each.phase == "measured"
        else each
        for each in weak
    ]
    alone = dataset(weak, baseline="none", paired=True)
    assert only(compare_configurations(alone)).verdict is Verdict.COSTS
    records: list[Any] = list(weak)
    for number in range(19):
        records += paired_runs(
            {"none": 1.0, "b": 1.0},
            task=f"null {number}",
            blocks=20,
            seed=number,
            start=len(records),
        )
    found = compare_configurations(dataset(records, baseline="none", paired=True))
    row = next(row for row in found.rows if row.task == "weak")
    assert row.p is not None
    assert row.p < 0.05
    assert row.p_holm is not None
    assert row.p_holm > 0.05
    assert row.verdict is Verdict.INCONCLUSIVE
    assert "does not survive Holm over 20 comparisons" in row.notes


def test_child_events_are_compared_like_tasks() -> None:
    runs = paired_runs({"none": 1.0, "b": 1.1})
    events = [
        event(each.sequence, "hook", 1000.0 * (2.0 if each.configuration == "b" else 1.0))
        for each in runs
    ]
    found = compare_configurations(dataset([*runs, *events], baseline="none", paired=True))
    hook = next(row for row in found.rows if row.event == "hook")
    assert (hook.layer, hook.ratio, hook.verdict) == ("host", 2.0, Verdict.COSTS)


def test_imported_runs_are_compared_as_of_unknown_order() -> None:
    draw = np.random.default_rng(3)
    data = imported_dataset(
        {"a": draw.normal(1e6, 1e4, 40).tolist(), "b": draw.normal(1.1e6, 1e4, 40).tolist()}
    )
    row = only(compare_configurations(data, baseline="a"))
    assert row.order == "order unknown"
    assert row.verdict is Verdict.COSTS
    assert row.low is not None
    assert row.low < 1.1 < (row.high or 0)
    assert row.aa is None


def test_published_tables_are_compared_by_value() -> None:
    from excise.reference import load

    found = compare_configurations(load("lsmpmon-2008"))
    assert {row.order for row in found.rows} == {"published values"}
    assert {row.verdict for row in found.rows} == {Verdict.INCONCLUSIVE}
    assert all(row.low is None for row in found.rows)


def test_published_zeros_have_no_ratio() -> None:
    rows = [
        Aggregate(task="t", configuration=c, metric="duration", unit="ns", mean=mean)
        for c, mean in (("a", 0.0), ("b", 5.0))
    ]
    row = only(compare_configurations(dataset(rows, origin="reference"), baseline="a"))
    assert math.isnan(row.ratio)


def test_an_unknown_baseline_names_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"no configuration 'nobody'\. Configurations here: .*b"):
        compare_configurations(paired_dataset({"b": 1.0}, blocks=6), baseline="nobody")


def test_a_baseline_alone_has_nothing_to_compare_with() -> None:
    with pytest.raises(UsageError, match="nothing to compare with 'none'"):
        compare_configurations(paired_dataset({}, blocks=6))


def fact(name: str, value: str | None, *, private: bool = False, must_agree: bool = True) -> Fact:
    return Fact(name=name, value=value, must_agree=must_agree, private=private)


def test_captures_of_different_machines_are_refused_with_the_list_and_forced_with_it() -> None:
    ours = [
        fact("cpu.model", "A"),
        fact("kernel.release", "6.1"),
        fact("kernel.cmdline", "secret=1", private=True),
        fact("load", "0.1", must_agree=False),
        fact("security.lsm", None),
    ]
    theirs = [
        fact("cpu.model", "B"),
        fact("kernel.release", "6.1"),
        fact("kernel.cmdline", "secret=2", private=True),
        fact("load", "9", must_agree=False),
        fact("security.lsm", "landlock"),
        fact("fips.enabled", "no"),
    ]
    first = paired_dataset({"b": 1.1}, name="first", facts=ours)
    second = paired_dataset({"b": 1.1}, name="second", facts=theirs, seed=2)
    with pytest.raises(Refused, match="different conditions") as caught:
        compare_datasets(first, second)
    expected = (
        "cpu.model: A against B",
        "fips.enabled: not recorded against no",
        "kernel.cmdline: (private value) against (private value)",
        "security.lsm: unknown against landlock",
    )
    assert caught.value.differences == expected
    assert caught.value.exit_code == 1
    found = compare_datasets(first, second, force=True)
    assert found.forced == expected
    assert {row.configuration for row in found.rows} == {"none", "b"}
    assert {row.order for row in found.rows} == {"order unknown"}


def test_captures_of_one_machine_are_compared_and_drift_is_warned_of() -> None:
    facts = [fact("cpu.model", "A")]
    found = compare_datasets(
        paired_dataset({"b": 1.1}, facts=facts), paired_dataset({"b": 1.3}, facts=facts, seed=5)
    )
    assert found.forced == ()
    assert "drift between the captures" in found.notes[0]
    by_arm = {row.configuration: row for row in found.rows}
    assert by_arm["none"].verdict is not Verdict.COSTS
    assert by_arm["b"].verdict is Verdict.COSTS
    assert by_arm["b"].ratio == pytest.approx(1.3 / 1.1, rel=0.01)


def test_captures_with_nothing_in_common_are_a_usage_error() -> None:
    first = dataset(paired_runs({"none": 1.0}, task="x", blocks=3))
    second = dataset(paired_runs({"none": 1.0}, task="y", blocks=3))
    with pytest.raises(UsageError, match=r"no task in common\. Tasks: x against y"):
        compare_datasets(first, second)
    several = dataset(paired_runs({"b": 1.0, "c": 1.0}, task="x", blocks=3))
    with pytest.raises(UsageError, match="Configurations: none against b, c") as caught:
        compare_datasets(first, several)
    assert "no task has a figure under the same configuration" in str(caught.value)


def test_figures_in_different_units_are_named_by_their_units() -> None:
    cycles, times = (
        dataset([Aggregate(
            task="t", configuration=name, metric="duration", unit=unit, mean=5.0, layer="hook",
            event="inode_create",
        )])
        for name, unit in (("none", "cycles"), ("selinux", "ns"))
    )  # fmt: skip
    with pytest.raises(UsageError, match=r"in the same unit.*Units: cycles against ns"):
        compare_datasets(cycles, times)


def test_the_only_configurations_of_two_captures_are_compared_whatever_their_names() -> None:
    before = dataset(paired_runs({"before": 1.0}), name="one")
    after = dataset(paired_runs({"patched": 1.2}, seed=2), name="two")
    (row,) = compare_datasets(before, after).rows
    assert (row.baseline, row.configuration) == ("before", "patched")
    assert row.ratio == pytest.approx(1.2, rel=0.01)
    assert row.low is not None
    assert row.high is not None
    assert row.low < 1.2 < row.high


def _with_a_boot() -> Dataset:
    """Return a campaign in which a boot ran once in each configuration."""
    runs = paired_runs({"none": 1.0, "b": 1.0})
    boots = [
        run(1000 + n, task="boot", configuration=arm, phase="first", wall_ns=10**9)
        for n, arm in enumerate(("none", "b"))
    ]
    return dataset([*runs, *boots], baseline="none", paired=True)


def test_what_ran_once_in_each_configuration_is_named_and_not_compared() -> None:
    found = compare_configurations(_with_a_boot())
    assert [row.task for row in found.rows] == ["t"]
    assert found.first_only == (("boot", "b"),)
    between = compare_datasets(_with_a_boot(), _with_a_boot())
    assert {row.task for row in between.rows} == {"t"}
    assert ("boot", "b") in between.first_only


def test_a_task_of_which_one_side_alone_has_counted_runs_stays_not_comparable() -> None:
    runs = paired_runs({"none": 1.0})
    first = run(1000, task="t", configuration="b", phase="first", wall_ns=10**6)
    found = compare_configurations(dataset([*runs, first], baseline="none", paired=True))
    assert [row.verdict for row in found.rows] == [Verdict.NOT_COMPARABLE]
    assert found.first_only == ()


def test_runs_in_any_order_of_lines_give_the_same_comparison() -> None:
    runs = paired_runs({"none": 1.0, "b": 1.05}, drift=2.0)
    shuffled = [runs[index] for index in np.random.default_rng(1).permutation(len(runs))]
    one, two = (
        compare_configurations(dataset(each, baseline="none", paired=True))
        for each in (runs, shuffled)
    )
    assert replace(only(one), aa=None) == replace(only(two), aa=None)


def test_a_single_run_of_each_gives_no_interval() -> None:
    data = dataset(
        [
            run(0, configuration="none", phase="measured", block=0),
            run(1, configuration="b", phase="measured", block=0),
        ],
        baseline="none",
        paired=True,
    )
    row = only(compare_configurations(data))
    assert (row.low, row.high, row.verdict) == (None, None, Verdict.INCONCLUSIVE)


def test_few_runs_of_unknown_order_say_how_many_would_do() -> None:
    boots = {"plain": [23e9, 24e9, 23.5e9, 23.2e9], "hmac": [78e9, 79e9, 78.5e9, 78.2e9, 80e9]}
    found = compare_configurations(imported_dataset(boots), baseline="plain")
    row = only(found)
    assert (row.verdict, row.low, row.n, row.runs_needed) == (Verdict.INCONCLUSIVE, None, 4, 2)
    assert row.too_few == "4 runs are too few for an interval at 95 %: it takes at least 6 of each"
    assert row.too_few in result_line(row)
    notes = comparison_table(found).notes
    assert f"{row.too_few}." in notes
    assert not any("as noisy as these" in note for note in notes)
    enough = {name: [*each[:4], each[0] + 1e8, each[0] + 2e8] for name, each in boots.items()}
    decided = only(compare_configurations(imported_dataset(enough), baseline="plain"))
    assert (decided.verdict, decided.too_few, decided.runs_needed) == (Verdict.COSTS, "", None)


def test_a_difference_that_is_lost_among_many_says_how_many_runs_would_do() -> None:
    arms = {f"c{number}": [60.0, 61.0, 62.0, 63.0, 64.0, 65.0] for number in range(24)}
    few = imported_dataset({"plain": [10.0, 11.0, 12.0, 13.0, 14.0, 15.0], **arms})
    row = compare_configurations(few, baseline="plain").rows[0]
    assert (row.verdict, row.low is None, row.runs_needed) == (Verdict.INCONCLUSIVE, False, 1)
    assert row.too_few.startswith("6 runs are too few for a difference among 24 comparisons")
    arms = {name: [*each, 66.0] for name, each in arms.items()}
    more = imported_dataset({"plain": [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0], **arms})
    rows = compare_configurations(more, baseline="plain").rows
    assert {(row.verdict, row.too_few) for row in rows} == {(Verdict.COSTS, "")}


def test_few_pairs_say_how_many_it_takes() -> None:
    found = compare_configurations(paired_dataset({"b": 3.0}, blocks=4))
    row = only(found)
    assert (row.verdict, row.runs_needed) == (Verdict.INCONCLUSIVE, 2)
    assert row.too_few == "4 pairs are too few for an interval at 95 %: it takes at least 6"
