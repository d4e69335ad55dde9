"""The kernel's own HMAC sessions: what the protection of PCR extends costs, traced and in boots.

The lab's own kernel boots with HMAC sessions, with them but with plain extends
(`tpm.disable_pcr_integrity=1`), and built without them. In each, `tpm2_pcr_extend` is traced with
its children while IMA measures new files, and Debian is booted with its entries counted.

Since 6.12 the kernel keeps its session until user space opens the TPM: each extend then has to make
a new one. Both are traced: with the session kept, and with a command from user space in between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from excise.capture.journal import Event, Loss, Run
from excise.lab.boot_stages import PLAIN_EXTENDS
from excise.lab.boots import BootArm, BootCapture, in_rounds
from excise.lab.jobs import GuestFailure, GuestJob, Progress, run_all
from excise.lab.kernels import resolve
from excise.lab.machine import Machine
from excise.lab.plan import Plan
from excise.lab.record import raw_files
from excise.lab.result import GuestResult, file_safe
from excise.lab.tpm_trace import TRACE, GraphTrace, TraceText, trace_of
from excise.lab.workloads import distinct_files

if TYPE_CHECKING:
    from excise.formats.function_graph import FunctionGraph

ROOT: Final = "tpm2_pcr_extend"
_CALLS: Final = 1_000_000
# TPM2_GetRandom of 8 bytes: opening /dev/tpm0 and sending anything ends the kernel's session.
_FROM_USER_SPACE: Final = "printf '\\200\\001\\0\\0\\0\\014\\0\\0\\001\\173\\0\\010' >/dev/tpm0"
_MEASURE: Final = (
    "for f in $(find /excise/ext4/many -type f | sort); do {before}cat $f >/dev/null; done"
)
# Functions by the names that the published traces have.
_STEPS: Final = {
    "tpm2_start_auth_session": "start_auth_session",
    "tpm_buf_append_hmac_session": "append",
    "tpm_buf_fill_hmac_session": "fill",
    "tpm_transmit_cmd": "transmit",
    "tpm_buf_check_hmac_response": "check",
}
_REST: Final = "buffer"
_SESSION_STEPS: Final = {
    "tpm2_load_null": ("tpm", "ContextLoad"),
    "tpm2_load_context": ("tpm", "ContextLoad"),
    "tpm_buf_append_salt": ("kernel", "salt"),
    "tpm_transmit_cmd": ("tpm", "StartAuthSession"),
    "tpm2_flush_context": ("tpm", "FlushContext"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class HmacMode:
    """One way to protect PCR extends, or none.

    Attributes:
        arm: Kernel and command line; its name is the configuration's.
        used_between: Whether user space uses the TPM before each entry, which ends the session.
        booted: Whether it is also booted: what user space does is no matter of the kernel.
    """

    arm: BootArm
    used_between: bool = False
    booted: bool = True

    def trace_job(self, machine: Machine, *, entries: int) -> GuestJob:
        """Return the guest that measures new files while `tpm2_pcr_extend` is traced."""
        plan = distinct_files(entries)
        before = f"{_FROM_USER_SPACE}; " if self.used_between else ""
        steps = GraphTrace(roots=(ROOT,)).around(_MEASURE.format(before=before))
        job = self.arm.job(machine, counted=False)
        return dataclasses.replace(
            job,
            machine=msgspec.structs.replace(job.machine, rootfs="initramfs"),
            plan=Plan(steps=steps, files=plan.files),
        )


def hmac_modes(*, kernel: str = "own", without: str = "own:no-hmac") -> tuple[HmacMode, ...]:
    """Return the modes, the plain one of the kernel without HMAC sessions first.

    Args:
        kernel: A kernel built with CONFIG_TCG_TPM2_HMAC.
        without: The same kernel without it.
    """
    plain = BootArm(configuration="no HMAC", kernel=without)
    kept = BootArm(configuration="HMAC, session kept", kernel=kernel)
    each = BootArm(configuration="HMAC, session each", kernel=kernel)
    off = BootArm(
        configuration="HMAC, disable_pcr_integrity",
        kernel=kernel,
        words=(PLAIN_EXTENDS,),
    )
    return (
        HmacMode(arm=plain),
        HmacMode(arm=off),
        HmacMode(arm=kept),
        HmacMode(arm=each, used_between=True, booted=False),
    )


def run_hmac(
    modes: Sequence[HmacMode],
    *,
    machine: Machine,
    boots: int,
    entries: int,
    output: Path,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> list[GuestFailure]:
    """Trace and boot every mode into a capture; return the guests that failed.

    A capture of the same modes that was cut short is continued.

    Args:
        modes: See `hmac_modes`.
        machine: The machine they have in common; see `boot_machine`.
        boots: Boots of each mode.
        entries: New files that are measured while extends are traced.
        output: The capture.
        on_progress: Called at each stage of each guest.

    Raises:
        HostError: If a kernel has not been built.
    """
    for mode in modes:
        resolve(mode.arm.kernel)
    traces = [mode.trace_job(machine, entries=entries) for mode in modes]
    booted = [mode.arm.job(machine) for mode in modes if mode.booted]
    with HmacCapture(
        output,
        jobs=traces,
        arms=[mode.arm for mode in modes],
        title="HMAC sessions of the kernel: PCR extends traced, boots compared",
        baseline=modes[0].arm.configuration,
    ) as capture:
        planned = [job for job in traces if job.configuration not in capture.traced]
        planned += in_rounds(booted, boots=boots, done=capture.done)
        outcomes = run_all(planned, on_progress=on_progress, on_result=capture.add)
    return [each for each in outcomes if isinstance(each, GuestFailure)]


class HmacCapture(BootCapture):
    """A capture of traced extends beside boots.

    Attributes:
        traced: Configurations whose extends are in it.
    """

    def __init__(self, path: Path, **settings: Any) -> None:
        """Make or open the capture; see `BootCapture`."""
        self.traced: set[str] = set()
        super().__init__(path, **settings)

    def seen(self, run: Run) -> None:
        """Note a run that the capture already holds."""
        super().seen(run)
        if run.task == ROOT:
            self.traced.add(run.configuration)

    def add(self, outcome: GuestResult | GuestFailure) -> None:
        """Write a guest: its traced extends, or its boot."""
        if isinstance(outcome, GuestFailure) or not any(
            step.step.task == TRACE for step in outcome.steps
        ):
            super().add(outcome)
            return
        found = trace_of(outcome)
        base = file_safe(outcome.configuration)
        for name, data in {**raw_files(outcome), "trace.txt": found.text}.items():
            self.keep_raw(f"{base}.extends.{name}", data)
        records = list(
            extend_records(
                found, configuration=outcome.configuration, first_sequence=self.next_sequence
            )
        )
        self.write(outcome, records)
        self.traced.add(outcome.configuration)


def extend_records(
    trace: TraceText, *, configuration: str, first_sequence: int
) -> Iterator[Run | Event | Loss]:
    """Yield each traced extend as a run with its steps, named as in the published traces.

    The first extend is kept apart: it pays for cold caches, and for the session where one is kept.
    What the trace lacks is declared at the end.

    Raises:
        FormatError: If the trace is none.
    """
    from excise.formats.function_graph import read_function_graph

    graph = read_function_graph(trace.text, name=f"{configuration}: trace", calls=_CALLS)
    for number, (duration_ns, steps) in enumerate(_extends(graph)):
        sequence = first_sequence + number
        yield Run(
            sequence=sequence,
            block=number,
            task=ROOT,
            configuration=configuration,
            run=number,
            phase="first" if number == 0 else "measured",
            wall_ns=duration_ns,
            exit_code=0,
        )
        for (layer, event, parent), value in steps.items():
            yield Event(
                sequence=sequence, layer=layer, event=event, parent=parent, value=float(value)
            )
    yield from graph.losses
    undeclared = trace.lost - sum(events for _, events, _ in graph.lost)
    if undeclared > 0:
        reason = "events that the tracer's ring buffers overwrote or dropped"
        yield Loss(source=graph.source, reason=reason, count=undeclared)


_Steps = dict[tuple[str, str, str | None], int]


def _extends(graph: FunctionGraph) -> Iterator[tuple[int, _Steps]]:
    """Yield duration and steps of each extend that was seen whole."""
    rows = graph.calls.with_row_index("row").rows(named=True)
    inside: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        if row["parent"] is not None:
            inside.setdefault(row["parent"], []).append(row)
    for row in rows:
        if row["function"] != ROOT or row["duration_ns"] is None or row["seen"] != "whole":
            continue
        steps: _Steps = {}
        for child in inside.get(row["row"], []):
            name = _STEPS.get(child["function"], _REST)
            _count(steps, ("kernel", name, None), child)
            if name == "start_auth_session":
                for part in inside.get(child["row"], []):
                    if part["function"] in _SESSION_STEPS:
                        layer, event = _SESSION_STEPS[part["function"]]
                        _count(steps, (layer, event, f"kernel|{name}"), part)
        yield row["duration_ns"], steps


def _count(steps: _Steps, key: tuple[str, str, str | None], call: dict[str, Any]) -> None:
    steps[key] = steps.get(key, 0) + (call["duration_ns"] or 0)
