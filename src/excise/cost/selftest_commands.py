"""What self-tests cost a command: per start, per day, and how long a process must live for it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from excise.cost.compared import Comparison
from excise.cost.comparison import compare_configurations
from excise.cost.series import Series, series_of
from excise.events.dataset import Dataset
from excise.stats import median_interval, pair_blocks, pairs_for_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandCost:
    """One command under one state against the same command with self-tests off.

    Attributes:
        comparison: The ratio, its interval and verdict.
        extra_ns: Median over blocks of what one start takes more, in nanoseconds.
        extra_low_ns: Lower end of its 95 % interval; None where there is none.
        extra_high_ns: Upper end.
        major_faults: Median page faults of a start that read from disk.
        per_day_ns: Extra of one start times the starts of a day.
        lifetime_ns: How long a process must live for the extra to be `share` of its life.
        half_width: Half-width of the interval of the ratio, as a fraction; None where none.
        more_blocks: Further blocks until the half-width is below the target, as noisy as these;
            0 where it is.
    """

    comparison: Comparison
    extra_ns: float
    extra_low_ns: float | None
    extra_high_ns: float | None
    major_faults: float | None
    per_day_ns: float
    lifetime_ns: float
    half_width: float | None
    more_blocks: int


def command_costs(
    dataset: Dataset,
    *,
    baselines: dict[str, str],
    starts_per_day: int,
    share: float = 0.01,
    target: float = 0.05,
    metric: str | None = None,
) -> list[CommandCost]:
    """Return the cost of each command under each state.

    Args:
        dataset: Runs of the campaign.
        baselines: For each state, the state it is compared with.
        starts_per_day: Starts of each command in a day.
        share: Share of a process's life that the extra may take, for the lifetime.
        target: Half-width of the interval of the ratio that is narrow enough.
        metric: Metric of the runs that is a time in ns; wall time by default.
    """
    series = {(each.task, each.configuration): each for each in series_of(dataset, metric=metric)}
    faults = (
        {
            (each.task, each.configuration): each
            for each in series_of(dataset, metric="major_faults")
        }
        if _has_faults(dataset)
        else {}
    )
    found = []
    for baseline in dict.fromkeys(baselines.values()):
        for row in compare_configurations(dataset, baseline=baseline, metric=metric).rows:
            if row.event or baselines.get(row.configuration) != baseline:
                continue
            one = series[row.task, baseline]
            two = series[row.task, row.configuration]
            found.append(
                _cost(
                    row,
                    one,
                    two,
                    faults=faults.get((row.task, row.configuration)),
                    starts_per_day=starts_per_day,
                    share=share,
                    target=target,
                )
            )
    return found


def _has_faults(dataset: Dataset) -> bool:
    column = dataset.runs.get_column("major_faults")
    return column.null_count() < column.len()


def _cost(
    row: Comparison,
    one: Series,
    two: Series,
    *,
    faults: Series | None,
    starts_per_day: int,
    share: float,
    target: float,
) -> CommandCost:
    pairs = pair_blocks(one.values, two.values, blocks=one.blocks, other_blocks=two.blocks)
    differences = np.asarray(pairs.other) - np.asarray(pairs.baseline)
    extra = float(np.median(differences)) if differences.size else math.nan
    interval = median_interval(differences) if differences.size else None
    width = half_width(row.low, row.high)
    return CommandCost(
        comparison=row,
        extra_ns=extra,
        extra_low_ns=interval.low if interval else None,
        extra_high_ns=interval.high if interval else None,
        major_faults=float(np.median(faults.values)) if faults and faults.values.size else None,
        per_day_ns=extra * starts_per_day,
        lifetime_ns=max(extra, 0.0) / share,
        half_width=width,
        more_blocks=more_blocks(width, n=row.n, target=target),
    )


def half_width(low: float | None, high: float | None) -> float | None:
    """Return half the width of a ratio's interval as a fraction of it; None where there is none."""
    if low is None or high is None or low <= 0:
        return None
    return math.expm1(math.log(high / low) / 2)


def more_blocks(width: float | None, *, n: int, target: float) -> int:
    """Return how many more blocks bring the half-width to the target, as noisy as these.

    The width of the interval of a median shrinks with the square root of the number of blocks.
    """
    if width is None:
        return max(pairs_for_interval() - n, 1)
    if width <= target:
        return 0
    return max(math.ceil(n * (width / target) ** 2) - n, 1)
