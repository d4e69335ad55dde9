"""Function graphs and traces of events as captures: runs, nested events, rows by system call."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.cost.attribution import run_attributions
from excise.cost.call_tree import CallNode, call_trees, function_costs, histograms
from excise.errors import FormatError
from excise.events.imports import Imported, import_readings
from excise.events.load import from_records, load_capture
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from excise.reference import load
from trace_inputs import FTRACE_EVENTS, FUNCTION_GRAPH, TRACE_CMD

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def _read(data: str | bytes, **options: str) -> Reading:
    raw = data.encode() if isinstance(data, str) else data
    return read(raw, options=Options(source="trace", **options))  # type: ignore[arg-type]


def _rows(reading: Reading, layer: str, metric: str) -> dict[tuple[str, str], object]:
    return {
        (row.task, row.event): row
        for row in reading.aggregates
        if row.layer == layer and row.metric == metric
    }


def _tree(reading: Reading, tmp_path: Path) -> CallNode:
    path = import_readings(tmp_path / "c.excise", [Imported(name="t", data=b"", reading=reading)])
    trees = call_trees(load_capture(path))
    assert len(trees) == 1
    assert len(trees[0].roots) == 1
    return trees[0].roots[0]


@pytest.mark.parametrize(
    ("name", "own_us", "parts"),
    [
        ("no-hmac", 53.871, {"tpm_buf_append_hmac_session": 1.112, "tpm_transmit_cmd": 6360.029}),
        (
            "hmac",
            10.144,
            {
                "tpm2_start_auth_session": 126795.1,
                "tpm_transmit_cmd": 24356.46,
                "tpm_buf_fill_hmac_session": 3.546,
                "tpm_buf_check_hmac_response": 3.496,
                "tpm_buf_append_hmac_session": 2.254,
            },
        ),
    ],
)
def test_the_published_listings_have_their_exact_trees(
    tmp_path: Path, name: str, own_us: float, parts: dict[str, float]
) -> None:
    reading = _read((VECTORS / "function_graph_published" / f"{name}.txt").read_bytes())
    root = _tree(reading, tmp_path)
    assert root.function == "tpm2_pcr_extend"
    assert {child.function: child.total / 1e3 for child in root.children} == parts
    assert root.own / 1e3 == pytest.approx(own_us, abs=1e-9)
    assert root.own == root.total - sum(child.total for child in root.children)
    assert reading.losses == ()


def test_time_of_the_published_session_that_no_command_explains_is_shown(tmp_path: Path) -> None:
    reading = _read((VECTORS / "function_graph_published" / "hmac.txt").read_bytes())
    root = _tree(reading, tmp_path)
    start = next(n for n in root.children if n.function == "tpm2_start_auth_session")
    assert start.own / 1e3 == pytest.approx(126795.1 - 36976.99 - 84746.51 - 3195.083)


@pytest.mark.parametrize(("name", "arm"), [("no-hmac", "no HMAC"), ("hmac", "HMAC")])
def test_a_published_listing_is_attributed_as_its_reference_data(name: str, arm: str) -> None:
    reading = _read((VECTORS / "function_graph_published" / f"{name}.txt").read_bytes())
    dataset = load("tpm-hmac-2024")
    records = [*reading.runs, *reading.events]
    listed = from_records(records, name="listing", manifest=dataset.manifest)
    [own] = run_attributions(listed)
    [published] = [
        found
        for found in run_attributions(dataset, task="tpm2_pcr_extend")
        if found.configuration == arm
    ]
    assert own.total == published.total
    assert own.parts[-1].event == published.parts[-1].event == "remainder"
    assert own.parts[-1].value == pytest.approx(published.parts[-1].value)


def test_hooks_are_rows_of_the_system_call_they_were_called_in() -> None:
    reading = _read(FUNCTION_GRAPH)
    hooks = _rows(reading, "hook", "duration")
    assert set(hooks) == {("openat", "inode_permission"), ("openat", "file_open")}
    row = hooks["openat", "file_open"]
    assert (row.count, row.sum, row.min) == (1, 1700, 1700)  # type: ignore[attr-defined]
    own = _rows(reading, "hook", "self")["openat", "file_open"]
    assert own.sum == 700  # type: ignore[attr-defined]
    assert ("openat", "selinux_file_open") in _rows(reading, "lsm", "duration")
    assert _rows(reading, "syscall", "count")["openat", ""].count == 1  # type: ignore[attr-defined]


def test_a_given_task_keeps_the_system_call_as_a_label() -> None:
    reading = _read(FUNCTION_GRAPH, task="cp", configuration="selinux")
    [row] = [r for r in reading.aggregates if r.event == "file_open" and r.metric == "duration"]
    assert (row.task, row.configuration, row.labels) == ("cp", "selinux", "syscall=openat")


def test_calls_at_the_top_are_runs_with_nested_events() -> None:
    reading = _read(FUNCTION_GRAPH)
    [run] = reading.runs
    assert (run.task, run.wall_ns) == ("do_sys_openat2", 12_000)
    parents = {event.event: event.parent for event in reading.events}
    assert parents == {
        "security_inode_permission": None,
        "selinux_inode_permission": "kernel|security_inode_permission",
        "security_file_open": None,
        "selinux_file_open": "kernel|security_file_open",
    }


def test_a_function_on_several_paths_is_told_apart_by_its_callers() -> None:
    reading = _read(
        " 0)               |  top() {\n 0)               |    a() {\n"
        " 0)   1.000 us    |      f();\n"
        " 0)   2.000 us    |    }\n 0)               |    b() {\n 0)   3.000 us    |      f();\n"
        " 0)   4.000 us    |    }\n 0)   1.500 us    |    f();\n 0) + 10.000 us   |  }\n"
    )
    events = {event.event: (event.parent, event.value) for event in reading.events}
    assert events == {
        "a": (None, 2000.0),
        "f < a": ("kernel|a", 1000.0),
        "b": (None, 4000.0),
        "f < b": ("kernel|b", 3000.0),
        "f < top": (None, 1500.0),
    }


def test_hooks_of_many_functions_are_summed_up_and_no_runs(shared_vectors: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.12/tomoyo-enf-fgraph-sec-lsm.head.txt"
    reading = _read(path.read_bytes())
    assert reading.runs == []
    assert any("are summed up, not runs" in note for note in reading.notes)


def test_more_calls_at_the_top_than_may_be_runs_are_noted() -> None:
    call = " 0)               |  a() {\n 0)   1.000 us    |    b();\n 0)   3.000 us    |  }\n"
    reading = _read(call * 20_001)
    assert reading.runs == []
    assert reading.notes == [
        "20,001 calls at the top are only summed up: too many for runs of their own"
    ]
    assert len(_read(call * 20_000).runs) == 20_000


def test_a_trace_of_a_tpm_is_twenty_extends_whose_parts_sum_up(
    shared_vectors: Path, tmp_path: Path
) -> None:
    path = shared_vectors / "formats/ftrace_6.12/own-tpmtrace-hmac.txt"
    reading = _read(path.read_bytes())
    assert len(reading.runs) == 20
    assert {run.task for run in reading.runs} == {"ima_add_template_entry"}
    root = _tree(reading, tmp_path)
    for node in root.walk():
        assert node.own + sum(c.total for c in node.children) == pytest.approx(node.total)
    assert sum(node.own for node in root.walk()) == pytest.approx(root.total)
    assert root.total == sum(run.wall_ns or 0 for run in reading.runs)


@pytest.mark.parametrize(
    ("clock", "unit"),
    [
        *(("boot", "ns"), ("global", "ns"), ("mono", "ns"), ("perf", "ns")),
        *(("counter", "ticks"), ("uptime", "ticks"), ("x86-tsc", "ticks")),
    ],
)
def test_events_in_seven_clocks(shared_vectors: Path, clock: str, unit: str) -> None:
    path = shared_vectors / "formats/ftrace_6.1" / f"events_clock_{clock}.txt"
    reading = _read(path.read_bytes())
    text = path.read_text()
    durations = _rows(reading, "syscall", "duration")
    entered = _rows(reading, "syscall", "count")
    assert sum(row.count for row in entered.values()) == text.count("sys_enter: NR")  # type: ignore[attr-defined]
    assert {row.unit for row in durations.values()} == {unit}  # type: ignore[attr-defined]
    stamps = [
        line.split("..... ")[-1].split(": ")[0].strip()
        for line in text.splitlines()
        if " NR 33 " in line or " NR 33=" in line or "NR 33 = " in line
    ]
    scale = 1e9 if unit == "ns" else 1
    took = [
        round((float(after) - float(before)) * scale)
        for before, after in zip(stamps[::2], stamps[1::2], strict=False)
    ]
    row = durations["dup2", ""]
    assert row.sum == pytest.approx(sum(took), abs=1)  # type: ignore[attr-defined]
    assert any("whole numbers" in note for note in reading.notes) == (unit == "ticks")


def test_what_a_small_buffer_lost_is_declared(shared_vectors: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.1/events_small_buffer_overwrite.txt"
    [loss] = _read(path.read_bytes()).losses
    assert (loss.count, loss.reason) == (
        6922 - 235,
        "events that were overwritten before the trace was read",
    )


def test_pairs_of_probes_are_calls_of_the_probed_function(shared_vectors: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.1/kprobe_events.txt"
    reading = _read(path.read_bytes())
    [row] = _rows(reading, "hook", "duration").values()
    assert (row.event, row.count, row.min) == ("file_open", 10, 10_000)  # type: ignore[attr-defined]
    assert row.max == 50_000  # type: ignore[attr-defined]


def test_functions_of_the_function_tracer_are_counted(shared_vectors: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.1/function_security_hooks.txt"
    reading = _read(path.read_bytes())
    text = path.read_text()
    counts = {name: row.count for (_, name), row in _rows(reading, "hook", "duration").items()}  # type: ignore[attr-defined]
    assert counts["inode_permission"] == text.count(": security_inode_permission\n")
    assert sum(counts.values()) == text.count(": security_")


def test_threads_and_interrupt_flags_may_be_printed_or_not(shared_vectors: Path) -> None:
    folder = shared_vectors / "formats/ftrace_6.1"
    for name in ("events_trace_tgid", "events_trace_noirqinfo", "events_trace_pipe"):
        text = (folder / f"{name}.txt").read_text()
        counts = {
            row.event: row.count
            for row in _read(text).aggregates
            if row.layer == "event" and row.metric == "count"
        }
        for event in ("sys_enter", "sys_exit", "sched_switch"):
            assert counts[event] == text.count(f": {event}: "), (name, event)


def test_a_real_report_of_trace_cmd_gives_system_calls() -> None:
    text = (VECTORS / "trace_cmd" / "raw_syscalls.txt").read_text()
    reading = _read(text)
    assert reading.format == "trace-cmd"
    counts = _rows(reading, "syscall", "count")
    assert sum(row.count for row in counts.values()) == text.count("sys_enter:")  # type: ignore[attr-defined]
    dup2 = _rows(reading, "syscall", "duration")["dup2", ""]
    assert dup2.min == 1_000  # type: ignore[attr-defined]


def test_functions_and_losses_of_trace_cmd() -> None:
    reading = _read(TRACE_CMD)
    [run] = reading.runs
    assert (run.task, run.wall_ns) == ("vfs_open", 4_000)
    assert {loss.reason: loss.count for loss in reading.losses} == {
        "events of CPU 0 that the ring buffer could not keep, in 1 gap": 123,
        "events that trace-cmd could not parse": 1,
    }


def test_graph_and_events_are_not_taken_for_each_other() -> None:
    for text, name in ((FTRACE_EVENTS, "function-graph"), (FUNCTION_GRAPH, "trace-cmd")):
        with pytest.raises(FormatError, match="line 1"):
            read(text.encode(), options=Options(source="t"), format_name=name)


def test_quoted_listings_of_newer_kernels_are_read(shared_vectors: Path) -> None:
    notes = shared_vectors / "formats/notes/newer_function_graph_formats.md"
    reading = _read(notes.read_bytes())
    names = {row.event for row in reading.aggregates if row.layer == "function"}
    assert {"local_clock", "_raw_spin_lock_irqsave", "__cond_resched", "do_IRQ"} <= names


def test_histograms_of_hooks_hold_every_call(shared_vectors: Path, tmp_path: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.12/selinux-enf-fgraph-sec+sysev.head.txt"
    reading = _read(path.read_bytes())
    capture = import_readings(
        tmp_path / "c.excise", [Imported(name="t", data=b"", reading=reading)]
    )
    dataset = load_capture(capture)
    costs = function_costs(dataset)
    calls = sum(cost.calls or 0 for cost in costs if cost.layer == "hook")
    found = histograms(dataset)
    buckets = [b for (_, name, _), row in found.items() if name.startswith("hook|") for b in row]
    assert sum(bucket.count for bucket in buckets) == calls > 200
    assert all((b.high or 0) <= (b.low or 0) * 1.033 + 1 for b in buckets)
