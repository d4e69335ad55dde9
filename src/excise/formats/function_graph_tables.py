"""Tables of a function graph: native columns to data frames, merging, quantiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from excise.errors import UsageError

KEYS: Final = ("task", "cpu", "syscall", "function")
_ADDED: Final = (
    *("calls", "timed", "total_ns", "self_ns", "interrupt_ns", "off_cpu_ns", "disturbed"),
    *("lossy", "ends", "ends_total_ns", "ends_self_ns"),
)


def build(
    found: dict[str, Any],
    *,
    names: list[str],
    syscall: Callable[[int], str],
    seen: Sequence[str],
    sums: Sequence[str],
) -> dict[str, pl.DataFrame]:
    """Return the tables of what the native reader found.

    Args:
        found: Columns as bytes of int64 in native order, by table.
        names: Names by number.
        syscall: Gives the name of a number.
        seen: Words for what was seen of a call.
        sums: Columns of sums.
    """
    texts = pl.Series("name", names, dtype=pl.String)
    contexts = _contexts(_raw(found["contexts"]), texts, syscall)
    functions = _raw(found["functions"])
    places = contexts.select("task", "cpu", "syscall")
    frame = pl.concat(
        [
            places[functions["context"]],
            pl.DataFrame({"function": texts.gather(functions["name"])}),
            pl.DataFrame({name: functions[name] for name in sums}),
            pl.DataFrame(
                {
                    "ends": functions["ends_calls"],
                    "ends_total_ns": functions["ends_total_ns"],
                    "ends_self_ns": functions["ends_self_ns"],
                }
            ),
        ],
        how="horizontal",
    )
    return {
        "functions": _without_minus(frame, "min_ns"),
        "histogram": pl.DataFrame(_raw(found["histogram"])),
        "syscalls": contexts.filter(pl.col("entered") > 0),
        "paths": _paths(_raw(found["paths"]), texts, syscall, sums),
        "calls": _calls(_raw(found["calls"]), texts, places, seen),
        "callers": _callers(_raw(found["callers"]), texts),
    }


def _raw(columns: dict[str, bytes]) -> dict[str, np.ndarray[Any, np.dtype[np.int64]]]:
    return {name: np.frombuffer(values, dtype=np.int64) for name, values in columns.items()}


def _without_minus(frame: pl.DataFrame, *columns: str) -> pl.DataFrame:
    """Return the frame with null where the native reader writes -1."""
    return frame.with_columns(
        pl.when(pl.col(name) < 0).then(None).otherwise(pl.col(name)).alias(name) for name in columns
    )


def _named(numbers: np.ndarray[Any, Any], texts: pl.Series) -> pl.Series:
    """Return texts by number, null for -1."""
    index = pl.Series(numbers)
    return texts.gather(index.set(index < 0, None))


def _syscall_names(numbers: np.ndarray[Any, Any], syscall: Callable[[int], str]) -> pl.Series:
    values, inverse = np.unique(numbers, return_inverse=True)
    words = pl.Series([syscall(int(value)) for value in values], dtype=pl.String)
    return words.gather(inverse)


def _contexts(raw: dict[str, Any], texts: pl.Series, syscall: Callable[[int], str]) -> pl.DataFrame:
    frame = pl.DataFrame(
        {
            "task": _named(raw["task"], texts),
            "cpu": raw["cpu"],
            "syscall": _syscall_names(raw["syscall"], syscall),
            **{name: raw[name] for name in ("entered", "timed", "total_ns", "min_ns", "max_ns")},
        }
    )
    return _without_minus(frame, "cpu", "min_ns")


def _paths(
    raw: dict[str, Any], texts: pl.Series, syscall: Callable[[int], str], sums: Sequence[str]
) -> pl.DataFrame:
    parents: list[int] = raw["parent"].tolist()
    depth: list[int] = []
    for parent in parents:
        depth.append(depth[parent] + 1 if parent >= 0 else 0)
    frame = pl.DataFrame(
        {
            "parent": raw["parent"],
            "depth": pl.Series(depth, dtype=pl.Int64),
            "syscall": _syscall_names(raw["syscall"], syscall),
            "function": texts.gather(raw["name"]),
            **{name: raw[name] for name in sums},
        }
    )
    return _without_minus(frame, "parent", "min_ns")


def _callers(raw: dict[str, Any], texts: pl.Series) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "function": texts.gather(raw["function"]),
            "caller": texts.gather(raw["caller"]),
            "calls": raw["calls"],
        }
    ).sort("function", "calls", "caller", descending=[False, True, False])


def _calls(
    raw: dict[str, Any], texts: pl.Series, places: pl.DataFrame, seen: Sequence[str]
) -> pl.DataFrame:
    frame = pl.concat(
        [
            pl.DataFrame(
                {
                    "parent": raw["parent"],
                    "depth": raw["depth"],
                    "function": texts.gather(raw["name"]),
                }
            ),
            places[raw["context"]],
            pl.DataFrame(
                {
                    **{
                        name: raw[name]
                        for name in (
                            *("line", "time_ns", "duration_ns", "self_ns"),
                            *("interrupt_ns", "off_cpu_ns"),
                        )
                    },
                    "switched": raw["switched"] > 0,
                    "lossy": raw["lossy"] > 0,
                    "seen": pl.Series(list(seen), dtype=pl.String).gather(raw["seen"]),
                    "extra": _named(raw["extra"], texts),
                }
            ),
        ],
        how="horizontal",
    )
    return _without_minus(frame, "parent", "time_ns", "duration_ns", "self_ns")


def merged(functions: pl.DataFrame, histogram: pl.DataFrame, keys: Sequence[str]) -> pl.DataFrame:
    """Return sums, extremes and quantiles by these keys; see `FunctionGraph.by`.

    Raises:
        UsageError: If a key is none of the table's.
    """
    _check(keys)
    sums = functions.group_by(keys).agg(
        *(pl.col(name).sum() for name in _ADDED),
        pl.col("min_ns").min(),
        pl.col("max_ns").max(),
    )
    buckets = merged_buckets(functions, histogram, keys)
    quantiles = (
        buckets.sort("from_ns")
        .group_by(keys)
        .agg(
            _quantile(0.5).alias("median_ns"),
            _quantile(0.99).alias("p99_ns"),
        )
    )
    found = sums.join(quantiles, on=list(keys), how="left", nulls_equal=True)
    timed = pl.col("timed") > 0
    return (
        found.with_columns(
            mean_ns=pl.when(timed).then(pl.col("total_ns") / pl.col("timed")),
            max_ns=pl.when(timed).then(pl.col("max_ns")),
            median_ns=pl.col("median_ns").clip(pl.col("min_ns"), pl.col("max_ns")),
            p99_ns=pl.col("p99_ns").clip(pl.col("min_ns"), pl.col("max_ns")),
        )
        .select(*keys, *_ADDED, "mean_ns", "min_ns", "median_ns", "p99_ns", "max_ns")
        .sort("total_ns", "calls", *keys, descending=[True, True, *([False] * len(keys))])
    )


def merged_buckets(
    functions: pl.DataFrame, histogram: pl.DataFrame, keys: Sequence[str]
) -> pl.DataFrame:
    """Return the histogram by these keys, sorted; see `FunctionGraph.buckets`.

    Raises:
        UsageError: If a key is none of the table's.
    """
    _check(keys)
    rows = functions.select(keys)[histogram.get_column("row")]
    return (
        pl.concat([rows, histogram.drop("row")], how="horizontal")
        .group_by(*keys, "from_ns", "to_ns")
        .agg(pl.col("count").sum())
        .sort(*keys, "from_ns")
    )


def _check(keys: Sequence[str]) -> None:
    for key in keys:
        if key not in KEYS:
            raise UsageError(f"no key is called {key!r}", hint=f"Keys: {', '.join(KEYS)}")


def _quantile(share: float) -> pl.Expr:
    """Return the middle of the bucket that holds the quantile of sorted buckets."""
    running = pl.col("count").cum_sum()
    wanted = (pl.col("count").sum() * share).ceil()
    middle = (pl.col("from_ns") + pl.col("to_ns") - 1) / 2
    return middle.filter(running >= wanted).first()
