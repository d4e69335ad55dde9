"""Counts of guests that repeat exactly: the steady count, and the floor that A/A guests show.

A count has no noise that more rounds would average out: two boots of one guest print the same
numbers. What moves it are irrelevant changes, which every comparison makes: another command line,
another file. How much they move it is measured by guests that differ in nothing else, and a
difference is known no better than that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median_low
from typing import Final

from excise.capture.manifest import Manifest
from excise.cost.series import FloatArray, Series
from excise.stats.interval import Interval

INSTRUCTIONS: Final = "instructions"


def is_counted(series: Series, manifest: Manifest) -> bool:
    """Tell whether a series counts instructions of a guest that repeats exactly.

    Instructions that a hardware counter gave, in paired blocks, have noise like any time.
    """
    return series.unit == INSTRUCTIONS and not manifest.paired


def steady(values: FloatArray) -> float:
    """Return the value in the middle of the rounds, the lower one of two.

    Args:
        values: Least batch of each round, or one count a round, float64, shape (n,), n >= 1.
    """
    return float(median_low(values))


def noise_floors(series: Iterable[Series], manifest: Manifest) -> dict[str, float]:
    """Return the largest relative difference that A/A guests showed, by task.

    Tasks that no A/A guest measured are left out: noise is measured, never assumed.
    """
    rows = [each for each in series if not each.event and each.values.size]
    base = {
        each.task: steady(each.values) for each in rows if each.configuration == manifest.baseline
    }
    floors: dict[str, float] = {}
    for each in rows:
        if each.configuration in manifest.twins and base.get(each.task, 0.0) > 0.0:
            change = abs(steady(each.values) / base[each.task] - 1.0)
            floors[each.task] = max(floors.get(each.task, 0.0), change)
    return floors


def within_floor(ratio: float, noise_ratio: float) -> Interval:
    """Return where a ratio lies if it is known as well as the noise floor says.

    It is what was seen to happen, without a confidence: that is NaN.
    """
    return Interval(
        low=ratio / (1.0 + noise_ratio),
        high=ratio * (1.0 + noise_ratio),
        confidence=math.nan,
        coverage=math.nan,
    )


def larger_floors(*floors: Mapping[str, float]) -> dict[str, float]:
    """Return the larger floor of each task that all captures measured."""
    common = set.intersection(*(set(each) for each in floors))
    return {task: max(each[task] for each in floors) for task in sorted(common)}
