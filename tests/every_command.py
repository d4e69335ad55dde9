"""Every command of the program by its words, as Typer has built it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer._click import Context
from typer.main import get_command

from excise.cli.program import app


def _commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "list_commands"):
        yield words, command
        return
    context = Context(command)
    for name in command.list_commands(context):
        yield from _commands(command.get_command(context, name), (*words, name))


COMMANDS = dict(_commands(get_command(app)))
