"""Datasets with known answers: ratios, drift, noise, failures, child events put in on purpose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from captures import manifest, run
from excise.capture.journal import Event, Record, Run
from excise.capture.manifest import Fact
from excise.events.dataset import Dataset
from excise.events.load import from_records

TWIN = "none (A/A)"


def dataset(records: Sequence[Record], *, name: str = "d", **changes: Any) -> Dataset:
    """Return records as a loaded capture."""
    return from_records(records, name=name, manifest=manifest(**changes))


def paired_runs(
    ratios: Mapping[str, float],
    *,
    task: str = "t",
    blocks: int = 60,
    noise: float = 0.01,
    drift: float = 1.0,
    seed: int = 1,
    base_ns: float = 1e6,
    first_times: float = 6.7,
    start: int = 0,
) -> list[Run]:
    """Return a campaign's runs: a first block, one warm-up block, then the measured ones.

    Args:
        ratios: Each arm's true ratio to the base.
        task: Name of the task.
        blocks: Measured blocks.
        noise: Sd of the ln of each value.
        drift: By what the last block is slower than the first one, common to all arms.
        seed: Seed of noise and order.
        base_ns: Value at ratio 1.
        first_times: By what the first run is slower, and every warm-up run too.
        start: First sequence number.
    """
    draw = np.random.default_rng(seed)
    found: list[Run] = []
    for block in range(blocks + 2):
        phase = {0: "first", 1: "warmup"}.get(block, "measured")
        common = drift ** (block / (blocks + 1)) * (first_times if block < 2 else 1.0)
        for arm in draw.permutation(list(ratios)):
            value = base_ns * ratios[arm] * common * np.exp(draw.normal(0.0, noise))
            found.append(
                run(
                    start + len(found),
                    block=block,
                    run=block,
                    task=task,
                    configuration=str(arm),
                    phase=phase,
                    wall_ns=round(value),
                )
            )
    return found


def paired_dataset(
    ratios: Mapping[str, float], *, name: str = "d", facts: Sequence[Fact] = (), **options: Any
) -> Dataset:
    """Return a campaign with an A/A arm that is `none` again, unless its ratio is given."""
    everything = {"none": 1.0, TWIN: 1.0, **ratios}
    return dataset(
        paired_runs(everything, **options),
        name=name,
        baseline="none",
        twin=TWIN,
        paired=True,
        host_facts=list(facts),
    )


def imported_dataset(values: Mapping[str, Sequence[float]], *, name: str = "d") -> Dataset:
    """Return runs of unknown order: configuration to wall times in ns."""
    records: list[Record] = []
    for configuration, series in values.items():
        for number, value in enumerate(series):
            records.append(
                run(
                    len(records),
                    block=0,
                    run=number,
                    configuration=configuration,
                    phase="measured",
                    wall_ns=round(value),
                )
            )
    return dataset(records, name=name, origin="imported")


def event(sequence: int, name: str, value: float, **changes: Any) -> Event:
    """Return a child event in ns of the layer `host` unless changed."""
    plain = {"sequence": sequence, "layer": "host", "event": name, "value": value}
    return Event(**(plain | changes))
