"""The many prints of time(1), each with its right values."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import BASH, GNU_TWO_LINES, time_v


def _read(text: str | bytes, name: str, **options: str) -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return read(data, options=Options(source="t", **options), format_name=name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "wall_ms", "user_ms", "system_ms", "resolution_ns"),
    [
        ("time_bash.txt", 112, 1, 0, 1e6),
        ("time_bash_over1min.txt", 61_205, 1, 0, 1e6),
        ("time_bash_p.txt", 100, 0, 0, 1e7),
        ("time_busybox.txt", 100, 0, 0, 1e7),
        ("time_busybox_p.txt", 110, 0, 0, 1e7),
        ("time_dash.txt", 100, 0, 0, 1e7),
        ("time_gnu_p.txt", 100, 0, 0, 1e7),
        ("time_mksh.txt", 100, 0, 0, 1e7),
        ("time_zsh.txt", 101, 0, 0, 1e7),
        ("multitime_liketime.txt", 50, 0, 0, 1e7),
    ],
)
def test_every_captured_shell_gives_its_printed_times(
    shared_vectors: Path,
    file: str,
    wall_ms: int,
    user_ms: int,
    system_ms: int,
    resolution_ns: float,
) -> None:
    reading = _read((shared_vectors / "formats/captured" / file).read_bytes(), "time-shell")
    (run,) = reading.runs
    assert run.wall_ns == wall_ms * 10**6
    assert run.user_ns == user_ms * 10**6
    assert run.system_ns == system_ms * 10**6
    assert reading.clock.resolution_ns == resolution_ns
    assert reading.losses == []


@pytest.mark.parametrize(
    ("text", "wall_ns", "user_ns", "system_ns"),
    [
        ("real 0m0,112s\nuser 0m0,021s\nsys 0m0,013s\n", 112_000_000, 21_000_000, 13_000_000),
        ("\nreal\t0m00.01s\nuser\t0m00.00s\nsys\t0m00.00s\n", 10_000_000, 0, 0),
        ("real\t61m1.205s\nuser\t0m0.0s\nsys\t0m0.0s\n", 3_661_205_000_000, 0, 0),
        ("real\t0m 0.10s\nuser\t0m 0.01s\nsys\t0m 0.02s\n", 100_000_000, 10_000_000, 20_000_000),
        (
            "   1m00.10s real   0m02.00s user   0m03.50s system\n",
            60_100_000_000,
            2 * 10**9,
            3_500_000_000,
        ),
        (
            "        0.10 real         0.05 user         0.01 sys\n",
            100_000_000,
            50_000_000,
            10_000_000,
        ),
        ("sleep 70  0.00s user 0.01s system 0% cpu 1:10.02 total\n", 70_020_000_000, 0, 10**7),
        ("x  0.00s user 0.01s system 0% cpu 2:01:10.02 total\n", 7_270_020_000_000, 0, 10**7),
        ("user 0.02\nsys 0.01\nreal 0.10\n", 100_000_000, 20_000_000, 10_000_000),
    ],
)
def test_every_spelling_is_read(text: str, wall_ns: int, user_ns: int, system_ns: int) -> None:
    (run,) = _read(text, "time-shell").runs
    assert (run.wall_ns, run.user_ns, run.system_ns) == (wall_ns, user_ns, system_ns)


def test_several_measurements_are_several_runs_in_order() -> None:
    text = BASH + "output of the command\n" + BASH.replace("0.112", "0.212") + "real 1.0\nuser"
    text += " 0.5\nsys 0.1\n"
    reading = _read(text, "time-shell", configuration="none", task="ls")
    assert [run.wall_ns for run in reading.runs] == [112_000_000, 212_000_000, 10**9]
    assert [run.phase for run in reading.runs] == ["first", "measured", "measured"]
    assert {(run.task, run.configuration) for run in reading.runs} == {("ls", "none")}
    assert any(note.startswith("1 other lines, the first is line 5") for note in reading.notes)


def test_a_measurement_with_a_missing_line_is_a_loss() -> None:
    reading = _read("real 0.10\nuser 0.00\n" + BASH, "time-shell")
    assert [run.wall_ns for run in reading.runs] == [112_000_000]
    (lost,) = reading.losses
    assert (lost.line, lost.reason) == (1, "sys is missing")


def test_each_part_of_a_zsh_pipeline_is_a_run_of_its_command() -> None:
    text = (
        "sleep 0.02  0.00s user 0.00s system 4% cpu 0.026 total\n"
        "cat  0.01s user 0.00s system 4% cpu 0.021 total\n"
    )
    reading = _read(text, "time-shell")
    assert [(run.task, run.wall_ns) for run in reading.runs] == [
        ("sleep 0.02", 26_000_000),
        ("cat", 21_000_000),
    ]
    assert any("each part of a pipeline" in note for note in reading.notes)


def test_more_than_the_default_of_zsh_is_declared_lost(shared_vectors: Path) -> None:
    data = (shared_vectors / "formats/captured/time_zsh_TIMEFMT.txt").read_bytes()
    reading = _read(data, "time-shell")
    assert reading.runs[0].wall_ns == 101_000_000
    (lost,) = reading.losses
    assert lost.text == "1 maxrss"


@pytest.mark.parametrize("file", ["time_bash_TIMEFORMAT.txt", "time_gnu_f_fail.txt"])
def test_a_format_of_ones_own_is_refused(shared_vectors: Path, file: str) -> None:
    data = (shared_vectors / "formats/captured" / file).read_bytes()
    with pytest.raises(FormatError, match="there is no measurement of a shell's `time`"):
        _read(data, "time-shell")
    with pytest.raises(FormatError, match="no known format fits this input"):
        read(data, options=Options())


@pytest.mark.parametrize(
    ("file", "wall_ms", "rss_kib", "minor", "voluntary", "code", "signal"),
    [
        ("time_gnu_v.txt", 110, 1564, 95, 2, 0, None),
        ("time_gnu_v_fail.txt", 0, 916, 70, 3, 1, None),
        ("time_gnu_v_signal.txt", 0, 1492, 84, 1, None, 9),
    ],
)
def test_every_captured_list_gives_its_printed_values(
    shared_vectors: Path,
    file: str,
    wall_ms: int,
    rss_kib: int,
    minor: int,
    voluntary: int,
    code: int | None,
    signal: int | None,
) -> None:
    reading = _read((shared_vectors / "formats/captured" / file).read_bytes(), "time-gnu-v")
    (run,) = reading.runs
    assert (run.wall_ns, run.max_rss_bytes) == (wall_ms * 10**6, rss_kib * 1024)
    assert (run.minor_faults, run.voluntary_switches) == (minor, voluntary)
    assert (run.exit_code, run.signal, run.ok) == (code, signal, code == 0)
    assert reading.clock.resolution_ns == 1e7
    assert reading.losses == []


def test_the_command_is_the_task_unless_one_is_given() -> None:
    assert _read(time_v('sh -c "a b"'), "time-gnu-v").runs[0].task == 'sh -c "a b"'
    assert _read(time_v("a"), "time-gnu-v", task="start").runs[0].task == "start"


def test_a_command_with_line_breaks_is_one_command() -> None:
    reading = _read(time_v("sh -c echo\n\nls"), "time-gnu-v")
    assert reading.runs[0].task == "sh -c echo\n\nls"


@pytest.mark.parametrize(
    ("elapsed", "expected_ns"),
    [
        ("0:00.11", 110_000_000),
        ("1:01.20", 61_200_000_000),
        ("2:03:04", 7_384_000_000_000),
        ("0m 0.10s", 100_000_000),
        ("1h 2m 03s", 3_723_000_000_000),
    ],
)
def test_every_spelling_of_elapsed_time_is_read(elapsed: str, expected_ns: int) -> None:
    assert _read(time_v(elapsed=elapsed), "time-gnu-v").runs[0].wall_ns == expected_ns


def test_busybox_prints_the_resident_set_four_times_too_high() -> None:
    reading = _read(time_v(elapsed="0m 0.10s", rss=5_904), "time-gnu-v")
    assert reading.runs[0].max_rss_bytes == 1_476 * 1024
    assert any("BusyBox" in note for note in reading.notes)
    gnu = _read(time_v(rss=1_476), "time-gnu-v")
    assert gnu.runs[0].max_rss_bytes == 1_476 * 1024
    assert not any("BusyBox" in note for note in gnu.notes)


def test_status_lines_belong_to_the_list_that_follows() -> None:
    text = (
        time_v("a")
        + time_v("b", head="Command exited with non-zero status 3\n", status=3)
        + "oops\n"
        + time_v("c", head="Command terminated by signal 11\n")
        + time_v("d")
    )
    reading = _read(text, "time-gnu-v")
    assert [(r.task, r.exit_code, r.signal, r.ok) for r in reading.runs] == [
        ("a", 0, None, True),
        ("b", 3, None, False),
        ("c", None, 11, False),
        ("d", 0, None, True),
    ]
    assert any(note.startswith("1 other lines") for note in reading.notes)


@pytest.mark.parametrize("lines", [3, 10, 22])
def test_a_list_that_is_cut_short_is_a_loss(lines: int) -> None:
    cut = "".join(time_v("cut").splitlines(keepends=True)[:lines])
    reading = _read(time_v("whole") + cut, "time-gnu-v")
    assert [run.task for run in reading.runs] == ["whole"]
    (lost,) = reading.losses
    assert lost.line == 24
    assert "time -v" in lost.reason
    with pytest.raises(FormatError, match="t: line 1: the list of `time -v`"):
        _read(cut, "time-gnu-v")


def test_the_default_two_lines_give_their_printed_values(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/captured/time_gnu.txt").read_bytes(), "time-gnu")
    (run,) = reading.runs
    assert (run.wall_ns, run.max_rss_bytes) == (110_000_000, 1520 * 1024)
    assert (run.major_faults, run.minor_faults, run.ok) == (0, 98, True)


def test_two_lines_after_a_status_line_are_a_failed_run() -> None:
    text = GNU_TWO_LINES + "Command exited with non-zero status 3\n" + GNU_TWO_LINES
    runs = _read(text, "time-gnu").runs
    assert [(run.exit_code, run.ok) for run in runs] == [(None, True), (3, False)]
    assert runs[0].user_ns == 20_000_000


def test_a_missing_second_line_is_a_loss() -> None:
    reading = _read(GNU_TWO_LINES.splitlines()[0] + "\nx\n" + GNU_TWO_LINES, "time-gnu")
    assert [run.minor_faults for run in reading.runs] == [None, 98]
    (lost,) = reading.losses
    assert (lost.line, lost.reason) == (1, "its second line is missing")


@given(
    st.lists(
        st.tuples(
            st.integers(min_value=0, max_value=10**7), st.integers(min_value=0, max_value=10**9)
        ),
        min_size=1,
        max_size=5,
    )
)
@settings(deadline=None)
def test_reading_a_built_list_gives_it_back(values: list[tuple[int, int]]) -> None:
    text = "".join(
        time_v(elapsed=f"{cs // 6000}:{cs // 100 % 60:02}.{cs % 100:02}", rss=rss)
        for cs, rss in values
    )
    runs = _read(text, "time-gnu-v").runs
    assert [(run.wall_ns, run.max_rss_bytes) for run in runs] == [
        (cs * 10**7, rss * 1024) for cs, rss in values
    ]
