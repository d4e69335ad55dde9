"""Hooks of one operation: calls and cost in the least batch of a traced workload.

A workload of the probe that is run with `--mark` calls `getppid` before and after each batch, with
arguments that only the trace shows. What lies between two marks is one batch.

The least batch is taken, as it is of the untraced workload: no timer tick fell into it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from excise.cost.tracer_cost import TracerCost, calibrated
from excise.errors import FormatError
from excise.formats.trace_rows import HOOK, layer_and_event

if TYPE_CHECKING:
    import polars as pl

    from excise.formats.function_graph import FunctionGraph

# A mark: "EXCISE" in hexadecimal, 1 before and 2 after a batch, the batch's operations.
_MARK: Final = re.compile(rb"sys_enter: NR \d+ \(455843495345, ([12]), ([0-9a-f]+),")
_MOST_CALLS: Final = 50_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PartCost:
    """What one function, or one hook, does in one operation; costs in the trace's unit.

    Attributes:
        calls: Calls per operation.
        cost: Of one operation's calls together, without the tracer's own cost.
        spread: Of `cost` over the undisturbed batches: the root of their mean square distance from
            it, which is that of the least one.
        error: By how much `cost` may be off as the tracer's cost that was taken out may be.
    """

    calls: float
    cost: float
    spread: float
    error: float = 0.0

    @property
    def per_call(self) -> float:
        """Return the mean cost of a call, 0 where there is none."""
        return self.cost / self.calls if self.calls else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationHooks:
    """The hooks of one operation.

    Attributes:
        operations: Operations of a batch.
        batches: Batches in the trace.
        quiet: Batches that no interrupt fell into; where there is none, all are used.
        tracer: The tracer's cost that was taken out.
        hooks: By outermost traced function.
        functions: By outermost function and function in it; the outermost among them, with what
            neither it nor the tracer spent in traced functions.
    """

    operations: int
    batches: int
    quiet: int
    tracer: TracerCost
    hooks: Mapping[str, PartCost]
    functions: Mapping[tuple[str, str], PartCost]


def marked_batches(text: bytes) -> list[tuple[int, int, int]]:
    """Return each marked batch: operations, line of its first mark, line of its last, from 1."""
    found: list[tuple[int, int, int]] = []
    begin: tuple[int, int] | None = None
    line, position = 1, 0
    for match in _MARK.finditer(text):
        line += text.count(b"\n", position, match.start())
        position = match.start()
        kind, operations = match[1], int(match[2], 16)
        if kind == b"1":
            begin = (operations, line)
        elif begin is not None and begin[0] == operations:
            found.append((operations, begin[1], line))
            begin = None
    return found


def operation_hooks(text: bytes, *, calibration: bytes, source: str) -> OperationHooks:
    """Return the hooks of one operation of a traced workload of the probe.

    Args:
        text: function_graph text with system calls and marks.
        calibration: function_graph text of the calibration in the same run.
        source: Name for errors.

    Raises:
        FormatError: If the trace lost events, is not marked, or the calibration is empty.
    """
    from excise.formats.function_graph import read_function_graph

    graph = read_function_graph(text, name=source, calls=_MOST_CALLS, paths=False)
    if graph.losses or graph.lost:
        reason = graph.losses[0].reason if graph.losses else "events were lost"
        raise FormatError(
            f"counts would be wrong: {reason}", source=source, hint="Enlarge --buffer-kb"
        )
    tracer = calibrated(calibration, source=source)
    if tracer is None:
        raise FormatError("the calibration shows no empty function", source=source)
    batches = marked_batches(text)
    if not batches:
        raise FormatError("no batch is marked", source=source, hint="Run the probe with --mark")
    operations = max(operations for operations, _, _ in batches)
    spans = [(start, end) for count, start, end in batches if count == operations]
    calls = _own_costs(graph, tracer=tracer)
    found = [_batch(calls, start=start, end=end) for start, end in spans]
    return _least(found, operations=operations, tracer=tracer)


def _own_costs(graph: FunctionGraph, *, tracer: TracerCost) -> pl.DataFrame:
    """Return each call with its outermost function and its cost without the tracer's."""
    import polars as pl

    calls = graph.calls.with_row_index("row").filter(pl.col("seen") == "whole")
    children = calls.group_by("parent").agg(inner=pl.len())
    own = calls.join(children, left_on="row", right_on="parent", how="left").with_columns(
        own=pl.col("self_ns")
        - tracer.floor
        - pl.col("inner").fill_null(0) * (tracer.nested - tracer.floor),
        error=tracer.floor_error + pl.col("inner").fill_null(0) * tracer.nested_error,
        disturbed=(pl.col("interrupt_ns").fill_null(0) > 0) | pl.col("switched").fill_null(False),
    )
    # Parents stand before their children, so that one pass finds the outermost.
    top: dict[int, str] = {}
    outermost = []
    for row, parent, function in own.select("row", "parent", "function").iter_rows():
        name = function if parent is None else top.get(parent, function)
        top[row] = name
        outermost.append(name)
    return own.with_columns(outermost=pl.Series(outermost, dtype=pl.String))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Batch:
    total: float
    disturbed: bool
    parts: Mapping[tuple[str, str], tuple[int, float, float]]


def _batch(calls: pl.DataFrame, *, start: int, end: int) -> _Batch:
    import polars as pl

    inside = calls.filter((pl.col("line") > start) & (pl.col("line") < end))
    rows = inside.group_by("outermost", "function").agg(
        pl.len().alias("calls"), pl.col("own", "error").sum()
    )
    parts = {
        (outermost, function): (count, own, error)
        for outermost, function, count, own, error in rows.iter_rows()
    }
    return _Batch(
        total=sum(own for _, own, _ in parts.values()),
        disturbed=bool(inside.get_column("disturbed").any()),
        parts=parts,
    )


def _least(batches: list[_Batch], *, operations: int, tracer: TracerCost) -> OperationHooks:
    import numpy as np

    quiet = [batch for batch in batches if not batch.disturbed]
    used = quiet or batches
    least = min(used, key=lambda batch: batch.total)

    def cost(keys: list[tuple[str, str]], calls: int, batch: _Batch) -> PartCost:
        own = sum(batch.parts[key][1] for key in keys)
        sums = [sum(each.parts[key][1] for key in keys if key in each.parts) for each in used]
        return PartCost(
            calls=calls / operations,
            cost=own / operations,
            spread=float(np.sqrt(np.mean(np.square(np.array(sums) - own)))) / operations,
            error=sum(batch.parts[key][2] for key in keys) / operations,
        )

    outermost = sorted({key[0] for key in least.parts})
    return OperationHooks(
        operations=operations,
        batches=len(batches),
        quiet=len(quiet),
        tracer=tracer,
        hooks={
            name: cost(
                [key for key in least.parts if key[0] == name],
                least.parts.get((name, name), (0, 0.0, 0.0))[0],
                least,
            )
            for name in outermost
        },
        functions={key: cost([key], least.parts[key][0], least) for key in sorted(least.parts)},
    )


def hook_name(function: str) -> str:
    """Return a hook's name as tables of hooks have it: its caller's without `security_`."""
    return layer_and_event(function)[1]


def is_hook(function: str) -> bool:
    """Return whether a function is the caller of a hook, by its name."""
    return layer_and_event(function)[0] == HOOK
