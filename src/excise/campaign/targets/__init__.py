"""Targets: the machines that campaigns measure, here or elsewhere, behind one interface.

`excise.campaign.run` knows captures, schedules, resuming and interrupts; a target knows a machine.
A target of a new kind is: a struct in `excise.campaign.target_spec` with its `kind`, a module here
with a class that fits `Target`, and a line in `target_of`.

The runner goes through a target in this order::

    target.require()                  # nothing was written yet: refuse what cannot work
    target.host_facts(), .clocks()    # for the manifest, and for "same conditions?" on a resume
    with target.session(capture) as session:
        session.prove()               # did each configuration take effect?
        session.calibrate(task)       # operations per batch, where the task does not give them
        for run in session.run(visits):
            ...                       # each run is in the journal before it is yielded
        session.stop()                # after an interrupt only
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from excise.campaign.target_spec import (
    CommandTarget,
    LabTarget,
    LocalTarget,
    SerialTarget,
    SshTarget,
)
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.campaign.schedule import Visit
    from excise.campaign.spec import Campaign, Task
    from excise.capture.journal import Effect, Run
    from excise.capture.manifest import Fact
    from excise.capture.store import Capture
    from excise.clock import Clock


class TargetSession(Protocol):
    """One span of work on a machine, from its opening to its closing.

    Attributes:
        boot_id: Identifier of the boot that this session began in, or "".
    """

    boot_id: str

    def prove(self) -> list[Effect]:
        """Return whether each configuration took effect; nothing is measured if one FAILED.

        A machine that enters a configuration only with a boot returns [] here. It proves it in
        `run`, appends the effects to the journal before the runs, and raises EffectError.

        Raises:
            HostError: If the machine cannot be asked.
        """
        ...

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch of a workload that does not give them.

        Raises:
            HostError: If the probe cannot run there.
        """
        ...

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Measure the visits in their order; yield each run once it is in the journal.

        Raw files and evidence of a visit are in the capture before its runs are. Heads whose
        sequence is in `visit.recorded` are not written again.

        Args:
            visits: What to measure.
            operations: Operations per batch of each workload task.

        Raises:
            EffectError: If a configuration entered in a visit did not take effect.
            HostError: If the machine fails; runs of other visits are in the journal.
        """
        ...

    def stop(self) -> list[Run]:
        """End after an interrupt: what is in progress finishes; return the runs not yet yielded.

        Called a second time (interrupted again), end at once.
        """
        ...


class Target(Protocol):
    """Where a campaign runs. Nothing on the machine is changed before `session`."""

    def require(self) -> None:
        """Refuse what cannot work, before anything is written.

        Raises:
            HostError: If a program, a right or the machine is missing.
            SpecError: If the campaign asks for what this kind of target does not have.
        """
        ...

    def host_facts(self) -> list[Fact]:
        """Return the facts of the machine under test."""
        ...

    def clocks(self) -> list[Clock]:
        """Return the clocks that figures will be of."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the manifest that a reader of the figures needs."""
        ...

    def session(self, capture: Capture) -> AbstractContextManager[TargetSession]:
        """Open the machine: connect, place the probe, make work folders; undo it on the way out.

        Args:
            capture: Open for appending. The target writes runs, effects, losses and raw files;
                all else is the runner's.
        """
        ...


def target_of(
    campaign: Campaign, *, jobs: int = 1, on_stage: StageListener | None = None
) -> Target:
    """Return the target a campaign names.

    Args:
        campaign: The campaign.
        jobs: Machines at a time, where the target starts its own.
        on_stage: Called with (configuration, stage) as work in a visit advances.

    Raises:
        UsageError: If the target cannot do so many at a time.
    """
    spec = campaign.target
    if isinstance(spec, LabTarget):
        from excise.campaign.targets.lab import LabCampaignTarget

        return LabCampaignTarget(campaign, spec=spec, jobs=jobs, on_stage=on_stage)
    if jobs != 1:
        raise UsageError(
            "--jobs is for guests of the lab: runs at the same time on one machine would be "
            "measured against each other"
        )
    if isinstance(spec, SshTarget) and spec.reboot:
        from excise.campaign.targets.reboot import RebootCampaignTarget

        return RebootCampaignTarget(campaign, spec=spec, on_stage=on_stage)
    if isinstance(spec, SshTarget):
        from excise.campaign.targets.ssh import SshCampaignTarget

        return SshCampaignTarget(campaign, spec=spec, on_stage=on_stage)
    if isinstance(spec, CommandTarget | SerialTarget):
        from excise.campaign.targets.command import ConsoleCampaignTarget

        return ConsoleCampaignTarget(campaign, spec=spec)
    assert isinstance(spec, LocalTarget)
    if spec.reboot:
        from excise.campaign.targets.local_reboot import LocalRebootTarget

        return LocalRebootTarget(campaign, spec=spec, on_stage=on_stage)
    from excise.campaign.targets.local import LocalCampaignTarget

    return LocalCampaignTarget(campaign)


class StageListener(Protocol):
    """Something that is told how far a visit has come."""

    def __call__(self, configuration: str, stage: str) -> None:
        """Take notice of a stage, such as `measure`."""
        ...
