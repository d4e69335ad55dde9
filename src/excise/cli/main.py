"""Where the program starts: the one place that prints errors and returns exit codes.

Exit codes: 0 done · 1 answered "no" · 2 usage · 3 unreadable input · 4 this host cannot · 130
interrupted · 141 the reader of the output has gone.
"""

from __future__ import annotations

import atexit
import codecs
import gc
import io
import json
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from excise.errors import ExciseError, HostError, UsageError
from excise.files import lacks_room, unwritable

if TYPE_CHECKING:
    from typer import TyperException


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit with its code.

    Args:
        arguments: Words after the program's name; those of the process when None.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    signal.signal(signal.SIGTERM, _interrupt)
    _open_closed_streams()
    _bear_encodings(as_json=_wants_json(words))
    # What is imported is no garbage. Looking for some of it there, and once more at the end, takes
    # a sixth of a short command's processor time.
    gc.disable()
    try:
        import typer

        from excise.cli.program import app
    except KeyboardInterrupt:
        sys.exit(130)

    gc.enable()
    atexit.register(gc.freeze)
    try:
        _require_text(words)
        code = app(args=words, prog_name="excise", standalone_mode=False) or 0
        sys.stdout.flush()
    except ExciseError as error:
        _report(error, as_json=_wants_json(words))
        code = error.exit_code
    except ModuleNotFoundError as error:
        from excise.cli.extras import missing_extra

        missing = missing_extra(error)
        if missing is None:
            raise
        _report(missing, as_json=_wants_json(words))
        code = missing.exit_code
    except typer.TyperException as error:
        _report_usage(error, as_json=_wants_json(words))
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        _say("excise: interrupted")
        code = 130
    except (BrokenPipeError, SystemExit) as error:
        # Typer turns a broken pipe into exit code 1, which is an answer here.
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader has gone (`| head`); nothing is left to say, also not at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    except OSError as error:
        if not lacks_room(error):
            raise
        _report(unwritable(error, source="the output"), as_json=_wants_json(words))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = HostError.exit_code
    sys.exit(code)


def _open_closed_streams() -> None:
    """Give a standard stream that was closed (`>&-`) the null device: nobody is to be told."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


def _bear_encodings(*, as_json: bool) -> None:
    """Have what the encoding of an output lacks written as `?`, in JSON as an escape."""
    codecs.register_error("json-escape", _json_escape)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="json-escape" if as_json else "replace")


def _json_escape(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


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
    _say(text)


def _report_usage(error: TyperException, *, as_json: bool) -> None:
    message = error.format_message()
    if not message:
        return  # `excise` alone, which has printed its help
    if as_json:
        _say(json.dumps({"error": "UsageError", "reason": message, "exit_code": 2}))
        return
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "excise"
    _say(f"excise: {message}")
    _say(f"Try '{path} --help' for help.")


def _say(text: str) -> None:
    import typer

    typer.echo(text, err=True)
