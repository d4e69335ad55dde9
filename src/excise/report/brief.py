"""A report in few lines that can be pasted: `--brief`."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from excise.report.model import Brief, Report
from excise.report.plain import visible

_GAP = 2


def render_brief(report: Report) -> str:
    """Return the verdict and each result in a line of its own, and what is to be warned of.

    No line is wrapped and none has colour: made to be pasted, searched, or watched. A report that
    has no such lines gives its title and its results.
    """
    brief = report.brief or Brief(
        head=report.title, lines=[[text] for text in report.paragraphs("result")]
    )
    warnings = [f"Warning: {visible(text)}" for text in report.paragraphs("warning")]
    return "\n".join([*brief_lines(brief), *warnings]) + "\n"


def brief_lines(brief: Brief) -> list[str]:
    """Return the head and the lines, their words in columns."""
    rows = [[visible(word) for word in words] for words in brief.lines]
    widths = [
        max((cell_len(row[i]) for row in rows if i < len(row) - 1), default=0)
        for i in range(max(map(len, rows), default=0))
    ]
    return [visible(brief.head), *(_beside(row, widths) for row in rows)]


def _beside(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [
        text + " " * (width - cell_len(text)) for text, width in zip(row, widths, strict=False)
    ]
    return (" " * _GAP).join([*cells[:-1], row[-1]]).rstrip()
