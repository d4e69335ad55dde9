"""One boot of a guest as stages, with its IMA entries and its commands to the TPM.

Stages from outside are seen on QEMU's process and serial port, in the host's time; stages from
inside are systemd's own time stamps and the marks of the lab's init, in the guest's. A guest that
does not count instructions runs its clock at the host's rate, so that all add up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec

from excise.capture.journal import Event, Loss, Run, RunHead
from excise.collect.tpm.info import HMAC_OPTION, extend_mode
from excise.errors import ExciseError
from excise.events.one_boot import ENTRIES
from excise.formats import dmesg, systemd_analyze, systemd_show
from excise.formats.model import Options, Reading
from excise.lab.tpm_traffic import FACT, TpmCommands, commands_of

if TYPE_CHECKING:
    from excise.lab.result import GuestResult

BOOT: Final = "boot"
SHUTDOWN: Final = "shutdown"
STAGE: Final = "stage"
PLAIN_EXTENDS: Final = "tpm.disable_pcr_integrity=1"
_Reader = Callable[[bytes, Options], Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestBoot:
    """What one boot took.

    Attributes:
        stages_ns: Nanoseconds by stage, in order: `firmware` (power-on to the start of the kernel's
            clock: QEMU, firmware, loading and unpacking), `kernel`, `initrd`, `userspace`.
        shutdown_ns: From the last result to the end of QEMU, None where it was not seen.
        entries: Entries of the IMA list when the boot was over, None without a list.
        mode: How PCR extends are protected, None where the kernel's options are not known.
        commands: Commands to the TPM from init on, where they were counted.
    """

    stages_ns: Mapping[str, int]
    shutdown_ns: int | None = None
    entries: int | None = None
    mode: str | None = None
    commands: Sequence[TpmCommands] = ()
    losses: Sequence[Loss] = ()
    details: Sequence[Reading] = field(default=())

    @property
    def total_ns(self) -> int:
        """Return the time from power-on to the end of the last stage."""
        return sum(self.stages_ns.values())


def kernel_mode(facts: Mapping[str, str], *, config: Mapping[str, str]) -> str | None:
    """Return how a guest's kernel protects PCR extends; None where it does not show it.

    Args:
        facts: What the guest reported, by name.
        config: Build options of its kernel by name, empty when not known.
    """
    parameters = facts.get("tpm_parameters")
    built_in = config.get(HMAC_OPTION) == "y" if config else None
    return extend_mode(
        hmac=True if facts.get("tpm_null_name") else built_in,
        lazy_flush=None if parameters is None else "disable_pcr_integrity" in parameters.split(),
        parameter=facts.get("tpm_disable_pcr_integrity", "").strip() or None,
    )


def boot_of_guest(result: GuestResult) -> GuestBoot:
    """Return the boot of a guest that measured time.

    Raises:
        HostError: If the guest's marks are missing.
    """
    losses: list[Loss] = []
    details: list[Reading] = []
    stages = {"kernel": result.marks_ns["init"]}
    firmware_ns = _firmware_ns(result)
    if firmware_ns >= 0:
        stages = {"firmware": firmware_ns, **stages}
    else:
        reason = "the guest's clock ran ahead of the host's: firmware is not told apart"
        losses.append(Loss(source=result.configuration, reason=reason))
    stamps = _read(result, "systemd_timestamps", systemd_show.read, losses)
    if stamps is not None:
        stages |= _systemd_stages(stamps, init_ns=result.marks_ns["init"])
        details.append(stamps)
        for name in ("systemd_critical_chain", "systemd_blame"):
            reading = _read(result, name, systemd_analyze.read, losses)
            if reading is not None:
                details.append(reading)
    else:
        ready = result.marks_ns.get("settle") or result.marks_ns.get("measure")
        if ready is not None:
            stages["initrd"] = ready - result.marks_ns["init"]
    log = _read_text(result, "dmesg", result.dmesg, dmesg.read, losses)
    if log is not None:
        details.append(log)
    commands, dropped = commands_of(result.facts.get(FACT, ""))
    if dropped:
        reason = "commands to the TPM that the histogram had no room for"
        losses.append(Loss(source=result.configuration, reason=reason, count=dropped))
    entries = result.facts.get("ima_count_booted") or result.facts.get("ima_count", "")
    saved = result.stages_s.get("saved")
    return GuestBoot(
        stages_ns=stages,
        shutdown_ns=None if saved is None else round((result.wall_s - saved) * 1e9),
        entries=int(entries) if entries.isdigit() else None,
        mode=kernel_mode(result.facts, config=result.kernel.config),
        commands=commands,
        losses=losses,
        details=details,
    )


def _firmware_ns(result: GuestResult) -> int:
    """Return what passed before the guest's clock began.

    Each stage is seen on the serial port a little after the guest made its mark, never before: the
    least difference is the nearest.
    """
    return min(
        round(seen_s * 1e9) - result.marks_ns[name]
        for name, seen_s in result.stages_s.items()
        if name in result.marks_ns
    )


def _systemd_stages(stamps: Reading, *, init_ns: int) -> dict[str, int]:
    """Return initrd and user space; systemd counts an initrd that is not its own to the kernel."""
    found = {}
    for event in stamps.events:
        if event.layer == STAGE and event.event == "userspace" and event.start_ns is not None:
            found["initrd"] = event.start_ns - init_ns
            found["userspace"] = round(event.value)
    return found


def _read(result: GuestResult, fact: str, reader: _Reader, losses: list[Loss]) -> Reading | None:
    return _read_text(result, fact, result.facts.get(fact, "").encode(), reader, losses)


def _read_text(
    result: GuestResult, name: str, text: bytes | None, reader: _Reader, losses: list[Loss]
) -> Reading | None:
    if not text:
        return None
    options = Options(source=f"{result.configuration}/{name}", configuration=result.configuration)
    try:
        reading = reader(text, options)
    except ExciseError as error:
        losses.append(Loss(source=options.source, reason=error.reason))
        return None
    losses += reading.losses
    return reading


def boot_records(
    boot: GuestBoot, *, configuration: str, first_sequence: int, run: int, clock: str = ""
) -> list[Run | Event | Loss]:
    """Return a boot as journal records: runs of `boot`, and of what is beside it in the sources.

    These are `shutdown`, `boot-units` without a total, and `boot-kernel`: the kernel's start with
    its initcalls or its longest quiet times.

    Args:
        boot: The boot.
        configuration: Its configuration.
        first_sequence: Number of the first of up to four runs.
        run: Number of the boot among those of its configuration, from 0.
        clock: What its nanoseconds are of, kept as a label of each stage.
    """

    def head(task: str, *, sequence: int) -> RunHead:
        return RunHead(
            sequence=sequence,
            block=run,
            task=task,
            configuration=configuration,
            run=run,
            phase="measured",  # every boot is a first one, from the same image
        )

    sequence = first_sequence
    records = one_boot(boot, head=head(BOOT, sequence=sequence), clock=clock)
    if boot.shutdown_ns is not None:
        sequence += 1
        records.append(_run(head(SHUTDOWN, sequence=sequence), wall_ns=boot.shutdown_ns))
        down_ns = float(boot.shutdown_ns)
        records.append(Event(sequence=sequence, layer=STAGE, event=SHUTDOWN, value=down_ns))
    for task in (systemd_analyze.UNITS, dmesg.KERNEL):
        found = _of_task(boot, task)
        if found is not None:
            sequence += 1
            whole, inside = found
            records.append(_run(head(task, sequence=sequence), wall_ns=whole.wall_ns))
            records += [msgspec.structs.replace(event, sequence=sequence) for event in inside]
    return records


def _of_task(boot: GuestBoot, task: str) -> tuple[Run, list[Event]] | None:
    """Return a run that a source has beside the boot itself, with its events."""
    for reading in boot.details:
        for run in reading.runs:
            if run.task == task:
                return run, [event for event in reading.events if event.sequence == run.sequence]
    return None


def one_boot(boot: GuestBoot, *, head: RunHead, clock: str = "") -> list[Run | Event | Loss]:
    """Return a boot as one run with its stages, entries and commands to the TPM.

    Args:
        boot: The boot.
        head: Which run it is.
        clock: What its nanoseconds are of, kept as a label of each stage.
    """
    labels = ",".join(
        part for part in (f"clock={clock}" if clock else "", _mode_label(boot)) if part
    )
    records: list[Run | Event | Loss] = [_run(head, wall_ns=boot.total_ns)]
    begin = 0
    for name, value in boot.stages_ns.items():
        records.append(
            Event(
                sequence=head.sequence,
                layer=STAGE,
                event=name,
                start_ns=begin,
                value=float(value),
                labels=labels,
            )
        )
        begin += value
    records += _counts(boot, sequence=head.sequence, labels=_mode_label(boot))
    records += _inside(boot, sequence=head.sequence)
    return [*records, *boot.losses]


def _run(head: RunHead, *, wall_ns: int | None = None) -> Run:
    return Run(**msgspec.structs.asdict(head), wall_ns=wall_ns, exit_code=0)


def _mode_label(boot: GuestBoot) -> str:
    return f"mode={boot.mode}" if boot.mode else ""


def _counts(boot: GuestBoot, *, sequence: int, labels: str) -> list[Event]:
    found = []
    if boot.entries is not None:
        value = float(boot.entries)
        found.append(
            Event(
                sequence=sequence, layer="ima", event=ENTRIES, value=value, unit="1", labels=labels
            )
        )
    for each in boot.commands:
        found += [
            Event(sequence=sequence, layer="tpm", event=name, value=float(value), unit=unit)
            for name, value, unit in (
                (each.command, each.count, "1"),
                (f"{each.command} sent", each.sent_bytes, "B"),
            )
        ]
    return found


def _inside(boot: GuestBoot, *, sequence: int) -> list[Event]:
    """Return what systemd says of the inside of user space: its own work, target and chain.

    Its time stamps count from the start of the kernel's clock, those of the chain from the start of
    user space; here all count from power-on.
    """
    kernel_ns = boot.stages_ns.get("firmware", 0)
    userspace_ns = boot.total_ns - boot.stages_ns.get("userspace", 0)
    offsets = {"manager": kernel_ns, "critical-chain": userspace_ns, "target": 0}
    return [
        msgspec.structs.replace(
            event,
            sequence=sequence,
            start_ns=None if event.start_ns is None else event.start_ns + offsets[event.layer],
        )
        for reading in boot.details
        for event in reading.events
        if event.layer in offsets
    ]
