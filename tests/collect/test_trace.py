"""Calling the tracer: its words, its refusals, and that a refusal changes nothing."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from excise.collect.probe import ask_probe, probe_path
from excise.collect.trace import (
    SUMMARY,
    TraceRequest,
    catalogue,
    forget_monitor,
    restore,
    run_trace,
    start_monitor,
    stop_monitor,
)
from excise.errors import HostError, UsageError


def tracefs_settings() -> str:
    """Return what this host's tracefs says of instances and dynamic events; "" without one."""
    words = (
        "ls /sys/kernel/tracing/instances /sys/kernel/debug/tracing/instances 2>/dev/null; mount"
    )
    return subprocess.run(["sh", "-c", words], capture_output=True, text=True, check=False).stdout


def can_trace() -> bool:
    try:
        catalogue()
    except HostError:
        return False
    return True


def test_a_request_becomes_the_probes_options(tmp_path: Path) -> None:
    request = TraceRequest(
        hooks=("inode_*", "file_*"),
        modules=("selinux",),
        pids=(1, 2),
        backend="kprobe",
        duration_s=0.5,
        ima=True,
        interruptions=False,
    )
    words = " ".join(request.words(tmp_path, states=Path("/s")))
    for part in (
        "--hooks inode_*,file_*",
        "--lsm selinux",
        "--pid 1,2",
        "--backend kprobe",
        "--duration 0.5",
        "--ima",
        "--no-interruptions",
        "--states /s",
    ):
        assert part in words
    for absent in ("--tpm", "--all", "--no-syscalls", "--functions"):
        assert absent not in words


def test_a_host_that_cannot_trace_says_why_and_is_left_alone(tmp_path: Path) -> None:
    states = tmp_path / "states"
    before = tracefs_settings()
    if can_trace():
        assert run_trace(TraceRequest(), folder=tmp_path, command=["true"], states=states) == 0
        assert (tmp_path / SUMMARY).stat().st_size
    else:
        with pytest.raises(HostError, match=r"tracefs|available_filter_functions"):
            run_trace(
                TraceRequest(pairs=1),
                folder=tmp_path,
                command=["touch", str(tmp_path / "ran")],
                states=states,
            )
        assert not (tmp_path / "ran").exists()
    assert tracefs_settings() == before
    assert list(states.iterdir()) == []
    assert restore(states=states) == 0


def test_a_trace_that_runs_or_was_killed_is_in_the_way_and_restored(tmp_path: Path) -> None:
    state = (
        '{"pid":PID,"start_ticks":1,"boot_id":"BOOT","tracefs":"/nowhere","mounted":false,'
        '"instance":"excise-0","group":"excise_0","settings":[]}'
    )
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    (tmp_path / "trace-1.json").write_text(state.replace("PID", "1").replace("BOOT", boot))
    with pytest.raises(HostError, match="which was killed, is still set up"):
        run_trace(TraceRequest(), folder=tmp_path, command=["true"], states=tmp_path)
    assert restore(states=tmp_path) == 1
    assert not (tmp_path / "trace-1.json").exists()


def test_a_monitor_that_was_not_started_cannot_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nothing was started"):
        stop_monitor(states=tmp_path)


def test_a_monitor_can_be_stopped_again_until_what_it_gave_is_out(tmp_path: Path) -> None:
    folder = tmp_path / "lsmpmon"
    folder.mkdir()
    (folder / "errors").touch()
    (folder / SUMMARY).write_text("{}")
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
        (folder / "pid").write_text(f"{ended.pid} 1\n")
    for _ in range(2):  # the first may have been interrupted while it printed
        assert stop_monitor(states=tmp_path) == folder
    forget_monitor(states=tmp_path)
    with pytest.raises(HostError, match="nothing was started"):
        stop_monitor(states=tmp_path)


def test_a_process_that_has_a_dead_monitors_id_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "lsmpmon"
    folder.mkdir()
    (folder / "errors").touch()
    with subprocess.Popen(["sleep", "60"]) as other:
        (folder / "pid").write_text(f"{other.pid} 1\n")
        with pytest.raises(HostError, match="it was killed"):
            stop_monitor(states=tmp_path)
        assert other.poll() is None
        # The same process with its own start time is the monitor: it is told from the other.
        ticks = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[19]
        (folder / "pid").write_text(f"{other.pid} {ticks}\n")
        with pytest.raises(HostError, match="is started already"):
            start_monitor(TraceRequest(everything=True), states=tmp_path)
        with pytest.raises(HostError, match="it was killed"):
            stop_monitor(states=tmp_path)
        assert other.wait() == -signal.SIGINT


def test_a_monitor_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"tracefs|available_filter_functions|no traceable"):
        start_monitor(TraceRequest(everything=True, functions=("no_such_*",)), states=tmp_path)


def test_words_that_the_probe_does_not_know_are_refused() -> None:
    done = subprocess.run(
        [probe_path(), "trace", "--backend", "magic", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "expected function_graph, fprobe, kprobe, bpftrace or function" in done.stderr
    with pytest.raises(UsageError, match="unknown option --colour"):
        ask_probe("trace", "--colour")
