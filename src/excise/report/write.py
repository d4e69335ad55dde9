"""The one place where reports meet files: outputs opened first, replaced in one step.

A path is opened before the work whose result it takes begins, so that a wrong path costs nothing.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args

from excise.errors import OutputError, UsageError
from excise.files import unwritable
from excise.report.model import Report

ReportFormat = Literal["text", "markdown", "csv", "json", "latex", "html"]
PictureFormat = Literal["png", "svg", "pdf"]

FORMATS: tuple[ReportFormat, ...] = get_args(ReportFormat)
PICTURES: tuple[PictureFormat, ...] = get_args(PictureFormat)

_ENDINGS: dict[str, ReportFormat] = {
    ".txt": "text",
    ".text": "text",
    ".md": "markdown",
    ".markdown": "markdown",
    ".csv": "csv",
    ".json": "json",
    ".tex": "latex",
    ".html": "html",
    ".htm": "html",
}


def format_of(path: str | Path, *, name: str | None = None) -> ReportFormat:
    """Return the format for an output: the one named, else by the file's ending.

    Args:
        path: Output path; `-` is standard output, text unless named otherwise.
        name: The format asked for, one of `FORMATS`.

    Raises:
        UsageError: An unknown name, or an ending that tells no format.
    """
    known = ", ".join(FORMATS)
    if name is not None:
        for candidate in FORMATS:
            if name == candidate:
                return candidate
        raise UsageError(f"unknown format {name!r}", hint=f"Formats: {known}.")
    if str(path) == "-":
        return "text"
    ending = Path(path).suffix.lower()
    if ending not in _ENDINGS:
        raise UsageError(
            f"the ending {ending!r} tells no format" if ending else "no ending tells the format",
            source=str(path),
            hint=f"Use one of {', '.join(_ENDINGS)}, or name the format: {known}.",
        )
    return _ENDINGS[ending]


def ending_of(chosen: ReportFormat) -> str:
    """Return the ending of files of a format, with its dot."""
    return next(ending for ending, format_name in _ENDINGS.items() if format_name == chosen)


def render(
    report: Report,
    *,
    format: ReportFormat,  # noqa: A002  the field's word, as in --format
    table: str | None = None,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return the report as text in one format.

    Args:
        report: What to render.
        format: One of `FORMATS`.
        table: For CSV and LaTeX, the one table wanted; the other formats take none.
        width: Terminal cells a line, for text.
        color: ANSI colours, for text.

    Raises:
        UsageError: A table that is not there, or asked of a format that prints whole reports.
    """
    if table is not None and format not in {"csv", "latex"}:
        raise UsageError(f"one table alone is printed as csv or latex, not as {format}")
    if format == "text":
        from excise.report.text import render_text

        return render_text(report, width=width, color=color)
    if format == "markdown":
        from excise.report.markdown import render_markdown

        return render_markdown(report)
    if format == "csv":
        from excise.report.csv import render_csv

        return render_csv(report, table=table)
    if format == "json":
        from excise.report.json import render_json

        return render_json(report)
    if format == "latex":
        from excise.report.latex import render_latex

        return render_latex(report, table=table)
    from excise.report.html import render_html

    return render_html(report)


class Output:
    """An opened place for one result; `write` puts the whole of it there, in one step.

    It may be written several times: each write replaces the one before, so that what is known so
    far is on disk while a campaign still runs.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.written = False
        self._target = None if self.path == "-" else Path(os.path.realpath(path))
        self._direct = self._target is not None and _is_device(self._target)
        self._temporary: Path | None = None
        if self._target is not None:
            _refuse_unwritable(self._target, source=self.path)
            if not self._direct:
                self._temporary = _create_beside(self._target, source=self.path)

    def write(self, content: str | bytes) -> None:
        """Put `content` there, instead of what was there before.

        Raises:
            HostError: The disk is full.
            OutputError: The place is gone since it was opened.
            OSError: Standard output cannot be written.
        """
        data = content.encode("utf-8") if isinstance(content, str) else content
        try:
            self._put(data)
        except OSError as error:
            if self._target is None:
                raise
            raise unwritable(error, source=self.path) from error
        self.written = True

    def _put(self, data: bytes) -> None:
        if self._target is None:
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        elif self._direct:
            with self._target.open("wb", buffering=0) as file:
                file.write(data)
        else:
            temporary = self._temporary or _create_beside(self._target, source=self.path)
            self._temporary = temporary
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if self._target.exists():
                temporary.chmod(stat.S_IMODE(self._target.stat().st_mode))
            temporary.replace(self._target)
            self._temporary = None

    def close(self) -> None:
        """Remove what was only prepared; a file that was never written stays as it was."""
        if self._temporary is not None:
            self._temporary.unlink(missing_ok=True)
            self._temporary = None


@contextlib.contextmanager
def open_output(path: str | Path) -> Iterator[Output]:
    """Open one output before the work begins; `-` is standard output.

    Raises:
        OutputError: The path is a directory, its folder is missing, or it cannot be written.
        HostError: There is no room.
    """
    output = Output(path)
    try:
        yield output
    finally:
        output.close()


def require_writable(path: str | Path) -> None:
    """Check that an output can be opened, where it is written long after.

    Raises:
        OutputError: As `open_output`.
        HostError: There is no room.
    """
    Output(path).close()


@contextlib.contextmanager
def open_outputs(paths: Sequence[str | Path]) -> Iterator[list[Output]]:
    """Open several outputs, all or none, before the work begins.

    Raises:
        OutputError: One of them cannot be written, or two are the same file.
    """
    real = [os.path.realpath(path) if str(path) != "-" else "-" for path in paths]
    for i, path in enumerate(real):
        if path in real[:i]:
            raise OutputError("named twice as an output", source=str(paths[i]))
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(open_output(path)) for path in paths]


def open_folder(folder: str | Path) -> Path:
    """Return a folder that can be written, made if need be, before the work begins.

    Raises:
        OutputError: It is a file, or cannot be made or written.
    """
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise OutputError("is a file, not a folder", source=str(folder)) from error
    except OSError as error:
        raise unwritable(error, source=folder) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise OutputError("is a folder that cannot be written", source=str(folder))
    return path


def export_tables(report: Report, folder: str | Path) -> list[Path]:
    """Write every table as `NAME.csv` into the folder; return the paths.

    Raises:
        OutputError: The folder or a file in it cannot be written.
    """
    from excise.report.csv import render_csv_tables

    place = open_folder(folder)
    contents = {place / f"{name}.csv": text for name, text in render_csv_tables(report).items()}
    return _write_all(contents)


def export_charts(
    report: Report, folder: str | Path, *, formats: Sequence[str] = ("svg",)
) -> list[Path]:
    """Write every chart as `NAME.FORMAT` into the folder; return the paths.

    Args:
        report: The report whose charts to draw.
        folder: Made if need be.
        formats: Any of `PICTURES`.

    Raises:
        UsageError: An unknown format.
        OutputError: A folder or file that cannot be written.
    """
    for name in formats:
        if name not in PICTURES:
            raise UsageError(
                f"unknown picture format {name!r}", hint=f"Formats: {', '.join(PICTURES)}."
            )
    place = open_folder(folder)
    from excise.report.charts import draw

    contents: dict[Path, str | bytes] = {
        place / f"{chart.name}.{picture}": draw(chart, picture=picture)
        for chart in report.charts()
        for picture in PICTURES
        if picture in formats
    }
    return _write_all(contents)


def _write_all(contents: dict[Path, str | bytes] | dict[Path, str]) -> list[Path]:
    for path, content in contents.items():
        with open_output(path) as output:
            output.write(content)
    return list(contents)


def _is_device(path: Path) -> bool:
    """Return whether the path is something to write into, not to replace (/dev/null, a pipe)."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _refuse_unwritable(target: Path, *, source: str) -> None:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        mode = 0
    except OSError as error:
        raise unwritable(error, source=source) from error
    if stat.S_ISDIR(mode):
        raise OutputError("is a folder, not a file", source=source, hint="Name a file in it.")
    if not target.parent.is_dir():
        raise OutputError("its folder does not exist", source=source)
    if mode and not os.access(target, os.W_OK):
        raise OutputError("cannot be written (Permission denied)", source=source)


def _create_beside(target: Path, *, source: str) -> Path:
    """Create an empty file in the target's folder, with the permissions of a new file."""
    mark = zlib.crc32(os.fsencode(target.name))
    temporary = target.with_name(f".excise-{os.getpid()}-{mark:08x}.part")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    except OSError as error:
        raise unwritable(error, source=source) from error
    return temporary
