"""The report model: sections of paragraphs, tables, charts and checks, all values final."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Emphasis = Literal["none", "good", "bad", "warn", "muted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: What a person reads, rounded and with its unit where the column has none.
        value: The unrounded value, for CSV and JSON; None where there is none.
        emphasis: How it should stand out; never the only carrier of the meaning.
    """

    text: str
    value: str | int | float | bool | None = None
    emphasis: Emphasis = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table: machine name, heading, unit and alignment."""

    name: str
    heading: str
    unit: str = ""
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; every row has one cell a column."""

    name: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A sentence or more of plain text; `kind` says how it stands out."""

    text: str
    kind: Literal["plain", "result", "warning", "command"] = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A chart as data: which picture, and the rows it draws (already reduced to what is drawn).

    Attributes:
        name: File-name-safe name, unique in the report.
        kind: `distribution` (rows: configuration, value, phase), `run_order` (run, configuration,
            value, phase), `waterfall` (label, start, end, role: total|child|remainder|probe),
            `interval` (label, ratio, low, high, verdict).
        unit: Unit of the value axis.
        caption: What the picture shows, in words, also its alternative text.
    """

    name: str
    kind: Literal["distribution", "run_order", "waterfall", "interval"]
    title: str
    rows: Sequence[Mapping[str, Any]]
    unit: str
    caption: str


Block = Table | Paragraph | Chart


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading and what stands under it."""

    heading: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A whole report.

    Attributes:
        title: What was measured.
        facts: Name and value of host facts and provenance to print at the end; private ones are
            not in the model unless the user asked for them.
        data: The results as plain values with full precision, for `--json`.
    """

    title: str
    sections: Sequence[Section]
    facts: Sequence[tuple[str, str]] = ()
    data: Mapping[str, Any] | None = None
