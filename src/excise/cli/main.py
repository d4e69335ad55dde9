"""The program: its commands, and the one place that prints errors and returns exit codes.

Exit codes: 0 done · 1 answered "no" · 2 usage · 3 unreadable input · 4 this host cannot · 130
interrupted · 141 the reader of the output has gone.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer

from excise.cli.commands import COMMANDS
from excise.cli.lazy import lazy_program
from excise.errors import ExciseError, HostError, UsageError

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

app = lazy_program(
    COMMANDS,
    name="excise",
    summary="Measure what Linux security and attestation mechanisms cost, cut that cost out of the "
    "total, and prove that the mechanism was on.",
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
) -> None:
    """Options that come before a command."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit with its code.

    Args:
        arguments: Words after the program's name; those of the process when None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        _require_text(words)
        code = app(args=words, prog_name="excise", standalone_mode=False) or 0
        sys.stdout.flush()
    except ExciseError as error:
        _report(error, as_json=_wants_json(words))
        code = error.exit_code
    except typer.TyperException as error:
        _report_usage(error, as_json=_wants_json(words))
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("excise: interrupted", err=True)
        code = 130
    except (BrokenPipeError, SystemExit) as error:
        # Typer turns a broken pipe into exit code 1, which is an answer here.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader has gone (`| head`); nothing is left to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        _report(HostError("the output could not be written: no room"), as_json=_wants_json(words))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = HostError.exit_code
    sys.exit(code)


def _require_text(words: Sequence[str]) -> None:
    """Refuse arguments that are no text: captures, which are JSON, could not hold them."""
    for word in words:
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise UsageError(f"the argument {word!r} is not UTF-8 text")


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _wants_json(words: Sequence[str]) -> bool:
    own = words[: words.index("--")] if "--" in words else words
    return "--json" in own


def _report(error: ExciseError, *, as_json: bool) -> None:
    text = json.dumps(error.as_dict(), default=str) if as_json else f"excise: {error}"
    typer.echo(text, err=True)


def _report_usage(error: typer.TyperException, *, as_json: bool) -> None:
    message = error.format_message()
    if not message:
        return  # `excise` alone, which has printed its help
    if as_json:
        typer.echo(json.dumps({"error": "UsageError", "reason": message, "exit_code": 2}), err=True)
        return
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "excise"
    typer.echo(f"excise: {message}", err=True)
    typer.echo(f"Try '{path} --help' for help.", err=True)
