"""A report as GitHub-flavoured Markdown."""

from __future__ import annotations

import re

from excise.report.model import Block, Cell, Column, Paragraph, Report, Table
from excise.report.plain import visible

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~$&])")
_LINE_START = re.compile(r"^(\s*)([-+=]|\d+[.)])(?=\s|$)")


def render_markdown(report: Report) -> str:
    """Return the report as GitHub-flavoured Markdown; every value is escaped, none is markup."""
    parts = [f"# {escape_markdown(report.title)}"]
    parts += [f"**{escape_markdown(text)}**" for text in report.paragraphs("result")]
    parts += [f"> **Warning:** {escape_markdown(text)}" for text in report.paragraphs("warning")]
    for section in report.body():
        parts.append(f"## {escape_markdown(section.heading)}")
        parts += [_block(block) for block in section.blocks]
    if report.facts:
        rows = [f"| {escape_markdown(n)} | {escape_markdown(v)} |" for n, v in report.facts]
        parts += ["## Facts", "\n".join(["| fact | value |", "| --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def escape_markdown(text: str) -> str:
    """Return `text` on one line, with everything that is markup in GitHub's Markdown escaped."""
    escaped = _MARKS.sub(r"\\\1", visible(text))
    return _LINE_START.sub(_escape_line_start, escaped)


def _escape_line_start(match: re.Match[str]) -> str:
    mark = match[2]
    return f"{match[1]}{mark[:-1]}\\{mark[-1]}"


def render_markdown_table(table: Table) -> str:
    """Return one table as a GitHub table with its caption above and its notes below."""
    head = " | ".join(_heading(column) for column in table.columns)
    rule = " | ".join("---:" if column.align == "right" else "---" for column in table.columns)
    rows = ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in table.rows]
    lines = [f"| {head} |", f"| {rule} |", *rows]
    caption = [escape_markdown(table.caption), ""] if table.caption else []
    notes = ["", *(f"- {escape_markdown(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([*caption, *lines, *notes])


def _heading(column: Column) -> str:
    unit = f" ({escape_markdown(column.unit)})" if column.unit else ""
    return f"{escape_markdown(column.heading)}{unit}"


def _cell(cell: Cell) -> str:
    text = escape_markdown(cell.text)
    return f"**{text}**" if cell.emphasis == "bad" and text.strip() == text != "" else text


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return render_markdown_table(block)
    if isinstance(block, Paragraph):
        return _command(block.text) if block.kind == "command" else escape_markdown(block.text)
    return f"*Chart {escape_markdown(block.name)}:* {escape_markdown(block.caption)}"


def _command(text: str) -> str:
    shown = visible(text, lines=True)
    longest = max((len(run) for run in re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}sh\n{shown}\n{fence}"
