"""Charts of a report as Vega-Lite specifications, and as pictures; drawn by Altair and vl-convert.

Nothing is computed here but the extent of an axis; every value a chart prints is in its rows.
Colours are Okabe and Ito's, which people with colour-vision deficiency can tell apart
(Color Universal Design, 2008); shape, position or words always say the same as the colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from excise.report.chart_axes import (
    EXACT,
    LEGEND_COLUMNS,
    SHAPES,
    axis_title,
    numbers,
    order,
    print_value,
    value_axis,
    value_scale,
)
from excise.report.model import Chart
from excise.report.plain import plain_value, visible

if TYPE_CHECKING:
    import altair as alt

    _Drawn = alt.LayerChart | alt.FacetChart

PALETTE = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#8C6BB1",
    "#7F7F7F",
    "#A6761D",
    "#666600",
)
PALETTE_DARK = (
    "#56ABE6",
    "#F58442",
    "#35C79C",
    "#E6A0CA",
    "#F2BA3A",
    "#9AD6F7",
    "#BDA3E6",
    "#B5B5B5",
    "#D6AA63",
    "#BDBD45",
)
"""The same hues, lighter, for dark pages."""

_LIGHT = ("#1b2330", "#5a6472", "#e3e7ec", "#ffffff", "#b34700")
_DARK = ("#e6e9ee", "#a3abb8", "#333b47", "#14181e", "#ff8a5c")
"""Colours of text, quiet text, lines, paper and flags."""

_ROLES = {
    "total": "#7F7F7F",
    "child": "#0072B2",
    "probe": "#CC79A7",
    "remainder": "#E69F00",
    "above the total": "#D55E00",
}
_WIDTH_PX = 640
"""Width of a picture's plot."""


def theme(*, dark: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite config of all charts, for a light or a dark page."""
    ink, quiet, line, paper, alarm = _DARK if dark else _LIGHT
    return {
        "font": "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', Helvetica, sans-serif",
        "background": "transparent" if dark else paper,
        "aria": False,
        "view": {"stroke": None},
        "title": {"color": ink, "fontSize": 14, "fontWeight": 600, "anchor": "start", "offset": 12},
        "axis": {
            "labelColor": quiet,
            "titleColor": quiet,
            "titleFontWeight": 400,
            "titlePadding": 8,
            "labelFontSize": 11,
            "titleFontSize": 12,
            "gridColor": line,
            "domain": False,
            "ticks": False,
            "labelPadding": 6,
        },
        "axisY": {"labelLimit": 180, "titleAnchor": "end"},
        "axisYBand": {"labelColor": ink, "labelFontSize": 12, "grid": False},
        "legend": {
            "labelColor": ink,
            "labelFontSize": 12,
            "labelLimit": 200,
            "orient": "top",
            "symbolSize": 70,
            "title": None,
        },
        "range": {"category": list(PALETTE_DARK if dark else PALETTE)},
        "style": {
            "note": {"color": quiet, "fontSize": 11},
            "value": {"color": ink, "fontSize": 11},
            "flag": {"color": alarm, "fontSize": 11, "fontWeight": 600},
            "reference": {"color": quiet, "strokeWidth": 1, "strokeDash": [4, 3]},
            "margin": {"color": quiet, "opacity": 0.14},
            "median": {"color": paper, "stroke": ink, "strokeWidth": 1.8, "opacity": 1},
            "first": {"color": paper, "strokeWidth": 1.8, "opacity": 1},
        },
    }


def chart_spec(chart: Chart, *, on_page: bool = False) -> dict[str, Any]:
    """Return the Vega-Lite specification of a chart.

    Args:
        chart: What to draw.
        on_page: For a page, which gives the width, the heading, the theme and the data (as the
            named data set `rows`); otherwise all of them are in the specification.
    """
    import altair as alt

    drawn = _DRAWERS[chart.kind](chart)
    if on_page:
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        drawn = drawn.properties(autosize=fit, data=alt.NamedData(name="rows"))
        return dict(drawn.to_dict())
    data = alt.InlineData(values=chart_rows(chart))
    title = visible(chart.title)
    return drawn.properties(width=_WIDTH_PX, title=title, data=data).to_dict() | {"config": theme()}


def chart_rows(chart: Chart) -> list[dict[str, Any]]:
    """Return the chart's rows as plain values, names made visible, with the marks drawn from them.

    A waterfall's bar that ends right of the total gets the role `above the total`.
    """
    rows = [_shown(row) for row in chart.rows]
    seen: dict[str, int] = {}
    for row in rows:
        if "label" in row and chart.kind != "range":  # the axis has one place for each label
            label = row["label"]
            seen[label] = seen.get(label, 0) + 1
            row["label"] = label if seen[label] == 1 else f"{label} ({seen[label]})"
    if chart.kind == "waterfall":
        totals = [row["end"] for row in rows if row["role"] == "total"]
        for row in rows:
            over = bool(totals) and row["role"] == "child" and row["end"] > max(totals)
            if row.get("flag") or over:
                row["role"] = "above the total"
                row["flag"] = row.get("flag") or "above the total"
    if chart.kind == "interval":
        from excise.report.charts_interval import verdict_word

        for row in rows:
            row["verdict_word"] = verdict_word(str(row["verdict"]))
    return rows


def draw(chart: Chart, *, picture: Literal["png", "svg", "pdf"]) -> bytes:
    """Return the chart as a picture file: PNG at twice the screen's resolution, SVG or PDF."""
    import vl_convert

    spec = chart_spec(chart)
    if picture == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=2))
    if picture == "pdf":
        return bytes(vl_convert.vegalite_to_pdf(spec))
    return str(vl_convert.vegalite_to_svg(spec)).encode("utf-8")


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): visible(value) if isinstance(value, str) else plain_value(value)
        for key, value in row.items()
    }


def _slow_firsts(chart: Chart, values: Sequence[float]) -> bool:
    """Return whether a first run lies beyond the axis, which spans the others."""
    firsts = numbers([row for row in chart.rows if row["phase"] == "first"], "value")
    return bool(values and firsts) and max(firsts) > max(values)


def _colour(names: Sequence[str], **options: Any) -> alt.Color:
    import altair as alt

    return alt.Color("configuration:N", scale=alt.Scale(domain=list(names)), **options)


# --- distribution -----------------------------------------------------------------------------


def _draw_distribution(chart: Chart) -> _Drawn:
    """Draw a strip of runs for each configuration, its quartiles and median, first runs apart."""
    import altair as alt

    names = order(chart.rows, "configuration")
    later = [row for row in chart.rows if row["phase"] != "first"] or list(chart.rows)
    values = numbers(later, "value")
    scale = value_scale(values)
    if values:
        scale |= {"domain": [min(values), max(values)], "clamp": True}
    x = alt.X("value:Q", scale=alt.Scale(**scale), axis=value_axis(chart, values))
    y = alt.Y("configuration:N", sort=names, title=None)
    colour = _colour(names, legend=None)
    tooltip = _sample_tooltip(chart)
    runs = (
        alt.Chart()
        .transform_filter("isValid(datum.value) && datum.phase != 'first'")
        .transform_window(i="row_number()", groupby=["configuration"])
        .transform_calculate(place="(datum.i * 0.618034) % 1")
        .mark_circle(size=16, opacity=0.4)
        .encode(
            x=x,
            y=y,
            yOffset=alt.YOffset("place:Q", scale=alt.Scale(domain=[-0.35, 1.35])),
            color=colour,
            tooltip=tooltip,
        )
    )
    rest = alt.Chart().transform_filter("isValid(datum.value) && datum.phase == 'rest'")
    quartiles = rest.mark_rule(strokeWidth=5, opacity=0.85).encode(
        x=alt.X("q1(value):Q"), x2="q3(value):Q", y=y, color=colour
    )
    median = rest.mark_point(style="median", size=70, filled=True).encode(
        x=alt.X("median(value):Q"),
        y=y,
        tooltip=[
            alt.Tooltip("configuration:N"),
            alt.Tooltip("median(value):Q", title="median of the points", format=EXACT),
        ],
    )
    first = alt.Chart().transform_filter("isValid(datum.value) && datum.phase == 'first'")
    marks = first.mark_point(style="first", shape="triangle-right", size=80).encode(
        x=x, y=y, stroke=_colour_stroke(names), tooltip=tooltip
    )
    phases = {row["phase"] for row in chart.rows}
    layers = [runs, *([quartiles, median] if "rest" in phases else []), marks]
    if _slow_firsts(chart, values):
        beyond = first.transform_filter(f"datum.value > {max(values)!r}").transform_calculate(
            words="'first run ' + " + print_value(chart, values, "value")
        )
        layers.append(
            beyond.mark_text(style="note", align="right", dx=6, dy=-19).encode(
                x=x, y=y, text="words:N"
            )
        )
    return alt.layer(*layers).properties(height=52 * max(len(names), 1))


def _colour_stroke(names: Sequence[str]) -> alt.Stroke:
    import altair as alt

    return alt.Stroke("configuration:N", scale=alt.Scale(domain=list(names)), legend=None)


def _sample_tooltip(chart: Chart) -> list[alt.Tooltip]:
    import altair as alt

    run = []
    if any("run" in row for row in chart.rows):
        run = [alt.Tooltip("run:Q", title=visible(chart.run_axis), format=",d")]
    return [
        alt.Tooltip("configuration:N", title="configuration"),
        *run,
        alt.Tooltip("value:Q", title=axis_title(chart) or "value", format=EXACT),
        alt.Tooltip("phase:N", title="phase"),
    ]


# --- run order --------------------------------------------------------------------------------


def _draw_run_order(chart: Chart) -> _Drawn:
    """Draw each value against its run, so that drift, warm-up and jumps are seen."""
    import altair as alt

    names = order(chart.rows, "configuration")
    later = [row for row in chart.rows if row["phase"] != "first"] or list(chart.rows)
    values = numbers(later, "value")
    scale = value_scale(values)
    if values:
        scale |= {"domain": [min(values), max(values)], "clamp": True}
    pick = alt.selection_point(fields=["configuration"], bind="legend", name="pick")
    zoom = alt.selection_interval(
        bind="scales",
        encodings=["x"],
        name="zoom",
        zoom="wheel![event.ctrlKey]",
        translate="[pointerdown[event.shiftKey], window:pointerup] > window:pointermove!",
    )
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(names))]
    x = alt.X(
        "run:Q",
        scale=alt.Scale(zero=False, nice=False, padding=8),
        axis=alt.Axis(title=visible(chart.run_axis), format=",d", grid=False, tickMinStep=1),
    )
    y = alt.Y("value:Q", scale=alt.Scale(**scale), axis=value_axis(chart, values, upright=True))
    base = alt.Chart().transform_filter("isValid(datum.value)").encode(
        x=x,
        y=y,
        color=_colour(names, legend=alt.Legend(columns=alt.ExprRef(LEGEND_COLUMNS))),
        shape=alt.Shape(
            "configuration:N",
            scale=alt.Scale(domain=names, range=shapes),
            legend=alt.Legend(columns=alt.ExprRef(LEGEND_COLUMNS)),
        ),
        tooltip=_sample_tooltip(chart),
    )  # fmt: skip
    later_runs = (
        base.transform_filter("datum.phase != 'first'")
        .mark_point(size=22, filled=True)
        .encode(opacity=alt.condition(pick, alt.value(0.65), alt.value(0.06)))
        .add_params(pick, zoom)
    )
    first_runs = base.transform_filter("datum.phase == 'first'").mark_point(
        size=110, filled=False, strokeWidth=2
    )
    layers = [later_runs, first_runs]
    if _slow_firsts(chart, values):
        highest = print_value(chart, values, "highest")
        beyond = (
            alt.Chart()
            .transform_filter(
                f"isValid(datum.value) && datum.phase == 'first' && datum.value > {max(values)!r}"
            )
            .transform_aggregate(highest="max(value)", run="min(run)")
            .transform_calculate(words=f"'first runs, up to ' + {highest}")
        )
        layers.append(
            beyond.mark_text(style="note", align="left", dx=10, dy=1, baseline="top").encode(
                x=x, y=alt.value(0), text="words:N"
            )
        )
    return alt.layer(*layers).properties(height=260)


# --- waterfall --------------------------------------------------------------------------------


def _draw_waterfall(chart: Chart) -> _Drawn:
    """Draw the parts of a total one after the other, and what is above it in another colour."""
    import altair as alt

    labels = [row["label"] for row in chart_rows(chart)]
    ends = numbers(chart.rows, "start", "end")
    domain = [min([0.0, *ends]), max([*ends], default=1.0)]
    x = alt.X("start:Q", scale=alt.Scale(domain=domain, nice=True), axis=value_axis(chart, ends))
    y = alt.Y("label:N", sort=labels, title=None, axis=alt.Axis(offset=4))
    colour = alt.Color(
        "role:N",
        scale=alt.Scale(domain=list(_ROLES), range=list(_ROLES.values())),
        legend=None,
    )
    tooltip = [
        alt.Tooltip("label:N", title="part"),
        alt.Tooltip("role:N", title="is"),
        alt.Tooltip("text:N", title="size"),
        alt.Tooltip("flag:N", title="note"),
    ]
    bars = (
        alt.Chart()
        .mark_bar(cornerRadius=2, height=14, yOffset=8)
        .encode(x=x, x2="end:Q", y=y, color=colour, tooltip=tooltip)
    )
    words = (
        alt.Chart()
        .transform_calculate(
            left="min(datum.start, datum.end)",
            right="max(datum.start, datum.end)",
            side=f"(datum.start + datum.end) > {sum(domain)!r} ? 'right' : 'left'",
            words="join([datum.flag, datum.text], datum.flag && datum.text ? ' · ' : '')",
        )
        .encode(y=y, text="words:N")
    )
    texts = [
        words.transform_filter(f"datum.side == '{side}' && {test}")
        .mark_text(style=style, align=side, dy=-8)
        .encode(x=alt.X(f"{side}:Q"))
        for side in ("left", "right")
        for style, test in (("value", "!datum.flag"), ("flag", "datum.flag"))
    ]
    total = (
        alt.Chart()
        .transform_filter("datum.role == 'total'")
        .mark_rule(style="reference")
        .encode(x=alt.X("end:Q"))
    )
    return alt.layer(total, bars, *texts).properties(height=42 * max(len(labels), 1))


# --- in modules of their own ------------------------------------------------------------------


def _draw_interval(chart: Chart) -> _Drawn:
    from excise.report.charts_interval import draw_interval

    return draw_interval(chart)


def _draw_range(chart: Chart) -> _Drawn:
    from excise.report.charts_range import draw_range

    return draw_range(chart)


def _draw_stack(chart: Chart) -> _Drawn:
    from excise.report.charts_stack import draw_stack

    return draw_stack(chart)


def _draw_trace(chart: Chart) -> _Drawn:
    from excise.report.charts_trace import DRAWERS

    return DRAWERS[chart.kind](chart)


_DRAWERS = {
    "range": _draw_range,
    "stack": _draw_stack,
    "distribution": _draw_distribution,
    "run_order": _draw_run_order,
    "waterfall": _draw_waterfall,
    "interval": _draw_interval,
    **dict.fromkeys(("flame", "icicle", "heat", "histogram"), _draw_trace),
}
