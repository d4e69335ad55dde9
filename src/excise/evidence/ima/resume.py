"""Go on from a checkpoint: find where the input meets it, and name what is in the way.

Whether the meeting point is right is decided by the PCRs alone: the registers of the checkpoint,
extended by what follows, must give the values that were given now. The marks of the records only
serve to find the point, and to name an overlap, a gap, a reboot or a shortened list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from excise import _core
from excise.evidence.checks import Check, Outcome
from excise.evidence.ima.attempt import Attempt, Key, State, Targets, attempt
from excise.evidence.ima.checkpoint import Checkpoint, RecordMark
from excise.evidence.ima.replay import Layout, Start
from excise.evidence.ima.source import Source

CHECK_ID: Final = "ima.checkpoint"
CLAUSE: Final = "Linux Documentation/security/IMA (measurement list export); RFC 9334, 10 Freshness"


class Meeting(StrEnum):
    """How an input meets a checkpoint."""

    FULL = "full"
    RESUMED = "resumed"
    OVERLAP = "overlap"
    CONTINUED = "continued"
    RESTARTED = "restarted"
    IGNORED = "ignored"
    GAP = "gap"
    MISMATCH = "mismatch"

    @property
    def goes_on(self) -> bool:
        """Return whether the replay started from the checkpoint, not from the list's start."""
        return self in (Meeting.RESUMED, Meeting.OVERLAP, Meeting.CONTINUED)


_SEARCHED_BYTES: Final = 256 << 20
"""Bytes that are hashed, at most, to find the last covered record in an input."""
_MAX_PLACES: Final = 8
"""Places tried when it stands at several."""

_OUTCOMES: Final = {
    Meeting.RESUMED: Outcome.PASSED,
    Meeting.OVERLAP: Outcome.PASSED,
    Meeting.CONTINUED: Outcome.PASSED,
    Meeting.RESTARTED: Outcome.NOT_COVERED,
    Meeting.IGNORED: Outcome.NOT_COVERED,
    Meeting.GAP: Outcome.FAILED,
    Meeting.MISMATCH: Outcome.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """An attempt, and how it relates to the checkpoint.

    Attributes:
        tried: The attempt.
        meeting: How the input meets the checkpoint.
        base_offset: Bytes of the whole list before the input's first byte.
        checkpoint: The checkpoint that the attempt started from; `None` if it started from zero.
        check: The check of the meeting; `None` without a checkpoint or a declared offset.
    """

    tried: Attempt
    meeting: Meeting
    base_offset: int
    checkpoint: Checkpoint | None
    check: Check | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    source: Source
    targets: Targets
    layout: Layout
    suppose: bool

    def from_zero(self) -> Attempt:
        return attempt(self.source, self.targets, layout=self.layout, suppose=self.suppose)

    def from_state(self, checkpoint: Checkpoint, offset: int) -> Attempt:
        line = checkpoint.line
        if checkpoint.list_format == "ascii" and offset != checkpoint.offset:
            line = self.source.read(0, offset).count(b"\n") + 1
        layout = Layout(
            format=checkpoint.list_format,
            byte_order=checkpoint.byte_order,
            header_bank=checkpoint.header_bank,
        )
        return attempt(
            self.source,
            self.targets,
            layout=layout,
            start=Start(offset=offset, index=checkpoint.count, line=line),
            states=_states(checkpoint),
            suppose=self.suppose,
        )


def resume(
    source: Source,
    targets: Targets,
    *,
    layout: Layout,
    checkpoint: Checkpoint | None,
    start_offset: int | None,
    policy_digest: str | None,
    suppose: bool,
) -> Resumed:
    """Replay a list from a checkpoint if there is one that fits, else from its beginning.

    Args:
        source: The input: the whole list, or the part of it that is new.
        targets: The values given.
        layout: What is known of the layout.
        checkpoint: The state after the last verification.
        start_offset: Offset in the whole list of the input's first byte, where the sender says so.
        policy_digest: Digest of the policy in force now.
        suppose: Whether to carry rules that only explain.

    Raises:
        OSError: The file cannot be read.
    """
    request = _Request(source=source, targets=targets, layout=layout, suppose=suppose)
    if checkpoint is None:
        tried = request.from_zero()
        if start_offset:
            text = f"The input begins at offset {start_offset}, and there is no checkpoint."
            return _answer(tried, Meeting.GAP, text, expected="offset 0", base=start_offset)
        return Resumed(
            tried=tried, meeting=Meeting.FULL, base_offset=0, checkpoint=None, check=None
        )
    reason = _unusable(source, targets, checkpoint, policy_digest)
    if reason:
        return _answer(request.from_zero(), Meeting.IGNORED, reason)
    if start_offset is not None:
        return _declared(request, checkpoint, start_offset)
    return _searched(request, checkpoint)


def _states(checkpoint: Checkpoint) -> Mapping[Key, State]:
    return {
        (register.pcr, register.bank): State(
            rule=register.rule, value=bytes.fromhex(register.value)
        )
        for register in checkpoint.registers
    }


def _unusable(
    source: Source, targets: Targets, checkpoint: Checkpoint, policy_digest: str | None
) -> str:
    """Return why a checkpoint cannot be used; empty when it can."""
    lacking = [bank for bank in targets.banks if checkpoint.state(targets.pcr, bank) is None]
    if lacking:
        banks = ", ".join(lacking)
        return f"The checkpoint has no PCR {targets.pcr} of {banks}: verified from the beginning."
    if policy_digest is not None and checkpoint.policy_digest != policy_digest:
        return "The policy has changed since the checkpoint: verified from the beginning."
    rows = _core.ImaRows(source.native)
    rows.next_batch(1)
    if rows.layout and (rows.layout[0], rows.layout[2]) != (
        checkpoint.list_format,
        checkpoint.header_bank,
    ):
        return (
            f"The checkpoint is of the {checkpoint.list_format} list of {checkpoint.header_bank}, "
            f"the input is the {rows.layout[0]} list of {rows.layout[2]}: verified from the "
            "beginning."
        )
    return ""


def _declared(request: _Request, checkpoint: Checkpoint, start_offset: int) -> Resumed:
    """Meet the checkpoint where the sender's offset says."""
    position = checkpoint.offset - start_offset
    if position < 0:
        text = f"{-position} bytes between the checkpoint and the input are missing."
        return _answer(
            request.from_state(checkpoint, 0),
            Meeting.GAP,
            text,
            expected=f"offset {checkpoint.offset} or before",
            got=f"offset {start_offset}",
            base=start_offset,
            checkpoint=checkpoint,
        )
    before = position - checkpoint.last_record.size_bytes
    fits = position <= request.source.size_bytes and (
        before < 0 or checkpoint.last_record.is_at(request.source, before)
    )
    if not fits:
        return _restart(request, checkpoint, after=None)
    tried = request.from_state(checkpoint, position)
    if position == 0:
        meeting, text = Meeting.CONTINUED, "The input begins where the checkpoint ends."
    elif start_offset == checkpoint.base_offset:
        meeting, text = Meeting.RESUMED, ""
    else:
        meeting = Meeting.OVERLAP
        text = f"The first {position} bytes of the input were covered before."
    answer = _answer(tried, meeting, text, base=start_offset, checkpoint=checkpoint)
    if tried.reached or start_offset:
        return answer
    restarted = _restart(request, checkpoint, after=None)
    return restarted if restarted.tried.reached else answer


def _searched(request: _Request, checkpoint: Checkpoint) -> Resumed:
    """Find the checkpoint's last record in the input: at its offset, or anywhere."""
    mark, source = checkpoint.last_record, request.source
    position = checkpoint.offset - checkpoint.base_offset
    first: Resumed | None = None
    if mark.is_at(source, position - mark.size_bytes):
        tried = request.from_state(checkpoint, position)
        base = checkpoint.base_offset
        first = _answer(tried, Meeting.RESUMED, "", base=base, checkpoint=checkpoint)
        if tried.reached:
            return first
    for found in _places(source, mark, checkpoint.offset):
        position = found + mark.size_bytes
        answer = _answer(
            request.from_state(checkpoint, position),
            Meeting.OVERLAP,
            f"The first {position} bytes of the input were covered before.",
            base=checkpoint.offset - position,
            checkpoint=checkpoint,
        )
        if answer.tried.reached:
            return answer
        first = first or answer
    # The same record may well stand in the list of a new boot.
    restarted = _restart(request, checkpoint, after=0)
    return restarted if first is None or restarted.tried.reached else first


def _places(source: Source, mark: RecordMark, last_end: int) -> Iterator[int]:
    """Give the offsets of a record in an input; there are several where violations repeat."""
    head, found, places = bytes.fromhex(mark.head), -1, 0
    for _ in range(max(1, _SEARCHED_BYTES // mark.size_bytes)):
        found = source.find(head, found + 1)
        if not 0 <= found <= last_end - mark.size_bytes or places == _MAX_PLACES:
            return
        if mark.is_at(source, found):
            places += 1
            yield found


def _restart(request: _Request, checkpoint: Checkpoint, *, after: int | None) -> Resumed:
    """Try the input as what follows the checkpoint, and as the list of a new boot."""
    size_bytes = request.source.size_bytes
    shorter = size_bytes < checkpoint.offset - checkpoint.base_offset
    short = (
        f"The list is shorter ({size_bytes} bytes) than what was covered "
        f"({checkpoint.offset - checkpoint.base_offset}). "
        if shorter
        else ""
    )
    if after is not None:
        tried = request.from_state(checkpoint, after)
        if tried.reached and (tried.covers or not _begins_anew(request, tried, checkpoint)):
            return _continued(tried, checkpoint, short)
    tried = request.from_zero()
    if tried.reached:
        same = _begins_anew(request, tried, checkpoint)
        again = " with the same first entry" if same else ""
        text = f"{short}It is the list of a new boot{again}: verified from its beginning."
        return _answer(tried, Meeting.RESTARTED, text)
    text = (
        f"{short}It neither goes on where the checkpoint ends nor begins anew: entries between are "
        "missing, or the list was changed."
    )
    return _answer(
        tried,
        Meeting.MISMATCH,
        text,
        expected=f"the record of SHA-256 {checkpoint.last_record.sha256}",
        got="no such record",
    )


def _begins_anew(request: _Request, tried: Attempt, checkpoint: Checkpoint) -> bool:
    """Return whether an input begins with the first entry that was ever read."""
    first = tried.first.first
    return first is not None and checkpoint.first_record.is_at(request.source, first[0])


def _continued(tried: Attempt, checkpoint: Checkpoint, short: str) -> Resumed:
    """Answer for what can only follow the checkpoint; values that have not moved fit anything."""
    text = f"{short}It goes on where the checkpoint ends: older entries were handed over."
    outcome = None
    if tried.first.entries and not tried.covers:
        outcome = Outcome.NOT_COVERED
        text = (
            f"{short}Nothing of it was covered before, and no value covers any of it now: that it "
            "goes on where the checkpoint ends is not proven."
        )
    return _answer(
        tried,
        Meeting.CONTINUED,
        text,
        base=checkpoint.offset,
        checkpoint=checkpoint,
        outcome=outcome,
    )


def _answer(
    tried: Attempt,
    meeting: Meeting,
    text: str,
    *,
    expected: str = "",
    got: str = "",
    base: int = 0,
    checkpoint: Checkpoint | None = None,
    outcome: Outcome | None = None,
) -> Resumed:
    if checkpoint is not None and not expected:
        expected = f"from entry {checkpoint.count} at offset {checkpoint.offset}"
    check = Check(
        id=CHECK_ID,
        outcome=outcome or _OUTCOMES[meeting],
        expected=expected,
        got=got or meeting.value,
        clause=CLAUSE,
        detail=text,
    )
    return Resumed(
        tried=tried, meeting=meeting, base_offset=base, checkpoint=checkpoint, check=check
    )
