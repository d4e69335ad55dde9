"""The verdict comes first, and what is no result stands behind it in a sentence."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from rich.cells import cell_len

from captures import run
from cost_datasets import dataset, event, paired_dataset
from excise.capture.journal import Effect, Record
from excise.cli.demo import CAPTURE
from excise.cost.comparison import compare_configurations
from excise.cost.gate import judge
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.load import load_capture
from excise.reference import load
from excise.report.brief import brief_lines, render_brief
from excise.report.build import build_attribution, build_comparison, build_report, build_show
from excise.report.gate import render_gate
from excise.report.json import render_json
from excise.report.model import Brief, Cell, Column, Paragraph, Report, Section, Table
from excise.report.text import render_text
from excise.units import counted, format_ratio_beside, format_ratio_interval


def compared(data: Dataset) -> Report:
    return build_comparison(compare_configurations(data), data)


def test_the_verdict_over_all_comparisons_is_the_first_result() -> None:
    report = compared(paired_dataset({"b": 1.2, "c": 0.7, "d": 1.0}))
    assert report.paragraphs("result")[0] == (
        "3 comparisons with none: 1 cost, 1 save, 1 equivalent within 1 %."
    )
    assert render_text(report).split("\n\n")[1] == report.paragraphs("result")[0]


def test_an_inconclusive_campaign_says_so_first_and_how_many_blocks_it_takes() -> None:
    arms = {f"arm{number}": 1.2 for number in range(9)}
    text = render_text(compared(paired_dataset(arms, blocks=6)))
    assert text.split("\n\n")[1] == "9 comparisons with none: 9 inconclusive."
    words = " ".join(text.split())
    assert "6 pairs are too few for a difference among 9 comparisons at 95 %: it takes at" in words
    assert "interval is expected by chance" not in words


def test_brief_has_one_line_for_each_comparison_in_columns() -> None:
    lines = render_brief(compared(paired_dataset({"b": 1.2, "long-name": 12.0}))).splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(": 2 comparisons with none: 2 cost")
    assert [line.split()[:2] for line in lines[1:]] == [["t", "b"], ["t", "long-name"]]
    assert lines[1].index("costs") == lines[2].index("costs")
    assert all(line.endswith("n=60") for line in lines[1:])


def test_brief_says_what_is_to_be_warned_of() -> None:
    data = paired_dataset({"b": 1.2, "none (A/A)": 1.3})
    assert "Warning: The A/A arm differs" in render_brief(compared(data))


def test_a_report_without_lines_of_its_own_is_brief_by_its_results() -> None:
    results = [Paragraph(text="A costs.", kind="result"), Paragraph(text="more")]
    report = Report(title="T", sections=[Section(heading="s", blocks=results)])
    assert render_brief(report) == "T\nA costs.\n"
    assert brief_lines(Brief(head="h\x1b", lines=[["\u4e2d", "x"], ["abc", "y", "z"]])) == [
        "h\\x1b",
        "\u4e2d   x",
        "abc  y  z",
    ]


def test_what_is_told_in_short_is_whole_in_every_other_format() -> None:
    table = Table(name="t", columns=[Column(name="c", heading="c")], rows=[[Cell(text="7")]])
    report = Report(
        title="T",
        sections=[
            Section(heading="Proof", blocks=[table], in_short="All is well."),
            Section(heading="Result", blocks=[Paragraph(text="It costs.")]),
        ],
        facts=[("cpu", "Z80")],
        facts_in_short="Measured on a Z80.",
    )
    text = render_text(report)
    assert text.index("It costs.") < text.index("All is well.") < text.index("Measured on")
    assert "Proof" not in text
    assert "Facts" not in text
    model = json.loads(render_json(report))
    assert model["sections"][0]["blocks"][0]["rows"][0][0]["text"] == "7"
    assert model["facts"] == [{"name": "cpu", "value": "Z80"}]


@pytest.mark.parametrize("outcome", ["PASSED", "FAILED"])
def test_a_configuration_that_did_not_take_effect_is_never_told_in_short(outcome: str) -> None:
    data = paired_dataset({"b": 1.2})
    effect = Effect(configuration="b", check="probe", expected="on", got="x", outcome=outcome)
    text = render_text(compared(dataclasses.replace(data, effects=(effect,))))
    assert ("In effect: b (1 check" in text) == (outcome == "PASSED")


def test_notes_of_a_capture_stand_behind_its_results() -> None:
    data = load("lsmpmon-2008")
    for report in (build_show(data), build_attribution(data, task="stat"), build_report(data)):
        text = render_text(report)
        assert text.index("None") < text.index("\nNotes\n")
        assert report.paragraphs("warning") == []


def test_an_attribution_of_several_totals_says_first_how_much_is_explained() -> None:
    report = build_attribution(load("lsmpmon-2008"), task="stat")
    (said,) = report.paragraphs("result")
    assert said.startswith("4 totals: 33.2% to 76.0% of each explained; 3 with remarks")
    assert len(render_brief(report).splitlines()) == 5


def test_published_rows_are_shown_in_one_table_without_a_part_for_a_word() -> None:
    text = render_text(build_show(load("lsmpmon-2008")), width=80)
    assert "Part 1 of" not in text
    assert "(per_call)" in text
    assert max(map(cell_len, text.splitlines())) <= 80


def test_short_cells_are_not_wrapped_in_every_row_for_the_sake_of_an_optional_column() -> None:
    words = [Cell(text="word"), Cell(text="two short words"), Cell(text="9" * 20)]
    columns = [
        Column(name="task", heading="Task", align="left"),
        Column(name="verdict", heading="Verdict", align="left"),
        Column(name="value", heading="Value", optional=True),
    ]
    report = Report(
        title="T",
        sections=[
            Section(
                heading="s", blocks=[Table(name="t", columns=columns, rows=[words, words, words])]
            )
        ],
    )
    text = render_text(report, width=40)
    assert "two short words" in text
    assert "Not shown at this width, but in every other format: Value." in " ".join(text.split())
    assert "9" * 20 in render_text(report, width=50)


def test_a_part_of_a_table_leaves_out_rows_that_have_nothing_in_it() -> None:
    columns = [
        Column(name="task", heading="Task", align="left"),
        Column(name="value", heading="Value"),
        Column(name="note", heading="Note"),
    ]
    rows = [
        [Cell(text=name), Cell(text="1" * 25), Cell(text=note)]
        for name, note in (("one", ""), ("two", "n" * 25), ("three", "–"))
    ]
    report = Report(
        title="T",
        sections=[Section(heading="s", blocks=[Table(name="t", columns=columns, rows=rows)])],
    )
    first, second = render_text(report, width=40).split("Part 2 of 2: Note; rows without")
    assert all(name in first for name in ("one", "two", "three"))
    assert "two" in second
    assert "three" not in second


def test_the_gate_answers_first_and_gives_each_reason_once() -> None:
    data = paired_dataset({"b": 1.2, "c": 1.0})
    found = judge(data, baseline="none", max_regression_ratio=0.05)
    lines = render_gate(found).splitlines()
    assert lines[0] == "Does not pass: 2 comparisons with a limit of 5 %, 1 failed"
    assert lines[1].startswith("FAIL  t  b  +")
    assert lines[1].endswith("costs more than +5.0 %")
    assert lines[2].startswith("ok    t  c  ")
    assert render_gate(found, brief=True).splitlines() == lines[:2]


def test_counts_agree_with_their_nouns_and_intervals_have_one_form() -> None:
    assert counted(1, "run") == "1 run"
    assert counted(2, "entry", "entries") == "2 entries"
    assert format_ratio_interval(8.92, 14.7) == "[×8.92, ×14.7]"


def stepped(configurations: dict[str, tuple[str, ...]], *, factor: float = 1.3) -> Dataset:
    """Return imported runs with a command in two layers, and further steps in the inner one."""
    records: list[Record] = []
    for arm, (configuration, steps) in enumerate(configurations.items()):
        for number in range(30):
            sequence = len(records)
            scale = (1e6 + 1e3 * (number % 7)) * factor**arm
            records.append(
                run(sequence, run=number, configuration=configuration, wall_ns=round(4 * scale))
            )
            records += [
                event(sequence, "cmd_total", 3 * scale, layer="ta"),
                event(sequence, "cmd_total", 2 * scale, layer="pta", parent="ta|cmd_total"),
                *(
                    event(sequence, step, scale / 2, layer="pta", parent="pta|cmd_total")
                    for step in steps
                ),
            ]
    return dataset(records, origin="imported")


def test_events_of_one_name_in_two_layers_are_told_apart_wherever_they_are_named() -> None:
    report = compared(stepped({"a": (), "b": ()}))
    sentences = report.paragraphs("result")[1:]
    assert [each.partition(" under ")[0] for each in sentences] == [
        "t", "t ta|cmd_total", "t pta|cmd_total",
    ]  # fmt: skip
    assert [line.partition("  ")[0] for line in render_brief(report).splitlines()[1:]] == [
        "t", "t ta|cmd_total", "t pta|cmd_total",
    ]  # fmt: skip


def test_what_is_not_comparable_always_says_why() -> None:
    report = compared(stepped({"a": ("sign",), "b": ("sign", "verify")}))
    why = "its parts differ: pta|verify only in b"
    words = " ".join(render_text(report).split())
    assert f"* Not comparable: t ta|cmd_total; t pta|cmd_total ({why})." in words
    assert f"* Compared as a whole: t under b ({why})." in words
    lines = [line for line in render_brief(report).splitlines() if "not comparable" in line]
    assert len([line for line in lines[1:] if line.endswith(why)]) == 2
    failed = compared(paired_dataset({"b": 1.2, "none (A/A)": 1.3}))
    why = "the A/A arm differs from the baseline"
    assert f"not comparable ({why})" in failed.paragraphs("result")[1]
    assert f"* Not comparable: t ({why})." in " ".join(render_text(failed).split())
    assert why in render_brief(failed).splitlines()[1]


@pytest.mark.parametrize("build", [build_show, build_report])
def test_the_steps_inside_runs_are_told_with_their_quantiles(
    build: Callable[[Dataset], Report],
) -> None:
    report = build(stepped({"a": ("sign",), "b": ("sign", "verify")}))
    first, second = [each for each in report.tables() if each.name.startswith("steps-")]
    assert [column.name for column in first.columns] == [
        "step", "n", "first", "mean", "median", "p95", "max",
    ]  # fmt: skip
    rows = {row[0].value: [cell.value for cell in row[1:]] for row in first.rows}
    assert list(rows) == ["ta|cmd_total", "pta|cmd_total", "pta|sign"]
    values = np.array([1e6 + 1e3 * (number % 7) for number in range(1, 30)])
    assert rows["pta|sign"][:2] == [29, 1e6 / 2]
    assert rows["pta|sign"][3:] == pytest.approx(
        [np.median(values) / 2, np.quantile(values, 0.95) / 2, values.max() / 2], rel=1e-3
    )
    assert len(second.rows) == 4
    steps = json.loads(render_json(report))["data"]["steps"]
    assert {(each["layer"], each["event"]) for each in steps} >= {("ta", "cmd_total")}
    assert not any(each.name.startswith("steps-") for each in build(load_capture(CAPTURE)).tables())


def test_a_report_compares_with_the_baseline_that_is_asked_for() -> None:
    data = stepped({"a": (), "b": ()})
    assert build_report(data).paragraphs("result")[0].startswith("3 comparisons with a: 3 cost")
    asked = build_report(data, baseline="b").paragraphs("result")[0]
    assert asked.startswith("3 comparisons with b: 3 save")
    with pytest.raises(UsageError, match="no configuration 'c'"):
        build_report(data, baseline="c")
    with pytest.raises(UsageError, match="nothing to compare with 'a'"):
        build_report(stepped({"a": ()}), baseline="a")


def test_a_change_has_the_form_of_its_interval() -> None:
    assert format_ratio_beside(9.5, 8.9, 11.0) == "×9.50"
    assert format_ratio_beside(9.5, 8.9, 9.9) == "+850 %"
    assert format_ratio_beside(9.5, None, None) == "+850 %"
    assert format_ratio_beside(math.nan, 8.9, 11.0) == "n/a"
    report = compared(paired_dataset({"b": 9.95}, noise=0.2))
    assert "×9." in report.paragraphs("result")[1].partition("(")[0]
    table = next(each for each in report.tables() if each.name == "comparison")
    row = dict(zip((column.name for column in table.columns), table.rows[0], strict=True))
    assert row["ratio"].text.startswith("×")
    assert row["interval"].text.startswith("[×")
    assert " ×9." in render_brief(report).splitlines()[1]


def test_totals_without_parts_are_told_in_a_sentence_and_not_in_a_table_each() -> None:
    report = build_report(load_capture(CAPTURE))
    (section,) = [each for each in report.sections if each.heading == "What explains the totals"]
    (block,) = section.blocks
    assert isinstance(block, Paragraph)
    assert block.text.startswith("Nothing inside a run was measured. The probe's own cost is 0.0")
    assert all("explained" not in text for text in report.paragraphs("result"))
