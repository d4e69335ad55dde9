"""A report as JSON: the results as plain values, and the model that every renderer prints."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from excise.report.model import Chart, Paragraph, Table
from excise.report.plain import plain_value

if TYPE_CHECKING:
    from excise.report.model import Block, Report

SCHEMA = "excise.report/1"
"""Name and version of the layout; it changes when a key changes its meaning or goes."""


def render_json(report: Report, *, indent: int | None = 2) -> str:
    """Return the report as JSON text: full precision, stable keys, no NaN.

    Args:
        report: The report.
        indent: Blanks a level; None for one line.
    """
    return (
        json.dumps(report_as_dict(report), indent=indent, ensure_ascii=False, allow_nan=False)
        + "\n"
    )


def report_as_dict(report: Report) -> dict[str, Any]:
    """Return the report as plain values; `data` comes first, the printed model after it."""
    return {
        "schema": SCHEMA,
        "title": plain_value(report.title),
        "data": plain_value(report.data),
        "results": plain_value(report.paragraphs("result")),
        "warnings": plain_value(report.paragraphs("warning")),
        "sections": [
            {
                "heading": plain_value(section.heading),
                "blocks": [_block(block) for block in section.blocks],
            }
            for section in report.sections
        ],
        "facts": [{"name": plain_value(n), "value": plain_value(v)} for n, v in report.facts],
    }


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Paragraph):
        return {"type": "paragraph", "kind": block.kind, "text": plain_value(block.text)}
    return _chart(block)


def _table(table: Table) -> dict[str, Any]:
    return {
        "type": "table",
        "name": table.name,
        "caption": plain_value(table.caption),
        "columns": [
            {
                "name": column.name,
                "heading": plain_value(column.heading),
                "unit": column.value_unit or column.unit,
                "printed_unit": column.unit,
            }
            for column in table.columns
        ],
        "rows": [
            [
                {
                    "text": plain_value(cell.text),
                    "value": plain_value(cell.value),
                    "emphasis": cell.emphasis,
                    **({"bounds": plain_value(list(cell.bounds))} if cell.bounds else {}),
                }
                for cell in row
            ]
            for row in table.rows
        ],
        "notes": plain_value(list(table.notes)),
    }


def _chart(chart: Chart) -> dict[str, Any]:
    return {
        "type": "chart",
        "name": chart.name,
        "kind": chart.kind,
        "title": plain_value(chart.title),
        "unit": chart.unit,
        "caption": plain_value(chart.caption),
        "rows": plain_value(list(chart.rows)),
    }
