"""Verify a measurement list against PCR values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from excise.errors import FormatError, UsageError
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.ima import boot_aggregate
from excise.evidence.ima.attempt import Attempt, BankResult, Targets, targets_of
from excise.evidence.ima.checkpoint import Checkpoint, RecordMark, RegisterState
from excise.evidence.ima.coverage import Coverage, coverage_of
from excise.evidence.ima.facts import facts_of
from excise.evidence.ima.list_checks import list_checks, pcr_checks
from excise.evidence.ima.named import MOST_NAMED, names_of
from excise.evidence.ima.replay import OWN, ChainSpec, Hit, Layout, Place, Replay, replay, zero
from excise.evidence.ima.resume import Meeting, Resumed, resume
from excise.evidence.ima.source import ListInput, Source, opened
from excise.evidence.names import quoted_name

if TYPE_CHECKING:
    from excise.evidence.ima.explain import Explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class ImaAppraisal(AppraisalResult):
    """The result for a measurement list.

    Attributes:
        banks: One result for each PCR value given, of registers that the list extends.
        coverage: Which part of the list the values cover.
        explanations: What was tried to explain a value that was not reached.
        replay: All that was found in the list, or in its new part.
        names: Names by position, of the first entries of each kind that something is said of.
        meeting: How the input meets the checkpoint; `full` without one.
        checkpoint: The state to go on from; only of a list that PASSED.
    """

    banks: tuple[BankResult, ...]
    coverage: Coverage
    explanations: tuple[Explanation, ...]
    replay: Replay
    names: Mapping[int, bytes]
    meeting: Meeting
    checkpoint: Checkpoint | None

    @property
    def verdict(self) -> Outcome:
        """Return the verdict: PASSED only if a value was given and every value was reached."""
        return _verdict(self.checks, self.banks)

    def details(self) -> tuple[str, ...]:
        """Return what people want to know beside the checks, one sentence each."""
        covered, entries = self.coverage.covered_entries, self.coverage.entries
        templates = ", ".join(f"{count} {name}" for name, count in self.replay.templates.items())
        lines = [f"{covered} of {entries} entries are covered; read now: {templates or 'none'}."]
        lines += [
            f"{bank.bank}: reached by the rule '{bank.rule}'." for bank in self.banks if bank.rule
        ]
        found = self.replay
        lines += self._named("Violation", found.violations.items)
        lines += self._named("Wrong template hash", [bad.place for bad in found.bad_hashes.items])
        lines += self._named("Malformed", [bad.place for bad in found.malformed.items])
        answers = {True: "gives the value", False: "does not give the value", None: "not tried"}
        lines += [
            f"Explanation {each.id} ({each.bank}): {answers[each.reaches]}. {each.detail}"
            for each in self.explanations
        ]
        return tuple(lines)

    def _named(self, what: str, places: Sequence[Place]) -> Iterator[str]:
        for place in places[:MOST_NAMED]:
            name = self.names.get(place.index)
            yield f"{what}: {place}{f': {quoted_name(name)}' if name else ''}."


def verify_list(
    data: ListInput,
    *,
    pcrs: Mapping[str, Mapping[int, bytes]],
    checkpoint: Checkpoint | None = None,
    start_offset: int | None = None,
    policy_digest: str | None = None,
    require_complete: bool = False,
    forbid_violations: bool = False,
    pcr: int = 10,
    list_format: str | None = None,
    byte_order: str | None = None,
    header_bank: str | None = None,
    explain_failure: bool = True,
) -> ImaAppraisal:
    """Return whether a measurement list leads to the PCR values given, with every check made.

    The value of each bank is searched as a prefix of the list: a list read after the quote is
    longer than what the quote covers. Nothing of a list is trusted that no value covers.

    Args:
        data: The list, binary or ascii: a path, bytes, or a binary stream.
        pcrs: PCR values by bank and index. PCRs 0 to 9, where given, are compared with the
            list's boot_aggregate.
        checkpoint: The state that an earlier verification returned; only what follows is replayed.
        start_offset: Offset, in the whole list, of the first byte of `data`, when it is a part.
        policy_digest: Digest of the policy in force; kept in the checkpoint, and a checkpoint made
            under another policy is not used.
        require_complete: Whether an uncovered part of the list fails.
        forbid_violations: Whether a violation fails.
        pcr: The index that IMA extends.
        list_format: `binary` or `ascii`; found out if not given.
        byte_order: `little` or `big`; found out if not given.
        header_bank: Bank of the template hashes that the list shows; found out if not given.
        explain_failure: Whether to look for explanations of a value that is not reached.

    Raises:
        FormatError: The list cannot be read at all, or a bank's name is unknown.
        UsageError: A PCR value has not its bank's length, or an argument makes no sense.
    """
    _check_arguments(pcr, start_offset, list_format, byte_order, header_bank)
    targets = targets_of(pcrs, pcr=pcr)
    with opened(data) as source:
        try:
            return _verify(
                source,
                targets,
                Layout(format=list_format, byte_order=byte_order, header_bank=header_bank),
                checkpoint=checkpoint,
                start_offset=start_offset,
                policy_digest=policy_digest,
                require_complete=require_complete,
                forbid_violations=forbid_violations,
                explain_failure=explain_failure,
            )
        except OSError as error:
            raise FormatError(error.strerror or str(error), source=source.name or None) from error


def _check_arguments(
    pcr: int,
    start_offset: int | None,
    list_format: str | None,
    byte_order: str | None,
    header_bank: str | None,
) -> None:
    if not 0 <= pcr < 64:
        raise UsageError(f"{pcr} is no PCR index", source="pcr")
    if start_offset is not None and start_offset < 0:
        raise UsageError("an offset is not negative", source="start_offset")
    for name, value, known in (
        ("list_format", list_format, ("binary", "ascii")),
        ("byte_order", byte_order, ("little", "big")),
        ("header_bank", header_bank, ("sha1", "sha256", "sha384", "sha512", "sm3_256")),
    ):
        if value is not None and value not in known:
            raise UsageError(f"{value!r} is not one of {', '.join(known)}", source=name)


def _verify(
    source: Source,
    targets: Targets,
    layout: Layout,
    *,
    checkpoint: Checkpoint | None,
    start_offset: int | None,
    policy_digest: str | None,
    require_complete: bool,
    forbid_violations: bool,
    explain_failure: bool,
) -> ImaAppraisal:
    resumed = resume(
        source,
        targets,
        layout=layout,
        checkpoint=checkpoint,
        start_offset=start_offset,
        policy_digest=policy_digest,
        suppose=explain_failure,
    )
    tried = resumed.tried
    coverage = coverage_of(tried, targets, before=resumed.checkpoint)
    aggregate = boot_aggregate.check(
        tried.first.boot_aggregates.items, targets.boot, resumed=resumed.checkpoint is not None
    )
    checks = [
        *list_checks(
            tried.first,
            coverage=coverage,
            require_complete=require_complete,
            forbid_violations=forbid_violations,
        ),
        *([resumed.check] if resumed.check else []),
        *pcr_checks(tried, targets, coverage),
        aggregate,
    ]
    explanations: tuple[Explanation, ...] = ()
    if explain_failure and not tried.reached:
        from excise.evidence.ima.explain import explain  # a list that passes needs it not

        explanations = explain(source, targets, tried, aggregate)
    successor = None
    if _verdict(tuple(checks), tried.results) is Outcome.PASSED:
        successor = _successor(source, targets, resumed, policy_digest)
    names = names_of(source, tried.first)
    return ImaAppraisal(
        subject="ima",
        checks=tuple(checks),
        facts=facts_of(tried, coverage, explanations, resumed, names=names, pcr=targets.pcr),
        banks=tried.results,
        coverage=coverage,
        explanations=explanations,
        replay=tried.first,
        names=names,
        meeting=resumed.meeting,
        checkpoint=successor,
    )


def _verdict(checks: tuple[Check, ...], banks: tuple[BankResult, ...]) -> Outcome:
    outcome = verdict_of(checks)
    reached = bool(banks) and all(bank.reached for bank in banks)
    if outcome is Outcome.PASSED and not reached:
        return Outcome.NOT_COVERED
    return outcome


def _successor(
    source: Source, targets: Targets, resumed: Resumed, policy_digest: str | None
) -> Checkpoint | None:
    """Return the checkpoint after the part of the list that every value covers."""
    tried, old = resumed.tried, resumed.checkpoint
    results = [result for result in tried.results if result.pcr == targets.pcr]
    hits = [result.hit for result in results if result.hit]
    if len(hits) < len(results):
        return replace(old, policy_digest=policy_digest) if old else None
    hit = min(hits, key=lambda hit: hit.place.index)
    record = source.read(hit.place.offset, hit.end - hit.place.offset)
    layout = tried.first.layout
    first = tried.first.first or (hit.place.offset, hit.end)
    return Checkpoint(
        list_format=layout.format or "",
        byte_order=layout.byte_order or "",
        header_bank=layout.header_bank or "",
        base_offset=resumed.base_offset,
        offset=resumed.base_offset + hit.end,
        count=hit.place.index + 1,
        line=hit.place.line + record.count(b"\n") if layout.format == "ascii" else 1,
        first_record=old.first_record
        if old
        else RecordMark.of(source.read(first[0], first[1] - first[0])),
        last_record=RecordMark.of(record),
        registers=_registers_at(source, tried, hit),
        policy_digest=policy_digest,
    )


def _registers_at(source: Source, tried: Attempt, hit: Hit) -> tuple[RegisterState, ...]:
    """Return every register at a hit, each under the rule it was reached by."""
    rules = {(result.pcr, result.bank): result.rule for result in tried.results}
    wanted: dict[tuple[int, str, str], ChainSpec] = {}
    for register in tried.first.registers:
        for chain in register.chains:
            key = (register.pcr, chain.bank)
            state = tried.states.get(key)
            if not register.entries and state is None:
                continue
            rule = rules.get(key) or (state.rule if state else OWN)
            start = state.value if state else zero(chain.bank)
            wanted[*key, rule] = ChainSpec(
                pcr=key[0], bank=key[1], rule=rule, start=start, target=None
            )
    hits = [r.hit for r in tried.results if r.hit and r.hit.place.index == hit.place.index]
    values: dict[tuple[int, str, str], bytes] = {}
    for known in hits:
        values.update(known.states)
    if not wanted.keys() <= values.keys():
        # The values were not reached at one and the same entry: replay up to the first.
        part = replay(
            source,
            chains=wanted.values(),
            layout=tried.first.layout,
            start=tried.entry_start,
            end_offset=hit.end,
        )
        values = {(c.pcr, c.bank, c.rule): c.value for r in part.registers for c in r.chains}
    return tuple(
        RegisterState(pcr=pcr, bank=bank, rule=rule, value=values[pcr, bank, rule].hex())
        for pcr, bank, rule in sorted(wanted)
    )
