"""The chart of values with ranges, several series a label, on a linear or a decades' axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from excise.report.chart_axes import (
    EXACT,
    LEGEND_COLUMNS,
    SHAPES,
    axis_title,
    numbers,
    order,
    value_axis,
    value_scale,
)
from excise.report.model import Chart

if TYPE_CHECKING:
    import altair as alt

_HALVES: tuple[tuple[Literal["left", "right"], str], ...] = (("right", "true"), ("left", "false"))
_IN_UNITS = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, ',~r') + ' s' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',~r') + ' ms' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, ',~r') + ' µs' : "
    "format(datum.value, ',~r') + ' ns'"
)
"""Vega expression that prints nanoseconds in the unit that fits."""


def draw_range(chart: Chart) -> alt.LayerChart | alt.FacetChart:
    """Draw a dot for each value of a label, with its range, one colour and shape a series."""
    import altair as alt

    labels, names = order(chart.rows, "label"), order(chart.rows, "series")
    values = numbers(chart.rows, "value", "low", "high")
    scale = alt.Scale(**value_scale(values))
    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(names))]
    legend = alt.Legend(columns=alt.ExprRef(LEGEND_COLUMNS)) if len(names) > 1 else None
    tooltip = [
        alt.Tooltip("label:N", title="what"),
        alt.Tooltip("series:N", title="is"),
        alt.Tooltip("value:Q", title=axis_title(chart) or "value", format=EXACT),
        alt.Tooltip("text:N", title="says"),
    ]
    y = alt.Y("label:N", sort=labels, title=None)
    colour = alt.Color("series:N", scale=alt.Scale(domain=names), legend=legend)
    base = alt.Chart().transform_filter("isValid(datum.value)").encode(y=y, tooltip=tooltip)
    ranges = base.transform_filter("isValid(datum.low) && isValid(datum.high)").mark_rule(
        strokeWidth=4, opacity=0.55
    )
    dots = base.mark_point(size=70, filled=True, opacity=0.9).encode(
        x=alt.X("value:Q", scale=scale, axis=_axis(chart, values, scale)),
        color=colour,
        shape=alt.Shape("series:N", scale=alt.Scale(domain=names, range=shapes), legend=legend),
    )
    middle = math.sqrt(min(values) * max(values)) if scale.type == "log" else None
    middle = (min(values, default=0) + max(values, default=0)) / 2 if middle is None else middle
    words = [
        base.transform_filter(f"datum.text && (datum.value > {middle!r}) == {after}")
        .mark_text(style="value", align=side, dy=-10)
        .encode(x=alt.X("value:Q"), text="text:N")
        for side, after in _HALVES
    ]
    drawn = alt.layer(
        ranges.encode(x=alt.X("low:Q", scale=scale), x2="high:Q", color=colour), dots, *words
    )
    return drawn.properties(height=34 * max(len(labels), 1))


def _axis(chart: Chart, values: Sequence[float], scale: alt.Scale) -> alt.Axis:
    """Return the value axis: decades, each in its own unit, where times span many of them."""
    import altair as alt

    if chart.unit != "ns" or scale.type != "log":
        return value_axis(chart, values)
    first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    decades = [10.0**power for power in range(first, last + 1)]
    return alt.Axis(title=chart.axis, values=decades, labelExpr=_IN_UNITS, labelOverlap=True)
