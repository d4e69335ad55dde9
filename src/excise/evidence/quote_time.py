"""Step 10 of verifying a quote: clock, counters and firmware against an earlier quote.

Outside the endorsement and platform hierarchies a TPM adds a constant of the key to both counters
and to the firmware version, so only differences count, and only between quotes of one key; they
are taken modulo 2^32.

Source: TCG TPM 2.0 Library, Part 1, 36 (timing components, obfuscation of clock information).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal

from excise.evidence.checks import Check, Outcome
from excise.evidence.tpm_structures import Attest

Counter = Literal["reset_count", "restart_count"]

_CLAUSE: Final = "TPM Library Part 1, 36; Part 2, TPMS_CLOCK_INFO"
_COUNTER_RANGE: Final = 1 << 32
_MOVES: Final = {"reset_count": "TPM reset", "restart_count": "TPM restart or resume"}


def time_checks(
    attest: Attest,
    *,
    previous: Attest | None = None,
    allow_unsafe_clock: bool = False,
    expected_firmware_version: int | None = None,
) -> Iterator[Check]:
    """Yield the checks of clock, counters and firmware.

    Args:
        attest: The quote.
        previous: An earlier quote by the same key, already verified.
        allow_unsafe_clock: Leave an unsafe clock open instead of failing it.
        expected_firmware_version: Compared instead of the earlier quote's.
    """
    yield _safe(attest, allow_unsafe_clock)
    if previous is None:
        for name in ("previous_signer", "reset_count", "restart_count", "clock"):
            yield Check(
                id=f"quote.{name}",
                outcome=Outcome.NOT_COVERED,
                clause=_CLAUSE,
                detail="No earlier quote was given.",
            )
    else:
        yield _same_signer(attest, previous)
        yield from _counters(attest, previous)
        yield _clock(attest, previous, allow_unsafe_clock)
    wanted = expected_firmware_version
    if wanted is None and previous is not None:
        wanted = previous.firmware_version
    yield _firmware(attest, wanted)


def counter_advance(attest: Attest, previous: Attest, *, counter: Counter) -> int:
    """Return by how much a counter moved since the earlier quote; negative when backwards."""
    now: int = getattr(attest.clock_info, counter)
    before: int = getattr(previous.clock_info, counter)
    moved = (now - before) % _COUNTER_RANGE
    return moved if moved < _COUNTER_RANGE // 2 else moved - _COUNTER_RANGE


def _yes(condition: bool) -> Outcome:
    return Outcome.PASSED if condition else Outcome.FAILED


def _safe(attest: Attest, allow_unsafe_clock: bool) -> Check:
    safe = attest.clock_info.safe
    outcome = _yes(safe)
    if not safe and allow_unsafe_clock:
        outcome = Outcome.NOT_COVERED
    detail = (
        "Power was lost without an orderly shutdown; the clock may have shown higher values before."
    )
    return Check(
        id="quote.clock_safe",
        outcome=outcome,
        expected="YES",
        got="YES" if safe else "NO",
        clause=_CLAUSE,
        detail="" if safe else detail,
    )


def _same_signer(attest: Attest, previous: Attest) -> Check:
    same = previous.qualified_signer == attest.qualified_signer
    return Check(
        id="quote.previous_signer",
        outcome=_yes(same),
        expected=previous.qualified_signer.hex(),
        got=attest.qualified_signer.hex(),
        clause=_CLAUSE,
        detail="" if same else "Counters of two keys cannot be compared.",
    )


def _counters(attest: Attest, previous: Attest) -> Iterator[Check]:
    resets = counter_advance(attest, previous, counter="reset_count")
    yield _counter("reset_count", resets)
    if resets == 0:
        yield _counter("restart_count", counter_advance(attest, previous, counter="restart_count"))
        return
    yield Check(
        id="quote.restart_count",
        outcome=Outcome.NOT_COVERED,
        got=str(attest.clock_info.restart_count),
        clause=_CLAUSE,
        detail="Counts anew after a TPM reset.",
    )


def _counter(counter: Counter, moved: int) -> Check:
    return Check(
        id=f"quote.{counter}",
        outcome=_yes(moved >= 0),
        expected="not lower than in the earlier quote",
        got=f"{moved:+d}",
        clause=_CLAUSE,
        detail=f"{moved} × {_MOVES[counter]} since the earlier quote." if moved > 0 else "",
    )


def _clock(attest: Attest, previous: Attest, allow_unsafe_clock: bool) -> Check:
    now_ms, before_ms = attest.clock_info.clock_ms, previous.clock_info.clock_ms
    forgiven = allow_unsafe_clock and not attest.clock_info.safe
    return Check(
        id="quote.clock",
        outcome=Outcome.NOT_COVERED if forgiven else _yes(now_ms >= before_ms),
        expected=f"at least {before_ms} ms",
        got=f"{now_ms} ms",
        clause=_CLAUSE,
    )


def _firmware(attest: Attest, wanted: int | None) -> Check:
    version = attest.firmware_version
    outcome, detail = Outcome.NOT_COVERED, "Neither a version nor an earlier quote was given."
    if wanted is not None:
        outcome, detail = _yes(version == wanted), ""
    return Check(
        id="quote.firmware",
        outcome=outcome,
        expected=f"{wanted:#018x}" if wanted is not None else "",
        got=f"{version:#018x}",
        clause="TPM Library Part 2, TPMS_ATTEST.firmwareVersion",
        detail=detail,
    )
