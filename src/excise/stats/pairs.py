"""From values with block labels to one pair for each block; what has no partner is counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excise.errors import UsageError
from excise.stats._arrays import FloatArray, as_labels, as_values


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """One value of each arm for each block that holds both arms.

    Attributes:
        blocks: Labels of the blocks, ascending, shape (n,).
        baseline: Median of the baseline's values in the block, in their unit, shape (n,).
        other: Median of the other arm's values in the block, shape (n,).
        baseline_only: Number of blocks left out because only the baseline has values there.
        other_only: Number of blocks left out because only the other arm has.
    """

    blocks: NDArray[Any]
    baseline: FloatArray
    other: FloatArray
    baseline_only: int = 0
    other_only: int = 0


def block_medians(values: ArrayLike, *, blocks: ArrayLike) -> tuple[NDArray[Any], FloatArray]:
    """Return the labels in ascending order, and the median of the values in each block.

    Args:
        values: Any unit, shape (n,).
        blocks: One label for each value, shape (n,).

    Raises:
        UsageError: Values empty or not finite, or not one label for each value.
    """
    array = as_values(values)
    labels, inverse = np.unique(as_labels(blocks, size=array.size), return_inverse=True)
    order = np.lexsort((array, inverse))
    ordered = array[order]
    counts = np.bincount(inverse, minlength=labels.size)
    starts = np.cumsum(counts) - counts
    medians = (ordered[starts + (counts - 1) // 2] + ordered[starts + counts // 2]) / 2
    return labels, medians


def pair_blocks(
    baseline: ArrayLike,
    other: ArrayLike,
    *,
    blocks: ArrayLike | None = None,
    other_blocks: ArrayLike | None = None,
) -> Pairs:
    """Pair two arms by block; several values of one arm in a block become their median.

    Args:
        baseline: Values of the baseline, any unit, shape (n,).
        other: Values of the other arm in the same unit, shape (m,).
        blocks: Block of each baseline value. None: value i of both arms is of block i.
        other_blocks: Block of each value of the other arm; `blocks` when None.

    Raises:
        UsageError: Values empty or not finite, lengths that do not fit, or no block with both arms.
    """
    first = as_values(baseline, name="baseline values")
    second = as_values(other, name="other values")
    if blocks is None:
        if other_blocks is not None:
            raise UsageError("blocks are given for one arm only", hint="Give them for both")
        if first.size != second.size:
            raise UsageError(
                f"{first.size} baseline values cannot be paired with {second.size} others",
                hint="Give the block of each value",
            )
        return Pairs(blocks=np.arange(first.size), baseline=first, other=second)
    labels_a, a = block_medians(first, blocks=blocks)
    labels_b, b = block_medians(second, blocks=blocks if other_blocks is None else other_blocks)
    common, at_a, at_b = np.intersect1d(labels_a, labels_b, return_indices=True)
    if common.size == 0:
        raise UsageError("no block holds both arms", hint="Only values of one block are paired")
    return Pairs(
        blocks=common,
        baseline=a[at_a],
        other=b[at_b],
        baseline_only=int(labels_a.size - common.size),
        other_only=int(labels_b.size - common.size),
    )
