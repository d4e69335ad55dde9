"""`excise lab hmac`: what the kernel's HMAC sessions cost, traced and in boots."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli.lab_options import GoOnOutputOption
from excise.cli.options import (
    FormatOption,
    JsonOption,
    open_dataset,
    print_report,
)

BESIDE = "reference:tpm-hmac-2024"


def hmac(
    boots: Annotated[
        int, typer.Option("--boots", "-n", help="Boots of each kind of protection.", min=0)
    ] = 3,
    entries: Annotated[
        int,
        typer.Option("--entries", help="New files measured while extends are traced.", min=1),
    ] = 40,
    kernel: Annotated[
        str, typer.Option("--kernel", "-k", help="A kernel with HMAC sessions.")
    ] = "own",
    without: Annotated[
        str, typer.Option("--without", help="The same kernel without them.")
    ] = "own:no-hmac",
    root: Annotated[
        str, typer.Option("--root", help="What boots: debian (systemd) or initramfs.")
    ] = "debian",
    output: GoOnOutputOption = "hmac.excise",
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Trace and boot the lab's own kernel with HMAC sessions on, on for other commands, and off.

    Needs both kernels, built once: `excise lab kernel build`, and again with --name own:no-hmac.

    Example: excise lab hmac --boots 3 -o hmac.excise
    """
    from excise.cli.steps import guests_bar
    from excise.lab.boots import boot_machine
    from excise.lab.hmac import hmac_modes, run_hmac
    from excise.report.hmac import build_hmac

    with guests_bar() as show:
        failures = run_hmac(
            hmac_modes(kernel=kernel, without=without),
            machine=boot_machine(root=root),
            boots=boots,
            entries=entries,
            output=Path(output),
            on_progress=show,
        )
    dataset = open_dataset(output)
    if dataset.runs.height:
        report = build_hmac(dataset, beside=open_dataset(BESIDE))
        print_report(report, format_name=format_name, as_json=as_json)
        typer.echo(f"Wrote {output}", err=True)
    for failure in failures:
        raise failure.error
