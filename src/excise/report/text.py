"""A report as plain text for a terminal or a mail: results, warnings, sections, facts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from excise.report.model import NOTHING, Block, Chart, Column, Emphasis, Paragraph, Report, Table
from excise.report.plain import visible

_SGR: dict[Emphasis, str] = {
    "none": "",
    "good": "32",
    "bad": "1;31",
    "warn": "33",
    "muted": "2",
}
_GAP = 2
_EMPTY = ("", NOTHING)
_NARROWEST = 8
"""No column of words is wrapped to fewer cells than this."""

_LONGEST_WORD = 24
"""A longer word may be cut, so that one odd name does not push other columns out."""

_FEW_ROWS = 4
"""Of so many rows one may have a short cell that is wrapped, while an optional column is there."""

_HEADING_ROOM = 12
"""A heading up to this long stays on one line above narrower cells where there is room."""


def render_text(report: Report, *, width: int = 80, color: bool = False) -> str:
    """Return the report as text no wider than `width`, except for commands, which stay whole.

    A table too wide first wraps its columns of words, then leaves out its optional columns, the
    last one first, and says which, sooner where short cells would wrap in many rows; then it is
    cut into parts that stand under each other, each with the columns that name the rows and a
    line that says what it shows. Sections that are told in short come after all others, in one
    sentence each.

    Args:
        report: What to print.
        width: Terminal cells a line, at least 40.
        color: Mark emphasis with ANSI colours; without it there is no escape sequence at all.
    """
    width = max(width, 40)
    paint = _Painter(color=color)
    parts: list[str] = [paint(visible(report.title), "1")]
    results = [_wrap(text, width=width) for text in report.paragraphs("result")]
    parts += [paint(text, "1") for text in results]
    parts += [
        paint(_wrap(f"Warning: {text}", width=width, hang=2), "33")
        for text in report.paragraphs("warning")
    ]
    for section in report.body():
        if section.in_short:
            continue
        blocks = [_block(block, width=width, paint=paint) for block in section.blocks]
        blocks = [block for block in blocks if block]
        if blocks:
            parts.append(_heading(section.heading, width=width, paint=paint))
            parts += blocks
    short = [section.in_short for section in report.body() if section.in_short]
    short += [report.facts_in_short] if report.facts_in_short else []
    parts += [_wrap(text, width=width) for text in short]
    parts += _charts(report, width=width, paint=paint)
    if report.facts and not report.facts_in_short:
        parts.append(_heading("Facts", width=width, paint=paint))
        parts.append(_facts(report.facts, width=width))
    return "\n\n".join(parts) + "\n"


class _Painter:
    def __init__(self, *, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, sgr: str) -> str:
        if not self.color or not sgr:
            return text
        return "\n".join(f"\x1b[{sgr}m{line}\x1b[0m" if line else line for line in text.split("\n"))


def _heading(text: str, *, width: int, paint: _Painter) -> str:
    line = "\n".join(_wrap_cells(visible(text), width))
    rule = "─" * max(cell_len(part) for part in line.split("\n"))
    return paint(line, "1") + "\n" + paint(rule, "2")


def _block(block: Block, *, width: int, paint: _Painter) -> str:
    if isinstance(block, Table):
        return _table(block, width=width, paint=paint)
    if isinstance(block, Paragraph):
        if block.kind == "command":
            lines = visible(block.text, lines=True).split("\n")
            return "\n".join(f"  {line}".rstrip() for line in lines)
        return _wrap(block.text, width=width)
    return ""


def _charts(report: Report, *, width: int, paint: _Painter) -> list[str]:
    charts: list[Chart] = report.charts()
    if not charts:
        return []
    kinds = Counter(chart.kind.replace("_", " ") for chart in charts)
    listed = ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in kinds.items())
    text = f"Charts, drawn in the HTML report and exported as pictures: {listed}."
    return [paint(_wrap(text, width=width), "2")]


def _facts(facts: Sequence[tuple[str, str]], *, width: int) -> str:
    names = [visible(name) for name, _ in facts]
    column = min(max(cell_len(name) for name in names), width // 3)
    lines: list[str] = []
    for name, (_, value) in zip(names, facts, strict=True):
        left = _wrap_cells(name, column)
        right = _wrap_cells(visible(value), width - column - _GAP)
        lines += _beside([left, right], [column, 0], ["left", "left"])
    return "\n".join(lines)


# --- words ------------------------------------------------------------------------------------


def _wrap(text: str, *, width: int, hang: int = 0) -> str:
    first, *rest = _wrap_cells(visible(text), width) or [""]
    if not rest or not hang:
        return "\n".join([first, *rest])
    tail = _wrap_cells(" ".join(rest), width - hang)
    return "\n".join([first, *(" " * hang + line for line in tail)])


def _wrap_cells(text: str, width: int) -> list[str]:
    """Wrap at blanks to `width` terminal cells; a word that is longer is cut, never dropped.

    Blanks at the beginning, which tell how deep something is, stand before every line of it.
    """
    if cell_len(text) <= width:
        return [text]
    indent = min(len(text) - len(text.lstrip(" ")), width // 2)
    if indent:
        return [" " * indent + line for line in _wrap_cells(text.lstrip(" "), width - indent)]
    if text.isascii():
        return textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    lines: list[str] = []
    line = ""
    for word in text.split():
        for piece in chop_cells(word, width) if cell_len(word) > width else [word]:
            longer = f"{line} {piece}" if line else piece
            if line and cell_len(longer) > width:
                lines.append(line)
                line = piece
            else:
                line = longer
    return [*lines, line]


def _pad(text: str, width: int, align: str) -> str:
    blanks = " " * max(width - cell_len(text), 0)
    return blanks + text if align == "right" else text + blanks


def _beside(
    columns: Sequence[Sequence[str]],
    widths: Sequence[int],
    aligns: Sequence[str],
    *,
    marks: Sequence[str] | None = None,
    paint: _Painter | None = None,
) -> list[str]:
    """Return the lines of several wrapped texts set side by side, top-aligned."""
    height = max(len(lines) for lines in columns)
    out = []
    for i in range(height):
        cells = [
            _pad(lines[i] if i < len(lines) else "", width, align)
            for lines, width, align in zip(columns, widths, aligns, strict=True)
        ]
        if paint is not None and marks is not None:
            cells = [paint(cell, sgr) for cell, sgr in zip(cells, marks, strict=True)]
        out.append((" " * _GAP).join(cells).rstrip())
    return out


# --- tables -----------------------------------------------------------------------------------


def _table(table: Table, *, width: int, paint: _Painter) -> str:
    cells = [[visible(cell.text) for cell in row] for row in table.rows]
    natural = _natural_widths(table, cells, width=width, heading_room=_HEADING_ROOM)
    if sum(natural) + _GAP * (len(natural) - 1) > width:
        natural = _natural_widths(table, cells, width=width, heading_room=0)
    layout = _lay_out(table, natural, floors=_floors(table, cells), width=width)
    out = [_wrap(table.caption, width=width)] if table.caption else []
    for number, shown in enumerate(layout.parts, start=1):
        rows = list(range(len(cells)))
        if len(layout.parts) > 1:
            own = shown[table.key_count :]
            names = ", ".join(_name(table.columns[i]) for i in own)
            out += [""] if number > 1 else []
            note = f"Part {number} of {len(layout.parts)}: {names}"
            if number > 1:
                rows = [row for row in rows if any(cells[row][i] not in _EMPTY for i in own)]
                note += "; rows without are left out" if len(rows) < len(cells) else ""
            out.append(paint(_wrap(note, width=width), "2"))
        out += _part(table, cells, rows=rows, shown=shown, widths=layout.widths, paint=paint)
    notes = list(table.notes)
    if layout.dropped:
        names = ", ".join(_name(table.columns[i]) for i in layout.dropped)
        notes.append(f"Not shown at this width, but in every other format: {names}.")
    out += [_wrap(f"* {note}", width=width, hang=2) for note in notes]
    return "\n".join(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layout:
    """Columns of each part, width of each column, and the optional columns left out."""

    parts: list[list[int]]
    widths: list[int]
    dropped: list[int]


def _name(column: Column) -> str:
    return visible(column.heading or column.name)


def _head(column: Column) -> list[str]:
    unit = [f"({visible(column.unit)})"] if column.unit else []
    return [*visible(column.heading).split(), *unit]


def _natural_widths(
    table: Table, cells: Sequence[Sequence[str]], *, width: int, heading_room: int
) -> list[int]:
    """Return each column's widest cell, or its heading's widest word where that is wider."""
    widths = []
    for i, column in enumerate(table.columns):
        words = _head(column)
        room = max([*(cell_len(row[i]) for row in cells), *map(cell_len, words)], default=1)
        heading = min(cell_len(" ".join(words)), heading_room)
        widths.append(min(max(room, heading, 1), width))
    return widths


def _floors(table: Table, cells: Sequence[Sequence[str]]) -> list[int]:
    """Return how narrow wrapping may make each column of words: not narrower than its words."""
    floors = []
    for i, column in enumerate(table.columns):
        words = [*_head(column), *(word for row in cells for word in row[i].split())]
        longest = max(map(cell_len, words), default=1)
        floors.append(max(min(longest, _LONGEST_WORD), _NARROWEST))
    return floors


def _lay_out(table: Table, natural: Sequence[int], *, floors: Sequence[int], width: int) -> _Layout:
    """Fit a table: wrap words, then leave out optional columns, then stack parts."""
    kept = list(range(len(natural)))
    dropped: list[int] = []
    keys = kept[: table.key_count]
    wrapped: _Layout | None = None
    while True:
        widths = _shrunk(table, natural, floors=floors, kept=kept, width=width)
        if widths is not None:
            layout = _Layout(parts=[kept], widths=widths, dropped=sorted(dropped))
            if not _wraps_short_cells(table, natural, layout):
                return layout
            wrapped = wrapped or layout
        optional = [i for i in kept if table.columns[i].optional and i not in keys]
        if not optional:
            break
        kept = [i for i in kept if i != optional[-1]]
        dropped.append(optional[-1])
    if wrapped is not None:
        return wrapped
    widths = list(natural)
    while sum(widths[i] + _GAP for i in keys) > width * 3 // 4:
        widths[max(keys, key=lambda i: widths[i])] -= 1
    room = width - sum(widths[i] + _GAP for i in keys)
    for i in kept[len(keys) :]:
        widths[i] = min(widths[i], room)
    parts = _stacked(widths, kept=kept, keys=keys, width=width)
    return _Layout(parts=parts, widths=widths, dropped=sorted(dropped))


def _wraps_short_cells(table: Table, natural: Sequence[int], layout: _Layout) -> bool:
    """Return whether many cells of a column of few words take a second line.

    An optional column goes before that: a table of which every other row has two lines is hard to
    read, while a column of sentences is made to be wrapped.
    """
    for i in layout.parts[0]:
        if layout.widths[i] < natural[i] <= _LONGEST_WORD:
            wide = sum(cell_len(visible(row[i].text)) > layout.widths[i] for row in table.rows)
            if wide > max(1, len(table.rows) // _FEW_ROWS):
                return True
    return False


def _shrunk(
    table: Table,
    natural: Sequence[int],
    *,
    floors: Sequence[int],
    kept: Sequence[int],
    width: int,
) -> list[int] | None:
    """Return widths at which the kept columns fit side by side, or None if they cannot."""
    widths = list(natural)
    over = sum(widths[i] for i in kept) + _GAP * (len(kept) - 1) - width
    while over > 0:
        words = [i for i in kept if table.columns[i].align == "left" and widths[i] > floors[i]]
        if not words:
            return None
        widths[max(words, key=lambda i: widths[i])] -= 1
        over -= 1
    return widths


def _stacked(
    widths: Sequence[int], *, kept: Sequence[int], keys: Sequence[int], width: int
) -> list[list[int]]:
    """Return the columns of each part; every part starts with the key columns."""
    start = sum(widths[i] + _GAP for i in keys) - _GAP
    parts: list[list[int]] = []
    part, used = list(keys), start
    for i in kept[len(keys) :]:
        if len(part) > len(keys) and used + _GAP + widths[i] > width:
            parts.append(part)
            part, used = list(keys), start
        part.append(i)
        used += _GAP + widths[i]
    return [*parts, part]


def _part(
    table: Table,
    cells: Sequence[Sequence[str]],
    *,
    rows: Sequence[int],
    shown: Sequence[int],
    widths: Sequence[int],
    paint: _Painter,
) -> list[str]:
    picked = [widths[i] for i in shown]
    aligns = [table.columns[i].align for i in shown]
    heads = [_wrap_cells(" ".join(_head(table.columns[i])), widths[i]) for i in shown]
    tallest = max(len(head) for head in heads)
    lines = _beside([[""] * (tallest - len(head)) + head for head in heads], picked, aligns)
    lines.append(paint((" " * _GAP).join("─" * width for width in picked), "2"))
    for row in rows:
        wrapped = [_wrap_cells(cells[row][i], widths[i]) for i in shown]
        marks = [_SGR[table.rows[row][i].emphasis] for i in shown]
        lines += _beside(wrapped, picked, aligns, marks=marks, paint=paint)
    return lines
