"""A machine reached by ssh that enters each configuration by a reboot.

The boot loader is told by its own tool to boot a configuration once; a boot that fails falls back
to what the machine always booted. What came up, and which boot comes next: `boots`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from excise.campaign import boot_state
from excise.campaign.boot_state import BootState
from excise.campaign.schedule import Visit
from excise.campaign.spec import BOOT, Campaign, Configuration, Task
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.boots import (
    ENTERED,
    WENT_DOWN,
    Boots,
    require_boots,
    require_named,
)
from excise.campaign.targets.reboot_stages import BootTimes, boot_records, read_inside
from excise.campaign.targets.rebooting import Rebooter
from excise.campaign.targets.resetting import BootLost, Power, Reboot
from excise.campaign.targets.ssh import Restarted, SshCampaignTarget, SshSession
from excise.capture.journal import Effect, Record, Run, RunHead
from excise.capture.store import Capture
from excise.collect.boot_loaders import require_boot_loader
from excise.collect.host import require_programs
from excise.collect.remote import OutOfReach, Output, RemoteMachine
from excise.collect.remote_probe import ForeignProbe
from excise.errors import HostError

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener


class RebootCampaignTarget(SshCampaignTarget):
    """A machine that is rebooted; see `excise.campaign.targets.Target`."""

    def require(self) -> None:
        """Refuse another machine than the one named, and one that cannot be told what to boot."""
        require_boots(self._campaign, self._spec)
        require_programs([self._spec.reset] if self._spec.reset else [])
        super().require()

    def _look(self, machine: RemoteMachine) -> None:
        shell = InsistingShell(machine)
        require_named(shell, self._spec)
        require_boot_loader(shell)
        super()._look(machine)

    def notes(self) -> list[str]:
        """Say how configurations were entered."""
        return [*super().notes(), ENTERED]

    def _new_session(
        self, capture: Capture, *, machine: RemoteMachine, probe: ForeignProbe, folder: str
    ) -> SshSession:
        return RebootSession(
            self._campaign,
            capture,
            machine=machine,
            probe=probe,
            folder=folder,
            spec=self._spec,
            on_stage=self._on_stage,
        )


class InsistingShell:
    """Scripts over ssh that may be run twice, over as many connections as it takes."""

    def __init__(self, machine: RemoteMachine) -> None:
        self.name = machine.name
        self._machine = machine

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        """Run a script and wait for its end."""
        machine = self._machine
        return machine.insist(lambda: machine.run(script, stdin=stdin, timeout_s=timeout_s))


class RebootSession(SshSession):
    """One span of work on a machine that is rebooted; see `TargetSession` and `BootedMachine`."""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        machine: RemoteMachine,
        probe: ForeignProbe,
        folder: str,
        spec: SshTarget,
        on_stage: StageListener | None,
    ) -> None:
        super().__init__(campaign, capture, machine=machine, probe=probe, folder=folder)
        self._spec = spec
        self._on_stage = on_stage
        self._times: BootTimes | None = None
        self._booting = False
        self._operations: Mapping[str, int] = {}
        self.shell = InsistingShell(machine)

    def prove(self) -> list[Effect]:
        """Return nothing: each boot proves its configuration before its runs."""
        return []

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the probe finds fit there; a boot is one."""
        return 1 if task.workload == BOOT else super().calibrate(task)

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Boot for each visit and measure its runs; at the end restore what was booted before."""
        self._operations = operations
        boot_state.end_pause(self._capture.path)
        boots = Boots(self._campaign, self._capture, machine=self, spec=self._spec, tell=self._tell)
        yield from boots.run(visits)

    def measured(self, visit: Visit) -> Iterator[Run]:
        """Measure runs in the boot that is up."""
        with self._minding_the_boot():
            yield from super().run([visit], operations=self._operations)

    def prove_here(self, configuration: Configuration) -> list[Effect]:
        """Return whether a configuration took effect in the boot that is up."""
        with self._minding_the_boot():
            return self._proven(configuration)

    @contextmanager
    def _minding_the_boot(self) -> Iterator[None]:
        """Raise BootLost where the machine starts anew meanwhile, or hangs and can be reset."""
        try:
            yield
        except Restarted as error:
            self._is_up()
            raise BootLost(WENT_DOWN, source=self._machine.name) from error
        except OutOfReach as error:
            power = self._rebooter(left=self.boot_id).power()
            if power is None:
                raise
            self._booting = True
            raise BootLost(
                f"no answer in {self._spec.give_up} while runs were measured",
                source=self._machine.name,
                power=self._noticed(power),
            ) from error

    def _rebooter(self, *, left: str = "") -> Rebooter:
        return Rebooter(self._machine, spec=self._spec, stopping=self._stopping, left=left)

    def reboot(self) -> Reboot:
        """Reboot and wait until the machine answers in another boot."""
        self._booting = True
        rebooter = self._rebooter()
        booted = rebooter.reboot()
        if isinstance(booted, str):
            power = rebooter.power()
            return Reboot(up=False, hung=booted, power=power and self._noticed(power))
        self._is_up()
        self._times = booted.times
        return Reboot(up=True)

    def _is_up(self) -> None:
        self._booting, self._standing, self._times = False, None, None
        self._machine.insist(self._place)

    def _noticed(self, power: Power) -> Power:
        """Return the same, after which this session goes on in the boot that is up."""

        def wait() -> None:
            power.wait()
            self._is_up()

        return replace(power, wait=wait)

    @property
    def saw_boot(self) -> bool:
        """Return whether the boot that is up was timed from here."""
        return self._times is not None

    def close(self) -> None:
        """As of every session; in the middle of a boot nobody is there to take anything down.

        What is left there the next session takes over, and removes.
        """
        try:
            super().close()
        except HostError:
            if not self._booting:
                raise

    def boot_records(self, head: RunHead, state: BootState) -> tuple[Run, list[Record]]:
        """Return the boot that is up with its times from outside and inside."""
        assert self._times is not None, "boots that nobody saw are made anew"
        inside = read_inside(self.shell)
        for name, data in inside.files(state.boots).items():
            self._capture.replace_raw(name, data)
        return boot_records(head, self._times, inside)

    def _tell(self, arm: str, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage(arm, stage)
