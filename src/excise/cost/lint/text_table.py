"""Printed tables, with the precision of every number kept: it decides what rounding allows."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import Final

from excise.errors import FormatError

_NUMBER: Final = re.compile(
    r"[±~<>≈]?\s*(?P<number>[-+]?(?:\d{1,3}(?:[,\u202f\u00a0' ]\d{3})+|\d+)?(?:\.\d+)?"
    r"(?:[eE][-+]?\d+)?)"
    r"\s*(?P<unit>%|x|×|[a-zµμA-Z]{1,12})?"
    r"(?:\s*\(\s*(?P<percent>[-+]?\d+(?:\.\d+)?)\s*(?P<sign>%)?\s*\))?"
)


@dataclass(frozen=True, slots=True)
class Printed:
    """A number as it was printed.

    Attributes:
        value: Its value.
        half_step: Half of its last digit's step: how far the true value may be off.
    """

    value: float
    half_step: float

    @property
    def low(self) -> float:
        """Return the least true value that prints so."""
        return self.value - self.half_step

    @property
    def high(self) -> float:
        """Return the largest true value that prints so."""
        return self.value + self.half_step


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row: its words, its numbers and the percentages in parentheses, by heading.

    Attributes:
        signed: Headings whose number has a percent sign, and no other number before it.
    """

    label: str
    words: dict[str, str]
    numbers: dict[str, Printed]
    percents: dict[str, Printed]
    line: int
    signed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TextTable:
    """A printed table.

    Attributes:
        name: File, or what the source calls it.
        columns: Headings of the columns with numbers, in order.
        rows: Rows in order.
    """

    name: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]


def read_table(text: str, *, name: str) -> TextTable:
    """Return a table of CSV (comma, semicolon or tab) or Markdown, with one line of headings.

    Raises:
        FormatError: If there are no headings and one row with a number.
    """
    lines = _markdown(text) if text.lstrip().startswith("|") else _separated(text, name)
    if len(lines) < 2:
        raise FormatError(
            "is no table: it needs a line of headings and a row",
            source=name,
            hint="CSV or a Markdown table, the headings first",
        )
    headings = _unique([cell.strip() for cell in lines[0][1]])
    rows = [_row(headings, cells, line) for line, cells in lines[1:]]
    numeric = [h for h in headings if any(h in row.numbers for row in rows)]
    if not numeric:
        raise FormatError("has no column of numbers", source=name, line=lines[1][0])
    return TextTable(name=name, columns=tuple(numeric), rows=tuple(rows))


def parse_number(text: str) -> tuple[Printed | None, Printed | None]:
    """Return the number of a cell and the percentage in parentheses after it, where there are."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None or not match["number"] or match["number"] in "+-":
        return None, None
    percent = printed(match["percent"]) if match["percent"] else None
    return printed(match["number"]), percent


def printed(digits: str) -> Printed:
    """Return a number with half the step of its last digit."""
    plain = re.sub(r"[,\u202f\u00a0' ]", "", digits)
    mantissa, _, exponent = plain.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Printed(float(plain), 0.5 * 10.0 ** (int(exponent or 0) - decimals))


def _row(headings: list[str], cells: list[str], line: int) -> TableRow:
    words, numbers, percents = {}, {}, {}
    for heading, cell in zip(headings, cells, strict=False):
        number, percent = parse_number(cell)
        if number is None:
            words[heading] = cell.strip()
            continue
        numbers[heading] = number
        if percent is not None:
            percents[heading] = percent
    label = " ".join(word for word in words.values() if word and word.lower() not in ("n/a", "-"))
    signed = frozenset(
        heading
        for heading, cell in zip(headings, cells, strict=False)
        if heading in numbers and heading not in percents and cell.strip().endswith("%")
    )
    return TableRow(label, words, numbers, percents, line, signed)


def _separated(text: str, name: str) -> list[tuple[int, list[str]]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        return []
    counts = {sign: lines[0].count(sign) for sign in "\t;,"}
    delimiter = max(counts, key=lambda sign: counts[sign])
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        rows = [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise FormatError(str(error), source=name, line=reader.line_num) from error
    return [(n, row) for n, row in rows if any(row) and not row[0].startswith("#")]


def _markdown(text: str) -> list[tuple[int, list[str]]]:
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip().startswith("|"):
            if rows:
                break  # one table
            continue
        cells = [cell.strip().strip("*`") for cell in line.strip().strip("|").split("|")]
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            rows.append((number, cells))
    return rows


def _unique(headings: list[str]) -> list[str]:
    """Return the headings with a number after those that came before."""
    seen: dict[str, int] = {}
    found = []
    for heading in headings:
        seen[heading] = seen.get(heading, 0) + 1
        found.append(heading if seen[heading] == 1 else f"{heading} ({seen[heading]})")
    return found
