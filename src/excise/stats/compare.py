"""Compare two arms measured in the same blocks: the ratio, its interval, and a verdict in words.

The order inside each block is drawn at random, so if the arms do not differ each sign of
ln(other / baseline) is a fair coin, whatever drift or autocorrelation lies under the blocks. The
sign test is then exact, and its interval for the median needs no assumption about the shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from excise.errors import UsageError
from excise.stats._arrays import (
    FloatArray,
    as_positive,
    as_values,
    check_at_least,
    check_confidence,
)
from excise.stats.autocorrelation import effective_sample_size, ljung_box
from excise.stats.interval import (
    Interval,
    pairs_for_interval,
    quantile_interval,
    sign_test_p,
)
from excise.stats.pairs import Pairs, pair_blocks
from excise.stats.quantisation import find_quantisation

POWER = 0.8
"""Chance to decide with which `runs_needed` is planned."""


class Verdict(StrEnum):
    """What a comparison says, in words."""

    COSTS = "costs"
    SAVES = "saves"
    EQUIVALENT = "equivalent within the margin"
    INCONCLUSIVE = "inconclusive"
    NOT_COMPARABLE = "not comparable"


class Note(StrEnum):
    """What a reader of a comparison should know beside the verdict."""

    TOO_FEW_PAIRS = "no interval of this confidence exists for so few values"
    TESTS_DISAGREE = "the Wilcoxon test disagrees with the sign test"
    MOSTLY_TIED = "half the pairs or more are exactly equal"
    RESOLUTION_LIMITS = "the interval is mostly the resolution of the values, not their noise"
    DEPENDENT_PAIRS = "the ratios of successive blocks depend on each other"
    BLOCKS_LEFT_OUT = "some blocks hold only one arm and were left out"
    AA_FAILED = "the A/A arm differs from the baseline"
    AA_NOT_COVERED = "the A/A arm has too few pairs to tell"
    UNKNOWN_ORDER = "unpaired, order unknown: drift may look like a difference"
    SEPARATED = "the samples do not overlap"


class AAOutcome(StrEnum):
    """What became of an A/A check; too few pairs never pass."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_COVERED = "not covered"


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedComparison:
    """The ratio other / baseline over pairs, with interval, tests and verdict.

    Ratios have no unit: 1.041 is 4.1 % more than the baseline.

    Attributes:
        n: Number of pairs (blocks that hold both arms).
        effective_n: Number of independent pairs that the ln ratios are worth, in block order.
        ratio: exp of the median of ln(other / baseline).
        interval: Sign-test interval of the ratio, widened by the resolution; None when no interval
            of this confidence exists for n pairs.
        confidence: Confidence of the whole family.
        family: Number of comparisons among which the confidence is shared (Bonferroni).
        margin_ratio: Margin of equivalence: 0.01 is 1 %.
        verdict: The answer in words.
        sign_p: Two-sided sign-test p-value, ties against rejection.
        wilcoxon_p: Two-sided Wilcoxon signed-rank p-value of the same ln ratios, as a check.
        tied: Number of pairs that are exactly equal.
        resolution_ratio: Resolution of the values over the baseline's median; 0 when exact.
        runs_needed: More pairs needed to decide with 80 % chance, estimated from these; 0 when
            decided, None when no number of pairs would do (or the arms cannot be compared).
        baseline_only: Blocks left out because only the baseline has values there.
        other_only: Blocks left out because only the other arm has values there.
        notes: What else the reader should know.
    """

    n: int
    effective_n: float
    ratio: float
    interval: Interval | None
    confidence: float
    family: int
    margin_ratio: float
    verdict: Verdict
    sign_p: float
    wilcoxon_p: float
    tied: int
    resolution_ratio: float
    runs_needed: int | None
    baseline_only: int
    other_only: int
    notes: tuple[Note, ...]

    @property
    def change_percent(self) -> float:
        """Change against the baseline in per cent of the baseline."""
        return (self.ratio - 1) * 100

    @property
    def low_percent(self) -> float | None:
        """Lower end of the interval as a change in per cent, if there is an interval."""
        return None if self.interval is None else (self.interval.low - 1) * 100

    @property
    def high_percent(self) -> float | None:
        """Upper end of the interval as a change in per cent, if there is an interval."""
        return None if self.interval is None else (self.interval.high - 1) * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class AACheck:
    """Whether two arms that are the same thing measure the same.

    Attributes:
        outcome: Passed, failed, or not covered when there are too few pairs.
        comparison: The comparison of the twin with the baseline.
    """

    outcome: AAOutcome
    comparison: PairedComparison

    @property
    def passed(self) -> bool:
        """Tell whether the check passed; not covered is not passed."""
        return self.outcome is AAOutcome.PASSED

    @property
    def interval(self) -> Interval | None:
        """Interval of the ratio twin / baseline, if there is one."""
        return self.comparison.interval


def decide(interval: Interval | None, *, margin_ratio: float) -> Verdict:
    """Return the verdict that an interval of the ratio gives.

    In this order: no interval is inconclusive; an interval within [1 / (1 + margin), 1 + margin] is
    equivalent, also when it leaves 1 out (a real difference that does not matter); above 1
    costs; below 1 saves; else inconclusive. The margin is symmetric in ln, so that exchanging the
    arms exchanges the verdict.

    Source: inclusion of the interval decides as two one-sided tests do (Schuirmann 1987), here at
    half of alpha on each side.
    """
    if interval is None:
        return Verdict.INCONCLUSIVE
    if interval.low * (1 + margin_ratio) >= 1 and interval.high <= 1 + margin_ratio:
        return Verdict.EQUIVALENT
    if interval.low > 1:
        return Verdict.COSTS
    if interval.high < 1:
        return Verdict.SAVES
    return Verdict.INCONCLUSIVE


def compare_paired(
    baseline: ArrayLike,
    other: ArrayLike,
    *,
    blocks: ArrayLike | None = None,
    other_blocks: ArrayLike | None = None,
    margin_ratio: float = 0.01,
    confidence: float = 0.95,
    family: int = 1,
    resolution: float | None = None,
    aa: AACheck | None = None,
) -> PairedComparison:
    """Compare two arms by the median of ln(other / baseline) over blocks.

    Args:
        baseline: Values of the baseline, positive, any unit, shape (n,).
        other: Values of the other arm in the same unit, shape (m,); m = n without blocks.
        blocks: Block of each baseline value; several values in a block become their median. None:
            value i of both arms is of block i.
        other_blocks: Block of each value of the other arm; `blocks` when None.
        margin_ratio: Margin of equivalence, 0.01 for 1 %.
        confidence: Confidence of the interval, or of all intervals of the family together.
        family: Number of comparisons that shall hold together (arms, tasks).
        resolution: Step of the values, in their unit; the interval is widened by it on both sides.
            0 for exact values such as counts. None: nothing is added, unless half the
            pairs tie; then the step is looked for in the values.
        aa: The A/A check of the same campaign. Failed: the verdict is `not comparable`.

    Raises:
        UsageError: A value is not positive or not finite, nothing can be paired, or a parameter is
            out of range.

    Source: paired blocks as in Bulej et al., Duet Benchmarking (ICPE 2020); sign test and Wilcoxon
    as in Conover, Practical Nonparametric Statistics.
    """
    each = check_confidence(confidence, family=family)
    check_at_least(margin_ratio, minimum=0, name="margin_ratio")
    pairs = pair_blocks(
        as_positive(baseline, name="baseline values"),
        as_positive(other, name="other values"),
        blocks=blocks,
        other_blocks=other_blocks,
    )
    logs = np.log(pairs.other / pairs.baseline)
    tied = int((logs == 0).sum())
    resolution_ratio = _resolution_ratio(pairs, tied=tied, resolution=resolution)
    bare = quantile_interval(np.sort(logs), confidence=each)
    interval = _as_ratio(bare, resolution_ratio=resolution_ratio)
    verdict = decide(interval, margin_ratio=margin_ratio)
    runs_needed = _runs_needed(
        logs, bare, margin_ratio=margin_ratio, confidence=each, resolution_ratio=resolution_ratio
    )
    if verdict is not Verdict.INCONCLUSIVE:
        runs_needed = 0
    if aa is not None and aa.outcome is AAOutcome.FAILED:
        verdict, runs_needed = Verdict.NOT_COMPARABLE, None
    sign_p, wilcoxon_p = sign_test_p(logs), wilcoxon_test_p(logs)
    effective = effective_sample_size(logs)
    return PairedComparison(
        n=logs.size,
        effective_n=effective,
        ratio=math.exp(float(np.median(logs))),
        interval=interval,
        confidence=confidence,
        family=family,
        margin_ratio=margin_ratio,
        verdict=verdict,
        sign_p=sign_p,
        wilcoxon_p=wilcoxon_p,
        tied=tied,
        resolution_ratio=resolution_ratio,
        runs_needed=runs_needed,
        baseline_only=pairs.baseline_only,
        other_only=pairs.other_only,
        notes=_notes(
            pairs,
            bare=bare,
            tied=tied,
            resolution_ratio=resolution_ratio,
            dependent=_depends(logs, effective_n=effective),
            disagree=(sign_p <= 1 - each) != (wilcoxon_p <= 1 - each),
            aa=aa,
        ),
    )


def check_aa(
    baseline: ArrayLike,
    twin: ArrayLike,
    *,
    blocks: ArrayLike | None = None,
    other_blocks: ArrayLike | None = None,
    margin_ratio: float = 0.01,
    confidence: float = 0.95,
    family: int = 1,
) -> AACheck:
    """Check that an arm which repeats the baseline measures the same as the baseline.

    Rule: failed exactly when the sign-test interval of the ratio leaves 1 out. With correct
    data each sign is a fair coin, so it fails with probability 1 - confidence at most, whatever the
    noise; with a family of A/A arms, all together. No resolution is added: ties count
    against failing anyway.

    Args:
        baseline: Values of the baseline, positive, any unit, shape (n,).
        twin: Values of the arm that is the same, shape (m,).
        blocks: Block of each baseline value, as in `compare_paired`.
        other_blocks: Block of each value of the twin; `blocks` when None.
        margin_ratio: Margin of equivalence, for the words of the comparison only.
        confidence: 1 minus the accepted rate of false failures.
        family: Number of A/A checks in the campaign that share this rate.

    Raises:
        UsageError: As `compare_paired`.
    """
    comparison = compare_paired(
        baseline,
        twin,
        blocks=blocks,
        other_blocks=other_blocks,
        margin_ratio=margin_ratio,
        confidence=confidence,
        family=family,
        resolution=0.0,
    )
    if comparison.interval is None:
        outcome = AAOutcome.NOT_COVERED
    elif comparison.interval.holds(1.0):
        outcome = AAOutcome.PASSED
    else:
        outcome = AAOutcome.FAILED
    return AACheck(outcome=outcome, comparison=comparison)


def holm(p_values: ArrayLike) -> FloatArray:
    """Return p-values adjusted so that rejecting those below alpha errs in alpha at most overall.

    Args:
        p_values: One for each task, 0 to 1, shape (k,); an empty list gives an empty array.

    Returns:
        Adjusted p-values in the same order, float64, shape (k,).

    Raises:
        UsageError: A p-value is outside 0 to 1.

    Source: S. Holm, Scandinavian Journal of Statistics 6 (1979).
    """
    p = np.asarray(p_values, dtype=np.float64)
    if p.ndim != 1 or not ((p >= 0) & (p <= 1)).all():
        raise UsageError("p-values must be one dimension of numbers from 0 to 1")
    if p.size == 0:
        return p
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1.0, stepped)
    return adjusted


def wilcoxon_test_p(values: ArrayLike) -> float:
    """Return the two-sided Wilcoxon signed-rank p-value of symmetry about zero.

    Exact up to 50 values without ties, else by the normal approximation. Zeros are ranked and then
    left out of the sums. All zeros give 1.

    Raises:
        UsageError: Values empty or not finite.

    Source: J. W. Pratt, JASA 54 (1959), for zeros.
    """
    from scipy.stats import rankdata, wilcoxon  # here, because it takes half a second to import

    array = as_values(values)
    if not array.any():
        return 1.0
    sizes = np.abs(array)
    if array.all() and np.unique(sizes).size == array.size:
        return float(wilcoxon(array).pvalue)
    # Exact methods try all signs where ranks tie, which takes too long for a check
    ranks = np.where(array == 0, 0.0, rankdata(sizes))
    distance = abs(float(ranks @ np.sign(array)))
    return float(2 * ndtr(-distance / math.sqrt(float(ranks @ ranks))))


def _as_ratio(bare: Interval | None, *, resolution_ratio: float) -> Interval | None:
    """Turn an interval of the ln ratio into one of the ratio, wider by the resolution."""
    if bare is None:
        return None
    extra = math.log1p(resolution_ratio)
    return Interval(
        low=math.exp(bare.low - extra),
        high=math.exp(bare.high + extra),
        confidence=bare.confidence,
        coverage=bare.coverage,
    )


def _resolution_ratio(pairs: Pairs, *, tied: int, resolution: float | None) -> float:
    """Return the step of the values over the median of the baseline.

    Without a given resolution it is looked for only when half the pairs or more tie: then the
    step, not the noise, has made them equal.
    """
    if resolution is None:
        if 2 * tied < pairs.baseline.size:
            return 0.0
        both = np.concatenate((pairs.baseline, pairs.other))
        found = find_quantisation(both)
        step = found.step if found.step is not None else found.printed_step
        resolution = step if step is not None else 0.0
    check_at_least(resolution, minimum=0, name="resolution")
    return float(resolution / np.median(pairs.baseline))


def _runs_needed(
    logs: FloatArray,
    bare: Interval | None,
    *,
    margin_ratio: float,
    confidence: float,
    resolution_ratio: float,
) -> int | None:
    """Estimate how many more pairs decide, with chance POWER, if the pilot's median is the truth.

    The median of n values has standard error s / sqrt(n), where s = 1 / (2 f) and f is the density
    at the median. The pilot's interval gives s (its half-width is z s / sqrt(n)); without one
    the MAD does, as for a normal. To decide, the interval must leave 0 (distance |m|) or fit into
    the margin (distance margin - |m|): the farther one is reached first.
    """
    n = logs.size
    minimum = pairs_for_interval(confidence=confidence)
    z = float(ndtri((1 + confidence) / 2))
    median = abs(float(np.median(logs)))
    if bare is not None and bare.half_width > 0:
        spread = bare.half_width * math.sqrt(n) / z
    else:
        mad = float(np.median(np.abs(logs - np.median(logs))))
        spread = mad * 1.4826 * math.sqrt(math.pi / 2)
    extra = math.log1p(resolution_ratio)
    distance = max(median, math.log1p(margin_ratio) - median) - extra
    if distance <= 0:
        return None
    total = ((z + float(ndtri(POWER))) * spread / distance) ** 2
    if total > 1e12:
        return None
    return max(1, minimum - n, math.ceil(total) - n)


def _depends(logs: FloatArray, *, effective_n: float) -> bool:
    """Tell whether the ratios depend on each other: half their worth is lost, and not by chance."""
    test = ljung_box(logs) if logs.size >= 20 else None
    return test is not None and test.p_value < 0.01 and effective_n < logs.size / 2


def _notes(
    pairs: Pairs,
    *,
    bare: Interval | None,
    tied: int,
    resolution_ratio: float,
    dependent: bool,
    disagree: bool,
    aa: AACheck | None,
) -> tuple[Note, ...]:
    """Collect what the reader should know beside the verdict, in the order of `Note`."""
    n = pairs.baseline.size
    found = {
        Note.TOO_FEW_PAIRS: bare is None,
        Note.TESTS_DISAGREE: disagree and bare is not None,
        Note.MOSTLY_TIED: 2 * tied >= n,
        Note.RESOLUTION_LIMITS: bare is not None and resolution_ratio > bare.half_width,
        Note.DEPENDENT_PAIRS: dependent,
        Note.BLOCKS_LEFT_OUT: pairs.baseline_only + pairs.other_only > 0,
        Note.AA_FAILED: aa is not None and aa.outcome is AAOutcome.FAILED,
        Note.AA_NOT_COVERED: aa is not None and aa.outcome is AAOutcome.NOT_COVERED,
    }
    return tuple(note for note, applies in found.items() if applies)
