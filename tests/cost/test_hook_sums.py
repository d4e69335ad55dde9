"""What bpftrace summed up: by hook and system call, with histogram, calibration and loss."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from excise.cost.hook_sums import calibrated_sums, read_hook_sums
from excise.cost.hook_trace import HookTrace, read_hook_trace, trace_records
from excise.errors import FormatError
from excise.report.hooks import build_hook_trace, lsmpmon_text
from excise.report.write import render
from test_hook_trace import SUMMARY

READY: list[dict[str, Any]] = [
    {"type": "attached_probes", "data": {"probes": 7}},
    {"type": "printf", "data": "excise: ready\n"},
]


def printed(*records: tuple[str, str, Any]) -> bytes:
    """Return maps as bpftrace prints them: type, name, content."""
    lines = [*READY, *({"type": kind, "data": {name: data}} for kind, name, data in records)]
    return "\n".join(json.dumps(line) for line in lines).encode() + b"\n"


# Number of a function, number of a system call + 1 (openat: 257, newfstatat: 262; 0: none).
MAPS = printed(
    ("map", "@entered", {"257": 3, "262": 1}),
    (
        "stats",
        "@time",
        {
            "0,258": {"count": 2, "average": 950, "total": 1901},
            "1,258": {"count": 4, "average": 500, "total": 2000},
            "1,263": {"count": 1, "average": 400, "total": 400},
            "1,0": {"count": 1, "average": 420, "total": 420},
        },
    ),
    ("map", "@least", {"0,258": 900, "1,258": 410, "1,263": 400, "1,0": 420}),
    ("map", "@most", {"0,258": 1001, "1,258": 700, "1,263": 400, "1,0": 420}),
    (
        "hist",
        "@spread",
        {
            "0,258": [{"min": 512, "max": 1023, "count": 2}],
            "1,258": [
                {"min": 256, "max": 511, "count": 3},
                {"min": 512, "max": 1023, "count": 1},
            ],
            "1,263": [{"min": 256, "max": 511, "count": 1}],
            "1,0": [{"min": 256, "max": 511, "count": 1}],
        },
    ),
)


def each(number: int, values: list[int]) -> dict[str, int]:
    return {f"{number},{at + 1}": value for at, value in enumerate(values)}


CALIBRATION = (
    printed(("map", "@each", each(0, [900, 910, 5_000])))
    + b"\nexcise: calibration nested\n"
    + printed(("map", "@each", each(0, [1_500, 1_510, 1_490]) | each(1, [300, 300, 330])))
)


def summed(
    folder: Path, maps: bytes = MAPS, *, subtract: bool = False, **changes: Any
) -> HookTrace:
    path = folder / "trace.txt"
    path.write_bytes(maps)
    known = {**SUMMARY, "backend": "bpftrace", "instance": None, "interruptions": False, **changes}
    return read_hook_trace(
        path, summary=json.dumps(known).encode(), calibration=CALIBRATION, subtract=subtract
    )


def test_each_hook_is_counted_and_timed_by_system_call(tmp_path: Path) -> None:
    found = summed(tmp_path)
    rows = {(row["syscall"], row["function"]): row for row in found.by_syscall.to_dicts()}
    opened = rows["openat", "security_file_open"]
    assert (opened["calls"], opened["min"], opened["max"]) == (2, 900, 1001)
    assert opened["mean"] == pytest.approx(950.5)
    assert rows["", "security_inode_permission"]["calls"] == 1
    total = {row["function"]: row for row in found.functions.to_dicts()}
    permission = total["security_inode_permission"]
    assert (permission["calls"], permission["min"], permission["max"]) == (6, 400, 700)
    assert permission["mean"] == pytest.approx(2820 / 6)
    assert found.syscalls.rows() == [("openat", 3), ("newfstatat", 1)]
    assert found.never == ("security_path_mknod",)
    assert found.losses == ()


def test_what_bpftrace_does_not_tell_is_not_made_up(tmp_path: Path) -> None:
    found = summed(tmp_path)
    for name in ("median", "p99", "self", "interrupt", "off_cpu", "disturbed", "inside"):
        assert found.functions[name].null_count() == found.functions.height
    out = render(build_hook_trace(found, title="t"), format="text", width=120)
    assert "by BPF programs, which end with bpftrace" in " ".join(out.split())
    rows = [line.split() for line in lsmpmon_text(found).splitlines() if line[0] != "#"]
    assert {"file_open", "inode_permission"} <= {row[0] for row in rows}


def test_the_tracers_cost_is_known_by_single_durations_and_taken_out(tmp_path: Path) -> None:
    cost = calibrated_sums(CALIBRATION, source="t")
    assert cost is not None
    assert (cost.floor, cost.nested, cost.calls) == (300, 1_500 - 910, 3)
    assert calibrated_sums(b"", source="t") is None
    taken = summed(tmp_path, subtract=True)
    assert taken.subtracted
    means = dict(taken.functions.select("function", "mean").rows())
    assert means["security_file_open"] == pytest.approx(950.5 - 300)


def test_the_histogram_is_a_table_and_in_the_capture(tmp_path: Path) -> None:
    found = summed(tmp_path)
    assert found.histogram is not None
    rows = found.histogram.filter(syscall="openat", function="security_inode_permission").rows()
    assert [row[2:] for row in rows] == [(256, 512, 3), (512, 1024, 1)]
    buckets = [
        record
        for record in trace_records(found, task="t", configuration="c")
        if record.metric == "histogram"
    ]
    assert sum(record.count or 0 for record in buckets) == 8
    out = render(build_hook_trace(found, title="t"), format="text", width=120)
    assert "Histograms" in out


def test_what_is_missing_is_declared(tmp_path: Path) -> None:
    lost = printed(
        ("stats", "@time", {"0,258": {"count": 5, "average": 10, "total": 50}}),
        ("hist", "@spread", {"0,258": [{"min": 8, "max": 15, "count": 3}]}),
        ("map", "@again", {"0": 2}),
        ("map", "@lone", {"0": 4}),
        ("map", "@begin", {"42,0": 123456, "43,0": 123999}),
    )
    reasons = {loss.reason: loss.count for loss in summed(tmp_path, lost).losses}
    assert reasons == {
        "calls of a function inside itself, whose durations are not told apart": 2,
        "ends of functions whose beginning is not in the trace": 4,
        "functions whose end is not in the trace": 2,
        "durations that the histogram had no room for": 2,
    }


def test_a_workload_that_calls_nothing_gives_no_rows(tmp_path: Path) -> None:
    found = summed(tmp_path, printed())
    assert found.functions.height == 0
    assert found.coverage == 0


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"nothing of bpftrace\n", "no line is an entry of a map"),
        (
            printed(("stats", "@time", {"9,1": {"count": 1, "average": 1, "total": 1}})),
            "unknown key",
        ),
        (printed(("stats", "@time", {"x": {"count": 1, "average": 1, "total": 1}})), "unknown key"),
    ],
)
def test_what_is_no_output_of_the_script_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_hook_sums(data, source="t", functions=["f"], machine="x86_64")
