"""`excise show`: what is in a capture, or which published data sets there are."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import (
    FormatOption,
    JsonOption,
    MetricOption,
    PrivateOption,
    open_dataset,
    print_json,
    print_report,
    refuse_idle,
)
from excise.errors import UsageError


def show(
    context: typer.Context,
    capture: Annotated[
        str | None,
        typer.Argument(
            metavar="CAPTURE",
            help="A capture folder, a .tar.zst of one, - for a .tar.zst on standard input, or "
            "reference:NAME.",
            show_default=False,
        ),
    ] = None,
    metric: MetricOption = None,
    format_name: FormatOption = None,
    private: PrivateOption = False,
    list_references: Annotated[
        bool, typer.Option("--list", help="List the published data sets that ship with excise.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what a capture holds: each task under each configuration, first run apart.

    Example: excise show demo.excise    or    excise show reference:lsmpmon-2008
    """
    if list_references:
        refuse_idle(
            context,
            ("capture", "metric", "format_name", "private"),
            "not for --list, which shows no capture",
        )
        _list_references(as_json=as_json)
        return
    if capture is None:
        raise UsageError("no capture was given", hint="excise show CAPTURE, or excise show --list")
    from excise.report.build import build_show

    report = build_show(open_dataset(capture), metric=metric, private=private)
    print_report(report, format_name=format_name, as_json=as_json)


def _list_references(*, as_json: bool) -> None:
    from excise.reference import load, names

    rows = [(name, load(name).manifest) for name in names()]
    if as_json:
        print_json(
            [
                {
                    "name": f"reference:{name}",
                    "title": manifest.title,
                    "sources": [source.title for source in manifest.sources],
                }
                for name, manifest in rows
            ]
        )
        return
    width = max(len(name) for name, _ in rows)
    for name, manifest in rows:
        typer.echo(f"reference:{name:<{width}}  {manifest.title}")
