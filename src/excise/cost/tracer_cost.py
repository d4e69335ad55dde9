"""What the tracer itself puts into every duration, measured on an empty function in the same run.

The probe reads `/dev/null` with `vfs_read` traced alone, and again with the function in it traced
too, which returns 0 at once (`read_null`). Of the two durations of `vfs_read`, the difference is
what one more traced call adds to the function that it is in; the empty function's own duration is
what a traced call finds in itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from excise.cost.series import FloatArray
    from excise.formats.function_graph import FunctionGraph

EMPTY: Final = "read_null"
OUTER: Final = "vfs_read"
NESTED_MARK: Final = b"excise: calibration nested"
"""What stands between the two parts of a calibration."""

_MOST_CALLS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerCost:
    """The tracer's cost in one run, in the unit of its durations.

    Attributes:
        floor: Median duration of an empty function: what is in every duration.
        floor_p05: 5th percentile of it.
        floor_p95: 95th percentile: a function that is shorter is below the noise floor.
        nested: What one traced call adds to the function that calls it, the call itself among it.
        calls: Calls of the empty function that were measured.
    """

    floor: float
    floor_p05: float
    floor_p95: float
    nested: float
    calls: int


def calibrated(text: bytes, *, source: str, factor: float = 1.0) -> TracerCost | None:
    """Return the tracer's cost, or None where nothing was calibrated or no durations are given.

    Args:
        text: The calibration's text: `vfs_read` alone, a mark, then with `read_null` in it.
        source: Name for errors.
        factor: What durations are multiplied with.

    Raises:
        FormatError: If a part holds no line that can be read.
    """
    from excise.formats.function_graph import read_function_graph

    first, mark, second = text.partition(NESTED_MARK)
    if not mark:
        return None
    cut = first.rfind(b"\n") + 1
    parts = (first[:cut], first[cut:] + mark + second)
    alone, nested = (read_function_graph(part, name=source, calls=_MOST_CALLS) for part in parts)
    empty = factor * _durations_of(nested, EMPTY)
    outer = factor * _durations_of(alone, OUTER)
    outer_nested = factor * _durations_of(nested, OUTER)
    if not (empty.size and outer.size and outer_nested.size):
        return None
    return tracer_cost(empty, alone=outer, nested=outer_nested)


def tracer_cost(empty: FloatArray, *, alone: FloatArray, nested: FloatArray) -> TracerCost:
    """Return the tracer's cost from single durations, at least one of each.

    Args:
        empty: Of the empty function, float64, shape (n,).
        alone: Of the outer function without a traced call in it.
        nested: Of the outer function with the empty one traced in it.
    """
    low, middle, high = np.quantile(empty, (0.05, 0.5, 0.95))
    return TracerCost(
        floor=float(middle),
        floor_p05=float(low),
        floor_p95=float(high),
        nested=float(np.median(nested) - np.median(alone)),
        calls=int(empty.size),
    )


def _durations_of(graph: FunctionGraph, function: str) -> FloatArray:
    """Return the durations of a function's calls: single ones, else the middles of a histogram."""
    import polars as pl

    calls = graph.calls.filter((pl.col("function") == function) & (pl.col("seen") == "whole"))
    found = calls.drop_nulls("duration_ns").get_column("duration_ns").to_numpy()
    if found.size:
        return found.astype(np.float64)
    buckets = graph.buckets("function").filter(pl.col("function") == function)
    summed = graph.by("function").filter(pl.col("function") == function)
    if not buckets.height or not summed.height:
        return np.zeros(0)
    middles = (buckets["from_ns"].to_numpy() + buckets["to_ns"].to_numpy() - 1) / 2
    low, high = summed["min_ns"][0], summed["max_ns"][0]
    return np.repeat(np.clip(middles, low, high), buckets["count"].to_numpy()).astype(np.float64)
