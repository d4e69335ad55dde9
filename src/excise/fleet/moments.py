"""Times as users write them: how long ago, or when."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from excise.errors import ExciseError, UsageError
from excise.units import parse_duration


def parse_moment(text: str, *, now: datetime | None = None) -> datetime:
    """Return the time of `24h`, `7d` (ago) or of an ISO 8601 date, in UTC.

    Args:
        text: What the user wrote; a date without a zone is UTC.
        now: The time from which to count back; the present by default.

    Raises:
        UsageError: It is neither.
    """
    ago = _ago(text)
    if ago is not None:
        return (now or datetime.now(UTC)) - ago
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{text!r} is no time", hint="Say 24h or 7d (ago), or 2026-01-31T12:00Z"
        ) from None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def _ago(text: str) -> timedelta | None:
    if text.endswith("d") and text[:-1].isdecimal():
        return timedelta(days=int(text[:-1]))
    try:
        return timedelta(microseconds=parse_duration(text) / 1000)
    except ExciseError:
        return None
