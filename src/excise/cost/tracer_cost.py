"""What the tracer itself puts into every duration, measured on an empty function in the same run.

The probe reads `/dev/null` with `vfs_read` traced alone, and again with the function in it traced
too, which returns 0 at once (`read_null`). Of the two durations of `vfs_read`, the difference is
what one more traced call adds to the function that it is in; the empty function's own duration is
what a traced call finds in itself.

Whether that holds for calls that are deeper, and beside each other, it sees from the whole system
call: traced alone, and with all that it calls, four deep. How far the two are apart, with how far
durations of the same work are apart, is the error of the calibration. Where the buffer's parts are
small, a call now and then begins a new one (231 instructions on Linux 6.12, in one of 49 calls with
parts of 4 KiB): medians are without it, sums of calls are not, and the error says that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from excise.cost.series import FloatArray
    from excise.formats.function_graph import FunctionGraph

EMPTY: Final = "read_null"
OUTER: Final = "vfs_read"
NESTED_MARK: Final = b"excise: calibration nested"
"""What stands between the first two parts of a calibration."""
_ROOT_MARK: Final = b"excise: calibration root"
_TREE_MARK: Final = b"excise: calibration tree"

_MOST_CALLS: Final = 1_000_000
_DEEPER_PARTS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TracerCost:
    """The tracer's cost in one run, in the unit of its durations.

    Attributes:
        floor: Median duration of an empty function: what is in every duration.
        floor_p05: 5th percentile of it.
        floor_p95: 95th percentile: a function that is shorter is below the noise floor.
        nested: What one traced call adds to the function that calls it, the call itself among it.
        calls: Calls of the empty function that were measured.
        floor_error: By how much the mean of `floor` over undisturbed calls may be off.
        nested_error: By how much `nested` may be off, on average over calls at any depth.
        deepest: How deep the calls were by which `nested` was tested; 1 where it was not.
    """

    floor: float
    floor_p05: float
    floor_p95: float
    nested: float
    calls: int
    floor_error: float = 0.0
    nested_error: float = 0.0
    deepest: int = 1


def calibrated(text: bytes, *, source: str, factor: float = 1.0) -> TracerCost | None:
    """Return the tracer's cost, or None where nothing was calibrated or no durations are given.

    Args:
        text: The calibration's text: `vfs_read` alone, a mark, then with `read_null` in it; then,
            where it was tested deeper, the outermost function alone and with all inside it.
        source: Name for errors.
        factor: What durations are multiplied with.

    Raises:
        FormatError: If a part holds no line that can be read.
    """
    from excise.formats.function_graph import read_function_graph

    if NESTED_MARK not in text:
        return None
    alone, nested, *deeper = (
        read_function_graph(part, name=source, calls=_MOST_CALLS) for part in _parts(text)
    )
    empty = factor * _durations_of(nested, EMPTY)
    outer = factor * _durations_of(alone, OUTER)
    outer_nested = factor * _durations_of(nested, OUTER)
    if not (empty.size and outer.size and outer_nested.size):
        return None
    found = tracer_cost(empty, alone=outer, nested=outer_nested)
    if len(deeper) < _DEEPER_PARTS:
        return found
    return _tested_deeper(found, alone=deeper[0], tree=deeper[1], factor=factor)


def _parts(text: bytes) -> list[bytes]:
    """Return the parts of a calibration; each but the first begins with the line of its mark."""
    places = (text.find(mark) for mark in (NESTED_MARK, _ROOT_MARK, _TREE_MARK))
    cuts = [0, *(text.rfind(b"\n", 0, at) + 1 for at in places if at >= 0)]
    return [text[start:end] for start, end in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def tracer_cost(empty: FloatArray, *, alone: FloatArray, nested: FloatArray) -> TracerCost:
    """Return the tracer's cost from single durations, at least one of each.

    Args:
        empty: Of the empty function, float64, shape (n,).
        alone: Of the outer function without a traced call in it.
        nested: Of the outer function with the empty one traced in it.
    """
    low, middle, high = np.quantile(empty, (0.05, 0.5, 0.95))
    more = float(np.median(nested) - np.median(alone))
    return TracerCost(
        floor=float(middle),
        floor_p05=float(low),
        floor_p95=float(high),
        nested=more,
        calls=int(empty.size),
        floor_error=max(_apart(empty), abs(float(np.mean(empty) - middle))),
        nested_error=max(
            _apart(alone), _apart(nested), abs(float(np.mean(nested) - np.mean(alone)) - more)
        ),
    )


def _apart(durations: FloatArray) -> float:
    """Return half of what lies between most durations of the same work."""
    low, high = np.quantile(durations, (0.05, 0.95))
    return float(high - low) / 2


def _tested_deeper(
    found: TracerCost, *, alone: FunctionGraph, tree: FunctionGraph, factor: float
) -> TracerCost:
    """Return the cost with its error, as the outermost function's calls at any depth tell it."""
    # Writes to tracefs, which begin and end a part, call some of these functions too.
    tops: list[str] = []
    for parent, function in tree.calls.select("parent", "function").iter_rows():
        tops.append(function if parent is None else tops[parent])
    root = max(set(tops), key=tops.count, default="")
    without, within = (factor * _durations_of(graph, root) for graph in (alone, tree))
    roots = tree.calls.filter(function=root).height
    inside = tops.count(root) / roots - 1 if roots else 0.0
    if not (without.size and within.size and inside):
        return found
    apart = [
        abs(float(middle(within) - middle(without)) / inside - found.nested)
        for middle in (np.median, np.mean)
    ]
    return replace(
        found,
        nested_error=max(found.nested_error, *apart),
        deepest=int(tree.calls.get_column("depth").max()),  # type: ignore[arg-type]
    )


def _durations_of(graph: FunctionGraph, function: str) -> FloatArray:
    """Return the durations of a function's undisturbed calls, else the middles of a histogram."""
    import polars as pl

    calls = graph.calls.filter((pl.col("function") == function) & (pl.col("seen") == "whole"))
    quiet = calls.filter((pl.col("interrupt_ns") == 0) & ~pl.col("switched"))
    found = (
        (quiet if quiet.height else calls)
        .drop_nulls("duration_ns")
        .get_column("duration_ns")
        .to_numpy()
    )
    if found.size:
        return found.astype(np.float64)
    buckets = graph.buckets("function").filter(pl.col("function") == function)
    summed = graph.by("function").filter(pl.col("function") == function)
    if not buckets.height or not summed.height:
        return np.zeros(0)
    middles = (buckets["from_ns"].to_numpy() + buckets["to_ns"].to_numpy() - 1) / 2
    low, high = summed["min_ns"][0], summed["max_ns"][0]
    return np.repeat(np.clip(middles, low, high), buckets["count"].to_numpy()).astype(np.float64)
