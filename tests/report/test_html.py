"""The HTML page as text: what is escaped, what is allowed, what is there without JavaScript."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from excise.report.html import render_html
from excise.report.model import Cell, Chart, Column, Paragraph, Report, Section, Table
from excise.report.plain import visible

pytest_plugins = ("report_fixtures",)

VOID = {"meta", "input", "br", "img", "link"}


class Page(HTMLParser):
    """Elements with their attributes, the text in each, and whether tags nest."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.open: list[str] = []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def payload_of(page: Page) -> dict[str, Any]:
    texts = [text for text in page.texts["script"] if text.startswith('{"themes"')]
    return dict(json.loads(texts[0]))


def test_the_page_asks_for_nothing_from_the_network(example: Report) -> None:
    source = render_html(example)
    page = Page(source)
    for _, attributes in page.elements:
        assert not {"src", "action", "poster", "background"} & attributes.keys()
        assert (attributes.get("href") or "#").startswith("#")
    assert page.all("link") == []
    assert "url(" not in source[: source.index("</style>")]
    assert not re.search(r"cdn\.|jsdelivr|unpkg|googleapis", source)


def test_the_policy_lists_exactly_the_scripts_of_the_page(example: Report) -> None:
    source = render_html(example)
    page = Page(source)
    policy = page.all("meta")[1]["content"] or ""
    scripts = re.findall(r"<script>(.*?)</script>", source, flags=re.DOTALL)
    digests = [
        f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'"
        for s in scripts
    ]
    assert len(scripts) == 2
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives["default-src"] == "'none'"
    assert directives["script-src"].split() == digests
    assert "unsafe-eval" not in policy


def test_hostile_names_are_text_and_nothing_else(hostile: Report, example: Report) -> None:
    page, plain = Page(render_html(hostile)), Page(render_html(example))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    assert page.all("img") == []
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on")]
    assert "alert(1)" in "".join(page.texts["strong"])


@settings(max_examples=20)
@given(st.text(alphabet=st.sampled_from("<>&\"'/`\\\x00\x1b\u2028\u202e!-=sSx ]"), max_size=30))
def test_any_text_comes_back_as_it_was_put_in(text: str) -> None:
    chart = Chart(
        name="c", kind="interval", title=text, unit=text, caption=text,
        rows=[{"label": text, "ratio": 1.0, "low": 0.9, "high": 1.1, "verdict": "costs"}],
    )  # fmt: skip
    table = Table(
        name="t",
        caption=text,
        columns=[Column(name="a", heading=text, align="left")],
        rows=[[Cell(text=text, value=text)]],
    )
    blocks = [Paragraph(text=text, kind="result"), Paragraph(text=text), table, chart]
    page = Page(
        render_html(
            Report(
                title=text, sections=[Section(heading=text, blocks=blocks)], facts=[(text, text)]
            )
        )
    )
    shown = visible(text)
    assert payload_of(page)["charts"]["c"]["columns"]["label"]["words"] == [shown]
    figure = next(a for tag, a in page.elements if tag == "div" and a.get("role") == "img")
    assert figure["aria-label"] == f"{shown}. {shown}"
    if shown:
        assert {shown} == {*page.texts["p"], *page.texts["dt"], *page.texts["dd"]} - {
            text for text in page.texts["p"] if "JavaScript" in text
        }


def test_tables_have_captions_scopes_and_row_headings(example: Report) -> None:
    page = Page(render_html(example))
    for heading in page.all("th"):
        assert heading["scope"] in {"col", "row"}
    assert len(page.all("caption")) == 2
    regions = [a for tag, a in page.elements if a.get("role") == "region"]
    assert all(region["aria-label"] and region["tabindex"] == "0" for region in regions)
    assert "489.8" in page.texts["td"]


def test_headings_descend_one_step_and_links_reach_their_sections(example: Report) -> None:
    page = Page(render_html(example))
    levels = [int(tag[1]) for tag, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    ids = [a["id"] for _, a in page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    assert {(a["href"] or "")[1:] for a in page.all("a")} <= set(ids)


def test_results_come_first_and_facts_last(example: Report) -> None:
    source = render_html(example)
    marks = ['class="results"', 'class="warning"', 'id="table-comparison"', 'id="chart-ratios"',
             'id="chart-attribution-open-close"', 'id="table-checks"', 'id="facts"']  # fmt: skip
    places = [source.index(mark) for mark in marks]
    assert places == sorted(places)


def test_chart_data_keeps_full_precision(example: Report) -> None:
    page = Page(render_html(example))
    for chart in example.charts():
        packed = payload_of(page)["charts"][chart.name]
        assert packed["count"] == len(chart.rows)
        for key in ("value", "ratio", "end"):
            if key in chart.rows[0]:
                assert packed["columns"][key]["values"] == [row[key] for row in chart.rows]


def test_the_library_is_in_the_page_once_and_only_with_charts(example: Report) -> None:
    with_charts = render_html(example)
    without = render_html(Report(title="t", sections=[Section(heading="s", blocks=[])]))
    assert with_charts.count("window.vegaEmbed=") == 1
    assert len(without) < 40_000


def test_a_chart_without_rows_says_so() -> None:
    chart = Chart(name="c", kind="waterfall", title="Parts", rows=[], unit="ns", caption="")
    page = Page(render_html(Report(title="t", sections=[Section(heading="s", blocks=[chart])])))
    assert "figure" not in dict(page.elements)
    assert "Parts:" in page.texts["strong"]


def test_the_same_report_gives_the_same_page(example: Report) -> None:
    assert render_html(example) == render_html(example)
