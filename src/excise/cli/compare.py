"""`excise compare`: configurations within one capture, or two captures."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import (
    BriefOption,
    CaptureArgument,
    FormatOption,
    JsonOption,
    MarginOption,
    MetricOption,
    OtherConditionsOption,
    margin_of,
    open_dataset,
    print_report,
    refuse_idle,
)
from excise.errors import UsageError


def compare(
    context: typer.Context,
    capture: CaptureArgument,
    other: Annotated[
        str | None,
        typer.Argument(
            metavar="OTHER", help="A second capture, compared with the first.", show_default=False
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Configuration to compare with.", show_default=False),
    ] = None,
    metric: MetricOption = None,
    margin: MarginOption = None,
    force: OtherConditionsOption = False,
    bootstrap: Annotated[
        bool,
        typer.Option(
            "--bootstrap",
            help="Check workloads of the probe by a bootstrap over blocks and batches too.",
        ),
    ] = False,
    brief: BriefOption = False,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare each configuration with the baseline, task by task.

    Within one capture, runs are paired by block. Two captures are compared as samples of unknown
    order, and only when their host facts agree.

    Example: excise compare demo.excise --margin 2%

    Example: excise compare demo.excise --brief >> notes.txt
    """
    from excise.cost.comparison import compare_configurations, compare_datasets
    from excise.cost.levels import compare_levels
    from excise.report.build import build_comparison

    first = open_dataset(capture, with_batches=bootstrap)
    margin_ratio = margin_of(first, margin)
    if other is not None and baseline is not None:
        raise UsageError(
            "--baseline names a configuration of one capture, and two were given",
            hint="The first capture is the baseline",
        )
    if other is None:
        refuse_idle(context, ["force"], "for two captures, and one was given")
        found = compare_configurations(
            first, baseline=baseline, metric=metric, margin_ratio=margin_ratio
        )
        levels = compare_levels(first, found) if bootstrap else []
        report = build_comparison(found, first, levels=levels)
    elif bootstrap:
        raise UsageError(
            "--bootstrap resamples the blocks of one capture, and two were given",
            hint="Measure both in one campaign",
        )
    else:
        second = open_dataset(other)
        found = compare_datasets(
            first, second, metric=metric, margin_ratio=margin_ratio, force=force
        )
        report = build_comparison(found, first, second)
    print_report(report, format_name=format_name, as_json=as_json, brief=brief)
