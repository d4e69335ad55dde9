"""A machine that an earlier session left on its way up, or hanging: waited for before all else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from excise.campaign.boot_state import read_state
from excise.campaign.spec import Campaign
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.rebooting import Rebooter
from excise.campaign.targets.resetting import ORIGINAL, recover
from excise.campaign.targets.ssh import address_of
from excise.capture.store import Capture
from excise.collect.remote import RemoteMachine
from excise.errors import HostError

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener


def await_boot(campaign: Campaign, path: Path, *, on_stage: StageListener | None) -> None:
    """Wait until the machine of a capture answers; have it reset where it does not.

    Args:
        campaign: The campaign.
        path: Its capture; nobody else writes it meanwhile.
        on_stage: Called with (configuration, stage).

    Raises:
        HostError: If it does not answer, and nothing resets it or that did not help.
    """
    spec = campaign.target
    assert isinstance(spec, SshTarget)
    tell = on_stage if on_stage is not None else _tell_nobody
    with Capture.open(path) as capture, RemoteMachine(address_of(spec)) as machine:
        state = read_state(path)
        shown = (state.asked.arm if state.asked is not None else "") or ORIGINAL
        rebooter = Rebooter(machine, spec=spec)
        tell(shown, "wait")
        power = rebooter.power()
        if rebooter.comes_back():
            pass
        elif state.asked is not None:
            state.hung = f"no answer in {spec.boot_timeout}"
            recover(
                capture,
                state,
                arm=state.asked.arm,
                block=state.asked.block,
                spec=spec,
                name=machine.name,
                power=power,
                tell=tell,
            )
        elif power is None:
            raise HostError(
                f"still does not answer, after {spec.boot_timeout} more",
                source=machine.name,
                hint="Switch the machine off and on, look at its console, and run this again",
            )
        else:
            tell(shown, "reset")
            power.cycle()
            power.wait()
        tell(shown, "done")


def _tell_nobody(configuration: str, stage: str) -> None:
    """Take no notice."""
