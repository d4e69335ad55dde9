"""Differences between traces and between runs with events: known effects are found again."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from cost_datasets import dataset, event, paired_runs
from excise.capture.journal import Aggregate
from excise.cost.attribution import Attribution
from excise.cost.explain import attributions
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.imports import Imported, import_readings
from excise.events.load import load_capture
from excise.formats.model import Options
from excise.formats.registry import read
from excise.stats import summarise

HEADER = "# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n"
STAT = "__x64_sys_newstat"
CALLS = 300
SPREAD = 0.05


def _us(value_ns: float) -> str:
    return f"{value_ns / 1000:.3f} us   "


def _stat(hooks: dict[str, float], rest_ns: float, draw: np.random.Generator) -> str:
    """Return one `stat` with its hooks, two calls of the first one."""
    names = [next(iter(hooks)), *hooks]
    taken = [hooks[name] * float(np.exp(draw.normal(0.0, SPREAD))) for name in names]
    lines = [
        f" 0)   {_us(ns)}|    security_{name}();\n" for name, ns in zip(names, taken, strict=True)
    ]
    total = sum(taken) + rest_ns * float(np.exp(draw.normal(0.0, SPREAD)))
    return f" 0)               |  {STAT}() {{\n{''.join(lines)} 0)   {_us(total)}|  }}\n"


def _others(count: int) -> str:
    """Return calls at the top of so many functions that no call becomes a run."""
    return "".join(
        f" 0)               |  other_{n}() {{\n"
        f" 0)   0.100 us    |    security_file_permission();\n"
        f" 0)   0.300 us    |  }}\n"
        for n in range(count)
    )


def _trace(
    folder: Path, name: str, hooks: dict[str, float], rest_ns: float, *, others: int = 0, seed: int
) -> Dataset:
    draw = np.random.default_rng(seed)
    text = HEADER + "".join(_stat(hooks, rest_ns, draw) for _ in range(CALLS)) + _others(others)
    reading = read(text.encode(), options=Options(source=name, configuration=name))
    capture = folder / f"{name}.excise"
    return load_capture(import_readings(capture, [Imported(name=name, data=b"", reading=reading)]))


def _before_and_after(folder: Path, *, others: int = 0, seed: int = 1) -> Attribution:
    before = _trace(
        folder,
        "before",
        {"inode_permission": 200.0, "inode_getattr": 100.0},
        1000.0,
        others=others,
        seed=seed,
    )
    after = _trace(
        folder,
        "after",
        {"inode_permission": 300.0, "inode_getattr": 600.0},
        1050.0,
        others=others,
        seed=seed + 1000,
    )
    (found,) = attributions(before, after)
    return found


def _values(found: Attribution) -> dict[str, tuple[float, float | None]]:
    return {part.event.removeprefix("security_"): (part.value, part.margin) for part in found.parts}


def test_what_a_patch_adds_is_found_hook_by_hook_from_two_traces(tmp_path: Path) -> None:
    found = _before_and_after(tmp_path)
    assert (found.task, found.configuration) == ("stat", "after − before")
    values = _values(found)
    assert values["inode_getattr"][0] == pytest.approx(500.0, abs=10.0)
    assert values["inode_permission"][0] == pytest.approx(200.0, abs=10.0)
    assert values["remainder"][0] == pytest.approx(50.0, abs=25.0)
    assert sum(value for value, _ in values.values()) == pytest.approx(found.total)
    assert {part.runs for part in found.parts} == {CALLS - 1}  # but for the first


def test_the_margins_of_traced_parts_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    truth = {"inode_getattr": 500.0, "inode_permission": 200.0, "remainder": 50.0}
    held = dict.fromkeys(truth, 0)
    rounds = 40
    for seed in range(rounds):
        folder = tmp_path / str(seed)
        folder.mkdir()
        values = _values(_before_and_after(folder, seed=seed))
        for name, true in truth.items():
            value, margin = values[name]
            assert margin is not None
            held[name] += abs(value - true) <= margin
    # The margins of both sides add in quadrature: they hold the truth in 95 % of cases.
    assert min(held.values()) >= 0.9 * rounds


def test_system_calls_of_a_mixed_trace_are_attributed_by_calls_and_cost(tmp_path: Path) -> None:
    found = _before_and_after(tmp_path, others=5)
    assert found.task == "stat"
    labels = {part.event: part.labels for part in found.parts}
    assert labels["inode_permission"] == "2 calls"
    assert labels["inode_getattr"] == "1 call"
    values = _values(found)
    assert values["inode_getattr"][0] == pytest.approx(500.0, abs=10.0)
    assert values["inode_permission"][0] == pytest.approx(200.0, abs=10.0)
    assert found.explained_interval is None  # a mean alone tells no spread


def test_a_system_call_is_one_task_as_runs_and_in_a_mixed_trace(tmp_path: Path) -> None:
    hooks = {"inode_permission": 200.0, "inode_getattr": 100.0}
    runs = _trace(tmp_path, "before", hooks, 1000.0, seed=1)
    mixed = _trace(tmp_path, "after", {**hooks, "inode_getattr": 600.0}, 1000.0, others=5, seed=2)
    for task in (None, "stat", STAT):
        (found,) = attributions(runs, mixed, task=task)
        assert (found.task, found.configuration) == ("stat", "after − before")
        assert _values(found)["inode_getattr"][0] == pytest.approx(500.0, abs=10.0)
        assert [part.event for part in found.parts] == [*reversed(hooks), "remainder"]
        assert "".join(part.labels for part in found.parts) == ""  # runs do not say how many calls


def test_a_hook_inside_a_hook_is_counted_once(tmp_path: Path) -> None:
    def trace(name: str, inner_ns: float) -> Dataset:
        text = HEADER + "".join(
            " 0)               |  __x64_sys_open() {\n"
            " 0)               |    security_file_open() {\n"
            f" 0)   {_us(inner_ns)}|      security_inode_permission();\n"
            f" 0)   {_us(inner_ns + 100)}|    }}\n"
            f" 0)   {_us(inner_ns + 400)}|  }}\n"
            for _ in range(3)
        )
        reading = read((text + _others(5)).encode(), options=Options(configuration=name))
        capture = tmp_path / f"{name}.excise"
        return load_capture(
            import_readings(capture, [Imported(name=name, data=b"", reading=reading)])
        )

    (found,) = attributions(trace("a", 200.0), trace("b", 700.0))
    assert [(part.event, part.value) for part in found.parts if part.role == "child"] == [
        ("file_open", 500.0)
    ]
    assert found.explained == pytest.approx(1.0)


def test_events_of_runs_explain_a_difference_and_stand_in_their_parents() -> None:
    runs = paired_runs({"none": 1.0, "b": 1.5}, blocks=20, noise=0.0, first_times=1.0)
    events = []
    for each in runs:
        slow = each.configuration == "b"
        whole = 800_000.0 if slow else 400_000.0
        events += [
            event(each.sequence, "sign", whole),
            event(each.sequence, "hash", whole / 4, parent="host|sign"),
        ]
    (found,) = [
        each
        for each in attributions(dataset([*runs, *events], baseline="none"), baseline="none")
        if each.metric == "difference"
    ]
    assert found.total == pytest.approx(500_000.0)
    shown = [(part.event, part.depth, part.value) for part in found.parts]
    assert shown[0] == ("sign", 0, pytest.approx(400_000.0))
    assert shown[1] == ("hash", 1, pytest.approx(100_000.0))
    assert shown[-1] == ("remainder", 0, pytest.approx(100_000.0))


def test_the_margin_of_a_part_is_that_of_its_values_in_the_order_of_the_runs() -> None:
    """How many independent values a series is worth depends on their order."""
    runs = paired_runs({"none": 1.0, "b": 1.0}, blocks=40, noise=0.0, first_times=1.0)
    counted = {
        arm: [each.sequence for each in runs if each.configuration == arm and each.block > 1]
        for arm in ("none", "b")
    }
    drift = 100_000.0 + 1000.0 * np.arange(40)
    events, margins = [], []
    for arm, missing in (("none", 7), ("b", 30)):
        values = drift * (2.0 if arm == "b" else 1.0)
        values[missing] = 0.0  # it does not occur in this run
        events += [
            event(sequence, "sign", float(value))
            for sequence, value in zip(counted[arm], values, strict=True)
            if value
        ] + [event(sequence, "rest", 1.0) for sequence in counted[arm]]
        found = summarise(values)
        margins.append(1.96 * (found.sd or 0.0) / math.sqrt(found.effective_n or 1.0))
    (difference,) = [
        each
        for each in attributions(dataset([*runs, *events], baseline="none"), baseline="none")
        if each.metric == "difference"
    ]
    sign = next(part for part in difference.parts if part.event == "sign")
    assert sign.margin == pytest.approx(math.hypot(*margins))


@pytest.mark.parametrize(("ratio", "flag"), [(1.0, "there is no"), (1.001, "within its error")])
def test_a_difference_that_may_be_none_is_told(ratio: float, flag: str) -> None:
    runs = paired_runs({"none": 1.0, "b": ratio}, blocks=20, noise=0.05 if ratio > 1 else 1e-9)
    events = [event(each.sequence, "sign", 100.0) for each in runs]
    data = dataset([*runs, *events], baseline="none")
    (found,) = [e for e in attributions(data, baseline="none") if e.metric == "difference"]
    assert any(flag in each for each in found.flags)


def test_the_a_a_arm_is_not_attributed() -> None:
    runs = paired_runs({"none": 1.0, "none (A/A)": 1.0, "b": 1.5}, blocks=8)
    events = [event(each.sequence, "sign", 100.0) for each in runs]
    data = dataset([*runs, *events], baseline="none", twin="none (A/A)", paired=True)
    found = attributions(data, baseline="none")
    assert [each.configuration for each in found] == ["b − none"]


def test_traces_of_different_tasks_say_which_tasks_they_hold(tmp_path: Path) -> None:
    one = _trace(tmp_path, "one", {"inode_permission": 200.0}, 1000.0, seed=1)
    runs = paired_runs({"two": 1.0}, task="sign", blocks=3)
    two = dataset([*runs, event(runs[0].sequence, "hash", 10.0)], name="two")
    with pytest.raises(UsageError, match=f"No task ran in all: {STAT} against sign"):
        attributions(one, two)


def test_a_table_of_hooks_alone_says_that_totals_and_calls_are_missing() -> None:
    hooks = dataset(
        [
            Aggregate(
                task="workload",
                configuration="none",
                metric="duration",
                unit="ns",
                mean=35.0,
                layer="hook",
                event="inode_create",
            )
        ]
    )
    with pytest.raises(UsageError, match=r"give totals of tasks beside them.*--calls"):
        attributions(hooks)


def test_hooks_without_system_calls_say_what_to_trace(tmp_path: Path) -> None:
    text = HEADER + " 0)   0.500 us    |  security_file_open();\n" * 3
    reading = read(text.encode(), options=Options(source="t"))
    hooks = load_capture(
        import_readings(tmp_path / "t.excise", [Imported(name="t", data=b"", reading=reading)])
    )
    with pytest.raises(UsageError, match="trace system calls too"):
        attributions(hooks)
