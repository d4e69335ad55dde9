"""`excise perf`: the C header of the marks that excise reads, and what a mark costs here."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from excise.cli.options import JsonOption, print_json
from excise.errors import HostError


def header(
    output: Annotated[
        str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - for standard output.")
    ] = "-",
) -> None:
    """Write ra_perf.h: time the steps of a C program, one RA_PERF line a step.

    Example: excise perf header -o ra_perf.h
    """
    from excise.collect.perf_cost import header as text

    if output == "-":
        typer.echo(text(), nl=False)
        return
    from excise.report.write import open_output

    with open_output(output) as file:
        file.write(text())
    typer.echo(
        f"Wrote {output}. Compile with -DRA_PERF_ENABLED; its first comment shows how.", err=True
    )


def cost(
    compiler: Annotated[
        str | None,
        typer.Option(
            "--compiler", metavar="CC", help="C compiler. [default: cc]", show_default=False
        ),
    ] = None,
    language: Annotated[
        Literal["c", "python"] | None,
        typer.Option("--language", help="This one alone. [default: both]", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure what one mark costs on this machine, in Python and in C.

    Example: excise perf cost
    """
    from excise.collect.perf_cost import c_cost, python_cost

    costs = []
    missing = None
    if language != "python":
        try:
            costs.append(c_cost(compiler))
        except HostError as error:
            if language == "c" or compiler is not None:
                raise
            missing = error
    if language != "c":
        costs.append(python_cost())
    if as_json:
        print_json({"costs": [asdict(each) for each in costs]})
    else:
        for each in costs:
            typer.echo(
                f"{each.language:<7}{each.mark_ns:7.0f} ns a mark, of which the clock "
                f"{each.clock_ns:.0f} ns; beside it {each.beside_ns:.0f} ns "
                f"({each.rounds} rounds of 4,096)"
            )
    if missing is not None:
        typer.echo(f"excise: C was not measured: {missing}", err=True)
