"""Turn what callers pass into checked float64 arrays, with one error for all misuse."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excise.errors import UsageError

FloatArray = NDArray[np.float64]
LARGEST = 1e50
"""Values beyond this, or positive ones below its inverse, are no measurement in any unit; within it
no ratio, square or cube leaves the range of floats."""


def as_values(values: ArrayLike, *, name: str = "values") -> FloatArray:
    """Return the values as a one-dimensional float64 array that holds at least one, all finite.

    Args:
        values: Anything numpy reads as one dimension of numbers, in any unit.
        name: What the values are, for the error.

    Raises:
        UsageError: Not numbers, not one dimension, empty, or a value is NaN or above 1e50.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} are not numbers ({error})") from error
    if array.ndim != 1:
        raise UsageError(f"{name} have {array.ndim} dimensions instead of one")
    if array.size == 0:
        raise UsageError(f"{name} hold no value", hint="Statistics of nothing are not defined")
    bad = ~np.isfinite(array)
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise UsageError(
            f"{name} hold {int(bad.sum())} values that are not finite, the first at index {first}",
            hint="Leave failed runs out, and count them, before asking for statistics",
        )
    if np.abs(array).max() > LARGEST:
        raise UsageError(f"{name} hold a value above {LARGEST:g}", hint="Choose a larger unit")
    return array


def as_positive(values: ArrayLike, *, name: str = "values") -> FloatArray:
    """Return the values as `as_values` does, all above zero, so that their logarithm exists.

    Raises:
        UsageError: As `as_values`, or a value is zero, negative or below 1e-50.
    """
    array = as_values(values, name=name)
    bad = array <= 0
    if bad.any():
        first = int(np.flatnonzero(bad)[0])
        raise UsageError(
            f"{name} hold {int(bad.sum())} values that are not above zero, "
            f"the first {array[first]:g} at index {first}",
            hint="A ratio needs positive values; a zero time means that the clock is too coarse",
        )
    if array.min() < 1 / LARGEST:
        raise UsageError(f"{name} hold a value below {1 / LARGEST:g}", hint="Choose a smaller unit")
    return array


def as_labels(labels: ArrayLike, *, size: int) -> NDArray[Any]:
    """Return block labels as an array, one for each value.

    Raises:
        UsageError: Not one label for each value.
    """
    array = np.asarray(labels)
    if array.shape != (size,):
        raise UsageError(f"blocks have shape {array.shape}, but there are {size} values")
    return array


def check_confidence(confidence: float, *, family: int = 1) -> float:
    """Return the confidence of one interval so that a family of them holds together (Bonferroni).

    Raises:
        UsageError: Confidence outside 0.5 to 1, or a family below one.
    """
    if not 0.5 <= confidence < 1:
        raise UsageError(f"confidence is {confidence:g}, outside 0.5 to 1")
    if family < 1:
        raise UsageError(f"a family of {family} comparisons cannot be", hint="Give 1 or more")
    return 1 - (1 - confidence) / family


def check_at_least(value: float, *, minimum: float, name: str) -> None:
    """Refuse a parameter below its minimum (and NaN).

    Raises:
        UsageError: The value is below the minimum, or not a number.
    """
    if not value >= minimum:
        raise UsageError(f"{name} is {value:g}, below {minimum:g}")
