"""The client of the native launcher: requests in, journal lines out.

The launcher starts, measures and journals each run itself: Python is not the child's parent (its
memory would count as the child's) and not in the path between two runs (its time would count as
overhead). Requests are sent ahead, within a bound, so that the launcher never waits.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import msgspec

from excise.capture.journal import Run, RunHead
from excise.collect.probe import probe_path
from excise.errors import ExciseError, HostError

# Bytes of requests sent but not answered: below a pipe's capacity, so that neither side blocks.
AHEAD_BYTES: Final = 32_768
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

    def __init__(self, *, journal_fd: int, sync: bool, environment: Mapping[str, str]) -> None:
        words = [probe_path(), "launch", "--journal-fd", str(journal_fd)]
        self._process = subprocess.Popen(
            [*words, "--sync"] if sync else words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(journal_fd,),
        )
        self._send({"op": "environment", "env": dict(environment)})

    def run(self, launches: Iterable[Launch]) -> Iterator[Run]:
        """Start and measure each launch in order; yield each run when its line is on disk.

        Raises:
            HostError: If a set-up or tear-down command fails, or the launcher ends.
        """
        waiting: deque[tuple[int, Exec | None]] = deque()
        ahead = 0
        for launch in launches:
            for request, step in _requests(launch):
                line = _encode(request) + b"\n"
                while waiting and ahead + len(line) > AHEAD_BYTES:
                    ahead -= waiting[0][0]
                    yield from self._answer(waiting.popleft()[1])
                self._write(line)
                waiting.append((len(line), step))
                ahead += len(line)
        while waiting:
            yield from self._answer(waiting.popleft()[1])

    def execute(self, step: Exec) -> ExecResult:
        """Run one unmeasured command and return how it ended."""
        self._send(_exec_request(step))
        return msgspec.json.decode(self._line(), type=ExecResult)

    def stop(self) -> list[Run]:
        """Let the run in progress finish, drop what is queued, and return the runs not yet seen."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        assert self._process.stdout is not None
        lines = [line for line in self._process.stdout if line.startswith(b'{"kind":"run"')]
        self._process.wait()
        return [msgspec.json.decode(line, type=Run) for line in lines if line.endswith(b"}\n")]

    def close(self) -> None:
        """End the launcher: at once if something is still running, else by closing its input."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self.close()

    def _answer(self, step: Exec | None) -> Iterator[Run]:
        line = self._line()
        if step is None:
            yield msgspec.json.decode(line, type=Run)
            return
        result = msgspec.json.decode(line, type=ExecResult)
        if not result.ok:
            reason = result.error or f"exit code {result.exit_code}"
            raise HostError(
                f"a set-up or tear-down command failed: {reason}. {result.stderr.strip()}".rstrip(
                    ". "
                ),
                source=" ".join(step.argv),
                hint="The runs before it are kept; run again to resume",
            )

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
            reason = msgspec.json.decode(line).get("reason", "unknown")
            raise ExciseError(
                f"the launcher refused a request: {reason}", source="excise-probe launch"
            )
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


def _requests(launch: Launch) -> Iterator[tuple[dict[str, Any], Exec | None]]:
    for step in launch.before:
        yield _exec_request(step), step
    stdout = launch.stdout if launch.stdout in ("discard", "probe") else {"file": launch.stdout}
    yield (
        {
            "op": "run",
            "head": _encode(launch.head).decode()[:-1],
            "argv": launch.argv,
            "env": launch.environment,
            "unset": launch.unset,
            "cwd": launch.directory,
            "timeout_ns": launch.timeout_ns,
            "expect": launch.expect,
            "stdout": stdout,
            "counters": launch.counters,
        },
        None,
    )
    for step in launch.after:
        yield _exec_request(step), step


def _exec_request(step: Exec) -> dict[str, Any]:
    return {
        "op": "exec",
        "id": 0,
        "argv": step.argv,
        "env": step.environment,
        "unset": step.unset,
        "cwd": step.directory,
        "timeout_ns": step.timeout_ns,
        "expect": step.expect,
    }
