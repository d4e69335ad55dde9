"""Function graphs: the native reader against a slow one, on everything a kernel printed."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import function_graph_reference as reference
from excise.errors import FormatError, UsageError
from excise.formats.ftrace_counts import read_hist
from excise.formats.function_graph import (
    IN_INTERRUPT,
    NO_SYSCALL,
    FunctionGraph,
    read_function_graph,
)
from excise.formats.model import Options
from excise.formats.trace_rows import SYSCALL
from excise.formats.trace_syscalls import syscall_name

OWN = Path(__file__).resolve().parent.parent / "vectors" / "function_graph"
OWN_TRACES = sorted(OWN.glob("*/trace.txt"))
CAPTURED = (
    *("fg_abstime_proc", "fg_context-info_off", "fg_default_all", "fg_funcgraph-proc"),
    *("fg_graphfn_default", "fg_latency-format", "fg_noduration", "fg_noirqs", "fg_nooverhead"),
    *("fg_print-parent", "fg_sleep_time_graph_time", "fg_tail"),
)
NEWER = (
    *("own-tpmtrace-hmac", "selinux-enf-fgraph-sec+sysev.head", "tomoyo-enf-fgraph-sec-lsm.head"),
    *("tpmtrace-full", "tpmtrace-tpmfilter"),
)


def _read(text: str, *, calls: int = 100_000) -> FunctionGraph:
    return read_function_graph(text.encode(), calls=calls)


def _row(graph: FunctionGraph, function: str) -> dict[str, object]:
    rows = graph.by("function").filter(pl.col("function") == function).to_dicts()
    assert len(rows) == 1, f"{len(rows)} rows of {function}"
    return rows[0]


def assert_same(graph: FunctionGraph, expected: reference.Reference) -> None:
    """Assert that every call, its caller, its times and every sum are those of the reference."""
    order = {id(call): i for i, call in enumerate(expected.calls)}
    wanted = [
        (
            call.function,
            None if call.parent is None else order[id(call.parent)],
            call.task,
            call.cpu,
            call.line,
            call.duration_ns,
            call.self_ns if call.seen == "whole" else None,
            call.seen,
        )
        for call in expected.calls
    ]
    got = [
        (*row[:6], row[6] if row[7] == "whole" else None, row[7])
        for row in graph.calls.select(
            "function", "parent", "task", "cpu", "line", "duration_ns", "self_ns", "seen"
        ).iter_rows()
    ]
    assert got == wanted
    assert graph.calls_left_out == 0
    whole = [call for call in expected.calls if call.seen == "whole"]
    counts = Counter(call.function for call in whole)
    totals: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for call in whole:
        totals[call.function] += call.duration_ns or 0
        own[call.function] += call.self_ns or 0
    rows = graph.by("function").filter(pl.col("calls") > 0)
    assert {r["function"]: r["calls"] for r in rows.iter_rows(named=True)} == dict(counts)
    for row in rows.iter_rows(named=True):
        assert row["total_ns"] == totals[row["function"]]
        assert row["self_ns"] == own[row["function"]]
        spent = [
            call.duration_ns
            for call in whole
            if call.function == row["function"] and call.duration_ns is not None
        ]
        if spent and not row["disturbed"]:
            assert (row["min_ns"], row["max_ns"]) == (min(spent), max(spent))
            assert _near(row["median_ns"], sorted(spent)[(len(spent) - 1) // 2])
    assert int(graph.histogram.get_column("count").sum()) == int(rows.get_column("timed").sum())
    paths = graph.paths
    assert int(paths.get_column("calls").sum()) == len(whole)
    assert int(paths.get_column("self_ns").sum()) == sum(own.values())
    assert list(graph.lost) == [
        (cpu, sum(n for c, n in expected.lost if c == cpu), sum(c == cpu for c, _ in expected.lost))
        for cpu in sorted({cpu for cpu, _ in expected.lost})
    ]


def _near(got: float, wanted: int) -> bool:
    return abs(got - wanted) <= max(1, 0.017 * wanted)


@pytest.mark.parametrize("name", CAPTURED)
def test_every_layout_of_6_1_has_the_tree_of_a_slow_reading(
    shared_vectors: Path, name: str
) -> None:
    _assert_file(shared_vectors / "formats" / "ftrace_6.1" / f"{name}.txt")


@pytest.mark.parametrize("name", NEWER)
def test_traces_of_6_12_have_the_tree_of_a_slow_reading(shared_vectors: Path, name: str) -> None:
    _assert_file(shared_vectors / "formats" / "ftrace_6.12" / f"{name}.txt")


@pytest.mark.parametrize("path", OWN_TRACES, ids=lambda path: path.parent.name)
def test_listings_that_real_kernels_print_have_the_tree_of_a_slow_reading(path: Path) -> None:
    _assert_file(path)


def _assert_file(path: Path) -> None:
    text = path.read_text()
    columns = None
    if "context-info_off" in path.name:
        columns = (False, False, False, False, False)
    expected = reference.read(text, columns=columns)
    assert expected.unknown == []
    assert len(expected.calls) > 10
    assert_same(read_function_graph(path, calls=1_000_000), expected)


def test_there_are_listings_of_at_least_three_layouts() -> None:
    assert len(OWN_TRACES) >= 3


# --- generated traces ---------------------------------------------------------------------------


@st.composite
def trees(draw: st.DrawFn) -> tuple[str, int]:
    """Return a default-layout trace of two CPUs with switches of tasks, and its calls."""
    lines: list[str] = ["# tracer: function_graph", "#", "# CPU  DURATION   FUNCTION CALLS"]
    names = st.sampled_from(["vfs_open", "f.part.0", "g [ext4]", "security_file_open", "schedule"])
    count = 0

    def duration(ns: int) -> str:
        return f"{ns // 1000}.{ns % 1000:03}"[:8].rstrip(".")

    def call(depth: int) -> tuple[list[str], int]:
        nonlocal count
        count += 1
        name, blanks = draw(names), "  " * depth
        own = draw(st.integers(1, 5_000_000))
        inner = draw(st.integers(0, 2)) if depth < 4 else 0
        if not inner:
            own = own if own < 10_000_000 else own // 1000 * 1000
            return [f"{duration(own):>10} us |  {blanks}{name}();"], own
        body: list[str] = []
        total = own
        for _ in range(inner):
            more, ns = call(depth + 1)
            body += more
            total += ns
        total = total if total < 10_000_000 else total // 1000 * 1000 + 1000
        return [
            f"              |  {blanks}{name}() {{",
            *body,
            f"{duration(total):>10} us |  {blanks}}}",
        ], total

    streams = {
        cpu: [line for _ in range(draw(st.integers(0, 3))) for line in call(0)[0]] for cpu in (0, 1)
    }
    while any(streams.values()):
        cpu = draw(st.sampled_from([cpu for cpu, left in streams.items() if left]))
        take = draw(st.integers(1, 6))
        lines += [f" {cpu}) {line}" for line in streams[cpu][:take]]
        del streams[cpu][:take]
    return "\n".join(lines) + "\n", count


@given(trees())
@settings(max_examples=60)
def test_generated_traces_have_the_tree_of_a_slow_reading(made: tuple[str, int]) -> None:
    text, count = made
    if not count:
        return
    graph = _read(text)
    assert graph.calls.height == count
    assert_same(graph, reference.read(text))
    roots = graph.calls.filter(pl.col("depth") == 0)
    assert graph.calls.get_column("self_ns").sum() == roots.get_column("duration_ns").sum()


@given(st.lists(st.sampled_from([
    " 0)               |  a() {", " 0)   1.000 us    |  }", " 1)   2.000 us    |    b();",
    " 0)   7.100 us    |    } /* c */", "CPU:0 [LOST 3 EVENTS]", " 0)   ==========> |",
    " 0)   <========== |", " 0)    cat-1      =>    dog-2     ", "", "rubbish", "}", " 0)",
    " 0)               |  /* sys_enter: NR 0 (1, 2, 3, 4, 5, 6) */", "   12.345678 |   1)  x-4 |",
    " 0)               |  /* sys_exit: NR 0 = 1 */", " 0)   99999999999999999999999 us |  a();",
]), max_size=40))  # fmt: skip
def test_lines_in_any_order_are_counted_or_declared(lines: list[str]) -> None:
    text = "\n".join(lines)
    try:
        graph = _read(text)
    except FormatError:
        return
    assert graph.lines == len(text.split("\n")) - text.endswith("\n")
    begun = sum(" a() {" in line or "b();" in line for line in lines)
    assert graph.begun == begun
    assert sum(loss.count for loss in graph.losses if "ring buffer" in loss.reason) == 3 * sum(
        "LOST" in line for line in lines
    )
    closed = int(graph.functions.get_column("calls").sum())
    unclosed = sum(loss.count for loss in graph.losses if "whose end is not" in loss.reason)
    assert closed + unclosed == begun


@given(st.binary(max_size=400))
def test_any_bytes_give_rows_or_a_format_error(data: bytes) -> None:
    try:
        graph = read_function_graph(data, calls=100)
    except FormatError:
        return
    assert graph.begun + sum(graph.events.values()) > 0 or graph.functions.height


# --- what the columns mean ----------------------------------------------------------------------


def test_functions_belong_to_the_system_call_of_their_task(shared_vectors: Path) -> None:
    path = shared_vectors / "formats" / "ftrace_6.12" / "selinux-enf-fgraph-sec+sysev.head.txt"
    graph = read_function_graph(path)
    assert graph.raw_syscalls
    entered = graph.syscalls.group_by("syscall").agg(pl.col("entered").sum())
    wanted = Counter(
        line.split("NR ")[1].split(" ")[0]
        for line in path.read_text().splitlines()
        if "sys_enter: NR" in line
    )
    assert int(entered.get_column("entered").sum()) == sum(wanted.values())
    counts = dict(entered.iter_rows())
    assert counts["openat"] == wanted["257"]
    assert counts["getppid"] == wanted["110"]
    # Each open asks for the permission of the last component at least.
    hooks = graph.by("syscall", "function")
    opened = hooks.filter(
        (pl.col("syscall") == "openat") & (pl.col("function") == "security_file_open")
    )
    assert opened.get_column("calls").to_list() == [counts["openat"] - _failed_opens(path)]


def _failed_opens(path: Path) -> int:
    return sum("sys_exit: NR 257 = -" in line for line in path.read_text().splitlines())


def test_a_system_call_has_one_name_whatever_tells_of_it(shared_vectors: Path) -> None:
    # A histogram's key is sys_sendfile64 [40]; a trace of the same command has the number.
    folder = shared_vectors / "formats" / "ftrace_6.1"
    histogram = read_hist((folder / "hist_trigger.txt").read_bytes(), Options())
    events = read_function_graph(folder / "events_trace.txt").syscalls.get_column("syscall")
    names = {row.task for row in histogram.aggregates if row.layer == SYSCALL}
    assert "sendfile" in names & set(events)
    assert names | set(events) <= {syscall_name(each, machine="x86_64") for each in range(460)}
    for function in ("__x64_sys_newstat", "__ia32_compat_sys_newstat", "__do_sys_newstat"):
        text = f" 0)   1.000 us    |  {function}();\n".encode()
        assert read_function_graph(text).syscalls["syscall"].to_list() == ["stat"]


def test_what_does_the_work_of_a_call_is_its_entry_where_nothing_else_is() -> None:
    work = " 0)   0.500 us    |  ksys_read();\n"
    call = " 0)               |  /* sys_enter: NR 0 (3, 0, 1, 0, 0, 0) */\n"
    assert read_function_graph(work.encode()).syscalls.select("syscall", "entered").rows() == [
        ("read", 1)
    ]
    inner = work.replace("|  ", "|    ")
    inside = f" 0)               |  __x64_sys_read() {{\n{inner} 0)   1.000 us    |  }}\n"
    for text in (inside, call + work):
        rows = read_function_graph(text.encode()).syscalls.select("syscall", "entered").rows()
        assert rows == [("read", 1)]


def test_tasks_on_two_processors_keep_their_own_stacks() -> None:
    graph = _read(
        " 0)               |  a() {\n"
        " 1)   1.000 us    |  b();\n"
        " 0)   2.000 us    |    c();\n"
        " 0)   5.000 us    |  }\n"
    )
    assert (_row(graph, "a")["self_ns"], _row(graph, "b")["self_ns"]) == (3_000, 1_000)
    places = set(graph.functions.select("function", "cpu").iter_rows())
    assert places == {("a", 0), ("b", 1), ("c", 0)}


def test_a_function_that_sleeps_goes_on_with_another_processor() -> None:
    graph = _read(
        " 0)    cat-7      |               |  a() {\n"
        " 0)    cat-7      |               |    schedule() {\n"
        " 0)    dog-8      |   1.000 us    |  b();\n"
        " 1)    cat-7      | ! 500.000 us  |    }\n"
        " 1)    cat-7      | ! 600.000 us  |  }\n"
    )
    a = _row(graph, "a")
    assert (a["total_ns"], a["self_ns"], a["off_cpu_ns"], a["min_ns"]) == (
        600_000, 100_000, 500_000, 100_000,
    )  # fmt: skip
    assert set(graph.functions.get_column("task")) == {"cat-7", "dog-8"}
    assert graph.losses == ()


def test_times_around_a_change_of_task_are_not_the_functions_own() -> None:
    graph = _read(
        "   10.000000 |   0)               |  a() {\n"
        "   10.000001 |   0)   1.000 us    |    x();\n"
        " 0)    cat-7      =>    dog-8     \n"
        "   10.000100 |   0)   1.000 us    |  b();\n"
        " 0)    dog-8      =>    cat-7     \n"
        "   10.000501 |   0)   1.000 us    |    x();\n"
        "   10.000503 |   0) ! 502.000 us  |  }\n"
    )
    a = _row(graph, "a")
    assert (a["off_cpu_ns"], a["disturbed"], a["max_ns"]) == (500_000, 1, 2_000)
    assert (graph.start_ns, graph.end_ns) == (10_000_000_000, 10_000_503_000)


def test_interrupts_inside_a_hook_are_told_apart_on_every_kernel() -> None:
    graph = _read(
        " 0)               |  security_inode_permission() {\n"
        " 0)   1.500 us    |    irq_enter_rcu();\n"
        " 0)               |    __sysvec_apic_timer_interrupt() {\n"
        " 0)   3.000 us    |      ktime_get();\n"
        " 0)   9.000 us    |    }\n"
        " 0)   2.000 us    |    selinux_inode_permission();\n"
        " 0) + 13.000 us   |  }\n"
    )
    hook = _row(graph, "security_inode_permission")
    assert (hook["interrupt_ns"], hook["self_ns"], hook["median_ns"]) == (10_500, 500, 2_500)
    inside = graph.by("syscall", "function").filter(pl.col("syscall") == IN_INTERRUPT)
    assert set(inside.get_column("function")) == {
        "irq_enter_rcu", "__sysvec_apic_timer_interrupt", "ktime_get",
    }  # fmt: skip
    assert NO_SYSCALL in set(graph.by("syscall").get_column("syscall"))


def test_flags_of_a_latency_trace_tell_of_interrupts() -> None:
    graph = _read(
        " 0)  ...1. |               |  a() {\n"
        " 0)  d.h1. |   4.000 us    |    hrtimer_interrupt();\n"
        " 0)  ...1. |   9.000 us    |  }\n"
    )
    assert _row(graph, "a")["interrupt_ns"] == 4_000


def test_newer_kernels_print_arguments_return_values_and_callers() -> None:
    graph = _read(
        " 5)               |  vfs_read(file=0xff, buf=0x7f, count=4096) { /* <-g+0x6/0xe */\n"
        " 5)   0.188 us    |    local_clock(); /* <-lock_release+0x2ad/0x440 ret=0x3bf2 */\n"
        " 5)   0.200 us    |    vfs_open(); /* = 0x0 */\n"
        " 5)   0.300 us    |    test_proc_show [proc]();\n"
        " 5)   0.845 us    |  } /* vfs_read ret=0x292 */\n"
    )
    rows = dict(graph.calls.select("function", "extra").iter_rows())
    assert rows == {
        "vfs_read": "file=0xff, buf=0x7f, count=4096; <-g+0x6/0xe; ret=0x292",
        "local_clock": "<-lock_release+0x2ad/0x440 ret=0x3bf2",
        "vfs_open": "= 0x0",
        "test_proc_show [proc]": None,
    }
    assert _row(graph, "vfs_read")["self_ns"] == 845 - 188 - 200 - 300
    assert graph.losses == ()


def test_only_ends_are_printed_with_a_threshold() -> None:
    graph = _read(
        " 0) ! 109.126 us  |    } /* kmem_cache_alloc */\n"
        " 0) ! 250.000 us  |  } /* getname */\n"
        " 0) ! 300.000 us  |  } /* getname */\n"
    )
    row = _row(graph, "getname")
    assert (row["calls"], row["ends"], row["ends_total_ns"]) == (0, 2, 550_000)
    assert row["ends_self_ns"] == 550_000 - 109_126


def test_what_the_ring_buffer_lost_is_declared_by_processor() -> None:
    graph = _read(
        "# latency: 0 us, #100/140, CPU#0 | (M:desktop VP:0)\n"
        "CPU:1 [LOST 82921 EVENTS]\n"
        " 1)   1.000 us    |  f();\n"
        "CPU:1 [LOST 9 EVENTS]\n"
        "CPU:0 [5 EVENTS DROPPED]\n"
        " (Overruns: 3)\n"
    )
    assert graph.lost == ((0, 5, 1), (1, 82_930, 2))
    counts = {loss.reason: loss.count for loss in graph.losses}
    assert counts["events of CPU 1 that the ring buffer could not keep, in 2 gaps"] == 82_930
    assert counts["events that were overwritten before the trace was read"] == 40
    assert counts["functions that the return stack had no room for"] == 3


def test_self_time_beside_lost_events_is_marked() -> None:
    graph = _read(
        " 0)               |  a() {\n"
        "CPU:0 [LOST 2 EVENTS]\n"
        " 0)   9.000 us    |  }\n"
        " 0)   1.000 us    |  a();\n"
    )
    assert (_row(graph, "a")["calls"], _row(graph, "a")["lossy"]) == (2, 1)


def test_numbers_of_system_calls_are_those_of_the_machine() -> None:
    text = (
        " 0)               |  /* sys_enter: NR 56 (1, 2, 3, 4, 5, 6) */\n 0)   1.0 us    |  f();\n"
    )
    for machine, name in (("x86_64", "clone"), ("aarch64", "openat")):
        graph = read_function_graph(text.encode(), machine=machine)
        assert graph.syscalls.get_column("syscall").to_list() == [name]
    arm = read_function_graph(text.encode() + b" 0)   1.0 us    |  __arm64_sys_close();\n")
    assert arm.machine == "aarch64"
    assert arm.syscalls.get_column("syscall").to_list() == ["openat"]


def test_lines_of_trace_cmd_are_read_alike() -> None:
    graph = _read(
        "cpus=2\n"
        "           cat-77    [001]  6550.018805: funcgraph_entry:                   |  a() {\n"
        "           cat-77    [001]  6550.018807: funcgraph_entry:        1.250 us   |    b();\n"
        "           cat-77    [001]  6550.018809: funcgraph_exit:         4.000 us   |  }\n"
        "           cat-77    [001]  6550.018810: sys_enter:            NR 3 (1, 0, 0, 0, 0, 0)\n"
    )
    assert (_row(graph, "a")["self_ns"], _row(graph, "b")["total_ns"]) == (2_750, 1_250)
    assert graph.syscalls.get_column("syscall").to_list() == ["close"]
    assert graph.functions.get_column("task").unique().to_list() == ["cat-77"]


def test_a_file_a_stream_and_bytes_are_read_alike(tmp_path: Path) -> None:
    text = b" 0)   1.000 us    |  f();\n"
    path = tmp_path / "trace"
    path.write_bytes(text)
    for source in (text, path, io.BytesIO(text)):
        assert read_function_graph(source).begun == 1
    with pytest.raises(FormatError, match="No such file"):
        read_function_graph(tmp_path / "absent")


def test_text_that_is_no_function_graph_is_refused_with_its_line() -> None:
    with pytest.raises(FormatError, match="no line is one of a function graph") as caught:
        read_function_graph(b"# a comment\nhello\n", name="notes")
    assert (caught.value.line, caught.value.source) == (2, "notes")


def test_keys_that_no_table_has_are_refused() -> None:
    graph = _read(" 0)   1.000 us    |  f();\n")
    with pytest.raises(UsageError, match="no key is called 'colour'"):
        graph.by("colour")


def test_sums_of_two_halves_are_the_sums_of_the_whole() -> None:
    half = " 0)   1.000 us    |  f();\n 0)   3.000 us    |  g();\n"
    once, twice = _read(half), _read(half * 2)
    merged = pl.concat([once.buckets("function")] * 2).group_by("function", "from_ns", "to_ns").agg(
        pl.col("count").sum()
    ).sort("function", "from_ns")  # fmt: skip
    assert merged.equals(twice.buckets("function"))
