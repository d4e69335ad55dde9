"""`excise lab kernel`: kernels of one's own, built once and kept."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, print_json, read_input
from excise.cli.steps import steps_bar
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.lab.kernel_build import Built

app = typer.Typer(
    no_args_is_help=True,
    help="Build kernels with what distributions leave out; use them as --kernel own.",
)


@app.command("build")
def build(
    name: Annotated[
        str,
        typer.Option("--name", help="own, own:no-hmac, or own:NAME for a kernel of your own."),
    ] = "own",
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            help="Source package. [default: linux-source-6.12]",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="Build options to put over the lab's, in the form of a .config.",
            show_default=False,
        ),
    ] = None,
    patch: Annotated[
        list[str] | None,
        typer.Option("--patch", help="A patch for the kernel, for patch -p1.", show_default=False),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            help="Compilers at a time. [default: one a processor]",
            min=1,
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Build a kernel from the distribution's source: TPM HMAC sessions, Smack, profiler.

    It takes some ten minutes of two processors and 3 GB; interrupted, it goes on from there at the
    next call. Nothing is installed.

    Example: excise lab kernel build && excise lab run --kernel own --preset ima-measure -w files:9

    Example: excise lab kernel build --name own:patched --patch fix.patch
    """
    from excise.lab.kernel_build import SOURCE, build_kernel

    if name in ("own", "own:no-hmac") and (config or patch):
        raise UsageError(
            f"{name} is the lab's own kernel, without further options or patches",
            hint="Give yours a name, as in --name own:patched",
        )
    more = read_input(config).decode("utf-8", "replace") if config else ""
    with steps_bar(progress=True) as on_step:
        built = build_kernel(
            name,
            source=source or SOURCE,
            more_options=more,
            patches=[Path(each) for each in patch or []],
            jobs=jobs,
            on_progress=lambda each: on_step(each.stage, each.done, each.total or None),
        )
    if as_json:
        print_json(_described(built))
        return
    typer.echo(f"{name}: kernel {built.release} of {built.source}, options {built.key[:12]}")
    if built.not_offered:
        typer.echo(f"  not in this kernel yet: {', '.join(built.not_offered)}")
    typer.echo(f"Use it as --kernel {name}", err=True)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """List the kernels that were built.

    Example: excise lab kernel list
    """
    from excise.lab.kernel_build import built_kernels

    found = built_kernels()
    if as_json:
        print_json([_described(built) for built in found])
        return
    for built in found:
        typer.echo(f"{built.name:<20} {built.release}  {built.source}")
    if not found:
        typer.echo("No kernel has been built: excise lab kernel build", err=True)


@app.command("clean")
def clean(as_json: JsonOption = False) -> None:
    """Remove source trees; kernels that were built stay.

    Example: excise lab kernel clean
    """
    from excise.lab.kernel_build import remove_trees

    freed = remove_trees()
    if as_json:
        print_json({"freed_bytes": freed})
        return
    typer.echo(f"{freed / 1e9:.1f} GB freed; a further variant compiles from the start")


def _described(built: Built) -> dict[str, object]:
    import msgspec

    return dict(msgspec.to_builtins(built))
