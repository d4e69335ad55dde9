"""`systemctl show` of the manager: the time stamps that systemd-analyze computes from.

They are in microseconds of CLOCK_MONOTONIC, where systemd-analyze prints milliseconds, and hold
what it leaves out: when the security module's policy (SELinux, AppArmor, SMACK, IMA) was loaded.

Source: systemd, src/core/dbus-manager.c and src/analyze/analyze-time-data.c, release 252.
"""

from __future__ import annotations

import re
from typing import Any, Final

from excise.capture.journal import Event, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.systemd_analyze import BOOT, USERSPACE
from excise.formats.text import lines, loss, merged_losses, number_runs

NAME: Final = "systemd-show"
_PROPERTY = re.compile(r"([A-Za-z]{1,80})TimestampMonotonic=([0-9]{1,20})")
_HEAD = re.compile(rb"^(?:Userspace|Finish)TimestampMonotonic=[0-9]{1,20}\r?$", re.MULTILINE)
_OTHER = re.compile(r"[A-Za-z]{1,80}=.*")
_UNSET: Final = 2**64 - 1
_MAX_US: Final = 2**63 // 1000
# Events inside user space, or inside the initrd: name and the prefix of its two stamps.
_PARTS: Final = (
    ("security", "Security"),
    ("generators", "Generators"),
    ("units_load", "UnitsLoad"),
)


def detect(head: bytes) -> float:
    """Return 1.0 if both ends of user space have a monotonic time stamp, 0.6 for one."""
    found = {match[0].split(b"T")[0] for match in _HEAD.finditer(head)}
    return 1.0 if len(found) == 2 else 0.6 if found else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return one run of task `boot` for each set of time stamps.

    Raises:
        FormatError: If user space has no beginning or no end (the boot was not finished).
    """
    losses: list[Loss] = []
    sets: list[dict[str, int]] = [{}]
    unknown = 0
    for number, line in enumerate(lines(data), start=1):
        match = _PROPERTY.fullmatch(line)
        if match is None:
            unknown += bool(line.strip()) and not _OTHER.fullmatch(line[:200])
            continue
        name, value = match[1], int(match[2])
        if value == _UNSET:
            continue  # systemd's word for "never"
        if value >= _MAX_US:
            losses.append(loss(options.source, number, f"{name} does not fit in 64 bits", line))
        elif sets[-1].get(name, value) != value:
            sets.append({name: value})  # another boot: the same property with another value
        else:
            sets[-1][name] = value
    drafts: list[dict[str, Any]] = []
    events: list[Event] = []
    for stamps in sets:
        _boot(stamps, options, drafts, events, losses)
    if not drafts:
        raise FormatError(
            "the time stamps of a finished boot are missing",
            source=options.source,
            line=1,
            field="FinishTimestampMonotonic",
        )
    return Reading(
        format=NAME,
        runs=number_runs(drafts),
        events=events,
        losses=merged_losses(losses),
        clock=Clock(name="CLOCK_MONOTONIC (systemd)", resolution_ns=1000.0),
        notes=[f"{unknown} other lines"] if unknown else [],
    )


def _boot(
    stamps: dict[str, int],
    options: Options,
    drafts: list[dict[str, Any]],
    events: list[Event],
    losses: list[Loss],
) -> None:
    """Append the run and events of one boot."""
    userspace, finish = stamps.get("Userspace", 0), stamps.get("Finish", 0)
    if not userspace or finish < userspace:
        if stamps:
            losses.append(loss(options.source, 1, "the boot was not finished, or did not begin"))
        return
    sequence = len(drafts)
    initrd = stamps.get("InitRD", 0)
    kernel_end = initrd if 0 < initrd <= userspace else userspace
    # Firmware and loader count backwards from the start of the kernel.
    firmware, loader = stamps.get("Firmware", 0), stamps.get("Loader", 0)
    stages = [
        ("firmware", -firmware, firmware - loader),
        ("loader", -loader, loader),
        ("kernel", 0, kernel_end),
        ("initrd", kernel_end, userspace - kernel_end),
        ("userspace", userspace, finish - userspace),
    ]
    for name, start, length in stages:
        if length > 0:
            events.append(_event(sequence, "stage", name, start, length, None))
    for prefix, parent, inside in (("", USERSPACE, True), ("InitRD", "stage|initrd", bool(initrd))):
        for name, stem in _PARTS:
            begin = stamps.get(f"{prefix}{stem}Start", 0)
            end = stamps.get(f"{prefix}{stem}Finish", 0)
            if inside and 0 < begin <= end:
                events.append(_event(sequence, "manager", name, begin, end - begin, parent))
    drafts.append(
        {
            "task": options.task or BOOT,
            "configuration": options.configuration or DEFAULT_CONFIGURATION,
            "wall_ns": (finish + max(firmware, loader)) * 1000,
        }
    )


def _event(
    sequence: int, layer: str, name: str, start_us: int, length_us: int, parent: str | None
) -> Event:
    return Event(
        sequence=sequence,
        layer=layer,
        event=name,
        value=float(length_us * 1000),
        parent=parent,
        start_ns=start_us * 1000,
    )


FORMAT: Final = Format(
    name=NAME,
    title="systemctl show: monotonic time stamps of a boot",
    detect=detect,
    read=read,
)
