"""Appraisals as reports: one table of checks for each piece of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.report.model import (
    Block,
    Cell,
    Column,
    Emphasis,
    Paragraph,
    Report,
    Section,
    Table,
    file_safe,
)
from excise.units import counted

_EMPHASIS: dict[Outcome, Emphasis] = {
    Outcome.PASSED: "good",
    Outcome.FAILED: "bad",
    Outcome.NOT_COVERED: "muted",
}


def build_evidence(results: Sequence[AppraisalResult]) -> Report:
    """Return appraisals as a report: verdicts first, then every check."""
    return Report(
        title="Evidence: " + ", ".join(result.subject for result in results),
        sections=[evidence_section(result) for result in results],
        data={"results": [result.as_dict() for result in results]},
    )


def evidence_section(result: AppraisalResult) -> Section:
    """Return one appraisal: its verdict, its table of checks, and what it found."""
    kind: Literal["result", "warning"] = "result" if result.verdict is Outcome.PASSED else "warning"
    verdict = Paragraph(text=f"{result.subject}: {result.verdict}", kind=kind)
    details: list[Block] = [Paragraph(text=line) for line in result.details()]
    return Section(
        heading=f"Evidence: {result.subject}",
        blocks=[verdict, checks_table(result), *details],
    )


def checks_table(result: AppraisalResult) -> Table:
    """Return every check with its stable id, outcome, expected and got value, and clause."""
    names = ("id", "outcome", "expected", "got", "clause", "detail")
    headings = ("Check", "Outcome", "Expected", "Got", "Clause", "Remark")
    return Table(
        name=file_safe(f"checks-{result.subject}"),
        columns=[
            Column(name=name, heading=heading, align="left", optional=name in ("clause", "detail"))
            for name, heading in zip(names, headings, strict=True)
        ],
        rows=[_row(check, names) for check in result.checks],
        caption=f"{counted(len(result.checks), 'check')} of {result.subject}: {result.verdict}",
    )


def _row(check: Check, names: Sequence[str]) -> list[Cell]:
    values = check.as_dict()
    cells = []
    for name in names:
        emphasis = _EMPHASIS[check.outcome] if name == "outcome" else "none"
        cells.append(Cell(text=values[name], value=values[name], emphasis=emphasis))
    return cells
