"""Guests as a capture: journal lines, raw files, and facts that say what a figure's unit is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from excise.capture import store
from excise.capture.journal import Event, Loss, Run, Session
from excise.capture.manifest import Fact, Manifest
from excise.clock import Clock
from excise.lab.jobs import GuestFailure, GuestJob
from excise.lab.processes import program_version
from excise.lab.run import GuestResult, clock_of

_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


class LabCapture:
    """A capture that guests are written to, one after the other, each on disk at once.

    Attributes:
        path: The capture's folder.
    """

    def __init__(
        self,
        path: Path,
        *,
        jobs: Sequence[GuestJob],
        title: str,
        baseline: str | None = None,
        version: str = "",
    ) -> None:
        """Make the capture.

        Raises:
            CaptureError: If the path exists and is not an empty folder.
        """
        self.path = path
        self._sequence = 0
        self._guests = 0
        twin = next((job.configuration for job in jobs if "(A/A" in job.configuration), None)
        clocks = sorted({clock_of(job.machine) for job in jobs})
        manifest = Manifest(
            id=store.new_id(),
            created=store.now(),
            title=title,
            origin="measured",
            excise_version=version,
            baseline=baseline,
            twin=twin,
            paired=False,
            host_facts=_facts(jobs, clocks=clocks),
            clocks=[Clock(name=clock) for clock in clocks],
            notes=[f"A nanosecond of a probe's figure is one of: {', '.join(clocks)}."],
        )
        self._capture = store.Capture.create(path, manifest)
        self._capture.append(Session(state="started", at=store.now(), excise_version=version))

    def add(self, outcome: GuestResult | GuestFailure) -> None:
        """Write one guest: its effects, runs and raw files, or why it gave none."""
        if isinstance(outcome, GuestFailure):
            self._capture.append(
                Loss(
                    source=outcome.configuration,
                    reason=f"the guest gave no results: {outcome.error}",
                )
            )
            return
        base = _UNSAFE.sub("-", outcome.configuration).strip("-")
        raw = {
            "dmesg": outcome.dmesg,
            "console": outcome.console.encode(),
            "cmdline": outcome.cmdline.encode() + b"\n",
            **outcome.evidence,
        }
        for name, data in raw.items():
            if data:
                self._capture.add_raw(f"{base}.{name}", data)
        records = [*outcome.effects, *_boot_records(outcome, sequence=self._sequence, run=0)]
        self._sequence += 1
        runs = outcome.runs(first_sequence=self._sequence)
        self._sequence += len(runs)
        self._guests += 1
        self._capture.extend([*records, *runs])

    def close(self) -> None:
        """Write the end of the session and close the capture."""
        done = Session(state="finished", at=store.now(), runs_done=self._sequence)
        self._capture.append(done)
        self._capture.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._capture.close()


def _boot_records(result: GuestResult, *, sequence: int, run: int) -> list[Run | Event]:
    """Return the boot as a run, with the stages of the guest as its events."""
    records: list[Run | Event] = [
        Run(
            sequence=sequence,
            block=0,
            task="boot",
            configuration=result.configuration,
            run=run,
            phase="first",
            wall_ns=int(result.wall_s * 1e9),
            exit_code=0,
        )
    ]
    stages = list(result.marks_ns.items())
    begin = 0
    for (name, at_ns), (before, _) in zip(stages, [("kernel", 0), *stages], strict=False):
        event = before if name == "init" else f"{before} to {name}"
        records.append(
            Event(
                sequence=sequence,
                layer="guest",
                event=event,
                start_ns=begin,
                value=float(at_ns - begin),
                labels=f"clock={result.clock}",
            )
        )
        begin = at_ns
    return records


def _facts(jobs: Sequence[GuestJob], *, clocks: Sequence[str]) -> list[Fact]:
    kernels = sorted({job.machine.kernel for job in jobs})
    return [
        Fact(name="lab.clock", value=", ".join(clocks), must_agree=True),
        Fact(name="lab.kernels", value=", ".join(Path(name).name for name in kernels)),
        Fact(name="lab.qemu", value=program_version("qemu-system-x86_64"), must_agree=True),
        Fact(name="lab.memory", value=jobs[0].machine.memory_mib, unit="MiB", must_agree=True),
        Fact(name="lab.cpus", value=jobs[0].machine.cpus, unit="1", must_agree=True),
        Fact(name="lab.network", value=False),
    ]
