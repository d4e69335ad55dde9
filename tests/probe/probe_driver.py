"""Helpers of the probe's tests: a launcher to talk to, requests, and questions about processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from ended import PATIENCE_S, wait_until
from excise.collect.probe import PROBE


class LauncherProcess:
    """A running launcher, one request and one answer at a time."""

    def __init__(self, *options: str, pass_fds: tuple[int, ...] = ()) -> None:
        self.process = subprocess.Popen(
            [PROBE, "launch", *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )

    def send(self, *requests: dict[str, Any]) -> None:
        """Send requests without waiting for their answers."""
        assert self.process.stdin is not None
        self.process.stdin.write("".join(json.dumps(request) + "\n" for request in requests))
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send one request and return its answer."""
        self.send(request)
        return self.answer()

    def end(self) -> tuple[int, list[dict[str, Any]]]:
        """Close the input, and return the exit code and the answers not read before."""
        out, _ = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()]


def run_request(*argv: str, head: str = '{"kind":"run"', **members: Any) -> dict[str, Any]:
    """Return a request to measure a command."""
    return {"op": "run", "head": head, "argv": list(argv), **members}


def exec_request(*argv: str, identity: int = 0, **members: Any) -> dict[str, Any]:
    """Return a request to run a command unmeasured."""
    return {"op": "exec", "id": identity, "argv": list(argv), **members}


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is no zombie."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def is_pending(pid: int, number: int) -> bool:
    """Tell whether a signal was sent to a process that has not taken it yet."""
    status = Path(f"/proc/{pid}/status").read_text()
    lines = [line.split() for line in status.splitlines()]
    masks = [line[1] for line in lines if line[0] in ("SigPnd:", "ShdPnd:")]
    return any(int(mask, 16) >> (number - 1) & 1 for mask in masks)


def read_pids(path: Path, count: int) -> list[int]:
    """Return the process ids that a command has written to a file, once all are there."""
    wait_until(lambda: path.exists() and path.read_text().endswith("\n"))
    found = [int(word) for word in path.read_text().split()]
    assert len(found) == count
    return found
