"""`excise boot`: boots by stage, from captures, from this host, from files of one boot."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import FormatOption, JsonOption, open_dataset, print_report


def show(
    captures: Annotated[
        list[str],
        typer.Argument(
            metavar="CAPTURE...", help="Captures with boots, or reference:NAME, side by side."
        ),
    ],
    all_parts: Annotated[
        bool, typer.Option("--all", help="Print every unit, initcall and quiet time.")
    ] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Also show facts that name the host.")
    ] = False,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show boots: stages, IMA entries, commands to the TPM, units, chain, initcalls.

    Example: excise boot show boots.excise reference:thesis-reboot
    """
    from excise.report.boot import build_boots

    datasets = [open_dataset(name) for name in captures]
    report = build_boots(datasets, limit=0 if all_parts else 10, private=private)
    print_report(report, format_name=format_name, as_json=as_json)
