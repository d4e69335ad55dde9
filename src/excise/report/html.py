"""A report as one offline HTML page with interactive charts.

The page asks for nothing: the libraries that draw are in it once, and a Content-Security-Policy
forbids every connection. Scripts run only if their SHA-256 is in that policy, so text from a
capture could not run even if it were not escaped; `unsafe-eval` is not needed, because Vega's
expressions are interpreted from their syntax tree.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from excise.report.charts import chart_rows, chart_spec, theme
from excise.report.model import Block, Cell, Chart, Column, Paragraph, Report, Table
from excise.report.plain import visible
from excise.units import counted

_FILTER_ROWS = 8
"""A table with more rows than this gets a field to filter them."""

_TALL_ROWS = 40
"""A table with more rows than this scrolls in its own box."""

_FEW_RESULTS = 3
"""More result lines than this stand in columns where the page is wide."""

_LONG_TEXT = 32
"""A column with a text longer than this may wrap."""


def render_html(report: Report) -> str:
    """Return the report as one HTML page that needs no network and no other file."""
    sections = report.body()
    anchors = [f"s{i}-{_slug(section.heading)}" for i, section in enumerate(sections, start=1)]
    body = [
        _section(section.heading, anchor, section.blocks)
        for section, anchor in zip(sections, anchors, strict=True)
    ]
    headings = [
        (section.heading, anchor) for section, anchor in zip(sections, anchors, strict=True)
    ]
    if report.facts:
        headings.append(("Facts", "facts"))
        body.append(_facts(report.facts))
    charts = [chart for chart in report.charts() if chart.rows]
    scripts = [_bundle(), _asset("page.js")] if charts else [_asset("page.js")]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            _head(report.title, scripts=scripts),
            "<body>",
            '<a class="skip" href="#main">Skip to the results</a>',
            f"<header><h1>{_text(report.title)}</h1></header>",
            '<main id="main">',
            _results(report),
            _navigation(headings),
            (
                '<noscript><p class="warning">Charts, sorting and filtering need JavaScript; the '
                "tables hold the results without it.</p></noscript>"
            ),
            *body,
            "</main>",
            (
                "<footer>Made by excise. This page holds its data and asks for nothing from the "
                "network.</footer>"
            ),
            f'<script type="application/json" id="excise-charts">{_payload(charts)}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body>",
            "</html>",
            "",
        ]
    )


# --- head -------------------------------------------------------------------------------------


def _head(title: str, *, scripts: Sequence[str]) -> str:
    return "\n".join(
        [
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="generator" content="excise">',
            f"<title>{_text(title)}</title>",
            f"<style>{_asset('page.css')}</style>",
            "</head>",
        ]
    )


def _policy(scripts: Sequence[str]) -> str:
    """Return a policy that allows these scripts and inline styles, and no connection at all.

    Styles cannot be listed by digest: Vega sets `style` attributes while it draws.
    """
    digests = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


@functools.cache
def _asset(name: str) -> str:
    folder = resources.files("excise.report") / "assets"
    return (folder / name).read_text(encoding="utf-8").strip()


@functools.cache
def _bundle() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script that is safe inside a script element."""
    import vl_convert

    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    script = re.sub(r"<(?=/script|script|!--)", r"\\x3c", script, flags=re.IGNORECASE)
    return script.replace("\r\n", "\n").replace("\r", "\n").strip()


# --- charts -----------------------------------------------------------------------------------


def _payload(charts: Sequence[Chart]) -> str:
    """Return the charts' specifications, data and themes as JSON that no HTML parser can leave."""
    value = {
        "themes": {"light": theme(), "dark": theme(dark=True)},
        "charts": {chart.name: _chart_payload(chart) for chart in charts},
    }
    raw = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        raw = raw.replace(character, f"\\u{ord(character):04x}")
    return raw


def _chart_payload(chart: Chart) -> dict[str, Any]:
    rows = chart_rows(chart)
    keys = dict.fromkeys(key for row in rows for key in row)
    return {
        "spec": chart_spec(chart, on_page=True),
        "count": len(rows),
        "columns": {key: _column([row.get(key) for row in rows]) for key in keys},
    }


def _column(values: Sequence[Any]) -> dict[str, Any]:
    """Return a column of words as its distinct words and each row's index, others as they are."""
    if not any(isinstance(value, str) for value in values):
        return {"values": list(values)}
    words = {value: i for i, value in enumerate(dict.fromkeys(v for v in values if v is not None))}
    return {
        "words": list(words),
        "values": [None if value is None else words[value] for value in values],
    }


def _chart(chart: Chart) -> str:
    if not chart.rows:
        return f"<p><strong>{_text(chart.title)}:</strong> there is nothing to draw.</p>"
    name = _text(chart.name)
    buttons = "".join(
        f'<button type="button" hidden data-of="chart-{name}" data-as="{kind}" data-name="{name}" '
        f'aria-label="Save {_text(chart.title)} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("png", "svg")
    )
    return "\n".join(
        [
            "<figure>",
            f'<div class="head"><h3>{_text(chart.title)}</h3>',
            f'<div class="save">{buttons}</div></div>',
            (
                f'<div class="chart" id="chart-{name}" data-chart="{name}" role="img" '
                f'aria-label="{_text(chart.title)}. {_text(chart.caption)}"></div>'
            ),
            f"<figcaption>{_text(chart.caption)}</figcaption>",
            (
                f'<details data-of="{name}"><summary>Data table, '
                f"{counted(len(chart.rows), 'row')}</summary>"
                f'<div class="scroll" tabindex="0" role="region" aria-label="Data of '
                f'{_text(chart.title)}"></div></details>'
            ),
            "</figure>",
        ]
    )


# --- blocks -----------------------------------------------------------------------------------


def _text(text: str) -> str:
    return html.escape(visible(text), quote=True)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:60]


def _results(report: Report) -> str:
    results = [f"<li>{_result(text)}</li>" for text in report.paragraphs("result")]
    warnings = [
        f'<p class="warning"><strong>Warning:</strong> {_text(text)}</p>'
        for text in report.paragraphs("warning")
    ]
    many = " many" if len(results) > _FEW_RESULTS else ""
    listed = [f'<ul class="results{many}">', *results, "</ul>"] if results else []
    return "\n".join([*listed, *warnings])


def _result(text: str) -> str:
    """Return a result line with what follows its first " (" set apart, as in the report line."""
    head, bracket, rest = visible(text).partition(" (")
    tail = f"<span>{html.escape(bracket.strip() + rest)}</span>" if bracket else ""
    return f"<strong>{html.escape(head)}</strong> {tail}".strip()


def _navigation(headings: Sequence[tuple[str, str]]) -> str:
    links = "".join(f'<li><a href="#{anchor}">{_text(name)}</a></li>' for name, anchor in headings)
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>' if links else ""


def _section(heading: str, anchor: str, blocks: Sequence[Block]) -> str:
    return "\n".join(
        [
            f'<section aria-labelledby="{anchor}">',
            f'<h2 id="{anchor}">{_text(heading)}</h2>',
            *(_block(block) for block in blocks),
            "</section>",
        ]
    )


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return _table(block)
    if isinstance(block, Chart):
        return _chart(block)
    return _paragraph(block)


def _paragraph(paragraph: Paragraph) -> str:
    if paragraph.kind == "command":
        text = html.escape(visible(paragraph.text, lines=True))
        return f'<pre tabindex="0"><code>{text}</code></pre>'
    return f"<p>{_text(paragraph.text)}</p>"


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    rows = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in facts)
    return (
        '<section aria-labelledby="facts">\n<h2 id="facts">Facts</h2>\n'
        f"<dl>\n{rows}\n</dl>\n</section>"
    )


def _table(table: Table) -> str:
    label = _text(table.caption or table.name)
    classes = [_column_class(table, i) for i in range(len(table.columns))]
    head = "".join(
        _head_cell(column, name) for column, name in zip(table.columns, classes, strict=True)
    )
    rows = "\n".join(f"<tr>{_row(row, classes)}</tr>" for row in table.rows)
    empty = '<p class="none">No rows.</p>' if not table.rows else ""
    tall = " tall" if len(table.rows) > _TALL_ROWS else ""
    caption = f"<caption><span>{_text(table.caption)}</span></caption>" if table.caption else ""
    notes = "".join(f"<li>{_text(note)}</li>" for note in table.notes)
    return "\n".join(
        [
            f'<div class="table" id="table-{_text(table.name)}">',
            _tools(label) if len(table.rows) > _FILTER_ROWS else "",
            f'<div class="scroll{tall}" tabindex="0" role="region" aria-label="{label}">',
            f"<table>{caption}<thead><tr>{head}</tr></thead>",
            f"<tbody>{rows}</tbody></table>{empty}",
            "</div>",
            f'<ul class="notes">{notes}</ul>' if notes else "",
            "</div>",
        ]
    )


def _tools(label: str) -> str:
    return (
        '<div class="tools" hidden><input type="search" placeholder="Filter rows" '
        f'aria-label="Filter: {label}"><output aria-live="polite"></output></div>'
    )


def _column_class(table: Table, index: int) -> str:
    if table.columns[index].align == "right":
        return "number"
    if index < table.key_count:
        return "key"
    longest = max((len(row[index].text) for row in table.rows), default=0)
    return "long" if longest > _LONG_TEXT else "short"


def _head_cell(column: Column, name: str) -> str:
    unit = f'<span class="unit">{_text(column.unit)}</span>' if column.unit else ""
    return (
        f'<th scope="col" class="{name}" aria-sort="none">'
        f'<button type="button">{_text(column.heading)}</button>{unit}</th>'
    )


def _row(row: Sequence[Cell], classes: Sequence[str]) -> str:
    return "".join(
        _cell(cell, name, head=i == 0)
        for i, (cell, name) in enumerate(zip(row, classes, strict=True))
    )


def _cell(cell: Cell, name: str, *, head: bool) -> str:
    mark = "" if cell.emphasis == "none" else f" {cell.emphasis}"
    value = f' data-v="{cell.value!r}"' if _is_number(cell.value) else ""
    tag, scope = ("th", ' scope="row"') if head else ("td", "")
    text = f'<span class="name">{_text(cell.text)}</span>' if name == "key" else _text(cell.text)
    return f'<{tag}{scope} class="{name}{mark}"{value}>{text}</{tag}>'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
