"""A reboot from outside (when it was silent) and inside (what systemd says), reconciled."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

import msgspec

from excise.capture.journal import Event, Loss, Record, Run, RunHead
from excise.collect.boot import COMMANDS
from excise.collect.boot_entries import Shell
from excise.errors import ExciseError
from excise.events.one_boot import merge_boot
from excise.formats.model import Options, Reading
from excise.formats.registry import read

OUTSIDE: Final = "outside"
INSIDE: Final = "inside"
SHUTDOWN: Final = "shutdown to the last log line"
_LONGEST_SHUTDOWN_S: Final = 3600.0
_MARK: Final = "@excise-boot "
# Last line of the boot before, where the journal is kept; when sshd listened in this one; when its
# kernel's clock began, by the wall clock.
_FURTHER: Final = {
    "last-line": "journalctl -b -1 -q --no-pager -o short-unix -n 1 | cut -d' ' -f1",
    "sshd": "systemctl show -p ActiveEnterTimestampMonotonic --value ssh.service sshd.service",
    "kernel-began": "awk -v now=$(date +%s.%N) '{printf \"%.3f\\n\", now - $1}' /proc/uptime",
    "entries": "cat /sys/kernel/security/ima/runtime_measurements_count",
}
_WAIT: Final = "timeout 120 systemctl is-system-running --wait >/dev/null 2>&1\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootTimes:
    """A reboot as it was seen from here, in nanoseconds of CLOCK_MONOTONIC.

    Attributes:
        asked_ns: The reboot was asked for.
        silent_ns: The machine was heard last.
        kernel_ns: The kernel's clock began, by `/proc/uptime`.
        answered_ns: We were logged in again.
        asked_at_s: The machine's own wall clock when it was asked, in seconds.
    """

    asked_ns: int
    silent_ns: int
    kernel_ns: int
    answered_ns: int
    asked_at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What the machine tells of its boot: outputs by name, and why others are missing."""

    outputs: dict[str, bytes]
    missing: dict[str, str]

    def files(self, number: int) -> dict[str, bytes]:
        """Return the raw files of boot number so and so."""
        return {f"boot{number}.{name}": data for name, data in self.outputs.items()}


def read_inside(machine: Shell) -> Inside:
    """Return what the machine tells of its boot, once it has finished."""
    questions = {name: shlex.join(words) for name, words in COMMANDS.items()} | _FURTHER
    script = _WAIT + "".join(
        f"echo {shlex.quote(_MARK + name)}; ( {command} ) 2>&1; echo; echo {_MARK}= $?\n"
        for name, command in questions.items()
    )
    text = machine.run(script, timeout_s=300.0).text
    outputs, missing = {}, {}
    for part in text.split(_MARK)[1:]:
        name, _, rest = part.partition("\n")
        if name in questions:
            data = rest.strip()
            if data and not data.startswith(("sh:", "/bin/sh:")):
                outputs[name] = data.encode() + b"\n"
            else:
                missing[name] = data or "it printed nothing"
    return Inside(outputs=outputs, missing=missing)


def boot_records(head: RunHead, times: BootTimes, inside: Inside) -> tuple[Run, list[Record]]:
    """Return a boot as a run, with its stages from outside and inside and how they fit.

    From outside, `shutdown` is until the last answer, `dark` until the kernel's clock began
    (firmware, boot loader, and what of the shutdown came after the network), `kernel to login` the
    rest; they sum to the run's time. `reconciled` is what outside adds to systemd's own account of
    the time until sshd listened.
    """
    run = Run(
        **msgspec.structs.asdict(head),
        start_ns=times.asked_ns,
        wall_ns=times.answered_ns - times.asked_ns,
        exit_code=0,
    )
    kernel_ns = min(max(times.kernel_ns, times.silent_ns), times.answered_ns)
    to_login_ns = times.answered_ns - kernel_ns
    spans = (
        ("shutdown", times.asked_ns, times.silent_ns),
        ("dark", times.silent_ns, kernel_ns),
        ("kernel to login", kernel_ns, times.answered_ns),
    )
    events = [_event(head, OUTSIDE, name, end - start, start) for name, start, end in spans]
    told, losses = _told(head, inside)
    events += told
    if stamps := _numbers(inside.outputs.get("sshd", b"")):
        listening_ns = round(max(stamps) * 1000)
        events.append(_event(head, INSIDE, "kernel to sshd", listening_ns))
        events.append(_event(head, "reconciled", "login after sshd", to_login_ns - listening_ns))
    logged_ns = _logged_ns(inside, times.asked_at_s)
    if logged_ns is not None and logged_ns < kernel_ns - times.asked_ns + 1e9:
        events.append(_event(head, INSIDE, SHUTDOWN, logged_ns))
        silence_ns = times.silent_ns - times.asked_ns
        events.append(
            _event(head, "reconciled", "silent before the last line", logged_ns - silence_ns)
        )
    return run, [*events, *losses]


def inside_records(head: RunHead, inside: Inside, *, asked_at_s: float) -> tuple[Run, list[Record]]:
    """Return a boot as a run where nothing outside looked.

    The run is from the beginning of the kernel's clock to systemd's `Startup finished`. Of what lay
    before, `shutdown` is timed by one clock; `dark`, until the kernel began (firmware, boot loader,
    the end of the shutdown), is between two readings of the real-time clock, good to a second.

    Args:
        head: The run.
        inside: What the machine tells.
        asked_at_s: Its wall clock when the reboot was asked for, in seconds.
    """
    events, losses = _told(head, inside)
    logged_ns = _logged_ns(inside, asked_at_s)
    if logged_ns is not None:
        events.append(_event(head, INSIDE, SHUTDOWN, logged_ns))
        if began := _numbers(inside.outputs.get("kernel-began", b"")):
            dark_ns = round((began[0] - asked_at_s) * 1e9) - logged_ns
            if dark_ns > 0:
                events.append(_event(head, INSIDE, "dark", dark_ns))
            else:
                reason = "the wall clock was set between the two boots"
                losses.append(Loss(source=f"boot of {head.configuration}: dark", reason=reason))
    identity = msgspec.structs.asdict(head)
    finished = re.search(
        rb"^FinishTimestampMonotonic=([1-9]\d*)$", inside.outputs.get("systemd-show", b""), re.M
    )
    if finished is None:
        error = "systemd does not say when the startup finished"
        return Run(**identity, ok=False, error=error), [*events, *losses]
    run = Run(**identity, start_ns=0, wall_ns=int(finished[1]) * 1000, exit_code=0)
    return run, [*events, *losses]


def _logged_ns(inside: Inside, asked_at_s: float) -> int | None:
    """Return the time from the reboot's being asked for to the last line that was logged of it."""
    last = _numbers(inside.outputs.get("last-line", b""))
    seconds = last[0] - asked_at_s if last else 0.0
    return round(seconds * 1e9) if 0 < seconds < _LONGEST_SHUTDOWN_S else None


def _told(head: RunHead, inside: Inside) -> tuple[list[Event], list[Loss]]:
    """Return the stages that the machine tells, and what it did not tell."""
    missing = [
        Loss(source=f"boot of {head.configuration}: {name}", reason=reason)
        for name, reason in inside.missing.items()
    ]
    stages, losses = _stages(head, inside)
    return stages, [*missing, *losses]


def _stages(head: RunHead, inside: Inside) -> tuple[list[Event], list[Loss]]:
    """Return the stages that systemd and the kernel's log tell, and what could not be read."""
    readings: list[Reading] = []
    losses: list[Loss] = []
    for name in COMMANDS:
        if name not in inside.outputs:
            continue
        try:
            readings.append(read(inside.outputs[name], options=Options(source=name)))
        except ExciseError as error:
            losses.append(Loss(source=name, reason=error.reason))
    count = inside.outputs.get("entries", b"").strip()
    try:
        merged = merge_boot(
            readings,
            configuration=head.configuration,
            entries=int(count) if count.isdigit() else None,
            source=f"boot of {head.configuration}",
        )
    except ExciseError as error:
        return [], [*losses, Loss(source=f"boot of {head.configuration}", reason=error.reason)]
    events = [
        msgspec.structs.replace(event, sequence=head.sequence)
        for event in merged.events
        if event.sequence == 0
    ]
    return events, losses


def _event(
    head: RunHead, layer: str, name: str, value_ns: int, start_ns: int | None = None
) -> Event:
    return Event(
        sequence=head.sequence, layer=layer, event=name, value=float(value_ns), start_ns=start_ns
    )


def _numbers(text: bytes) -> list[float]:
    found = []
    for word in text.split():
        try:
            number = float(word)
        except ValueError:
            continue
        if number > 0:
            found.append(number)
    return found
