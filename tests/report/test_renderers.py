"""Snapshots of every text format, and what must hold for any report."""

from __future__ import annotations

import csv as stdlib_csv
import io
import json as stdlib_json
import math
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion

from excise.errors import UsageError
from excise.report.csv import header_of, render_csv, render_csv_table, render_csv_tables
from excise.report.json import render_json
from excise.report.latex import escape_latex, render_latex
from excise.report.markdown import escape_markdown, render_markdown
from excise.report.model import (
    MAX_POINTS,
    NOTHING,
    Cell,
    Chart,
    Column,
    Paragraph,
    Report,
    Section,
    Table,
    file_safe,
)
from excise.report.text import render_text

pytest_plugins = ("report_fixtures",)

ANY_TEXT = st.text(max_size=60)
COLUMN = st.builds(
    Column,
    name=st.uuids().map(str),
    heading=ANY_TEXT,
    unit=st.sampled_from(["", "ns", "µs", "%"]),
    align=st.sampled_from(["left", "right"]),
    optional=st.booleans(),
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    columns = draw(st.lists(COLUMN, min_size=1, max_size=7))
    cell = st.builds(Cell, text=ANY_TEXT, value=st.none() | ANY_TEXT | st.floats() | st.integers())
    row = st.lists(cell, min_size=len(columns), max_size=len(columns))
    rows = draw(st.lists(row, max_size=4))
    return Table(name="any", columns=columns, rows=rows, caption=draw(ANY_TEXT))


def report_of(*blocks: Table | Paragraph | Chart) -> Report:
    return Report(title="t", sections=[Section(heading="s", blocks=list(blocks))])


def words_table(text: str) -> Table:
    return Table(
        name="words",
        columns=[Column(name="word", heading="word", align="left")],
        rows=[[Cell(text=text, value=text)]],
    )


# --- snapshots --------------------------------------------------------------------------------


def test_text_at_80_columns(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_text(example, width=80) == snapshot


def test_text_at_48_columns_stacks_tables(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_text(example, width=48) == snapshot


def test_text_with_colour(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_text(example, width=100, color=True) == snapshot


def test_markdown(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_markdown(example) == snapshot


def test_csv_of_every_table(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_csv_tables(example) == snapshot


def test_json(example: Report, snapshot: SnapshotAssertion) -> None:
    model = stdlib_json.loads(render_json(example))
    for section in model["sections"]:
        for block in section["blocks"]:
            if block["type"] == "chart":
                block["rows"] = block["rows"][:2]
    assert stdlib_json.dumps(model, indent=1, ensure_ascii=False) == snapshot


def test_latex(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_latex(example) == snapshot


def test_latex_of_one_table(example: Report, snapshot: SnapshotAssertion) -> None:
    assert render_latex(example, table="attribution") == snapshot


def test_hostile_names_in_text_markdown_and_latex(
    hostile: Report, snapshot: SnapshotAssertion
) -> None:
    result = report_of(Paragraph(text=hostile.paragraphs("result")[0], kind="result"))
    assert [render_text(result), render_markdown(result), render_latex(result)] == snapshot


# --- text -------------------------------------------------------------------------------------


def test_text_prints_results_first_then_warnings_sections_and_facts(example: Report) -> None:
    text = render_text(example)
    marks = ["+18.7 % [+18.3", "Warning: The CPU", "Comparison with none", "Method", "Facts"]
    places = [text.index(mark) for mark in marks]
    assert places == sorted(places)


@given(tables(), st.integers(40, 120))
def test_no_line_of_text_is_wider_than_asked(table: Table, width: int) -> None:
    text = render_text(report_of(table, Paragraph(text=table.caption or "x")), width=width)
    assert max(map(cell_len, text.split("\n"))) <= width


@given(tables())
def test_text_without_colour_has_no_control_character(table: Table) -> None:
    text = render_text(report_of(table, Paragraph(text=table.caption, kind="command")))
    assert not re.search(
        r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text
    )


@given(tables())
def test_text_keeps_every_word_of_a_table_that_has_no_optional_column(table: Table) -> None:
    words = {word for row in table.rows for cell in row for word in cell.text.split()}
    assume(not any(column.optional for column in table.columns))
    shown = "".join(render_text(report_of(table), width=200).split())
    assert all(word in shown for word in words if len(word) < 20 and word.isalnum())


def test_optional_columns_are_left_out_last_one_first_and_named() -> None:
    names = ["task", "one", "two", "three", "four", "five"]
    columns = [
        Column(
            name=n, heading=n, align="left" if n == "task" else "right", optional=n in names[2:4]
        )
        for n in names
    ]
    table = Table(name="t", columns=columns, rows=[[Cell(text=n * 2) for n in names]])
    assert "Not shown" not in render_text(report_of(table), width=80)
    text = render_text(report_of(table), width=44)
    assert "Not shown at this width, but in every other format: three." in " ".join(text.split())
    assert "twotwo" in text
    assert "threethree" not in text


def test_every_line_of_an_indented_cell_is_indented() -> None:
    columns = [Column(name="part", heading="Part", align="left"), Column(name="n", heading="n")]
    name = "a_function_that_is_called_by_another_one"
    rows = [
        [Cell(text="total"), Cell(text="1" * 30)],
        [Cell(text=f"    {name} (2 calls)"), Cell(text="2" * 30)],
    ]
    table = Table(name="t", columns=columns, rows=rows)
    lines = render_text(report_of(table), width=60).split("\n")
    start = next(n for n, line in enumerate(lines) if line.startswith("    a_function"))
    inner = [line[:28] for line in lines[start:] if line]
    assert len(inner) > 1
    assert all(re.match(r" {4}\S", line) for line in inner)
    assert "".join("".join(inner).split()) == f"{name}(2calls)"


def test_each_part_of_a_table_of_words_repeats_the_columns_that_name_the_rows() -> None:
    names = ["configuration", "check", "outcome", "expected", "got"]
    columns = [Column(name=n, heading=n, align="left") for n in names]
    rows = [[Cell(text=f"{n}{'x' * 18}") for n in names]]
    table = Table(name="t", columns=columns, rows=rows, keys=2)
    text = render_text(report_of(table), width=80)
    assert text.count("Part ") == text.count("configurationx") == text.count("checkx") == 3
    with pytest.raises(UsageError, match="2 columns cannot have 3 that name the rows"):
        Table(name="t", columns=columns[:2], rows=[], keys=3)


def test_commands_are_never_wrapped() -> None:
    command = "excise run " + "--configuration 'x: y' " * 10 + "-- true"
    text = render_text(report_of(Paragraph(text=command, kind="command")), width=40)
    assert f"  {command}" in text.split("\n")


# --- markdown ---------------------------------------------------------------------------------


def test_markdown_rows_have_one_cell_a_column_whatever_the_names(hostile: Report) -> None:
    for block in render_markdown(hostile).split("\n\n"):
        rows = [line for line in block.split("\n") if line.startswith("| ")]
        pipes = {len(re.findall(r"(?<!\\)\|", row)) for row in rows}
        assert len(pipes) <= 1


def test_markdown_marks_at_the_start_of_a_line_are_escaped() -> None:
    assert escape_markdown("- x") == r"\- x"
    assert escape_markdown("12. x") == r"12\. x"
    assert escape_markdown("# x") == r"\# x"
    assert escape_markdown("-1.5") == "-1.5"


def test_a_command_with_backticks_gets_a_longer_fence() -> None:
    text = render_markdown(report_of(Paragraph(text="echo ```` x", kind="command")))
    assert "`````sh\necho ```` x\n`````" in text


# --- csv --------------------------------------------------------------------------------------


@given(tables())
def test_csv_reads_back_cell_by_cell(table: Table) -> None:
    rows = list(stdlib_csv.reader(io.StringIO(render_csv_table(table), newline=""), strict=True))
    assert rows[0] == [header_of(column) for column in table.columns]
    for row, cells in zip(rows[1:], table.rows, strict=True):
        for got, cell in zip(row, cells, strict=True):
            if cell.value is None or isinstance(cell.value, str):
                assert got == (cell.text if cell.value is None else cell.value)
            elif isinstance(cell.value, float) and math.isnan(cell.value):
                assert got == ""
            else:
                assert float(got) == cell.value or int(got) == cell.value


def test_csv_gives_both_ends_of_an_interval_columns_of_their_own() -> None:
    table = Table(
        name="t",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="interval", heading="95 % interval"),
            Column(name="exponent", heading="Exponent", value_unit="1"),
        ],
        rows=[
            [
                Cell(text="a, b", value="a, b"),
                Cell(text="[+1, +2 %]", bounds=(1.0123, 1.0234)),
                Cell(text="1.5 [1, 2]", value=1.5, bounds=(1.0, math.inf)),
            ],
            [Cell(text="c"), Cell(text=NOTHING), Cell(text=NOTHING)],
        ],
    )
    assert render_csv_table(table).split("\r\n") == [
        "task,interval_low,interval_high,exponent (1),exponent_low (1),exponent_high (1)",
        '"a, b",1.0123,1.0234,1.5,1.0,inf',
        "c,,,,,",
        "",
    ]
    cell = stdlib_json.loads(render_json(report_of(table)))["sections"][0]["blocks"][0]["rows"][0][
        1
    ]
    assert cell == {
        "text": "[+1, +2 %]", "value": None, "emphasis": "none", "bounds": [1.0123, 1.0234],
    }  # fmt: skip


def test_csv_has_the_same_columns_of_intervals_where_no_row_has_an_interval() -> None:
    columns = [
        Column(name="task", heading="Task", align="left"),
        Column(name="interval", heading="95 % interval", value_unit="ns", bounded=True),
    ]
    some = [[Cell(text="a"), Cell(text="1 to 2 ns", bounds=(1.0, 2.0))]]
    none = [[Cell(text="a"), Cell(text=NOTHING)]]
    heads = {
        render_csv_table(Table(name="t", columns=columns, rows=rows)).split("\r\n")[0]
        for rows in (some, none, [])
    }
    assert heads == {"task,interval_low (ns),interval_high (ns)"}


def test_csv_gives_unrounded_values_with_the_unit_in_the_header(example: Report) -> None:
    rows = list(stdlib_csv.DictReader(io.StringIO(render_csv(example), newline="")))
    assert float(rows[0]["median_ns"]) == 412.6 * 1.187
    assert rows[0]["ess"] == "41.30000000000001"
    assert rows[0]["interval (%)"] == "[+18.3, +19.2]"


def test_csv_lines_end_in_crlf(example: Report) -> None:
    text = render_csv(example, table="checks")
    assert text.count("\r\n") == text.count("\n") == 4


def test_csv_of_an_unknown_table_names_those_there_are(example: Report) -> None:
    with pytest.raises(UsageError, match=r"no table 'x'.*comparison, attribution, checks"):
        render_csv(example, table="x")


# --- json -------------------------------------------------------------------------------------


def test_json_keeps_full_precision_and_has_no_nan(example: Report) -> None:
    def refuse(name: str) -> float:
        raise AssertionError(name)

    model = stdlib_json.loads(render_json(example), parse_constant=refuse)
    assert model["schema"] == "excise.report/1"
    assert model["data"]["tasks"]["stat"] == {"ratio": 1.187, "ess": None, "n": 60}
    cell = model["sections"][0]["blocks"][2]["rows"][0][6]
    assert cell == {"text": "489.8", "value": 412.6 * 1.187, "emphasis": "none"}


def test_json_takes_numpy_values_and_refuses_what_has_no_plain_form() -> None:
    data = {"a": np.float64(0.1), "b": np.array([1, 2]), "c": np.float64("nan"), "d": np.int64(3)}
    report = Report(title="t", sections=[], data=data)
    got = stdlib_json.loads(render_json(report))["data"]
    assert got == {"a": 0.1, "b": [1, 2], "c": None, "d": 3}
    with pytest.raises(TypeError, match="no plain form for a object"):
        render_json(Report(title="t", sections=[], data={"x": object()}))


@given(tables())
def test_json_of_any_table_is_valid_utf8(table: Table) -> None:
    raw = render_json(report_of(table), indent=None).encode("utf-8")
    block = stdlib_json.loads(raw)["sections"][0]["blocks"][0]
    assert len(block["rows"]) == len(table.rows)


# --- latex ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("50 % of $x_1 & #2", r"50 \% of \$x\_1 \& \#2"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("a--b ``q'' ,,z", (r"a{-}{-}b \textasciigrave{}\textasciigrave{}q"
         r"\textquotesingle{}\textquotesingle{} ,{},z")),
        ("[x] *", r"{[}x{]} {*}"),
        ("~^<>|\"", (r"\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
         r"\textquotedbl{}")),
        ("1 µs ± 2 × 3 − ≥", (r"1 \textmu{}s \ensuremath{\pm} 2 \ensuremath{\times} 3 "
         r"\ensuremath{-} \ensuremath{\geq}")),
        ("Müller, Ångström", "Müller, Ångström"),
        ("ﬁ 中", r"fi {[}U+4E2D{]}"),
        ("a\x1b[31m\nb\u202e", r"a\textbackslash{}x1b{[}31m b\textbackslash{}u202e"),
    ],
)  # fmt: skip
def test_latex_escapes(text: str, latex: str) -> None:
    assert escape_latex(text) == latex


@given(st.text())
def test_latex_of_any_text_has_no_live_character(text: str) -> None:
    escaped = escape_latex(text)
    rest = re.sub(r"\\[A-Za-z]+(?=\{|[^A-Za-z]|$)|\\[{}$&#%_,-]", "", escaped)
    assert not re.search(r"[\\$&#%_^\"'`<>|\x00-\x1f]", rest)
    assert rest.count("{") == rest.count("}")


def test_a_row_cannot_end_the_row_before_it_early() -> None:
    text = render_latex(report_of(words_table("*[2ex] x")), table="words")
    assert "\n{*}{[}2ex{]} x \\\\\n" in text


def test_a_long_table_breaks_over_pages_in_latex() -> None:
    column = Column(name="n", heading="n")
    rows = [[Cell(text=str(i), value=i)] for i in range(41)]
    text = render_latex(report_of(Table(name="long", columns=[column], rows=rows)))
    assert r"\begin{longtable}" in text
    assert "\n40 \\\\\n" in text


# --- model ------------------------------------------------------------------------------------


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(UsageError, match="row 1 has 2 cells for 1 columns"):
        Table(
            name="t",
            columns=[Column(name="a", heading="a")],
            rows=[[Cell(text="1"), Cell(text="2")]],
        )


def test_a_name_that_is_a_path_is_refused() -> None:
    with pytest.raises(UsageError, match="letters, digits, dots and dashes"):
        Chart(name="../x", kind="interval", title="", rows=[], unit="", caption="")


def test_a_chart_with_too_many_rows_is_refused() -> None:
    with pytest.raises(UsageError, match="5001 rows are more than 5000"):
        Chart(
            name="x", kind="interval", title="", rows=[{}] * (MAX_POINTS + 1), unit="", caption=""
        )


@given(st.text())
def test_file_safe_makes_a_name_that_the_model_takes(text: str) -> None:
    chart = Chart(name=file_safe(text), kind="interval", title="", rows=[], unit="", caption="")
    assert chart.name


def test_file_safe_keeps_good_names_and_keeps_others_apart() -> None:
    assert file_safe("open_close-0k") == "open_close-0k"
    names = [
        file_safe(text) for text in ("gpg --version", "gpg: version", "GPG version", "中", "文")
    ]
    assert len(set(names)) == 5
    assert names[0].startswith("gpg-version-")


def test_two_charts_of_one_name_are_refused() -> None:
    chart = Chart(name="x", kind="interval", title="", rows=[], unit="", caption="")
    with pytest.raises(UsageError, match="chart x: its name is not its own"):
        report_of(chart, chart)
