"""This machine as a target that enters each configuration by a reboot.

A boot ends this process. What comes after it is another's, started by a systemd unit
(`excise.collect.resume_unit`), which goes on from what is in the capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from excise.campaign import boot_state
from excise.campaign.boot_state import BootState
from excise.campaign.schedule import Visit
from excise.campaign.spec import BOOT, Campaign, Task
from excise.campaign.target_spec import LocalTarget
from excise.campaign.targets.boots import ENTERED, Boots, require_boots, require_named
from excise.campaign.targets.local import LocalCampaignTarget, LocalSession
from excise.campaign.targets.reboot_stages import inside_records, read_inside
from excise.campaign.targets.resetting import Reboot
from excise.capture.journal import Effect, Loss, Record, Run, RunHead
from excise.capture.store import Capture
from excise.collect import resume_unit
from excise.collect.boot_loaders import require_boot_loader
from excise.collect.host import file_system_fact
from excise.collect.local_shell import LocalShell
from excise.errors import HostError, SpecError
from excise.units import parse_seconds

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener

_SEEN_FROM_INSIDE: Final = (
    "Nothing outside looked at the boots: `boot` is from the beginning of the kernel's clock to "
    "systemd's `Startup finished`; what lay before it is told by the machine's own log."
)
_SPARE_S: Final = 30.0
_IN_MEMORY: Final = ("tmpfs", "ramfs", "devtmpfs")
_CLEANED: Final = ("/tmp", "/run")


class LocalRebootTarget(LocalCampaignTarget):
    """The machine that excise runs on, rebooted; see `excise.campaign.targets.Target`."""

    def __init__(
        self, campaign: Campaign, *, spec: LocalTarget, on_stage: StageListener | None
    ) -> None:
        super().__init__(campaign)
        self._spec = spec
        self._on_stage = on_stage

    def require(self) -> None:
        """Refuse a machine that is not the one named, or that cannot be told what to boot."""
        require_boots(self._campaign, self._spec)
        shell = LocalShell()
        require_named(shell, self._spec)
        require_boot_loader(shell)
        resume_unit.require_systemd(shell)
        self._require_panic(shell.run("cat /proc/cmdline").text.split())
        super().require()

    def _require_panic(self, always: list[str]) -> None:
        """Refuse configurations in which a panic would leave the machine down."""
        for number, configuration in enumerate(self._campaign.configurations):
            words = (*always, *configuration.boot_words)
            if not any(word.startswith("panic=") for word in words):
                raise SpecError(
                    "lacks panic=: after a panic this machine would not start again by itself",
                    key=f"configurations[{number}].cmdline",
                    hint="panic=10 starts it after 10 s, with what it always boots",
                )

    def notes(self) -> list[str]:
        """Say how configurations were entered, and from where boots were seen."""
        return [*super().notes(), ENTERED, _SEEN_FROM_INSIDE]

    def _new_session(self, capture: Capture, *, work_directory: str) -> LocalSession:
        return LocalRebootSession(
            self._campaign,
            capture,
            work_directory=work_directory,
            spec=self._spec,
            on_stage=self._on_stage,
        )


class LocalRebootSession(LocalSession):
    """One span of work between two boots; see `TargetSession` and `BootedMachine`."""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        work_directory: str,
        spec: LocalTarget,
        on_stage: StageListener | None,
    ) -> None:
        super().__init__(campaign, capture, work_directory=work_directory)
        self._spec = spec
        self._on_stage = on_stage
        self._operations: Mapping[str, int] = {}
        self.shell = LocalShell()
        resume_unit.require_free(capture.path)
        _require_lasting(capture.path)

    @property
    def saw_boot(self) -> bool:
        """Return whether the boot that is up can be told: the machine itself tells it."""
        return True

    def prove(self) -> list[Effect]:
        """Return nothing: each boot proves its configuration before its runs."""
        return []

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the probe finds fit here; a boot is one."""
        return 1 if task.workload == BOOT else super().calibrate(task)

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Go on until the next boot, which is asked for but not made; see `boot_state.Asked`."""
        self._operations = operations
        path, ours = self._capture.path, resume_unit.is_ours()
        if not ours:
            boot_state.end_pause(path)
        self._wait_until_settled()
        boots = Boots(
            self._campaign,
            self._capture,
            machine=self,
            spec=self._spec,
            tell=self._tell,
            # Runs have the unit's environment, all of them.
            goes_on=ours,
        )
        try:
            done = yield from boots.run(visits)
        except KeyboardInterrupt:
            if boot_state.wants_pause(path):
                resume_unit.remove(self.shell)
            raise
        if done:
            resume_unit.remove(self.shell)

    def measured(self, visit: Visit) -> Iterator[Run]:
        """Measure runs in the boot that is up."""
        return super().run([visit], operations=self._operations)

    def reboot(self) -> Reboot:
        """Have the unit go on after the boot, which the runner makes once all is written."""
        path = self._capture.path
        work = self._campaign.work_directory
        resume_unit.install(
            self.shell,
            capture=path,
            words=("campaign", "resume", str(path.resolve())),
            folders=[work] if work else [],
        )
        return Reboot(up=False)

    def boot_records(self, head: RunHead, state: BootState) -> tuple[Run, list[Record]]:
        """Return the boot that is up, as the machine itself tells of it."""
        inside = read_inside(self.shell)
        for name, data in inside.files(state.boots).items():
            self._capture.replace_raw(name, data)
        return inside_records(head, inside, asked_at_s=state.asked_at_s)

    def _wait_until_settled(self) -> None:
        """Wait until systemd has started all that a boot starts."""
        limit_s = parse_seconds(self._spec.boot_timeout)
        done = self.shell.run(
            f"timeout {limit_s:.0f} systemctl is-system-running --wait",
            timeout_s=limit_s + _SPARE_S,
        )
        state = done.text.strip()
        if state not in ("running", "degraded"):
            self._capture.append(
                Loss(
                    source=f"boot {self.boot_id}",
                    reason=f"systemd was still {state or done.reason} after "
                    f"{self._spec.boot_timeout}",
                )
            )

    def _tell(self, arm: str, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage(arm, stage)


def _require_lasting(capture: Path) -> None:
    """Refuse a capture that a boot would take away.

    Raises:
        HostError: If it is in memory, or where boots clean up.
    """
    path = capture.resolve()
    kind = file_system_fact(str(path)).value
    if kind in _IN_MEMORY or any(path.is_relative_to(each) for each in _CLEANED):
        raise HostError(
            "would be gone after a boot",
            source=str(capture),
            hint="Give a folder on a disk with -o, such as /var/lib/NAME.excise",
        )


def reboot_now() -> None:
    """Reboot this machine; everything that was written is on disk first.

    Raises:
        HostError: If systemd does not.
    """
    done = LocalShell().run("sync && systemctl reboot")
    if done.exit_code != 0:
        raise HostError(
            f"systemctl reboot failed: {done.reason}",
            hint="Reboot it: the campaign then goes on. Or `excise campaign undo`",
        )
