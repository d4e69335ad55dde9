"""`--show-completion` and `--install-completion`: for the shell that runs, or for one by name.

Packagers write the scripts of all shells from one.
"""

from __future__ import annotations

import os
from typing import Annotated, Final

import typer

from excise.errors import HostError, UsageError

VARIABLE: Final = "_EXCISE_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
RUNNING_SHELL: Final = "auto"
"""Stands for the shell that excise is called from."""

# Typer's script only defines the function: a shell that loads it at the first Tab must be told.
_ZSH_LOADED: Final = """
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _excise_completion "$@"
fi"""


def answer_shells() -> None:
    """Have a call from a script of completion answered: the variable that it sets tells of one."""
    if os.environ.get(VARIABLE):
        from typer._completion_classes import completion_init

        completion_init()


def _show(asked: str | None) -> None:
    if asked is None:
        return
    from typer._completion_shared import get_completion_script

    shell = _shell_of(asked, option="--show-completion")
    script = get_completion_script(prog_name="excise", complete_var=VARIABLE, shell=shell)
    typer.echo(script + (_ZSH_LOADED if shell == "zsh" else ""))
    raise typer.Exit


def _install(asked: str | None) -> None:
    if asked is None:
        return
    from typer._completion_shared import install

    shell, path = install(
        shell=_shell_of(asked, option="--install-completion"),
        prog_name="excise",
        complete_var=VARIABLE,
    )
    typer.echo(f"{path}: completion for {shell}; new shells have it", err=True)
    raise typer.Exit


ShowCompletionOption = Annotated[
    str | None,
    typer.Option(
        "--show-completion",
        metavar="[SHELL]",
        callback=_show,
        is_eager=True,
        help="Print completion for bash, zsh or fish; without one, for yours.",
        show_default=False,
    ),
]
InstallCompletionOption = Annotated[
    str | None,
    typer.Option(
        "--install-completion",
        metavar="[SHELL]",
        callback=_install,
        is_eager=True,
        help="Install completion for bash, zsh or fish; without one, for yours.",
        show_default=False,
    ),
]


def _shell_of(asked: str, *, option: str) -> str:
    hint = f"Name one: {option} {'|'.join(SHELLS)}"
    if asked != RUNNING_SHELL:
        if asked not in SHELLS:
            raise UsageError(f"{option} {asked!r} is no shell known here", hint=hint)
        return asked
    from typer._completion_shared import _get_shell_name

    name = _get_shell_name()
    if name is None:
        raise HostError("the shell that runs this could not be told", hint=hint)
    if name not in SHELLS:
        raise HostError(f"there is no completion for {name}", hint=hint)
    return name
