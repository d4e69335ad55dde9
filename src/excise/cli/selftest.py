"""`excise selftest`: what self-tests at start-up cost, and who pays for them unasked."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from excise.errors import HostError, OutputError, UsageError
from excise.units import parse_percentage

if TYPE_CHECKING:
    from collections.abc import Callable

    from excise.campaign.selftest_bench import Subject
    from excise.collect.selftest.tree import Tree

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

    Example: excise selftest bench --tree trixie -o selftests.excise
    """
    from excise.campaign.selftest_bench import run_bench
    from excise.campaign.selftest_kernel import boot_kernels
    from excise.collect.selftest.emulate import counted_loads
    from excise.collect.selftest.kernel import host_kernel_tests
    from excise.collect.selftest.openssl import CACHED, ON
    from excise.cost.selftest_counted import counted_costs
    from excise.report.selftest import build_bench

    path = _output_path(output, force=force)
    with (
        steps_bar(progress) as on_step,
        tempfile.TemporaryDirectory(prefix="excise-fips-") as folder,
    ):
        wanted = _wanted(library or [])
        trees = _trees(tree or [], on_step) if "openssl" in wanted else []
        subjects, present = _subjects(trees, wanted, Path(folder), use=use)
        more = _subjects_of_trees(tree or [], wanted, on_step)
        subjects, present = [*subjects, *more[0]], [*present, *more[1]]
        if not subjects:
            reasons = "; ".join(f"{each.library}: {each.note}" for each in present)
            raise HostError(
                f"no library with self-tests that can be measured is here ({reasons})",
                hint="Try --tree trixie, which brings OpenSSL's FIPS provider",
            )
        profiles = _profiles(present, on_step) if callgrind else []
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
            on_run=lambda done, total, task: on_step(task, done, total),
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


def _output_path(name: str, *, force: bool) -> Path:
    path = Path(name)
    if path.exists() and force and (path / "manifest.json").is_file():
        shutil.rmtree(path)
    elif path.exists():
        raise OutputError(
            "already exists", source=name, hint="Give another path with -o, or --force"
        )
    return path


def _trees(suites: list[str], on_step: Callable[[str, int, int], None]) -> list[Tree]:
    from excise.collect.selftest.tree import host_tree, make_tree

    return [host_tree(), *(make_tree(suite, on_step=on_step) for suite in suites)]


def _wanted(names: list[str]) -> list[str]:
    """Return the libraries to look for: those that are named, or all.

    Raises:
        UsageError: If a name is that of none.
    """
    from excise.collect.selftest.libraries import LIBRARIES

    known = ["openssl", *(each.name for each in LIBRARIES), "wolfssl", "go"]
    if unknown := [name for name in names if name not in known]:
        raise UsageError(f"no library is called {unknown[0]!r}", hint=f"Known: {', '.join(known)}")
    return names or known


def _subjects(
    trees: list[Tree], wanted: list[str], folder: Path, *, use: bool
) -> tuple[list[Subject], list[Any]]:
    """Return what can be measured of OpenSSL and of this host's libraries, and what was sought."""
    from excise.campaign.selftest_bench import library_subject, openssl_subject
    from excise.collect.selftest.libraries import BY_CALLBACK, LIBRARIES, Presence, look_for
    from excise.collect.selftest.openssl import find_provider

    subjects: list[Subject] = []
    present: list[Presence] = []
    for place in trees:
        name = "openssl" if place.loader is None else f"openssl of {place.suite}"
        try:
            own = folder / place.suite
            own.mkdir()
            provider = find_provider(place, folder=own)
        except HostError as error:
            present.append(Presence(library=name, state="absent", note=f"{error.reason}."))
            continue
        subject = openssl_subject(provider, use=use)
        subjects.append(subject)
        present.append(
            Presence(library=name, state="measured", version=provider.version, method=BY_CALLBACK)
        )
    for switch in LIBRARIES:
        if switch.name not in wanted:
            continue
        found = look_for(switch)
        present.append(found)
        if found.state == "measured":
            subjects.append(library_subject(switch, version=found.version))
    return subjects, present


def _subjects_of_trees(
    suites: list[str], wanted: list[str], on_step: Callable[[str, int, int], None]
) -> tuple[list[Subject], list[Any]]:
    """Return what can be measured of wolfSSL and Go, here and in each suite."""
    from excise.campaign.selftest_bench import go_subject, wolfssl_subject
    from excise.collect.selftest.golang import go_tree, look_for_go
    from excise.collect.selftest.libraries import Presence
    from excise.collect.selftest.wolfssl import look_for_wolfssl, wolfssl_tree

    subjects: list[Subject] = []
    present: list[Presence] = []
    for suite in [None, *suites]:
        for name, make in (("wolfssl", wolfssl_tree), ("go", go_tree)):
            if name not in wanted:
                continue
            try:
                place = make(suite, on_step=on_step) if suite else None
            except HostError as error:
                row = Presence(library=f"{name} of {suite}", state="absent", note=error.reason)
                present.append(row)
                continue
            if name == "go":
                found, program = look_for_go(place)
                subjects += [go_subject(program)] if program else []
            else:
                found = look_for_wolfssl(place)
                if found.state != "absent":
                    subjects.append(wolfssl_subject(found, tree=place))
            present.append(found)
    return subjects, present


def _profiles(present: list[Any], on_step: Callable[[str, int, int], None]) -> list[Any]:
    """Return instructions of the start of each library that is here, off and forced."""
    from excise.collect.selftest import callgrind
    from excise.collect.selftest.libraries import LIBRARIES

    here = {each.library for each in present if each.state != "absent"}
    starts = [
        (switch, forced)
        for switch in LIBRARIES
        if switch.name in here
        for forced in (False, True)
        if switch.environment or not forced
    ]
    found = []
    for done, (switch, forced) in enumerate(starts if callgrind.present() else []):
        on_step(f"counting {switch.name}", done, len(starts))
        found.append(callgrind.profile_start(switch, forced=forced))
    return found


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
        typer.echo(f"Stopped after {finished.done} of {finished.total} runs", err=True)
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
    typer.echo(f"Wrote {path} ({finished.done} runs, {finished.failed} failed)", err=True)
