"""A round's results as tables, one row a host and check, and as Parquet files."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl
from msgspec.structs import astuple

from excise.fleet.places import Folder
from excise.fleet.records import HostState

_TIME: Final = pl.Datetime("ns", "UTC")
CHECKS: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "host": pl.String,
    "subject": pl.String,
    "check": pl.String,
    "outcome": pl.String,
    "expected": pl.String,
    "got": pl.String,
    "detail": pl.String,
    "checked_at": _TIME,
    "last_passed_at": _TIME,
    "host_last_verified_at": _TIME,
}
HOSTS: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "host": pl.String,
    "verdict": pl.String,
    "attempted_at": _TIME,
    "last_verified_at": _TIME,
    "evidence_at": _TIME,
    "entries": pl.Int64,
    "new_entries": pl.Int64,
    "failed_checks": pl.String,
    "judged_by": pl.String,
    "findings_left_out": pl.Int64,
}
FINDINGS: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "host": pl.String,
    "kind": pl.String,
    "name": pl.String,
    "algorithm": pl.String,
    "digest": pl.String,
    "count": pl.Int64,
}
COSTS: Final[Mapping[str, pl.DataType | type[pl.DataType]]] = {
    "host": pl.String,
    "capture": pl.String,
    "kernel": pl.String,
    "tpm": pl.String,
    "lsm": pl.String,
    "task": pl.String,
    "configuration": pl.String,
    "metric": pl.String,
    "unit": pl.String,
    "runs": pl.Int64,
    "median": pl.Float64,
}


def tables_of(states: Iterable[HostState]) -> dict[str, pl.DataFrame]:
    """Return the tables `hosts`, `checks`, `findings` and `costs` of all states.

    Times are UTC; a time that never was is null. The fields of `CheckRow`, `Finding` and `CostRow`
    are columns in their order.
    """
    schemas = {"hosts": HOSTS, "checks": CHECKS, "findings": FINDINGS, "costs": COSTS}
    rows: dict[str, list[tuple[object, ...]]] = {name: [] for name in schemas}
    for state in states:
        host = state.host
        failed = ", ".join(dict.fromkeys(row.check for row in state.failed_checks))
        rows["hosts"].append(
            (
                host,
                state.verdict,
                state.attempted_ns,
                state.verified_ns,
                state.evidence_ns,
                state.entries,
                state.new_entries,
                failed,
                state.settings,
                state.findings_left_out,
            )
        )
        for row in state.checks:
            *said, passed_ns = astuple(row)
            rows["checks"].append((host, *said, state.attempted_ns, passed_ns, state.verified_ns))
        rows["findings"] += [(host, *astuple(each)) for each in state.findings]
        costs = (cost for capture in state.captures.values() for cost in capture.costs)
        rows["costs"] += [(host, *astuple(cost)) for cost in costs]
    return {name: _frame(rows[name], schema) for name, schema in schemas.items()}


def _frame(
    rows: Sequence[tuple[object, ...]], schema: Mapping[str, pl.DataType | type[pl.DataType]]
) -> pl.DataFrame:
    plain = {name: pl.Int64 if kind == _TIME else kind for name, kind in schema.items()}
    times = [pl.col(name).cast(_TIME) for name, kind in schema.items() if kind == _TIME]
    return pl.DataFrame(rows, schema=plain, orient="row").with_columns(times)


def write_tables(tables: Mapping[str, pl.DataFrame], folder: Folder) -> list[str]:
    """Write every table as `NAME.parquet`, each whole or not at all; return their names.

    Raises:
        UsageError: The folder cannot be written.
    """
    written = []
    for name, table in tables.items():
        buffer = io.BytesIO()
        table.write_parquet(buffer, compression="zstd")
        folder.write_all({f"{name}.parquet": buffer.getvalue()})
        written.append(f"{name}.parquet")
    return written
