"""Files of one boot as one run: systemd's times, the kernel's log, the number of IMA entries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from excise.capture.journal import Event, Run
from excise.errors import FormatError
from excise.events.same_boot import STAGE, USERSPACE, require_same_boot, stage_lengths
from excise.formats import dmesg, systemd_analyze, systemd_plot, systemd_show
from excise.formats.model import Reading
from excise.formats.systemd_analyze import BOOT, UNITS

ENTRIES: Final = "ima_entries"
# The more exact first: microseconds, milliseconds, and what the kernel alone can tell.
_ORDER: Final = (systemd_show.NAME, systemd_analyze.NAME, dmesg.NAME)
_FORMATS: Final = (*_ORDER, systemd_plot.NAME)
_FIRST: Final[tuple[str, ...]] = ("firmware", "loader", "kernel", "initrd", "soft_reboot")


def merge_boot(
    readings: Sequence[Reading],
    *,
    configuration: str,
    entries: int | None = None,
    mode: str | None = None,
    names: Sequence[str] = (),
    source: str = "-",
) -> Reading:
    """Return the readings of one boot as runs `boot`, `boot-units` and `boot-kernel`.

    Each stage and the total are taken from the most exact source that tells them; an initrd that is
    not systemd's own, which systemd counts to the kernel, from the kernel's log. A boot of which
    nothing tells when user space was ready is incomplete and has no total.

    Args:
        readings: systemd-analyze, systemd-show, systemd-plot and dmesg, in any order.
        configuration: Name of the configuration.
        entries: Entries of the IMA list of this boot.
        mode: How its PCR extends were protected.
        names: What to call each of the readings in errors; their formats if empty.
        source: Name of all of them for errors.

    Raises:
        FormatError: If one is of another format or holds several boots, if two are of different
            boots, or none tells a stage.
    """
    named = list(zip(names or [each.format for each in readings], readings, strict=True))
    for name, reading in named:
        _require_one_boot(reading, source=name if names else source)
    require_same_boot(named, source=None if names else source)
    ordered = sorted(readings, key=lambda each: _FORMATS.index(each.format))
    stages, total_ns = _stages(ordered)
    if not stages:
        raise FormatError(
            "no file tells the stages of the boot",
            source=source,
            hint="Give systemd-analyze time, systemctl show, or dmesg from the first line on",
        )
    runs = [_run(BOOT, configuration, sequence=0, wall_ns=total_ns)]
    events = [
        Event(sequence=0, layer=STAGE, event=name, start_ns=start, value=float(value))
        for name, start, value in stages
    ]
    if entries is not None:
        events.append(_entries(entries, mode=mode))
    events += _details(ordered)
    for task, found in (
        (UNITS, _units(ordered)),
        (dmesg.KERNEL, _of_task(ordered, dmesg.KERNEL)),
    ):
        if found is not None:
            run, inside = found
            sequence = len(runs)
            runs.append(_run(task, configuration, sequence=sequence, wall_ns=run.wall_ns))
            events += [msgspec.structs.replace(event, sequence=sequence) for event in inside]
    clocks = {each.clock.name: each.clock for each in ordered}
    return Reading(
        format="boot",
        runs=runs,
        events=events,
        losses=[loss for each in ordered for loss in each.losses],
        clock=ordered[0].clock,
        clocks=list(clocks.values())[1:],
        facts=list({fact.name: fact for each in ordered for fact in each.facts}.values()),
        notes=list(dict.fromkeys(note for each in ordered for note in each.notes)),
    )


def _require_one_boot(reading: Reading, *, source: str) -> None:
    if reading.format not in _FORMATS:
        raise FormatError(f"{reading.format} tells nothing of a boot", source=source)
    for task in (BOOT, UNITS):
        if sum(run.task == task for run in reading.runs) > 1:
            raise FormatError(
                f"{reading.format} holds several boots, and one is wanted",
                source=source,
                hint="Import it with `excise import`, or give the files of one boot",
            )


def _entries(count: int, *, mode: str | None) -> Event:
    return Event(
        sequence=0,
        layer="ima",
        event=ENTRIES,
        value=float(count),
        unit="1",
        labels=f"mode={mode}" if mode else "",
    )


def _run(task: str, configuration: str, *, sequence: int, wall_ns: int | None) -> Run:
    return Run(
        sequence=sequence,
        block=0,
        task=task,
        configuration=configuration,
        run=0,
        phase="measured",
        wall_ns=wall_ns,
    )


def _stages(ordered: Sequence[Reading]) -> tuple[list[tuple[str, int, int]], int | None]:
    """Return name, start and length of each stage in order, and the total."""
    found: dict[str, tuple[int, int]] = {}
    total_ns: int | None = None
    for reading in ordered:
        boot = next((run for run in reading.runs if run.task == BOOT), None)
        if boot is None:
            continue
        total_ns = boot.wall_ns if total_ns is None else total_ns
        own = stage_lengths(reading, sequence=boot.sequence)
        kernel = found.get("kernel")
        if kernel is not None and "initrd" in own and "initrd" not in found:
            # systemd's kernel ends where user space begins; the log tells where init began.
            of_log = own["kernel"]
            if of_log < kernel[1]:
                found["initrd"] = (0, kernel[1] - of_log)
                found["kernel"] = (0, of_log)
        for name, value in own.items():
            found.setdefault(name, (0, value))
    names = [name for name in _FIRST if name in found]
    names += [name for name in found if name not in names]
    begin, stages = 0, []
    for name in names:
        stages.append((name, begin, found[name][1]))
        begin += found[name][1]
    return stages, total_ns if USERSPACE in found else None


def _details(ordered: Sequence[Reading]) -> list[Event]:
    """Return what is inside the stages: systemd's own work, target, chain, modules."""
    found: dict[tuple[str, str, int | None], Event] = {}
    for reading in ordered:
        boot = next((run for run in reading.runs if run.task == BOOT), None)
        for event in reading.events:
            if boot is not None and event.sequence == boot.sequence and event.layer != STAGE:
                key = (event.layer, event.event, event.start_ns)
                found.setdefault(key, msgspec.structs.replace(event, sequence=0))
    return list(found.values())


def _units(ordered: Sequence[Reading]) -> tuple[Run, list[Event]] | None:
    """Return the units, of the source that tells their beginnings where there is one."""
    return _of_task(sorted(ordered, key=lambda each: each.format != systemd_plot.NAME), UNITS)


def _of_task(ordered: Sequence[Reading], task: str) -> tuple[Run, list[Event]] | None:
    for reading in ordered:
        for run in reading.runs:
            if run.task == task:
                inside: list[Any] = [e for e in reading.events if e.sequence == run.sequence]
                return run, inside
    return None
