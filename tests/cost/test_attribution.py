"""Attribution: parts and remainder are the total, whatever the events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captures import run
from cost_datasets import dataset, event
from excise.capture.journal import Event
from excise.clock import Clock
from excise.cost.attribution import (
    REST,
    Attribution,
    Part,
    run_attributions,
    with_unattributed,
)
from excise.cost.explain import attributions
from excise.errors import UsageError
from excise.report.tables import attribution_table


def attributed(*records: Any, runs: int = 1, wall_ns: int = 1000, **changes: Any) -> Attribution:
    """Return the attribution of runs 0 to n - 1 with these events."""
    measured = [run(number, phase="measured", wall_ns=wall_ns) for number in range(runs)]
    (found,) = attributions(dataset([*measured, *records], **changes))
    return found


def shape(found: Attribution) -> list[tuple[int, str, float]]:
    return [(part.depth, part.event, part.value) for part in found.parts]


def test_children_their_children_and_the_remainder() -> None:
    found = attributed(
        event(0, "sign", 600.0),
        event(0, "hash", 200.0, layer="ta", parent="host|sign"),
        event(0, "curve", 300.0, layer="ta", parent="host|sign"),
        event(0, "open", 100.0),
    )
    assert shape(found) == [
        (0, "sign", 600.0),
        (1, "curve", 300.0),
        (1, "hash", 200.0),
        (0, "open", 100.0),
        (0, "remainder", 300.0),
    ]
    assert (found.total, found.explained, found.flags) == (1000.0, 0.7, ())
    assert [part.share for part in found.parts] == [0.6, 0.3, 0.2, 0.1, pytest.approx(0.3)]
    assert [part.unattributed for part in found.parts] == [100.0, None, None, None, None]
    table = attribution_table(found)
    at = [column.name for column in table.columns].index("unattributed")
    assert [row[at].value for row in table.rows] == [100.0, None, None, None, None, 300.0]


def test_a_part_that_says_itself_what_is_left_of_it_is_not_taken_for_an_explanation() -> None:
    part: dict[str, Any] = {
        "layer": "function",
        "labels": "",
        "role": "child",
        "share": 0.0,
        "runs": 1,
    }
    tree = [
        Part(event="hook", value=10.0, depth=0, **part),
        Part(event="f", value=4.0, depth=1, **part),
        Part(event="g", value=3.0, depth=2, **part),
        Part(event=REST, value=6.0, depth=1, **part),
        Part(event="other", value=1.0, depth=0, **part),
    ]
    assert [each.unattributed for each in with_unattributed(tree)] == [6.0, 1.0, None, None, None]


def test_events_of_one_name_add_up_and_means_are_over_all_runs() -> None:
    found = attributed(
        event(0, "hook", 100.0), event(0, "hook", 50.0), event(1, "hook", 30.0),
        event(1, "other", 20.0), runs=2,
    )  # fmt: skip
    assert shape(found) == [(0, "hook", 90.0), (0, "other", 10.0), (0, "remainder", 900.0)]
    assert [part.runs for part in found.parts] == [2, 1, 2]


def test_a_sum_above_the_total_is_shown_and_flagged() -> None:
    found = attributed(event(0, "a", 900.0), event(0, "b", 300.0))
    assert found.explained == pytest.approx(1.2)
    assert found.parts[-1].value == pytest.approx(-200.0)
    assert any("more than 100 %" in flag for flag in found.flags)
    for value, flagged in ((1000.0, False), (1001.0, True)):
        flags = attributed(event(0, "a", value)).flags
        assert any("more than 100 %" in flag for flag in flags) == flagged


def test_the_probe_is_a_row_of_its_own_after_the_children() -> None:
    found = attributed(
        event(0, "small", 10.0), event(0, "read", 500.0, layer="probe"),
        event(0, "perf_flush", 90.0, layer="ta"), event(0, "big", 300.0),
    )  # fmt: skip
    assert [(part.role, part.event) for part in found.parts] == [
        ("child", "big"),
        ("child", "small"),
        ("probe", "read"),
        ("probe", "perf_flush"),
        ("remainder", "remainder"),
    ]
    assert found.parts[-1].value == pytest.approx(100.0)


def test_events_whose_parent_was_not_recorded_stand_under_the_run_and_say_so() -> None:
    found = attributed(event(0, "inner", 400.0, parent="ta|lost"))
    assert shape(found) == [(0, "inner", 400.0), (0, "remainder", 600.0)]
    assert found.flags == ("events name a parent that was not recorded: ta|lost",)


def test_events_that_contain_each_other_are_not_dropped() -> None:
    found = attributed(
        event(0, "a", 100.0, parent="host|b"), event(0, "b", 200.0, parent="host|a"),
        event(0, "self", 50.0, parent="host|self"),
    )  # fmt: skip
    assert {part.event for part in found.parts} == {"a", "b", "self", "remainder"}
    assert any("contain each other" in flag for flag in found.flags)


def test_children_of_a_parent_with_labels_are_shown_once() -> None:
    found = attributed(
        event(0, "open", 100.0, labels="size=1"), event(0, "open", 200.0, labels="size=2"),
        event(0, "hook", 60.0, parent="host|open"),
    )  # fmt: skip
    assert [part.event for part in found.parts].count("hook") == 1
    assert sum(part.value for part in found.parts if part.depth == 0) == pytest.approx(1000.0)


def test_counts_and_cycles_explain_no_time() -> None:
    found = attributed(
        event(0, "a", 100.0), event(0, "b", 5.0, unit="cycles"), event(0, "c", 1.0, unit="1")
    )
    assert shape(found) == [(0, "a", 100.0), (0, "remainder", 900.0)]
    (flag,) = found.flags
    assert flag.startswith("events in another unit explain nothing of a total in ns: host|b in cyc")
    assert flag.endswith("record them in ns to have them attributed")


def test_counts_and_sizes_beside_a_time_are_no_fault() -> None:
    found = attributed(
        event(0, "a", 100.0), event(0, "entries", 444.0, unit="1"), event(0, "sent", 9.0, unit="B")
    )
    assert (shape(found), found.flags) == ([(0, "a", 100.0), (0, "remainder", 900.0)], ())
    records: list[Any] = [run(0, phase="measured", wall_ns=1000), event(0, "n", 4.0, unit="1")]
    assert list(run_attributions(dataset(records))) == []


def test_runs_without_events_are_said_and_not_averaged_in() -> None:
    found = attributed(event(0, "a", 100.0), runs=4)
    assert (found.n, found.total) == (1, 1000.0)
    assert found.flags == ("3 of 4 runs have no child events and are left out",)


def test_first_warm_up_and_failed_runs_are_not_attributed() -> None:
    records: list[Any] = [
        run(0, phase="first", wall_ns=9000),
        run(1, phase="warmup", wall_ns=9000),
        run(2, phase="measured", wall_ns=9000, ok=False),
        run(3, phase="measured", wall_ns=1000),
    ]
    records += [event(number, "a", 100.0) for number in range(4)]
    (found,) = attributions(dataset(records))
    assert (found.n, found.total, found.parts[0].value) == (1, 1000.0, 100.0)


def test_a_workload_of_the_probe_shows_what_its_clock_costs() -> None:
    probe = {"workload": "stat", "operations": 100, "op_ns": [50.0, 52.0, 51.0]}
    clocks = [Clock(name="CLOCK_MONOTONIC_RAW", resolution_ns=20.0)]
    records = [run(number, phase="measured", probe=None) for number in range(3)]
    import msgspec

    records = [
        msgspec.convert({**msgspec.to_builtins(each), "probe": probe}, type=type(each))
        for each in records
    ]
    (found,) = attributions(dataset(records, clocks=clocks))
    clock, rest = found.parts
    assert (clock.role, clock.value, rest.role) == ("probe", 0.2, "remainder")
    assert clock.value + rest.value == found.total == 51.0


names = st.sampled_from(["a", "b", "c", "d"])
events = st.lists(
    st.builds(
        lambda sequence, layer, name, parent, labels, value: Event(
            sequence=sequence, layer=layer, event=name, parent=parent, labels=labels, value=value
        ),
        st.integers(0, 2),
        st.sampled_from(["host", "ta", "probe"]),
        names,
        st.none() | st.builds(lambda a, b: f"{a}|{b}", st.sampled_from(["host", "ta", "x"]), names),
        st.sampled_from(["", "k=1", "k=2"]),
        st.floats(0, 1e9),
    ),
    min_size=1,
    max_size=25,
)


@given(events)
def test_parts_and_remainder_always_sum_to_the_total_and_no_event_is_lost(
    found_events: list[Event],
) -> None:
    found = attributed(*found_events, runs=3, wall_ns=1_000_000)
    top = sum(part.value for part in found.parts if part.depth == 0)
    assert top == pytest.approx(found.total, rel=1e-9, abs=1e-3)
    everything = sum(part.value for part in found.parts if part.role != "remainder")
    assert everything == pytest.approx(sum(each.value for each in found_events) / found.n)
    kinds = {(each.layer, each.event, each.labels, each.parent) for each in found_events}
    assert len(found.parts) == len(kinds) + 1
    above = found.explained > 1.0
    assert above == any("more than 100 %" in flag for flag in found.flags)


def test_the_totals_of_one_configuration_are_attributed_by_themselves() -> None:
    arms = {0: "none", 1: "fix"}
    records: list[Any] = [
        run(number, phase="measured", configuration=arm, wall_ns=1000 + number)
        for number, arm in arms.items()
    ]
    records += [event(number, "a", 100.0) for number in arms]
    for number, arm in arms.items():
        (found,) = attributions(dataset(records), configuration=arm)
        assert (found.configuration, found.total) == (arm, 1000.0 + number)
    assert len(attributions(dataset(records))) == 2


def test_what_has_no_events_is_a_usage_error_with_a_hint() -> None:
    with pytest.raises(UsageError, match="nothing has child events"):
        attributions(dataset([run(0, phase="measured")]))
    with pytest.raises(UsageError, match=r"no task 'x'.*Tasks here: t"):
        attributions(dataset([run(0, phase="measured"), event(0, "a", 1.0)]), task="x")
