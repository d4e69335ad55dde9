"""Becoming another program under mechanisms, the machine's facts, and the command line."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path

import pytest


def call(*words: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command; its exit code must be the given one."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def test_exec_lets_a_command_write_beneath_the_directory_only(probe: Path, tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    script = f"""
        echo kept > {inside}/file && cat {inside}/file
        ls / > /dev/null && cat /etc/passwd > /dev/null && echo read
        echo no > {outside}/file || echo denied
        rm {outside} 2>/dev/null || echo still there
    """
    words = ("exec", "--landlock", "--directory", inside, "--", "sh", "-c", script)
    done = call(probe, *words)
    assert done.stdout.split("\n")[:4] == ["kept", "read", "denied", "still there"]
    assert "Permission denied" in done.stderr
    assert list(outside.iterdir()) == []


def test_exec_puts_a_filter_and_the_promise_on(probe: Path) -> None:
    status = call(probe, "exec", "--seccomp", "10", "--", "cat", "/proc/self/status").stdout
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (facts["Seccomp"], facts["NoNewPrivs"]) == ("2", "1")
    plain = call(probe, "exec", "--", "cat", "/proc/self/status").stdout
    assert "NoNewPrivs:\t0" in plain


def test_exec_becomes_the_command_with_its_code_and_environment(probe: Path) -> None:
    environment = {**os.environ, "EXCISE_TEST": "kept"}
    done = subprocess.run(
        [probe, "exec", "--no-new-privs", "--", "sh", "-c", "echo $EXCISE_TEST $0 $1; exit 7", "a"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (7, "kept a\n")


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("exec", "--landlock", "--", "true"), 2, "--directory is missing"),
        (("exec", "--landlock", "--directory", "/", "--", "true"), 2, "leaves no place"),
        (("exec", "--directory", "/tmp", "--", "true"), 2, "without --landlock"),
        (("exec", "--", "no-such-program-here"), 2, "ENOENT"),
        (("exec", "--seccomp", "9999", "--", "true"), 2, "at most"),
        (("exec",), 2, "a command is missing"),
        (("run",), 2, "--workload is missing"),
        (("run", "--workload", "nothing"), 2, "known are: null read write stat"),
        (("run", "--workload", "stat", "--batches", "0"), 2, "--batches 0"),
        (("launch", "--journal-fd", "999"), 2, "EBADF"),
        (("dance",), 2, "unknown command dance"),
        ((), 2, "a command is missing"),
    ],
)
def test_wrong_usage_is_named(probe: Path, words: tuple[str, ...], code: int, reason: str) -> None:
    done = call(probe, *words, code=code)
    assert reason in done.stderr
    assert done.stderr.startswith("excise-probe: ")
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["run", "exec", "info", "launch"])
def test_each_help_has_an_example_that_works(probe: Path, command: str) -> None:
    text = call(probe, command, "--help").stdout
    (example,) = [line for line in text.splitlines() if line.startswith("Example: ")]
    line = example.removeprefix("Example: ").replace("excise-probe", str(probe), 1)
    line = line.replace("| excise-probe", f"| {probe}")
    assert call("/bin/sh", "-c", line).stdout != ""


def test_every_workload_is_in_the_help_and_in_the_documentation(probe: Path) -> None:
    text = call(probe, "run", "--help").stdout.partition("Workloads:\n")[2].partition("\n\n")[0]
    names = [line.split()[0] for line in text.splitlines()]
    page = Path(__file__).resolve().parents[2] / "docs" / "probe.md"
    documented = page.read_text()
    assert len(names) == 16
    for name in names:
        assert f"| `{name}` |" in documented


def test_info_tells_what_this_machine_has(probe: Path) -> None:
    (text,) = call(probe, "info").stdout.splitlines()
    info = json.loads(text)
    assert info["kernel_release"] == platform.release()
    assert info["machine"] == platform.machine()
    assert info["cpus_online"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert info["page_size_bytes"] == os.sysconf("SC_PAGESIZE")
    assert [clock["name"] for clock in info["clocks"]][:2] == [
        "CLOCK_MONOTONIC",
        "CLOCK_MONOTONIC_RAW",
    ]
    assert all(clock["measured_resolution_ns"] >= 1 for clock in info["clocks"])
    counters = info["counters"]
    assert len(counters["attempts"]) == 4
    for attempt in counters["attempts"]:
        assert attempt["works"] is (attempt["errno"] is None)
    for event in ("instructions", "cycles"):
        working = [a["scope"] for a in counters["attempts"] if a["event"] == event and a["works"]]
        assert counters[f"{event}_scope"] == (working[0] if working else None)


def test_the_program_is_static_and_small(probe: Path) -> None:
    assert "not a dynamic executable" in call("ldd", probe, code=1).stderr
    assert probe.stat().st_size < 2_000_000
