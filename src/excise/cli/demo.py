"""`excise demo`: a shipped capture, shown; no root, network or TPM needed."""

from __future__ import annotations

from pathlib import Path

from excise.cli.options import (
    BriefOption,
    JsonOption,
    ReportOutputOption,
    margin_of,
    open_dataset,
    print_report,
    write_report,
)

CAPTURE = Path(__file__).resolve().parent.parent / "data" / "demo.tar.zst"


def demo(
    output: ReportOutputOption = None,
    brief: BriefOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the result of a real campaign that ships with excise, at once.

    Example: excise demo -o demo.html
    """
    from excise.cost.comparison import compare_configurations
    from excise.report.build import build_comparison, build_report

    dataset = open_dataset(str(CAPTURE))
    if output is not None:
        write_report(build_report(dataset), output)
    print_report(
        build_comparison(
            compare_configurations(dataset, margin_ratio=margin_of(dataset, None)), dataset
        ),
        format_name=None,
        as_json=as_json,
        brief=brief,
    )
