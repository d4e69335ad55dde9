"""Reports on TPMs and predictions: their tables and pictures."""

from __future__ import annotations

import re

import pytest

from excise.cost.predict_known import known_cases
from excise.cost.tpm_catalogue import catalogue, of_record, place
from excise.cost.tpm_record import record_of
from excise.report.build import build_report
from excise.report.charts import chart_rows, draw
from excise.report.model import Chart
from excise.report.predict import build_prediction
from excise.report.tpm import build_bench, build_comparison
from excise.report.write import FORMATS, render
from tpm_datasets import MS, bench_dataset


def texts(chart: Chart) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)</text>", draw(chart, picture="svg").decode())


def range_chart(*values: float, unit: str = "ns") -> Chart:
    rows = [{"label": "a", "value": value, "series": f"s{i}"} for i, value in enumerate(values)]
    return Chart(name="c", kind="range", title="T", rows=rows, unit=unit, caption="C", axis="time")


def test_a_bench_is_told_as_floor_and_compute() -> None:
    report = build_bench(bench_dataset())
    table = report.table("tpm-commands")
    names = [column.name for column in table.columns]
    rows = {
        (str(r[0].value), str(r[1].value)): dict(zip(names, r, strict=True)) for r in table.rows
    }
    hmac = rows["PCR_Extend", "hmac"]
    assert hmac["median_ns"].value == pytest.approx(51 * MS)
    assert hmac["floor_ns"].value == pytest.approx(2 * 2.04 * MS)
    assert hmac["compute_ns"].value == pytest.approx(51 * MS - 2 * 2.04 * MS)
    assert hmac["client_ns"].value == pytest.approx(100e3)
    assert [row[0].value for row in report.table("tpm-modes").rows] == ["none", "hmac"]
    said = report.paragraphs("result")
    assert said[0].startswith("Transport floor: 2.04 ms, the median of ReadClock")
    assert "51.0 ms in a session of its own (×8.33)" in said[-1]


def test_the_picture_of_a_bench_draws_a_bar_from_floor_to_median() -> None:
    (chart,) = build_bench(bench_dataset()).charts()
    row = next(r for r in chart.rows if r["label"] == "PCR_Extend, hmac" and "low" in r)
    assert (row["low"], row["high"]) == (pytest.approx(4.08 * MS), pytest.approx(51 * MS))
    shown = texts(chart)
    assert "4.08 ms floor + 46.9 ms compute" in shown
    assert "PCR_Extend, hmac" in shown
    assert "floor of what it sends" in shown


def test_the_report_of_any_capture_has_the_section_of_a_bench() -> None:
    report = build_report(bench_dataset())
    assert report.sections[0].heading == "Commands of the TPM"
    assert report.table("tpm-commands").rows
    for name in FORMATS:
        assert "PCR_Extend" in render(report, format=name).replace("\\_", "_")


def test_a_comparison_draws_this_tpm_among_the_others() -> None:
    own = of_record(record_of(bench_dataset()), source="r.json")
    others = list(catalogue())
    report = build_comparison(own, place(own, others), others=others)
    (chart,) = report.charts()
    assert {row["series"] for row in chart.rows} == {"other TPMs", own.name}
    assert report.data is not None
    assert len(report.data["others"]) == len(others)
    assert "IFX SLB9999 9.9" in texts(chart)


def test_predictions_are_drawn_beside_what_was_measured() -> None:
    report = build_prediction([], known=known_cases())
    (chart,) = report.charts()
    assert {"predicted", "measured"} <= set(texts(chart))
    errors = {row[0].value: row[-1].text for row in report.table("known").rows}
    assert errors["HMAC + IDC"] == "-0.7 %"
    assert errors["no HMAC + IDC"] == "-6.7 %"


def test_decades_of_time_are_labelled_each_in_its_unit() -> None:
    assert {"10 µs", "1 ms", "1 s"} <= set(texts(range_chart(20e3, 3e6, 0.9e9)))


def test_a_narrow_range_has_a_plain_axis_with_its_unit() -> None:
    assert "time (ms)" in texts(range_chart(2e6, 3e6))
    assert "time (1)" in texts(range_chart(1.0, 1e4, unit="1"))


def test_labels_of_a_range_may_repeat_once_a_series() -> None:
    rows = chart_rows(range_chart(1.0, 2.0))
    assert [row["label"] for row in rows] == ["a", "a"]
