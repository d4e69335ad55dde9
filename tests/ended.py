"""Processes that a test starts are gone when it ends, however it ends; and waiting with patience.

A guest, a server or a launcher that a failed test leaves behind makes other tests fail, and a
patience of seconds fails on a machine that is busy with something else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

PATIENCE_S = 120.0
_Text = TypeVar("_Text", str, bytes)


@contextmanager
def ended(
    process: subprocess.Popen[_Text], *, by: signal.Signals = signal.SIGTERM, group: bool = False
) -> Iterator[subprocess.Popen[_Text]]:
    """Yield a process; on the way out it is asked to end, then made to, and its pipes are closed.

    Args:
        process: Just started.
        by: Signal that asks it.
        group: Whether what it started is killed as well; it leads a session of its own then.
    """
    try:
        yield process
    finally:
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                with suppress(OSError):  # what was never read by a process that is gone
                    stream.close()
        if process.poll() is None:
            process.send_signal(by)
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S)
        if group:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # does nothing to one that has ended
        process.wait()


def wait_until(
    holds: Callable[[], object],
    *,
    beside: subprocess.Popen[_Text] | None = None,
    patience_s: float = PATIENCE_S,
    what: str = "",
) -> None:
    """Wait until something holds, however busy the machine is.

    Args:
        holds: What is asked over and over.
        beside: A process without which it can never hold.
        patience_s: Longest to wait, in seconds.
        what: What is waited for, for the failure.
    """
    deadline = time.monotonic() + patience_s
    while not holds():
        code = beside.poll() if beside is not None else None
        assert code is None or holds(), f"ended with {code} before {what or 'it held'}"
        assert time.monotonic() < deadline, f"waited in vain for {what or 'it'}"
        time.sleep(0.01)
