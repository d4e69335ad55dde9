"""The launcher's answers: what it measures, embeds, journals and refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from probe_driver import LauncherProcess, exec_request, run_request

StartLauncher = Callable[..., LauncherProcess]


def test_a_run_is_measured_and_its_head_kept(launcher: LauncherProcess) -> None:
    head = '{"kind":"run","sequence":5,"task":"naïve \\"quoted\\""'
    line = launcher.ask(run_request("/bin/true", head=head))
    assert line["kind"] == "run"
    assert line["sequence"] == 5
    assert line["task"] == 'naïve "quoted"'
    assert line["ok"] is True
    assert (line["exit_code"], line["signal"], line["timed_out"]) == (0, None, False)
    assert line["wall_ns"] >= 50_000
    assert line["minor_faults"] > 0
    assert line["user_ns"] + line["system_ns"] > 0
    assert 100_000 < line["max_rss_floor_bytes"] < 700_000
    assert line["max_rss_bytes"] > line["max_rss_floor_bytes"]
    assert "stderr" not in line
    assert "error" not in line


def test_wall_time_is_that_of_the_child(launcher: LauncherProcess) -> None:
    before_ns = time.monotonic_ns()
    line = launcher.ask(run_request("/bin/sleep", "0.2"))
    assert 200_000_000 <= line["wall_ns"] < time.monotonic_ns() - before_ns
    assert line["user_ns"] + line["system_ns"] < 50_000_000
    assert line["voluntary_switches"] >= 1


def test_processor_time_and_memory_are_the_childs_own(launcher: LauncherProcess) -> None:
    code = (
        "b = bytearray(80 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\nsum(range(5_000_000))"
    )
    line = launcher.ask(run_request(sys.executable, "-S", "-c", code))
    assert line["ok"] is True
    assert line["user_ns"] > 20_000_000
    assert 80 << 20 <= line["max_rss_bytes"] < 160 << 20
    assert line["minor_faults"] > 100
    small = launcher.ask(run_request("/bin/true"))
    assert small["max_rss_bytes"] < 4 << 20


@pytest.mark.parametrize(
    ("script", "expect", "ok", "code"),
    [
        ("exit 0", [0], True, 0),
        ("exit 3", [0], False, 3),
        ("exit 3", [1, 3], True, 3),
        ("exit 0", [1], False, 0),
        ("exit 255", [255], True, 255),
    ],
)
def test_a_run_is_ok_if_its_exit_code_is_expected(
    launcher: LauncherProcess, script: str, expect: list[int], ok: bool, code: int
) -> None:
    line = launcher.ask(run_request("/bin/sh", "-c", script, expect=expect))
    assert (line["ok"], line["exit_code"]) == (ok, code)


def test_a_signal_is_reported_in_place_of_an_exit_code(launcher: LauncherProcess) -> None:
    line = launcher.ask(run_request("/bin/sh", "-c", "kill -SEGV $$", expect=[0, 139]))
    assert (line["ok"], line["exit_code"], line["signal"]) == (False, None, 11)


def test_only_a_failed_run_keeps_the_end_of_its_standard_error(launcher: LauncherProcess) -> None:
    script = "head -c 5000 /dev/zero | tr '\\0' x >&2; printf 'the \\377 end' >&2; exit "
    kept = launcher.ask(run_request("/bin/sh", "-c", script + "1"))
    assert kept["stderr"].endswith("x" + "the \ufffd end")
    assert kept["stderr"].count("x") == 2000 - len("the . end")
    quiet = launcher.ask(run_request("/bin/sh", "-c", script + "0"))
    assert "stderr" not in quiet
    after = launcher.ask(run_request("/bin/false"))
    assert after["stderr"] == ""


def test_a_child_that_reopens_its_standard_error_overwrites_nothing(
    launcher: LauncherProcess,
) -> None:
    line = launcher.ask(
        run_request("/bin/sh", "-c", "echo one >&2; echo two >>/dev/stderr; echo three >&2; false")
    )
    assert line["stderr"] == "one\ntwo\nthree\n"


def test_a_program_that_cannot_be_executed_is_an_error_with_its_errno(
    launcher: LauncherProcess, tmp_path: Path
) -> None:
    plain = tmp_path / "plain"
    plain.write_text("no program")
    for argv, cwd, reason in (
        (["/nowhere/at-all"], None, "execve: ENOENT"),
        (["not-on-the-path"], None, "execve: ENOENT"),
        ([str(plain)], None, "execve: EACCES"),
        (["/bin/true"], str(tmp_path / "missing"), "chdir: ENOENT"),
    ):
        line = launcher.ask(run_request(*argv, cwd=cwd))
        assert line["error"].startswith(reason)
        assert (line["ok"], line["exit_code"], line["wall_ns"]) == (False, None, None)
    assert launcher.ask(run_request("/bin/true"))["ok"] is True


def test_the_environment_is_empty_but_for_what_was_asked(launcher: LauncherProcess) -> None:
    def environment(**members: Any) -> list[str]:
        answer = launcher.ask(exec_request("/usr/bin/env", **members))
        return sorted(answer["stdout"].split())

    assert environment() == []
    launcher.send({"op": "environment", "env": {"A": "1", "B": "2", "C": "3"}})
    assert environment(env={"B": "two", "D": "4"}, unset=["C"]) == ["A=1", "B=two", "D=4"]
    assert environment() == ["A=1", "B=2", "C=3"]
    launcher.send({"op": "environment", "env": {"E": "5"}})
    assert environment() == ["E=5"]


def test_programs_are_found_on_the_childs_path(launcher: LauncherProcess, tmp_path: Path) -> None:
    program = tmp_path / "greet"
    program.write_text("#!/bin/sh\npwd\n")
    program.chmod(0o755)
    missing = launcher.ask(exec_request("greet"))
    assert missing["error"].startswith("execve: ENOENT")
    found = launcher.ask(exec_request("greet", env={"PATH": f"/nowhere:{tmp_path}"}, cwd="/usr"))
    assert found["stdout"] == "/usr\n"


def test_a_probes_line_is_embedded_as_it_is(launcher: LauncherProcess) -> None:
    line = launcher.ask(run_request("/bin/echo", '{"op_ns":[1.250,2]}', stdout="probe"))
    assert line["probe"] == {"op_ns": [1.25, 2]}
    assert line["ok"] is True


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "stdout: empty"),
        ("{}\n{}", "stdout: more than one line"),
        ("[1]", "stdout: not a JSON object"),
        ('{"a":', "stdout: not JSON"),
    ],
)
def test_a_probe_that_prints_no_json_object_fails(
    launcher: LauncherProcess, text: str, reason: str
) -> None:
    line = launcher.ask(run_request("/usr/bin/printf", "%s\n", text, stdout="probe"))
    assert (line["ok"], line["exit_code"], line["probe"]) == (False, 0, None)
    assert line["error"].startswith(reason)
    good = launcher.ask(run_request("/bin/echo", "{}", stdout="probe"))
    assert good["probe"] == {}


def test_standard_output_goes_to_a_file_that_is_emptied_first(
    launcher: LauncherProcess, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    kept.write_text("what was there before, and longer")
    request = run_request("/bin/echo", "new", stdout={"file": str(kept)})
    assert launcher.ask(request)["ok"] is True
    assert kept.read_text() == "new\n"
    missing = {"file": str(tmp_path / "no" / "where")}
    refused = launcher.ask(run_request("/bin/true", stdout=missing))
    assert refused["error"].startswith("stdout.file: ENOENT")


def test_standard_input_is_empty_and_no_descriptor_leaks(launcher: LauncherProcess) -> None:
    script = "cat; ls -l /proc/self/fd | sed -n 's/.* \\([0-9]*\\) -> /\\1 /p'"
    answer = launcher.ask(exec_request("/bin/sh", "-c", script))
    names = [line.split()[0] for line in answer["stdout"].splitlines()]
    assert names[:3] == ["0", "1", "2"]
    assert len(names) == 4  # the fourth is the listing of the directory itself


def test_a_child_starts_with_default_signals_and_its_own_group(launcher: LauncherProcess) -> None:
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status; ps -o pgid= -p $$; echo $$"
    answer = launcher.ask(exec_request("/bin/sh", "-c", script))
    words = answer["stdout"].split()
    assert (words[0], words[2]) == ("SigBlk:", "SigIgn:")
    # Signals 32 and 33 belong to the C library, which lets nobody reset them.
    assert [int(mask, 16) & 0x7FFFFFFF for mask in (words[1], words[3])] == [0, 0]
    assert words[4] == words[5]


def test_an_exec_answers_with_the_ends_of_its_outputs(launcher: LauncherProcess) -> None:
    script = "head -c 9000 /dev/zero | tr '\\0' o; head -c 9000 /dev/zero | tr '\\0' e >&2; exit 4"
    answer = launcher.ask(exec_request("/bin/sh", "-c", script, identity=7, expect=[4]))
    assert (answer["kind"], answer["id"], answer["ok"]) == ("exec", 7, True)
    assert answer["exit_code"] == 4
    assert answer["stdout"] == "o" * 4000
    assert answer["stderr"] == "e" * 2000


def test_a_line_is_in_the_journal_before_it_is_echoed(
    start_launcher: StartLauncher, tmp_path: Path
) -> None:
    journal = tmp_path / "journal.jsonl"
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    launcher = start_launcher(
        "--journal-fd", str(descriptor), "--sync-interval-ms", "0", pass_fds=(descriptor,)
    )
    os.close(descriptor)
    echoed = []
    for sequence in range(20):
        line = launcher.ask(run_request("/bin/true", head=f'{{"sequence":{sequence}'))
        echoed.append(line)
        assert [json.loads(text) for text in journal.read_text().splitlines()] == echoed
    launcher.ask(exec_request("/bin/true"))
    assert launcher.end() == (0, [])
    assert len(journal.read_text().splitlines()) == 20


def test_a_journal_that_is_not_appended_to_is_refused(probe: Path, tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as journal:
        words = [probe, "launch", "--journal-fd", str(journal.fileno())]
        done = subprocess.run(
            words, pass_fds=(journal.fileno(),), capture_output=True, text=True, check=False
        )
    assert done.returncode == 2
    assert "O_APPEND" in done.stderr


def test_a_journal_that_cannot_be_written_ends_the_launcher(start_launcher: StartLauncher) -> None:
    full = os.open("/dev/full", os.O_WRONLY | os.O_APPEND)
    launcher = start_launcher("--journal-fd", str(full), pass_fds=(full,))
    os.close(full)
    answer = launcher.ask(run_request("/bin/true"))
    assert answer["kind"] == "error"
    assert "ENOSPC" in answer["reason"]
    assert launcher.end() == (1, [])


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"op":"run","head":"{","argv":["/bin/true"]', "EOF"),
        ('{"op":"run","head":"{\\"a\\":","argv":["/bin/true"]}', "head"),
        ('{"op":"run","head":"{"}', "argv"),
        ('{"op":"dance"}', "dance"),
        ('{"op":"exec","id":1,"argv":["a"],"colour":2}', "colour"),
        ("\udcff\udcfe", "UTF-8"),
        ("null", "expected struct"),
    ],
)
def test_a_malformed_request_is_refused_after_those_before_it_are_done(
    probe: Path, line: str, reason: str
) -> None:
    good = json.dumps(run_request("/bin/true")) + "\n"
    done = subprocess.run(
        [probe, "launch"],
        input=(good + line + "\n" + good).encode(errors="surrogateescape"),
        capture_output=True,
        check=False,
    )
    answers = [json.loads(text) for text in done.stdout.splitlines()]
    assert [answer["kind"] for answer in answers] == ["run", "error"]
    assert reason in answers[1]["reason"]
    assert done.returncode == 2


def test_a_request_torn_by_the_end_of_input_is_not_run(probe: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    whole = json.dumps(run_request("/usr/bin/touch", str(mark)))
    torn = subprocess.run(
        [probe, "launch"], input=whole[:-4], capture_output=True, text=True, check=False
    )
    assert (torn.returncode, mark.exists()) == (2, False)
    assert json.loads(torn.stdout)["kind"] == "error"
    unended = subprocess.run(
        [probe, "launch"], input=whole, capture_output=True, text=True, check=False
    )
    assert (unended.returncode, mark.exists()) == (0, True)


def test_requests_far_larger_than_a_read_are_put_together(launcher: LauncherProcess) -> None:
    words = ["x" * 100_000] * 4
    answer = launcher.ask(run_request("/usr/bin/printf", "%s", *words, stdout="discard"))
    assert answer["ok"] is True
    too_long = launcher.ask(run_request("/bin/true", "x" * 200_000))
    assert too_long["error"].startswith("execve: E2BIG")


def test_what_a_run_leaves_running_is_told_and_cannot_write_into_the_next_ones_error(
    launcher: LauncherProcess,
) -> None:
    script = "(sleep 0.3; echo late >&2) & exit 0"
    line = launcher.ask(run_request("/bin/sh", "-c", script))
    assert line["left_processes"] is True
    later = launcher.ask(run_request("/bin/sh", "-c", "sleep 0.6; exit 1"))
    assert later["stderr"] == ""
    assert "left_processes" not in later


def test_counters_follow_the_child_alone(start_launcher: StartLauncher) -> None:
    launcher = start_launcher("--counter-selftest")
    uncounted = launcher.ask(run_request("/bin/true", counters=False))
    assert uncounted["selftest_page_faults"] is None
    code = "b = bytearray(40 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    for argv in (("/bin/true",), (sys.executable, "-S", "-c", code), ("/bin/true",)):
        line = launcher.ask(run_request(*argv, counters=True))
        faults = line["minor_faults"] + line["major_faults"]
        # The child makes a few faults before its exec, from where on the counter counts.
        assert faults - 30 <= line["selftest_page_faults"] <= faults
        used_ns = line["user_ns"] + line["system_ns"]
        assert line["selftest_task_clock_ns"] == pytest.approx(used_ns, rel=0.3, abs=5_000_000)


def test_counters_count_grandchildren_too(start_launcher: StartLauncher) -> None:
    launcher = start_launcher("--counter-selftest")
    code = "b = bytearray(40 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1"
    direct = launcher.ask(run_request(sys.executable, "-S", "-c", code, counters=True))
    request = run_request(
        "/bin/sh", "-c", '"$0" -S -c "$1"; exit 0', sys.executable, code, counters=True
    )
    through_shell = launcher.ask(request)
    assert through_shell["selftest_page_faults"] >= direct["selftest_page_faults"]


def test_counters_go_on_counting_where_parent_and_child_share_a_processor(
    start_launcher: StartLauncher,
) -> None:
    launcher = start_launcher("--counter-selftest")
    os.sched_setaffinity(launcher.process.pid, {min(os.sched_getaffinity(0))})
    for _ in range(100):
        line = launcher.ask(run_request("/bin/true", counters=True))
        assert line["selftest_page_faults"] > 10
        assert line["selftest_task_clock_ns"] > 10_000
