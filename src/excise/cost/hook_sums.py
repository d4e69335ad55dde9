"""What bpftrace summed up in the kernel: hooks by system call, the calibration, what is missing.

The maps are those of the script that the probe writes beside the trace: `@time`, `@least`, `@most`
and `@spread` by a function's number and a system call's number plus one; see `docs/trace.md`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from excise.capture.journal import Aggregate, Loss
from excise.cost.tracer_cost import NESTED_MARK, TracerCost, tracer_cost
from excise.errors import FormatError
from excise.formats import bpftrace
from excise.formats.model import Options, Reading
from excise.formats.trace_rows import labels_of
from excise.formats.trace_syscalls import syscall_name

if TYPE_CHECKING:
    import numpy.typing as npt
    import polars as pl

MAP_KEYS: Final = 32_768
"""Entries that a map of the script has room for."""

_NOT_TOLD: Final = ("median", "p99", "self", "interrupt", "off_cpu", "inside", "directly")
_OUTER, _EMPTY = 0, 1
_LOST: Final = {
    "@again": "calls of a function inside itself, whose durations are not told apart",
    "@lone": "ends of functions whose beginning is not in the trace",
}
_OPEN: Final = "functions whose end is not in the trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookSums:
    """The maps as tables.

    Attributes:
        functions: One row for each `syscall` and `function`: `calls`, `total`, `min`, `max` in ns.
        buckets: Histogram: `syscall`, `function`, `from_ns` to below `to_ns`, `count`.
        syscalls: `syscall` and `entered`.
        losses: Everything that is missing.
    """

    functions: pl.DataFrame
    buckets: pl.DataFrame
    syscalls: pl.DataFrame
    losses: tuple[Loss, ...]


def read_hook_sums(data: bytes, *, source: str, functions: Sequence[str], machine: str) -> HookSums:
    """Return what a script of the probe counted.

    Args:
        data: The JSON lines that bpftrace printed.
        source: Name for errors.
        functions: Names by number.
        machine: Whose system call numbers these are.

    Raises:
        FormatError: If it is no such output, or has a function that was not traced.
    """
    import polars as pl

    reading = _reading(data, source)
    maps = _Maps()
    for row in reading.aggregates:
        key = _key(row, source)
        if row.event == "@entered":
            maps.entered.append((syscall_name(key[0], machine=machine), int(row.mean or 0)))
        elif row.event in _LOST:
            maps.lost[_LOST[row.event]] += int(row.mean or 0)
        elif row.event == "@begin":
            maps.lost[_OPEN] += 1
        elif row.event in ("@time", "@least", "@most", "@spread"):
            maps.take(row, _place(key, functions, machine=machine, source=source))
    frame, spread = maps.functions(), maps.histogram()
    losses = [
        Loss(source=source, reason=reason, count=count) for reason, count in maps.lost.items()
    ]
    return HookSums(
        functions=frame,
        buckets=spread,
        syscalls=pl.DataFrame(
            maps.entered, schema={"syscall": pl.String, "entered": pl.Int64}, orient="row"
        ).sort("entered", "syscall", descending=[True, False]),
        losses=(*reading.losses, *losses, *_full(frame, spread, source)),
    )


@dataclass(slots=True)
class _Maps:
    """What the script's maps hold, by system call and function."""

    sums: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    buckets: list[tuple[str, str, float, float | None, int]] = field(default_factory=list)
    entered: list[tuple[str, int]] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)

    def take(self, row: Aggregate, place: tuple[str, str]) -> None:
        """Take a row about the durations of a function in a system call."""
        if row.event == "@spread":
            low, high = _bounds(row.labels)
            self.buckets.append((*place, low, high, int(row.count or 0)))
            return
        found = self.sums.setdefault(place, {})
        if row.event == "@time":
            found |= {"calls": int(row.count or 0), "total": row.sum}
        else:
            found["min" if row.event == "@least" else "max"] = row.mean

    def functions(self) -> pl.DataFrame:
        """Return the sums as `HookSums.functions`."""
        import polars as pl

        rows = [
            (*place, each.get("calls", 0), each.get("total"), each.get("min"), each.get("max"))
            for place, each in self.sums.items()
        ]
        numbers = dict.fromkeys(("total", "min", "max"), pl.Float64)
        schema = {"syscall": pl.String, "function": pl.String, "calls": pl.Int64, **numbers}
        return pl.DataFrame(rows, schema=schema, orient="row")

    def histogram(self) -> pl.DataFrame:
        """Return the buckets as `HookSums.buckets`."""
        import polars as pl

        ends = dict.fromkeys(("from_ns", "to_ns"), pl.Float64)
        schema = {"syscall": pl.String, "function": pl.String, **ends, "count": pl.Int64}
        frame = pl.DataFrame(self.buckets, schema=schema, orient="row")
        return frame.sort("syscall", "function", "from_ns")


def merged_sums(sums: HookSums, *keys: str, floor: float, limit: float | None) -> pl.DataFrame:
    """Return the functions by these keys, with the columns of `HookTrace.functions`.

    Args:
        sums: What was counted.
        *keys: `syscall`, `function`, or both.
        floor: What is taken out of every duration.
        limit: A mean up to here is below the noise floor; None where that is not known.
    """
    import polars as pl

    mean = pl.col("total") / pl.col("calls") - floor
    below = mean <= limit if limit is not None else pl.lit(None, dtype=pl.Boolean)
    return (
        sums.functions.group_by(keys)
        .agg(pl.col("calls", "total").sum(), pl.col("min").min(), pl.col("max").max())
        .select(
            *keys,
            "calls",
            pl.col("calls").alias("timed"),
            pl.lit(None, dtype=pl.Int64).alias("disturbed"),
            *(pl.lit(None, dtype=pl.Float64).alias(name) for name in _NOT_TOLD),
            (pl.col("min") - floor).alias("min"),
            mean.alias("mean"),
            (pl.col("max") - floor).alias("max"),
            below.alias("below_floor"),
        )
        .sort(pl.col("calls") * pl.col("mean"), *keys, descending=[True, *([False] * len(keys))])
    )


def _reading(data: bytes, source: str) -> Reading:
    """Return the maps; none where nothing was called."""
    try:
        return bpftrace.read_json(data, Options(source=source))
    except FormatError:
        if b'"excise: ready' not in data:
            raise
        return Reading(format=bpftrace.JSON)


def _key(row: Aggregate, source: str) -> tuple[int, ...]:
    key = labels_of(row.labels).get("key", "")
    try:
        return tuple(int(word) for word in key.split())
    except ValueError:
        raise FormatError(f"{row.event} has an unknown key {key}", source=source) from None


def _place(
    key: tuple[int, ...], functions: Sequence[str], *, machine: str, source: str
) -> tuple[str, str]:
    if len(key) != 2 or not 0 <= key[0] < len(functions):
        raise FormatError(f"a map has an unknown key {key}", source=source)
    return (syscall_name(key[1] - 1, machine=machine) if key[1] else "", functions[key[0]])


def _bounds(labels: str) -> tuple[float, float | None]:
    found = labels_of(labels)
    return float(found.get("from", 0)), float(found["to"]) if "to" in found else None


def _full(frame: pl.DataFrame, spread: pl.DataFrame, source: str) -> list[Loss]:
    """Return what a map had no room for, as far as it shows."""
    found = []
    counted, shown = int(frame["calls"].sum()), int(spread["count"].sum())
    if counted > shown:
        reason = "durations that the histogram had no room for"
        found.append(Loss(source=source, reason=reason, count=counted - shown))
    if frame.height >= MAP_KEYS:
        reason = "a map is full: hooks in further system calls are not in it"
        found.append(Loss(source=source, reason=reason))
    return found


def calibrated_sums(text: bytes, *, source: str) -> TracerCost | None:
    """Return the tracer's cost from single durations, or None where nothing was calibrated.

    Args:
        text: Output of the outer function alone, a mark, output with the empty one in it.
        source: Name for errors.

    Raises:
        FormatError: If a part is no output of bpftrace.
    """
    first, mark, second = text.partition(NESTED_MARK)
    if not mark:
        return None
    alone, nested = (_each(part, source) for part in (first, second))
    empty = nested.get(_EMPTY)
    if empty is None or _OUTER not in alone or _OUTER not in nested:
        return None
    return tracer_cost(empty, alone=alone[_OUTER], nested=nested[_OUTER])


def _each(part: bytes, source: str) -> Mapping[int, npt.NDArray[np.float64]]:
    """Return single durations by the function's number."""
    found: dict[int, list[float]] = {}
    for row in _reading(part, source).aggregates:
        if row.event == "@each" and row.mean is not None:
            found.setdefault(_key(row, source)[0], []).append(row.mean)
    return {number: np.array(values) for number, values in found.items()}
