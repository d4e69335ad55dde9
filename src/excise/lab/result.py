"""What came back from a guest, and its steps as runs of a journal."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from excise.capture.journal import Effect, Probe, Run, RunHead
from excise.lab.kernel import Kernel
from excise.lab.machine import Machine
from excise.lab.plan import Step

INSTRUCTIONS: Final = "instructions"
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")

GuestClock = Literal["instructions (TCG, icount)", "guest time, emulated (TCG)", "guest time (KVM)"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What became of one step.

    Attributes:
        wall_ns: Nanoseconds of the guest's clock from before the command to its end, the shell's
            fork among them; None if the guest did not say.
        probe: What the probe printed, for a probe step that worked.
        ima_entries: Entries it added to the IMA list; None for a kernel without one.
    """

    step: Step
    exit_code: int
    wall_ns: int | None
    stdout: bytes
    stderr: bytes
    probe: Probe | None = None
    ima_entries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestResult:
    """Everything that came back from one guest.

    Attributes:
        configuration: Name of the configuration, usually the preset's.
        clock: What a nanosecond of its figures is.
        facts: What the guest reported, by name; `attempt.NAME` for attempts.
        effects: Whether the configuration took effect, check by check.
        marks_ns: Guest clock at each stage, nanoseconds since power-on.
        stages_s: Host seconds after QEMU's start at each stage.
        evidence: IMA lists, PCRs, event log, quote, by file name.
    """

    configuration: str
    preset: str
    kernel: Kernel
    machine: Machine
    cmdline: str
    clock: GuestClock
    steps: tuple[StepResult, ...]
    facts: dict[str, str]
    effects: tuple[Effect, ...]
    marks_ns: dict[str, int]
    stages_s: dict[str, float]
    evidence: dict[str, bytes]
    dmesg: bytes
    console: str
    wall_s: float


def clock_of(machine: Machine, *, accelerator: Literal["tcg", "kvm"] = "tcg") -> GuestClock:
    """Return what a nanosecond of the machine's figures is."""
    if machine.mode == "count":
        return "instructions (TCG, icount)"
    return "guest time (KVM)" if accelerator == "kvm" else "guest time, emulated (TCG)"


def file_safe(configuration: str) -> str:
    """Return the beginning of the names of a guest's raw files."""
    return _UNSAFE.sub("-", configuration).strip("-")


def run_of(result: GuestResult, step: StepResult, *, head: RunHead) -> Run:
    """Return one step as a run under a head that says which run it is."""
    counted = result.machine.mode == "count"
    return Run(
        **msgspec.structs.asdict(head),
        wall_ns=None if counted else step.wall_ns,
        instructions=step.wall_ns if counted else None,
        ima_entries=step.ima_entries,
        exit_code=step.exit_code,
        ok=step.exit_code == 0,
        stderr=step.stderr[-1000:].decode("utf-8", "replace") or None,
        probe=_probe(result, step.probe),
    )


def _probe(result: GuestResult, probe: Probe | None) -> Probe | None:
    """Return the probe's line with the clock and the unit that its figures really are of."""
    if probe is None:
        return None
    clock = f"{probe.clock}: {result.clock}"
    if result.machine.mode != "count":
        return msgspec.structs.replace(probe, clock=clock)
    return msgspec.structs.replace(
        probe,
        clock=clock,
        op_ns=[],
        first_op_ns=None,
        op_instructions=probe.op_ns,
        first_op_instructions=probe.first_op_ns,
    )


def step_of(step: Step, run: Run, *, machine: Machine, stdout: bytes) -> StepResult:
    """Return the step that a run of the journal was made of; the inverse of `run_of`."""
    counted = machine.mode == "count"
    probe = run.probe
    if probe is not None:
        clock = probe.clock.rpartition(": ")[0]
        probe = msgspec.structs.replace(probe, clock=clock)
        if counted:
            probe = msgspec.structs.replace(
                probe,
                op_ns=probe.op_instructions,
                first_op_ns=probe.first_op_instructions,
                op_instructions=[],
                first_op_instructions=None,
            )
    return StepResult(
        step=step,
        exit_code=run.exit_code if run.exit_code is not None else -1,
        wall_ns=run.instructions if counted else run.wall_ns,
        stdout=stdout,
        stderr=(run.stderr or "").encode(),
        probe=probe,
        ima_entries=run.ima_entries,
    )
