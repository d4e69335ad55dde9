"""Arguments that several commands share, and the way they open and print things."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from excise.errors import FormatError, UsageError
from excise.files import read_stream, read_whole
from excise.units import parse_count, parse_percentage

if TYPE_CHECKING:
    from typer._click import Parameter

    from excise.events.dataset import Dataset
    from excise.report.model import Report

T = TypeVar("T")

INPUT_BYTES: Final = 64 << 20
"""More than any key, token, quote, signature or log of a boot."""


def written_later(name: str | Path | None) -> str | Path | None:
    """Check before any work that an output can be written: an option's callback.

    Raises:
        OutputError: If it cannot.
    """
    if name is not None:
        from excise.report.write import require_writable

        require_writable(name)
    return name


def capture_written_later(name: str | None) -> str | None:
    """Check before any work that a capture can be made, or may be there to be added to.

    Raises:
        OutputError: If it cannot.
    """
    if name is not None:
        from excise.capture.store import require_place

        require_place(Path(name))
    return name


def report_written_later(name: str | None) -> str | None:
    """Check before any work that a report can be written, and in which format.

    Raises:
        UsageError: If its ending tells no format.
        OutputError: If it cannot be written.
    """
    if name is not None:
        from excise.report.write import format_of

        format_of(name)
    return None if written_later(name) is None else name


def folder_written_later(name: str | None) -> str | None:
    """Check before any work that files can be written into a folder, which is made if need be.

    Raises:
        OutputError: If they cannot.
    """
    if name is not None:
        from excise.report.write import open_folder

        open_folder(name)
    return name


def parsed(parse: Callable[[str], T], name: str) -> Callable[[Any], T]:
    """Return the parser of an option: it is read before any work, and errors name the option.

    Args:
        parse: Reads the text that was given; a default, which is no text, is left alone.
        name: What the value is, for the help text.
    """

    def value_of(given: Any) -> T:
        if not isinstance(given, str):
            return given  # type: ignore[no-any-return]
        try:
            return parse(given)
        except UsageError as error:
            raise typer.BadParameter(str(error)) from error

    value_of.__name__ = name
    return value_of


def checked(parse: Callable[[str], object], name: str) -> Callable[[Any], str]:
    """Return the parser of an option whose text is only checked; see `parsed`."""

    def same(text: str) -> str:
        parse(text)
        return text

    return parsed(same, name)


def require_one_of(known: tuple[str, ...], text: str) -> None:
    """Check that a text is one of the words known.

    Raises:
        UsageError: If it is none of them.
    """
    if text not in known:
        raise UsageError(f"{text!r} is unknown", hint=f"Known: {', '.join(known)}")


def _margin(text: str) -> float:
    ratio = parse_percentage(text)
    if ratio < 0:
        raise UsageError("a margin is not below zero")
    return ratio


def refuse_idle(
    context: typer.Context, names: Sequence[str], why: str, *, hint: str | None = None
) -> None:
    """Refuse what stands on the command line and would have no effect beside the rest of it.

    Args:
        context: The call.
        names: Parameters that would have none.
        why: What they are, so that they have none, such as "of boots, and none was given".
        hint: What would give them one.

    Raises:
        UsageError: One of them was given.
    """
    idle = [
        _words_of(parameter)
        for parameter in context.command.params
        if parameter.name and parameter.name in names and _is_given(context, parameter.name)
    ]
    if idle:
        *before, last = idle
        listed = f"{', '.join(before)} and {last}" if before else last
        leave = f"eave {'them' if before else 'it'} out"
        raise UsageError(
            f"{listed} {'are' if before else 'is'} {why}",
            hint=f"{hint}, or l{leave}" if hint else f"L{leave}",
        )


def _words_of(parameter: Parameter) -> str:
    """Return what help calls a parameter: an option in its long form, an argument by its word."""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len)
    return (parameter.metavar or str(parameter.name)).strip("[].")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def parse_counts(text: str) -> list[int]:
    """Return the whole numbers that commas join.

    Raises:
        UsageError: If one is none.
    """
    return [parse_count(word) for word in split_words(text)]


def report_format(text: str) -> str:
    """Return the name of a report's format.

    Raises:
        UsageError: There is none of this name.
    """
    from excise.report.write import format_of

    return format_of("-", name=text)


JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]
BriefOption = Annotated[
    bool,
    typer.Option(
        "--brief", help="Print the verdict and a line for each result, to be pasted or watched."
    ),
]
MetricOption = Annotated[
    str | None,
    typer.Option(
        "--metric",
        help="Metric to look at, such as wall_ns, user_ns, max_rss_bytes. "
        "[default: time per operation, or wall time]",
        show_default=False,
    ),
]
MarginOption = Annotated[
    float | None,
    typer.Option(
        "--margin",
        parser=parsed(_margin, "percentage"),
        help="Difference that would not matter, such as 1%. [default: the campaign's, else 1%]",
        show_default=False,
    ),
]
ChartsOption = Annotated[
    str | None,
    typer.Option(
        "--charts",
        metavar="FOLDER",
        help="Folder to write each chart to.",
        show_default=False,
        callback=folder_written_later,
    ),
]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        parser=parsed(report_format, "str"),
        help="text, markdown, csv, json, latex or html. [default: text]",
        show_default=False,
    ),
]
ReportOutputOption = Annotated[
    str | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Also write a report: .html, .md, .csv, …",
        show_default=False,
        callback=report_written_later,
    ),
]
CaptureOutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="CAPTURE",
        help="Capture to write.",
        callback=capture_written_later,
    ),
]
ReplaceOption = Annotated[bool, typer.Option("--force", help="Replace the capture if it exists.")]
OtherConditionsOption = Annotated[
    bool, typer.Option("--force", help="Compare captures made under different conditions.")
]
PrivateOption = Annotated[
    bool, typer.Option("--private", help="Also show facts that name the host.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of the order.")]
ProgressOption = Annotated[
    bool, typer.Option("--progress/--no-progress", help="Show progress on a terminal.")
]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", metavar="FILE", help="Certificates to trust for TLS (PEM).", show_default=False
    ),
]
CaptureArgument = Annotated[
    str,
    typer.Argument(
        metavar="CAPTURE",
        help="A capture folder, a .tar.zst of one, - for a .tar.zst on standard input, or "
        "reference:NAME (see `excise show --list`).",
    ),
]


def open_dataset(name: str, *, with_batches: bool = False) -> Dataset:
    """Return the dataset a user named: a capture, an archive, or reference:NAME.

    Args:
        name: As given on the command line; - is an archive on standard input.
        with_batches: Whether to keep every batch of the probe's runs.

    Raises:
        ExciseError: If it does not exist or cannot be read.
    """
    if name.startswith("reference:"):
        from excise.reference import load

        return load(name.removeprefix("reference:"))
    from excise.events.load import load_capture

    if name == "-":
        with tempfile.NamedTemporaryFile(prefix="excise-", suffix=".tar.zst") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.flush()
            return load_capture(Path(file.name), name="standard input", with_batches=with_batches)
    return load_capture(Path(name), with_batches=with_batches)


def margin_of(dataset: Dataset, given: float | None) -> float:
    """Return the margin as a ratio: the one given, else the campaign's own, else 1 %."""
    if given is not None:
        return given
    return _margin(str(dataset.manifest.campaign.get("margin", "1%")))


def split_words(text: str | None) -> tuple[str, ...]:
    """Return the words that commas join, without the empty ones."""
    return tuple(filter(None, map(str.strip, (text or "").split(","))))


def read_input(name: str, *, limit_bytes: int = INPUT_BYTES) -> bytes:
    """Return the bytes of a file, or of standard input for `-`.

    Args:
        name: As given on the command line.
        limit_bytes: Bytes it may have at most.

    Raises:
        FormatError: If the file cannot be read, or is larger.
    """
    if name == "-":
        return read_stream(sys.stdin.buffer, source="standard input", limit_bytes=limit_bytes)
    try:
        return read_whole(Path(name), limit_bytes=limit_bytes)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=name) from error


def print_json(value: Any) -> None:
    """Print a plain value as JSON on standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False, default=str))


def write_report(report: Report, output: str | None) -> None:
    """Write a report to the file a user named, in the format of its name; without one, nothing."""
    if output is None:
        return
    from excise.report.write import format_of, open_output, render

    chosen = format_of(output)
    with open_output(output) as opened:
        opened.write(render(report, format=chosen))
    typer.echo(f"Wrote {output}", err=True)


def require_no_other_form(*, format_name: str | None = None, as_json: bool = False) -> None:
    """Check that nothing but `--brief` says how a result is to be printed.

    Raises:
        UsageError: If something does.
    """
    if format_name is not None or as_json:
        other = "--json" if as_json else f"--format {format_name}"
        raise UsageError(f"--brief and {other} ask for different things")


def print_report(
    report: Report, *, format_name: str | None, as_json: bool, brief: bool = False
) -> None:
    """Print a report on standard output: text fit for the terminal unless asked otherwise."""
    from excise.report.write import format_of, render

    if brief:
        from excise.report.brief import render_brief

        require_no_other_form(format_name=format_name, as_json=as_json)
        typer.echo(render_brief(report), nl=False)
        return
    chosen = format_of("-", name=format_name or ("json" if as_json else None))
    if as_json and chosen != "json":
        raise UsageError(f"--json and --format {format_name} ask for different things")
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 80
    color = terminal and not os.environ.get("NO_COLOR")
    typer.echo(render(report, format=chosen, width=width, color=color), nl=False)
