"""`excise run`: measure, or go on measuring, into a capture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from excise.cli.options import (
    BriefOption,
    JsonOption,
    ProgressOption,
    checked,
    margin_of,
    open_dataset,
    print_json,
    print_report,
    read_input,
    require_no_other_form,
)
from excise.errors import Refused, UsageError
from excise.units import counted, parse_duration

if TYPE_CHECKING:
    from excise.campaign.run import Finished
    from excise.campaign.spec import Campaign
    from excise.events.dataset import Dataset


def _sync_interval(text: str) -> None:
    if text != "never":
        parse_duration(text)


def run(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CAMPAIGN.toml | - | -- COMMAND",
            help="A campaign file, - for one on standard input, or a command after `--`.",
            show_default=False,
        ),
    ] = None,
    configuration: Annotated[
        list[str] | None,
        typer.Option(
            "--configuration",
            "-c",
            metavar="'NAME: PREFIX'",
            help="A configuration: its name, and words put before the command; --landlock, "
            "--seccomp N and --no-new-privs at their start are put on by the probe.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="Capture to write or resume. [default: TITLE.excise]",
            show_default=False,
        ),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(
            "-n", "--blocks", help="Measured blocks. [default: 30]", show_default=False, min=1
        ),
    ] = None,
    warmup: Annotated[
        int | None,
        typer.Option(
            "--warmup", help="Blocks run first and not counted.", show_default=False, min=0
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Seed of the order of runs.", show_default=False)
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Configuration to compare with.", show_default=False),
    ] = None,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            parser=checked(parse_duration, "duration"),
            help="Longest a run may take, such as 30s.",
            show_default=False,
        ),
    ] = None,
    expect: Annotated[
        list[int] | None,
        typer.Option("--expect", help="An exit code that counts as success.", show_default=False),
    ] = None,
    sync_interval: Annotated[
        str | None,
        typer.Option(
            "--sync-interval",
            parser=checked(_sync_interval, "duration"),
            help="Measuring that a power cut may lose: 0s, 100ms, ..., never. [default: 100ms]",
            show_default=False,
        ),
    ] = None,
    seal: Annotated[
        bool, typer.Option("--seal/--no-seal", help="Seal the capture when it is complete.")
    ] = False,
    attest: Annotated[
        str | None,
        typer.Option(
            "--attest",
            metavar="TCTI",
            help="Seal, and sign the seal with a TPM quote: device:/dev/tpmrm0, ...",
            show_default=False,
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Guests of the lab at a time.", min=1)
    ] = 1,
    ignore_failure: Annotated[
        bool,
        typer.Option(
            "--ignore-failure", "-i", help="Exit 0 also where every run of a task failed."
        ),
    ] = False,
    progress: ProgressOption = True,
    brief: BriefOption = False,
    as_json: JsonOption = False,
) -> None:
    """Run a campaign, or resume it: the same command goes on where it stopped.

    Every configuration is run once in each block, in random order; the baseline is run a second
    time as the A/A arm. The first run of each task is kept apart from the rest.

    Example: excise run examples/syscalls.toml -o today.excise

    Example: excise run -c none -c 'fips: env LIBGCRYPT_FORCE_FIPS_MODE=1' -- gpg --version
    """
    from excise.campaign.run import run_campaign
    from excise.campaign.spec import naming
    from excise.cli.progress import run_progress, tell_waits

    options = {
        "blocks": blocks,
        "warmup": warmup,
        "seed": seed,
        "baseline": baseline,
        "sync_interval": sync_interval,
    }
    given = {name: value for name, value in options.items() if value is not None}
    campaign = _campaign(words or [], configuration or [], given, timeout=timeout, expect=expect)
    if brief:
        require_no_other_form(as_json=as_json)
    path = Path(output or f"{_file_name(campaign.title)}.excise")
    if attest is not None:
        from excise.campaign.attest import require_tpm

        require_tpm(attest)
    watched = run_progress(campaign.runs, shown=progress and sys.stderr.isatty())
    with naming(_source(words or [])), watched as shown:
        finished = run_campaign(
            campaign,
            path,
            jobs=jobs,
            on_progress=shown,
            on_stage=shown.stage if shown else tell_waits if progress else None,
            on_interrupt=tell_of_the_wait,
        )
    dataset = _conclude(finished, seal=seal, attest=attest, as_json=as_json, brief=brief)
    if not ignore_failure:
        _refuse_failures(dataset)


def _campaign(
    words: list[str],
    configurations: list[str],
    options: dict[str, Any],
    *,
    timeout: str | None,
    expect: list[int] | None,
) -> Campaign:
    from msgspec.structs import replace

    from excise.campaign.spec import COMMAND_LINE, ad_hoc, checked, parse_campaign, read_campaign

    task: dict[str, Any] = {"timeout": timeout} if timeout is not None else {}
    if expect is not None:
        task["expect"] = expect
    if (source := _source(words)) != COMMAND_LINE:
        if configurations:
            raise UsageError(
                "--configuration goes with a command, not with a campaign file",
                hint="Write the configuration into the file",
            )
        if words == ["-"]:
            campaign = parse_campaign(read_input("-"), source=source)
        else:
            campaign = read_campaign(Path(words[0]))
        if task:
            tasks = [replace(each, **task) for each in campaign.tasks]
            campaign = replace(campaign, tasks=tasks)
        return checked(replace(campaign, **options), source=source)
    return ad_hoc(configurations, words, task=task, **options)


def _source(words: list[str]) -> str:
    """Return where the campaign is written, for errors."""
    from excise.campaign.spec import COMMAND_LINE

    if words == ["-"]:
        return "standard input"
    return words[0] if len(words) == 1 and words[0].endswith(".toml") else COMMAND_LINE


def _file_name(title: str) -> str:
    kept = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in title)
    return kept.strip("-.")[:60] or "campaign"


def tell_of_the_wait() -> None:
    """Say that an interrupt waits for what is in progress."""
    typer.echo("Stopping after what is in progress; interrupt again to end it at once", err=True)


def conclude_interrupted(finished: Finished, *, as_json: bool) -> None:
    """Say how an unfinished campaign goes on, and end the program; do nothing for a whole one."""
    from excise.campaign.boot_state import wants_pause

    if finished.goes_down:
        _tell_of_the_boot(finished, as_json=as_json)
    if not finished.interrupted:
        return
    if wants_pause(finished.path):
        if as_json:
            print_json({"paused": True, "done": finished.done, "total": finished.total})
        typer.echo(f"Paused after {finished.done} of {counted(finished.total, 'run')}", err=True)
        raise typer.Exit(0)
    if as_json:
        print_json({"interrupted": True, "done": finished.done, "total": finished.total})
    typer.echo(
        f"Stopped after {finished.done} of {counted(finished.total, 'run')}; nothing is lost. "
        f"The same command with -o {finished.path} goes on.",
        err=True,
    )
    raise typer.Exit(130)


def _tell_of_the_boot(finished: Finished, *, as_json: bool) -> NoReturn:
    if as_json:
        print_json({"goes_down": True, "done": finished.done, "total": finished.total})
    typer.echo(
        f"{finished.done} of {counted(finished.total, 'run')}. This machine reboots now; "
        f"excise-campaign.service goes on: `excise campaign status {finished.path}`",
        err=True,
    )
    raise typer.Exit(0)


def _conclude(
    finished: Finished, *, seal: bool, attest: str | None, as_json: bool, brief: bool
) -> Dataset:
    conclude_interrupted(finished, as_json=as_json)
    if attest is not None:
        from excise.campaign.attest import attest_capture

        attest_capture(finished.path, tcti=attest)
    elif seal:
        from excise.capture.seal import seal as seal_capture

        seal_capture(finished.path)
    from excise.cost.comparison import compare_configurations
    from excise.report.build import build_comparison, build_show

    dataset = open_dataset(str(finished.path))
    report = build_show(dataset)
    if len(dataset.configurations) > 2:
        try:
            compared = compare_configurations(dataset, margin_ratio=margin_of(dataset, None))
            report = build_comparison(compared, dataset)
        except UsageError as error:  # every run of the others failed, as where one is skipped
            typer.echo(f"Not compared: {error.reason}", err=True)
    print_report(report, format_name=None, as_json=as_json, brief=brief)
    typer.echo(
        f"Wrote {finished.path} ({counted(finished.done, 'run')}, {finished.failed} failed)",
        err=True,
    )
    return dataset


def _refuse_failures(dataset: Dataset) -> None:
    """End with 1 where nothing was measured of a task, as none of its runs succeeded."""
    from excise.events.dataset import never_succeeded

    if failed := never_succeeded(dataset):
        raise Refused(
            "nothing was measured where every run failed",
            source=dataset.name,
            differences=tuple(failed),
            hint="--expect CODE takes an exit code for success; --ignore-failure exits 0 all the "
            "same",
        )
