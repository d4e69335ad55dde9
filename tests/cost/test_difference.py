"""What explains published differences: the hooks of LSMPMON's tables."""

from __future__ import annotations

from typing import Any

import pytest

from cost_datasets import dataset
from excise.capture.journal import Aggregate
from excise.cost.difference import difference_attributions
from excise.cost.explain import attributions
from excise.errors import UsageError
from excise.reference import load


def explained() -> dict[tuple[str, str], float]:
    rows = difference_attributions(load("lsmpmon-2008"))
    return {(row.task, row.configuration.split()[0]): row.explained for row in rows}


def test_shares_span_what_the_paper_itself_found() -> None:
    shares = explained()
    assert len(shares) == 24
    assert min(shares, key=shares.__getitem__) == ("open/close", "TOMOYO")
    assert max(shares, key=shares.__getitem__) == ("10K create", "TOMOYO")
    # 3 calls of inode_permission at .142 against .034 us, of 8.76 - 2.49 us
    assert shares["open/close", "TOMOYO"] == pytest.approx(3 * (142 - 34) / (8760 - 2490))
    # 2 x inode_permission and 1 x inode_getattr, of 2.65 - 1.67 us
    assert shares["stat", "SELinux"] == pytest.approx((2 * (152 - 34) + (124 - 35)) / 980)


def test_parts_and_remainder_are_the_difference() -> None:
    for row in difference_attributions(load("lsmpmon-2008")):
        assert sum(part.value for part in row.parts) == pytest.approx(row.total)
        assert sum(part.share for part in row.parts) == pytest.approx(1.0)


def test_a_sum_above_100_per_cent_is_flagged() -> None:
    flagged = {
        (row.task, row.configuration.split()[0])
        for row in difference_attributions(load("lsmpmon-2008"))
        if any("more than 100 %" in flag for flag in row.flags)
    }
    assert flagged == {key for key, share in explained().items() if share > 1.0}
    assert flagged == {("10K create", "TOMOYO")}


# The paper's tables worked out by hand: per cent of each difference that its hooks explain.
SHARES = {
    "stat": (33.2, 76.0, 61.7, 48.8),
    "open/close": (31.3, 13.7, 5.2, 46.9),
    "0K create": (31.4, 52.4, 99.6, 14.2),
    "0K delete": (15.4, 66.8, 69.3, 27.5),
    "10K create": (33.9, 67.6, 134.7, 23.5),
    "10K delete": (12.2, 45.2, 53.4, 10.8),
}
SYSTEMS = ("SELinux", "AppArmor", "TOMOYO", "LIDS")


def test_every_share_of_the_published_tables_is_right() -> None:
    shares = explained()
    for task, row in SHARES.items():
        for system, per_cent in zip(SYSTEMS, row, strict=True):
            assert 100 * shares[task, system] == pytest.approx(per_cent, abs=0.051), (task, system)


def test_every_flag_of_the_published_tables_is_right() -> None:
    low, missing = "children explain less than half", "no unit cost is given for"
    for row in difference_attributions(load("lsmpmon-2008")):
        system = row.configuration.split()[0]
        starts = [flag[: len(low)] for flag in row.flags]
        assert (low in starts) == (SHARES[row.task][SYSTEMS.index(system)] < 50), row
        unknown = {
            ("stat", "TOMOYO"): "inode_getattr",
            ("stat", "LIDS"): "inode_getattr",
            ("0K create", "TOMOYO"): "file_permission",
            ("10K create", "TOMOYO"): "file_permission",
            ("0K create", "LIDS"): "inode_create",
            ("10K create", "LIDS"): "inode_create",
        }.get((row.task, system))
        named = [flag for flag in row.flags if flag.startswith(missing)]
        assert named == ([f"{missing} {unknown}: its part is in the remainder"] if unknown else [])


def test_the_cost_in_the_task_itself_explains_what_the_mean_does_not() -> None:
    (row,) = difference_attributions(
        load("lsmpmon-2008"), task="open/close", configuration="TOMOYO"
    )
    # 3 x (1.76 - .034) us of 6.27 us
    assert any("inode_permission (1,760 ns), 82.6% would be explained" in f for f in row.flags)


def test_rounding_of_the_tables_is_carried_through() -> None:
    (row,) = difference_attributions(load("lsmpmon-2008"), task="stat", configuration="SELinux")
    permission, getattr_, remainder = row.parts
    assert permission.margin == pytest.approx(2 * (0.5 + 0.5))  # 2 calls, each cost to 1 ns
    assert getattr_.margin == pytest.approx(1.0)
    assert remainder.margin == pytest.approx(10.0 + 3.0)  # the totals to 10 ns each
    low, high = row.explained_interval or (0.0, 0.0)
    assert low == pytest.approx((325 - 3) / (980 + 10))
    assert high == pytest.approx((325 + 3) / (980 - 10))


def _row(configuration: str, metric: str = "duration", **changes: Any) -> Aggregate:
    common = {"task": "t", "configuration": configuration, "metric": metric, "unit": "ns"}
    return Aggregate(**{**common, **changes})


def _hook(configuration: str, event: str, *, calls: float, cost: float) -> list[Aggregate]:
    key = {"layer": "hook", "event": event}
    return [
        _row(configuration, mean=cost, sd=0.0, **key),
        _row(configuration, metric="per_call", mean=calls, **key),
    ]


def test_hooks_of_one_configuration_only_are_named_and_counted() -> None:
    rows = [
        _row("a", mean=1000.0, sd=0.0),
        _row("b", mean=1500.0, sd=0.0),
        *_hook("a", "both", calls=1, cost=100.0),
        *_hook("a", "gone", calls=1, cost=20.0),
        *_hook("b", "both", calls=2, cost=150.0),
        *_hook("b", "new", calls=1, cost=90.0),
    ]
    (row,) = difference_attributions(dataset(rows, baseline="a"))
    assert {part.event: part.value for part in row.parts} == {
        "both": 2 * 150.0 - 100.0,
        "new": 90.0,
        "gone": -20.0,
        "remainder": 500.0 - 200.0 - 90.0 + 20.0,
    }
    assert row.flags == ("only b calls new", "only a calls gone")
    assert row.parts[0].labels == "1 → 2 calls"


def test_a_and_b_of_the_same_name_are_told_apart() -> None:
    one = dataset([_row("x", mean=10.0), *_hook("x", "h", calls=1, cost=1.0)], name="one")
    two = dataset([_row("x", mean=30.0), *_hook("x", "h", calls=1, cost=11.0)], name="two")
    (row,) = difference_attributions(one, two)
    assert row.configuration == "two: x − one: x"
    assert (row.total, row.explained) == (20.0, 0.5)


def test_totals_and_hooks_of_two_tables_belong_together() -> None:
    totals = dataset([_row("none", mean=100.0), _row("lsm", mean=200.0)], name="totals")
    hooks = dataset(
        [
            _row(name, mean=cost, layer="hook", event="h", task="workload")
            for name, cost in (("none", 10.0), ("lsm", 40.0))
        ],
        name="hooks",
    )
    calls = {"t": {"h": 2.0}}
    (row,) = difference_attributions(totals, hooks, baseline="none", calls=calls)
    assert (row.configuration, row.parts[0].value, row.explained) == ("lsm − none", 60.0, 0.6)


def test_parts_above_a_measured_difference_are_flagged_with_causes() -> None:
    rows = [
        _row("a", mean=100.0, sd=0.0),
        _row("b", mean=110.0, sd=0.0),
        *_hook("a", "h", calls=1, cost=0.0),
        *_hook("b", "h", calls=1, cost=20.0),
    ]
    (row,) = difference_attributions(dataset(rows, baseline="a"))
    (flag,) = row.flags
    assert "something outside of the hooks became cheaper" in flag


def test_a_baseline_that_is_not_there_or_not_clear_is_refused() -> None:
    two = dataset([_row("x", mean=1.0), _row("y", mean=2.0)], name="two")
    with pytest.raises(UsageError, match="there is no configuration 'z'"):
        difference_attributions(two, baseline="z")
    with pytest.raises(UsageError, match="which configuration is the baseline is not clear"):
        difference_attributions(two, two)


def test_a_hook_without_a_cost_is_named() -> None:
    (row,) = (
        row
        for row in difference_attributions(load("lsmpmon-2008"), task="stat")
        if row.configuration.startswith("LIDS")
    )
    assert any("inode_getattr" in flag for flag in row.flags)


def test_a_table_without_parts_is_refused() -> None:
    with pytest.raises(UsageError, match="nothing has child events"):
        attributions(load("thesis-memory"))
    with pytest.raises(UsageError, match="there is no task 'walk'"):
        attributions(load("lsmpmon-2008"), task="walk")


def test_two_equal_totals_leave_nothing_to_explain_and_no_share() -> None:
    rows = [
        _row("a", mean=1000.0, sd=0.0),
        _row("b", mean=1000.0, sd=0.0),
        *_hook("a", "open", calls=1, cost=100.0),
        *_hook("b", "open", calls=1, cost=130.0),
        _row("b", metric="duration_in_task", mean=150.0, sd=0.0, layer="hook", event="open"),
    ]
    (row,) = difference_attributions(dataset(rows, baseline="a"))
    assert (row.total, row.explained) == (0.0, 0.0)
    assert [part.value for part in row.parts] == [30.0, -30.0]
    assert row.flags == ("there is no difference to explain",)
