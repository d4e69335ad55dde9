"""The client of the native launcher, with the launcher itself."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from captures import manifest
from ended import wait_until
from excise.capture.journal import Run, RunHead, decode
from excise.capture.store import JOURNAL, Capture
from excise.collect.launcher import Exec, Launch, Launcher
from excise.errors import ExciseError, HostError

Start = Callable[..., Launcher]


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Capture]:
    with Capture.create(tmp_path / "c", manifest(), sync=False) as opened:
        yield opened


@pytest.fixture
def start(capture: Capture) -> Start:
    def started(environment: Mapping[str, str] | None = None) -> Launcher:
        return Launcher(
            journal_fd=capture.journal_fd,
            sync_interval_ns=None,
            environment={"PATH": os.environ["PATH"]} if environment is None else environment,
        )

    return started


def launch(sequence: int, *argv: str, **options: Any) -> Launch:
    head = RunHead(
        sequence=sequence, block=sequence, task="t", configuration="c", run=sequence,
        phase="measured",
    )  # fmt: skip
    return Launch(head=head, argv=argv, counters=False, **options)


def journaled(capture: Capture) -> list[Run]:
    lines = (capture.path / JOURNAL).read_bytes().splitlines()
    return [record for record in map(decode, lines) if isinstance(record, Run)]


def test_a_run_is_measured_and_journaled_as_it_is_given_back(
    start: Start, capture: Capture
) -> None:
    with start() as launcher:
        (run,) = launcher.run([launch(0, "true")])
    assert journaled(capture) == [run]
    assert run.ok
    assert (run.exit_code, run.signal, run.timed_out) == (0, None, False)
    assert run.wall_ns is not None
    assert run.wall_ns > 10_000
    assert run.max_rss_bytes is not None
    assert run.max_rss_bytes < 8 << 20, "the parent's memory counts as the child's"


def test_a_failing_run_is_recorded_with_the_end_of_its_standard_error(start: Start) -> None:
    script = "i=0; while [ $i -lt 999 ]; do echo line $i >&2; i=$((i+1)); done; exit 7"
    with start() as launcher:
        failed, after = launcher.run([launch(0, "sh", "-c", script), launch(1, "true")])
    assert (failed.ok, failed.exit_code) == (False, 7)
    assert failed.stderr is not None
    assert failed.stderr.endswith("line 998\n")
    assert len(failed.stderr) <= 2000
    assert after.ok
    assert after.stderr is None


@pytest.mark.parametrize(("code", "ok"), [(0, False), (3, True), (4, True), (5, False)])
def test_expected_exit_codes_are_successes(start: Start, code: int, ok: bool) -> None:
    with start() as launcher:
        (run,) = launcher.run([launch(0, "sh", "-c", f"exit {code}", expect=[3, 4])])
    assert (run.exit_code, run.ok) == (code, ok)


def test_a_program_that_is_not_there_is_a_failed_run_with_its_reason(start: Start) -> None:
    with start() as launcher:
        missing, denied, after = launcher.run(
            [launch(0, "no-such-program-xyz"), launch(1, "/etc"), launch(2, "true")]
        )
    assert not missing.ok
    assert missing.wall_ns is None
    assert "ENOENT" in (missing.error or "")
    assert "EACCES" in (denied.error or "")
    assert after.ok


def test_a_run_that_takes_too_long_is_killed_with_all_it_started(start: Start) -> None:
    with start() as launcher:
        slow, after = launcher.run(
            [
                launch(0, "sh", "-c", "sleep 600 & sleep 600", timeout_ns=100_000_000),
                launch(1, "true"),
            ]
        )
    assert (slow.ok, slow.timed_out, slow.signal) == (False, True, signal.SIGKILL)
    assert slow.wall_ns is not None
    assert 100_000_000 <= slow.wall_ns < 300_000_000_000
    assert after.ok


def test_a_run_ended_by_a_signal_says_which(start: Start) -> None:
    with start() as launcher:
        (run,) = launcher.run([launch(0, "sh", "-c", "kill -TERM $$")])
    assert (run.ok, run.exit_code, run.signal) == (False, None, signal.SIGTERM)


def test_environment_is_added_and_taken_away(start: Start, tmp_path: Path) -> None:
    with start({"PATH": os.environ["PATH"], "BASE": "1", "GONE": "1"}) as launcher:
        list(
            launcher.run(
                [
                    launch(
                        0, "env", environment={"MINE": "a=b\n✓"}, unset=["GONE"],
                        directory=str(tmp_path), stdout=str(tmp_path / "out"),
                    )
                ]
            )
        )  # fmt: skip
    said = (tmp_path / "out").read_text()
    assert "BASE=1\n" in said
    assert "MINE=a=b\n✓\n" in said
    assert "GONE" not in said


def test_requests_larger_than_the_pipe_between_small_ones(start: Start, tmp_path: Path) -> None:
    # 131,071 bytes is the longest single argument Linux takes (MAX_ARG_STRLEN).
    words = ["x" * 131_000 for _ in range(8)]
    script = 'echo "$#" "${#1}" "${#BIG}"'
    launches = []
    for number in range(12):
        big = number % 3 == 0
        launches.append(
            launch(
                number, "sh", "-c", script, "name", *(words if big else ["y"]),
                environment={"BIG": "z" * (120_000 if big else 1)},
                stdout=str(tmp_path / str(number)),
            )
        )  # fmt: skip
    with start() as launcher:
        runs = list(launcher.run(launches))
    assert [run.ok for run in runs] == [True] * 12
    assert [run.sequence for run in runs] == list(range(12))
    for number in range(12):
        expected = "8 131000 120000\n" if number % 3 == 0 else "1 1 1\n"
        assert (tmp_path / str(number)).read_text() == expected


def test_a_base_environment_larger_than_the_pipe_arrives(start: Start, tmp_path: Path) -> None:
    environment = {f"V{number}": "v" * 1000 for number in range(800)}
    with start({"PATH": os.environ["PATH"], **environment}) as launcher:
        list(launcher.run([launch(0, "env", stdout=str(tmp_path / "out"))]))
    assert (tmp_path / "out").read_text().count("=" + "v" * 1000) == 800


def test_many_answers_with_much_standard_error_do_not_block(start: Start) -> None:
    noisy = launch(0, "sh", "-c", "head -c 3000 /dev/zero | tr '\\0' x >&2; exit 1")
    with start() as launcher:
        runs = list(launcher.run([noisy] * 300))
    assert len(runs) == 300
    assert {len(run.stderr or "") for run in runs} == {2000}


def test_set_up_and_tear_down_stand_around_their_run(start: Start, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def step(word: str) -> Exec:
        return Exec(argv=["sh", "-c", f"echo {word} >> {log}"])

    with start() as launcher:
        list(
            launcher.run(
                launch(
                    number, "sh", "-c", f"echo run{number} >> {log}",
                    before=[step("a"), step("b")], after=[step("c")],
                )
                for number in range(2)
            )
        )  # fmt: skip
    assert log.read_text().split() == ["a", "b", "run0", "c", "a", "b", "run1", "c"]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("sh", "-c", "echo why >&2; exit 9"), "exit code 9: why"),
        (("no-such-program-xyz",), "ENOENT"),
        (("sleep", "600"), "it took too long"),
    ],
)
def test_a_failing_set_up_ends_it_before_the_run(
    start: Start, capture: Capture, argv: tuple[str, ...], reason: str
) -> None:
    bad = Exec(argv=argv, timeout_ns=200_000_000)
    launches = [launch(0, "true"), launch(1, "true", before=[bad]), launch(2, "true")]
    seen = []
    with start() as launcher, pytest.raises(HostError, match="set-up or tear-down") as caught:
        seen += list(launcher.run(launches))
    assert reason in caught.value.reason
    assert caught.value.source == " ".join(argv)
    assert [run.sequence for run in journaled(capture)] == [0]


def test_a_failing_tear_down_ends_it_after_the_run(start: Start, capture: Capture) -> None:
    bad = Exec(argv=["false"])
    with start() as launcher, pytest.raises(HostError, match="exit code 1"):
        list(launcher.run([launch(0, "true", after=[bad]), launch(1, "true")]))
    assert [run.sequence for run in journaled(capture)] == [0]


def test_an_unmeasured_command_gives_its_output_and_is_not_journaled(
    start: Start, capture: Capture
) -> None:
    with start() as launcher:
        result = launcher.execute(Exec(argv=["sh", "-c", "echo out; echo err >&2; exit 3"]))
    assert (result.ok, result.exit_code) == (False, 3)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert journaled(capture) == []


def test_a_request_the_launcher_refuses_is_an_error_with_its_words(start: Start) -> None:
    with start() as launcher, pytest.raises(ExciseError, match="must not hold a NUL"):
        list(launcher.run([launch(0, "true\0")]))


def test_a_launcher_that_is_killed_is_an_error_and_leaves_complete_runs(
    start: Start, capture: Capture
) -> None:
    launcher = start()

    def kill_at_five() -> None:
        for run in launcher.run(launch(number, "true") for number in range(10_000)):
            if run.sequence == 5:
                launcher._process.kill()

    with launcher, pytest.raises(HostError, match="the launcher ended early"):
        kill_at_five()
    done = journaled(capture)
    assert [run.sequence for run in done] == list(range(len(done)))
    assert len(done) >= 6


def test_leaving_early_ends_the_run_in_progress(start: Start, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > {pid_file}.new; mv {pid_file}.new {pid_file}; sleep 600"
    launcher = start()

    def leave_early() -> None:
        with launcher:
            for run in launcher.run([launch(0, "true"), launch(1, "sh", "-c", script)]):
                assert run.sequence == 0
                wait_until(pid_file.exists, what="the second run")
                raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        leave_early()
    assert launcher._process.returncode is not None
    assert not Path(f"/proc/{pid_file.read_text().strip()}").exists()


def resident_kib() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0])


@pytest.mark.parametrize(
    "count", [2_000, pytest.param(20_000, marks=pytest.mark.lab)], ids=["short", "long"]
)
def test_memory_stays_flat_over_runs(start: Start, count: int) -> None:
    quarter = count // 4
    with start() as launcher:
        runs = launcher.run(launch(number, "/bin/true") for number in range(count))
        at = [resident_kib() for run in runs if run.sequence % quarter == quarter - 1]
        launcher_kib = int(
            Path(f"/proc/{launcher._process.pid}/status").read_text().split("VmHWM:")[1].split()[0]
        )
    assert len(at) == 4
    # The first quarter may warm up caches; after it a run may cost no more than 8 bytes.
    assert at[-1] - at[0] <= 256 + 8 * count // 1024
    assert launcher_kib < 4096


def test_a_journal_without_room_is_the_disks_fault_and_says_how_to_go_on() -> None:
    full = os.open("/dev/full", os.O_WRONLY | os.O_APPEND)
    try:
        with (
            Launcher(
                journal_fd=full, sync_interval_ns=None, environment={"PATH": os.environ["PATH"]}
            ) as launcher,
            pytest.raises(HostError, match=r"journal is full .*ENOSPC.*run the same command again"),
        ):
            list(launcher.run([launch(0, "true")]))
    finally:
        os.close(full)
