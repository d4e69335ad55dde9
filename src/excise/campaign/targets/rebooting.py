"""One reboot of a machine elsewhere, asked for and watched from here until it answers again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Final

from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.reboot_stages import BootTimes
from excise.campaign.targets.resetting import Power
from excise.collect.boot_entries import MARK
from excise.collect.remote import RemoteMachine
from excise.errors import ConnectionLost, HostError
from excise.units import parse_seconds

# The connection must have been answered before the machine goes down.
REBOOT: Final = (
    "(sleep 1; systemctl reboot 2>/dev/null || reboot) </dev/null >/dev/null 2>&1 & date +%s.%N"
)
_LOOK_S: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Booted:
    """A boot that came up.

    Attributes:
        times: What was seen of it from here.
        words: Words of its `/proc/cmdline`.
    """

    times: BootTimes
    words: tuple[str, ...]

    @property
    def marks(self) -> list[str]:
        """Return the words that say which entry of ours it is."""
        return marks_of(self.words)


def marks_of(words: tuple[str, ...]) -> list[str]:
    """Return the words of a command line that say which entry of ours was booted."""
    return [word for word in words if word.startswith(MARK)]


def boot_id(machine: RemoteMachine) -> str:
    """Return the kernel's identifier of the machine's present boot."""
    return machine.run("cat /proc/sys/kernel/random/boot_id").text.strip()


class Rebooter:
    """Reboots a machine; what it boots into is told to its boot loader beforehand."""

    def __init__(
        self,
        machine: RemoteMachine,
        *,
        spec: SshTarget,
        stopping: threading.Event | None = None,
        left: str = "",
    ) -> None:
        """Take a machine, and the identifier of a boot in which it no longer answers, if any."""
        self._machine = machine
        self._spec = spec
        self._stopping = stopping or threading.Event()
        self._timeout_s = parse_seconds(spec.boot_timeout)
        self._left = left  # the boot that was left

    def reboot(self) -> Booted | str:
        """Reboot and wait until the machine answers in another boot.

        Returns what was seen of it, or why the machine is taken for one that hangs.
        """
        machine = self._machine
        self._left = machine.insist(lambda: boot_id(machine))
        begun = time.monotonic_ns()
        # Once only: an answer that is lost may have been given, and a second reboot is another one.
        asked_at = float(machine.run(REBOOT).text or 0)
        heard, went_down = self._wait_for_silence()
        if not self.comes_back():
            limit = self._spec.boot_timeout
            return f"no answer in {limit}" if went_down else f"it did not go down in {limit}"
        answered = time.monotonic_ns()
        up = machine.insist(lambda: machine.run("cat /proc/uptime; cat /proc/cmdline"))
        read = time.monotonic_ns()
        uptime, _, cmdline = up.text.partition("\n")
        times = BootTimes(
            asked_ns=begun,
            silent_ns=heard,
            kernel_ns=read - round(float(uptime.split()[0]) * 1e9),
            answered_ns=answered,
            asked_at_s=asked_at,
        )
        return Booted(times=times, words=tuple(cmdline.split()))

    def comes_back(self) -> bool:
        """Wait until the machine answers in another boot than the one that was left."""
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline and not self._stopping.is_set():
            try:
                self._machine.connect()
                if boot_id(self._machine) not in ("", self._left):
                    return True
            except ConnectionLost:
                pass
            time.sleep(_LOOK_S)
        return False

    def power(self) -> Power | None:
        """Return what switches the machine off and on where it hangs."""
        spec = self._spec
        if not spec.reset:
            return None
        return Power(words=spec.reset, timeout=spec.reset_timeout, wait=self._wait_after_reset)

    def _wait_after_reset(self) -> None:
        if not self.comes_back():
            raise HostError(
                f"did not come back in {self._spec.boot_timeout} after its reset either",
                source=self._machine.name,
                hint="Look at its console: it must boot what it always did. Runs are kept: once it "
                "is up, run again to resume",
            )

    def _wait_for_silence(self) -> tuple[int, bool]:
        """Return when the machine was heard last, by CLOCK_MONOTONIC here, and if it is silent."""
        deadline = time.monotonic() + self._timeout_s
        heard = time.monotonic_ns()
        while time.monotonic() < deadline:
            try:
                self._machine.run("true", timeout_s=self._machine.address.connect_timeout_s)
            except ConnectionLost:
                return heard, True
            heard = time.monotonic_ns()
            time.sleep(_LOOK_S)
        return heard, False
