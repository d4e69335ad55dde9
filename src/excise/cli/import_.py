"""`excise import`: any known format into a capture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from excise.cli.options import JsonOption, print_json, read_input, refuse_idle
from excise.errors import FormatError, UsageError
from excise.files import FileOnDisk
from excise.units import counted

if TYPE_CHECKING:
    from excise.events.imports import Imported, Named
    from excise.formats.model import Options, Reading

LOSSES_TOLD: Final = 10


def import_(
    context: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="FILE...", help="Files to read; - for standard input.", show_default=False
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", help="Capture to write. [default: FILE.excise]", show_default=False
        ),
    ] = None,
    format_name: Annotated[
        str | None,
        typer.Option("--format", help="Read as this format, undetected.", show_default=False),
    ] = None,
    configuration: Annotated[
        list[str] | None,
        typer.Option(
            "--configuration",
            help="Configuration of each file, where its format names none; once for all files, "
            "or once for each.",
            show_default=False,
        ),
    ] = None,
    task: Annotated[
        str,
        typer.Option("--task", help="Task name, where the format names none.", show_default=False),
    ] = "",
    clock_hz: Annotated[
        float | None,
        typer.Option("--clock-hz", help="Frequency of a cycle counter, in Hz.", show_default=False),
    ] = None,
    list_formats: Annotated[bool, typer.Option("--list", help="List the known formats.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Read foreign results into a capture; what could not be read is declared.

    Example: excise import uart.log -o board.excise    or    perf ... | excise import -
    """
    if list_formats:
        reading = ("files", "output", "format_name", "configuration", "task", "clock_hz")
        refuse_idle(context, reading, "not for --list, which reads no file")
        _list_formats(as_json=as_json)
        return
    if not files:
        raise UsageError("no file was given", hint="excise import FILE, or - for standard input")
    if clock_hz is not None and not 0 < clock_hz < float("inf"):
        raise UsageError(f"--clock-hz {clock_hz:g}: a frequency is above zero and finite")
    from excise.capture.store import require_free
    from excise.events.imports import import_readings, named_once
    from excise.formats.model import Options

    named = named_once(list(zip(files, _one_each(configuration, files), strict=True)))
    once = [each for each in named if each.same_as is None]
    copies: dict[str, str] = {}
    path = Path(output or f"{Path(files[0]).name if files[0] != '-' else 'stdin'}.excise")
    require_free(path)
    found: list[dict[str, Any]] = []

    def imported(each: Named) -> Imported:
        options = Options(
            source=each.name, configuration=each.configuration, task=task, clock_hz=clock_hz
        )
        done = _read(each.name, options, format_name)
        found.append({"name": each.name, **_summary(done.reading)})
        return done

    import_readings(path, map(imported, once), on_copy=copies.__setitem__)
    again = {each.name: each.same_as for each in named if each.same_as is not None}
    if as_json:
        print_json({"capture": str(path), "files": found, "read_once": again, "copies": copies})
        return
    for summary in found:
        _tell(summary)
    for name, first in again.items():
        typer.echo(f"{name}: the same file as {first}, read once", err=True)
    for name, first in copies.items():
        typer.echo(
            f"{name}: holds the same bytes as {first}; both are counted. If one is a copy, import "
            "it without",
            err=True,
        )
    typer.echo(f"Wrote {path}", err=True)


def _read(name: str, options: Options, format_name: str | None) -> Imported:
    from excise.events.imports import Imported
    from excise.formats.registry import MAX_HELD_BYTES, read

    path = Path(name)
    try:
        on_disk = name != "-" and path.is_file()
        data = FileOnDisk.of(path) if on_disk else read_input(name, limit_bytes=MAX_HELD_BYTES)
        reading = read(data, options=options, format_name=format_name)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=name) from error
    return Imported(name=name, data=data, reading=reading)


def _list_formats(*, as_json: bool) -> None:
    from excise.formats.registry import FORMATS

    if as_json:
        print_json([{"name": known.name, "title": known.title} for known in FORMATS])
        return
    for known in FORMATS:
        typer.echo(f"{known.name:<18} {known.title}")


def _tell(found: dict[str, Any]) -> None:
    """Print what was read on standard output, and what was lost on standard error."""
    typer.echo(
        f"{found['name']}: {found['format']}: {counted(found['runs'], 'run')}, "
        f"{counted(found['events'], 'event')}, {counted(found['aggregates'], 'table row')}, "
        f"{found['lost']} lost"
    )
    losses = found["losses"]
    for loss in losses[:LOSSES_TOLD]:
        place = f" line {loss['line']}" if loss["line"] else ""
        typer.echo(f"  lost{place}: {loss['reason']}", err=True)
    if (more := len(losses) - LOSSES_TOLD) > 0:
        typer.echo(f"  ... and {more} more (all are in the capture)", err=True)
    for note in found["notes"]:
        typer.echo(f"  note: {note}", err=True)


def _one_each(configurations: list[str] | None, files: list[str]) -> list[str | None]:
    """Return each file's configuration; None where the format is to tell it."""
    given: list[str | None] = [*configurations] if configurations else [None]
    if len(given) == 1:
        return given * len(files)
    if len(given) != len(files):
        raise UsageError(
            f"{counted(len(given), 'configuration was', 'configurations were')} given for "
            f"{counted(len(files), 'file')}",
            hint="Give --configuration once, or once for each file",
        )
    return given


def _summary(reading: Reading) -> dict[str, Any]:
    return {
        "format": reading.format,
        "runs": len(reading.runs),
        "events": len(reading.events),
        "aggregates": len(reading.aggregates),
        "lost": sum(loss.count for loss in reading.losses),
        "losses": [
            {"line": loss.line, "offset": loss.offset, "reason": loss.reason, "count": loss.count}
            for loss in reading.losses
        ],
        "clock": {"name": reading.clock.name, "resolution_ns": reading.clock.resolution_ns},
        "notes": list(reading.notes),
    }
