"""Rows of a capture from a function graph: hooks by system call, the call tree, single calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from excise.capture.journal import Aggregate, Event, Run
from excise.formats.function_graph import IN_INTERRUPT, NO_SYSCALL, FunctionGraph
from excise.formats.model import Options
from excise.formats.text import phase_of
from excise.formats.trace_rows import (
    EVENT,
    FUNCTION,
    PATH,
    SYSCALL,
    histogram_rows,
    key_of,
    layer_and_event,
)
from excise.units import counted

if TYPE_CHECKING:
    import polars as pl

OUTSIDE: Final = "outside system calls"
INTERRUPTS: Final = "interrupts"
LAYER: Final = "kernel"
"""Layer of the single calls of a tree."""
MAX_FUNCTION_ROWS: Final = 20_000
MAX_PATH_ROWS: Final = 5_000
MAX_RUNS: Final = 20_000
MAX_TASKS: Final = 4
"""Functions at the top whose calls are runs of their own: more are no repeated task."""
KEPT_CALLS: Final = 250_000
"""Single calls that an import asks for; where there are more, none becomes a run or an event."""
_PLAIN = frozenset({NO_SYSCALL})


def unit_of(graph: FunctionGraph) -> str:
    """Return the unit of what a trace timed: `ns`, or `ticks` of an unknown clock."""
    return "ticks" if graph.ticks and not graph.graph_lines else "ns"


def aggregates(graph: FunctionGraph, options: Options, notes: list[str]) -> list[Aggregate]:
    """Return what is summed up, as rows; append to `notes` what is left out.

    - Layer `hook`, `lsm` or `function`, one row for each system call (the task) and function:
      `duration` (count, sum, and net min, median and max), and where they are not 0 `self`,
      `interrupt` and `off_cpu`; for hooks and modules also `histogram`.
    - Layer `syscall`: how often each was entered, and its duration where times are known.
    - Layer `path`: the call tree; `labels` hold `path=` with the functions from the outermost on,
      parted by `;`, and rows of `self` hold what no child explains.
    - Layer `event`: how often each event occurred.
    """
    return [
        *_functions(graph, options, notes),
        *_syscalls(graph, options),
        *_paths(graph, options, notes),
        *(
            Aggregate(
                **key_of(options), layer=EVENT, event=name, metric="count", unit="1", count=count
            )
            for name, count in sorted(graph.events.items())
        ),
    ]


def task_of(graph: FunctionGraph, syscall: str, options: Options) -> str:
    """Return the task that a system call's functions belong to."""
    if options.task:
        return options.task
    if syscall == IN_INTERRUPT:
        return INTERRUPTS
    if syscall != NO_SYSCALL:
        return syscall
    known = set(graph.syscalls.get_column("syscall")) - _PLAIN
    return OUTSIDE if known else key_of(options)["task"]


def _labels(syscall: str, options: Options) -> str:
    """Return the system call as a label where the task's name is given."""
    return f"syscall={syscall}" if options.task and syscall else ""


def _functions(graph: FunctionGraph, options: Options, notes: list[str]) -> Iterator[Aggregate]:
    rows = graph.by("syscall", "function")
    if rows.height > MAX_FUNCTION_ROWS:
        notes.append(
            f"{rows.height - MAX_FUNCTION_ROWS:,} of {rows.height:,} rows of functions, those that "
            "took least, are in the trace alone"
        )
        rows = rows.head(MAX_FUNCTION_ROWS)
    buckets = _buckets(graph)
    unit = unit_of(graph)
    for row in rows.iter_rows(named=True):
        layer, event = layer_and_event(row["function"])
        key = {
            **key_of(options, task=task_of(graph, row["syscall"], options)),
            "layer": layer,
            "event": event,
            "labels": _labels(row["syscall"], options),
            "unit": unit,
        }
        yield from _function(row, key)
        if layer != FUNCTION:
            yield from histogram_rows(buckets.get((row["syscall"], row["function"]), []), **key)


def _function(row: dict[str, Any], key: dict[str, Any]) -> Iterator[Aggregate]:
    timed = row["timed"] > 0
    notes = []
    if row["disturbed"]:
        notes.append(f"{counted(row['disturbed'], 'call')} with interrupts or other tasks inside")
    if row["lossy"]:
        notes.append(f"{counted(row['lossy'], 'call')} with lost events inside")
    if row["ends"]:
        notes.append(f"{counted(row['ends'], 'more call')} of which only the end was seen")
    whole = row["calls"] > 0
    sums = row if whole else _ends(row)
    yield Aggregate(
        **key,
        metric="duration",
        count=float(sums["calls"]),
        sum=float(sums["total_ns"]) if timed or not whole else None,
        min=_float(row["min_ns"]),
        mean=_float(sums["mean_ns"]),
        median=_float(row["median_ns"]),
        max=_float(row["max_ns"]),
        note="; ".join(notes if whole else ["only the ends of calls were printed"]),
    )
    for metric in ("self", "interrupt", "off_cpu"):
        value = sums[f"{metric}_ns"]
        if (value and metric != "self") or (metric == "self" and value != sums["total_ns"]):
            yield Aggregate(**key, metric=metric, count=float(sums["calls"]), sum=float(value))


def _ends(row: dict[str, Any]) -> dict[str, Any]:
    """Return the sums of calls of which only the end was printed (`tracing_thresh`)."""
    return {
        "calls": row["ends"],
        "total_ns": row["ends_total_ns"],
        "self_ns": row["ends_self_ns"],
        "mean_ns": row["ends_total_ns"] / row["ends"] if row["ends"] else None,
        "interrupt_ns": 0,
        "off_cpu_ns": 0,
    }


def _float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _buckets(graph: FunctionGraph) -> dict[tuple[str, str], list[tuple[float, float, float]]]:
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for syscall, function, low, high, count in graph.buckets("syscall", "function").iter_rows():
        found.setdefault((syscall, function), []).append((count, low, high))
    return found


def _syscalls(graph: FunctionGraph, options: Options) -> Iterator[Aggregate]:
    import polars as pl

    rows = (
        graph.syscalls.group_by("syscall")
        .agg(
            pl.col("entered", "timed", "total_ns").sum(),
            pl.col("min_ns").min(),
            pl.col("max_ns").max(),
        )
        .sort("syscall")
    )
    for row in rows.iter_rows(named=True):
        key = {
            **key_of(options, task=row["syscall"]),
            "layer": SYSCALL,
            "event": row["syscall"] if options.task else "",
        }
        yield Aggregate(**key, metric="count", unit="1", count=float(row["entered"]))
        if row["timed"]:
            yield Aggregate(
                **key,
                metric="duration",
                unit=unit_of(graph),
                count=float(row["timed"]),
                sum=float(row["total_ns"]),
                min=float(row["min_ns"]),
                mean=row["total_ns"] / row["timed"],
                max=float(row["max_ns"]),
            )


def _paths(graph: FunctionGraph, options: Options, notes: list[str]) -> Iterator[Aggregate]:
    names = path_names(graph.paths)
    shown = largest_paths(graph.paths, limit=MAX_PATH_ROWS)
    left = sum(1 for calls in graph.paths.get_column("calls") if calls) - len(shown)
    if left > 0:
        notes.append(f"{left:,} paths of the call tree, those that took least, are left out")
    for index, row in enumerate(graph.paths.iter_rows(named=True)):
        if index not in shown:
            continue
        label = f"path={';'.join(names[index])}"
        further = _labels(row["syscall"], options)
        key = {
            **key_of(options, task=task_of(graph, row["syscall"], options)),
            "layer": PATH,
            "event": row["function"],
            "labels": f"{label},{further}" if further else label,
            "unit": "ns",
        }
        total = float(row["total_ns"])
        yield Aggregate(
            **key,
            metric="duration",
            count=float(row["calls"]),
            sum=total,
            min=_float(row["min_ns"]),
            mean=total / row["timed"] if row["timed"] else None,
            max=float(row["max_ns"]) if row["timed"] else None,
        )
        yield Aggregate(**key, metric="self", count=float(row["calls"]), sum=float(row["self_ns"]))


def path_names(paths: pl.DataFrame) -> list[tuple[str, ...]]:
    """Return the functions of each path from the outermost on; signs of labels are replaced."""
    found: list[tuple[str, ...]] = []
    for parent, function in paths.select("parent", "function").iter_rows():
        name = function.translate({ord(","): " ", ord("="): " ", ord(";"): " "})
        found.append((*(found[parent] if parent is not None else ()), name))
    return found


def largest_paths(paths: pl.DataFrame, *, limit: int) -> set[int]:
    """Return the rows of the paths that took most, each with all of its callers."""
    parents = paths.get_column("parent").to_list()
    calls = paths.get_column("calls").to_list()
    totals = paths.get_column("total_ns").to_list()
    kept: set[int] = set()
    for index in sorted(range(len(totals)), key=lambda i: (-totals[i], i)):
        if len(kept) >= limit:
            break
        at: int | None = index if calls[index] else None
        while at is not None and at not in kept:
            kept.add(at)
            at = parents[at]
    return kept


# --- runs ---------------------------------------------------------------------------------------


def runs_and_events(graph: FunctionGraph, options: Options) -> tuple[list[Run], list[Event], str]:
    """Return one run for each call at the top that has calls inside, its parts as nested events.

    A function that is called along several paths is told apart by its callers: `f < g` is f called
    by g. Calls along the same path in one run are added up. The third value says what was left
    out, or is "".
    """
    rows = graph.calls.filter(graph.calls.get_column("seen") == "whole")
    if graph.calls_left_out or not rows.height:
        said = f"{graph.calls_left_out:,} calls are only summed up: too many for runs of their own"
        return [], [], said if graph.calls_left_out and graph.begun else ""
    parents: dict[int, int] = {}
    calls = list(graph.calls.iter_rows(named=True))
    for index, row in enumerate(calls):
        if row["parent"] is not None:
            parents[index] = row["parent"]
    with_calls = set(parents.values())
    roots = [
        index
        for index, row in enumerate(calls)
        if row["parent"] is None and index in with_calls and row["duration_ns"] is not None
        and row["seen"] == "whole"
    ]  # fmt: skip
    if not roots:
        return [], [], ""
    if len(roots) > MAX_RUNS:
        said = f"{len(roots):,} calls at the top are only summed up: too many for runs of their own"
        return [], [], said
    kinds = len({calls[root]["function"] for root in roots})
    if kinds > MAX_TASKS:
        return [], [], f"calls at the top are of {kinds} functions: they are summed up, not runs"
    names = _unique_names(calls, parents)
    runs = _runs(calls, roots, options)
    sequence = {root: number for number, root in enumerate(roots)}
    return runs, _events(calls, parents, sequence, names), ""


def _runs(calls: list[dict[str, Any]], roots: list[int], options: Options) -> list[Run]:
    totals: dict[str, int] = {}
    for root in roots:
        totals[calls[root]["function"]] = totals.get(calls[root]["function"], 0) + 1
    seen: dict[str, int] = {}
    runs = []
    for number, root in enumerate(roots):
        row = calls[root]
        key = key_of(options, task=row["function"])
        at = seen.get(row["function"], 0)
        seen[row["function"]] = at + 1
        runs.append(
            Run(
                sequence=number,
                block=at,
                run=at,
                phase=phase_of(at, totals[row["function"]]),
                start_ns=row["time_ns"],
                wall_ns=row["duration_ns"],
                **key,
            )
        )
    return runs


def _events(
    calls: list[dict[str, Any]],
    parents: dict[int, int],
    sequence: dict[int, int],
    names: list[str],
) -> list[Event]:
    summed: dict[tuple[int, str], list[Any]] = {}
    run_of: dict[int, int] = dict(sequence)
    for index, row in enumerate(calls):
        parent = parents.get(index)
        if parent is None or parent not in run_of:
            continue
        run_of[index] = run_of[parent]
        if row["duration_ns"] is None:
            continue
        above = None if parent in sequence else f"{LAYER}|{names[parent]}"
        key = (run_of[index], names[index])
        known = summed.setdefault(key, [above, 0, row["time_ns"]])
        known[1] += row["duration_ns"]
    return [
        Event(sequence=run, layer=LAYER, event=name, value=float(ns), parent=above, start_ns=start)
        for (run, name), (above, ns, start) in summed.items()
    ]


def _unique_names(calls: list[dict[str, Any]], parents: dict[int, int]) -> list[str]:
    """Return a name for each call: its function, with as many callers as tell its path apart."""
    paths: list[tuple[str, ...]] = []
    for index, row in enumerate(calls):
        parent = parents.get(index)
        above = paths[parent] if parent is not None else ()
        paths.append((row["function"], *above))  # innermost first
    distinct: dict[str, set[tuple[str, ...]]] = {}
    for path in paths:
        distinct.setdefault(path[0], set()).add(path)
    names: dict[tuple[str, ...], str] = {}
    for found in distinct.values():
        for path in found:
            length = next(
                n
                for n in range(1, len(path) + 1)
                if n == len(path) or sum(other[:n] == path[:n] for other in found) == 1
            )
            # A path that is the end of a longer one ends at the top.
            ambiguous = sum(other[:length] == path[:length] for other in found) > 1
            names[path] = " < ".join(path[:length]) + (" < (top)" if ambiguous else "")
    return [names[path] for path in paths]
