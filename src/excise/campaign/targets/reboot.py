"""A machine reached by ssh that enters each configuration by a reboot.

The boot loader is told by its own tool to boot a configuration once; a boot that fails falls back
to what the machine always booted. `/proc/cmdline` says which configuration really came up, and the
effect checks are asked in every boot, before its runs.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from excise.campaign import boot_state
from excise.campaign.boot_state import BootState
from excise.campaign.schedule import Visit
from excise.campaign.spec import BOOT, Campaign, Task
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.reboot_stages import BootTimes, boot_records, read_inside
from excise.campaign.targets.ssh import SshCampaignTarget, SshSession, address_of, seconds_of
from excise.capture.journal import Effect, Loss, Run, RunHead
from excise.capture.store import Capture
from excise.collect.remote import ConnectionLost, RemoteMachine
from excise.collect.remote_boots import MARK, BootEntry, BootLoader, boot_loader
from excise.collect.remote_probe import ForeignProbe
from excise.errors import EffectError, HostError, SpecError

if TYPE_CHECKING:
    from excise.campaign.targets import StageListener

# The connection must have been answered before the machine goes down.
REBOOT: Final = (
    "(sleep 1; systemctl reboot 2>/dev/null || reboot) </dev/null >/dev/null 2>&1 & date +%s.%N"
)
_LOOK_S: Final = 0.25
_SPARE: Final = 2


class RebootCampaignTarget(SshCampaignTarget):
    """A machine that is rebooted; see `excise.campaign.targets.Target`."""

    def require(self) -> None:
        """Refuse another machine than the one named, and one that cannot be told what to boot."""
        for index, task in enumerate(self._campaign.tasks):
            if task.workload == BOOT and task.events is not None:
                raise SpecError("a boot prints nothing", key=f"tasks[{index}].events")
        _require_name(self._spec)
        super().require()

    def _look(self, machine: RemoteMachine) -> None:
        require_named(machine, self._spec)
        machine.insist(lambda: boot_loader(machine))
        super()._look(machine)

    def notes(self) -> list[str]:
        """Say how configurations were entered."""
        entered = (
            "Each configuration was entered by a reboot; a value of a block is the median of a "
            "boot's runs, and the first run of each task after a boot is kept apart."
        )
        return [*super().notes(), entered]

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What undoing did.

    Attributes:
        loader: The boot loader that is as it was.
        rebooted: Whether the machine was rebooted into what it always booted.
    """

    loader: str
    rebooted: bool


def undo_boots(campaign: Campaign, capture: Path, *, reboot: bool = True) -> Restored:
    """Restore the boot configuration of a campaign's machine; nothing else of it is needed.

    Args:
        campaign: The campaign.
        capture: Its capture.
        reboot: Whether to reboot where one of the campaign's configurations is up.

    Raises:
        HostError: If the machine is not the named one, or what was there cannot be restored.
    """
    spec = campaign.target
    assert isinstance(spec, SshTarget)
    with RemoteMachine(address_of(spec)) as machine:
        machine.connect()
        require_named(machine, spec)
        loader = boot_loader(machine)
        loader.undo()
        up = machine.run("cat /proc/cmdline").text
        rebooted = reboot and MARK in up
        if rebooted:
            machine.run(REBOOT)
    boot_state.read_state(capture).restored().save(capture)
    return Restored(loader=loader.name, rebooted=rebooted)


def require_named(machine: RemoteMachine, spec: SshTarget) -> None:
    """Refuse a machine that is not the one named.

    Raises:
        HostError: If it is another.
    """
    _require_name(spec)
    names = machine.insist(lambda: machine.run("uname -n; cat /etc/machine-id")).text.split()
    if spec.machine not in names:
        raise HostError(
            f"is {' / '.join(names)} and not {spec.machine}: nothing was changed on it",
            source=machine.name,
            hint="Reboots are for the machine that the file names: target.machine",
        )


def _require_name(spec: SshTarget) -> None:
    if not spec.machine:
        raise SpecError(
            "is needed where reboot = true: the host name or machine id of the machine",
            key="target.machine",
        )


def entries_of(campaign: Campaign) -> list[BootEntry]:
    """Return the boot entry of each configuration."""
    return [
        BootEntry(number=number, words=tuple(each.cmdline.split()))
        for number, each in enumerate(campaign.configurations)
    ]


class RebootSession(SshSession):
    """One span of work on a machine that is rebooted; see `TargetSession`."""

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
        self._entries = entries_of(campaign)
        self._state = BootState()
        self._loader: BootLoader | None = None
        self._times: BootTimes | None = None
        self._most_boots = spec.max_boots or _SPARE * (
            (campaign.warmup + campaign.blocks) * len(campaign.arms) + 1
        )

    def prove(self) -> list[Effect]:
        """Return nothing: each boot proves its configuration before its runs."""
        return []

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the probe finds fit there; a boot is one."""
        return 1 if task.workload == BOOT else super().calibrate(task)

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Boot for each visit and measure its runs; at the end restore what was booted before."""
        self._launches.operations = operations
        path = self._capture.path
        boot_state.end_pause(path)
        self._state = boot_state.read_state(path)
        self._loader = boot_loader(self._machine)
        self._loader.install(self._entries)
        self._state.loader = self._loader.name
        self._state.save(path)
        for visit in visits:
            if boot_state.wants_pause(path):
                raise KeyboardInterrupt  # as if the user had asked here
            yield from self._visited(visit)
        self._restore()

    def _visited(self, visit: Visit) -> Iterator[Run]:
        block = visit.heads[0].block
        if visit.arm not in self._state.skipped and not self._is_up_for(visit.arm, block):
            self._enter(visit.arm, block)
        if visit.arm in self._state.skipped:
            yield from self._skipped(visit)
            return
        self._require_effects(visit.arm)
        for head in visit.heads:
            if self._campaign.task(head.task).workload == BOOT:
                yield self._boot_run(head)
                continue
            self._running = self._pool.submit(self._measure, head)
            yield self._running.result()
            self._running = None

    def _is_up_for(self, arm: str, block: int) -> bool:
        """Tell whether the machine is up in the boot that was made for these runs."""
        state = self._state
        return (state.arm, state.block, state.boot_id) == (arm, block, self.boot_id)

    def _enter(self, arm: str, block: int) -> None:
        """Boot an arm's configuration; note the arm as skipped where it does not come up."""
        number = self._campaign.configurations.index(self._campaign.configuration_of(arm))
        entry, attempts = self._entries[number], self._spec.boot_attempts
        for attempt in range(1, attempts + 1):
            reason = self._boot(entry, arm)
            if reason is None:
                self._state.arm, self._state.block = arm, block
                self._state.boot_id = self.boot_id
                self._state.save(self._capture.path)
                return
            self._state.failed += 1
            self._state.save(self._capture.path)
            self._capture.append(
                Loss(
                    source=f"boot {self._state.boots}",
                    reason=f"attempt {attempt} of {attempts} to boot {arm!r} in block {block}: "
                    f"{reason}",
                )
            )
        self._state.skipped.append(arm)
        self._state.save(self._capture.path)

    def _skipped(self, visit: Visit) -> Iterator[Run]:
        error = f"{visit.arm!r} failed to boot {self._spec.boot_attempts} times and is skipped"
        runs = [Run(**msgspec.structs.asdict(head), ok=False, error=error) for head in visit.heads]
        self._capture.extend(list(runs))
        yield from runs

    def _boot(self, entry: BootEntry | None, arm: str) -> str | None:
        """Reboot; return why the wanted configuration is not up, or None.

        Args:
            entry: What to boot; None for what the machine boots by itself.
            arm: Name for what is shown meanwhile.

        Raises:
            HostError: If the most boots were made, or the machine does not come back.
        """
        if entry is not None:
            self._count_boot()
            assert self._loader is not None
            self._loader.choose(entry)
        self._tell(arm, "reboot")
        before = self.boot_id
        begun = time.monotonic_ns()
        asked_at = float(self._machine.run(REBOOT).text or 0)
        silent = self._wait_for_silence()
        self._come_back(before)
        answered = time.monotonic_ns()
        self._place()
        up = self._machine.run("cat /proc/uptime; cat /proc/cmdline", timeout_s=60.0)
        read_ns = time.monotonic_ns()
        uptime, _, cmdline = up.text.partition("\n")
        self._times = BootTimes(
            asked_ns=begun,
            silent_ns=silent,
            kernel_ns=read_ns - round(float(uptime.split()[0]) * 1e9),
            answered_ns=answered,
            asked_at_s=asked_at,
        )
        self._tell(arm, "up")
        words = cmdline.split()
        marks = [word for word in words if word.startswith(MARK)]
        wanted = [] if entry is None else [entry.mark]
        if marks != wanted:
            came = marks[0] if marks else "the configuration it always had"
            return f"came up as {came}"
        missing = [] if entry is None else [word for word in entry.words if word not in words]
        return f"/proc/cmdline lacks {' '.join(missing)}" if missing else None

    def _count_boot(self) -> None:
        if self._state.boots >= self._most_boots:
            raise HostError(
                f"{self._most_boots} boots were made, the most that were allowed",
                source=self._machine.name,
                hint="Runs are kept. Raise max_boots and run again, or `excise campaign undo`",
            )
        self._state.boots += 1
        self._state.save(self._capture.path)

    def _wait_for_silence(self) -> int:
        """Return when the machine was heard last, in nanoseconds of CLOCK_MONOTONIC here."""
        deadline = time.monotonic() + seconds_of(self._spec.boot_timeout, "boot_timeout")
        heard = time.monotonic_ns()
        while time.monotonic() < deadline:
            try:
                self._machine.run("true", timeout_s=self._machine.address.connect_timeout_s)
            except ConnectionLost:
                break
            heard = time.monotonic_ns()
            time.sleep(_LOOK_S)
        return heard

    def _come_back(self, before: str) -> None:
        """Wait until the machine answers in another boot; switch it off and on where that fails.

        Raises:
            HostError: If it never does.
        """
        for last in (not self._spec.reset, True):
            deadline = time.monotonic() + seconds_of(self._spec.boot_timeout, "boot_timeout")
            while time.monotonic() < deadline and not self._stopping.is_set():
                try:
                    self._machine.connect()
                    if self._boot_id(self._machine) != before:
                        return
                except ConnectionLost:
                    pass
                time.sleep(_LOOK_S)
            if last:
                break
            subprocess.run(self._spec.reset, check=False, capture_output=True)
        raise HostError(
            f"did not come back in {self._spec.boot_timeout} after a reboot",
            source=self._machine.name,
            hint="Switch it off and on: it then boots what it always did. Run again to resume",
        )

    def _require_effects(self, arm: str) -> None:
        """Ask whether the configuration took effect in this boot; write the answers down.

        Raises:
            EffectError: If it did not.
        """
        configuration = self._campaign.configuration_of(arm)
        entry = self._entries[self._campaign.configurations.index(configuration)]
        wanted = (*entry.words, entry.mark)
        up = self._machine.insist(lambda: self._machine.run("cat /proc/cmdline")).text.split()
        cmdline = Effect(
            configuration=arm,
            check="file /proc/cmdline",
            expected=" ".join(wanted),
            got=" ".join(word for word in up if word in wanted),
            outcome="PASSED" if set(wanted) <= set(up) else "FAILED",
        )
        effects = self._insist(lambda launcher: self._prove(configuration, launcher))
        effects = [cmdline, *(msgspec.structs.replace(e, configuration=arm) for e in effects)]
        self._capture.extend(list(effects))
        if failed := [each for each in effects if each.outcome == "FAILED"]:
            lines = [f"{each.check}: expected {each.expected}, got {each.got}" for each in failed]
            raise EffectError(
                f"{arm} was booted and did not take effect: {'; '.join(lines)}",
                source=self._machine.name,
                hint="Nothing was measured under it. `excise campaign undo` restores the machine",
            )

    def _boot_run(self, head: RunHead) -> Run:
        """Write the boot itself down: its times from outside and inside."""
        if self._times is None:  # this boot was made by an earlier session
            run = Run(
                **msgspec.structs.asdict(head), ok=False, error="excise was not there at the boot"
            )
            self._capture.append(run)
            return run
        inside = self._machine.insist(lambda: read_inside(self._machine))
        for name, data in inside.files(self._state.boots).items():
            self._capture.replace_raw(name, data)
        run, records = boot_records(head, self._times, inside)
        self._capture.extend([run, *records])
        return run

    def _restore(self) -> None:
        """Take our entries away and boot what the machine always booted."""
        assert self._loader is not None
        self._loader.undo()
        reason = self._boot(None, "original configuration")
        if reason is not None:
            raise HostError(f"the original configuration is not up: {reason}")
        self._state = self._state.restored()
        self._state.save(self._capture.path)
        self._tell("original configuration", "done")

    def _tell(self, arm: str, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage(arm, stage)
