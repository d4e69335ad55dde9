"""`excise lint`: do these figures agree with themselves?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, open_dataset, read_input
from excise.cli.verify import ReportOption, conclude
from excise.errors import FormatError, UsageError

if TYPE_CHECKING:
    from excise.cost.lint import Rules, TextTable
    from excise.evidence.checks import AppraisalResult

_TABLES = (".csv", ".tsv", ".md")
_TABLE_BYTES = 64 << 20
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def lint(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="CAPTURE|TABLE...",
            help="Captures, reference:NAME, tables as CSV or Markdown, or - for a table.",
        ),
    ],
    rules: Annotated[
        list[str] | None,
        typer.Option(
            "--rules", metavar="FILE", help="Rules of your own (TOML).", show_default=False
        ),
    ] = None,
    own_only: Annotated[
        bool, typer.Option("--own-only", help="Leave out the rules that ship with excise.")
    ] = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check parts against totals, percentages, min ≤ mean ≤ max, counts, and identities of events.

    Rounding of what was printed and the steps of the clocks are allowed for. Exit 1 if a rule is
    broken, or if none fits a table. Captures that hold nothing a rule is about are named.

    Example: excise lint uart.excise    or    excise lint table.csv --rules mine.toml
    """
    from excise.cost.lint import lint_tables, read_rules

    if own_only and not rules:
        raise UsageError("--own-only leaves no rule", hint="Give --rules FILE too")
    found = read_rules([Path(name) for name in rules or []], shipped=not own_only)
    tables = [_table(name) for name in inputs if _is_table(name)]
    results: list[AppraisalResult] = []
    for name in inputs:
        if not _is_table(name):
            of_capture = list(_capture(name, found))
            results += of_capture
            if not of_capture:
                _tell_of_nothing(name, own=bool(rules))
    results += lint_tables(tables, found) if tables else ()
    conclude(results, report=report, as_json=as_json)


def _tell_of_nothing(name: str, *, own: bool) -> None:
    """Say that no rule is about a capture, as of most campaigns; refuse it where rules were given.

    Raises:
        UsageError: The user's own rules are about nothing in it, so that they check nothing.
    """
    reason = "nothing in it that a rule is about"
    hint = "Rules are about events of runs and about tables; see docs/lint.md"
    if own:
        raise UsageError(reason, source=name, hint=hint)
    typer.echo(f"{name}: {reason}. {hint}", err=True)


def _is_table(name: str) -> bool:
    """Return whether something is to be read as a table: by its name, or as what no capture is.

    A capture is a folder or a Zstandard archive; a pipe can be neither, as its end is not known.
    """
    if name == "-" or name.lower().endswith(_TABLES):
        return True
    path = Path(name)
    if name.startswith("reference:") or path.is_dir() or not path.exists():
        return False
    if not path.is_file():
        return True
    return not name.endswith(".tar.zst") and _first_bytes(path) != _ZSTANDARD


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_ZSTANDARD))
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error


def _table(name: str) -> TextTable:
    from excise.cost.lint import read_table

    label = "standard input" if name == "-" else Path(name).name
    try:
        text = read_input(name, limit_bytes=_TABLE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            "is neither a capture nor a table in UTF-8 text", source=name, offset=error.start
        ) from error
    return read_table(text, name=label)


def _capture(name: str, rules: Rules) -> Iterator[AppraisalResult]:
    from excise.cost.lint import lint_dataset, lint_published

    if name.startswith("reference:"):
        from excise.reference.published import published

        short = name.removeprefix("reference:")
        yield from lint_published(short, published(short), rules)
    yield from lint_dataset(open_dataset(name), rules)
