"""`excise attribute`: what explains totals, and differences between two configurations."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import (
    BriefOption,
    FormatOption,
    JsonOption,
    open_dataset,
    print_report,
)
from excise.errors import UsageError


def attribute(
    captures: Annotated[
        list[str],
        typer.Argument(
            metavar="CAPTURE...",
            help="One capture, or several that are taken together: A and B, totals and hooks. A "
            "capture is a folder, a .tar.zst, -, or reference:NAME.",
            show_default=False,
        ),
    ],
    task: Annotated[
        str | None, typer.Option("--task", help="Only this task.", show_default=False)
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Configuration that others are compared with. [default: the first capture's]",
            show_default=False,
        ),
    ] = None,
    configuration: Annotated[
        str | None,
        typer.Option(
            "--configuration", "-c", help="Only this one against the baseline.", show_default=False
        ),
    ] = None,
    calls: Annotated[
        list[str] | None,
        typer.Option(
            "--calls",
            metavar="'TASK: HOOK=N, ...'",
            help="Calls of hooks in one operation of a task, for tables that do not give them.",
            show_default=False,
        ),
    ] = None,
    brief: BriefOption = False,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Attribute each task's total, or its difference to a baseline, to its parts; show the rest.

    A difference is the sum over its hooks of calls × (cost here − cost in the baseline), plus a
    remainder.

    Example: excise attribute board.excise --task attestation

    Example: excise attribute none.excise selinux.excise
    """
    from excise.report.build import build_attribution

    datasets = [open_dataset(name) for name in captures]
    report = build_attribution(
        *datasets,
        task=task,
        baseline=baseline,
        configuration=configuration,
        calls=dict(map(_calls, calls or [])),
    )
    print_report(report, format_name=format_name, as_json=as_json, brief=brief)


def _calls(text: str) -> tuple[str, dict[str, float]]:
    task, colon, rest = text.rpartition(":")
    counts: dict[str, float] = {}
    for part in rest.split(","):
        hook, equals, number = part.partition("=")
        try:
            counts[hook.strip()] = float(number)
        except ValueError:
            equals = ""
        if not (equals and hook.strip() and colon):
            raise UsageError("expected 'TASK: HOOK=N, ...'", source=f"--calls {text}")
    return task.strip(), counts
