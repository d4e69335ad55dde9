"""Charts of traces: flame graph and icicle, heat map, histograms, as Vega-Lite."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from excise.report.chart_axes import EXACT, axis_title, order, print_unit, value_axis
from excise.report.model import Chart
from excise.report.plain import visible

if TYPE_CHECKING:
    import altair as alt

    _Drawn = alt.LayerChart | alt.FacetChart

_BOX_PX: Final = 20
_INK: Final = "#141a22"
"""Text on the boxes, whose colours are alike on light and dark pages."""
_ROLES: Final = {"security": "#E8762C", "other": "#9DB7CE"}
_CHARACTER_PX: Final = 6.4


def draw_flame(chart: Chart) -> _Drawn:
    """Draw boxes over their callers, as wide as they took."""
    return _tree(chart, callers_above=False)


def draw_icicle(chart: Chart) -> _Drawn:
    """Draw boxes under their callers, as wide as they took."""
    return _tree(chart, callers_above=True)


def _tree(chart: Chart, *, callers_above: bool) -> _Drawn:
    import altair as alt

    end = max((row["end"] for row in chart.rows), default=1.0) or 1.0
    depth = 1 + max((row["depth"] for row in chart.rows), default=0)
    y = alt.Y(
        "depth:Q",
        scale=alt.Scale(domain=[0, depth], reverse=callers_above, nice=False),
        axis=None,
    )
    x = alt.X(
        "start:Q",
        scale=alt.Scale(domain=[0, end], nice=False),
        axis=value_axis(chart, [end], grid=False),
    )
    colour = alt.Color(
        "role:N",
        scale=alt.Scale(domain=list(_ROLES), range=list(_ROLES.values())),
        legend=alt.Legend(
            labelExpr="datum.label == 'security' ? 'security function' : 'other function'"
        ),
    )
    tooltip = [
        alt.Tooltip("function:N"),
        alt.Tooltip("text:N", title="took"),
        alt.Tooltip("share:Q", format=".2%", title="share of all"),
        alt.Tooltip("calls:Q", format=",.0f"),
    ]
    base = alt.Chart().transform_calculate(above="datum.depth + 1")
    boxes = base.mark_rect(stroke="#ffffff", strokeWidth=0.6, cornerRadius=1).encode(
        x=x, x2="end:Q", y=y, y2="above:Q", color=colour, tooltip=tooltip
    )
    # As many letters as the box is wide: the width is that of the page.
    room = f"floor(width * (datum.end - datum.start) / {end!r} / {_CHARACTER_PX} - 1)"
    names = (
        base.transform_calculate(room=room)
        .transform_filter("datum.room >= 3")
        .transform_calculate(
            words="length(datum.function) <= datum.room ? datum.function : "
            "substring(datum.function, 0, datum.room - 1) + '…'",
            middle="(datum.start + datum.end) / 2",
            centre="datum.depth + 0.5",
        )
        .mark_text(fontSize=11, color=_INK, baseline="middle")
        .encode(x=alt.X("middle:Q"), y=alt.Y("centre:Q"), text="words:N", tooltip=tooltip)
    )
    return alt.layer(boxes, names).properties(height=_BOX_PX * depth)


def draw_heat(chart: Chart) -> _Drawn:
    """Draw a field for each hook and system call, darker where it took more."""
    import altair as alt

    hooks, tasks = order(chart.rows, "hook"), order(chart.rows, "task")
    values = [row["value"] for row in chart.rows if row["value"] > 0]
    low, high = min(values, default=1.0), max(values, default=1.0)
    factor, unit = print_unit(chart, [high])
    scale = alt.Scale(
        type="log" if high > 20 * low else "linear",
        scheme="oranges",
        domain=[low, high] if high > low else [0, high],
    )
    x = alt.X(
        "task:N", sort=tasks, title="system call", axis=alt.Axis(labelAngle=-40, orient="top")
    )
    y = alt.Y("hook:N", sort=hooks, title=None)
    tooltip = [
        alt.Tooltip("task:N", title="system call"),
        alt.Tooltip("hook:N"),
        alt.Tooltip("value:Q", format=EXACT, title=f"total ({visible(chart.unit)})"),
        alt.Tooltip("calls:Q", format=",.0f"),
        alt.Tooltip("text:N", title="mean"),
    ]
    colour = alt.Color(
        "value:Q",
        scale=scale,
        legend=alt.Legend(
            title=axis_title(chart, unit=unit),
            labelExpr=f"format(datum.value / {factor!r}, ',.2~g')",
            orient="bottom",
            gradientLength=240,
            labelOverlap="greedy",  # a logarithmic scale has more ticks than have room
            labelSeparation=8,
        ),
    )
    fields = (
        alt.Chart()
        .mark_rect(stroke="#ffffff", strokeWidth=1)
        .encode(x=x, y=y, color=colour, tooltip=tooltip)
    )
    dark = f"datum.value > {(low * high) ** 0.5 if high > 20 * low else (low + high) / 2!r}"
    words = [
        alt.Chart()
        .transform_filter(f"{test} && width / {max(1, len(tasks))} > 52")
        .mark_text(fontSize=10, color=ink)
        .encode(x=x, y=y, text="text:N", tooltip=tooltip)
        for test, ink in ((f"({dark})", "#ffffff"), (f"!({dark})", _INK))
    ]
    return alt.layer(fields, *words).properties(height=24 * max(1, len(hooks)))


def draw_histogram(chart: Chart) -> _Drawn:
    """Draw one histogram a hook, one under the other, on a common axis."""
    import altair as alt

    hooks = order(chart.rows, "hook")
    lows = [row["low"] for row in chart.rows]
    highs = [row["high"] for row in chart.rows]
    low, high = min(lows, default=1.0), max(highs, default=2.0)
    kind = {"type": "log"} if high > 8 * low else {"type": "linear", "zero": False}
    x = alt.X(
        "low:Q",
        scale=alt.Scale(**kind, domain=[low, high], nice=False),
        axis=value_axis(chart, [high]),
    )
    names = json.dumps(hooks)
    y = alt.Y(
        "base:Q",
        scale=alt.Scale(domain=[-len(hooks), 0], nice=False),
        axis=alt.Axis(
            title=None,
            values=[-place - 0.7 for place in range(len(hooks))],
            labelExpr=f"{names}[floor(-datum.value)]",
            grid=False,
            labelLimit=220,
        ),
    )
    bars = (
        alt.Chart()
        .transform_calculate(base="-datum.place - 1", top="-datum.place - 1 + datum.height")
        .mark_rect(color="#0072B2", stroke="#0072B2", strokeWidth=0.5)
        .encode(
            x=x,
            x2="high:Q",
            y=y,
            y2="top:Q",
            tooltip=[
                alt.Tooltip("hook:N"),
                alt.Tooltip("low:Q", format=EXACT, title=f"from ({visible(chart.unit)})"),
                alt.Tooltip("high:Q", format=EXACT, title="to"),
                alt.Tooltip("count:Q", format=",.0f", title="calls"),
                alt.Tooltip("share:Q", format=".2%"),
            ],
        )
    )
    lines = (
        alt.Chart()
        .transform_aggregate(n="count()", groupby=["place"])
        .transform_calculate(base="-datum.place - 1")
        .mark_rule(style="reference", strokeDash=[1, 0], opacity=0.4)
        .encode(y=alt.Y("base:Q"))
    )
    return alt.layer(lines, bars).properties(height=44 * max(1, len(hooks)))


DRAWERS: Final = {
    "flame": draw_flame,
    "icicle": draw_icicle,
    "heat": draw_heat,
    "histogram": draw_histogram,
}
