"""What was said of a piece of evidence: its checks as rows, and its verdict."""

from __future__ import annotations

from typing import NamedTuple

from excise.evidence.checks import AppraisalResult, Outcome

Said = tuple[str, str, str, str, str, str]
"""Subject, check, outcome, expected, got and detail: a `CheckRow` without its time."""


class Judged(NamedTuple):
    """A piece of evidence, judged.

    Attributes:
        subject: `ima`, `policy`, `quote` or `eventlog`.
        said: Its checks.
        verdict: The verdict over them, as the library gives it.
    """

    subject: str
    said: tuple[Said, ...]
    verdict: Outcome


def as_judged(result: AppraisalResult) -> Judged:
    """Return what a result says."""
    said = tuple(
        (result.subject, check.id, check.outcome.value, check.expected, check.got, check.detail)
        for check in result.checks
    )
    return Judged(result.subject, said, result.verdict)
