"""A host's boot log or log of a confidential guest: replayed once, then held to the same values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from excise import __version__
from excise.evidence.checks import Outcome
from excise.evidence.eventlog_verify import verify_event_log
from excise.fleet.judged import Judged, as_judged
from excise.fleet.records import BootLogState, HostState

_SUBJECT: Final = "eventlog"


def judge_boot_log(
    data: bytes, *, values: Mapping[str, Mapping[int, bytes]], name: str, before: HostState | None
) -> tuple[Judged, BootLogState | None]:
    """Return what a log proves, and what to keep of it for the next round.

    A log of which no byte and no value has changed since the round before proves what it proved
    then, and is not replayed: most of a boot log's cost, since it changes with a boot only.

    Args:
        data: The log.
        values: What it must lead to, by bank and index.
        name: Its name.
        before: What is known of the host.

    Raises:
        FormatError: It is no log at all.
    """
    fingerprint = _fingerprint(data, values, name)
    known = before.boot_log if before else None
    if before is not None and known is not None and known.fingerprint == fingerprint:
        said = tuple(
            (row.subject, row.check, row.outcome, row.expected, row.got, row.detail)
            for row in before.checks
            if row.subject == _SUBJECT
        )
        if said:  # a round whose worker died has a state without them
            return Judged(_SUBJECT, said, known.verdict), known
    found = as_judged(verify_event_log(data, pcrs=values, source=name))
    if found.verdict is Outcome.FAILED:
        return found, None
    return found, BootLogState(fingerprint=fingerprint, verdict=found.verdict)


def _fingerprint(data: bytes, values: Mapping[str, Mapping[int, bytes]], name: str) -> str:
    """Return the digest of all that a judgement depends on, each part with its length."""
    held = [(bank, sorted(each.items())) for bank, each in sorted(values.items())]
    parts = (__version__, name, hashlib.sha256(data).hexdigest(), held)
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
