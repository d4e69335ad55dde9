"""A table as CSV (RFC 4180): unrounded values, units in the header."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from excise.report.model import NOTHING

if TYPE_CHECKING:
    from excise.report.model import Cell, Column, Report, Table


def render_csv(report: Report, *, table: str | None = None) -> str:
    """Return one table of the report as CSV.

    Args:
        report: The report.
        table: Name of the table; the first one where None.

    Raises:
        UsageError: The report has no table, or none of that name.
    """
    if table is None:
        tables = report.tables()
        return render_csv_table(tables[0] if tables else report.table("any"))
    return render_csv_table(report.table(table))


def render_csv_tables(report: Report) -> dict[str, str]:
    """Return every table of the report as CSV, by the table's name."""
    return {table.name: render_csv_table(table) for table in report.tables()}


def render_csv_table(table: Table) -> str:
    """Return the table as RFC 4180 CSV with CRLF line ends.

    The header has the machine names, with the unit in brackets unless the name ends in it. A cell
    with a value gives the value, unrounded; one with text alone gives the text. NaN and a dash
    are empty. An interval has two columns, `NAME_low` and `NAME_high`, after the column's own,
    which is left out where it had nothing but the text of intervals. Nothing is rewritten for
    spreadsheets: a task called `=1+1` stays `=1+1`, quoted.

    Source: RFC 4180, section 2.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\r\n", strict=True)
    fields = [
        field
        for place, column in enumerate(table.columns)
        for field in _fields(column, [row[place] for row in table.rows])
    ]
    writer.writerows(zip(*fields, strict=True))
    return out.getvalue()


def _fields(column: Column, cells: Sequence[Cell]) -> Iterator[list[str]]:
    """Yield what stands under a column's name: itself, the ends of its intervals, or all three."""
    own = [_field(cell) for cell in cells]
    if not column.bounded and all(cell.bounds is None for cell in cells):
        yield [header_of(column), *own]
        return
    if any(cell.value is not None for cell in cells):
        yield [header_of(column), *own]
    for place, end in enumerate(("low", "high")):
        named = dataclasses.replace(column, name=f"{column.name}_{end}")
        ends = [_number(cell.bounds[place]) if cell.bounds else "" for cell in cells]
        yield [header_of(named), *ends]


def header_of(column: Column) -> str:
    """Return the column's machine name with its unit: `median_ns`, or `ratio (1)`."""
    unit = column.value_unit or column.unit
    if not unit or column.name.endswith(f"_{unit}"):
        return column.name
    return f"{column.name} ({unit})"


def _field(cell: Cell) -> str:
    value = cell.value
    if value is None:
        return "" if cell.text == NOTHING else cell.text
    if isinstance(value, bool):
        return "true" if value else "false"
    return _number(value) if isinstance(value, float) else str(value)


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))
