"""Instructions per operation, first and steady apart; differences and the noise floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from excise.errors import UsageError
from excise.lab.result import GuestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCount:
    """What one task costs in one guest, in instructions per operation.

    Attributes:
        first: The very first operation.
        steady: The least batch of a round, which no timer tick fell into; of the rounds, the one
            in the middle, so that the place of one kernel object in one round does not count.
        median: The median batch.
    """

    task: str
    first: float
    steady: float
    median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One task of one configuration against the baseline.

    Attributes:
        noise: Largest relative difference that guests with a dummy difference showed here.
        visible: Whether the difference is larger than the noise.
    """

    task: str
    configuration: str
    baseline: float
    value: float
    noise: float

    @property
    def difference(self) -> float:
        """Return instructions per operation more than the baseline."""
        return self.value - self.baseline

    @property
    def ratio(self) -> float:
        """Return the relative difference, 0 where nothing changed."""
        return self.difference / self.baseline

    @property
    def visible(self) -> bool:
        """Return whether the difference is above the noise floor of this task."""
        return abs(self.ratio) > self.noise


def counts(result: GuestResult) -> dict[str, TaskCount]:
    """Return the counts of a guest by task, over all its rounds.

    Raises:
        UsageError: If the guest was not in count mode, or measured nothing.
    """
    if result.machine.mode != "count":
        raise UsageError("instructions are counted in count mode only; this guest ran on time")
    rounds: dict[str, list[list[float]]] = {}
    firsts: dict[str, float] = {}
    for step in result.steps:
        if step.probe is not None and step.probe.op_ns:
            rounds.setdefault(step.step.task, []).append(step.probe.op_ns)
            firsts.setdefault(step.step.task, step.probe.first_op_ns or 0.0)
    if not rounds:
        raise UsageError("the guest measured no system call")
    return {
        task: TaskCount(
            task=task,
            first=firsts[task],
            steady=median_low(min(batches) for batches in found),
            median=median_low(value for batches in found for value in batches),
        )
        for task, found in rounds.items()
    }


def noise_floor(baseline: GuestResult, twins: Sequence[GuestResult]) -> dict[str, float]:
    """Return the largest relative difference of each task between a guest and its twins.

    A twin differs from it only in something irrelevant, such as a word of the command line that
    nothing reads.

    Raises:
        UsageError: If there is no twin: noise is measured, never assumed.
    """
    if not twins:
        raise UsageError("no A/A guest: the noise floor is measured, not assumed")
    own = counts(baseline)
    floors = dict.fromkeys(own, 0.0)
    for twin in twins:
        other = counts(twin)
        for task, count in own.items():
            if task in other:
                change = abs(other[task].steady / count.steady - 1.0)
                floors[task] = max(floors[task], change)
    return floors


def differences(
    baseline: GuestResult, result: GuestResult, *, noise: dict[str, float]
) -> list[Difference]:
    """Return every task's difference of the steady counts, in the order they were measured."""
    own, other = counts(baseline), counts(result)
    return [
        Difference(
            task=task,
            configuration=result.configuration,
            baseline=own[task].steady,
            value=other[task].steady,
            noise=noise[task],
        )
        for task in own
        if task in other
    ]
