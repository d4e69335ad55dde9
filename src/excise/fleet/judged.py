"""What was said of a piece of evidence: its checks as rows, and its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from excise.evidence.checks import AppraisalResult, Check, Outcome

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


def said_of(subject: str, checks: Iterable[Check]) -> tuple[Said, ...]:
    """Return checks as rows."""
    return tuple(
        [
            (subject, check.id, check.outcome.value, check.expected, check.got, check.detail)
            for check in checks
        ]
    )


def as_judged(result: AppraisalResult) -> Judged:
    """Return what a result says."""
    return Judged(result.subject, said_of(result.subject, result.checks), result.verdict)
