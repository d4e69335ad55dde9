"""`excise gate`: the answer a CI needs, as an exit code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import (
    BriefOption,
    CaptureArgument,
    JsonOption,
    MetricOption,
    OtherConditionsOption,
    open_dataset,
    parsed,
    print_json,
    refuse_idle,
    require_no_other_form,
)
from excise.errors import CaptureError, Refused, UsageError
from excise.units import counted, parse_percentage

if TYPE_CHECKING:
    from excise.events.dataset import Dataset


def gate(
    context: typer.Context,
    capture: CaptureArgument,
    baseline: Annotated[
        str,
        typer.Option(
            "--baseline",
            help="Configuration of the same capture, or another capture, to compare with.",
        ),
    ],
    max_regression: Annotated[
        float,
        typer.Option(
            "--max-regression",
            parser=parsed(parse_percentage, "percentage"),
            help="Largest cost that passes. [default: 2%]",
            show_default=False,
        ),
    ] = 0.02,
    metric: MetricOption = None,
    force: OtherConditionsOption = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Also fail where the data cannot rule out a larger cost."),
    ] = False,
    brief: BriefOption = False,
    as_json: JsonOption = False,
) -> None:
    """Exit 1, with the reason, if a task costs more than is allowed.

    A task fails when its whole interval lies above the limit, and, with --strict, when the
    interval reaches above it. A comparison that is refused fails.

    Example: excise gate new.excise --baseline old.excise --max-regression 2%
    """
    from excise.cost.gate import judge
    from excise.report.gate import render_gate

    if brief:
        require_no_other_form(as_json=as_json)
    dataset = open_dataset(capture)
    other = None if baseline in dataset.configurations else _other(baseline, dataset)
    if other is None:
        refuse_idle(context, ["force"], "for two captures, and the baseline is in the same one")
    result = judge(
        dataset,
        baseline=baseline,
        other=other,
        metric=metric,
        max_regression_ratio=max_regression,
        strict=strict,
        force=force,
    )
    if as_json:
        print_json(result.as_dict())
    else:
        typer.echo(render_gate(result, brief=brief), nl=False)
    if not result.passed:
        if as_json:
            raise typer.Exit(1)
        raise Refused(
            f"{len(result.failures)} of "
            f"{counted(result.compared, 'comparison does', 'comparisons do')} not pass"
        )


def _other(name: str, dataset: Dataset) -> Dataset:
    """Return another capture to compare with; tell what else the name could have been."""
    try:
        return open_dataset(name)
    except CaptureError as error:
        if Path(name).exists():
            raise
        raise UsageError(
            f"{name!r} is neither a configuration of it nor another capture",
            source=dataset.name,
            hint=f"Configurations here: {', '.join(dataset.configurations)}",
        ) from error
