"""The ratio of two arms whose values have levels (block, run, batch), by hierarchical bootstrap.

Values of one run are not independent of each other, so n is not their number. Resampling first
blocks, then runs in a block, then batches in a run, keeps each level's variance where it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from excise.errors import UsageError
from excise.stats._arrays import FloatArray, as_positive, check_at_least
from excise.stats.bootstrap import Method, bootstrap_interval, check_resamples
from excise.stats.compare import Verdict, decide
from excise.stats.interval import Interval, pairs_for_interval

Levels: TypeAlias = Sequence[Sequence[ArrayLike]]
"""Blocks of runs of batches: `levels[block][run]` is the array of the run's values."""
Statistic = Literal["median_ln_ratio", "median", "mean"]
_CHUNK = 4_000_000
"""Values drawn at once, so that memory stays flat (32 MB for each temporary array)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchicalRatio:
    """The ratio other / baseline over levels, with its bootstrap interval.

    Attributes:
        ratio: The other arm over the baseline, without unit.
        interval: Bootstrap interval of the ratio; None below as many blocks as a sign test needs.
        statistic: `median_ln_ratio` (median over blocks), `median` (ratio of medians) or `mean`.
        method: `percentile` or `bca`.
        paired: Block i of both arms was resampled together.
        blocks: Number of blocks of the baseline and of the other arm.
        runs: Number of runs of each, all blocks together.
        values: Number of values of each.
        resamples: Number of bootstrap resamples.
        seed: Seed of the resampling: the same seed gives the same interval.
        margin_ratio: Margin of equivalence.
        verdict: The answer in words.
    """

    ratio: float
    interval: Interval | None
    statistic: Statistic
    method: Method
    paired: bool
    blocks: tuple[int, int]
    runs: tuple[int, int]
    values: tuple[int, int]
    resamples: int
    seed: int
    margin_ratio: float
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class _Arm:
    """One arm as a padded array, shape (blocks, runs, batches), with the counts of each level."""

    values: FloatArray
    runs: NDArray[np.int64]
    batches: NDArray[np.int64]


def hierarchical_ratio(
    baseline_levels: Levels,
    other_levels: Levels,
    *,
    seed: int,
    resamples: int = 2000,
    statistic: Statistic = "median_ln_ratio",
    method: Method = "percentile",
    paired: bool = True,
    margin_ratio: float = 0.01,
    confidence: float = 0.95,
) -> HierarchicalRatio:
    """Return the ratio of two arms with levels, resampled with replacement at each level.

    Each level is reduced to its median (mean for `mean`): batches to a run, runs to a block. So a
    run with more batches does not weigh more. `median_ln_ratio` takes the median over blocks of
    ln(other / baseline), as `compare_paired` does, so that what is common to a block cancels;
    `median` and `mean` reduce the blocks of each arm and divide. All levels being resampled,
    the interval is rather too wide than too narrow when there are few runs in a block.

    Args:
        baseline_levels: Blocks of runs of values, positive, any unit; ragged is allowed.
        other_levels: The same for the other arm; block i is the partner of block i when paired.
        seed: Seed of the resampling.
        resamples: Number of resamples, 200 or more.
        statistic: `median_ln_ratio` (needs paired blocks), `median` or `mean`.
        method: `percentile`, or `bca` with a jackknife over blocks (use it with the mean:
            the jackknife of a median says little).
        paired: Resample block i of both arms together, which removes what is common to a block.
        margin_ratio: Margin of equivalence.
        confidence: Confidence of the interval.

    Raises:
        UsageError: A level is empty, a value is not positive or not finite, paired arms differ in
            their number of blocks, or a parameter is out of range.

    Source: T. Kalibera and R. Jones, Rigorous Benchmarking in Reasonable Time (ISMM 2013), and
    Quantifying Performance Changes with Effect Size Confidence Intervals (arXiv 2007.10899).
    """
    check_resamples(resamples)
    check_at_least(margin_ratio, minimum=0, name="margin_ratio")
    if statistic not in get_args(Statistic):
        raise UsageError(
            f"unknown statistic {statistic!r}", hint=f"Use one of {', '.join(get_args(Statistic))}"
        )
    if statistic == "median_ln_ratio" and not paired:
        raise UsageError("the median ln ratio needs paired blocks", hint="Use median or mean")
    arms = (_as_arm(baseline_levels, name="baseline"), _as_arm(other_levels, name="other"))
    blocks = (arms[0].runs.size, arms[1].runs.size)
    if paired and blocks[0] != blocks[1]:
        raise UsageError(f"{blocks[0]} baseline blocks cannot be paired with {blocks[1]} others")
    block_values = [_block_statistics(arm, statistic=statistic) for arm in arms]
    ratio = float(_ratio(block_values[0], block_values[1], statistic=statistic))
    interval = None
    if min(blocks) >= pairs_for_interval(confidence=confidence):
        rng = np.random.default_rng(seed)
        replicates = _resample(arms, rng, resamples=resamples, statistic=statistic, paired=paired)
        jackknife = None
        if method == "bca":
            jackknife = _jackknife(block_values, statistic=statistic, paired=paired)
        interval = bootstrap_interval(
            replicates, estimate=ratio, jackknife=jackknife, method=method, confidence=confidence
        )
    return HierarchicalRatio(
        ratio=ratio,
        interval=interval,
        statistic=statistic,
        method=method,
        paired=paired,
        blocks=blocks,
        runs=(int(arms[0].runs.sum()), int(arms[1].runs.sum())),
        values=(int(arms[0].batches.sum()), int(arms[1].batches.sum())),
        resamples=resamples,
        seed=seed,
        margin_ratio=margin_ratio,
        verdict=decide(interval, margin_ratio=margin_ratio),
    )


def _as_arm(levels: Levels, *, name: str) -> _Arm:
    """Pad ragged levels into one array; a level without content is refused."""
    if len(levels) == 0:
        raise UsageError(f"{name} has no block")
    blocks: list[list[FloatArray]] = []
    for number, block in enumerate(levels):
        if len(block) == 0:
            raise UsageError(f"{name} block {number} has no run")
        blocks.append(
            [
                as_positive(run, name=f"{name} values of block {number}, run {index}")
                for index, run in enumerate(block)
            ]
        )
    runs = np.array([len(block) for block in blocks], dtype=np.int64)
    longest = max(run.size for block in blocks for run in block)
    values = np.full((len(blocks), int(runs.max()), longest), np.inf)
    batches = np.zeros(values.shape[:2], dtype=np.int64)
    for i, block in enumerate(blocks):
        for j, run in enumerate(block):
            values[i, j, : run.size] = run
            batches[i, j] = run.size
    return _Arm(values, runs, batches)


def _reduce(values: FloatArray, counts: NDArray[np.int64], *, statistic: Statistic) -> FloatArray:
    """Reduce the last axis to the statistic of its first `counts` values; the rest is infinite."""
    counts = np.maximum(counts, 1)
    if statistic == "mean":
        total = np.where(np.isinf(values), 0.0, values).sum(axis=-1)
        return np.asarray(total / counts, dtype=np.float64)
    if values.shape[-1] == 1:
        return np.asarray(values[..., 0], dtype=np.float64)
    ordered = np.sort(values, axis=-1)
    counts = np.broadcast_to(counts, ordered.shape[:-1])[..., np.newaxis]
    lower = np.take_along_axis(ordered, (counts - 1) // 2, axis=-1)[..., 0]
    upper = np.take_along_axis(ordered, counts // 2, axis=-1)[..., 0]
    return np.asarray(lower + (upper - lower) / 2, dtype=np.float64)


def _mask_beyond(values: FloatArray, counts: NDArray[np.int64]) -> FloatArray:
    """Set what lies beyond `counts` on the last axis to infinity, for `_reduce`."""
    beyond = np.arange(values.shape[-1]) >= counts[..., np.newaxis]
    return np.where(beyond, np.inf, values)


def _block_statistics(arm: _Arm, *, statistic: Statistic) -> FloatArray:
    """Return the statistic of each block, shape (blocks,)."""
    of_runs = _reduce(_finite_medians(arm.values, arm.batches), arm.batches, statistic=statistic)
    return _reduce(_mask_beyond(of_runs, arm.runs), arm.runs, statistic=statistic)


def _finite_medians(values: FloatArray, batches: NDArray[np.int64]) -> FloatArray:
    """Give padded runs that do not exist a finite value, so that no infinity is subtracted."""
    return np.where((batches == 0)[..., np.newaxis], 1.0, values)


def _of_blocks(values: FloatArray, *, statistic: Statistic) -> FloatArray:
    """Reduce the blocks on the last axis, all of them finite."""
    reduced = values.mean(axis=-1) if statistic == "mean" else np.median(values, axis=-1)
    return np.asarray(reduced, dtype=np.float64)


def _ratio(baseline: FloatArray, other: FloatArray, *, statistic: Statistic) -> FloatArray:
    """Return the ratio of the blocks on the last axis of both arms."""
    if statistic == "median_ln_ratio":
        return np.asarray(np.exp(np.median(np.log(other / baseline), axis=-1)), dtype=np.float64)
    top = _of_blocks(other, statistic=statistic)
    return np.asarray(top / _of_blocks(baseline, statistic=statistic), dtype=np.float64)


def _resample(
    arms: tuple[_Arm, _Arm],
    rng: np.random.Generator,
    *,
    resamples: int,
    statistic: Statistic,
    paired: bool,
) -> FloatArray:
    """Return the ratio of each resample, shape (resamples,), in chunks of flat memory."""
    largest = max(arm.values.size for arm in arms)
    chunk = max(1, _CHUNK // largest)
    parts = []
    for start in range(0, resamples, chunk):
        count = min(chunk, resamples - start)
        chosen = rng.integers(0, arms[0].runs.size, size=(count, arms[0].runs.size))
        other = chosen
        if not paired:
            other = rng.integers(0, arms[1].runs.size, size=(count, arms[1].runs.size))
        below = _draw(arms[0], chosen, rng, statistic=statistic)
        above = _draw(arms[1], other, rng, statistic=statistic)
        parts.append(_ratio(below, above, statistic=statistic))
    return np.concatenate(parts)


def _draw(
    arm: _Arm, blocks: NDArray[np.int64], rng: np.random.Generator, *, statistic: Statistic
) -> FloatArray:
    """Resample runs and batches within the chosen blocks and reduce them, shape of `blocks`."""
    counts = arm.runs[blocks]
    shape = (*blocks.shape, arm.values.shape[1])
    runs = (rng.random(shape) * counts[..., np.newaxis]).astype(np.int64)
    batch_counts = arm.batches[blocks[..., np.newaxis], runs]
    picks = (rng.random((*shape, arm.values.shape[2])) * batch_counts[..., np.newaxis]).astype(
        np.int64
    )
    values = arm.values[blocks[..., np.newaxis, np.newaxis], runs[..., np.newaxis], picks]
    of_runs = _reduce(_mask_beyond(values, batch_counts), batch_counts, statistic=statistic)
    return _reduce(_mask_beyond(of_runs, counts), counts, statistic=statistic)


def _jackknife(
    block_values: Sequence[FloatArray], *, statistic: Statistic, paired: bool
) -> FloatArray:
    """Return the ratio without each block in turn; blocks of both arms in turn when unpaired."""
    baseline, other = block_values

    def leave_one_out(values: FloatArray) -> FloatArray:
        rest = np.broadcast_to(values, (values.size, values.size))
        return rest[~np.eye(values.size, dtype=bool)].reshape(values.size, values.size - 1)

    if paired:
        return _ratio(leave_one_out(baseline), leave_one_out(other), statistic=statistic)
    return np.concatenate(
        (
            _ratio(leave_one_out(baseline), other, statistic=statistic),
            _ratio(baseline, leave_one_out(other), statistic=statistic),
        )
    )
