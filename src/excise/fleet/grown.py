"""Lists that merely grew, as those of nearly all hosts in nearly all rounds: the native short way.

The evidence is asked everything that `verify_list` and the policy ask, and every entry is replayed
and looked up; what is left out is the work of telling what went wrong. A host of which anything is
out of the common has no answer here: it goes the long way, which alone fails a host.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from excise._core import FleetFollower
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint
from excise.evidence.policy import (
    IMA_PCR,
    AppraisalOptions,
    Policy,
    PolicyAppraiser,
    PolicyState,
    Treatment,
)
from excise.fleet import layout
from excise.fleet.judged import Judged, Said
from excise.fleet.places import folder_at, is_local
from excise.fleet.records import HostJob, Settings, escaped_name


class _Followed(msgspec.Struct, frozen=True):
    """What `FleetFollower.follow` answers."""

    ima: tuple[Said, ...]
    policy: tuple[Said, ...] | None
    policy_verdict: Outcome | None
    checkpoint: Checkpoint
    policy_state: PolicyState | None
    new_entries: int


_DECODER = msgspec.json.Decoder(_Followed)


class Grown(msgspec.Struct, frozen=True):
    """What follows a checkpoint, all of it covered, valid, and settled by the policy.

    Attributes:
        ima: As the long way judges it.
        policy: As the long way judges it; None without a policy.
        checkpoint: Where the next round goes on.
        policy_state: Counts there.
        new_entries: Entries that follow the checkpoint.
    """

    ima: Judged
    policy: Judged | None
    checkpoint: Checkpoint
    policy_state: PolicyState | None
    new_entries: int


def follow_hosts(
    jobs: Sequence[HostJob], *, policy: Policy | None, settings: Settings, threads: int = 1
) -> list[bytes | None]:
    """Return the encoded new state of each host that has only a list, which merely grew.

    Of the others, which are None, nothing is known: `appraise_host` has to tell. No more than some
    MiB are held, whatever the evidence is.

    Args:
        jobs: The hosts.
        policy: Reference values.
        settings: How they are judged.
        threads: Threads to use.
    """
    found: list[bytes | None] = [None] * len(jobs)
    if set(settings.require) - {"ima"}:
        return found
    places, asked = [], []
    for place, job in enumerate(jobs):
        if job.state is None or job.key is not None or not is_local(job.url):
            continue
        if escaped_name(job.host) == job.host:
            places.append(place)
            asked.append((job.host, folder_at(job.url).url, job.state))
    if asked:
        states = _follower_of(policy, settings).follow_hosts(asked, threads)
        for place, state in zip(places, states, strict=True):
            found[place] = state
    return found


def follow(
    tail: bytes,
    state: bytes,
    *,
    pcrs: Mapping[str, Mapping[int, bytes]],
    policy: Policy | None,
    settings: Settings,
) -> Grown | None:
    """Return what follows the checkpoint of a state, or None where the long way has to tell.

    Args:
        tail: The list from the checkpoint's last record on.
        state: The encoded state of the host.
        pcrs: The values to reach.
        policy: Reference values.
        settings: How the host is judged.
    """
    targets = [(bank, held[IMA_PCR]) for bank, held in pcrs.items() if IMA_PCR in held]
    answer = _follower_of(policy, settings).follow(tail, state, targets)
    if answer is None:
        return None
    found = _DECODER.decode(answer)
    judged = None
    if found.policy is not None and found.policy_verdict is not None:
        judged = Judged("policy", found.policy, found.policy_verdict)
    return Grown(
        ima=Judged("ima", found.ima, Outcome.PASSED),
        policy=judged,
        checkpoint=found.checkpoint,
        policy_state=found.policy_state,
        new_entries=found.new_entries,
    )


_last: list[tuple[Policy | None, Settings, FleetFollower]] = []
"""The follower used last: one round has one."""


def _follower_of(policy: Policy | None, settings: Settings) -> FleetFollower:
    if not _last or _last[0][0] is not policy or _last[0][1] != settings:
        _last[:] = [(policy, settings, _new_follower(policy, settings))]
    return _last[0][2]


def _new_follower(policy: Policy | None, settings: Settings) -> FleetFollower:
    screen, lists_buffers = None, False
    if policy is not None:
        options = AppraisalOptions(violations=Treatment(settings.violations))
        appraiser = PolicyAppraiser(policy, options=options)
        screen, lists_buffers = appraiser.screen(), appraiser.lists_buffers
    return FleetFollower(
        settings=settings.name(),
        wanted=layout.wanted(settings.require),
        max_list_bytes=settings.max_list_bytes,
        violations=settings.violations,
        lists=layout.IMA_LISTS,
        pcrs=layout.PCRS_READ,
        others=sorted(layout.OTHERS),
        capture_endings=layout.CAPTURE_ENDINGS,
        screen=screen,
        lists_buffers=lists_buffers,
    )
