"""What the charts draw, read from their specifications and from the pictures."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from typing import Any

import pytest

from excise.errors import UsageError
from excise.report.charts import PALETTE, chart_rows, chart_spec, draw, theme
from excise.report.model import Chart, Report
from excise.report.write import PICTURES, export_charts

pytest_plugins = ("report_fixtures",)


def chart_of(kind: Any, rows: list[dict[str, Any]]) -> Chart:
    return Chart(name="c", kind=kind, title="T", rows=rows, unit="ns", axis="time", caption="C")


def samples(*values: float, phase: str = "rest") -> list[dict[str, Any]]:
    return [
        {"run": i, "configuration": "none", "value": value, "phase": phase}
        for i, value in enumerate(values, start=1)
    ]


def value_scale(spec: dict[str, Any], channel: str) -> dict[str, Any]:
    found = [
        layer["encoding"][channel]["scale"]
        for layer in spec["layer"]
        if layer["encoding"].get(channel, {}).get("field") == "value"
        and "scale" in layer["encoding"][channel]
    ]
    assert found
    return dict(found[0])


def svg_texts(chart: Chart) -> list[str]:
    svg = draw(chart, picture="svg").decode("utf-8")
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


@pytest.mark.parametrize("kind", ["distribution", "run_order", "waterfall", "interval"])
def test_every_chart_names_its_axis_with_its_unit(example: Report, kind: str) -> None:
    charts = [chart for chart in example.charts() if chart.kind == kind]
    assert charts
    for chart in charts:
        assert f"{chart.axis} ({chart.unit})" in svg_texts(chart)
        assert chart.title in svg_texts(chart)


def test_the_axis_of_runs_says_what_is_counted() -> None:
    chart = chart_of("run_order", samples(5.0, 6.0))
    assert "run number" in svg_texts(chart)
    texts = svg_texts(dataclasses.replace(chart, run_axis="entries of the list"))
    assert "entries of the list" in texts
    assert "run number" not in texts


def test_an_axis_is_logarithmic_above_a_range_of_twenty() -> None:
    linear = chart_spec(chart_of("distribution", samples(1.0, 2.0, 20.0)))
    wide = chart_spec(chart_of("distribution", samples(1.0, 2.0, 20.1)))
    with_zero = chart_spec(chart_of("run_order", samples(0.0, 2.0, 2000.0)))
    assert value_scale(linear, "x")["type"] == "linear"
    assert value_scale(wide, "x")["type"] == "log"
    assert value_scale(with_zero, "y")["type"] == "linear"


@pytest.mark.parametrize(("kind", "channel"), [("distribution", "x"), ("run_order", "y")])
def test_a_slow_first_run_does_not_squeeze_the_others(kind: str, channel: str) -> None:
    rows = samples(6700.0, phase="first") + samples(1000.0, 1010.0, 1020.0)
    chart = chart_of(kind, rows)
    scale = value_scale(chart_spec(chart), channel)
    assert scale["domain"] == [1000.0, 1020.0]
    assert scale["clamp"] is True
    assert [text for text in svg_texts(chart) if "first run" in text and "6,700" in text]


@pytest.mark.parametrize(
    ("value", "unit"), [(9_000.0, "ns"), (12_000.0, "µs"), (3e6, "ms"), (4e9, "s")]
)
def test_an_axis_of_nanoseconds_prints_a_unit_of_its_size(value: float, unit: str) -> None:
    rows = [*samples(9 * value, phase="first"), *samples(value, value * 0.9)]
    texts = svg_texts(chart_of("distribution", rows))
    assert f"time ({unit})" in texts
    note = next(text for text in texts if text.startswith("first run"))
    scale = {"ns": 1.0, "µs": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert note == f"first run {9 * value / scale:,.0f} {unit}"


def test_a_first_run_among_the_others_gets_no_note() -> None:
    rows = samples(1005.0, phase="first") + samples(1000.0, 1010.0)
    assert not [text for text in svg_texts(chart_of("distribution", rows)) if "first run" in text]


def test_first_runs_alone_are_still_drawn() -> None:
    spec = chart_spec(chart_of("distribution", samples(5.0, 6.0, phase="first")))
    assert value_scale(spec, "x")["domain"] == [5.0, 6.0]


def test_missing_values_are_null_and_not_in_the_extent() -> None:
    chart = chart_of("run_order", samples(5.0, math.nan, 6.0))
    assert [row["value"] for row in chart_rows(chart)] == [5.0, None, 6.0]
    assert value_scale(chart_spec(chart), "y")["domain"] == [5.0, 6.0]


def parts(*ends: float) -> list[dict[str, Any]]:
    rows = [{"label": "all", "start": 0.0, "end": 100.0, "role": "total", "text": "100 ns"}]
    start = 0.0
    for i, end in enumerate(ends):
        text = f"{end - start:.0f} ns"
        rows.append({"label": f"p{i}", "start": start, "end": end, "role": "child", "text": text})
        start = end
    return rows


def test_a_child_that_ends_above_the_total_is_flagged_in_colour_and_words() -> None:
    chart = chart_of("waterfall", parts(60.0, 115.0))
    roles = [(row["role"], row.get("flag")) for row in chart_rows(chart)]
    assert roles == [("total", None), ("child", None), ("above the total", "above the total")]
    assert "above the total · 55 ns" in svg_texts(chart)
    assert "#D55E00" in draw(chart, picture="svg").decode().upper()


def test_children_within_the_total_are_not_flagged() -> None:
    chart = chart_of("waterfall", parts(60.0, 100.0))
    assert [row["role"] for row in chart_rows(chart)] == ["total", "child", "child"]
    assert "#D55E00" not in draw(chart, picture="svg").decode().upper()


def test_parts_of_one_name_keep_a_place_each() -> None:
    rows = parts(30.0, 50.0)
    rows[2]["label"] = "p0"
    chart = chart_of("waterfall", rows)
    assert [row["label"] for row in chart_rows(chart)] == ["all", "p0", "p0 (2)"]
    assert {"p0", "p0 (2)", "30 ns", "20 ns"} <= set(svg_texts(chart))


def test_an_interval_chart_has_the_line_of_no_change_the_margin_and_the_verdicts() -> None:
    rows = [
        {"label": v, "ratio": r, "low": r - 0.01, "high": r + 0.01, "verdict": v,
         "margin_low": 0.98, "margin_high": 1.02}
        for v, r in [("costs", 1.2), ("inconclusive, run 40 more", 1.0), ("saves", 0.9)]
    ]  # fmt: skip
    chart = chart_of("interval", rows)
    assert [row["verdict_word"] for row in chart_rows(chart)] == ["costs", "inconclusive", "saves"]
    assert {"costs", "inconclusive, run 40 more", "saves"} <= set(svg_texts(chart))
    marks = [layer["mark"] for layer in chart_spec(chart)["layer"]]
    assert {"style": "margin", "type": "rect"} in marks
    assert {"style": "reference", "type": "rule"} in marks


def test_one_very_large_ratio_leaves_the_small_ones_apart() -> None:
    ratios = [0.98, 1.0, 1.01, 1.03, 1.1, 60.0]
    rows = [
        {"label": f"stat · {r}", "ratio": r, "low": r, "high": r, "verdict": "costs",
         "margin_low": 0.99, "margin_high": 1.01}
        for r in ratios
    ]  # fmt: skip
    svg = draw(chart_of("interval", rows), picture="svg").decode()
    dots = re.findall(r'<path transform="translate\(([\d.]+),[^>]*fill="#D55E00"', svg)
    places = [float(dot) for dot in dots]
    assert len(places) == len(ratios)
    assert min(after - before for before, after in itertools.pairwise(places)) > 40
    assert {"0.98", "1", "1.1", "10"} <= set(svg_texts(chart_of("interval", rows)))


def test_a_long_label_has_its_configuration_in_a_line_of_its_own() -> None:
    row = {"label": "openssl rand -hex 8, 3.5.9 · FIPS on load", "ratio": 1.5, "verdict": "costs"}
    svg = draw(chart_of("interval", [row]), picture="svg").decode()
    lines = re.findall(r"<tspan[^>]*>([^<]*)</tspan>", svg)
    assert {"openssl rand -hex 8, 3.5.9", "FIPS on load"} <= set(lines)


def test_an_unknown_verdict_is_drawn_as_not_comparable() -> None:
    row = {"label": "x", "ratio": 1.0, "low": 0.9, "high": 1.1, "verdict": "odd"}
    assert chart_rows(chart_of("interval", [row]))[0]["verdict_word"] == "not"


def test_names_of_captures_cannot_steer_a_chart(hostile: Report) -> None:
    for chart in hostile.charts():
        raw = json.dumps(chart_spec(chart), ensure_ascii=False)
        assert "\x1b" not in raw
        assert "\u202e" not in raw
        assert draw(chart, picture="svg").startswith(b"<svg")


def test_colours_of_configurations_differ_and_dark_pages_have_their_own() -> None:
    light, dark = theme(), theme(dark=True)
    assert len(set(PALETTE)) == len(PALETTE) >= 10
    assert light["range"]["category"] == list(PALETTE)
    assert not set(light["range"]["category"]) & set(dark["range"]["category"])
    assert light["style"].keys() == dark["style"].keys()


def test_every_chart_is_exported_in_every_format(example: Report, tmp_path: Any) -> None:
    written = export_charts(example, tmp_path / "new" / "charts", formats=PICTURES)
    assert len(written) == len(example.charts()) * 3
    starts = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<svg", ".pdf": b"%PDF-"}
    for path in written:
        assert path.read_bytes().startswith(starts[path.suffix])
    assert sorted(path.name for path in (tmp_path / "new" / "charts").iterdir()) == sorted(
        path.name for path in written
    )


def test_an_unknown_picture_format_is_refused_before_anything_is_made(
    example: Report, tmp_path: Any
) -> None:
    with pytest.raises(UsageError, match=r"unknown picture format 'gif'.*png, svg, pdf"):
        export_charts(example, tmp_path / "charts", formats=["svg", "gif"])
    assert not (tmp_path / "charts").exists()


def test_an_empty_chart_draws_nothing_and_does_not_fail(example: Report) -> None:
    for chart in example.charts():
        empty = dataclasses.replace(chart, rows=[])
        assert draw(empty, picture="svg").startswith(b"<svg")
