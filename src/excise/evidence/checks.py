"""Checks with three outcomes, and the verdict over a list of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Outcome(StrEnum):
    """What became of one check."""

    PASSED = "PASSED"
    FAILED = "FAILED"
    NOT_COVERED = "NOT_COVERED"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question asked of the evidence, and its answer.

    Attributes:
        id: Stable identifier such as `ima.pcr.sha256`; documented in the list of checks.
        outcome: PASSED, FAILED, or NOT_COVERED when the evidence cannot answer.
        expected: What had to be found, as text; empty when there is no single value.
        got: What was found, as text.
        clause: The specification, kernel source or paper that asks for it.
        detail: One sentence more for the reader, or empty.
    """

    id: str
    outcome: Outcome
    expected: str = ""
    got: str = ""
    clause: str = ""
    detail: str = ""

    def as_dict(self) -> dict[str, str]:
        """Return the check as plain values, for `--json`."""
        return {
            "id": self.id,
            "outcome": self.outcome.value,
            "expected": self.expected,
            "got": self.got,
            "clause": self.clause,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalResult:
    """All checks made on one piece of evidence, and facts read from it.

    Attributes:
        subject: What was appraised, such as `ima` or `quote`.
        checks: Every check made, in order; none is left out because another failed.
        facts: Plain values worth showing beside the checks (counts, indices, detected rules).
    """

    subject: str
    checks: tuple[Check, ...]
    facts: dict[str, Any]

    @property
    def verdict(self) -> Outcome:
        """Return the verdict over all checks."""
        return verdict_of(self.checks)

    def details(self) -> tuple[str, ...]:
        """Return what was found beside the checks, one sentence each, for people to read."""
        return tuple(f"{name}: {value}" for name, value in self.facts.items() if value is not None)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for `--json`."""
        return {
            "subject": self.subject,
            "verdict": self.verdict.value,
            "checks": [check.as_dict() for check in self.checks],
            "facts": self.facts,
        }


def verdict_of(checks: Iterable[Check]) -> Outcome:
    """Return FAILED if any check failed, PASSED if any passed and none failed, else NOT_COVERED.

    A list without a passed check is never PASSED: the empty case proves nothing. A check that is
    NOT_COVERED beside passed ones does not fail the verdict; where it must, the caller makes that
    check FAILED.
    """
    outcomes = {check.outcome for check in checks}
    if Outcome.FAILED in outcomes:
        return Outcome.FAILED
    return Outcome.PASSED if Outcome.PASSED in outcomes else Outcome.NOT_COVERED
