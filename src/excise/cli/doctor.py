"""`excise doctor`: what this host can measure, and how to enable the rest."""

from __future__ import annotations

import dataclasses

import typer

from excise.cli.options import JsonOption, print_json


def doctor(as_json: JsonOption = False) -> None:
    """Say what this host can measure, what it cannot, and how to enable the rest.

    Nothing is changed; what can be tried without harm is tried.

    Example: excise doctor
    """
    from excise.collect.doctor import examine

    abilities = examine()
    if as_json:
        print_json([dataclasses.asdict(each) for each in abilities])
        return
    width = max(len(each.name) for each in abilities)
    for each in abilities:
        typer.echo(f"{each.state:<6} {each.name:<{width}}  {each.found}")
        if each.enable:
            typer.echo(f"{'':<6} {'':<{width}}  -> {each.enable}")
