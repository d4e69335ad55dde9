"""How the launcher ends: time-outs, signals, its parent's death, the end of its input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended, wait_until
from probe_driver import (
    LauncherProcess,
    exec_request,
    is_alive,
    is_pending,
    read_pids,
    run_request,
)

StartLauncher = Callable[..., LauncherProcess]

# A child with a grandchild in its group; both leave their ids and then wait.
FAMILY = 'sleep 600 & echo $! $$ >"$0.new"; mv "$0.new" "$0"; wait'


def family(path: Path) -> tuple[str, ...]:
    """Return the command that makes the family."""
    return ("/bin/sh", "-c", FAMILY, str(path))


@pytest.mark.parametrize("ask", [run_request, exec_request])
def test_a_timeout_kills_the_whole_group(
    launcher: LauncherProcess, tmp_path: Path, ask: Callable[..., dict[str, object]]
) -> None:
    pids = tmp_path / "pids"
    before_s = time.monotonic()
    line = launcher.ask(ask(*family(pids), timeout_ns=300_000_000))
    assert 0.3 <= time.monotonic() - before_s < 300
    assert (line["timed_out"], line["ok"], line["signal"]) == (True, False, 9)
    assert line["exit_code"] is None
    for pid in read_pids(pids, 2):
        wait_until(lambda pid=pid: not is_alive(pid))
    assert launcher.ask(run_request("/bin/true", timeout_ns=5_000_000_000))["ok"] is True


def test_a_run_that_ends_in_time_is_not_timed_out(launcher: LauncherProcess) -> None:
    line = launcher.ask(run_request("/bin/sleep", "0.05", timeout_ns=2_000_000_000))
    assert (line["timed_out"], line["ok"]) == (False, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_first_signal_lets_the_run_finish_and_leaves_the_queue(
    start_launcher: StartLauncher, tmp_path: Path, number: signal.Signals
) -> None:
    journal = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    launcher = start_launcher("--journal-fd", str(journal), pass_fds=(journal,))
    os.close(journal)
    begun = tmp_path / "begun"
    launcher.send(
        run_request("/bin/sh", "-c", 'echo >"$0"; sleep 0.4', str(begun), head='{"sequence":0'),
        run_request("/bin/true", head='{"sequence":1'),
        run_request("/bin/true", head='{"sequence":2'),
    )
    wait_until(begun.exists)
    launcher.process.send_signal(number)
    code, answers = launcher.end()
    assert code == 0
    assert [answer["sequence"] for answer in answers] == [0]
    assert (answers[0]["ok"], answers[0]["wall_ns"] > 400_000_000) == (True, True)
    lines = (tmp_path / "journal").read_text().splitlines()
    assert [json.loads(line) for line in lines] == answers


def test_a_second_signal_kills_the_run_without_a_line(
    start_launcher: StartLauncher, tmp_path: Path
) -> None:
    journal = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    launcher = start_launcher("--journal-fd", str(journal), pass_fds=(journal,))
    os.close(journal)
    launcher.send(run_request(*family(tmp_path / "pids")))
    pids = read_pids(tmp_path / "pids", 2)
    launcher.process.send_signal(signal.SIGTERM)
    # Two that are pending at once are one.
    wait_until(lambda: not is_pending(launcher.process.pid, signal.SIGTERM))
    time.sleep(0.2)
    assert launcher.process.poll() is None
    launcher.process.send_signal(signal.SIGTERM)
    code, answers = launcher.end()
    assert (code, answers) == (130, [])
    assert (tmp_path / "journal").read_text() == ""
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_a_signal_while_idle_ends_the_launcher_at_once(launcher: LauncherProcess) -> None:
    assert launcher.ask(run_request("/bin/true"))["ok"] is True
    launcher.process.send_signal(signal.SIGTERM)
    assert launcher.process.wait(timeout=PATIENCE_S) == 0


def test_the_end_of_input_finishes_the_queue(launcher: LauncherProcess) -> None:
    launcher.send(*[run_request("/bin/true", head=f'{{"sequence":{n}') for n in range(5)])
    code, answers = launcher.end()
    assert code == 0
    assert [answer["sequence"] for answer in answers] == list(range(5))


PARENT = """
import subprocess, sys, time
launcher = subprocess.Popen(
    [sys.argv[1], "launch"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
)
launcher.stdin.write(sys.argv[2].encode() + b"\\n")
launcher.stdin.flush()
print(launcher.pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_parent_is_killed(probe: Path, tmp_path: Path) -> None:
    request = json.dumps(run_request(*family(tmp_path / "pids")))
    parent = subprocess.Popen(
        [sys.executable, "-S", "-c", PARENT, probe, request], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with ended(parent):
        launcher = int(parent.stdout.readline())
        pids = [launcher, *read_pids(tmp_path / "pids", 2)]
        assert all(is_alive(pid) for pid in pids)
        parent.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_the_child_dies_with_a_launcher_that_is_killed(
    launcher: LauncherProcess, tmp_path: Path
) -> None:
    launcher.send(
        run_request("/bin/sh", "-c", 'echo $$ >"$0"; exec sleep 600', str(tmp_path / "p"))
    )
    (pid,) = read_pids(tmp_path / "p", 1)
    launcher.process.kill()
    launcher.process.wait()
    wait_until(lambda: not is_alive(pid))


def test_the_end_of_the_thread_that_started_the_launcher_is_not_its_parents_death(
    start_launcher: StartLauncher,
) -> None:
    import threading

    started: list[LauncherProcess] = []
    thread = threading.Thread(target=lambda: started.append(start_launcher()))
    thread.start()
    thread.join()
    time.sleep(0.1)
    assert started[0].ask(run_request("/bin/true"))["ok"] is True


def test_the_launcher_has_a_session_of_its_own(launcher: LauncherProcess) -> None:
    launcher.ask(run_request("/bin/true"))
    assert os.getsid(launcher.process.pid) == launcher.process.pid
    assert os.getsid(launcher.process.pid) != os.getsid(0)


def test_a_launcher_that_leads_a_group_still_gets_its_own_session(probe: Path) -> None:
    process = subprocess.Popen(
        [probe, "launch"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        process_group=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with ended(process):
        process.stdin.write(json.dumps(run_request("/bin/true")) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["ok"] is True
        assert os.getsid(process.pid) == process.pid
        process.stdin.close()
        process.stdout.read()
        assert process.wait() == 0
