"""PCR extends by their steps, as the published traces of the kernel's HMAC sessions have them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import polars as pl

from excise.events.dataset import Dataset
from excise.stats import Summary, summarise

TASK: Final = "tpm2_pcr_extend"
UNATTRIBUTED: Final = "unattributed"
# In the order in which the kernel takes them; those below another are inside it.
STEPS: Final = (
    ("start_auth_session", None),
    ("ContextLoad", "start_auth_session"),
    ("salt", "start_auth_session"),
    ("StartAuthSession", "start_auth_session"),
    ("FlushContext", "start_auth_session"),
    ("append", None),
    ("fill", None),
    ("transmit", None),
    ("check", None),
    ("buffer", None),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendRow:
    """What one PCR extend takes in a configuration, in nanoseconds.

    Attributes:
        source: Name of the capture or reference.
        n: Extends, the first left out where there are more.
        total: The whole call.
        first_ns: The first extend, None where it is not apart.
        steps_ns: Medians by step; steps of `STEPS` that were not seen are not there.
        unattributed_ns: Median of what no step explains.
    """

    source: str
    configuration: str
    n: int
    total: Summary
    first_ns: float | None
    steps_ns: Mapping[str, float]
    unattributed_ns: float


def extend_rows(dataset: Dataset) -> Iterator[ExtendRow]:
    """Yield the traced extends of a dataset by configuration; none where it has none."""
    runs = dataset.runs.filter(
        (pl.col("task").cast(pl.String) == TASK)
        & pl.col("ok").fill_null(True)
        & pl.col("wall_ns").is_not_null()
    ).with_columns(pl.col("configuration").cast(pl.String))
    events = dataset.events.with_columns(pl.col("event", "parent").cast(pl.String))
    for (configuration,), part in runs.partition_by(
        "configuration", maintain_order=True, as_dict=True
    ).items():
        later = part.filter(pl.col("phase").cast(pl.String) == "measured")
        counted = later if later.height else part
        first = part.filter(pl.col("phase").cast(pl.String) == "first").get_column("wall_ns")
        own = events.join(counted.select("sequence"), on="sequence")
        top = own.filter(pl.col("parent").is_null()).group_by("sequence").agg(pl.col("value").sum())
        rest = (
            counted.select("sequence", "wall_ns")
            .join(top, on="sequence", how="left")
            .select(pl.col("wall_ns") - pl.col("value").fill_null(0.0))
            .to_series()
        )
        yield ExtendRow(
            source=dataset.name,
            configuration=str(configuration),
            n=counted.height,
            total=summarise(
                counted.get_column("wall_ns").cast(pl.Float64).to_numpy(), assume_independent=True
            ),
            first_ns=float(first[0]) if later.height and first.len() else None,
            steps_ns=_medians(own, runs=counted),
            unattributed_ns=float(rest.median() or 0.0),  # type: ignore[arg-type]
        )


def _medians(events: pl.DataFrame, *, runs: pl.DataFrame) -> dict[str, float]:
    """Return the median of each step; a run without it counts as 0."""
    found = {}
    names = list(
        dict.fromkeys([*(name for name, _ in STEPS), *events["event"].unique(maintain_order=True)])
    )
    for name in names:
        rows = events.filter(pl.col("event") == name)
        if rows.height:
            summed = rows.group_by("sequence").agg(pl.col("value").sum())
            values = runs.select("sequence").join(summed, on="sequence", how="left")["value"]
            found[name] = float(values.fill_null(0.0).median())  # type: ignore[arg-type]
    return found
