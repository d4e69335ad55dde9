"""The program: its commands, and the options that come before one."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.commands import COMMANDS, SECTIONS
from excise.cli.completion import (
    RUNNING_SHELL,
    InstallCompletionOption,
    ShowCompletionOption,
    answer_shells,
)
from excise.cli.lazy import lazy_program

answer_shells()
app = lazy_program(
    COMMANDS,
    name="excise",
    summary="Measure what Linux security and attestation mechanisms cost, cut that cost out of the "
    "total, and prove that the mechanism was on.",
    headings={name: heading for heading, section in SECTIONS.items() for name in section},
    implied=dict.fromkeys(("--show-completion", "--install-completion"), RUNNING_SHELL),
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(asked: bool) -> None:
    if asked:
        from excise import __version__

        typer.echo(f"excise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
    show_completion: ShowCompletionOption = None,
    install_completion: InstallCompletionOption = None,
) -> None:
    """Options that come before a command."""
