"""The chart of parts stacked over the run number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from excise.report.chart_axes import EXACT, LEGEND_COLUMNS, axis_title, numbers, order, value_axis
from excise.report.model import Chart

if TYPE_CHECKING:
    import altair as alt


def draw_stack(chart: Chart) -> alt.LayerChart | alt.FacetChart:
    """Draw each part as a bar on those before it, over the run number.

    A run's bar stands on its number: it reaches half a run to both sides.
    """
    import altair as alt

    names = order(chart.rows, "part")
    tops = numbers(chart.rows, "high", "top")
    x = alt.X(
        "left:Q",
        scale=alt.Scale(zero=False, nice=False),
        axis=alt.Axis(title="run number", format=",d", grid=False, tickMinStep=1),
    )
    y = alt.Y(
        "low:Q",
        scale=alt.Scale(domain=[0, max(tops, default=1.0)], nice=True),
        axis=value_axis(chart, tops, upright=True),
    )
    pick = alt.selection_point(fields=["part"], bind="legend", name="pick")
    bars = (
        alt.Chart()
        .transform_calculate(left="datum.run - 0.5", right="datum.end - 0.5")
        .mark_rect()
        .encode(
            x=x,
            x2="right:Q",
            y=y,
            y2="high:Q",
            color=alt.Color(
                "part:N",
                scale=alt.Scale(domain=names),
                legend=alt.Legend(columns=alt.ExprRef(LEGEND_COLUMNS)),
            ),
            opacity=alt.condition(pick, alt.value(0.9), alt.value(0.15)),
            tooltip=[
                alt.Tooltip("part:N", title="step"),
                alt.Tooltip("run:Q", title="from run"),
                alt.Tooltip("value:Q", title=axis_title(chart), format=EXACT),
            ],
        )
        .add_params(pick)
    )
    return alt.layer(bars).properties(height=220)
