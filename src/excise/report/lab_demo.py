"""The demonstration's report: counts of today beside times of 2008, and evidence that holds."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from excise.cost.compared import Comparison, Comparisons
from excise.evidence.checks import AppraisalResult, Outcome
from excise.report.model import NOTHING, Block, Cell, Column, Paragraph, Report, Section, Table
from excise.report.tables import counts_table
from excise.units import counted, format_ratio

_NOTE: Final = (
    "Then: times on one machine, published. Now: instructions of the guest. Each is what the "
    "mechanism adds to the same call without it; a time also holds what caches cost."
)


def then_and_now(
    now: Comparisons,
    then: Comparisons,
    *,
    mechanisms: Mapping[str, str],
    tasks: Mapping[str, str],
    year: int,
) -> Table:
    """Return what each mechanism adds to each task, as published and as counted now.

    Args:
        now: Counts.
        then: Published values.
        mechanisms: Published configuration to ours.
        tasks: Published task to ours.
        year: Of the publication.
    """
    ours, theirs = _by_key(now), _by_key(then)
    columns = [Column(name="task", heading="Task", align="left")]
    for number, mechanism in enumerate(mechanisms):
        columns.append(Column(name=f"then_{number}", heading=f"{mechanism} {year}"))
        columns.append(Column(name=f"now_{number}", heading="now"))
    rows = []
    for before, after in tasks.items():
        cells = [Cell(text=before)]
        for old, new in mechanisms.items():
            cells += [_added(theirs.get((before, old))), _added(ours.get((after, new)))]
        rows.append(cells)
    return Table(
        name="then-and-now",
        columns=columns,
        rows=rows,
        caption=f"Added by each mechanism: published in {year}, and counted now",
        notes=[_NOTE],
    )


def _by_key(found: Comparisons) -> dict[tuple[str, str], Comparison]:
    return {(row.task, row.configuration): row for row in found.rows if not row.event}


def _added(row: Comparison | None) -> Cell:
    if row is None or row.ratio != row.ratio:
        return Cell(text=NOTHING)
    return Cell(text=format_ratio(row.ratio), value=row.ratio)


def build_lab_demo(
    now: Comparisons, beside: Table, appraisals: Sequence[AppraisalResult], *, title: str
) -> Report:
    """Return what the demonstration prints: the counts, the published table, the evidence."""
    return Report(
        title=title,
        sections=[
            Section(heading=f"Cost against {now.baseline}", blocks=[counts_table(now)]),
            Section(heading="Then and now", blocks=[beside]),
            Section(heading="Evidence of the guest with a TPM", blocks=evidence_lines(appraisals)),
        ],
        data={"evidence": [each.as_dict() for each in appraisals]},
    )


def evidence_lines(appraisals: Sequence[AppraisalResult]) -> list[Block]:
    """Return one sentence for each piece of evidence."""
    lines: list[Block] = []
    for each in appraisals:
        counts = Counter(check.outcome for check in each.checks)
        shown = [f"{counts[Outcome.PASSED]} of {counted(len(each.checks), 'check')} passed"]
        if counts[Outcome.FAILED]:
            shown.append(f"{counts[Outcome.FAILED]} failed")
        if counts[Outcome.NOT_COVERED]:
            shown.append(f"{counts[Outcome.NOT_COVERED]} not covered by this evidence")
        text = f"{each.subject}: {each.verdict} ({', '.join(shown)})"
        holds = each.verdict is Outcome.PASSED
        lines.append(Paragraph(text=text, kind="result" if holds else "warning"))
    return lines


def with_section(report: Report, table: Table, *, heading: str) -> Report:
    """Return a report with a table in a section of its own, second after the comparison."""
    section = Section(heading=heading, blocks=[table])
    return dataclasses.replace(
        report, sections=[*report.sections[:1], section, *report.sections[1:]]
    )
