"""What several readers share: lines of foreign text, losses, phases, decoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from excise.capture.journal import Loss, Phase, Run
from excise.errors import FormatError, UsageError
from excise.units import parse_duration

LOSS_TEXT_CHARS: Final = 200
INT64_MAX: Final = 2**63 - 1
# Below three runs, keeping the first apart would leave nothing to summarise.
MIN_RUNS_WITH_FIRST: Final = 3


def decode(data: bytes) -> str:
    """Return the bytes as text; what is not UTF-8 shows as `\\xNN` and is kept as data."""
    return data.decode("utf-8", errors="backslashreplace")


def lines(data: bytes) -> list[str]:
    """Return the lines of the text, parted at LF alone, without a CR at their end."""
    text = decode(data)
    parts = text.split("\n")
    if parts and not parts[-1]:
        parts.pop()
    return [part.removesuffix("\r") for part in parts] if "\r" in text else parts


def clip(text: str | bytes) -> str:
    """Return the beginning of a text for a loss row, without control characters."""
    if isinstance(text, bytes):
        text = decode(text[: LOSS_TEXT_CHARS + 1])
    shown = "".join(c if c.isprintable() else " " for c in text[: LOSS_TEXT_CHARS + 1])
    return shown if len(shown) <= LOSS_TEXT_CHARS else shown[: LOSS_TEXT_CHARS - 1] + "…"


def loss(source: str, line: int, reason: str, text: str | bytes = "", *, count: int = 1) -> Loss:
    """Return a loss row for a line of text."""
    return Loss(source=source, line=line, reason=reason, text=clip(text), count=count)


def merged_losses(losses: list[Loss], *, limit: int = 1000) -> list[Loss]:
    """Return the losses in order of line; beyond the limit, one row a reason with its count."""
    ordered = sorted(losses, key=lambda item: item.line or 0)
    if len(ordered) <= limit:
        return ordered
    rest: dict[str, Loss] = {}
    for item in ordered[limit:]:
        known = rest.get(item.reason)
        count = item.count + (known.count if known else 0)
        first = known or item
        rest[item.reason] = Loss(
            reason=item.reason, source=first.source, line=first.line, count=count, text=first.text
        )
    return [*ordered[:limit], *rest.values()]


def phase_of(index: int, total: int) -> Phase:
    """Return the phase of a run in a series whose order is that of execution.

    The first run pays for cold caches and is kept apart, unless fewer than three were made.
    """
    return "first" if index == 0 and total >= MIN_RUNS_WITH_FIRST else "measured"


def seconds_to_ns(value: float) -> int | None:
    """Return seconds as whole nanoseconds, or None if they are negative or do not fit in int64."""
    if not 0.0 <= value < INT64_MAX / 1e9:
        return None
    return round(value * 1e9)


def duration_ns(text: str, *, source: str, line: int, field: str) -> int:
    """Return the nanoseconds of a duration such as `1min 5.754s`.

    Raises:
        FormatError: If it is not one; it names line and field.
    """
    try:
        return parse_duration(text)
    except UsageError as error:
        raise FormatError(error.reason, source=source, line=line, field=field) from error


def number_runs(drafts: Sequence[dict[str, Any]]) -> list[Run]:
    """Return runs from their measured fields, `task` and `configuration`, in order of execution.

    Sequence, block, run number and phase follow from the order.
    """
    totals = Counter((draft["task"], draft["configuration"]) for draft in drafts)
    seen: Counter[tuple[str, str]] = Counter()
    runs = []
    for sequence, draft in enumerate(drafts):
        key = (draft["task"], draft["configuration"])
        phase = phase_of(seen[key], totals[key])
        runs.append(Run(**draft, sequence=sequence, block=seen[key], run=seen[key], phase=phase))
        seen[key] += 1
    return runs
