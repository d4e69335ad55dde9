"""pyperf's JSON: processes are blocks, warm-ups stay apart, values are per operation."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import pyperf_json


def _read(data: bytes, **options: str) -> Reading:
    return read(data, options=Options(source="p.json", **options), format_name="pyperf")  # type: ignore[arg-type]


def test_values_are_runs_and_processes_are_blocks() -> None:
    reading = _read(pyperf_json({"hash": [[0.001, 0.0011], [0.0012, 0.0013]]}, inner_loops=10))
    measured = [run for run in reading.runs if run.phase == "measured"]
    assert [(run.block, run.task) for run in measured] == [(1, "hash")] * 2 + [(2, "hash")] * 2
    values = [run.probe.op_ns[0] for run in measured if run.probe]
    assert values == pytest.approx([1e6, 1.1e6, 1.2e6, 1.3e6])
    assert {run.probe.operations for run in measured if run.probe} == {40}
    assert all(run.wall_ns is None for run in measured)


def test_calibration_and_warm_ups_are_warm_ups() -> None:
    reading = _read(pyperf_json({"hash": [[0.001], [0.001]]}))
    warm = [run for run in reading.runs if run.phase == "warmup"]
    assert [run.block for run in warm] == [0, 0, 1, 2]
    assert [run.probe.operations for run in warm if run.probe] == [1, 4, 4, 4]
    assert reading.losses == []


def test_warm_ups_of_version_6_are_raw_and_are_divided() -> None:
    reading = _read(pyperf_json({"hash": [[0.001]]}, version="6", inner_loops=5))
    warm = [run.probe for run in reading.runs if run.phase == "warmup"]
    assert warm[1] is not None
    assert warm[1].op_ns == pytest.approx([0.001 / 20 * 1e9])


def test_sizes_become_resident_sets() -> None:
    reading = _read(pyperf_json({"hash": [[12_521_472.0]]}, unit="byte"))
    (run,) = (run for run in reading.runs if run.phase == "measured")
    assert (run.max_rss_bytes, run.probe) == (12_521_472, None)


def test_a_unit_that_is_neither_time_nor_size_is_lost() -> None:
    with pytest.raises(FormatError, match="unit 'integer' is neither time nor size"):
        _read(pyperf_json({"hash": [[3.0]]}, unit="integer"))


def test_metadata_become_facts_and_the_host_name_is_private() -> None:
    facts = {fact.name: fact for fact in _read(pyperf_json({"hash": [[0.001]]})).facts}
    assert facts["cpu.model"].value == "A CPU"
    assert facts["cpu.model"].must_agree
    assert facts["hostname"].private


def test_the_timer_tells_the_resolution() -> None:
    data = pyperf_json({"hash": [[0.001]]}).replace(
        b'"hostname"',
        b'"timer":"clock_gettime(CLOCK_MONOTONIC), resolution: 1.00 ns","hostname"',
    )
    clock = _read(data).clock
    assert (clock.name, clock.resolution_ns) == ("clock_gettime(CLOCK_MONOTONIC)", 1.0)


def test_several_benchmarks_are_several_tasks() -> None:
    reading = _read(gzip.compress(pyperf_json({"a": [[0.001]], "b": [[0.002]]})))
    assert [run.task for run in reading.runs if run.phase == "measured"] == ["a", "b"]
    assert [run.sequence for run in reading.runs] == list(range(len(reading.runs)))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"benchmarks": [], "version": "1.0"}', "the file has no values"),
        (b'{"benchmarks": [], "version": "3"}', "version '3' of pyperf's JSON is not known"),
        (b'{"version": "1.0"}', "missing required field `benchmarks`"),
        (b'{"benchmarks": [{"runs": [{"values": "x"}]}]}', "Expected `array`, got `str`"),
        (b'{"benchmarks": [{"runs": [{"warmups": [[0, 1.0]]}]}]}', "Expected `int` >= 1"),
    ],
)
def test_what_is_no_pyperf_file_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        _read(data)


def test_a_value_that_is_none_is_lost_and_the_others_stay() -> None:
    reading = _read(pyperf_json({"hash": [[0.001, -1.0]]}))
    assert [run.probe.op_ns for run in reading.runs if run.phase == "measured" and run.probe] == [
        [1e6]
    ]
    (lost,) = reading.losses
    assert lost.reason == "benchmarks[0].runs[1]: -1.0 is no value"


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=12),
        st.lists(
            st.lists(st.floats(min_value=1e-9, max_value=1e3), min_size=1, max_size=4),
            min_size=1,
            max_size=4,
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(deadline=None)
def test_reading_what_was_built_gives_it_back(benchmarks: dict[str, list[list[float]]]) -> None:
    runs = _read(pyperf_json(benchmarks)).runs
    found = [
        (run.task, run.block, run.probe.op_ns[0])
        for run in runs
        if run.phase == "measured" and run.probe
    ]
    expected = [
        (name, block, value * 1e9)
        for name, processes in benchmarks.items()
        for block, values in enumerate(processes, start=1)
        for value in values
    ]
    assert found == expected
