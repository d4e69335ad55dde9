"""What a series does over its runs: does it grow, and can it be trusted as it is?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from excise.cost.series import FloatArray, Series
from excise.stats import Growth, Stability, growth, judge_stability
from excise.stats.series import POINT_LIMIT

# Below this change over all runs a mean still says something.
GROWTH_MARGIN_RATIO: Final = 0.05
# Points searched in all series together, and in each at least; each may hold many runs.
ALL_POINTS: Final = 15_000
LEAST_POINTS: Final = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesStability:
    """The verdict on one series, and what to do about it."""

    task: str
    configuration: str
    metric: str
    stability: Stability


def growth_of(series: Series) -> Growth | None:
    """Return how a series grows with the run number, or None if it does not.

    Args:
        series: Counted runs; run numbers tell where a run stands among those of its kind.
    """
    if not _may_grow(series.values):
        return None
    found = growth(series.runs, series.values, margin_ratio=GROWTH_MARGIN_RATIO)
    return found if found.grows else None


def _may_grow(values: FloatArray) -> bool:
    """Tell at little cost whether the last runs take more than the first ones.

    Half the margin is asked for, of medians over an eighth of the runs each: growth by any law that
    exceeds the margin shows there, also when it begins late.
    """
    if not values.size:
        return False
    part = max(1, values.size // 8)
    first, last = float(np.median(values[:part])), float(np.median(values[-part:]))
    return last - first > GROWTH_MARGIN_RATIO / 2 * abs(first)


def stabilities(found: Sequence[Series]) -> Iterator[SeriesStability]:
    """Yield the verdict on every series that has values above zero.

    The more series there are, the fewer points of each are searched for changes of level.
    """
    limit = min(POINT_LIMIT, max(LEAST_POINTS, ALL_POINTS // max(1, len(found))))
    for series in found:
        if series.values.size and series.values.min() > 0:
            first = series.first if series.first is not None and series.first > 0 else None
            yield SeriesStability(
                task=series.task,
                configuration=series.configuration,
                metric=series.metric,
                stability=judge_stability(series.values, first=first, limit=limit),
            )
