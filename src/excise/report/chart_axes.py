"""What the charts of a report share: the axis of values, its unit, and names in their order."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from excise.report.model import Chart
from excise.report.plain import plain_value, visible

if TYPE_CHECKING:
    import altair as alt

SHAPES = ("circle", "square", "cross", "diamond", "triangle-up", "triangle-down")

_LOG_RANGE = 20
"""An axis is logarithmic where its largest value is more than this many times its smallest."""

LEGEND_COLUMNS = "max(1, floor(width / 170))"
"""Vega expression: entries of a legend in one line."""

EXACT = ",.6~r"
"""d3 format of values in tooltips: six significant digits, no exponent."""

_AXIS = ",~f"
"""d3 format of axis labels: thousands apart, as many decimals as the steps need."""

_DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"))
"""Nanoseconds in each unit that an axis of nanoseconds may print."""


def axis_title(chart: Chart, *, unit: str | None = None) -> str:
    """Return the title of the value axis: what it shows, and its unit."""
    shown = visible(chart.unit if unit is None else unit)
    axis = visible(chart.axis)
    return f"{axis} ({shown})" if axis and shown else axis or shown


def print_unit(chart: Chart, values: Sequence[float]) -> tuple[float, str]:
    """Return how many of the chart's units make the one that its axis prints, and that one."""
    largest = max(map(abs, values), default=0.0)
    if chart.unit != "ns" or largest < 10_000:
        return 1.0, chart.unit
    return next(pair for pair in _DURATIONS if largest >= pair[0] or pair[1] == "µs")


def value_axis(
    chart: Chart, values: Sequence[float], *, upright: bool = False, **options: Any
) -> alt.Axis:
    """Return the axis of the values, with about one label every 90 pixels (45 if upright)."""
    import altair as alt

    factor, unit = print_unit(chart, values)
    return alt.Axis(
        title=axis_title(chart, unit=unit),
        labelExpr=f"format(datum.value / {factor!r}, '{_AXIS}')",
        tickCount=alt.ExprRef("ceil(height / 45)" if upright else "ceil(width / 90)"),
        labelOverlap=True,
        **options,
    )


def print_value(chart: Chart, values: Sequence[float], field: str) -> str:
    """Return the Vega expression that prints a field in the axis's unit."""
    factor, unit = print_unit(chart, values)
    return f"format(datum.{field} / {factor!r}, ',.4~r') + {json.dumps(' ' + visible(unit))}"


def numbers(rows: Sequence[Mapping[str, Any]], *keys: str) -> list[float]:
    """Return the numbers that rows have under some keys; what is no number is left out."""
    found = (plain_value(row.get(key)) for row in rows for key in keys)
    return [value for value in found if isinstance(value, int | float)]


def value_scale(values: Sequence[float]) -> dict[str, Any]:
    """Return the scale of a value axis: logarithmic for a wide range, never forced to zero."""
    if not values or min(values) <= 0 or max(values) <= _LOG_RANGE * min(values):
        return {"type": "linear", "zero": False, "nice": True}
    return {"type": "log", "nice": True}


def order(rows: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Return the names under a key, made visible, in the order they first appear."""
    return list(dict.fromkeys(visible(str(row[key])) for row in rows))
