"""The report model: sections of paragraphs, tables, charts and checks, all values final."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from excise.errors import UsageError

_FILE_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

NOTHING = "–"
"""Text of a cell that has neither value nor words."""

MAX_POINTS = 5000
"""Rows of a chart; more make a page slow and a picture no clearer."""

_MOST_KEYS = 3

Kind = Literal[
    "distribution",
    "run_order",
    "waterfall",
    "interval",
    "range",
    "flame",
    "icicle",
    "heat",
    "histogram",
    "stack",
]
Emphasis = Literal["none", "good", "bad", "warn", "muted"]


def file_safe(text: str) -> str:
    """Return a name for a table or chart made from any text: letters, digits, dots, dashes.

    Text that had to be changed gets a checksum at its end, so that names that differ stay apart.
    """
    name = re.sub(r"[^a-z0-9._]+", "-", text.lower()).strip("-._")[:80]
    if name and name == text:
        return name
    return f"{name or 'x'}-{zlib.crc32(text.encode('utf-8', 'surrogatepass')):08x}"


def _check_name(what: str, name: str) -> None:
    if not _FILE_SAFE.fullmatch(name):
        raise UsageError(
            "its name must be letters, digits, dots and dashes", source=f"{what} {name!r}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What a person reads, rounded and with its unit where the column has none.
        value: The unrounded value in the column's `value_unit`, for CSV and JSON; None where the
            text is all there is.
        emphasis: How it should stand out; never the only carrier of the meaning.
        bounds: The unrounded low and high end of the interval that the text gives, in the unit of
            the value it belongs to, for CSV and JSON.
    """

    text: str
    value: str | int | float | bool | None = None
    emphasis: Emphasis = "none"
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table.

    The left-aligned columns at the start of a table name its rows: they are repeated where a table
    is too wide and has to be stacked.

    Attributes:
        name: Machine name, unique in the table.
        heading: What a person reads above the column.
        unit: Unit printed under or after the heading; empty where each cell prints its own.
        align: `left` for words, `right` for numbers.
        value_unit: Unit of the unrounded values where it is not `unit`, such as `ns` in a column
            whose cells print "1.2 ms".
        optional: Left out of plain text where the table is too wide, the last one first, with a
            note that says so; every other format has it.
        bounded: Its cells are intervals: where their ends have columns of their own, they have
            them even if no cell has an interval.
    """

    name: str
    heading: str
    unit: str = ""
    align: Literal["left", "right"] = "right"
    value_unit: str = ""
    optional: bool = False
    bounded: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; every row has one cell a column.

    Attributes:
        name: File-name-safe name, unique in the report.
        columns: The columns, from left to right.
        rows: The rows, from top to bottom.
        caption: What the table shows, in words.
        notes: Sentences under the table.
        keys: How many leading columns name the rows; 0 where their alignment tells it.
    """

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    notes: Sequence[str] = ()
    keys: int = 0

    def __post_init__(self) -> None:
        """Refuse a name that is no file name, no columns, and rows of another width."""
        _check_name("table", self.name)
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise UsageError(
                "a table needs columns, each with a name of its own", source=f"table {self.name}"
            )
        if not 0 <= self.keys <= len(names):
            raise UsageError(
                f"{len(names)} columns cannot have {self.keys} that name the rows",
                source=f"table {self.name}",
            )
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(names):
                raise UsageError(
                    f"row {number} has {len(row)} cells for {len(names)} columns",
                    source=f"table {self.name}",
                )

    @property
    def key_count(self) -> int:
        """Return how many leading columns name the rows: one to three; one among words alone."""
        if self.keys:
            return self.keys
        aligns = [column.align for column in self.columns]
        if "right" not in aligns:
            return 1
        return min(max(aligns.index("right"), 1), _MOST_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A sentence or more of plain text; `kind` says how it stands out.

    Every renderer prints `result` first and `warning` second, before all sections.
    """

    text: str
    kind: Literal["plain", "result", "warning", "command"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as data: which picture, and the rows it draws (already reduced to what is drawn).

    The keys of the rows, by kind; a value that is None is not drawn:

    - `distribution`: `configuration`, `value`, `phase` (`first`, `warmup` or `rest`), and `run` if
      known. One strip a configuration, in the order they first appear; first runs marked apart.
    - `run_order`: `run`, `configuration`, `value`, `phase`.
    - `waterfall`: `label`, `start`, `end`, `role` (`total`, `child`, `remainder` or `probe`), and
      `text`, which is printed at the bar ("402 ns, 23.7 %"); optional `flag`, a few words for a
      bar that is wrong, such as "sum above 100 %". Bars from top to bottom; all share one scale.
    - `interval`: `label`, `ratio`, `low`, `high`, `verdict`, and if there is a margin `margin_low`
      and `margin_high`, both ratios.
    - `range`: `label`, `value`, `series`, and if known `low`, `high` and `text`, which is printed
      at the dot. Labels may repeat, once a series.
    - `flame`, `icicle`: `function`, `depth` (0 for the outermost), `start`, `end`, `role`
      (`security` or `other`), `share` of all, `calls`, `text`.
    - `heat`: `task`, `hook`, `value`, `calls`, and `text`, which is printed in the field.
    - `stack`: `run` and `end`, between which a bar stands; `part`, from `low` to `high`; its
      `value`; and `top`, which the axis reaches in all charts of a task.
    - `histogram`: `hook`, its `place` from the top (0), `low`, `high`, `height` (0 to 1), `count`,
      `share`.

    Attributes:
        name: File-name-safe name, unique in the report.
        kind: Which picture.
        title: Heading over the picture.
        rows: What is drawn, at most `MAX_POINTS`.
        unit: Unit of the value axis.
        caption: What the picture shows, in words, also its alternative text.
        axis: What the value axis shows, such as "time per operation".
        run_axis: What `run` in the rows counts.
    """

    name: str
    kind: Kind
    title: str
    rows: Sequence[Mapping[str, Any]]
    unit: str
    caption: str
    axis: str = ""
    run_axis: str = "run number"

    def __post_init__(self) -> None:
        """Refuse a name that is no file name, and more points than a page can draw."""
        _check_name("chart", self.name)
        if len(self.rows) > MAX_POINTS:
            raise UsageError(
                f"{len(self.rows)} rows are more than {MAX_POINTS}",
                source=f"chart {self.name}",
                hint="Reduce the rows before drawing.",
            )


Block = Table | Paragraph | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        in_short: One sentence that plain text prints, after all results and without the heading,
            in place of the blocks; empty where they are as much the result as any. Every other
            format has the blocks.
    """

    heading: str
    blocks: Sequence[Block]
    in_short: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief:
    """A result as few lines that can be pasted into a mail or a commit message.

    Attributes:
        head: The verdict over all lines.
        lines: Words of each line, set in columns.
    """

    head: str
    lines: Sequence[Sequence[str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
        title: What was measured.
        facts: Name and value of host facts and provenance to print at the end; private ones are
            not in the model unless the user asked for them.
        facts_in_short: One sentence that plain text prints in place of the facts; see `Section`.
        brief: The result in a line each, for `--brief`.
        data: The results as plain values with full precision, for `--json`.
    """

    title: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    facts_in_short: str = ""
    brief: Brief | None = None
    data: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        """Refuse two tables or two charts of one name: files and anchors carry it."""
        for what, blocks in (("table", self.tables()), ("chart", self.charts())):
            names = [block.name for block in blocks]
            for name in names:
                if names.count(name) > 1:
                    raise UsageError("its name is not its own", source=f"{what} {name}")

    def paragraphs(self, kind: str) -> list[str]:
        """Return the text of every paragraph of one kind, in order."""
        return [
            block.text
            for section in self.sections
            for block in section.blocks
            if isinstance(block, Paragraph) and block.kind == kind
        ]

    def body(self) -> list[Section]:
        """Return the sections without results and warnings; sections left empty are not there."""
        kept = (
            replace(
                section,
                blocks=[
                    block
                    for block in section.blocks
                    if not (isinstance(block, Paragraph) and block.kind in {"result", "warning"})
                ],
            )
            for section in self.sections
        )
        return [section for section in kept if section.blocks]

    def tables(self) -> list[Table]:
        """Return every table, in order."""
        return [block for s in self.sections for block in s.blocks if isinstance(block, Table)]

    def charts(self) -> list[Chart]:
        """Return every chart, in order."""
        return [block for s in self.sections for block in s.blocks if isinstance(block, Chart)]

    def table(self, name: str) -> Table:
        """Return the table of that name.

        Raises:
            UsageError: There is none; the hint lists those there are.
        """
        for table in self.tables():
            if table.name == name:
                return table
        names = ", ".join(table.name for table in self.tables()) or "none"
        raise UsageError(f"the report has no table {name!r}", hint=f"Tables: {names}.")
