"""A host's measurement list: verified from its checkpoint, its new entries judged by the policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from excise._core import PolicyScreen
from excise.errors import FormatError
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint, ImaAppraisal, verify_list
from excise.evidence.policy import (
    AppraisalOptions,
    EntryClass,
    Policy,
    PolicyAppraisal,
    PolicyAppraiser,
    PolicyState,
    Treatment,
    judge_covered,
    read_covered,
)
from excise.fleet.grown import follow
from excise.fleet.judged import Judged, as_judged
from excise.fleet.places import Folder, Item, is_local
from excise.fleet.records import MAX_FINDINGS, Finding, HostState, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from excise.evidence.ima.rows import ImaRow

_TAIL_BYTES: Final = 64 << 20
"""A longer new part of a list is read as a stream, from its last covered record or its start."""
_QUIET: Final = frozenset(
    {
        EntryClass.ALLOWED,
        EntryClass.SIGNED,
        EntryClass.EXCLUDED,
        EntryClass.BOOT_AGGREGATE,
        EntryClass.BUFFER_ALLOWED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListResult:
    """What a round found in a list.

    Attributes:
        ima: Whether the list leads to the PCR values.
        policy: What the policy says of all covered entries; None without a policy.
        covered_entries: Entries of the whole list that are covered.
        new_entries: Entries that were read now.
        findings: Findings in the whole list, those of earlier rounds included.
        left_out: Entries whose findings are beyond what is kept.
        checkpoint: Where to go on; None if the next round has to start from the beginning.
        policy_state: Counts at the checkpoint.
    """

    ima: Judged
    policy: Judged | None
    covered_entries: int
    new_entries: int
    findings: tuple[Finding, ...]
    left_out: int
    checkpoint: Checkpoint | None
    policy_state: PolicyState | None


def appraise_list(
    folder: Folder,
    item: Item,
    *,
    pcrs: Mapping[str, Mapping[int, bytes]],
    before: HostState | None,
    state: bytes | None,
    policy: Policy | None,
    settings: Settings,
) -> ListResult:
    """Return what a list and a policy say of a host.

    The checkpoint moves with the replay, whatever the policy says: what it found is kept beside
    and stays in the verdict, so that a failing host does not cost a whole list each round.

    Raises:
        FormatError: The list cannot be read at all, or is too long.
    """
    if item.size_bytes is not None and item.size_bytes > settings.max_list_bytes:
        raise FormatError(
            f"{item.size_bytes:,} bytes are more than {settings.max_list_bytes:,}",
            source=item.name,
            hint="Raise --max-list-bytes if the list is genuine.",
        )
    checkpoint = before.checkpoint if before else None
    if checkpoint is not None and (tail := _tail(folder, item, checkpoint)) is not None:
        if (grown := _grown(tail, pcrs, before, state, policy, settings)) is not None:
            return grown
        start = checkpoint.offset - checkpoint.last_record.size_bytes
        found, goes_on = _verify(tail, pcrs, before, checkpoint, start, policy, settings)
        if goes_on and found.ima.verdict is not Outcome.FAILED:
            return found
    # A new boot, another policy, or a list that was changed: the whole list tells which.
    with folder.fetched(item.name) as copy:
        return _verify(copy, pcrs, before, checkpoint, None, policy, settings)[0]


def _tail(folder: Folder, item: Item, checkpoint: Checkpoint) -> bytes | None:
    """Return a list from its last covered record on, if it has not become shorter."""
    if checkpoint.list_format == "ascii" and is_local(folder.url):
        return None  # whose lines are then counted from the list's start
    start = checkpoint.offset - checkpoint.last_record.size_bytes
    size = item.size_bytes
    if size is None or not checkpoint.offset <= size <= start + _TAIL_BYTES:
        return None
    return folder.read_from(item.name, start, limit_bytes=_TAIL_BYTES)


def _grown(
    tail: bytes,
    pcrs: Mapping[str, Mapping[int, bytes]],
    before: HostState | None,
    state: bytes | None,
    policy: Policy | None,
    settings: Settings,
) -> ListResult | None:
    """Return what was found in a list that merely grew, and is without fault."""
    if before is None or state is None:
        return None
    found = follow(tail, state, pcrs=pcrs, policy=policy, settings=settings)
    if found is None:
        return None
    return ListResult(
        ima=found.ima,
        policy=found.policy,
        covered_entries=found.checkpoint.count,
        new_entries=found.new_entries,
        findings=before.findings,
        left_out=0,
        checkpoint=found.checkpoint,
        policy_state=found.policy_state,
    )


def _verify(
    data: Path | bytes,
    pcrs: Mapping[str, Mapping[int, bytes]],
    before: HostState | None,
    checkpoint: Checkpoint | None,
    start_offset: int | None,
    policy: Policy | None,
    settings: Settings,
) -> tuple[ListResult, bool]:
    """Return what was found, and whether it goes on from the checkpoint."""
    found = verify_list(
        data,
        pcrs=pcrs,
        checkpoint=checkpoint,
        start_offset=start_offset,
        policy_digest=settings.name(),
        forbid_violations=settings.violations == "fail",
        # Fifty times the work for a list that fails: for one host, not for a fleet of them.
        explain_failure=False,
    )
    goes_on = before is not None and found.meeting.goes_on
    if policy is None:
        appraiser = None
        rows = _violations(data, found, checkpoint)
    else:
        appraiser = PolicyAppraiser(
            policy,
            options=AppraisalOptions(violations=Treatment(settings.violations)),
            before=before.policy if before is not None and goes_on else None,
        )
        judged = judge_covered(appraiser, data, found, before=checkpoint)
        rows = ((row, what) for row, what in judged if what not in _QUIET)
    kept, left_out = _gather(before.findings if before is not None and goes_on else (), rows)
    appraised = appraiser.finish() if appraiser is not None else None
    state = appraiser.state() if appraiser is not None else None
    successor = _successor(found, appraised, left_out)
    if before is not None and found.verdict is not Outcome.PASSED:
        # A state moves only on success: the next round tries again from the same place.
        successor, state, kept = before.checkpoint, before.policy, list(before.findings)
    result = ListResult(
        ima=as_judged(found),
        policy=as_judged(appraised) if appraised is not None else None,
        covered_entries=found.coverage.covered_entries,
        new_entries=found.replay.entries,
        findings=tuple(kept),
        left_out=left_out,
        checkpoint=successor,
        policy_state=state,
    )
    return result, found.meeting.goes_on


def _successor(
    found: ImaAppraisal, appraised: PolicyAppraisal | None, left_out: int
) -> Checkpoint | None:
    """Return where to go on, unless something that the state does not hold would be lost."""
    learnt = appraised.facts["keys_learnt"] if appraised is not None else 0
    if found.checkpoint is None or left_out or learnt:
        return None
    # Each round sees the whole list, even where only its end was fetched.
    return replace(found.checkpoint, base_offset=0)


def _violations(
    data: Path | bytes, found: ImaAppraisal, checkpoint: Checkpoint | None
) -> Iterator[tuple[ImaRow, EntryClass]]:
    """Return the covered violations; without any the list is not read again."""
    if not found.replay.violations.count:
        return
    rows = read_covered(data, found, before=checkpoint, screen=PolicyScreen(None))
    if rows is not None:
        with rows:
            yield from ((row, EntryClass.VIOLATION) for row in rows)


def _gather(
    known: tuple[Finding, ...], rows: Iterator[tuple[ImaRow, EntryClass]]
) -> tuple[list[Finding], int]:
    """Return findings with how often each was made, old ones first, and entries left out.

    No more are held than are kept: a list may consist of nothing else.
    """
    left_out = 0
    counts = {(each.kind, each.name, each.algorithm, each.digest): each.count for each in known}
    for row, judged in rows:
        name = (row.name or b"").decode("utf-8", "backslashreplace")
        # Nothing of a violation is authenticated; its digest is no digest of the file.
        digest = "" if row.violation else row.digest.hex()
        key = (judged.value, name, "" if row.violation else row.algorithm, digest)
        if key in counts or len(counts) < MAX_FINDINGS:
            counts[key] = counts.get(key, 0) + 1
        else:
            left_out += 1
    return [Finding(*key, count) for key, count in counts.items()], left_out
