"""Targets: the machines that campaigns measure, here or elsewhere, behind one interface.

`excise.campaign.run` knows captures, schedules, resuming and interrupts; a target knows a machine.
A target of a new kind is: a struct in `excise.campaign.target_spec` with its `kind`, a module here
with a class that fits `Target` (`model`), and a line in `target_of`.

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

from typing import TYPE_CHECKING

from excise.campaign.target_spec import (
    CommandTarget,
    LabTarget,
    LocalTarget,
    SerialTarget,
    SshTarget,
)
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.campaign.spec import Campaign
    from excise.campaign.targets.model import StageListener, Target


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

        return ConsoleCampaignTarget(campaign, spec=spec, on_stage=on_stage)
    assert isinstance(spec, LocalTarget)
    if spec.reboot:
        from excise.campaign.targets.local_reboot import LocalRebootTarget

        return LocalRebootTarget(campaign, spec=spec, on_stage=on_stage)
    from excise.campaign.targets.local import LocalCampaignTarget

    return LocalCampaignTarget(campaign)
