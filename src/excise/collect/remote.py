"""A machine reached by ssh: commands on it, a program that stays, and a connection that may break.

Only a POSIX shell is asked of the other side; neither SFTP nor Python. The library is asyncssh; its
event loop runs in a thread, so that callers wait as they do for a process of this machine, and an
interrupt reaches the one who waits and not the connection.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from excise.collect.waiting import result_of
from excise.errors import ConnectionLost, HostError

if TYPE_CHECKING:
    import asyncssh

_T = TypeVar("_T")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_ALIVE_PROBES: Final = 3
_MOST_FAILURES: Final = 50
_LONGEST_LINE_BYTES: Final = 8 << 20
_END_PATIENCE_S: Final = 5.0
_STOP_PATIENCE_S: Final = 60.0


class OutOfReach(HostError):  # noqa: N818  it may be reached again
    """The connection was lost, and did not come back for as long as one waits for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshAddress:
    """How a machine is reached. What is None is as the user's ssh configuration has it.

    Attributes:
        host: Its name, its address, or an alias of the configuration.
        identities: Files of private keys.
        known_hosts: File of known host keys.
        check_host_key: Whether an unknown or changed host key is refused.
        config: ssh configuration file; `~/.ssh/config` if it is there.
        connect_timeout_s: Longest that making a connection may take, in seconds.
        keepalive_s: After so many seconds of silence the other side is asked for a sign of life; a
            third question without an answer breaks the connection.
    """

    host: str
    user: str | None = None
    port: int | None = None
    identities: tuple[str, ...] = ()
    known_hosts: str | None = None
    check_host_key: bool = True
    config: str | None = None
    connect_timeout_s: float = 15.0
    keepalive_s: float = 5.0

    def options(self) -> dict[str, Any]:
        """Return the arguments of `asyncssh.connect`."""
        given: dict[str, Any] = {
            "host": self.host,
            "connect_timeout": self.connect_timeout_s,
            "login_timeout": self.connect_timeout_s,
            "keepalive_interval": self.keepalive_s,
            "keepalive_count_max": _ALIVE_PROBES,
        }
        if self.user is not None:
            given["username"] = self.user
        if self.port is not None:
            given["port"] = self.port
        if self.identities:
            given["client_keys"] = [str(Path(each).expanduser()) for each in self.identities]
        if not self.check_host_key:
            given["known_hosts"] = None
        elif self.known_hosts is not None:
            given["known_hosts"] = str(Path(self.known_hosts).expanduser())
        if self.config is not None:
            given["config"] = [str(Path(self.config).expanduser())]
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a command on the other side gave.

    Attributes:
        exit_code: Its exit code; -1 if a signal ended it.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def text(self) -> str:
        """Return standard output as text."""
        return self.stdout.decode(errors="replace")

    @property
    def reason(self) -> str:
        """Return why it failed, in its own words."""
        said = self.stderr.decode(errors="replace").strip().splitlines()
        return said[-1] if said else f"exit code {self.exit_code}"


class RemoteProgram:
    """A program on the other side that is sent lines and answers in lines."""

    def __init__(self, machine: RemoteMachine, process: asyncssh.SSHClientProcess[bytes]) -> None:
        self._machine = machine
        self._process = process

    def send(self, line: bytes) -> None:
        """Send a line.

        Raises:
            ConnectionLost: If the connection broke.
        """
        self._machine.call(self._send(line))

    def receive(self) -> Future[bytes]:
        """Return the next line, with its end, once it has come; b"" if the program ended."""
        return self._machine.begin(self._receive())

    def end_input(self) -> None:
        """Close the program's input."""
        self._machine.call(self._end_input())

    def said(self) -> str:
        """Return what an ended program wrote on standard error."""
        return self._machine.call(self._stderr())

    async def _send(self, line: bytes) -> None:
        self._process.stdin.write(line)
        await self._process.stdin.drain()

    async def _receive(self) -> bytes:
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n") and self._process.exit_status is None:
            # The channel's end and the connection's end look alike for a moment.
            await asyncio.wait_for(self._process.wait_closed(), _END_PATIENCE_S)
            if self._process.exit_status is None and self._process.exit_signal is None:
                raise ConnectionLost("the connection broke", source=self._machine.name)
        return line

    async def _end_input(self) -> None:
        self._process.stdin.write_eof()

    async def _stderr(self) -> str:
        return (await self._process.stderr.read()).decode(errors="replace").strip()


class RemoteMachine:
    """A machine and the connection to it, which is made again when it broke.

    Attributes:
        name: How messages call it.
        connection: Number of the connection, from 1; each new one has another.
    """

    def __init__(
        self,
        address: SshAddress,
        *,
        patience_s: float = 600.0,
        on_wait: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Start the thread that serves the connection; nothing is connected yet.

        Args:
            address: Where it is.
            patience_s: For how long a lost connection is tried again, in seconds.
            on_wait: Called with a few words when a connection is lost, and when it is back.

        Raises:
            HostError: If asyncssh is not installed.
        """
        try:
            import asyncssh
        except ImportError as error:
            raise HostError(
                "asyncssh is not installed", hint="pip install 'excise[remote]'"
            ) from error
        self._ssh = asyncssh
        self.address = address
        self.name = address.host
        self._patience_s = patience_s
        self._on_wait = on_wait
        self._connection: asyncssh.SSHClientConnection | None = None
        self.connection = 0
        self._given_up = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ssh", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Begin work on the connection's thread; its faults are ConnectionLost or HostError."""
        return asyncio.run_coroutine_threadsafe(self._guarded(work), self._loop)

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work on the connection's thread and wait for it."""
        future = self.begin(work)
        try:
            return result_of(future)
        except BaseException:
            future.cancel()
            raise

    def connect(self) -> None:
        """Connect, once.

        Raises:
            ConnectionLost: If it may work later.
            HostError: If it will not: the host key or our own is refused.
        """
        self.call(self._connect())

    def reconnect(self, *, patience_s: float | None = None) -> None:
        """Connect, over and over with growing pauses.

        Args:
            patience_s: For how long, in seconds; as given at first when None.

        Raises:
            HostError: If it will not work, or has not for so long.
        """
        patience_s = self._patience_s if patience_s is None else patience_s
        deadline = time.monotonic() + patience_s
        pause_s = _FIRST_PAUSE_S
        self._on_wait("connection lost")
        while True:
            try:
                self.connect()
                break
            except ConnectionLost as error:
                if time.monotonic() + pause_s > deadline:
                    raise OutOfReach(
                        f"the connection was lost and did not come back in {patience_s:.0f} s "
                        f"({error.reason})",
                        source=self.name,
                        hint="Complete runs are kept; run again to resume",
                    ) from error
            if self._given_up.wait(pause_s):
                raise HostError("the connection was lost", source=self.name)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        self._on_wait("connected")

    def insist(self, work: Callable[[], _T], *, patience_s: float | None = None) -> _T:
        """Do work that may be done twice, over as many connections as it takes.

        Args:
            work: What is done.
            patience_s: For how long a lost connection is tried again; as given at first when None.
        """
        for failures in range(_MOST_FAILURES):
            try:
                if not self.connected:
                    self.reconnect(patience_s=patience_s)
                return work()
            except ConnectionLost as error:
                last = error
                if failures:
                    self._given_up.wait(min(failures * _FIRST_PAUSE_S, _LONGEST_PAUSE_S))
        raise HostError(
            f"the connection broke {_MOST_FAILURES} times in a row over one step ({last.reason})",
            source=self.name,
            hint="Complete runs are kept; run again to resume",
        )

    def give_up(self) -> None:
        """Try a lost connection no more; one that stands is left as it is."""
        self._given_up.set()

    @property
    def connected(self) -> bool:
        """Tell whether there is a connection, as far as is known."""
        return self._connection is not None

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        """Run a shell script on the machine and wait for its end.

        Raises:
            ConnectionLost: If the connection broke, or nothing came back in time.
        """
        return self.call(self._run(script, stdin, timeout_s))

    def require(self, script: str, *, what: str, stdin: bytes = b"", hint: str = "") -> Output:
        """Run a script that must succeed.

        Args:
            script: What is run.
            what: What was to be done, for the error.
            stdin: Its input.
            hint: What the reader of the error can do.

        Raises:
            HostError: If its exit code is not 0; its own words are the reason.
        """
        done = self.run(script, stdin=stdin)
        if done.exit_code != 0:
            raise HostError(f"{what} failed: {done.reason}", source=self.name, hint=hint or None)
        return done

    def program(self, script: str) -> RemoteProgram:
        """Start a program that stays."""
        return RemoteProgram(self, self.call(self._start(script)))

    def write_file(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write a file, in place of the one there in one step."""
        new = shlex.quote(path + ".new")
        script = f"umask 077; cat >{new} && chmod {mode:o} {new} && mv {new} {shlex.quote(path)}"
        self.require(script, what=f"writing {path}", stdin=data)

    def read_file(self, path: str) -> bytes | None:
        """Return a file's bytes, or None if it is not there or not readable."""
        done = self.run(f"cat {shlex.quote(path)}")
        return done.stdout if done.exit_code == 0 else None

    def close(self) -> None:
        """Drop the connection and end its thread."""
        ended = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        with suppress(TimeoutError):
            ended.result(_END_PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_PATIENCE_S)
        if not self._thread.is_alive():
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def _guarded(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do work; whatever says that the connection broke becomes one kind of error."""
        ssh = self._ssh
        try:
            return await work
        except ssh.HostKeyNotVerifiable as error:
            port = f"-p {self.address.port} " if self.address.port else ""
            scan = f"ssh-keyscan -H {port}{self.name}"
            raise HostError(
                f"its host key is not known, or not the known one ({error.reason})",
                source=self.name,
                hint=f"Compare its fingerprint, then add it to known_hosts: {scan}",
            ) from error
        except ssh.PermissionDenied as error:
            raise HostError(
                f"refused to log us in ({error.reason})",
                source=self.name,
                hint="Load the key into ssh-agent, or name it: identities = [...]",
            ) from error
        except (ssh.KeyImportError, ssh.ConfigParseError) as error:
            raise HostError(f"cannot be used: {error}", source=self.name) from error
        except ConnectionLost:
            self._drop()
            raise
        except (ssh.Error, OSError, TimeoutError) as error:
            self._drop()
            reason = _reason(error)
            if isinstance(error, OSError) and error.filename is not None:
                raise HostError(
                    f"cannot be read ({reason})",
                    source=str(error.filename),
                    hint="identities, known_hosts and config of [target] are files of this machine",
                ) from error
            raise ConnectionLost(reason, source=self.name, hint=self._hint()) from error

    def _hint(self) -> str | None:
        """Return what to try where no connection was ever made; a lost one is no riddle."""
        if self.connection:
            return None
        port = f"-p {self.address.port} " if self.address.port else ""
        user = f"{self.address.user}@" if self.address.user else ""
        return f"Does `ssh {port}{user}{self.address.host}` work?"

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    async def _end(self) -> None:
        """Wait until nothing of any connection is left on the loop."""
        self._drop()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if others:
            await asyncio.wait(others, timeout=_END_PATIENCE_S / 2)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0)  # transports close in a turn of their own

    async def _connect(self) -> None:
        self._drop()
        self._connection = await self._ssh.connect(**self.address.options())
        self.connection += 1

    async def _start(self, script: str) -> asyncssh.SSHClientProcess[bytes]:
        if self._connection is None:
            raise ConnectionLost("not connected", source=self.name)
        # The user's own shell may be any.
        return await self._connection.create_process(
            f"exec /bin/sh -c {shlex.quote(script)}",
            encoding=None,
            max_pktsize=32_768,
            window=_LONGEST_LINE_BYTES,
        )

    async def _run(self, script: str, stdin: bytes, timeout_s: float) -> Output:
        process = await self._start(script)
        try:
            out, err = await asyncio.wait_for(process.communicate(stdin), timeout_s)
        except TimeoutError:
            process.close()
            raise ConnectionLost(f"no answer in {timeout_s:.0f} s", source=self.name) from None
        if process.exit_status is None:
            raise ConnectionLost("the connection broke", source=self.name)
        return Output(
            exit_code=process.exit_status, stdout=bytes(out or b""), stderr=bytes(err or b"")
        )


def _reason(error: Exception) -> str:
    """Return why a connection broke, in words; asyncio's own are about its calls."""
    if isinstance(error, OSError) and error.errno and error.errno > 0:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
