"""Guests as a capture: journal lines, raw files, and facts that say what a figure's unit is.

In count mode the guest's clock is its number of instructions, so what the guest calls nanoseconds
is written as instructions here, and nowhere as time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import msgspec

from excise.capture import store
from excise.capture.journal import Event, Loss, Record, Run, RunHead, Session
from excise.capture.manifest import Fact, Manifest
from excise.clock import Clock
from excise.cost.facts import disagreements
from excise.errors import OutputError, Refused, UsageError
from excise.lab.boot_stages import boot_of_guest, one_boot
from excise.lab.jobs import GuestFailure, GuestJob
from excise.lab.processes import program_version
from excise.lab.recorded import (
    FACTS_FILE,
    KIND,
    output_name,
    plan_differences,
    planned_guests,
    recorded_guests,
)
from excise.lab.result import INSTRUCTIONS, GuestResult, clock_of, file_safe, run_of
from excise.lab.trace import hook_records

if TYPE_CHECKING:
    from excise.lab.machine import Machine

_BOOT_ENDS: Final = ("settle", "booted")  # set up, in the initramfs and in Debian


def boot_of(result: GuestResult, *, head: RunHead) -> list[Run | Event | Loss]:
    """Return the boot as a run with its stages as events.

    In count mode they are the guest's marks, in instructions; else the stages that every boot has,
    from power-on, with the entries of the IMA list.
    """
    if result.machine.mode != "count":
        return one_boot(boot_of_guest(result), head=head, clock=result.clock)
    stages = _boot_stages(result.marks_ns)
    whole = stages[-1][1] if stages else None
    records: list[Run | Event | Loss] = [
        Run(**msgspec.structs.asdict(head), instructions=whole, exit_code=0)
    ]
    begin = 0
    for (name, at_ns), (before, _) in zip(stages, [("kernel", 0), *stages], strict=False):
        event = before if name == "init" else f"{before} to {name}"
        records.append(
            Event(
                sequence=head.sequence,
                layer="guest",
                event=event,
                start_ns=begin,
                value=float(at_ns - begin),
                unit=INSTRUCTIONS,
                labels=f"clock={result.clock}",
            )
        )
        begin = at_ns
    return records


def _boot_stages(marks_ns: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the stages up to the boot's end: what is measured afterwards is no part of it."""
    stages = list(marks_ns.items())
    ends = [place for place, (name, _) in enumerate(stages) if name in _BOOT_ENDS]
    return stages[: ends[0] + 1] if ends else stages


def raw_files(result: GuestResult) -> dict[str, bytes]:
    """Return what a capture keeps of a guest as files: kernel log, facts, evidence, by name."""
    facts: dict[str, Any] = {
        "configuration": result.configuration,
        "preset": result.preset,
        "kernel": {"release": result.kernel.release, "package": result.kernel.package},
        "clock": result.clock,
        "marks": result.marks_ns,
        "wall_s": round(result.wall_s, 3),
        "stages_wall_s": {name: round(at_s, 3) for name, at_s in result.stages_s.items()},
        "facts": result.facts,
        "evidence": sorted(result.evidence),
    }
    found = {
        "dmesg": result.dmesg,
        "console": result.console.encode(),
        "cmdline": result.cmdline.encode() + b"\n",
        FACTS_FILE: msgspec.json.format(msgspec.json.encode(facts), indent=1),
        **result.evidence,
    }
    return {name: data for name, data in found.items() if data}


class LabCapture:
    """A capture that guests are written to, one after the other, each on disk at once.

    Attributes:
        path: The capture's folder.
        kept: Guests that it held when it was opened, by configuration: they need not run again.
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
        """Make the capture, or open one of the same guests that was cut short.

        Raises:
            UsageError: If two guests have one name.
            OutputError: If the path is taken by something else, or by other guests, which it
                tells; or is sealed, or cannot be written.
            Refused: If it was begun under other conditions.
            HostError: If a kernel cannot be had.
        """
        for name, number in Counter(job.configuration for job in jobs).items():
            if number > 1:
                raise UsageError(f"two guests are called {name}", source=str(path))
        self.path = path
        self.kept: Mapping[str, GuestResult] = {}
        self._jobs = {job.configuration: job for job in jobs}
        self._bases = _bases(self._jobs)
        self._version = version
        self._sequence = 0
        manifest = _manifest(jobs, title=title, baseline=baseline, version=version)
        if not (path / store.MANIFEST).is_file():
            self._capture = store.Capture.create(path, manifest)
            self._mark("started")
            return
        self._capture = store.Capture.open(path)
        try:
            self._take_over(manifest)
        except BaseException:
            self._capture.close()
            raise
        self._mark("resumed" if self.kept else "started")

    def _take_over(self, manifest: Manifest) -> None:
        """Find out which guests are there; one whose lines were cut short is none."""
        before, source = self._capture.manifest, str(self.path)
        if before.campaign.get("kind") != KIND:
            raise OutputError(
                "already exists, and is no capture of guests that could go on",
                source=source,
                hint="Give another path with -o",
            )
        differing = plan_differences(before.campaign, manifest.campaign)
        if differing and not any(isinstance(each, Run) for each in self._records()):
            self._capture.start_over(manifest)
            return
        if differing:
            raise OutputError(
                f"holds other guests than these: {'; '.join(differing)}",
                source=source,
                hint="Give another path with -o, or the options of the capture to go on with it",
            )
        found = recorded_guests(self.path, list(self._jobs.values()), bases=self._bases)
        if len(found.guests) < len(self._jobs) and (lines := disagreements(before, manifest)):
            raise Refused(
                "was begun under other conditions than there are now",
                source=source,
                differences=lines,
                hint="Begin a new capture with -o",
            )
        if found.cut_short is not None:
            self._capture.drop_tail(found.whole_bytes, source=found.cut_short)
        self.kept, self._sequence = found.guests, found.next_sequence

    def _records(self) -> Iterator[Record]:
        return store.journal_records(self.path)

    def add(self, outcome: GuestResult | GuestFailure) -> None:
        """Write one guest: its effects, runs and raw files, or why it gave none.

        Raw files come first and the run of the last step comes last: it makes the guest whole.
        """
        if isinstance(outcome, GuestFailure):
            self._capture.append(no_results(outcome))
            return
        base = self._bases[outcome.configuration]
        for name, data in {**raw_files(outcome), **_outputs(outcome)}.items():
            self._capture.replace_raw(f"{base}.{name}", data)
        boot = self._head(outcome, task="boot", run=0)
        records = boot_of(outcome, head=msgspec.structs.replace(boot, phase="first"))
        runs = [
            run_of(
                outcome, each, head=self._head(outcome, task=each.step.task, run=each.step.round)
            )
            for each in outcome.steps
        ]
        hooks = hook_records(outcome)
        self._capture.extend([*outcome.effects, *hooks, *records, *map(_phased, runs)])

    def _head(self, outcome: GuestResult, *, task: str, run: int) -> RunHead:
        head = RunHead(
            sequence=self._sequence,
            block=run,
            task=task,
            configuration=outcome.configuration,
            run=run,
            phase="measured",
        )
        self._sequence += 1
        return head

    def _mark(self, state: Literal["started", "resumed", "interrupted", "finished"]) -> None:
        self._capture.append(
            Session(
                state=state,
                at=store.now(),
                excise_version=self._version,
                runs_done=self._sequence,
            )
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._mark("finished" if kind is None else "interrupted")
        self._capture.close()


def _bases(configurations: Iterable[str]) -> dict[str, str]:
    """Return the beginning of the names of each guest's raw files, no two alike."""
    found: dict[str, str] = {}
    for name in configurations:
        base, number = file_safe(name), 2
        while base in found.values():
            base, number = f"{file_safe(name)}-{number}", number + 1
        found[name] = base
    return found


def _outputs(result: GuestResult) -> dict[str, bytes]:
    """Return what the user's own commands printed, which no run keeps."""
    return {
        output_name(number): each.stdout
        for number, each in enumerate(result.steps)
        if each.stdout and not each.step.must_work
    }


def _manifest(
    jobs: Sequence[GuestJob], *, title: str, baseline: str | None, version: str
) -> Manifest:
    twins = [job.configuration for job in jobs if "(A/A" in job.configuration]
    clocks = sorted({clock_of(job.machine) for job in jobs})
    return Manifest(
        id=store.new_id(),
        created=store.now(),
        title=title,
        origin="measured",
        excise_version=version,
        baseline=baseline,
        twin=twins[0] if twins else None,
        further_twins=twins[1:],
        paired=False,
        campaign=planned_guests(jobs),
        host_facts=lab_facts(jobs, clocks=clocks),
        clocks=[Clock(name=clock) for clock in clocks],
    )


def _phased(run: Run) -> Run:
    """Keep the first run of a command apart; every round of the probe has its own first call."""
    first = run.run == 0 and run.probe is None
    return msgspec.structs.replace(run, phase="first" if first else "measured")


def no_results(failure: GuestFailure) -> Loss:
    """Return what the journal says of a guest that gave no results."""
    return Loss(source=failure.configuration, reason=f"the guest gave no results: {failure.error}")


def lab_facts(jobs: Sequence[GuestJob], *, clocks: Sequence[str]) -> list[Fact]:
    """Return what a reader must know of guests, marked with what must agree to compare captures."""
    kernels = sorted({Path(job.machine.kernel).name for job in jobs})
    return [
        *machine_facts(jobs[0].machine, clock=", ".join(clocks)),
        Fact(name="lab.kernels", value=", ".join(kernels)),
    ]


def machine_facts(machine: Machine, *, clock: str) -> list[Fact]:
    """Return the facts of a machine; see `lab_facts`."""
    return [
        Fact(name="lab.clock", value=clock, must_agree=True),
        Fact(name="lab.qemu", value=program_version("qemu-system-x86_64"), must_agree=True),
        Fact(name="lab.memory", value=machine.memory_mib, unit="MiB", must_agree=True),
        Fact(name="lab.cpus", value=machine.cpus, unit="1", must_agree=True),
        Fact(name="lab.root", value=machine.rootfs, must_agree=True),
        Fact(name="lab.network", value=False),
    ]
