"""`excise lab trace`: which hooks a system call's extra instructions are spent in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli.lab_options import GoOnOutputOption, JobsOption, PresetsOption
from excise.cli.lab_output import guests_output
from excise.cli.options import (
    FormatOption,
    JsonOption,
    open_dataset,
    print_report,
    split_words,
)


def trace(
    preset: PresetsOption = "none,apparmor,selinux-enforcing,tomoyo-enforcing,landlock",
    workload: Annotated[
        str | None,
        typer.Option(
            "--workload",
            "-w",
            help="System calls or tasks, joined by commas. [default: stat, open_close, create_0k "
            "and delete_0k on ext4, fork_execve]",
            show_default=False,
        ),
    ] = None,
    kernel: Annotated[
        str, typer.Option("--kernel", "-k", help="Kernel: a series, a package, or a bzImage.")
    ] = "6.12",
    modules: Annotated[
        str | None,
        typer.Option("--modules", help="Folder of a kernel's modules.", show_default=False),
    ] = None,
    jobs: JobsOption = 1,
    output: GoOnOutputOption = "hooks.excise",
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Count system calls in guests, trace their hooks, and attribute the differences, exactly.

    The guest's clock is its number of instructions. What the tracer adds to a function is measured
    in the same run and taken out.

    Example: excise lab trace --preset none,selinux-enforcing --workload stat,open_close
    """
    from excise.cli.steps import guests_bar
    from excise.lab import GuestFailure, run_all
    from excise.lab.trace import TASKS, traced_jobs
    from excise.report.build import build_attribution

    names = split_words(preset)
    only = split_words(workload) or TASKS
    planned = traced_jobs(names, only=only, kernel=kernel, modules=modules)
    title = f"Hooks of system calls, kernel {Path(kernel).name}"
    with guests_output(output, jobs=planned, title=title) as to, guests_bar() as show:
        outcomes = run_all(planned, parallel=jobs, kept=to.kept, on_progress=show, on_result=to.add)
    failures = [each for each in outcomes if isinstance(each, GuestFailure)]
    if isinstance(outcomes[0], GuestFailure) or len(failures) == len(outcomes) - 1:
        raise failures[0].error  # nothing to compare
    report = build_attribution(open_dataset(output))
    print_report(report, format_name=format_name, as_json=as_json)
    typer.echo(f"Wrote {output}", err=True)
    for failure in failures:
        raise failure.error
