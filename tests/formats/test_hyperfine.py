"""hyperfine's JSON: one run for each time, means kept as means, and its own summary checked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import hyperfine_json


def _read(data: bytes, **options: str) -> Reading:
    return read(data, options=Options(source="h.json", **options), format_name="hyperfine")  # type: ignore[arg-type]


def test_the_captured_file_gives_its_printed_times(shared_vectors: Path) -> None:
    data = (shared_vectors / "formats/captured/hyperfine_1.15_N.json").read_bytes()
    reading = _read(data)
    assert [run.configuration for run in reading.runs] == ["sleep 0.01"] * 5 + ["sleep 0.02"] * 5
    assert [run.wall_ns for run in reading.runs][:3] == [20_158_238, 11_352_102, 19_066_187]
    assert [run.phase for run in reading.runs] == (["first"] + ["measured"] * 4) * 2
    assert all(run.exit_code == 0 and run.ok for run in reading.runs)
    assert {run.task for run in reading.runs} == {"command"}
    means = {(r.configuration, r.metric): r.mean for r in reading.aggregates}
    assert means["sleep 0.01", "user"] == pytest.approx(756_000.0)
    assert means["sleep 0.02", "system"] == pytest.approx(516_400.0)
    assert reading.losses == []
    assert reading.notes == ["order unknown: hyperfine runs one command after the other"]


def test_failing_commands_are_kept_and_marked(shared_vectors: Path) -> None:
    data = (shared_vectors / "formats/captured/hyperfine_1.15_param_fail.json").read_bytes()
    reading = _read(data)
    assert [run.exit_code for run in reading.runs] == [1, 1, 1, 2, 2, 2]
    assert not any(run.ok for run in reading.runs)
    assert any("2 of 3 times are 0" in note for note in reading.notes)
    assert "'exit 2': parameters n=2" in reading.notes


def test_a_single_run_is_measured_not_set_apart(shared_vectors: Path) -> None:
    data = (shared_vectors / "formats/captured/hyperfine_1.15_single.json").read_bytes()
    (run,) = _read(data).runs
    assert (run.phase, run.wall_ns) == ("measured", 11_315_875)


def test_a_given_configuration_makes_the_command_the_task() -> None:
    data = hyperfine_json({"ls": [0.01, 0.02, 0.03], "cat f": [0.01, 0.02, 0.03]})
    reading = _read(data, configuration="SELinux")
    assert {(run.task, run.configuration) for run in reading.runs} == {
        ("ls", "SELinux"),
        ("cat f", "SELinux"),
    }


def test_a_run_ended_by_a_signal_has_no_exit_code() -> None:
    data = hyperfine_json({"x": [0.01, 0.02]}, exit_codes=[None, 0])
    first, second = _read(data).runs
    assert (first.exit_code, first.ok, first.error) == (None, False, "ended by a signal")
    assert second.ok


def test_memory_of_newer_versions_is_kept_with_its_caveat() -> None:
    reading = _read(hyperfine_json({"x": [0.01, 0.02]}, memory_usage_byte=[1_048_576, 1_052_672]))
    assert [run.max_rss_bytes for run in reading.runs] == [1_048_576, 1_052_672]
    assert any("high-water mark over all children" in note for note in reading.notes)


def test_a_mean_that_does_not_follow_from_the_times_is_noted() -> None:
    reading = _read(hyperfine_json({"x": [0.01, 0.02]}, mean=0.02))
    assert "results[0].mean is not the mean of its times" in reading.notes


def test_a_file_without_times_gives_the_summary() -> None:
    reading = _read(hyperfine_json({"x": [0.01, 0.02, 0.06]}, times=None))
    assert reading.runs == []
    (row,) = (r for r in reading.aggregates if r.metric == "duration")
    assert (row.min, row.max) == (pytest.approx(10e6), pytest.approx(60e6))
    assert row.mean == pytest.approx(30e6)
    assert row.note == "the file has no single times"


def test_a_time_that_is_none_is_a_loss() -> None:
    reading = _read(hyperfine_json({"x": [0.01, -0.02, 1e300]}, mean=None))
    assert [run.wall_ns for run in reading.runs] == [10_000_000]
    assert [item.reason for item in reading.losses] == [
        "results[0].times[1] is no time",
        "results[0].times[2] is no time",
    ]


@pytest.mark.parametrize(
    ("data", "reason", "place"),
    [
        (b'{"results": [}', r"malformed", "line 1: offset"),
        (b'{\n"results":\n[{"command": 3}]}', r"Expected `str`, got `int`", "field results"),
        (b'{"results": []}', r"the file has no results", "field results"),
        (b'{"results": [{"command": "x", "times": [1.0, "y"]}]}', r"Expected `float`", "times"),
        (b'{"results": [{"command": "\xff"}]}', r"not UTF-8|utf-8|UTF", "line 1"),
        (b"[]", r"Expected `object`, got `array`", "line 1"),
    ],
)
def test_what_is_no_export_names_the_place(data: bytes, reason: str, place: str) -> None:
    with pytest.raises(FormatError, match=reason) as caught:
        _read(data)
    assert place in str(caught.value)


def test_unknown_members_are_ignored() -> None:
    data = json.loads(hyperfine_json({"x": [0.01]}))
    data["results"][0]["new_member"] = {"a": [1]}
    assert len(_read(json.dumps(data).encode()).runs) == 1


seconds = st.integers(min_value=0, max_value=10**13).map(lambda ns: ns / 1e9)


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20), st.lists(seconds, min_size=1, max_size=8), min_size=1
    )
)
@settings(deadline=None)
def test_reading_what_was_built_gives_it_back(results: dict[str, list[float]]) -> None:
    reading = _read(hyperfine_json(results))
    expected = [(c, round(value * 1e9)) for c, values in results.items() for value in values]
    assert [(run.configuration, run.wall_ns) for run in reading.runs] == expected
