"""Campaigns on boards behind a console: a pty pair as serial line, programs as commands."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import threading
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from campaign_runs import installed, versions
from excise.campaign.run import run_campaign
from excise.campaign.spec import parse_campaign
from excise.campaign.target_spec import CommandTarget
from excise.capture.journal import Effect, Event, Record, Run, decode
from excise.capture.store import JOURNAL, RAW, read_manifest
from excise.errors import HostError, SpecError
from in_process import Program

# A board that speaks like an attesting one: an echo, a noisy log, RA_PERF lines, a prompt.
BOARD = r"""
import sys, time
out = lambda text: (sys.stdout.write(text), sys.stdout.flush())
out("U-Boot 2024\nboard login: \nboard> ")
runs = 0
for line in sys.stdin:
    word = line.strip()
    out(line)
    if word.endswith("attest"):
        runs += 1
        mode = "plain" if "plain" in word else "black"
        out("I/TC: some noise\n")
        time.sleep(0.01)
        out(f"RA_PERF|ta|sign|70|key={mode}\nRA_PERF|ta|cmd_total|90|key={mode}\n")
        out(f"RA_PERF|host|total|120|key={mode}\n")
    elif word == "hang":
        time.sleep(600)
    elif word == "break":
        out("PANIC: it broke\n")
    elif word == "mode?":
        out("mode=fast\n")
    out("board> ")
"""
TWO = """
blocks = 2
[[configurations]]
name = "a"
[[configurations]]
name = "b"
"""


def found_in(capture: Path, kind: type[Record]) -> list[Record]:
    lines = (capture / JOURNAL).read_bytes().splitlines()
    return [record for record in map(decode, lines) if isinstance(record, kind)]


def runs_in(capture: Path) -> list[Run]:
    return [run for run in found_in(capture, Run) if isinstance(run, Run)]


def run_text(text: str, capture: Path) -> list[Run]:
    run_campaign(parse_campaign(text.encode(), source="test.toml"), capture)
    return runs_in(capture)


@contextmanager
def serial_board(command: list[str]) -> Iterator[str]:
    """Give the name of a serial device that a program is behind."""
    near, far = pty.openpty()
    tty.setraw(far)
    tty.setraw(near)
    board = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert board.stdin is not None
    assert board.stdout is not None
    out, into = board.stdout, board.stdin

    def from_board() -> None:
        while data := os.read(out.fileno(), 4096):
            os.write(near, data)

    def to_board() -> None:
        try:
            while data := os.read(near, 4096):
                into.write(data)
        except OSError:
            return

    threads = [threading.Thread(target=each, daemon=True) for each in (from_board, to_board)]
    for thread in threads:
        thread.start()
    try:
        yield os.ttyname(far)
    finally:
        board.kill()
        board.wait()
        threads[0].join()
        os.close(far)
        threads[1].join(5)
        out.close()
        into.close()
        os.close(near)


def board_file(folder: Path) -> list[str]:
    (folder / "board.py").write_text(BOARD)
    return [sys.executable, str(folder / "board.py")]


def test_a_board_on_a_serial_line_is_measured_until_its_format_closes_a_run(
    tmp_path: Path,
) -> None:
    with serial_board(board_file(tmp_path)) as device:
        text = f"""
        blocks = 2
        target = {{ kind = "serial", port = "{device}", ready = "board> $" }}
        [[configurations]]
        name = "black"
        [[configurations]]
        name = "plain"
        prefix = ["plain"]
        [[tasks]]
        name = "attestation"
        send = "attest"
        events = "ra-perf"
        """
        done = run_text(text, tmp_path / "c")
    assert len(done) == 9
    assert all(run.ok and run.wall_ns for run in done)
    events = [each for each in found_in(tmp_path / "c", Event) if isinstance(each, Event)]
    assert len([e for e in events if (e.layer, e.event) == ("ta", "sign")]) == 9
    for run in done:
        mode = b"key=plain" if run.configuration == "plain" else b"key=black"
        assert mode in (tmp_path / "c" / RAW / f"{run.sequence}.stdout").read_bytes()
    manifest = read_manifest(tmp_path / "c")
    assert manifest.clocks[0].resolution_ns == pytest.approx(86_805.6, abs=0.1)
    assert "CLOCK_MONOTONIC at the console" in manifest.clocks[0].name


def test_a_console_with_a_prompt_answers_checks_and_hangs_are_failed_runs(tmp_path: Path) -> None:
    command = board_file(tmp_path)
    resets = tmp_path / "resets"
    text = f"""
    blocks = 1
    [target]
    kind = "command"
    command = {command!r}
    ready = "board> $"
    prompt = "^board> $"
    reset = ["sh", "-c", "echo reset >> {resets}"]
    [[configurations]]
    name = "a"
    took_effect = [{{ command = ["mode?"], contains = "mode=fast" }}]
    [[tasks]]
    name = "good"
    send = "attest"
    [[tasks]]
    name = "bad"
    send = "break"
    failed = "^PANIC.*"
    """
    done = run_text(text, tmp_path / "c")
    assert [run.ok for run in done if run.task == "good"] == [True] * 4
    errors = [run.error for run in done if run.task == "bad"]
    assert all(error and "PANIC: it broke" in error for error in errors)
    (effect,) = found_in(tmp_path / "c", Effect)
    assert isinstance(effect, Effect)
    assert (effect.outcome, effect.got) == ("PASSED", "mode=fast")
    assert resets.read_text() == "reset\n"


def test_a_run_that_hangs_is_a_failed_one_and_says_how_far_it_came(tmp_path: Path) -> None:
    text = f"""
    blocks = 1
    [target]
    kind = "command"
    command = {board_file(tmp_path)!r}
    ready = "board> $"
    [[configurations]]
    name = "a"
    [[tasks]]
    name = "t"
    send = "hang"
    until = "never"
    timeout = "200ms"
    """
    with pytest.raises(HostError, match=r"did not say 'board> \$'"):
        run_text(text.replace("[[conf", 'ready_timeout = "5s"\n[[conf', 1), tmp_path / "c")
    (first,) = runs_in(tmp_path / "c")
    assert (first.ok, first.timed_out) == (False, True)
    assert first.error == "no end in 0.2 s: nothing came"


def test_a_board_that_is_waited_for_is_told_where_no_bar_shows_it(
    tmp_path: Path, excise: Program
) -> None:
    text = f"""
    blocks = 2
    [target]
    kind = "command"
    command = {board_file(tmp_path)!r}
    ready = "never said"
    ready_timeout = "300ms"
    reset = ["true"]
    [[configurations]]
    name = "a"
    [[tasks]]
    name = "t"
    send = "attest"
    until = "host"
    """
    (tmp_path / "board.toml").write_text(text)
    said = excise("run", "board.toml", "-o", "c.excise")
    assert said.returncode == 4
    name = board_file(tmp_path)[0]
    assert said.stderr.startswith(f"{name}: reset\n{name}: wait for 'never said', 300ms at most\n")
    silent = excise("run", "board.toml", "-o", "d.excise", "--no-progress")
    assert "wait for" not in silent.stderr


def test_a_shell_behind_a_console_tells_exit_codes(tmp_path: Path) -> None:
    text = (
        TWO
        + """
    environment = { MODE = "slow" }
    setup = [["true"]]
    took_effect = [
        { environment = "MODE", equals = "slow" },
        { file = "/proc/sys/kernel/ostype", equals = "Linux" },
    ]
    [[tasks]]
    name = "seven"
    command = ["sh", "-c", "test -n \\"$MODE\\" || exit 7"]
    [target]
    kind = "command"
    command = ["sh"]
    shell = true
    """
    )
    done = run_text(text, tmp_path / "c")
    assert len(done) == 9
    assert {(run.configuration, run.exit_code) for run in done} == {
        ("a", 7),
        ("a (A/A)", 7),
        ("b", 0),
    }
    assert [run.ok for run in done if run.configuration == "b"] == [True] * 3
    assert [each.outcome for each in found_in(tmp_path / "c", Effect)] == ["PASSED"] * 2  # type: ignore[union-attr]


def test_a_command_for_each_run_ends_with_its_exit_or_its_line(tmp_path: Path) -> None:
    text = (
        TWO
        + """
    environment = { SLOW = "1" }
    [[tasks]]
    name = "whole"
    command = ["printf", "RA_PERF|host|total|120|key=-\\nRA_PERF|host|late|1|key=-\\n"]
    events = "ra-perf"
    [[tasks]]
    name = "stays"
    command = ["sh", "-c", "echo go; echo done; sleep 600"]
    until = "^done$"
    [[tasks]]
    name = "never"
    command = ["true"]
    until = "^done$"
    [target]
    kind = "command"
    """
    )
    done = run_text(text, tmp_path / "c")
    assert all(run.ok for run in done if run.task != "never")
    errors = {run.error for run in done if run.task == "never"}
    assert errors == {"ended without a line that matches '^done$'"}
    assert max(run.wall_ns or 0 for run in done) < 300_000_000_000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ('workload = "stat"', r"tasks\[0\].workload: the probe does not run behind a console"),
        ('send = "x"', r"tasks\[0\].until: nothing says how a run ends"),
        ('command = ["x"]', r"tasks\[0\].command: a command needs shell = true"),
        ('send = "x"\nuntil = "("', r"tasks\[0\].until: is not a regular expression"),
        ('send = "x"\ncommand = ["x"]', "give exactly one of command, workload, send"),
    ],
)
def test_what_a_console_does_not_have_is_refused_by_its_key(
    tmp_path: Path, change: str, reason: str
) -> None:
    text = f"""
    target = {{ kind = "serial", port = "/dev/null" }}
    [[configurations]]
    name = "a"
    [[tasks]]
    name = "t"
    {change}
    """
    with pytest.raises(SpecError, match=reason):
        run_text(text, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_line_to_send_belongs_to_a_console(tmp_path: Path) -> None:
    text = TWO + '[[tasks]]\nname = "t"\nsend = "x"\n'
    with pytest.raises(SpecError, match=r"tasks\[0\].send: belongs to targets of the kinds"):
        run_text(text, tmp_path / "c")


def test_a_port_that_is_not_there_is_said(tmp_path: Path) -> None:
    text = (
        TWO
        + """
    [[tasks]]
    name = "t"
    send = "x"
    until = "y"
    [target]
    kind = "serial"
    port = "/dev/no-such-port"
    """
    )
    with pytest.raises(HostError, match="/dev/no-such-port: cannot be opened"):
        run_text(text, tmp_path / "c")


def test_a_command_is_found_on_the_path_of_its_configuration(tmp_path: Path) -> None:
    old, new = installed(tmp_path / "old", "1"), installed(tmp_path / "new", "2")
    campaign = msgspec.structs.replace(versions(old, new), target=CommandTarget())
    assert run_campaign(campaign, tmp_path / "c").failed == 0
    names = {fact.name for fact in read_manifest(tmp_path / "c").host_facts}
    assert {"program.versioned.sha256", "program.versioned.sha256 under new"} < names
    campaign = msgspec.structs.replace(versions(old, os.environ["PATH"]), target=CommandTarget())
    with pytest.raises(HostError, match=r"configuration 'new'.*executable: versioned"):
        run_campaign(campaign, tmp_path / "d")
