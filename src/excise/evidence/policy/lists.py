"""Judge the part of a measurement list that PCR values cover.

Entries of which a policy has nothing to say are settled natively and only counted; the others are
judged one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from excise.evidence.ima import Checkpoint, ImaAppraisal, read_list
from excise.evidence.policy.appraise import AppraisalOptions, PolicyAppraisal, PolicyAppraiser
from excise.evidence.policy.classes import EntryClass
from excise.evidence.policy.model import Policy

if TYPE_CHECKING:
    from excise._core import PolicyScreen
    from excise.evidence.ima import ImaList, ImaRow
    from excise.evidence.ima.source import ListInput

IMA_PCR: Final = 10


def read_covered(
    data: ListInput,
    found: ImaAppraisal,
    *,
    before: Checkpoint | None = None,
    screen: PolicyScreen | None = None,
) -> ImaList | None:
    """Open the entries of IMA's PCR that a verification read and that the PCR values cover.

    Entries of other PCRs stand in the same list, and no value of IMA's PCR covers them.

    Args:
        data: The list, as it was given to `verify_list`.
        found: What `verify_list` returned.
        before: The checkpoint given to it.
        screen: What of it needs no judgement.

    Returns:
        The open list; None if there is no such entry.
    """
    first = found.replay.first
    if found.coverage.match is None or first is None:
        return None
    return read_list(
        data,
        start_offset=first[0],
        start_index=before.count if before is not None and found.meeting.goes_on else 0,
        end_offset=found.coverage.match_end,
        layout=found.replay.layout,
        pcr=IMA_PCR,
        screen=screen,
    )


def judge_covered(
    appraiser: PolicyAppraiser,
    data: ListInput,
    found: ImaAppraisal,
    *,
    before: Checkpoint | None = None,
) -> Iterator[tuple[ImaRow, EntryClass]]:
    """Judge the entries that `read_covered` opens; give those that were not settled natively."""
    rows = read_covered(data, found, before=before, screen=appraiser.screen())
    if rows is not None:
        with rows:
            yield from appraiser.take_list(rows)


def appraise_covered(
    data: ListInput,
    found: ImaAppraisal,
    policy: Policy,
    *,
    before: Checkpoint | None = None,
    options: AppraisalOptions | None = None,
) -> PolicyAppraisal:
    """Return what a policy says of the part of a list that PCR values cover.

    Args:
        data: The list, as it was given to `verify_list`.
        found: What `verify_list` returned.
        policy: The reference values.
        before: The checkpoint given to `verify_list`; only what follows it is judged.
        options: How to judge.

    Raises:
        FormatError: The list cannot be read.
        UsageError: Digests are asked for and the policy has none.
    """
    appraiser = PolicyAppraiser(policy, options=options)
    for _ in judge_covered(appraiser, data, found, before=before):
        pass
    return appraiser.finish()
