"""`excise campaign`: campaigns with reboots, looked at, paused and undone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from excise.cli.options import JsonOption, print_json
from excise.errors import UsageError
from excise.units import counted

if TYPE_CHECKING:
    from excise.campaign.spec import Campaign

app = typer.Typer(no_args_is_help=True, help="Campaigns with reboots: status, pause, undo.")
CaptureFolder = Annotated[
    Path, typer.Argument(metavar="CAPTURE", help="The capture that the campaign writes.")
]


@app.command("status")
def status(capture: CaptureFolder, as_json: JsonOption = False) -> None:
    """Say how far a campaign has come, and what was added to the machine's boot loader.

    Example: excise campaign status ima.excise
    """
    from excise.campaign.boot_state import read_state, wants_pause
    from excise.campaign.run import kept_campaign, runs_recorded
    from excise.campaign.target_spec import LocalTarget

    campaign = kept_campaign(capture)
    state = read_state(capture)
    found: dict[str, Any] = {
        "runs": runs_recorded(campaign, capture),
        "runs_of": campaign.runs,
        "pause_asked": wants_pause(capture),
        "boots": state.boots,
        "boots_failed": state.failed,
        "skipped": state.skipped,
        "booted_for": state.arm or None,
        "boot_loader_changed": state.loader or None,
        "hung": state.hung or None,
        "stopped": state.stopped or None,
    }
    if isinstance(campaign.target, LocalTarget) and campaign.target.reboot:
        found["unit"] = _unit() or None
    if as_json:
        print_json(found)
        return
    typer.echo(f"{found['runs']} of {counted(found['runs_of'], 'run')}")
    if campaign.target.entry == "boot":
        typer.echo(f"{counted(state.boots, 'boot')}, {state.failed} failed")
        for arm in state.skipped:
            typer.echo(f"skipped: {arm}")
        typer.echo(f"booted for: {state.arm or 'nothing of this campaign'}")
        typer.echo(
            f"entries in {state.loader}; `excise campaign undo {capture}` removes them"
            if state.loader
            else "the boot loader is as it was"
        )
    if state.hung:
        typer.echo(f"the machine hung when it was last booted: {state.hung}")
    if found.get("unit"):
        typer.echo(f"excise-campaign.service: {found['unit']}")
    if state.stopped:
        typer.echo(f"stopped: {state.stopped}")
    if wants_pause(capture):
        typer.echo("a pause was asked for: it stops before the next boot")


def _unit() -> str:
    from excise.collect import resume_unit
    from excise.collect.local_shell import LocalShell

    return resume_unit.state(LocalShell())


@app.command("resume")
def resume(capture: CaptureFolder, as_json: JsonOption = False) -> None:
    """Go on with the campaign that a capture holds, as the `excise run` that began it would.

    On a machine that reboots itself a systemd unit calls it after each boot.

    Example: excise campaign resume ima.excise
    """
    from excise.campaign.run import resume_campaign
    from excise.cli.run import conclude_interrupted, tell_of_the_wait

    finished = resume_campaign(capture, on_stage=_tell_stage, on_interrupt=tell_of_the_wait)
    conclude_interrupted(finished, as_json=as_json)
    if as_json:
        print_json({"done": finished.done, "total": finished.total, "failed": finished.failed})
        return
    typer.echo(
        f"Wrote {finished.path} ({counted(finished.done, 'run')}, {finished.failed} failed)",
        err=True,
    )


def _tell_stage(configuration: str, stage: str) -> None:
    typer.echo(f"{configuration}: {stage}", err=True)


@app.command("pause")
def pause(capture: CaptureFolder, as_json: JsonOption = False) -> None:
    """Have a campaign with reboots stop before its next boot; `resume` goes on with it.

    Example: excise campaign pause ima.excise
    """
    from excise.campaign.boot_state import ask_to_pause
    from excise.campaign.run import kept_campaign

    _require_boots(kept_campaign(capture), capture)
    ask_to_pause(capture)
    if as_json:
        print_json({"pause_asked": True})
        return
    typer.echo("It stops before its next boot; `excise campaign resume` goes on with it.", err=True)


@app.command("undo")
def undo(
    capture: CaptureFolder,
    reboot: Annotated[
        bool, typer.Option("--reboot/--no-reboot", help="Also boot what it booted before.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """Restore the boot configuration of the machine; the runs stay.

    Example: excise campaign undo ima.excise
    """
    from excise.campaign.run import kept_campaign
    from excise.campaign.targets.undo import undo_boots

    campaign = kept_campaign(capture)
    _require_boots(campaign, capture)
    restored = undo_boots(campaign, capture, reboot=reboot)
    if as_json:
        print_json({"restored": True, "rebooted": restored.rebooted, "loader": restored.loader})
        return
    typer.echo(
        f"{restored.loader} is as it was"
        + ("; the machine was rebooted into it" if restored.rebooted else ""),
        err=True,
    )


def _require_boots(campaign: Campaign, capture: Path) -> None:
    if campaign.target.entry != "boot":
        raise UsageError(
            "is of a campaign without reboots",
            source=str(capture),
            hint="Interrupt `excise run` (Ctrl-C); the same command goes on",
        )
