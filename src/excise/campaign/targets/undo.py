"""Undoing a campaign's boots: the boot loader as it was, whatever became of the campaign."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from excise.campaign import boot_state
from excise.campaign.spec import Campaign
from excise.campaign.target_spec import BootsSpec, SshTarget
from excise.campaign.targets.boots import require_boots, require_named
from excise.campaign.targets.rebooting import REBOOT
from excise.campaign.targets.ssh import address_of
from excise.capture.store import SEAL, Capture
from excise.collect import resume_unit
from excise.collect.boot_entries import MARK, Shell
from excise.collect.boot_loaders import boot_loader
from excise.collect.local_shell import LocalShell
from excise.collect.remote import RemoteMachine


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
    assert isinstance(spec, BootsSpec)
    require_boots(campaign, spec)
    with _shell_of(spec) as shell:
        require_named(shell, spec)
        loader = boot_loader(shell)
        if isinstance(shell, LocalShell):
            resume_unit.require_free(capture)
            resume_unit.stop(shell)
        with _held(capture):
            loader.undo()
            rebooted = reboot and MARK in shell.run("cat /proc/cmdline").text
            boot_state.read_state(capture).restored().save(capture)
            boot_state.end_pause(capture)
        if rebooted:
            shell.run(REBOOT)
    return Restored(loader=loader.name, rebooted=rebooted)


def _held(capture: Path) -> AbstractContextManager[object]:
    """Hold a capture against a campaign that runs; nothing writes one that is sealed."""
    return nullcontext() if (capture / SEAL).exists() else Capture.open(capture)


@contextmanager
def _shell_of(spec: BootsSpec) -> Iterator[Shell]:
    if not isinstance(spec, SshTarget):
        yield LocalShell()
        return
    with RemoteMachine(address_of(spec)) as machine:
        machine.connect()
        yield machine
