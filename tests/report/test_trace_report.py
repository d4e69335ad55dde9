"""Sections and pictures of traces: what is drawn is what was read."""

from __future__ import annotations

from pathlib import Path

import pytest

from captures import manifest
from excise.capture.journal import Aggregate
from excise.capture.manifest import Fact
from excise.cost.call_tree import call_trees, function_costs
from excise.events.dataset import Dataset
from excise.events.imports import Imported, import_readings
from excise.events.load import from_records, load_capture
from excise.formats.model import Options
from excise.formats.registry import read
from excise.report.build import build_report, build_show
from excise.report.charts import chart_spec, draw
from excise.report.model import Chart, Report
from excise.report.text import render_text

LISTING = (
    " 0)               |  /* sys_enter: NR 257 (ffffff9c, 0, 0, 0, 0, 0) */\n"
    " 0)               |  do_sys_openat2() {\n"
    " 0)               |    security_inode_permission() {\n"
    " 0)   0.500 us    |      selinux_inode_permission();\n"
    " 0)   0.900 us    |    }\n"
    " 0)   1.700 us    |    security_file_open();\n"
    " 0) + 12.000 us   |  }\n"
    " 0)               |  /* sys_exit: NR 257 = 3 */\n"
    " 0)               |  /* sys_enter: NR 3 (3, 0, 0, 0, 0, 0) */\n"
    " 0)   0.800 us    |  security_file_open();\n"
    " 0)   0.400 us    |  security_inode_permission();\n"
)


def _dataset(text: str, folder: Path) -> Dataset:
    reading = read(text.encode(), options=Options(source="trace"))
    return load_capture(
        import_readings(folder / "t.excise", [Imported(name="t", data=b"", reading=reading)])
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return _dataset(LISTING, tmp_path)


def _chart(report: Report, kind: str) -> Chart:
    [found] = [chart for chart in report.charts() if chart.kind == kind]
    return found


def test_every_node_of_the_tree_shows_what_no_child_explains(dataset: Dataset) -> None:
    [tree] = [tree for tree in call_trees(dataset) if tree.task == "openat"]
    [found] = [t for t in build_show(dataset).tables() if t.name.startswith("calls-openat")]
    rows = [(row[0].text, row[2].value, row[4].value) for row in found.rows]
    assert rows == [
        ("do_sys_openat2", 12_000, 9_400),
        ("  security_file_open", 1_700, 1_700),
        ("  security_inode_permission", 900, 400),
        ("    selinux_inode_permission", 500, 500),
    ]
    assert sum(own for _, _, own in rows) == tree.total  # type: ignore[misc]


def test_rows_of_a_trace_are_printed_once(dataset: Dataset) -> None:
    text = render_text(build_show(dataset))
    assert "As published" not in text
    assert "What functions took" in text
    assert "no runs and no published rows" not in text


def test_functions_of_the_table_are_those_of_the_trace(dataset: Dataset) -> None:
    table = build_show(dataset).table("functions")
    totals = {(row[0].text, row[1].text): row[3].value for row in table.rows}
    assert totals["openat", "hook|file_open"] == 1_700
    assert totals["close", "hook|file_open"] == 800
    assert totals["openat", "lsm|selinux_inode_permission"] == 500
    assert len(totals) == len(function_costs(dataset))


def test_boxes_of_the_flame_graph_lie_inside_their_callers(dataset: Dataset) -> None:
    report = build_report(dataset)
    for kind in ("flame", "icicle"):
        chart = _chart(report, kind)
        boxes = {row["function"]: row for row in chart.rows}
        root = boxes["do_sys_openat2"]
        assert (root["depth"], root["start"], root["end"], root["role"]) == (0, 0, 12_000, "other")
        for name in ("security_inode_permission", "security_file_open"):
            box = boxes[name]
            assert root["start"] <= box["start"] < box["end"] <= root["end"]
            assert (box["depth"], box["role"]) == (1, "security")
        inner = boxes["selinux_inode_permission"]
        assert boxes["security_inode_permission"]["start"] == inner["start"]
        assert inner["end"] - inner["start"] == 500
        # 0.9 and 1.7 of 12 us: what is inside of a security function is not counted again.
        assert "take 21.7%" in chart.caption


def test_flame_and_icicle_stand_on_different_sides(dataset: Dataset) -> None:
    report = build_report(dataset)
    reverse = {
        kind: chart_spec(_chart(report, kind))["layer"][0]["encoding"]["y"]["scale"]["reverse"]
        for kind in ("flame", "icicle")
    }
    assert reverse == {"flame": False, "icicle": True}


def test_the_heat_map_has_a_field_for_each_hook_in_each_call(dataset: Dataset) -> None:
    chart = _chart(build_report(dataset), "heat")
    assert {(row["task"], row["hook"]): row["value"] for row in chart.rows} == {
        ("openat", "file_open"): 1_700,
        ("openat", "inode_permission"): 900,
        ("close", "file_open"): 800,
        ("close", "inode_permission"): 400,
    }


def test_histograms_hold_every_call_of_a_hook(dataset: Dataset) -> None:
    chart = _chart(build_report(dataset), "histogram")
    counts: dict[str, float] = {}
    for row in chart.rows:
        counts[row["hook"]] = counts.get(row["hook"], 0) + row["count"]
        assert row["low"] < row["high"]
    assert counts["file_open"] == counts["inode_permission"] == 2


@pytest.mark.parametrize("kind", ["flame", "icicle", "heat", "histogram"])
def test_every_picture_of_a_trace_can_be_drawn(dataset: Dataset, kind: str) -> None:
    svg = draw(_chart(build_report(dataset), kind), picture="svg").decode()
    names = {"heat": "inode_permission", "histogram": "inode_permission"}
    assert names.get(kind, "do_sys_openat2") in svg


def test_samples_of_perf_script_are_a_tree_as_well(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parent.parent / "vectors" / "perf_script"
    dataset = _dataset((folder / "ls.txt").read_text(), tmp_path)
    [tree] = call_trees(dataset)
    assert tree.unit == "samples"
    assert sum(node.own for root in tree.roots for node in root.walk()) == tree.total == 7
    costs = function_costs(dataset)
    assert sum(cost.own or 0 for cost in costs) == 7
    assert {cost.own for cost in costs if cost.function == "do_syscall_64"} == {0}


SYSTEM_CALLS = (
    "# tracer: nop\n"
    " sh-1 [000] ..... 1.000010: sys_enter: NR 0 (3, 0, 0, 0, 0, 0)\n"
    " sh-1 [000] ..... 1.000014: sys_exit: NR 0 = 1\n"
    " sh-1 [000] ..... 1.000020: sys_enter: NR 0 (3, 0, 0, 0, 0, 0)\n"
    " sh-1 [000] ..... 1.000028: sys_exit: NR 0 = 1\n"
    " sh-1 [000] ..... 1.000030: sched_switch: prev_comm=sh ==> next_comm=init\n"
)


def test_system_calls_and_events_of_a_trace_without_functions_are_shown(tmp_path: Path) -> None:
    report = build_show(_dataset(SYSTEM_CALLS, tmp_path))
    (row,) = report.table("syscalls").rows
    assert [cell.text for cell in row] == ["read", "2", "12.0 µs", "6.00 µs", "4.00 µs", "8.00 µs"]
    events = {row[0].text: row[1].value for row in report.table("events").rows}
    assert events["sched_switch"] == 1
    assert "no runs and no published rows" not in render_text(report)
    assert report.data["syscalls"][0]["count"] == 2


def test_failed_calls_and_threads_of_perf_trace_are_shown(tmp_path: Path) -> None:
    text = (
        " Summary of events:\n\n true (11024), 58 events, 90.6%\n\n"
        "   syscall            calls  errors  total       min       avg       max       stddev\n"
        "                                     (msec)    (msec)    (msec)    (msec)        (%)\n"
        "   --------------- --------  ------ -------- --------- --------- ---------     ------\n"
        "   mmap                   8      0     0.256     0.029     0.032     0.038      3.61%\n"
        "   access                 1      1     0.026     0.026     0.026     0.026      0.00%\n"
    )
    table = build_show(_dataset(text, tmp_path)).table("syscalls")
    headings = [column.heading for column in table.columns]
    assert headings == ["System call", "Of", "Calls", "Failed", "Total", "Mean", "Min", "Max"]
    rows = {row[0].text: (row[2].value, row[3].value, row[4].value) for row in table.rows}
    assert rows == {"mmap": (8, 0, 256_000), "access": (1, 1, 26_000)}


HOOKS = (
    " 0)   0.500 us    |  security_inode_permission();\n"
    " 0)   1.700 us    |  security_file_open();\n"
    " 0)   0.700 us    |  security_inode_permission();\n"
)


def test_hooks_alone_are_drawn_below_their_task(tmp_path: Path) -> None:
    report = build_report(_dataset(HOOKS, tmp_path))
    for kind in ("flame", "icicle"):
        chart = _chart(report, kind)
        boxes = {row["function"]: row for row in chart.rows}
        root = boxes.pop("trace")
        assert (root["depth"], root["start"], root["end"], root["role"]) == (0, 0, 2_900, "other")
        widths = {name: (box["depth"], box["end"] - box["start"]) for name, box in boxes.items()}
        assert widths == {"security_file_open": (1, 1_700), "security_inode_permission": (1, 1_200)}
        assert "no function inside another" in chart.caption
        assert chart_spec(chart)["layer"]


def test_a_capture_of_hooks_is_drawn_with_or_without_its_system_calls(tmp_path: Path) -> None:
    def capture(*labels: str) -> Dataset:
        rows = [
            Aggregate(
                task="ls",
                configuration="selinux",
                layer="hook",
                event=hook,
                labels=label,
                metric="duration",
                unit="ns",
                count=calls,
                mean=mean,
            )
            for label in labels
            for hook, calls, mean in (("file_open", 2.0, 300.0), ("inode_permission", 10.0, 40.0))
        ]
        fact = Fact(name="trace.backend", value="function_graph")
        return from_records(rows, name="t", manifest=manifest(host_facts=[fact]))

    rows = _chart(build_report(capture("")), "flame").rows
    assert [(row["function"], row["depth"], row["end"] - row["start"]) for row in rows] == [
        ("ls", 0, 1000),
        ("file_open", 1, 600),
        ("inode_permission", 1, 400),
    ]
    found = _chart(build_report(capture("syscall=openat", "syscall=stat")), "flame").rows
    assert [(row["function"], row["depth"]) for row in found] == [
        ("ls", 0),
        *(
            pair
            for call in ("openat", "stat")
            for pair in ((call, 1), ("file_open", 2), ("inode_permission", 2))
        ),
    ]


def test_a_trace_that_only_counts_says_why_there_is_no_flame_graph(tmp_path: Path) -> None:
    rows = [
        Aggregate(
            task="ls", configuration="c", layer="hook", event="file_open", metric="count",
            unit="1", count=7.0,
        )
    ]  # fmt: skip
    fact = Fact(name="trace.backend", value="function")
    report = build_report(from_records(rows, name="t", manifest=manifest(host_facts=[fact])))
    assert [chart for chart in report.charts() if chart.kind == "flame"] == []
    assert "tells no durations" in " ".join(report.paragraphs("plain"))
