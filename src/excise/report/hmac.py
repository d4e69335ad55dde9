"""The report of HMAC sessions: one extend by its steps beside the published traces, and boots."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from excise.cost.boot import BootRow, boot_rows
from excise.cost.extend import STEPS, UNATTRIBUTED, ExtendRow, extend_rows
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.report import tables
from excise.report.boot import build_boots, proof_sections
from excise.report.model import Block, Cell, Column, Paragraph, Report, Section, Table

# Steps of an extend that is protected by a session.
_PROTECTED: Final = frozenset({"start_auth_session", "fill", "check"})


def build_hmac(dataset: Dataset, *, beside: Dataset | None = None, limit: int = 10) -> Report:
    """Return traced extends and boots under each kind of protection as a report.

    Args:
        dataset: A capture of `excise lab hmac`.
        beside: Published traces and boots to print beside them.
        limit: Rows of each table of what is inside boots.

    Raises:
        UsageError: If it has neither traced extends nor boots.
    """
    datasets = [dataset, *([beside] if beside else [])]
    extends = [row for each in datasets for row in extend_rows(each)]
    own = [row for row in extends if row.source == dataset.name]
    boots = _boots(dataset)
    if not own and not boots:
        raise UsageError("has neither traced extends nor boots", source=dataset.name)
    sections = []
    if own:
        blocks: list[Block] = [Paragraph(text=_said(own), kind="result"), _step_table(extends)]
        sections.append(Section(heading="One extend of a PCR", blocks=blocks))
    data: dict[str, Any] = {"extends": [_plain(row) for row in extends]}
    facts: Sequence[tuple[str, str]] = ()
    if boots:
        report = build_boots(datasets, limit=limit)
        if text := _boots_said(own, boots):
            sections.append(Section(heading="Boots", blocks=[Paragraph(text=text, kind="result")]))
        sections += report.sections
        data |= report.data or {}
        facts = report.facts
    else:
        sections += proof_sections([dataset])
    return Report(title=dataset.manifest.title, sections=sections, facts=facts, data=data)


def _boots(dataset: Dataset) -> list[BootRow]:
    try:
        return boot_rows(dataset)
    except UsageError:
        return []


def _said(rows: Sequence[ExtendRow]) -> str:
    base, *others = rows
    parts = [f"{tables.shown(base.total.median, 'ns')} with {base.configuration}"]
    parts += [
        f"{row.configuration} {tables.shown(row.total.median, 'ns')} "
        f"(×{row.total.median / base.total.median:.2f})"
        for row in others
    ]
    return f"A PCR extend takes {'; '.join(parts)}.{_noise(base, others)}"


def _noise(base: ExtendRow, others: Sequence[ExtendRow]) -> str:
    """Return by how much guests differ whose extends send the same command; "" without such."""
    if not _PROTECTED.isdisjoint(base.steps_ns):
        return ""
    same = [row for row in others if _PROTECTED.isdisjoint(row.steps_ns)]
    if not same:
        return ""
    factors = ", ".join(f"×{row.total.median / base.total.median:.2f}" for row in same)
    names = " and ".join(row.configuration for row in (base, *same))
    return (
        f" {names} send the same plain command: what they differ by ({factors}) is how far guests "
        "differ without a cause, by the host's load."
    )


def _boots_said(extends: Sequence[ExtendRow], boots: Sequence[BootRow]) -> str | None:
    """Return what the traced extends say of the boots: entries times difference, beside measured.

    The second is a difference of whole boots, whose own spread is printed with it.
    """
    by_name = {row.configuration: row for row in extends}
    measured = [
        row
        for row in boots
        if row.configuration in by_name and row.total is not None and row.entries is not None
    ]
    if len(measured) < 2:
        return None
    base, *others = measured
    parts = []
    for row in others:
        if row.total is None or row.entries is None or base.total is None:
            continue
        unit = by_name[row.configuration].total.median - by_name[base.configuration].total.median
        expected = tables.shown(unit * row.entries.median, "ns")
        spread = max(row.total.max - row.total.min, base.total.max - base.total.min)
        parts.append(
            f"{row.configuration}: {row.entries.median:,.0f} entries × "
            f"{tables.shown(unit, 'ns')} = {expected} expected, "
            f"{tables.shown(row.total.median - base.total.median, 'ns')} measured "
            f"(boots of one configuration spread over {tables.shown(spread, 'ns')})"
        )
    return f"Against {base.configuration}: {'; '.join(parts)}."


def _step_table(rows: Sequence[ExtendRow]) -> Table:
    columns = [Column(name="step", heading="Step", align="left")]
    for number, row in enumerate(rows):
        same = sum(each.configuration == row.configuration for each in rows)
        heading = row.configuration if same == 1 else f"{row.source}: {row.configuration}"
        columns.append(Column(name=f"extend_{number}", heading=heading, value_unit="ns"))
    known = dict(STEPS)
    others = [name for row in rows for name in row.steps_ns if name not in known]
    body = []
    for name in [*known, *dict.fromkeys(others)]:
        if not any(name in row.steps_ns for row in rows):
            continue
        inside = "· " if known.get(name) else ""
        cells = [tables.value_cell(row.steps_ns.get(name), "ns") for row in rows]
        body.append([Cell(text=f"{inside}{name}", value=name), *cells])
    rest = [tables.value_cell(row.unattributed_ns, "ns") for row in rows]
    body.append([Cell(text=UNATTRIBUTED), *rest])
    body.append(
        [Cell(text="tpm2_pcr_extend"), *(tables.value_cell(r.total.median, "ns") for r in rows)]
    )
    body.append([Cell(text="first extend"), *(tables.value_cell(r.first_ns, "ns") for r in rows)])
    body.append([Cell(text="n"), *(Cell(text=str(r.n), value=r.n) for r in rows)])
    notes = [
        "Medians, the first extend apart. Each traced function holds the tracer's own cost.",
        "A dot: inside start_auth_session. buffer: building the command.",
    ]
    return Table(name="extends", columns=columns, rows=body, notes=notes)


def _plain(row: ExtendRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "configuration": row.configuration,
        "n": row.n,
        "first_ns": row.first_ns,
        "steps_ns": dict(row.steps_ns),
        "unattributed_ns": row.unattributed_ns,
        "total_ns": dataclasses.asdict(row.total),
    }
