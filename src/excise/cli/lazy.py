"""Groups of commands that import a command when it is asked for, and not before.

Start-up is a part of what a command costs: importing the others would add a third to it.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import typer
from typer.core import HAS_RICH, TyperGroup
from typer.main import get_command

from excise.cli.commands import Group

if TYPE_CHECKING:
    from typer._click import Context

_SETTINGS: Mapping[str, Any] = {
    "no_args_is_help": True,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
}


def lazy_program(
    commands: Mapping[str, str | Group],
    *,
    summary: str,
    name: str | None = None,
    implied: Mapping[str, str] | None = None,
    headings: Mapping[str, str] | None = None,
    **settings: Any,
) -> typer.Typer:
    """Return a Typer program whose commands are imported one by one as they are asked for.

    Args:
        commands: Place of each command by its name, in the order of the help text.
        summary: What the program is for.
        name: Word the user types.
        implied: Values of options, by name, that may stand alone, without one.
        headings: What each command is listed under, by its name.
        settings: Further settings of `typer.Typer`.
    """

    class _Commands(TyperGroup):
        def list_commands(self, ctx: Context) -> list[str]:  # noqa: ARG002 - as the base class has it
            return list(commands)

        def get_command(self, ctx: Context, cmd_name: str) -> Any:
            if cmd_name in commands and cmd_name not in self.commands:
                command = self.commands[cmd_name] = _load(cmd_name, commands[cmd_name])
                if headings:
                    command.rich_help_panel = headings[cmd_name]
            return super().get_command(ctx, cmd_name)

        def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
            if implied and len(args) == 1 and args[0] in implied:
                args = [args[0], implied[args[0]]]
            return super().parse_args(ctx, args)

        def invoke(self, ctx: Context) -> Any:
            try:
                return super().invoke(ctx)
            except KeyboardInterrupt as error:
                raise typer.Abort from error  # which `main` tells of; Typer would end silently

    kept = {**_SETTINGS, **settings}
    program = typer.Typer(name=name, cls=_Commands, help=summary, add_completion=False, **kept)
    program.callback()(_nothing)
    return program


def _nothing() -> None:
    """Stand where a group has no options of its own."""


def _load(name: str, place: str | Group) -> Any:
    """Return the command at a place, built alone."""
    if isinstance(place, Group):
        program = lazy_program(place.commands, summary=place.summary)
    else:
        module, attribute = place.split(":")
        found = getattr(importlib.import_module(module), attribute)
        program = found
        if not isinstance(found, typer.Typer):
            program = typer.Typer(add_completion=False, **_SETTINGS)
            program.command(name)(found)
    program._add_completion = False  # `excise.cli.completion` has it
    command = get_command(program)
    command.name = name
    _escape_brackets(command)
    return command


def _escape_brackets(command: Any) -> None:
    """Have `[default: none]` shown in help texts, which would be taken for markup."""
    for parameter in command.params:
        if HAS_RICH and (text := getattr(parameter, "help", None)):
            parameter.help = text.replace("[", r"\[")
    for each in getattr(command, "commands", {}).values():
        _escape_brackets(each)
