"""`excise selftest`: what self-tests at start-up cost, and who pays for them unasked."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from excise.cli.options import (
    CaptureOutputOption,
    FormatOption,
    JsonOption,
    MetricOption,
    ProgressOption,
    ReplaceOption,
    SeedOption,
    open_dataset,
    parsed,
    print_report,
)
from excise.cli.steps import steps_bar
from excise.errors import UsageError
from excise.units import counted, parse_percentage

app = typer.Typer(
    name="selftest",
    help="What self-tests at start-up cost a process, a command, a day; and who pays unasked.",
    no_args_is_help=True,
)

TreeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tree",
        metavar="SUITE",
        help="Also measure this Debian suite's packages, in a throw-away tree in the cache: "
        "trixie, sid. May be given several times.",
        show_default=False,
    ),
]
BlocksOption = Annotated[int, typer.Option("--blocks", min=1, help="Measured blocks.")]


@app.command("bench")
def bench(
    tree: TreeOption = None,
    library: Annotated[
        list[str] | None,
        typer.Option(
            "--library",
            help="Only this library: openssl, libgcrypt, gnutls, nss, wolfssl, go. May be given "
            "several times.",
            show_default=False,
        ),
    ] = None,
    blocks: BlocksOption = 15,
    kernel: Annotated[
        str | None,
        typer.Option(
            "--kernel",
            metavar="SERIES",
            help="Also boot this kernel in a guest without self-tests, as usual, and with fips=1: "
            "6.12, 6.12-cloud, 6.1, or a path.",
            show_default=False,
        ),
    ] = None,
    seed: SeedOption = 1,
    use: Annotated[
        bool,
        typer.Option("--use/--no-use", help="Do one operation of each kind twice after a load."),
    ] = True,
    count: Annotated[
        list[str] | None,
        typer.Option(
            "--count",
            metavar="MACHINE",
            help="Also count the instructions of loads under QEMU's user emulation: aarch64, "
            "x86_64. The suite is that of --tree, else trixie.",
            show_default=False,
        ),
    ] = None,
    callgrind: Annotated[
        bool,
        typer.Option(
            "--callgrind/--no-callgrind",
            help="Count instructions of each library's start, if valgrind is installed.",
        ),
    ] = True,
    output: CaptureOutputOption = "selftests.excise",
    force: ReplaceOption = False,
    progress: ProgressOption = True,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time every self-test at the start of each cryptographic library that is here.

    Each start is a process of its own, in randomised blocks of off, on, and on with cached status.
    Interrupted, the same command goes on.

    Example: excise selftest bench --tree trixie -o selftests.excise
    """
    from excise.campaign.selftest_bench import require_place_or_unfinished, run_bench
    from excise.campaign.selftest_kernel import boot_kernels
    from excise.campaign.selftest_subjects import find_subjects
    from excise.capture.store import remove_capture
    from excise.collect.selftest.callgrind import profile_starts
    from excise.collect.selftest.emulate import counted_loads
    from excise.collect.selftest.kernel import host_kernel_tests
    from excise.collect.selftest.openssl import CACHED, ON
    from excise.cost.selftest_counted import counted_costs
    from excise.report.selftest import build_bench

    path = Path(output)
    if force:
        remove_capture(path)
    require_place_or_unfinished(path, hint="Give another path with -o, or --force")
    with (
        steps_bar(progress) as on_step,
        tempfile.TemporaryDirectory(prefix="excise-fips-") as folder,
    ):
        subjects, present = find_subjects(
            tree or [], libraries=library or [], folder=Path(folder), use=use, on_step=on_step
        )
        profiles = profile_starts(present, on_step=on_step) if callgrind else []
        counted = [
            load
            for suite in tree or ["trixie"]
            for machine in count or []
            for load in counted_loads(suite, machine=machine, on_step=on_step)
        ]
        boots = boot_kernels(kernel, on_step=on_step) if kernel else []
        run_bench(
            subjects,
            path,
            blocks=blocks,
            seed=seed,
            raw={f"dmesg-{boot.state.replace(' ', '-')}": boot.dmesg for boot in boots},
            on_step=on_step,
        )
    report = build_bench(
        open_dataset(str(path)),
        on=ON,
        cached=CACHED,
        present=present,
        kernel=host_kernel_tests(),
        boots=boots,
        profiles=profiles,
        counted=counted_costs(counted),
        beside=[open_dataset("reference:fips-2016"), open_dataset("reference:fips-today")],
    )
    print_report(report, format_name=format_name, as_json=as_json)
    typer.echo(f"Wrote {path}; `excise attribute {path}` has every child", err=True)


@app.command("check")
def check(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]",
            help="Command to run under observation; without one, this system's set-up is judged.",
            show_default=False,
        ),
    ] = None,
    pid: Annotated[
        int | None,
        typer.Option("--pid", help="Look at a running process instead.", show_default=False),
    ] = None,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say whether a command, a process or this system pays for self-tests while FIPS is off.

    Exit code: 1 yes, 0 no, 4 where it cannot be seen. The command's output goes to standard error.

    Example: excise selftest check -- gpg --print-md sha256 /etc/hostname
    """
    from excise.collect.selftest.verdict import check_command, check_process, check_system
    from excise.report.selftest_check import build_check

    if words and pid is not None:
        raise UsageError("give a command or --pid, not both")
    if words:
        found = check_command(words)
    elif pid is not None:
        found = check_process(pid)
    else:
        found = check_system()
    print_report(build_check(found), format_name=format_name, as_json=as_json)
    raise typer.Exit(found.exit_code)


@app.command("commands")
def commands(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[COMMAND...]",
            help="Commands, each in one argument: 'openssl rand -hex 8'. "
            "[default: openssl, curl, ssh, gpg, python]",
            show_default=False,
        ),
    ] = None,
    tree: Annotated[
        str | None,
        typer.Option(
            "--tree",
            metavar="SUITE",
            help="Run the commands of this Debian suite, from a throw-away tree in the cache.",
            show_default=False,
        ),
    ] = None,
    blocks: BlocksOption = 30,
    cold: Annotated[
        bool,
        typer.Option("--cold/--no-cold", help="Also with the files dropped from the page cache."),
    ] = True,
    starts_per_day: Annotated[
        int, typer.Option("--starts-per-day", min=1, help="For the cost per day.")
    ] = 10_000,
    share: Annotated[
        float,
        typer.Option(
            "--share",
            parser=parsed(parse_percentage, "percentage"),
            help="Share of a process's life that the extra may take. [default: 1%]",
            show_default=False,
        ),
    ] = 0.01,
    target: Annotated[
        float,
        typer.Option(
            "--target",
            parser=parsed(parse_percentage, "percentage"),
            help="Half-width of the ratio's interval to reach. [default: 5%]",
            show_default=False,
        ),
    ] = 0.05,
    seed: SeedOption = 1,
    metric: MetricOption = None,
    output: CaptureOutputOption = "selftest-commands.excise",
    progress: ProgressOption = True,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure whole commands with self-tests off, on, and on with cached status.

    The same command goes on where it was stopped. Warm and cold starts are told apart.

    Example: excise selftest commands --tree trixie 'openssl rand -hex 8' --starts-per-day 5000
    """
    from excise.campaign.run import run_campaign
    from excise.campaign.selftest_commands import baselines_of, plan_commands
    from excise.cli.progress import run_progress
    from excise.collect.selftest.tree import COMMAND_PACKAGES, host_tree, make_tree
    from excise.cost.selftest_commands import command_costs
    from excise.report.selftest_commands import build_commands

    with steps_bar(progress) as on_step:
        place = make_tree(tree, packages=COMMAND_PACKAGES, on_step=on_step) if tree else host_tree()
    plan = plan_commands(words or [], tree=place, blocks=blocks, cold=cold, seed=seed)
    path = Path(output)
    with run_progress(plan.campaign.runs, shown=progress and sys.stderr.isatty()) as on_progress:
        finished = run_campaign(plan.campaign, path, on_progress=on_progress)
    if finished.interrupted:
        typer.echo(f"Stopped after {finished.done} of {counted(finished.total, 'run')}", err=True)
        raise typer.Exit(130)
    dataset = open_dataset(str(path))
    costs = command_costs(
        dataset,
        baselines=baselines_of(plan.campaign),
        starts_per_day=starts_per_day,
        share=share,
        target=target,
        metric=metric,
    )
    report = build_commands(
        dataset,
        costs,
        starts_per_day=starts_per_day,
        share=share,
        target=target,
        notes=plan.notes,
    )
    print_report(report, format_name=format_name, as_json=as_json)
    typer.echo(
        f"Wrote {path} ({counted(finished.done, 'run')}, {finished.failed} failed)", err=True
    )
