"""What a comparison found: one task under one configuration against the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from excise.stats import AACheck, AAOutcome, Verdict

Order = Literal["paired blocks", "order unknown", "published values", "exact counts"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One task under one configuration against the baseline.

    Attributes:
        ratio: Configuration over baseline, without unit; 1.041 costs 4.1 %.
        low: Lower end of the 95 % interval of the ratio, None where there is none.
        high: Upper end.
        n: Pairs, or the smaller sample.
        p: p-value of the primary test; Holm's over all comparisons of the report in `p_holm`.
        verdict: The answer in words.
        runs_needed: Further blocks that would decide, where that can be estimated. Where the order
            is unknown: how many runs the smaller sample lacks, as `too_few` has it.
        too_few: Why there is no interval or no test that could tell a difference: how many runs of
            each, or pairs, there are and how many it takes at least; "" where there are enough.
        order: How the values stand to each other.
        aa: The A/A arm's check for this task, where there is one.
        noise_ratio: For exact counts: what A/A guests differed by, which is how well the ratio is
            known; None without an A/A guest.
    """

    task: str
    configuration: str
    baseline: str
    metric: str
    unit: str
    baseline_value: float
    value: float
    ratio: float
    low: float | None
    high: float | None
    n: int
    effective_n: float | None
    p: float | None
    p_holm: float | None
    p_check: float | None
    verdict: Verdict
    runs_needed: int | None
    margin_ratio: float
    order: Order
    layer: str = "task"
    event: str = ""
    aa: AACheck | None = None
    noise_ratio: float | None = None
    too_few: str = ""
    notes: tuple[str, ...] = ()

    @property
    def part(self) -> str:
        """Return the event with its layer, as `layer|event`; "" for a whole task.

        Two layers may each have an event of the same name.
        """
        return f"{self.layer}|{self.event}" if self.event else ""

    @property
    def name(self) -> str:
        """Return the task, and what of it is compared."""
        return f"{self.task} {self.part}".strip()

    @property
    def obstacle(self) -> str:
        """Return why it is not comparable; "" where it is."""
        if self.verdict is not Verdict.NOT_COMPARABLE:
            return ""
        if self.aa is not None and self.aa.outcome is AAOutcome.FAILED:
            return "the A/A arm differs from the baseline"
        return "; ".join(self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """All comparisons of a report.

    Attributes:
        rows: One for each task and configuration other than the baseline.
        aa: The A/A check of each task that has one.
        forced: Differences of conditions that were overridden with `force`.
        notes: What the reader should know about all of them.
        first_only: Tasks and configurations that ran once, as the baseline did: a first run, which
            is compared with nothing.
    """

    baseline: str
    rows: Sequence[Comparison]
    aa: dict[str, AACheck]
    margin_ratio: float
    forced: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    first_only: tuple[tuple[str, str], ...] = ()
