"""perf trace, perf stat and perf script: every captured output, and what they lost."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from excise.capture.journal import Aggregate
from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from trace_inputs import PERF_SCRIPT, PERF_STAT, PERF_STAT_CSV, PERF_STAT_JSON, PERF_TRACE

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def _read(data: str | bytes, **options: str) -> Reading:
    raw = data.encode() if isinstance(data, str) else data
    return read(raw, options=Options(source="perf", **options))  # type: ignore[arg-type]


def _by_event(reading: Reading) -> dict[str, Aggregate]:
    return {row.event: row for row in reading.aggregates}


# --- perf trace -----------------------------------------------------------------------------------


def test_calls_of_perf_trace_are_counted_timed_and_their_errors_kept() -> None:
    reading = _read(PERF_TRACE)
    rows = {(row.task, row.metric): row for row in reading.aggregates}
    close = rows["close", "duration"]
    assert (close.count, close.sum, close.min, close.max) == (2, 40_000, 19_000, 21_000)
    assert rows["execve", "count"].count == 1
    assert ("execve", "duration") not in rows
    assert rows["access", "errors"].count == 1
    assert [(loss.count, loss.line) for loss in reading.losses] == [(7, 6)]


def test_a_captured_perf_trace_holds_every_line(shared_vectors: Path) -> None:
    text = (shared_vectors / "formats/captured/perf_trace_6.1.txt").read_text()
    reading = _read(text)
    names = Counter(re.findall(r"(?:/\d+ |\]: )(\w+)\(", text))
    counts = {row.task: row.count for row in reading.aggregates if row.metric == "count"}
    assert counts == {name: float(count) for name, count in names.items()}
    assert reading.losses == []
    spent = sum(float(ms) for ms in re.findall(r"\( *([\d.]+) ms\)", text))
    total = sum(row.sum or 0 for row in reading.aggregates if row.metric == "duration")
    assert total == pytest.approx(spent * 1e6)


def test_a_summary_of_perf_trace_keeps_its_thread(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/captured/perf_trace_summary_6.1.txt").read_bytes())
    rows = {(row.task, row.metric): row for row in reading.aggregates}
    mmap = rows["mmap", "duration"]
    assert (mmap.count, mmap.sum, mmap.min, mmap.mean, mmap.max) == (
        *(8, pytest.approx(256_000), pytest.approx(29_000)),
        *(pytest.approx(32_000), pytest.approx(38_000)),
    )
    assert (mmap.labels, mmap.note) == ("thread=true 11024", "relative standard error 3.61 %")
    assert rows["access", "errors"].count == 1
    assert sum(row.count or 0 for (_, m), row in rows.items() if m == "duration") == 29
    assert reading.losses == []


# --- perf stat ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "lost"),
    [
        *(("x", 3, 2), ("x_interval", 4, 4), ("x_percpu", 4, 0), ("x_persocket", 2, 0)),
        *(("x_repeat", 5, 0), ("j", 4, 4), ("j_percpu", 4, 0), ("j_repeat", 3, 0)),
        *(("text", 7, 4), ("text_repeat", 3, 0)),
    ],
)
def test_every_captured_perf_stat_gives_its_counters(
    shared_vectors: Path, name: str, rows: int, lost: int
) -> None:
    ending = {"x": "csv", "j": "json"}.get(name.split("_")[0], "txt")
    path = shared_vectors / "formats/captured" / f"perf_stat_{name}_6.1.{ending}"
    reading = _read(path.read_bytes())
    assert (len(reading.aggregates), len(reading.losses)) == (rows, lost)
    assert all(
        "supported" in loss.reason or "not counted" in loss.reason for loss in reading.losses
    )
    assert all(row.mean is not None for row in reading.aggregates)


def test_times_are_nanoseconds_and_other_counters_counts() -> None:
    for text in (PERF_STAT_CSV, PERF_STAT_JSON, PERF_STAT):
        rows = _by_event(_read(text))
        clock, faults = rows["task-clock"], rows["page-faults"]
        assert (clock.metric, clock.unit) == ("duration", "ns")
        assert (faults.metric, faults.unit) == ("count", "1")
        assert "standard error" in clock.note
    assert _by_event(_read(PERF_STAT_CSV))["task-clock"].mean == pytest.approx(550_000)
    assert _by_event(_read(PERF_STAT_JSON))["task-clock"].mean == pytest.approx(765_691)
    text_rows = _by_event(_read(PERF_STAT))
    assert text_rows["page-faults"].mean == 1048
    elapsed = text_rows["time elapsed"]
    assert (elapsed.mean, elapsed.count, elapsed.task) == (pytest.approx(1_076_000), 5, "true")


def test_a_counter_that_ran_less_than_all_the_time_says_so() -> None:
    assert "90 % of the time" in _by_event(_read(PERF_STAT_CSV))["page-faults"].note


def test_intervals_cpus_and_sockets_are_labels(shared_vectors: Path) -> None:
    folder = shared_vectors / "formats/captured"
    labels = {
        name: _read((folder / name).read_bytes()).aggregates[0].labels
        for name in (
            *("perf_stat_x_interval_6.1.csv", "perf_stat_x_percpu_6.1.csv"),
            *("perf_stat_x_persocket_6.1.csv", "perf_stat_j_percpu_6.1.json"),
        )
    }
    assert [*labels.values()] == [
        "time_s=0.200251407",
        "aggregate=CPU0",
        "aggregate=S0,cpus=2",
        "cpu=0",
    ]


def test_decimal_commas_and_events_with_commas_are_read() -> None:
    comma = _read("0,55;msec;task-clock;553895;100,00;0,485;CPUs utilized\n")
    assert comma.aggregates[0].mean == pytest.approx(550_000)
    raw = _read("7,,cpu/event=0x3c,umask=0x0/,553895,100.00,,\n0.5,msec,task-clock,5,100.00,,\n")
    assert [row.event for row in raw.aggregates] == ["cpu/event=0x3c,umask=0x0/", "task-clock"]


@pytest.mark.parametrize("number", ["..34", ".", "1.2.3", ",5"])
def test_a_percentage_that_is_no_number_costs_its_line_alone(number: str) -> None:
    text = (
        " Performance counter stats for 'ls' (3 runs):\n\n"
        f"  10  cycles  ( +- {number}% )\n  20  instructions  ( +- 1.5% )\n\n"
        f"  0.5 +- {number} seconds time elapsed  ( +- 2% )\n"
    )
    found = read(text.encode(), options=Options(source="x"))
    assert [row.event for row in found.aggregates] == ["instructions"]
    assert [loss.line for loss in found.losses] == [3, 6]


def test_perf_stat_without_a_counter_is_refused() -> None:
    with pytest.raises(FormatError, match="no counter has a value"):
        _read("<not supported>,,cycles,0,100.00,,\n<not supported>,,branches,0,100.00,,\n")


# --- perf script ----------------------------------------------------------------------------------


def test_samples_are_counted_by_function_and_path() -> None:
    reading = _read(PERF_SCRIPT)
    rows = {(row.layer, row.event, row.metric): row for row in reading.aggregates}
    assert rows["function", "memmove", "samples"].count == 2
    assert ("function", "memmove", "self") not in rows
    assert rows["function", "handle_mm_fault", "self"].count == 1
    paths = {
        row.labels: row.sum
        for row in reading.aggregates
        if row.layer == "path" and row.metric == "samples"
    }
    assert paths == {
        "path=memmove": 2,
        "path=memmove;handle_mm_fault": 2,
        "path=memmove;handle_mm_fault;do_anonymous_page": 1,
    }
    openat = rows["syscall", "", "duration"]
    assert (openat.task, openat.count, openat.sum) == ("openat", 1, pytest.approx(25_000, abs=200))


def test_a_real_perf_script_holds_every_sample() -> None:
    text = (VECTORS / "perf_script" / "ls.txt").read_text()
    reading = _read(text)
    samples = text.count("cpu-clock:")
    [event] = [row for row in reading.aggregates if row.layer == "event"]
    assert (event.count, event.sum) == (samples, samples * 250_000)
    own = sum(
        row.sum or 0 for row in reading.aggregates if row.layer == "path" and row.metric == "self"
    )
    assert own == samples
    leaves = sum(
        row.count or 0
        for row in reading.aggregates
        if row.layer == "function" and row.metric == "self"
    )
    assert leaves == samples
    assert reading.losses == []


def test_a_time_of_many_digits_is_no_sample() -> None:
    enter = "ls 12/12 [000] {}.000001: raw_syscalls:sys_enter: NR 1 (0)\n"
    text = enter.format("1") + enter.format("9" * 400) + enter.format("2")
    found = read(text.encode(), options=Options(source="x"), format_name="perf-script")
    assert [loss.line for loss in found.losses] == [2]
