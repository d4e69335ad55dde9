"""The answer of `selftest check` as a report."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from excise.collect.selftest.verdict import Answer, Check
from excise.report import tables
from excise.report.model import Block, Cell, Column, Emphasis, Paragraph, Report, Section, Table
from excise.units import counted

_MEANING = {
    Answer.YES: "self-tests run although FIPS is off",
    Answer.NO: "no self-test runs that FIPS did not ask for",
    Answer.NOT_COVERED: "no self-test was seen, but not everything could be seen into",
}


def build_check(check: Check) -> Report:
    """Return the answer, its evidence, and the self-tests that ran."""
    text = f"{check.subject}: {check.answer}, {_MEANING[check.answer]}."
    if check.fips_on and check.tests:
        text = f"{check.subject}: {check.answer}, self-tests ran, and FIPS is on."
    blocks: list[Block] = [Paragraph(text=text, kind="result")]
    if check.tests:
        took = tables.shown(check.tests_ns, "ns")
        blocks.append(Paragraph(text=f"{counted(len(check.tests), 'self-test')} took {took}."))
    if check.ended not in (None, "0"):
        blocks.append(Paragraph(text=f"The command ended with {check.ended}.", kind="warning"))
    blocks.append(_evidence_table(check))
    if check.tests:
        blocks.append(_tests_table(check))
    data: dict[str, Any] = {
        "subject": check.subject,
        "answer": str(check.answer),
        "exit_code": check.exit_code,
        "fips_on": check.fips_on,
        "ended": check.ended,
        "tests_ns": check.tests_ns,
        "evidence": [dataclasses.asdict(each) for each in check.evidence],
        "tests": [dataclasses.asdict(each) for each in check.tests],
    }
    title = "Who pays for self-tests while FIPS is off?"
    return Report(title=title, sections=[Section(heading="Answer", blocks=blocks)], data=data)


def _evidence_table(check: Check) -> Table:
    emphasis: dict[str, Emphasis] = {"yes": "bad", "no": "good", "unseen": "warn"}
    return Table(
        name="evidence",
        columns=[
            Column(name="source", heading="Looked at", align="left"),
            Column(name="found", heading="Found", align="left"),
            Column(name="points", heading="Speaks for", align="left"),
        ],
        rows=[
            [
                Cell(text=each.source, value=each.source),
                Cell(text=each.found, value=each.found),
                Cell(
                    text="–" if each.points == "context" else each.points,
                    value=each.points,
                    emphasis=emphasis.get(each.points, "none"),
                ),
            ]
            for each in check.evidence
        ],
        caption="Evidence",
    )


def _tests_table(check: Check) -> Table:
    count: Counter[tuple[str, str]] = Counter()
    time: Counter[tuple[str, str]] = Counter()
    for test in check.tests:
        key = (test.library, f"{test.type} {test.description}")
        count[key] += 1
        time[key] += test.duration_ns or 0
    dearest = time.most_common(10)
    left = len(time) - len(dearest)
    return Table(
        name="tests",
        columns=[
            Column(name="library", heading="Library", align="left"),
            Column(name="test", heading="Self-test", align="left"),
            Column(name="count", heading="Times"),
            Column(name="time", heading="Time", value_unit="ns"),
        ],
        rows=[
            [
                Cell(text=library, value=library),
                Cell(text=name, value=name),
                Cell(text=str(count[library, name]), value=count[library, name]),
                tables.value_cell(taken, "ns"),
            ]
            for (library, name), taken in dearest
        ],
        caption="The dearest self-tests that ran",
        notes=[f"{left} more are not printed; --json has them."] if left > 0 else [],
    )
