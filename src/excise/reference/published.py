"""What a file of published figures holds: the source's own numbers, units and words.

A file keeps what was printed, as it was printed; conversion to nanoseconds and bytes happens in
`library`. Three shapes cover all sources: a `table` (already summarised, one column a
configuration), a `series` (single values), and a `trace` (one run with nested children).
"""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Final, Literal

import msgspec

from excise.errors import FormatError, UsageError

Value = float | Literal["n/a"]
Statistic = Literal["count", "sum", "min", "mean", "median", "max", "sd", "first"]
Unit = Literal["s", "ms", "us", "ns", "kB", "B", "cycles", "%", "1"]

# Factor to the unit that datasets use, and that unit. A kB of getrusage is 1024 bytes.
UNITS: Final[dict[str, tuple[float, str]]] = {
    "s": (1e9, "ns"),
    "ms": (1e6, "ns"),
    "us": (1e3, "ns"),
    "ns": (1.0, "ns"),
    "kB": (1024.0, "B"),
    "B": (1.0, "B"),
    "cycles": (1.0, "cycles"),
    "%": (0.01, "1"),
    "1": (1.0, "1"),
}


class Citation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where figures come from.

    Attributes:
        year: Year of publication; 0 where it is not known.
        where: Journal, list, issue tracker or repository.
        licence: What may be done with the source, or "" where only facts were taken.
    """

    title: str
    authors: str
    year: int
    where: str
    url: str = ""
    licence: str = ""


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of a table: a value for each configuration of the table.

    Attributes:
        statistic: Which field of the aggregate the values are; the table's by default.
        values: One for each configuration; `n/a` where the source prints that.
        percent: The change against the first configuration as printed, for all the others.
        count: Observations behind each value, where they differ by row.
        note: What the source says beside the values.
    """

    values: list[Value]
    task: str = ""
    event: str = ""
    statistic: Statistic | None = None
    percent: list[Value] = []
    count: list[float] | float | None = None
    note: str = ""


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published table.

    Attributes:
        layer: `task` for totals, else the layer of the parts.
        printed: The source prints these values; False: they are computed, `note` says from what.
        unit_costs: Rows are costs of a part wherever it is called: they are given to each task
            that calls the part, according to `calls`.
    """

    name: str
    metric: str
    unit: Unit
    configurations: list[str]
    row: list[Row]
    layer: str = "task"
    task: str = ""
    statistic: Statistic = "mean"
    count: float | None = None
    decimals: int | None = None
    printed: bool = True
    unit_costs: bool = False
    note: str = ""


class Series(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Single values of one task and configuration, in the order of the source."""

    task: str
    configuration: str
    unit: Literal["s", "ms", "us", "ns"]
    values: list[float]
    note: str = ""


class Child(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One child of a trace; `parent` is `layer|event`, or "" for a child of the run."""

    event: str
    value: float
    layer: str = ""
    parent: str = ""


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One run with its children; `layer` is that of children that name none."""

    task: str
    configuration: str
    unit: Literal["s", "ms", "us", "ns"]
    total: float
    layer: str
    children: list[Child]
    note: str = ""


class Timepiece(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The clock of the figures; the resolution is that of the print where it is coarser."""

    name: str
    resolution_ns: float


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of published figures.

    Attributes:
        baseline: Configuration that the source compares with, or "" where it compares nothing.
        calls: For each task, how often one operation calls each part (`layer|event`).
        notes: What must be known to read the figures right.
    """

    title: str
    baseline: str
    clock: Timepiece
    source: list[Citation]
    table: list[Table] = []
    series: list[Series] = []
    trace: list[Trace] = []
    calls: dict[str, dict[str, float]] = {}
    notes: list[str] = []


@cache
def published(name: str) -> Published:
    """Return the figures of one data set as their source prints them.

    Raises:
        UsageError: If there is no such data set; the names that exist are in the hint.
        FormatError: If the file is not of this shape (a fault of the package).
    """
    file = resources.files("excise.reference") / "data" / f"{name}.toml"
    if name not in names():
        known = ", ".join(names())
        raise UsageError(f"no reference data is called {name!r}", hint=f"Known names: {known}")
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Published)
    except msgspec.DecodeError as error:
        raise FormatError(str(error), source=f"reference:{name}") from error


@cache
def names() -> tuple[str, ...]:
    """Return the names of all data sets, sorted."""
    folder = resources.files("excise.reference") / "data"
    found = [file.name.removesuffix(".toml") for file in folder.iterdir() if _is_data(file.name)]
    return tuple(sorted(found))


def _is_data(name: str) -> bool:
    return name.endswith(".toml")
