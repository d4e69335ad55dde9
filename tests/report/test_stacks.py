"""The steps of a task, stacked over the run number."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import polars as pl
import pytest

from captures import manifest, run
from excise.capture.journal import Event, Record
from excise.events.dataset import Dataset
from excise.events.load import from_records
from excise.report.build import build_report
from excise.report.charts import draw
from excise.report.model import Chart
from excise.report.stacks import BARS, REST, stack_charts

STEPS = {"capture": 1_000_000, "embed": 3_000_000, "collect": 200_000, "send": 300_000}
START = 500_000


def dataset(made: list[Record], **changes: Any) -> Dataset:
    return from_records(made, name="d", manifest=manifest(**changes))


def records(
    runs: int, *, configurations: tuple[str, ...] = ("fix",), unit: str = "ns", factor: float = 1.0
) -> Iterator[Record]:
    """Yield transactions whose *collect* grows by a nanosecond a run; the first is slow."""
    sequence = 0
    for number in range(runs + 1):
        for configuration in configurations:
            times = {**STEPS, "collect": STEPS["collect"] + number}
            wall_ns = START + sum(times.values()) * (1 if number else 9)
            yield run(
                sequence,
                block=number,
                run=number,
                task="transaction",
                configuration=configuration,
                phase="measured" if number else "first",
                wall_ns=wall_ns,
            )
            for name, value in times.items():
                yield Event(
                    sequence=sequence, layer="host", event=name, value=value / factor, unit=unit
                )
            sequence += 1


def chart(runs: int = 12, **options: object) -> Chart:
    [found] = stack_charts(dataset(list(records(runs, **options))))  # type: ignore[arg-type]
    return found


def test_each_bar_is_a_run_with_its_steps_in_order_and_what_is_in_none() -> None:
    found = chart()
    assert (found.kind, len(found.rows)) == ("stack", 12 * 5)
    one = [row for row in found.rows if row["run"] == 4]
    assert [row["part"] for row in one] == [*STEPS, REST]
    assert [row["value"] for row in one] == [1_000_000, 3_000_000, 200_004, 300_000, START]
    assert [row["low"] for row in one[1:]] == [row["high"] for row in one[:-1]]
    assert one[-1]["high"] == START + sum(STEPS.values()) + 4
    assert "the first run, 41.0 ms, is not drawn" in found.caption


def test_steps_within_the_clients_own_total_are_the_steps() -> None:
    inner = sum(STEPS.values())
    wholes = [
        Event(sequence=number, layer="host", event="total", value=inner, unit="ns")
        for number in range(13)
    ]
    held = [
        msgspec.structs.replace(record, parent="host|total")
        if isinstance(record, Event)
        else record
        for record in records(12)
    ]
    [found] = stack_charts(dataset([*held, *wholes]))
    assert found.rows == chart().rows


@pytest.mark.parametrize(("unit", "factor"), [("us", 1e3), ("ms", 1e6), ("s", 1e9)])
def test_steps_in_other_units_are_drawn_in_nanoseconds(unit: str, factor: float) -> None:
    rows = chart(unit=unit, factor=factor).rows
    assert [row["value"] for row in rows] == pytest.approx([row["value"] for row in chart().rows])


def test_ten_thousand_runs_are_drawn_as_medians_that_still_grow() -> None:
    found = chart(10_000)
    collected = [row["value"] for row in found.rows if row["part"] == "collect"]
    assert len(collected) <= BARS
    assert collected == sorted(collected)
    assert collected[-1] - collected[0] == pytest.approx(10_000, rel=0.02)
    assert found.rows[-1]["end"] == 10_001
    assert "medians" in found.caption


def test_configurations_have_charts_of_one_scale_and_the_twin_has_none() -> None:
    arms = ("none", "none (A/A)", "fix")
    found = list(
        stack_charts(
            dataset(
                list(records(5, configurations=arms)),
                baseline="none",
                twin="none (A/A)",
                paired=True,
            )
        )
    )
    assert [each.title for each in found] == [
        f"Steps of transaction under {arm} by run number" for arm in ("none", "fix")
    ]
    assert len({row["top"] for each in found for row in each.rows}) == 1
    assert len({each.name for each in found}) == 2


def test_runs_without_steps_of_a_time_have_no_chart() -> None:
    made = list(records(5))
    assert list(stack_charts(dataset([each for each in made if not isinstance(each, Event)]))) == []
    assert list(stack_charts(dataset(list(records(5, unit="1"))))) == []


def test_failed_runs_are_not_drawn() -> None:
    made = dataset(list(records(6)))
    failed = made.runs.with_columns(ok=pl.col("run") != 3)
    [found] = stack_charts(dataclasses.replace(made, runs=failed))
    assert {row["run"] for row in found.rows} == {1, 2, 4, 5, 6}


def test_the_report_has_the_picture_with_a_legend_of_all_steps() -> None:
    report = build_report(dataset(list(records(20))))
    [found] = [each for each in report.charts() if each.kind == "stack"]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", draw(found, picture="svg").decode())
    assert {*STEPS, REST, "run number", "wall time (ms)"} <= set(texts)


def test_the_numbers_under_the_bars_are_those_of_runs_and_no_other() -> None:
    found = chart(6)
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", draw(found, picture="svg").decode())
    under = texts[: texts.index("run number")]
    assert [text for text in under if text.isdecimal()] == ["1", "2", "3", "4", "5", "6"]
