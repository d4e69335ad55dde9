"""Hooks of one operation: marks, the least batch, and the tracer's cost taken out."""

from __future__ import annotations

import pytest

from excise.cost.hook_operations import hook_name, marked_batches, operation_hooks
from excise.errors import FormatError
from trace_text import CALIBRATION, begin, end, leaf, note, text


def mark(kind: int, operations: int) -> str:
    return note(f"sys_enter: NR 110 (455843495345, {kind}, {operations:x}, 0, 0, 0)")


def batch(*calls: str, operations: int) -> list[str]:
    return [mark(1, operations), *calls, mark(2, operations)]


def test_batches_are_found_by_their_marks_and_lines() -> None:
    found = marked_batches(
        text(leaf("f", 1), *batch(leaf("g", 1), operations=16), mark(1, 3), mark(2, 4))
    )
    assert found == [(16, 2, 4)]


def test_the_least_batch_counts_without_the_tracers_floor() -> None:
    usual = [leaf("security_inode_permission", 940), leaf("security_inode_permission", 950)]
    slow = [leaf("security_inode_permission", 940), leaf("security_inode_permission", 9950)]
    trace = text(
        leaf("security_file_open", 5000),
        *batch(leaf("security_inode_permission", 740), operations=1),
        *batch(*slow, operations=2),
        *batch(*usual, operations=2),
    )
    found = operation_hooks(trace, calibration=CALIBRATION, source="x")
    assert (found.operations, found.batches) == (2, 2)
    assert found.tracer.floor == 740
    assert found.tracer.nested == 1440
    (name, part), *others = found.hooks.items()
    assert (name, others) == ("security_inode_permission", [])
    assert part.calls == 1
    assert part.cost == pytest.approx((200 + 210) / 2)


def test_a_hooks_functions_share_its_cost_and_each_nested_call_is_paid_for() -> None:
    # 100 of its own, 50 in its function: floors of both, and what a nested call adds outside.
    inner = leaf("selinux_inode_permission", 50 + 740, depth=1)
    outer = end("security_inode_permission", 100 + 740 + 50 + 1440)
    trace = text(*batch(begin("security_inode_permission"), inner, outer, operations=1))
    found = operation_hooks(trace, calibration=CALIBRATION, source="x")
    assert found.hooks["security_inode_permission"].cost == pytest.approx(150)
    parts = {
        function: part.cost
        for (outermost, function), part in found.functions.items()
        if outermost == "security_inode_permission"
    }
    assert list(parts) == ["security_inode_permission", "selinux_inode_permission"]
    assert parts["security_inode_permission"] == pytest.approx(100)
    assert parts["selinux_inode_permission"] == pytest.approx(50)


def test_a_trace_that_lost_events_is_refused() -> None:
    trace = text(*batch(leaf("security_file_open", 800), operations=1), "CPU:0 [LOST 7 EVENTS]")
    with pytest.raises(FormatError, match="counts would be wrong"):
        operation_hooks(trace, calibration=CALIBRATION, source="x")


def test_a_trace_without_marks_or_calibration_is_refused() -> None:
    trace = text(leaf("security_file_open", 800))
    with pytest.raises(FormatError, match="no batch is marked"):
        operation_hooks(trace, calibration=CALIBRATION, source="x")
    with pytest.raises(FormatError, match="shows no empty function"):
        operation_hooks(trace, calibration=b"", source="x")


def test_a_hook_is_called_as_in_tables_of_hooks() -> None:
    assert hook_name("security_inode_permission") == "inode_permission"
