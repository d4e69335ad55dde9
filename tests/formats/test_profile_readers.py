"""callgrind, and the small tables of tracefs."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.capture.journal import Aggregate
from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from trace_inputs import CALLGRIND, FTRACE_BUFFERS, FTRACE_HIST, KPROBE_PROFILE, TRACE_STAT

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


def _read(data: str | bytes, **options: str) -> Reading:
    raw = data.encode() if isinstance(data, str) else data
    return read(raw, options=Options(source="in", **options))  # type: ignore[arg-type]


def _cost(reading: Reading, metric: str) -> dict[str, float | None]:
    return {row.event: row.sum for row in reading.aggregates if row.metric == metric}


def test_costs_of_callgrind_by_themselves_and_with_what_they_call() -> None:
    reading = _read(CALLGRIND)
    rows = {(row.event, row.labels, row.metric): (row.sum, row.count) for row in reading.aggregates}
    assert rows["main", "counter=Ir", "self"] == (30, None)
    assert rows["main", "counter=Ir", "inclusive"] == (130, None)
    assert rows["work", "counter=Ir", "self"] == (100, 3)
    assert rows["work", "counter=Dr", "inclusive"] == (8, 3)
    assert {row.task for row in reading.aggregates} == {"true"}
    assert reading.notes == []
    assert reading.losses == []


def test_a_real_callgrind_file_has_the_figures_of_callgrind_annotate() -> None:
    reading = _read((VECTORS / "callgrind" / "true.callgrind.out").read_bytes())
    own, inclusive = _cost(reading, "self"), _cost(reading, "inclusive")
    assert sum(value or 0 for value in own.values()) == 128_561
    # callgrind_annotate parts a function by the files inlined into it.
    assert own["do_lookup_x"] == 21_172 + 410 + 328
    assert own["__GI___tunables_init"] == 20_481 + 2_039
    assert inclusive["_dl_start"] == 125_889
    assert inclusive["_dl_sysdep_start"] == 125_214
    assert inclusive["dl_main"] == 95_210
    assert reading.notes == []
    assert reading.losses == []


def test_sums_that_are_not_the_files_totals_are_noted() -> None:
    reading = _read(CALLGRIND.replace("totals: 130 12", "totals: 131 12"))
    assert reading.notes == ["Ir: functions sum to 130, the file says 131"]


def test_the_function_profiler_is_added_up_over_cpus() -> None:
    one = {row.event: row for row in _read(TRACE_STAT).aggregates}
    assert one["__schedule"].mean == pytest.approx(968_683_296e3 / 7113)
    assert one["__schedule"].sd == pytest.approx((2_108_946_573**0.5) * 1e3, rel=0.01)
    hook = one["file_permission"]
    assert (hook.layer, hook.count, hook.sum) == ("hook", 20_000, 182_650_300)
    both = {row.event: row for row in _read(TRACE_STAT * 2).aggregates}
    assert (both["file_permission"].count, both["file_permission"].sum) == (40_000, 365_300_600)
    assert both["__schedule"].sd == pytest.approx(one["__schedule"].sd, rel=0.001)


def test_counts_of_the_function_profiler_alone() -> None:
    text = "  Function                               Hit\n  --------   ---\n  schedule     12\n"
    [row] = _read(text).aggregates
    assert (row.event, row.count, row.sum, row.note) == ("schedule", 12, None, "counted, not timed")


def test_entries_of_a_histogram_trigger_are_counts_of_their_system_call(
    shared_vectors: Path,
) -> None:
    reading = _read((shared_vectors / "formats/ftrace_6.1/hist_trigger.txt").read_bytes())
    rows = reading.aggregates
    assert (len(rows), sum(row.count or 0 for row in rows)) == (76, 415)
    [row] = [row for row in rows if row.count == 272]
    assert (row.task, row.layer) == ("newfstatat", "syscall")
    assert row.labels.startswith("common_pid=ls [")
    assert [loss.count for loss in _read(FTRACE_HIST).losses] == [3]


def test_hits_of_probes_are_counts_and_misses_losses(shared_vectors: Path) -> None:
    reading = _read(KPROBE_PROFILE)
    assert [(row.event, row.count) for row in reading.aggregates] == [
        ("k_open", 13),
        ("k_openr", 12),
    ]
    assert [(loss.count, loss.line) for loss in reading.losses] == [(1, 2)]
    captured = _read((shared_vectors / "formats/ftrace_6.1/kprobe_profile.txt").read_bytes())
    assert [row.count for row in captured.aggregates] == [13, 13]


def test_statistics_of_buffers_declare_their_losses(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/ftrace_6.1/per_cpu_stats.txt").read_bytes())
    rows: list[Aggregate] = [*reading.aggregates]
    assert [(row.labels, row.count) for row in rows] == [("cpu=0", 149), ("cpu=1", 86)]
    assert {loss.reason: loss.count for loss in reading.losses} == {
        "events that were overwritten on CPU 0": 5025,
        "events that were overwritten on CPU 1": 1662,
    }
    assert _read(FTRACE_BUFFERS).aggregates[0].labels == ""


def test_a_table_of_another_form_is_refused_with_its_line() -> None:
    with pytest.raises(FormatError, match="line 2: not a probe with its hits"):
        read(
            b"  k_open  13  0\nhello world\n",
            options=Options(source="p"),
            format_name="kprobe-profile",
        )
