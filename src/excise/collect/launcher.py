"""The client of the native launcher: requests in, journal lines out.

The launcher starts, measures and journals each run itself: Python is not the child's parent (its
memory would count as the child's) and not in the path between two runs (its time would count as
overhead). Requests are sent ahead, within a bound, so that the launcher never waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Self

import msgspec

from excise.capture.journal import Run, RunHead
from excise.collect.probe import probe_path
from excise.errors import ExciseError, HostError

_encode: Final = msgspec.json.Encoder().encode


class Exec(msgspec.Struct, frozen=True, kw_only=True):
    """A command to run unmeasured: set-up, tear-down, or a look at the machine."""

    argv: Sequence[str]
    environment: Mapping[str, str] = {}
    unset: Sequence[str] = ()
    directory: str | None = None
    timeout_ns: int | None = None
    expect: Sequence[int] = (0,)


class ExecResult(msgspec.Struct, frozen=True, kw_only=True):
    """How an unmeasured command ended; outputs are the last bytes, as text."""

    ok: bool
    exit_code: int | None = None
    timed_out: bool = False
    stdout: str = ""
    stderr: str = ""
    error: str | None = None


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """A run to start and measure.

    Attributes:
        environment: Variables added to the base environment.
        timeout_ns: Longest the run may take, in nanoseconds.
        expect: Exit codes that count as success.
        stdout: `discard`, `probe` (one JSON line, kept in the journal), or a file to keep it in.
        counters: Whether to ask for instructions and cycles.
        before: Unmeasured commands that must succeed before the run.
        after: Unmeasured commands after the run.
    """

    head: RunHead
    argv: Sequence[str]
    environment: Mapping[str, str] = {}
    unset: Sequence[str] = ()
    directory: str | None = None
    timeout_ns: int | None = None
    expect: Sequence[int] = (0,)
    stdout: str = "discard"
    counters: bool = True
    before: Sequence[Exec] = ()
    after: Sequence[Exec] = ()


class Launcher:
    """A running launcher process that appends to one journal."""

    def __init__(
        self, *, journal_fd: int, sync_interval_ns: int | None, environment: Mapping[str, str]
    ) -> None:
        _require_text(environment)
        words = [probe_path(), "launch", "--journal-fd", str(journal_fd)]
        if sync_interval_ns is not None:
            words += ["--sync-interval-ms", str(sync_interval_ns // 1_000_000)]
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(journal_fd,),
            start_new_session=True,  # a terminal's Ctrl-C is for us alone
        )
        assert self._process.stdin is not None
        # Requests sent but not answered fill half a pipe at most, so that neither side blocks.
        self._ahead_bytes = fcntl.fcntl(self._process.stdin, fcntl.F_GETPIPE_SZ) // 2
        self._unsent: list[bytes] = []
        self._waiting: deque[int] = deque()  # bytes of each request not yet answered
        self._waiting_bytes = 0
        self._send({"op": "environment", "env": dict(environment)})

    def run(self, launches: Iterable[Launch]) -> Iterator[Run]:
        """Start and measure each launch in order; yield each run when its line is written.

        Nothing is sent ahead over an unmeasured command: a run whose set-up failed must not start.

        Raises:
            HostError: If a set-up or tear-down command fails, or the launcher ends.
        """
        for launch in launches:
            if launch.before:
                yield from self._answers()
                self.require(launch.before)
            line = _encode(run_request(launch)) + b"\n"
            if self._waiting and self._waiting_bytes + len(line) > self._ahead_bytes:
                # Half is left to be answered while the next half is put together.
                yield from self._answers(leave_bytes=self._ahead_bytes // 2)
            self._queue(line)
            if launch.after:
                yield from self._answers()
                self.require(launch.after)
        yield from self._answers()

    def _queue(self, line: bytes) -> None:
        """Put a run's request behind those that wait; it is sent when an answer is waited for."""
        self._unsent.append(line)
        self._waiting.append(len(line))
        self._waiting_bytes += len(line)

    def _answers(self, *, leave_bytes: int = 0) -> Iterator[Run]:
        """Yield runs that end, until requests of so many bytes are left waiting, or none."""
        self._write(b"".join(self._unsent))
        self._unsent.clear()
        while self._waiting and self._waiting_bytes > leave_bytes:
            line = self._line()
            self._waiting_bytes -= self._waiting.popleft()
            yield msgspec.json.decode(line, type=Run)

    def require(self, steps: Sequence[Exec]) -> None:
        """Run unmeasured commands one after the other.

        Raises:
            HostError: If one fails; those after it were not run.
        """
        for step in steps:
            result = self.execute(step)
            if not result.ok:
                raise failed_step(step, result)

    def execute(self, step: Exec) -> ExecResult:
        """Run one unmeasured command and return how it ended."""
        self._send(exec_request(step))
        return msgspec.json.decode(self._line(), type=ExecResult)

    def stop(self) -> list[Run]:
        """Let the run in progress finish, drop what is queued, and return the runs not yet seen.

        Called a second time, it ends the run in progress too.
        """
        self._ask_to_end()
        assert self._process.stdout is not None
        lines = [line for line in self._process.stdout if line.startswith(b'{"kind":"run"')]
        self._process.wait()
        return [msgspec.json.decode(line, type=Run) for line in lines if line.endswith(b"}\n")]

    def close(self) -> None:
        """End the launcher by closing its input; asked twice, it ends what is still running."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        for end in (self._ask_to_end, self._process.kill):
            try:
                self._process.wait(timeout=5)
                break
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._ask_to_end()
        self.close()

    def _ask_to_end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def _send(self, request: dict[str, Any]) -> None:
        self._write(_encode(request) + b"\n")

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._ended() from error

    def _line(self) -> bytes:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended()
        if line.startswith(b'{"kind":"error"'):
            raise refusal(line, source="excise-probe launch")
        return line

    def _ended(self) -> HostError:
        self._process.wait()
        assert self._process.stderr is not None
        said = self._process.stderr.read().decode(errors="replace").strip()
        return HostError(
            f"the launcher ended early (exit {self._process.returncode})"
            + (f": {said}" if said else ""),
            source="excise-probe launch",
            hint="Complete runs are kept; run again to resume",
        )


def _require_text(environment: Mapping[str, str]) -> None:
    """Refuse variables that are no text: requests are JSON, and a child must not lack any.

    Raises:
        HostError: Naming them.
    """
    wrong = []
    for name, value in environment.items():
        try:
            f"{name}={value}".encode()
        except UnicodeEncodeError:
            wrong.append(ascii(name))
    if wrong:
        raise HostError(
            f"these variables of the environment are not UTF-8 text: {', '.join(wrong)}",
            hint="Unset them, or give them another value",
        )


def refusal(line: bytes, *, source: str) -> ExciseError:
    """Return why the launcher answered with an error; a journal without room is the disk's fault.

    Args:
        line: The launcher's answer, of kind "error".
        source: Which launcher it is.
    """
    reason = msgspec.json.decode(line).get("reason", "unknown")
    if reason.startswith("journal: ") and ("ENOSPC" in reason or "bytes were written" in reason):
        return HostError(
            f"a run could not be written down: the disk of the journal is full ({reason})",
            source=source,
            hint="Free space, then run the same command again to resume",
        )
    return ExciseError(f"the launcher refused a request: {reason}", source=source)


def failed_step(step: Exec, result: ExecResult) -> HostError:
    """Return the error of a set-up or tear-down command that failed."""
    reason = result.error or f"exit code {result.exit_code}"
    if result.timed_out:
        reason = "it took too long"
    said = result.stderr.strip()
    return HostError(
        f"a set-up or tear-down command failed: {reason}" + (f": {said}" if said else ""),
        source=" ".join(step.argv),
        hint="Complete runs are kept; run again to resume",
    )


def run_request(launch: Launch) -> dict[str, Any]:
    """Return the launcher's request of a run."""
    stdout = launch.stdout if launch.stdout in ("discard", "probe") else {"file": launch.stdout}
    return {
        "op": "run",
        "head": _encode(launch.head).decode()[:-1],
        **_command(launch),
        "stdout": stdout,
        "counters": launch.counters,
    }


def exec_request(step: Exec) -> dict[str, Any]:
    """Return the launcher's request of an unmeasured command."""
    return {"op": "exec", "id": 0, **_command(step)}


def _command(command: Launch | Exec) -> dict[str, Any]:
    return {
        "argv": command.argv,
        "env": command.environment,
        "unset": command.unset,
        "cwd": command.directory,
        "timeout_ns": command.timeout_ns,
        "expect": command.expect,
    }
