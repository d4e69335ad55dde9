"""A list that merely grew, as those of nearly all hosts in nearly all rounds.

The evidence is asked everything that `verify_list` and the policy ask, and every entry is replayed
and looked up; what is left out is the work of telling what went wrong. A list of which anything is
out of the common has no answer here: it is verified the long way, which alone fails a list.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from excise import _core
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint
from excise.evidence.ima.checkpoint import RecordMark, RegisterState
from excise.evidence.ima.list_checks import TEMPLATE_NAMES
from excise.evidence.ima.replay import OWN, REPLAYED_BANKS, Place
from excise.evidence.ima.rows import Settled
from excise.evidence.pcr import BANK_SIZES_BYTES
from excise.evidence.policy import (
    IMA_PCR,
    AppraisalOptions,
    Policy,
    PolicyAppraiser,
    PolicyState,
    Treatment,
)
from excise.evidence.policy.appraise import verdict_over
from excise.fleet.judged import Judged, Said, said_of

if TYPE_CHECKING:
    from excise._core import PolicyScreen
    from excise.fleet.records import HostState, Settings

Pcrs = Mapping[str, Mapping[int, bytes]]

_BATCH_ROWS: Final = 4096
_PASSED: Final = Outcome.PASSED.value
_OPEN: Final = Outcome.NOT_COVERED.value
_NONE: Final[tuple[int, list[object]]] = (0, [])
"""Findings of a kind, of which there are none."""
_COMMON: Final[Mapping[str, object]] = {
    "fault": None,
    "kexec": None,
    "trailing_bytes": 0,
    "padding_bytes": 0,
    "violations": _NONE,
    "opaque": _NONE,
    "bad_hashes": _NONE,
    "malformed": _NONE,
    "boot_aggregates": _NONE,
}
"""What a replay finds in new entries of which nothing special is to be said."""


class Grown:
    """What follows a checkpoint, all of it covered, valid, and settled by the policy.

    Attributes:
        ima: As the long way judges it.
        policy: As the long way judges it; None without a policy.
        checkpoint: Where the next round goes on.
        policy_state: Counts there.
        new_entries: Entries that follow the checkpoint.
    """

    __slots__ = ("checkpoint", "ima", "new_entries", "policy", "policy_state")

    def __init__(
        self,
        ima: Judged,
        policy: tuple[Judged, PolicyState] | None,
        checkpoint: Checkpoint,
        new: int,
    ) -> None:
        self.ima = ima
        self.policy = policy[0] if policy else None
        self.policy_state = policy[1] if policy else None
        self.checkpoint = checkpoint
        self.new_entries = new


def follow(
    tail: bytes,
    before: HostState,
    checkpoint: Checkpoint,
    *,
    pcrs: Pcrs,
    policy: Policy | None,
    settings: Settings,
) -> Grown | None:
    """Return what follows a checkpoint, or None where the long way has to tell.

    Args:
        tail: The list from the checkpoint's last record on.
        before: The state that the checkpoint is of.
        checkpoint: The state of the list.
        pcrs: The values to reach.
        policy: Reference values.
        settings: How the host is judged.
    """
    targets = _targets(pcrs)
    if targets is None or not _fits(tail, checkpoint, targets, settings.name()):
        return None
    mark_bytes = checkpoint.last_record.size_bytes
    layout = (checkpoint.list_format, checkpoint.byte_order, checkpoint.header_bank)
    values = {register.bank: register.value for register in checkpoint.registers}
    raw = _core.ima_replay(
        tail,
        [
            (IMA_PCR, bank, OWN, bytes.fromhex(values[bank]), value)
            for bank, value in targets.items()
        ],
        [],
        known=layout,
        start=(mark_bytes, checkpoint.count, checkpoint.line),
    )
    if not _is_common(raw, layout, values, targets):
        return None
    judged = None
    if policy is not None:
        end = raw["end_offset"]
        judged = _judge(tail, raw, checkpoint, end, policy, before.policy, settings.violations)
        if judged is None:
            return None
    ima = Judged("ima", _said(raw, checkpoint, targets), Outcome.PASSED)
    return Grown(ima, judged, _successor(tail, raw, checkpoint, targets), raw["entries"])


def _targets(pcrs: Pcrs) -> dict[str, bytes] | None:
    """Return the values of IMA's PCR by bank, if all of them can be replayed."""
    found = {bank: held[IMA_PCR] for bank, held in pcrs.items() if IMA_PCR in held}
    for bank, value in found.items():
        if bank not in REPLAYED_BANKS or len(value) != BANK_SIZES_BYTES[bank]:
            return None
    return found or None


def _fits(tail: bytes, checkpoint: Checkpoint, targets: Mapping[str, bytes], name: str) -> bool:
    """Return whether the tail begins with the checkpoint's last record, and the rest agrees."""
    mark = checkpoint.last_record
    return (
        checkpoint.list_format == "binary"
        and checkpoint.policy_digest == name
        and checkpoint.base_offset == 0
        and checkpoint.line == 1
        and checkpoint.offset > mark.size_bytes
        and len(checkpoint.registers) == len(targets)
        and all(
            register.pcr == IMA_PCR and register.rule == OWN and register.bank in targets
            for register in checkpoint.registers
        )
        and RecordMark.of(tail[: mark.size_bytes]) == mark
    )


def _is_common(
    raw: Mapping[str, Any],
    layout: tuple[str, str, str],
    values: Mapping[str, str],
    targets: Mapping[str, bytes],
) -> bool:
    """Return whether the values are reached by the last entry, and nothing else is to be said."""
    for name, usual in _COMMON.items():
        if raw[name] != usual:
            return False
    if (raw["format"], raw["byte_order"], raw["header_bank"]) != layout:
        return False
    if len(raw["registers"]) != 1 or not TEMPLATE_NAMES.issuperset(raw["templates"]):
        return False
    entries, register = raw["entries"], raw["registers"][0]
    if register["entries"] != entries or len(register["chains"]) != len(targets):
        return False
    for chain in register["chains"]:
        target, hit = targets[chain["bank"]], chain["hit"]
        at_start = values[chain["bank"]] == target.hex()
        if entries:
            # A value that is also the old one says nothing of what follows.
            if at_start or hit is None or hit["register_entries"] != entries:
                return False
        elif not at_start:
            return False
        if chain["broken_at"] is not None or chain["value"] != target:
            return False
    return True


class _Judge:
    """A policy's appraiser, used for one list after another: it takes no entry, it only counts."""

    def __init__(self, policy: Policy, violations: str) -> None:
        self.key = (policy, violations)
        options = AppraisalOptions(violations=Treatment(violations))
        self.appraiser = PolicyAppraiser(policy, options=options)
        self.screen: PolicyScreen = self.appraiser.screen()


_judges: list[_Judge] = []
"""The last one used."""


def _judge_of(policy: Policy, violations: str) -> _Judge:
    if not _judges or _judges[0].key[0] is not policy or _judges[0].key[1] != violations:
        _judges[:] = [_Judge(policy, violations)]
    return _judges[0]


def _judge(
    tail: bytes,
    raw: Mapping[str, Any],
    checkpoint: Checkpoint,
    end: int,
    policy: Policy,
    before: PolicyState | None,
    violations: str,
) -> tuple[Judged, PolicyState] | None:
    """Return what the policy says, if every entry is one of which it has nothing to say."""
    judge = _judge_of(policy, violations)
    appraiser = judge.appraiser
    appraiser.restart(before)
    if raw["entries"]:
        rows = _core.ImaRows(
            tail,
            known=(raw["format"], raw["byte_order"], raw["header_bank"]),
            start=(raw["first"][0], checkpoint.count, 1),
            end=end,
            pcr=IMA_PCR,
            screen=judge.screen,
        )
        while not rows.ended:
            if rows.next_batch(_BATCH_ROWS)[0]:
                return None
        if rows.fault is not None:
            return None
        appraiser.settle(Settled(*rows.settled))
    checks = appraiser.checks()
    judged = Judged("policy", said_of("policy", checks), verdict_over(checks, appraiser.files))
    return judged, appraiser.state()


def _said(
    raw: Mapping[str, Any], checkpoint: Checkpoint, targets: Mapping[str, bytes]
) -> tuple[Said, ...]:
    """Return the checks of the list, word for word as `verify_list` makes them."""
    new, covered = raw["entries"], f"{checkpoint.count + raw['entries']} entries"
    size = checkpoint.last_record.size_bytes
    asked = _PASSED if new else _OPEN
    hashed = f"{new} entries with the {checkpoint.header_bank} hash of their data" if new else ""
    last = Place(checkpoint.count + new - 1, raw["last"][0], 0) if new else None
    reached = (
        f"Reached at {last}."
        if new
        else "It is the checkpoint's own value: no new entry is covered."
    )
    layout = (
        f"{checkpoint.list_format}, {checkpoint.byte_order}-endian, template hashes of "
        f"{checkpoint.header_bank} (as given)."
    )
    met = f"from entry {checkpoint.count} at offset {checkpoint.offset}"
    rows = [
        (
            "format",
            _PASSED,
            "whole entries up to the end",
            f"{new} entries, 0 trailing bytes",
            layout,
        ),
        ("fields", asked, "0 malformed entries", "0 malformed", ""),
        ("template_hash", asked, hashed, hashed, ""),
        ("violations", asked, "0 violations", "0 violations", ""),
        ("coverage", _PASSED, covered, covered, f"Covered up to {last}." if new else ""),
        (
            *("checkpoint", _PASSED, met, "overlap"),
            f"The first {size} bytes of the input were covered before.",
        ),
    ]
    for bank, value in targets.items():
        text = value.hex()
        rows.append((f"pcr.{bank}", _PASSED, text, text, reached))
    rows.append(("boot_aggregate", _OPEN, "", "", "There is none among the new entries."))
    said = []
    for name, outcome, expected, got, detail in rows:
        said.append(("ima", f"ima.{name}", outcome, expected, got, detail))
    return tuple(said)


def _successor(
    tail: bytes, raw: Mapping[str, Any], checkpoint: Checkpoint, targets: Mapping[str, bytes]
) -> Checkpoint:
    if not raw["entries"]:
        return checkpoint
    begin, end = raw["last"]
    registers = [
        RegisterState(pcr=IMA_PCR, bank=bank, rule=OWN, value=targets[bank].hex())
        for bank in sorted(targets)
    ]
    return Checkpoint(
        list_format=checkpoint.list_format,
        byte_order=checkpoint.byte_order,
        header_bank=checkpoint.header_bank,
        base_offset=0,
        offset=checkpoint.offset - checkpoint.last_record.size_bytes + end,
        count=checkpoint.count + raw["entries"],
        line=1,
        first_record=checkpoint.first_record,
        last_record=RecordMark.of(tail[begin:end]),
        registers=tuple(registers),
        policy_digest=checkpoint.policy_digest,
    )
