"""`excise report`: a whole report into a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import (
    BriefOption,
    CaptureArgument,
    ChartsOption,
    JsonOption,
    MarginOption,
    MetricOption,
    PrivateOption,
    checked,
    folder_written_later,
    margin_of,
    open_dataset,
    parsed,
    print_report,
    refuse_idle,
    report_format,
    require_no_other_form,
    require_one_of,
)
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult


def _picture(text: str) -> None:
    from excise.report.write import PICTURES

    require_one_of(PICTURES, text)


def report(
    context: typer.Context,
    capture: CaptureArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="File to write; its ending chooses the format. "
            "[default: report.html, or the ending of --format]",
            show_default=False,
        ),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            parser=parsed(report_format, "str"),
            help="Format, where the ending does not tell it.",
            show_default=False,
        ),
    ] = None,
    beside: Annotated[
        list[str] | None,
        typer.Option(
            "--beside", help="A capture or reference:NAME to print beside it.", show_default=False
        ),
    ] = None,
    charts: ChartsOption = None,
    tables: Annotated[
        str | None,
        typer.Option(
            "--tables",
            metavar="FOLDER",
            help="Folder to write each table to, as CSV.",
            show_default=False,
            callback=folder_written_later,
        ),
    ] = None,
    chart_format: Annotated[
        list[str] | None,
        typer.Option(
            "--chart-format",
            parser=checked(_picture, "str"),
            help="png, svg or pdf. [default: svg]",
            show_default=False,
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            "--baseline",
            help="Configuration to compare with. [default: the campaign's own]",
            show_default=False,
        ),
    ] = None,
    metric: MetricOption = None,
    margin: MarginOption = None,
    private: PrivateOption = False,
    brief: BriefOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a report: comparison, charts, attribution, checks, facts, losses.

    With --json it is printed on standard output; with -o FILE as well, it is written there too.
    With --brief the verdicts are printed as well.

    Example: excise report demo.excise -o report.html --beside reference:lsmpmon-2008
    """
    from excise.report.build import build_report
    from excise.report.write import (
        ending_of,
        export_charts,
        export_tables,
        format_of,
        open_output,
        render,
    )

    if charts is None:
        refuse_idle(
            context,
            ["chart_format"],
            "of charts in a folder, and none was given",
            hint="Give --charts",
        )
    if brief:
        require_no_other_form(as_json=as_json)
        if output == "-":
            raise UsageError("--brief and -o - both write to standard output")
    if as_json and (output or "-") == "-":
        if (format_name or "json") != "json":
            raise UsageError(f"--json and --format {format_name} ask for different things")
        output, format_name, as_json = "-", "json", False
    chosen = format_of("report.html" if output is None else output, name=format_name)
    if output is None:
        output = f"report{ending_of(chosen)}"
    with open_output(output) as opened:
        dataset = open_dataset(capture)
        built = build_report(
            dataset,
            beside=[open_dataset(name) for name in beside or []],
            appraisals=_appraisals(capture),
            baseline=baseline,
            metric=metric,
            margin_ratio=margin_of(dataset, margin),
            private=private,
        )
        opened.write(render(built, format=chosen))
        written = [] if output == "-" else [output]
        if charts is not None:
            written += map(str, export_charts(built, charts, formats=chart_format or ["svg"]))
        if tables is not None:
            written += map(str, export_tables(built, tables))
    if as_json or brief:
        print_report(built, format_name=None, as_json=as_json, brief=brief)
    if written:
        typer.echo(f"Wrote {', '.join(written)}", err=True)


def _appraisals(capture: str) -> list[AppraisalResult]:
    """Return what the capture's own evidence proves, where it has any."""
    if capture.startswith("reference:"):
        return []
    from excise.capture.archive import unpacked
    from excise.capture.store import EVIDENCE
    from excise.evidence.capture import verify_capture
    from excise.lab.evidence import verify_guests

    with unpacked(Path(capture)) as folder:
        found: list[AppraisalResult] = []
        if (folder / EVIDENCE).is_dir():
            found.append(verify_capture(folder))
        if guests := verify_guests(folder):
            found.append(guests)
        return found
