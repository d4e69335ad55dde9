"""Events of runs that have no total: units that start in parallel, marks, counts."""

from __future__ import annotations

from typing import Final

import polars as pl

from excise.cost.series import OWN_METRICS
from excise.events.dataset import Dataset
from excise.report import tables
from excise.report.model import Block, Cell, Column, Section, Table, file_safe

_SHOWN: Final = 20
_KEYS: Final = ("layer", "event", "unit")


def untotalled_sections(dataset: Dataset) -> list[Section]:
    """Return the events of tasks none of whose runs has a total, the largest first.

    Nothing is attributed there, for want of a whole, and no sum is printed: such events overlap.
    """
    runs = dataset.runs.with_columns(pl.col("task", "configuration").cast(pl.String))
    names = [name for name in OWN_METRICS if name in runs.columns]
    whole = runs.filter(pl.any_horizontal(pl.col(name).is_not_null() for name in names))
    loose = runs.join(
        whole.select("task", "configuration").unique(), on=["task", "configuration"], how="anti"
    )
    events = dataset.events.with_columns(pl.col(_KEYS).cast(pl.String)).join(
        loose.select("sequence", "task", "configuration"), on="sequence"
    )
    blocks: list[Block] = [
        _table(part, task=str(task), configuration=str(configuration))
        for (task, configuration), part in events.partition_by(
            ["task", "configuration"], maintain_order=True, as_dict=True
        ).items()
    ]
    return [Section(heading="Events without a total", blocks=blocks)] if blocks else []


def _table(events: pl.DataFrame, *, task: str, configuration: str) -> Table:
    summed = events.group_by(*_KEYS, "sequence", maintain_order=True).agg(pl.col("value").sum())
    rows = (
        summed.group_by(*_KEYS, maintain_order=True)
        .agg(
            pl.col("value").median().alias("median"),
            pl.col("value").max().alias("max"),
            pl.len().alias("n"),
        )
        .sort("median", *_KEYS, descending=[True, False, False, False])
    )
    body = [
        [
            Cell(text=f"{row['layer']}|{row['event']}", value=row["event"]),
            tables.value_cell(row["median"], row["unit"]),
            tables.value_cell(row["max"], row["unit"]),
            Cell(text=str(row["n"]), value=row["n"]),
        ]
        for row in rows.head(_SHOWN).iter_rows(named=True)
    ]
    left = rows.height - len(body)
    return Table(
        name=file_safe(f"events-{task}-{configuration}"),
        columns=[
            Column(name="event", heading="Event", align="left"),
            Column(name="median", heading="median"),
            Column(name="max", heading="max"),
            Column(name="n", heading="runs"),
        ],
        rows=body,
        caption=f"{task} under {configuration}",
        notes=[f"{left} more are not printed."] if left else [],
    )
