"""The tracer's own cost: of leaves, of calls at any depth, and by how much it may be off."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import pytest

from excise.cost.hook_operations import OperationHooks, operation_hooks
from excise.cost.tracer_cost import TracerCost, calibrated
from excise.formats.function_graph import read_function_graph
from trace_text import CALIBRATION, begin, end, leaf, note, text

VECTORS: Final = Path(__file__).parents[1] / "vectors" / "calibration"


def cost_of(folder: str) -> TracerCost:
    data = (VECTORS / folder / "trace.txt.calibration").read_bytes()
    found = calibrated(data, source=folder)
    assert found is not None
    return found


def test_calls_four_deep_and_side_by_side_cost_what_a_single_one_does() -> None:
    found = cost_of("6.12-subbuffer-512")
    assert (found.floor, found.nested, found.deepest) == (736, 1431, 4)
    assert (found.floor_error, found.nested_error) == (0, 0)


def test_a_buffer_of_small_parts_makes_an_error_that_is_said() -> None:
    found = cost_of("6.12-subbuffer-4")
    assert (found.floor, found.nested, found.deepest) == (741, 1441, 1)
    # The begin of a part takes 231 instructions, and comes after some 40 of these calls.
    assert 231 / 49 < found.nested_error < 231 / 30


def test_tracing_deeper_by_what_the_first_depth_does_not_tell_is_an_error() -> None:
    root = note("excise: calibration root"), *(leaf("sys", 1000) for _ in range(4))
    tree = [note("excise: calibration tree")]
    for _ in range(4):
        inner = begin("vfs_read", depth=1), leaf("read_null", 740, depth=2)
        tree += [begin("sys"), *inner, end("vfs_read", 2340, depth=1), end("sys", 1000 + 2 * 1450)]
    # A write to tracefs at the end calls one of these functions as well.
    found = calibrated(CALIBRATION + text(*root, *tree, leaf("vfs_read", 800)), source="x")
    assert found is not None
    assert (found.nested, found.deepest) == (1440, 2)
    assert found.nested_error == pytest.approx(10)


def stat_hooks(kind: str) -> OperationHooks:
    folder = VECTORS / "6.12-subbuffer-512"
    return operation_hooks(
        (folder / f"stat.{kind}.trace").read_bytes(),
        calibration=(folder / "trace.txt.calibration").read_bytes(),
        source=kind,
    )


def test_functions_in_a_hook_sum_to_what_the_hook_takes_alone() -> None:
    hooks, functions = stat_hooks("hooks").hooks, stat_hooks("functions").functions
    assert {name: part.cost for name, part in hooks.items()} == {
        "security_inode_permission": pytest.approx(876),
        "security_inode_getattr": pytest.approx(225),
    }
    inside = sum(part.calls for (hook, name), part in functions.items() if name != hook)
    assert inside == 12
    for hook, part in hooks.items():
        inner = [each for (outermost, _), each in functions.items() if outermost == hook]
        assert math.fsum(each.cost for each in inner) == pytest.approx(part.cost, abs=1e-6)


def test_the_error_of_the_calibration_grows_with_the_traced_calls_inside() -> None:
    folder = VECTORS / "6.12-subbuffer-512"
    cost = cost_of("6.12-subbuffer-4")
    found = operation_hooks(
        (folder / "stat.functions.trace").read_bytes(),
        calibration=(VECTORS / "6.12-subbuffer-4" / "trace.txt.calibration").read_bytes(),
        source="x",
    )
    # Four calls of inode_permission with two inside, and one of inode_getattr with four.
    for hook, calls, inside in (("inode_permission", 4, 8), ("inode_getattr", 1, 4)):
        error = found.hooks[f"security_{hook}"].error
        assert error == pytest.approx(
            (calls + inside) * cost.floor_error + inside * cost.nested_error
        )


def test_the_calibration_of_a_buffer_of_small_parts_shows_where_these_begin() -> None:
    data = (VECTORS / "6.12-subbuffer-4" / "trace.txt.calibration").read_bytes()
    calls = read_function_graph(data, calls=1_000).calls.filter(function="read_null", seen="whole")
    durations = calls.get_column("duration_ns").to_list()
    assert {each for each in durations if each > 800} == {960}
