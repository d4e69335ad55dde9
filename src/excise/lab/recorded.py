"""What a capture of guests already holds: its plan beside the one asked for, and its guests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from excise.capture.journal import Effect, Record, Run
from excise.capture.store import RAW, journal_records_at
from excise.errors import CaptureError
from excise.lab.cache import digest_of
from excise.lab.jobs import GuestJob
from excise.lab.kernel import Kernel
from excise.lab.kernels import resolve
from excise.lab.machine import Machine
from excise.lab.result import GuestResult, step_of

KIND: Final = "lab guests"
FACTS_FILE: Final = "facts.json"


def output_name(number: int) -> str:
    """Return the name of the raw file that keeps what a step of a plan printed."""
    return f"{number:04d}.out"


def kernel_of(job: GuestJob) -> Kernel:
    """Return the kernel of a guest.

    Raises:
        HostError: If it cannot be had.
    """
    modules = job.machine.modules
    return resolve(job.machine.kernel, modules=Path(modules) if modules else None)


def planned_guests(jobs: Sequence[GuestJob]) -> dict[str, Any]:
    """Return what a manifest says of guests: all that their figures depend on, in plain words.

    Raises:
        HostError: If a kernel cannot be had.
    """
    return {"kind": KIND, "guests": {job.configuration: _planned(job) for job in jobs}}


def _planned(job: GuestJob) -> dict[str, Any]:
    kernel = kernel_of(job)
    return {
        "preset": job.preset.name,
        "rules": job.preset.rules_sha256,
        "kernel": f"{kernel.release} (image {digest_of(kernel.image)[:16]})",
        "machine": _machine(job.machine),
        "tasks": list(dict.fromkeys(step.task for step in job.plan.steps)),
        "plan": digest_of(msgspec.json.encode(job.plan, order="deterministic"))[:16],
        "quote": job.qualifying_data.hex() if job.qualifying_data is not None else None,
    }


def _machine(machine: Machine) -> dict[str, Any]:
    """Return a machine's keys as a manifest has them, but for the one that is in no figure."""
    keys: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(machine))
    return {name: value for name, value in keys.items() if name != "timeout_s"}


def plan_differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference of two plans; none where they are the same."""
    old, new = before["guests"], now["guests"]
    if list(old) != list(new):
        return [f"its guests are {', '.join(old)}; now they are {', '.join(new)}"]
    lines: dict[str, None] = {}
    for name in new:
        one, two = _flat(old[name]), _flat(new[name])
        differing = [key for key in two if one.get(key) != two[key]]
        if differing != ["plan"]:
            differing = [key for key in differing if key != "plan"]
        for key in differing:
            if key == "plan":
                lines.setdefault(f"{name}: what it runs, or how often, is another")
            else:
                lines.setdefault(f"{name}: {key} {_shown(one.get(key))}, now {_shown(two[key])}")
    return list(lines)


def _flat(guest: Mapping[str, Any]) -> dict[str, Any]:
    own = {name: value for name, value in guest.items() if name != "machine"}
    return {**own, **{f"machine.{name}": value for name, value in guest["machine"].items()}}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "none" if value in (None, "") else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a capture holds of guests.

    Attributes:
        guests: Those that are complete, by configuration, as far as a capture keeps them: without
            what probes and tracers printed.
        cut_short: Configuration whose lines are not all there; it can only be the last.
        whole_bytes: Length of the journal without those lines.
        next_sequence: Number of the next run.
    """

    guests: dict[str, GuestResult]
    cut_short: str | None
    whole_bytes: int
    next_sequence: int


@dataclass(slots=True)
class _Lines:
    """Records of one guest."""

    begin: int
    effects: list[Effect] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)


def recorded_guests(path: Path, jobs: Sequence[GuestJob], *, bases: Mapping[str, str]) -> Recorded:
    """Return the guests that a capture holds.

    Args:
        path: The capture, open for writing: its journal has no torn line.
        jobs: Guests that it is of.
        bases: Beginning of the names of each guest's raw files, by configuration.

    Raises:
        CaptureError: If its journal or a raw file cannot be read.
    """
    found: dict[str, _Lines] = {}
    size = 0
    for offset, record in journal_records_at(path):
        size = offset
        if (name := _configuration(record)) is not None:
            lines = found.setdefault(name, _Lines(begin=offset))
            if isinstance(record, Effect):
                lines.effects.append(record)
            elif isinstance(record, Run):
                lines.runs.append(record)
    guests = {
        job.configuration: _guest(path, job, found[job.configuration], bases[job.configuration])
        for job in jobs
        if job.configuration in found and _is_whole(job, found[job.configuration])
    }
    last = max(found, key=lambda name: found[name].begin, default=None)
    if torn := [name for name in found if name not in guests]:
        if torn != [last]:
            raise CaptureError(
                f"its journal lacks lines of {torn[0]}",
                source=str(path),
                hint="The journal was changed by hand; start a new capture",
            )
        size = found[torn[0]].begin
    kept = [run for name in guests for run in found[name].runs]
    return Recorded(
        guests=guests,
        cut_short=torn[0] if torn else None,
        whole_bytes=size,
        next_sequence=1 + max((run.sequence for run in kept), default=-1),
    )


def _configuration(record: Record) -> str | None:
    return getattr(record, "configuration", None)


def _is_whole(job: GuestJob, lines: _Lines) -> bool:
    """Tell whether the lines go as far as a guest's last one, which is the run of its last step."""
    return len(lines.runs) == 1 + len(job.plan.steps)


def _guest(path: Path, job: GuestJob, lines: _Lines, base: str) -> GuestResult:
    def raw(name: str) -> bytes:
        file = path / RAW / f"{base}.{name}"
        return file.read_bytes() if file.is_file() else b""

    facts = msgspec.json.decode(raw(FACTS_FILE))
    _, *runs = lines.runs
    return GuestResult(
        configuration=job.configuration,
        preset=job.preset.name,
        kernel=kernel_of(job),
        machine=job.machine,
        cmdline=raw("cmdline").decode().rstrip("\n"),
        clock=facts["clock"],
        steps=tuple(
            step_of(step, run, machine=job.machine, stdout=raw(output_name(number)))
            for number, (step, run) in enumerate(zip(job.plan.steps, runs, strict=True))
        ),
        facts=facts["facts"],
        effects=tuple(lines.effects),
        marks_ns=facts["marks"],
        stages_s=facts["stages_wall_s"],
        evidence={name: raw(name) for name in facts["evidence"]},
        dmesg=raw("dmesg"),
        console=raw("console").decode("utf-8", "replace"),
        wall_s=facts["wall_s"],
    )
