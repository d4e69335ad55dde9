"""What a trace says: hooks by system call, the tracer's cost, coverage, loss, LSMPMON's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from captures import manifest
from excise.cost.difference import difference_attributions
from excise.cost.hook_coverage import coverage_by_group
from excise.cost.hook_trace import HookTrace, read_hook_trace, trace_records
from excise.errors import FormatError
from excise.events.load import from_records
from excise.formats import lsmpmon
from excise.formats.model import Options
from excise.formats.trace_rows import INSIDE
from excise.report.hooks import build_hook_trace, lsmpmon_text
from excise.report.write import render
from trace_text import CALIBRATION, begin, end, leaf, note, text

SUMMARY: dict[str, Any] = {
    "version": "0", "kernel_release": "6.12.0", "lsm": "capability,apparmor",
    "backend": "function_graph", "reason": "the kernel has it", "offers": [],
    "instance": "excise-1", "matched": [{"pattern": "security_*", "functions": 3}],
    "functions": ["security_file_open", "security_inode_permission", "security_path_mknod"],
    "refused": [], "clock": "local", "cycles_per_s": None, "syscalls": True,
    "interruptions": True, "calibration_calls": 5, "cpus": [{"cpu": 0}], "missed": 0,
    "trace_bytes": 1, "wall_ns": 1_100, "exit_code": 0,
    "stopped": False,
}  # fmt: skip


def runs(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    """Return runs in pairs, untraced and traced; the processor's time is half of it."""
    return [
        {"traced": traced, "wall_ns": wall_ns, "cpu_ns": wall_ns // 2}
        for pair in pairs
        for traced, wall_ns in zip((False, True), pair, strict=True)
    ]


GRAPH = text(
    note("sys_enter: NR 257 (0, 0, 0, 0, 0, 0)"),
    leaf("security_inode_permission", 940),
    leaf("security_inode_permission", 960),
    begin("security_file_open"),
    leaf("apparmor_file_open", 1740, depth=1),
    end("security_file_open", 3000),
    note("sys_exit: NR 257 = 3"),
    note("sys_enter: NR 262 (0, 0, 0, 0, 0, 0)"),
    leaf("security_inode_permission", 740),
    note("sys_exit: NR 262 = 0"),
)
PROBES = "\n".join(
    [
        "  sh-7  [000] .....  1000: sys_enter: NR 257 (0, 0, 0, 0, 0, 0)",
        "  sh-7  [000] .....  2000: security_file_open__in: (security_file_open+0x4/0x90)",
        "  sh-7  [000] .....  3000: security_file_open__out: (g+0xf8 <- security_file_open)",
        "  sh-7  [000] .....  4000: sys_exit: NR 257 = 3",
        "",
    ]
).encode()  # fmt: skip


def traced(
    folder: Path,
    trace: bytes = GRAPH,
    *,
    subtract: bool = False,
    cycles: bool = False,
    **changes: Any,
) -> HookTrace:
    path = folder / "trace.txt"
    path.write_bytes(trace)
    return read_hook_trace(
        path,
        summary=json.dumps({**SUMMARY, **changes}).encode(),
        calibration=CALIBRATION,
        subtract=subtract,
        cycles=cycles,
    )


def test_each_hook_is_counted_and_timed_in_its_system_call(tmp_path: Path) -> None:
    found = traced(tmp_path)
    rows = {(row["syscall"], row["function"]): row for row in found.by_syscall.to_dicts()}
    assert rows["openat", "security_inode_permission"]["calls"] == 2
    assert rows["openat", "security_inode_permission"]["mean"] == 950
    assert rows["newfstatat", "security_inode_permission"]["max"] == 740
    assert rows["openat", "security_file_open"]["self"] == 3000 - 1740
    assert found.syscalls.rows() == [("newfstatat", 1), ("openat", 1)]


def test_the_tracers_cost_is_a_row_and_is_subtracted_only_when_asked_for(tmp_path: Path) -> None:
    left, taken = traced(tmp_path), traced(tmp_path, subtract=True)
    assert left.tracer is not None
    assert (left.tracer.floor, left.tracer.nested) == (740, 1440)
    assert not left.subtracted
    means = [dict(each.functions.select("function", "mean").rows()) for each in (left, taken)]
    assert means[0]["security_inode_permission"] == pytest.approx(880)
    assert means[1]["security_inode_permission"] == pytest.approx(140)
    below = dict(left.by_syscall.select("syscall", "below_floor").rows())
    assert below["newfstatat"] is True


def test_functions_that_never_ran_are_named(tmp_path: Path) -> None:
    found = traced(tmp_path)
    assert found.never == ("security_path_mknod",)
    assert found.coverage == pytest.approx(2 / 3)


def test_cycles_become_nanoseconds_by_the_measured_frequency(tmp_path: Path) -> None:
    changes = {"backend": "kprobe", "clock": "x86-tsc", "cycles_per_s": 2e9}
    found = traced(tmp_path, PROBES, **changes)
    assert found.unit == "ns"
    assert found.functions.select("function", "mean").rows() == [("security_file_open", 500.0)]
    assert found.callers.rows() == [("security_file_open", "g", 1)]
    assert traced(tmp_path, PROBES, cycles=True, **changes).functions["mean"][0] == 1000.0


def test_loss_is_declared_by_processor(tmp_path: Path) -> None:
    cpus = [{"cpu": 0, "overrun": 7}, {"cpu": 1, "dropped": 2}]
    losses = traced(tmp_path, cpus=cpus, missed=3, refused=["a", "b"]).losses
    assert [(loss.source, loss.count) for loss in losses] == [
        ("CPU 0", 7),
        ("CPU 1", 2),
        ("function_graph", 3),
        ("function_graph", 2),
    ]


def test_events_that_the_text_and_the_buffers_statistics_tell_of_are_counted_once(
    tmp_path: Path,
) -> None:
    told = GRAPH + text("CPU:0 [LOST 7 EVENTS]", "CPU:0 [LOST 3 EVENTS]", "CPU:1 [LOST 2 EVENTS]")
    # Four more were overwritten where nothing that follows was read.
    cpus = [{"cpu": 0, "overrun": 14}, {"cpu": 1, "overrun": 2, "commit_overrun": 1}]
    losses = traced(tmp_path, told, cpus=cpus).losses
    assert [(loss.reason, loss.count) for loss in losses] == [
        ("events of CPU 0 that the ring buffer could not keep, in 2 gaps", 10),
        ("events of CPU 1 that the ring buffer could not keep, in 1 gap", 2),
        ("events lost: overrun", 4),
        ("events lost: commit overrun", 1),
    ]


def test_a_summary_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(GRAPH)
    with pytest.raises(FormatError, match="is no summary of a trace"):
        read_hook_trace(tmp_path / "t", summary=b"{}", calibration=b"")


def test_the_report_says_back_end_slowdown_coverage_and_noise(tmp_path: Path) -> None:
    out = render(build_hook_trace(traced(tmp_path), title="t"), format="text", width=100)
    for words in (
        "Traced by function_graph: the kernel has it.",
        "740 ns ≤ floor",
        "2 of 3 hooks were called (67%)",
        "Never called: path_mknod",
    ):
        assert words in " ".join(out.split())


def test_lsmpmons_columns_are_read_back_by_its_reader(tmp_path: Path) -> None:
    reading = lsmpmon.read(lsmpmon_text(traced(tmp_path)).encode(), Options(source="x"))
    rows = {row.event: row for row in reading.aggregates}
    permission = rows["inode_permission"]
    assert (permission.min, permission.max, permission.mean) == (740, 960, 880)
    assert permission.count == 3
    assert reading.losses == []


def test_lsmpmons_columns_say_what_is_missing_and_so_does_their_reader(tmp_path: Path) -> None:
    cpus = [{"cpu": 0, "overrun": 7}, {"cpu": 1}]
    printed = lsmpmon_text(traced(tmp_path, cpus=cpus, full=True, trace_bytes=2000))
    missing = [line for line in printed.splitlines() if line.startswith("# lost: ")]
    assert missing == [
        "# lost: CPU 0: events lost: overrun (7)",
        "# lost: function_graph: the trace ended at its limit of 2,000 bytes: what came after (1)",
    ]
    reading = lsmpmon.read(printed.encode(), Options(source="x"))
    assert [f"# lost: {loss.reason}" for loss in reading.losses] == [
        line.replace("# lost: ", "# lost: lost before: ") for line in missing
    ]
    assert len(reading.aggregates) == 2


def test_two_traces_are_attributed_hook_by_hook_in_its_system_call(tmp_path: Path) -> None:
    datasets = []
    for name, wall_ns, extra in (("none", 1_000, 0), ("apparmor", 1_500, 500)):
        trace = GRAPH.replace(b"  3.000 us", f"{(3000 + extra) / 1000:7.3f} us".encode())
        found = traced(tmp_path, trace, runs=runs((wall_ns, wall_ns)))
        records = trace_records(found, task="sh", configuration=name)
        datasets.append(from_records(records, name=name, manifest=manifest(baseline=None)))
    (row,) = difference_attributions(*datasets)
    assert row.total == 500
    assert row.parts[0].event == "file_open"
    assert "syscall=openat" in row.parts[0].labels
    assert row.parts[0].value == pytest.approx(500)
    assert sum(part.value for part in row.parts if part.depth == 0) == pytest.approx(row.total)


def test_interrupts_and_other_tasks_inside_a_hook_are_timed_apart(tmp_path: Path) -> None:
    trace = text(
        leaf("security_inode_permission", 900),
        begin("security_inode_permission"),
        begin("__sysvec_apic_timer_interrupt", depth=1),
        end("__sysvec_apic_timer_interrupt", 7_000, depth=1),
        leaf("schedule", 50_000, depth=1),
        end("security_inode_permission", 57_950),
    )
    found = traced(tmp_path, trace)
    (row,) = found.functions.to_dicts()
    assert row["function"] == "security_inode_permission"
    assert (row["interrupt"], row["off_cpu"], row["disturbed"]) == (7_000, 50_000, 1)
    assert row["mean"] == pytest.approx((900 + 950) / 2)
    assert (row["max"], row["inside"]) == (950, 0)
    records = list(trace_records(found, task="t", configuration="c"))
    apart = {record.metric: record.sum for record in records if record.sum is not None}
    assert apart == {"interrupt": 7_000, "off_cpu": 50_000}
    out = render(build_hook_trace(found, title="t"), format="text", width=200)
    assert "7.00 µs" in out
    assert "50.0 µs" in out


def test_what_traced_calls_inside_add_is_subtracted_too(tmp_path: Path) -> None:
    functions = [*SUMMARY["functions"], "apparmor_file_open"]
    found = traced(tmp_path, subtract=True, functions=functions)
    rows = {row["function"]: row for row in found.functions.to_dicts()}
    opened = rows["security_file_open"]
    assert (opened["inside"], opened["directly"]) == (1, 1)
    assert opened["mean"] == pytest.approx(3000 - 740 - 1440)
    assert opened["self"] == pytest.approx(3000 - 1740 - 740 - (1440 - 740))
    assert rows["apparmor_file_open"]["mean"] == pytest.approx(1740 - 740)


def test_coverage_is_told_by_group_of_the_kernels_hooks(tmp_path: Path) -> None:
    hooks = [
        {"group": "inode", "hook": "inode_permission", "function": "security_inode_permission"},
        {"group": "path", "hook": "path_mknod", "function": "security_path_mknod"},
        {"group": "path", "hook": "path_chmod", "function": "security_path_chmod"},
        {"group": "path", "hook": "path_new", "function": None},
    ]
    found = traced(tmp_path, hooks=hooks)
    inode, path = coverage_by_group(found)
    assert (inode.group, inode.fired, inode.reachable) == ("inode", ("inode_permission",), 1)
    assert (path.never, path.not_asked_for) == (("path_mknod",), ("path_chmod",))
    assert (path.out_of_reach, path.hooks, path.reachable) == (("path_new",), 3, 1)
    report = build_hook_trace(found, title="t")
    out = render(report, format="text", width=120)
    assert "Never fired" in out
    data = json.loads(render(report, format="json"))["data"]
    assert data["groups"][1]["never"] == ["path_mknod"]
    assert (data["groups"][1]["hooks"], data["groups"][1]["reachable"]) == (3, 1)


def test_the_tracers_cost_is_taken_out_of_an_attribution_by_traced_call(tmp_path: Path) -> None:
    datasets = []
    functions = [*SUMMARY["functions"], "apparmor_file_open"]
    bare = text(
        note("sys_enter: NR 257 (0, 0, 0, 0, 0, 0)"),
        *(leaf("security_inode_permission", ns) for ns in (940, 960)),
        leaf("security_file_open", 800),
        note("sys_exit: NR 257 = 3"),
        note("sys_enter: NR 262 (0, 0, 0, 0, 0, 0)"),
        leaf("security_inode_permission", 740),
        note("sys_exit: NR 262 = 0"),
    )
    for name, wall_ns, trace in (("none", 1_000, bare), ("apparmor", 1_800, GRAPH)):
        found = traced(tmp_path, trace, runs=runs((wall_ns, wall_ns)), functions=functions)
        records = trace_records(found, task="sh", configuration=name)
        datasets.append(from_records(records, name=name, manifest=manifest(baseline=None)))
    (row,) = difference_attributions(*datasets)
    opened = next(part for part in row.parts if part.event == "file_open")
    # 3000 - 800, of which 1440 are what the traced function inside adds.
    assert opened.value == pytest.approx(3000 - 800 - 1440)
    assert sum(part.value for part in row.parts if part.depth == 0) == pytest.approx(800)
    assert any("taken out of apparmor: 740 ns a call" in flag for flag in row.flags)


def test_an_attribution_of_traces_without_nesting_says_that_the_tracers_cost_is_left(
    tmp_path: Path,
) -> None:
    changes = {"backend": "kprobe", "clock": "x86-tsc", "cycles_per_s": 1e9}
    datasets = []
    for name, wall_ns in (("none", 1_000), ("apparmor", 1_500)):
        found = traced(tmp_path, PROBES, runs=runs((wall_ns, wall_ns)), **changes)
        # As a back-end that does not tell which calls are inside of which.
        told = trace_records(found, task="sh", configuration=name)
        records = [record for record in told if record.metric != INSIDE]
        datasets.append(from_records(records, name=name, manifest=manifest(baseline=None)))
    (row,) = difference_attributions(*datasets)
    assert any("is left in the figures of none" in flag for flag in row.flags)


def test_call_sites_are_kept_in_the_capture(tmp_path: Path) -> None:
    changes = {"backend": "kprobe", "clock": "x86-tsc", "cycles_per_s": 2e9}
    found = traced(tmp_path, PROBES, **changes)
    sites = [
        (record.event, record.labels, record.count)
        for record in trace_records(found, task="t", configuration="c")
        if record.metric == "call_site"
    ]
    assert sites == [("file_open", "caller=g", 1)]


def said(found: HookTrace) -> str:
    return " ".join(render(build_hook_trace(found, title="t"), format="text", width=100).split())


def test_the_slowdown_is_that_of_the_median_pair_with_its_interval(tmp_path: Path) -> None:
    drift = [(1_000 + 100 * at, (1_000 + 100 * at) * (1.1 + at / 1_000)) for at in range(6)]
    found = traced(tmp_path, runs=runs(*[(int(a), int(b)) for a, b in drift]))
    ratio = found.summary.slowdown()
    assert ratio is not None
    assert ratio.interval is not None
    assert ratio.ratio == pytest.approx(1.1025, abs=1e-3)
    assert (ratio.interval.low, ratio.interval.high) == pytest.approx((1.1, 1.105), abs=1e-3)
    assert "+10.2 % (95 %: +10.0 to +10.5 %), in 6 pairs of runs; of processor time +10.2 %" in (
        said(found)
    )
    rows = [row for row in trace_records(found, task="t", configuration="c") if row.layer]
    slowdowns = [row for row in rows if row.metric == "slowdown"]
    assert [(row.labels, row.count) for row in slowdowns] == [("of=wall", 6), ("of=cpu", 6)]
    assert all(row.median == pytest.approx(ratio.ratio, rel=1e-2) for row in slowdowns)


def test_a_slowdown_that_is_not_told_apart_from_none_is_not_called_one(tmp_path: Path) -> None:
    few = traced(tmp_path, runs=runs((1_000, 1_200)))
    assert "+20.0 % (too few pairs for an interval), in 1 pair of runs" in said(few)
    noisy = runs(*[(1_000, 1_000 + (50 if at % 2 else -50)) for at in range(8)])
    assert "not told apart from none" in said(traced(tmp_path, runs=noisy))
    assert "was not measured (see --pairs)" in said(traced(tmp_path, runs=runs((0, 0))))
    assert "was not measured" in said(traced(tmp_path))


def test_it_is_said_what_tells_of_interrupts(tmp_path: Path) -> None:
    events = ["sched_switch", "irq_handler_entry", "irq_handler_exit", "softirq_entry"]
    probes = traced(tmp_path, backend="kprobe", interruption_events=events)
    assert "durations: interrupts by the events irq_handler; other tasks by sched_switch" in (
        said(probes)
    )
    graph = said(traced(tmp_path, interruption_events=events[:1]))
    assert "interrupts by the functions that serve them" in graph
    nothing = said(traced(tmp_path, backend="kprobe", interruption_events=[]))
    assert "this kernel has no events of interrupts" in nothing
    assert "they are in the durations" in said(traced(tmp_path, interruptions=False))
