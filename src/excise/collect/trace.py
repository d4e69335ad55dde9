"""Tracing of this host's hooks: the native probe does it, here it is called and waited for."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Final, Literal

import msgspec

from excise.collect.probe import ask_probe, probe_path
from excise.errors import ExciseError, HostError, UsageError

Backend = Literal["function_graph", "fprobe", "kprobe", "bpftrace", "function"]
TRACE: Final = "trace.txt"
CALIBRATION: Final = "trace.txt.calibration"
SUMMARY: Final = "trace.json"
STATES: Final = Path("/run/excise")
_FORWARDED: Final = (signal.SIGTERM, signal.SIGHUP)
_MONITOR: Final = "lsmpmon"
_PATIENCE_S: Final = 60.0


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What to trace, of whom, and how.

    Attributes:
        hooks: Patterns over hooks or their callers.
        modules: Security modules whose functions are traced too.
        functions: Patterns over any function.
        tpm: Also the functions of a TPM extend.
        ima: Also the functions of IMA and EVM.
        backend: What to trace with; chosen by what the kernel offers if None.
        pids: Processes to trace; none for a command.
        everything: Trace all processes but the tracer.
        duration_s: End after so long.
        syscalls: Record which system call a function is called in.
        interruptions: Record interrupts and switches to other tasks, and time them.
        buffer_kib: Each processor's buffer.
        most_bytes: Ends a trace that is so long; half of the free space where it goes if None.
        pairs: Pairs of runs of the command, without the tracer and with it.
        pairs_within_s: Begin no pair after so long.
        calibration: Calls of an empty function.
    """

    hooks: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    functions: tuple[str, ...] = ()
    tpm: bool = False
    ima: bool = False
    backend: Backend | None = None
    pids: tuple[int, ...] = ()
    everything: bool = False
    duration_s: float | None = None
    syscalls: bool = True
    interruptions: bool = True
    buffer_kib: int = 8192
    most_bytes: int | None = None
    pairs: int = 0
    pairs_within_s: float | None = None
    calibration: int = 200

    def words(self, folder: Path, *, states: Path = STATES) -> list[str]:
        """Return the probe's options for a trace that is written to a folder."""
        found = ["--output", str(folder / TRACE), "--summary", str(folder / SUMMARY)]
        found += ["--states", str(states), "--buffer-kb", str(self.buffer_kib)]
        found += ["--pairs", str(self.pairs), "--calibration", str(self.calibration)]
        most_bytes = self.most_bytes or shutil.disk_usage(folder).free // 2
        found += ["--most-bytes", str(most_bytes)]
        if self.pairs_within_s is not None:
            found += ["--pairs-within", f"{self.pairs_within_s:g}"]
        for option, values in (
            ("--hooks", self.hooks),
            ("--lsm", self.modules),
            ("--functions", self.functions),
            ("--pid", tuple(map(str, self.pids))),
        ):
            if values:
                found += [option, ",".join(values)]
        for option, on in (
            ("--tpm", self.tpm),
            ("--ima", self.ima),
            ("--all", self.everything),
            ("--no-syscalls", not self.syscalls),
            ("--no-interruptions", not self.interruptions),
            ("--time-interruptions", self.interruptions),
        ):
            if on:
                found.append(option)
        if self.backend is not None:
            found += ["--backend", self.backend]
        if self.duration_s is not None:
            found += ["--duration", f"{self.duration_s:g}"]
        return found


def run_trace(
    request: TraceRequest, *, folder: Path, command: Sequence[str] = (), states: Path = STATES
) -> int:
    """Trace, and return the exit code: the command's, or 130 where a signal ended the trace early.

    The trace, the calibration's trace and the summary are in the folder then. A signal to this
    process reaches the probe, which puts everything back before it ends.

    Args:
        request: What to trace.
        folder: Where the probe writes.
        command: The command; none to trace processes that run.
        states: Where the probe says what it has to put back.

    Raises:
        HostError: If this kernel cannot trace, or a tracer is in use; nothing was changed then.
        UsageError: If nothing is called as asked for, or a process is not there.
    """
    errors = folder / "trace.errors"
    words = [probe_path(), "trace", *request.words(folder, states=states)]
    words += ["--messages", str(errors)]
    if command:
        words += ["--", *command]
    code = _wait(subprocess.Popen(words))
    reason = errors.read_text(errors="replace").strip() if errors.is_file() else ""
    errors.unlink(missing_ok=True)
    if not has_summary(folder):
        kind: type[ExciseError] = UsageError if code == 2 else HostError
        raise kind(reason or f"the tracer ended with code {code}", source="excise-probe trace")
    return code


def has_summary(folder: Path) -> bool:
    """Return whether a trace into a folder came to its end."""
    return _is_written(folder / SUMMARY)


def _is_written(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for the probe to put everything back, whatever signal comes meanwhile."""

    def forward(number: int, _frame: FrameType | None) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                # The terminal has sent it to the probe, too; a signal more does no harm.
                process.send_signal(signal.SIGINT)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def restore(*, states: Path = STATES) -> int:
    """Put back what traces that were killed have left; return how many there were.

    Raises:
        HostError: If something cannot be put back; it is named.
    """
    return int(ask_probe("trace", "--states", str(states), "--restore")["restored"])


def catalogue(kernel: Path | None = None) -> dict[str, object]:
    """Return a kernel's hooks: name, group, the function that calls the modules, and its callers.

    The function is None where it cannot be traced. The callers are those that the kernel's text
    calls it from; None where the text cannot be read.

    Args:
        kernel: A `vmlinux` with its symbols; the running kernel if None.

    Raises:
        HostError: If the kernel does not tell.
    """
    of = [] if kernel is None else ["--kernel", str(kernel)]
    found: dict[str, object] = ask_probe("trace", "--catalogue", *of)
    return found


def start_monitor(request: TraceRequest, *, states: Path = STATES) -> Path:
    """Start a trace of the whole system that goes on until `stop_monitor`; return its folder.

    Raises:
        HostError: If it cannot start.
    """
    folder = states / _MONITOR
    if folder.exists() and _alive(folder):
        raise HostError("is started already", source=str(folder), hint="Stop it first")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (TRACE, CALIBRATION, SUMMARY):
        (folder / name).unlink(missing_ok=True)
    words = [probe_path(), "trace", *request.words(folder, states=states)]
    with (folder / "errors").open("wb") as errors:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
    (folder / "pid").write_text(f"{process.pid} {_start_ticks(process.pid) or 0}\n")
    end = time.monotonic() + _PATIENCE_S
    while time.monotonic() < end:
        if process.poll() is not None:
            reason = (folder / "errors").read_text(errors="replace").strip()
            raise HostError(reason.removeprefix("excise-probe: ") or "the tracer ended at once")
        if _is_written(folder / TRACE):
            return folder
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    raise HostError(f"nothing was traced within {_PATIENCE_S:g} s", source=str(folder))


def stop_monitor(*, states: Path = STATES) -> Path:
    """Stop the trace that `start_monitor` began, and return the folder that it is in.

    It can be stopped again, as long as it is not forgotten: what it gave is still there.

    Raises:
        HostError: If none was started, or it does not end.
    """
    folder = states / _MONITOR
    if not (folder / "pid").is_file():
        raise HostError(
            "nothing was started", source=str(folder), hint="excise trace --lsmpmon start"
        )
    if _alive(folder):
        os.kill(_pid(folder), signal.SIGINT)
    end = time.monotonic() + _PATIENCE_S
    while _alive(folder) and time.monotonic() < end:
        time.sleep(0.02)
    if _alive(folder):
        raise HostError(f"did not end within {_PATIENCE_S:g} s", source=f"process {_pid(folder)}")
    if not has_summary(folder):
        forget_monitor(states=states)
        reason = (folder / "errors").read_text(errors="replace").strip()
        raise HostError(
            reason or "it was killed", source=str(folder), hint="excise trace --restore"
        )
    return folder


def forget_monitor(*, states: Path = STATES) -> None:
    """Forget the trace that was stopped, once what it gave is out."""
    (states / _MONITOR / "pid").unlink(missing_ok=True)


def _pid(folder: Path) -> int:
    return int((folder / "pid").read_text().split()[0])


def _alive(folder: Path) -> bool:
    """Return whether the process of a folder's monitor runs; its id may be another's by now."""
    try:
        pid, ticks = (folder / "pid").read_text().split()
    except (OSError, ValueError):
        return False
    return _start_ticks(int(pid)) == int(ticks)


def _start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it has ended."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
