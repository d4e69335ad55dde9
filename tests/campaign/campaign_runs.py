"""Campaigns as real processes: started, watched, killed, and looked at afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from ended import PATIENCE_S, wait_until
from excise.campaign.spec import Campaign, Configuration, Task
from excise.capture.journal import Loss, Record, Run, Session, decode
from excise.capture.store import JOURNAL

MARK = "EXCISE_TEST_MARK"
# Prints the number of every run that excise calls complete, at once; an interrupt that it has
# noticed leaves a file.
DRIVER = """
import sys, msgspec
from pathlib import Path
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign
campaign = msgspec.json.decode(sys.argv[2], type=Campaign)
run_campaign(
    campaign,
    Path(sys.argv[1]),
    on_progress=lambda p: print(p.run.sequence, flush=True),
    on_interrupt=Path(sys.argv[1] + ".interrupted").touch,
)
"""


def small_campaign(marks: Path, *, blocks: int = 20) -> Campaign:
    """Return a campaign whose every run leaves a line in a file, whatever the journal says."""
    return Campaign(
        title="kills",
        configurations=[
            Configuration(name="none"),
            Configuration(name="b", environment={"B": "1"}),
        ],
        tasks=[
            Task(name="one", command=["sh", "-c", f"echo 1 >> {marks}"], counters=False),
            Task(name="two", command=["sh", "-c", f"echo 2 >> {marks}; sleep 0.004"]),
        ],
        blocks=blocks,
        warmup=1,
        seed=7,
        sync_interval="never",
    )


class RunningCampaign:
    """A campaign running in a process of its own; at the latest after a `with` nothing is left."""

    def __init__(self, campaign: Campaign, capture: Path) -> None:
        self.mark = uuid.uuid4().hex
        self.interrupted = capture.with_name(f"{capture.name}.interrupted")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(capture), msgspec.json.encode(campaign).decode()],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, MARK: self.mark},
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()  # does nothing to one that has ended
        self.process.communicate()
        while left := processes_with(self.mark):
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def interrupt(self, *, times: int = 1) -> None:
        """Send SIGINT so often, each when the one before was noticed: two at once are one."""
        for number in range(times):
            if number:
                time.sleep(0.3)  # it says so a moment before it is done with it
            self.process.send_signal(signal.SIGINT)
            wait_until(self.interrupted.exists, beside=self.process, what="the interrupt")

    def finish(self) -> tuple[list[int], str]:
        """Wait for the end; return the runs it called complete, and what it said went wrong."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return [int(word) for word in out.split()], err.decode()

    def wait_until_nothing_is_left(self) -> None:
        """Fail if a process that the session started outlives it."""
        wait_until(lambda: not processes_with(self.mark), what="the end of all it started")


def processes_with(mark: str) -> dict[int, str]:
    """Return the command lines of live processes that carry a mark in their environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment:
            found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def records(capture: Path, *, killed: bool = False) -> list[Record]:
    """Return every record of a journal that consists of whole lines.

    Args:
        capture: Where it is.
        killed: Whether its last line may be torn: the kernel ends a write between two pages when
            the writer is killed.
    """
    data = (capture / JOURNAL).read_bytes()
    if killed:
        data = data[: data.rfind(b"\n") + 1]
    assert data.endswith(b"\n") or (killed and not data)
    return [decode(line) for line in data.splitlines()]


def runs(capture: Path, *, killed: bool = False) -> list[Run]:
    return [record for record in records(capture, killed=killed) if isinstance(record, Run)]


def losses(capture: Path) -> list[Loss]:
    return [record for record in records(capture) if isinstance(record, Loss)]


def session_states(capture: Path) -> list[str]:
    return [record.state for record in records(capture) if isinstance(record, Session)]


def heads(found: list[Run]) -> list[tuple[int, int, str, str, int, str]]:
    """Return what must be the same in an interrupted and in an uninterrupted campaign."""
    return [
        (run.sequence, run.block, run.task, run.configuration, run.run, run.phase) for run in found
    ]


def installed(folder: Path, text: str) -> str:
    """Install a program, and return the PATH by which it is found."""
    folder.mkdir(exist_ok=True)
    program = folder / "versioned"
    program.write_text(f"#!/bin/sh\necho {text}\n")
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def versions(old: str, new: str, *, blocks: int = 2) -> Campaign:
    return Campaign(
        configurations=[
            Configuration(name="old", environment={"PATH": old}),
            Configuration(name="new", environment={"PATH": new}),
        ],
        tasks=[Task(name="start", command=["versioned"], counters=False)],
        blocks=blocks,
    )
