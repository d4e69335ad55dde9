"""Find the step on which values lie: the tick of a clock, or the digits that a tool printed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from excise.stats._arrays import FloatArray, as_values

MAX_DECIMALS = 9
"""Decimals looked at: nanoseconds printed in seconds."""
COARSE_RATIO = 0.001
"""A step above this share of the median is coarse: the probe's own rule for a batch."""
MAX_DISTINCT = 20_000
"""Distinct values from which the step is estimated; more are thinned out evenly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """The grid on which values lie; steps are in the unit of the values.

    Attributes:
        n: Number of values.
        distinct: Number of different values.
        distinct_ratio: Share of different values, distinct / n.
        step: Step of the grid, None when none is evident from these values.
        step_ratio: Step over the absolute median, None without a step or with median 0.
        printed_step: Power of ten of the last decimal that any value uses, None when a value
            needs more than 9 decimals. An upper bound of nothing: only how the values were written.
        coarse: The step is above 0.1 % of the median.
    """

    n: int
    distinct: int
    distinct_ratio: float
    step: float | None
    step_ratio: float | None
    printed_step: float | None
    coarse: bool

    @property
    def consequence(self) -> str:
        """What follows for a reader, in one sentence, or that nothing does."""
        if self.step is None:
            return "no step is evident in these values"
        share = "" if self.step_ratio is None else f" ({self.step_ratio:.3%} of the median)"
        return (
            f"the values lie on a grid of {self.step:.6g}{share}; "
            "a smaller difference between two values cannot be resolved"
        )


def find_quantisation(values: ArrayLike) -> Quantisation:
    """Find the step of the grid on which values lie, if there is one.

    Decimal fractions and integers are handled as exact integers, whose greatest common divisor
    of differences is the step. A tick that is not a decimal (1/3 us, written in ns and
    rounded) is found as the smallest difference of which all others are near-multiples. A step is
    reported only if chance would hardly give such a fit.

    Args:
        values: Any unit, shape (n,), in any order.

    Raises:
        UsageError: Values empty or not finite.
    """
    array = as_values(values)
    unique = _merge_rounding(np.unique(array))
    printed = _printed_step(unique)
    step = _find_step(unique, printed_step=printed)
    centre = abs(float(np.median(array)))
    step_ratio = step / centre if step is not None and centre > 0 else None
    return Quantisation(
        n=array.size,
        distinct=unique.size,
        distinct_ratio=unique.size / array.size,
        step=step,
        step_ratio=step_ratio,
        printed_step=printed,
        coarse=step_ratio is not None and step_ratio > COARSE_RATIO,
    )


def _merge_rounding(unique: FloatArray) -> FloatArray:
    """Drop values that differ from the one before by float rounding only."""
    tolerance = 8 * np.finfo(float).eps * np.abs(unique).max()
    keep = np.concatenate(([True], np.diff(unique) > tolerance))
    return unique[keep]


def _printed_step(unique: FloatArray) -> float | None:
    """Return the power of ten of the last digit in use, trailing zeros of integers included."""
    if not unique.any():
        return None
    largest = float(np.abs(unique).max())
    for decimals in range(MAX_DECIMALS + 1):
        scaled = unique * 10.0**decimals
        if largest * 10.0**decimals > 2**52:
            return None
        if np.abs(scaled - np.rint(scaled)).max() <= 1e-6:
            break
    else:
        return None
    if decimals:
        return float(10.0**-decimals)
    common = int(np.gcd.reduce(np.rint(unique).astype(np.int64)))
    power = 1
    while common % (power * 10) == 0:
        power *= 10
    return float(power)


def _find_step(unique: FloatArray, *, printed_step: float | None) -> float | None:
    """Return the step of the grid on which the distinct values lie, or None."""
    if unique.size < 3:
        return None
    stride = -(-unique.size // MAX_DISTINCT)
    differences = np.unique(np.diff(unique[::stride]))
    scale = printed_step if printed_step is not None else 0.0
    tick = _approximate_tick(differences, rounding=scale)
    if tick is not None:
        return tick
    if printed_step is None:
        return None
    whole = np.rint(np.diff(unique) / printed_step).astype(np.int64)
    if whole.size < 3:
        return None
    return float(np.gcd.reduce(whole)) * printed_step


def _approximate_tick(differences: FloatArray, *, rounding: float) -> float | None:
    """Return the tick of which all differences are multiples, to a twentieth or to the rounding.

    The smallest difference is the first guess; it is refined over growing differences, because a
    rounded guess drifts off at large multiples.
    """
    tick = float(differences[0])
    if rounding > tick / 4:
        return None
    for difference in differences[1:]:
        multiple = round(difference / tick)
        if abs(difference - multiple * tick) > max(0.1 * tick, rounding):
            return None
        tick += (difference - multiple * tick) / multiple * 0.5
    return tick
