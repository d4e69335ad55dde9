"""Comparisons over levels: blocks, and the probe's batches in each run of a block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from excise.cost.compared import Comparison, Comparisons
from excise.cost.series import FloatArray
from excise.events.dataset import Dataset
from excise.stats import HierarchicalRatio, hierarchical_ratio

_Blocks = dict[int, FloatArray]


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelComparison:
    """A comparison with its cross-check by hierarchical bootstrap.

    Attributes:
        row: The comparison by the sign test over blocks, which decides.
        levels: The same ratio with blocks, and batches within them, resampled.
    """

    row: Comparison
    levels: HierarchicalRatio


def compare_levels(dataset: Dataset, found: Comparisons) -> list[LevelComparison]:
    """Return the cross-check of each comparison whose runs have batches.

    The sign test takes one value a block and cannot tell how sure each is; the bootstrap also
    resamples the batches in it. Where both agree, the batches are enough.

    Args:
        dataset: Loaded with batches; the comparisons are of its configurations.
        found: What was compared.
    """
    batches = _batches(dataset)
    result = []
    for row in found.rows:
        base = batches.get((row.task, row.baseline), {})
        other = batches.get((row.task, row.configuration), {})
        common = sorted(base.keys() & other.keys())
        if row.event or row.metric != "op_ns" or not common:
            continue
        levels = hierarchical_ratio(
            [[base[block]] for block in common],
            [[other[block]] for block in common],
            seed=dataset.manifest.seed or 0,
            margin_ratio=found.margin_ratio,
        )
        result.append(LevelComparison(row=row, levels=levels))
    return result


def _batches(dataset: Dataset) -> dict[tuple[str, str], _Blocks]:
    """Return the batches of each block by task and configuration: counted runs only."""
    counted = dataset.runs.filter(
        (pl.col("phase") == "measured") & pl.col("ok").fill_null(True)
    ).select("sequence", "task", "configuration", "block")
    rows = (
        dataset.op_ns_batches.filter(pl.col("op_ns") > 0)
        .join(counted, on="sequence")
        .group_by("task", "configuration", "block")
        .agg("op_ns")
        .rows()
    )
    found: dict[tuple[str, str], _Blocks] = {}
    for task, configuration, block, values in rows:
        found.setdefault((task, configuration), {})[block] = np.array(values)
    return found
