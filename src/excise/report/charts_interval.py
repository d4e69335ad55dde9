"""The chart of ratios with their intervals: all of them readable, also where one is very large."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from excise.report.chart_axes import numbers, value_axis, value_scale
from excise.report.model import Chart

if TYPE_CHECKING:
    import altair as alt

_VERDICTS: Final = {
    "costs": ("#D55E00", "triangle-right"),
    "saves": ("#0072B2", "triangle-left"),
    "equivalent": ("#009E73", "circle"),
    "inconclusive": ("#7F7F7F", "diamond"),
    "published": ("#7F7F7F", "circle"),
    "not": ("#CC79A7", "cross"),
}
"""Colour and shape by the first word of the verdict ("not comparable")."""

_SIDES: Final[tuple[tuple[Literal["left", "right"], str], ...]] = (
    ("left", "low"),
    ("right", "high"),
)
_FAR: Final = 20
"""A change this many times the median change squashes the others on any plain axis."""
_LEAST_STEP: Final = 0.01
"""Change about which an axis with far values is linear, where no margin says it."""
_TICKS: Final = (
    *(0.001, 0.01, 0.1, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
    *(1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0, 10.0, 100.0, 1e3, 1e4),
)
_CUT: Final = "lastindexof(datum.label, ' · ')"
_IN_TWO: Final = f"length(datum.label) > 26 && {_CUT} > 0"
_LABEL: Final = (
    f"{_IN_TWO} ? [slice(datum.label, 0, {_CUT}), slice(datum.label, {_CUT} + 3)] : datum.label"
)
"""Vega expression: a long label in two lines, as its end, the configuration, tells rows apart."""


def verdict_word(verdict: str) -> str:
    """Return the word that a verdict's colour and shape go by."""
    word = re.match(r"[a-z]*", verdict)
    return word[0] if word and word[0] in _VERDICTS else "not"


def draw_interval(chart: Chart) -> alt.LayerChart | alt.FacetChart:
    """Draw each ratio as a dot with its interval, the line of no change and the margin."""
    import altair as alt

    scale, axis, origin, middle = _scale(chart)
    x = alt.X("at_ratio:Q", scale=alt.Scale(**scale), axis=axis)
    raised = {"condition": {"test": _IN_TWO, "value": -6}, "value": 0}
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(labelExpr=_LABEL, labelOffset=raised))
    words = list(_VERDICTS)
    colour = alt.Color(
        "verdict_word:N",
        scale=alt.Scale(domain=words, range=[_VERDICTS[word][0] for word in words]),
        legend=None,
    )
    tooltip = [
        alt.Tooltip("label:N", title="what"),
        alt.Tooltip("ratio:Q", format=".4f"),
        alt.Tooltip("low:Q", format=".4f"),
        alt.Tooltip("high:Q", format=".4f"),
        alt.Tooltip("verdict:N"),
    ]
    band = (
        alt.Chart()
        .transform_filter("isValid(datum.margin_low) && isValid(datum.margin_high)")
        .transform_aggregate(low="min(margin_low)", high="max(margin_high)")
        .transform_calculate(from_=f"datum.low - {origin}", to=f"datum.high - {origin}")
        .mark_rect(style="margin")
        .encode(x=alt.X("from_:Q"), x2="to:Q")
    )
    one = (
        alt.Chart()
        .transform_aggregate(n="count()")
        .mark_rule(style="reference")
        .encode(x=alt.datum(1 - origin))
    )
    base = (
        alt.Chart()
        .transform_filter("isValid(datum.ratio)")
        .transform_calculate(
            at_ratio=f"datum.ratio - {origin}",
            at_low=f"isValid(datum.low) ? datum.low - {origin} : datum.ratio - {origin}",
            at_high=f"isValid(datum.high) ? datum.high - {origin} : datum.ratio - {origin}",
        )
        .encode(y=y, tooltip=tooltip)
    )
    whisker = base.mark_rule(strokeWidth=2.5, yOffset=4).encode(
        x=alt.X("at_low:Q"), x2="at_high:Q", color=colour
    )
    dot = base.mark_point(size=70, filled=True, opacity=1, yOffset=4).encode(
        x=x,
        color=colour,
        shape=alt.Shape(
            "verdict_word:N",
            scale=alt.Scale(domain=words, range=[_VERDICTS[word][1] for word in words]),
            legend=None,
        ),
    )
    verdicts = [  # above the interval, from its outer end inwards, so that there is room
        base.transform_calculate(side=f"datum.ratio > {middle!r} ? 'right' : 'left'")
        .transform_filter(f"datum.side == '{side}'")
        .mark_text(style="value", align=side, dy=-9, fontSize=10)
        .encode(x=alt.X(f"at_{end}:Q"), text="verdict:N")
        for side, end in _SIDES
    ]
    return alt.layer(band, one, whisker, dot, *verdicts).properties(
        height=32 * max(len(chart.rows), 1)
    )


def _scale(chart: Chart) -> tuple[dict[str, Any], alt.Axis, int, float]:
    """Return the scale, its axis, what is taken off each ratio for it, and the ratio in its middle.

    Where one change is far larger than the others, the axis is linear about no change and
    logarithmic away from it, to both sides (Webber 2013, doi:10.1088/0957-0233/24/2/027001): 1 %
    and a factor of 100 are both seen.
    """
    import altair as alt

    values = [*numbers(chart.rows, "ratio", "low", "high", "margin_low", "margin_high"), 1.0]
    low, high = min(values), max(values)
    if _has_far_values(chart.rows):
        step = max([_LEAST_STEP, *(high - 1 for high in numbers(chart.rows, "margin_high"))])
        first, last = (_place(value - 1, step) for value in (low, high))
        edge = 0.03 * (last - first)
        domain = [_change(first - edge, step), _change(last + edge, step)]
        axis = alt.Axis(
            title=f"{chart.axis}, logarithmic away from 1",
            values=[tick - 1 for tick in _TICKS if domain[0] <= tick - 1 <= domain[1]],
            labelExpr="format(datum.value + 1, ',.4~r')",
            labelOverlap="greedy",
        )
        scale = {"type": "symlog", "constant": step, "domain": domain, "nice": False}
        return scale, axis, 1, 1 + _change((first + last) / 2, step)
    scale = value_scale(values)
    if scale["type"] == "log":
        scale |= {"domain": [low / 1.1, high * 1.1], "nice": False}
        return scale, value_axis(chart, values), 0, math.sqrt(low * high)
    edge = 0.05 * (high - low or 0.02)
    scale |= {"domain": [low - edge, high + edge], "nice": False}
    return scale, value_axis(chart, values), 0, (low + high) / 2


def _place(change: float, step: float) -> float:
    """Return where a change stands on a symmetric logarithmic axis, as d3 has it."""
    return math.copysign(math.log1p(abs(change) / step), change)


def _change(place: float, step: float) -> float:
    """Return the change that stands at a place: `_place` the other way round."""
    return math.copysign(step * math.expm1(abs(place)), place)


def _has_far_values(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether a few changes are so large that most others could not be told apart."""
    changes = [abs(ratio - 1) for ratio in numbers(rows, "ratio")]
    if not changes or max(changes) < 0.5:
        return False
    return max(changes) > _FAR * max(statistics.median(changes), _LEAST_STEP)
