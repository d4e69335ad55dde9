"""By how much a figure may be wrong, and what that makes of sums and shares.

Two kinds of error are told apart. A *limit* is never exceeded, as half of the last digit that a
table prints, or is shared by all parts, as the error of the tracer's calibration: limits add. A
*spread* is exceeded in 5 % of cases, as that of a mean over runs: spreads that do not depend on
each other add in quadrature. Where parts and whole are of the same runs, they do depend on each
other; then their spreads are those of the runs' own sums.

Source: JCGM 100 (GUM), 5.1 and F.1.2; Fieller, Some problems in interval estimation (1954).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """The error of a figure, in its unit.

    Attributes:
        limit: What rounding never exceeds, and what all parts share.
        spread: What the independent rest stays below in 95 % of cases.
    """

    limit: float = 0.0
    spread: float = 0.0

    @property
    def margin(self) -> float:
        """Return both together."""
        return self.limit + self.spread

    def times(self, factor: float) -> Uncertainty:
        """Return the error of a multiple of the figure."""
        return Uncertainty(abs(factor) * self.limit, abs(factor) * self.spread)


EXACT: Final = Uncertainty()


def summed(errors: Iterable[Uncertainty]) -> Uncertainty:
    """Return the error of a sum, or difference, of figures that do not depend on each other."""
    found = list(errors)
    return Uncertainty(
        math.fsum(each.limit for each in found), math.hypot(*(each.spread for each in found))
    )


def share_interval(
    part: float,
    whole: float,
    *,
    part_error: Uncertainty,
    whole_error: Uncertainty,
    rest_spread: float | None = None,
) -> tuple[float, float] | None:
    """Return between what `part / whole` lies, by Fieller's theorem and all limits.

    Args:
        part: What is explained.
        whole: What there is.
        part_error: Of the part.
        whole_error: Of the whole.
        rest_spread: Spread of `whole - part`, where the two depend on each other.

    Returns:
        None where nothing is uncertain, or the whole may be 0.
    """
    if not (part_error.margin or whole_error.margin) or abs(whole) <= whole_error.margin:
        return None
    covariance = 0.0
    if rest_spread is not None:
        squares = part_error.spread**2 + whole_error.spread**2 - rest_spread**2
        covariance = squares / 2
    ends = [
        end
        for sign in (-1, 1)
        for other in (-1, 1)
        for end in _fieller(
            part + sign * part_error.limit,
            whole + other * whole_error.limit,
            part_error.spread,
            whole_error.spread,
            covariance,
        )
    ]
    return (min(ends), max(ends))


def _fieller(
    part: float, whole: float, part_spread: float, whole_spread: float, covariance: float
) -> tuple[float, float]:
    """Return all ratios r for which `part - r * whole` is within its spread of 0."""
    square = whole**2 - whole_spread**2
    middle = part * whole - covariance
    root = math.sqrt(max(0.0, middle**2 - square * (part**2 - part_spread**2)))
    return ((middle - root) / square, (middle + root) / square)
