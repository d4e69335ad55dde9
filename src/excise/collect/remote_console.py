"""A console: a serial port, or a program that yields lines. Bytes come in with the time they came.

A thread reads; the one who waits looks for a pattern in what has come. Nothing is thrown away
before it was looked at.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Self

from excise.errors import HostError

MOST_BYTES: Final = 64 << 20
_CHUNK_BYTES: Final = 65_536
_LOOK_S: Final = 0.2
END_PATIENCE_S: Final = 2.0
_SETTLE_S: Final = 5.0
_QUIET_S: Final = 0.4


class ProgramLine:
    """A program's standard output, error and input."""

    def __init__(self, command: Sequence[str]) -> None:
        """Start it.

        Raises:
            HostError: If it cannot be started.
        """
        self.name = command[0]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                bufsize=0,
                start_new_session=True,  # a terminal's Ctrl-C is for us alone
            )
        except OSError as error:
            raise HostError(f"cannot be started ({error.strerror})", source=self.name) from error

    def read(self) -> bytes | None:
        """Return what the program wrote; None once it has closed its output."""
        assert self._process.stdout is not None
        return os.read(self._process.stdout.fileno(), _CHUNK_BYTES) or None

    def write(self, data: bytes) -> None:
        """Send bytes to the program."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(data)
        except BrokenPipeError as error:
            raise HostError("has ended and takes no more input", source=self.name) from error

    def close(self, patience_s: float) -> int | None:
        """Close its input, wait so long for its end, then end it; return its exit code."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        for number in (0, signal.SIGTERM, signal.SIGKILL):
            if number:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_PATIENCE_S if number else patience_s)
                break
        return process.wait()

    def release(self) -> None:
        """Close our end of its output, once nobody reads it any more."""
        assert self._process.stdout is not None
        self._process.stdout.close()


class SerialLine:
    """A serial port, or what pyserial opens by URL: `socket://`, `rfc2217://`."""

    def __init__(self, port: str, *, baud: int) -> None:
        """Open it with eight data bits, no parity, one stop bit.

        Raises:
            HostError: If pyserial is missing, or the port cannot be opened.
        """
        try:
            import serial
        except ImportError as error:
            raise HostError(
                "pyserial is not installed", hint="pip install 'excise[remote]'"
            ) from error
        self.name = port
        self._fault: type[Exception] = serial.SerialException
        try:
            self._port: Any = serial.serial_for_url(port, baudrate=baud, timeout=_LOOK_S)
        except (serial.SerialException, ValueError) as error:
            raise HostError(
                f"cannot be opened: {error}", source=port, hint="Is another program using it?"
            ) from error

    def read(self) -> bytes | None:
        """Return what has come, b"" for nothing yet; None when the port has gone."""
        try:
            return bytes(self._port.read(max(1, self._port.in_waiting)))
        except (self._fault, OSError, TypeError):
            return None  # unplugged, or closed by us

    def write(self, data: bytes) -> None:
        """Send bytes."""
        try:
            self._port.write(data)
            self._port.flush()
        except (self._fault, OSError) as error:
            raise HostError(f"cannot be written: {error}", source=self.name) from error

    def close(self, patience_s: float) -> int | None:  # noqa: ARG002  a port has no end
        """Close the port."""
        self._port.close()
        return None

    def release(self) -> None:
        """Do nothing: closing was all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What came until something was found.

    Attributes:
        data: All bytes since the last one that was taken, the found text's line included.
        match: What was found; None at the end of the line, of patience, or when told to stop.
        at_ns: When the last of these bytes came, on CLOCK_MONOTONIC.
        ended: Whether the line came to its end.
    """

    data: bytes
    match: re.Match[bytes] | None
    at_ns: int
    ended: bool


class Console:
    """A line that is listened to from its opening to its closing."""

    def __init__(self, line: ProgramLine | SerialLine) -> None:
        self.name = line.name
        self._line = line
        self._news = threading.Condition()
        self._bytes = bytearray()
        self._at_ns = 0
        self._ended = False
        self._closing = False
        self._thread = threading.Thread(target=self._listen, name="console", daemon=True)
        self._thread.start()

    def send(self, text: str, *, newline: str = "\n") -> int:
        """Send a line of text; return when it was sent, in nanoseconds of CLOCK_MONOTONIC."""
        self._line.write((text + newline).encode())
        return time.monotonic_ns()

    def wait_for(
        self,
        pattern: re.Pattern[bytes] | None,
        *,
        timeout_s: float,
        whole_lines: bool = True,
        skip: bytes = b"",
        stop: Callable[[], bool] = lambda: False,
    ) -> Heard:
        """Listen until a pattern is found, and take what has come up to the end of its line.

        Args:
            pattern: What is looked for; None listens to the end.
            timeout_s: Patience in seconds.
            whole_lines: Whether only lines that have ended count; a prompt never ends.
            skip: Text of a first line that is the echo of what was sent, and no answer.
            stop: Asked every now and then whether to give up.

        Raises:
            HostError: If more comes than can be kept.
        """
        deadline = time.monotonic() + timeout_s
        with self._news:
            while True:
                start = _after_echo(self._bytes, skip)
                end = self._bytes.rfind(b"\n") + 1 if whole_lines else len(self._bytes)
                if self._ended:
                    end = len(self._bytes)
                found = pattern.search(bytes(self._bytes[:end]), start) if pattern else None
                left = deadline - time.monotonic()
                if found is not None and (left <= 0 or not self._hears_echo(skip)):
                    line_end = self._bytes.find(b"\n", max(found.start(), found.end() - 1)) + 1
                    return self._take(start, line_end or len(self._bytes), found)
                if self._ended or left <= 0 or stop():
                    return self._take(start, len(self._bytes), None)
                if len(self._bytes) > MOST_BYTES:
                    raise HostError(
                        f"printed more than {MOST_BYTES >> 20} MiB in one run", source=self.name
                    )
                self._news.wait(min(left, _LOOK_S))

    def discard(self) -> bytes:
        """Take what has come so far: it belongs to nothing that is measured."""
        with self._news:
            return self._take(0, len(self._bytes), None).data

    def settle(self) -> None:
        """Take what comes until nothing has come for a moment."""
        deadline = time.monotonic() + _SETTLE_S
        while time.monotonic() < deadline:
            self.discard()
            with self._news:
                if not self._news.wait(_QUIET_S):
                    return

    def close(self, *, patience_s: float = END_PATIENCE_S) -> int | None:
        """Close the line; return the exit code where it is a program.

        Args:
            patience_s: How long a program may take to end by itself.
        """
        self._closing = True
        code = self._line.close(patience_s)
        self._thread.join(END_PATIENCE_S)
        self._line.release()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _hears_echo(self, echo: bytes) -> bool:
        """Tell whether the echo of what was sent is still coming: it may look like a prompt."""
        is_part = b"\n" not in self._bytes and echo.strip().startswith(self._bytes.strip())
        return is_part and time.monotonic_ns() - self._at_ns < _QUIET_S * 1e9

    def _take(self, start: int, end: int, match: re.Match[bytes] | None) -> Heard:
        data = bytes(self._bytes[start:end])
        del self._bytes[:end]
        return Heard(data=data, match=match, at_ns=self._at_ns, ended=self._ended)

    def _listen(self) -> None:
        while not self._closing:
            try:
                data = self._line.read()
            except OSError:
                data = None
            now_ns = time.monotonic_ns()
            with self._news:
                if data is None:
                    self._ended = True
                elif data:
                    self._bytes += data
                if data is None or data:
                    self._at_ns = now_ns
                    self._news.notify_all()
            if data is None:
                return


def _after_echo(data: bytearray, echo: bytes) -> int:
    """Return where the answer begins: after a first line that repeats what was sent."""
    if not echo:
        return 0
    first, newline, _ = bytes(data[: len(echo) + 256]).partition(b"\n")
    return len(first) + 1 if newline and first.strip().endswith(echo.strip()) else 0
