"""Appraise a sensor's transaction: is it fresh, of the group, and of a machine in a known state?

1. `sensor.message`: the message has its form.
2. `daa.*`: the signature is by a key of the group that is not revoked, over this message and this
   session's nonce; so an evidence that is sent again fails `daa.proof`.
3. `sensor.list_sha512`: the message's own digest is that of the list, where all of it is here.
4. `ima.*`: the list leads to the PCR values, from where the last accepted message ended; with
   PCRs 0 to 9 its boot_aggregate is theirs.
5. `policy.*`: the entries are those of the reference digests, where there are any.
6. `sensor.state`: the PCR values are the TPM's and not just what the sensor says: the TPM quoted
   them with its key of the group, or that key is bound to them.

The answer is PASSED only if signature, list and, where given, reference digests all pass, and the
PCR values are proven: a host can make up any list and the values that it leads to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from excise.errors import ExciseError, FormatError
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.daa import (
    DaaVerifier,
    KeyAssurance,
    QuotedState,
    Signature,
    framed_message,
    policy_pcr_digest,
)
from excise.evidence.ima import Checkpoint, ImaAppraisal, verify_list
from excise.evidence.pcr import parse_selection
from excise.evidence.policy import AppraisalOptions, Policy, PolicyAppraisal, appraise_covered
from excise.evidence.sensor_message import PURPOSE, PcrBanks, SensorMessage, read_sensor_message
from excise.evidence.tpm_structures import parse_attest

_IMA_PCR: Final = 10
_BOOT_PCRS: Final = range(10)


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorAppraisal(AppraisalResult):
    """The checks of one transaction.

    Attributes:
        outcome: The answer.
        message: The message, where it has its form.
        pseudonym: K, by which the sensor is known under the verifier's basename; None without.
        checkpoint: State of the list after it, from which the next message is verified; None
            unless it passed.
    """

    outcome: Outcome
    message: SensorMessage | None = None
    pseudonym: bytes | None = None
    checkpoint: Checkpoint | None = None
    parts: Mapping[str, Outcome] = field(default_factory=dict)

    @property
    def verdict(self) -> Outcome:
        """Return the answer."""
        return self.outcome

    def reasons(self) -> tuple[str, ...]:
        """Return why the answer is not PASSED, one sentence each."""
        if self.outcome is Outcome.PASSED:
            return ()
        if self.outcome is Outcome.NOT_COVERED:
            open_parts = [name for name, part in self.parts.items() if part is not Outcome.PASSED]
            return (
                *(f"{name}: not covered" for name in open_parts),
                *(f"{c.id}: {c.got}. {c.detail}" for c in self.checks if _is_open_state(c)),
            )
        wrong = [check for check in self.checks if check.outcome is self.outcome]
        return tuple(f"{c.id}: {_found(c)}".rstrip() for c in wrong)


def _found(check: Check) -> str:
    """Return what a check found, and what it asks for."""
    if not check.got:
        return check.detail or check.expected
    return f"{check.got}, expected {check.expected}" if check.expected else check.got


def _is_open_state(check: Check) -> bool:
    return check.id == "sensor.state" and check.outcome is Outcome.NOT_COVERED


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorPolicy:
    """What a verifier asks of sensors.

    Attributes:
        daa: Of the group, with its revocation lists and what its issuer asks of keys.
        references: Digests that files must have; None to judge the list's integrity alone.
        options: How entries are judged.
        trust_stated_pcrs: Whether to accept PCR values that are the sensor's word only.
    """

    daa: DaaVerifier
    references: Policy | None = None
    options: AppraisalOptions = field(default_factory=AppraisalOptions)
    trust_stated_pcrs: bool = False


def appraise_transaction(
    data: bytes,
    signature: bytes,
    *,
    nonce: bytes,
    policy: SensorPolicy,
    basename: bytes | None = None,
    attest: bytes | None = None,
    checkpoint: Checkpoint | None = None,
) -> SensorAppraisal:
    """Return every check of one transaction.

    Args:
        data: The message's bytes.
        signature: The DAA signature's bytes.
        nonce: The session's, which the signature must be over.
        policy: What is asked.
        basename: The verifier's own; None where sensors stay anonymous.
        attest: What the TPM signed along, where the signature is its quote.
        checkpoint: State of the sensor's list after its last accepted message; not used by a
            message that begins at the list's head.
    """
    try:
        message = read_sensor_message(data)
    except FormatError as error:
        return _only(_failed("sensor.message", "a message of its form", str(error)))
    checks = [Check(id="sensor.message", outcome=Outcome.PASSED, got=f"{len(data):,} bytes")]
    try:
        parsed = Signature.from_bytes(signature)
    except ExciseError as error:
        return _only(*checks, _failed("daa.signature", "a signature of its form", str(error)))
    try:
        quoted = _quoted(attest, message) if attest is not None else None
    except ExciseError as error:
        return _only(*checks, _failed("daa.quote_structure", "a TPMS_ATTEST", str(error)))
    signed = policy.daa.verify(
        parsed,
        message=framed_message(purpose=PURPOSE, nonce=nonce, payload=data),
        basename=basename,
        pcr_policy=_claimed_policy(message, policy.daa.assurance),
        quote=quoted,
    )
    listed, judged, list_checks = _judge_list(message, policy, checkpoint)
    state = _state_check(policy.daa.assurance, quoted, message)
    checks += [*signed.checks, *list_checks, state]
    parts = {"signature": signed.verdict, "list": listed.verdict if listed else Outcome.FAILED}
    if policy.references is not None:
        parts["references"] = _references_outcome(listed, judged)
    believed = state.outcome is Outcome.PASSED or policy.trust_stated_pcrs
    outcome = _outcome(checks, parts, believed=believed)
    return SensorAppraisal(
        subject="sensor",
        checks=tuple(checks),
        facts=_facts(message, signed.facts, listed),
        outcome=outcome,
        message=message,
        pseudonym=signed.pseudonym,
        checkpoint=listed.checkpoint if listed and outcome is Outcome.PASSED else None,
        parts=parts,
    )


def _references_outcome(listed: ImaAppraisal | None, judged: PolicyAppraisal | None) -> Outcome:
    if listed is None or judged is None:
        return Outcome.NOT_COVERED
    # A message without new entries has nothing to judge, and is as good as the one before it.
    nothing_new = listed.meeting.goes_on and not listed.replay.entries
    return listed.verdict if nothing_new else judged.verdict


def _outcome(checks: list[Check], parts: Mapping[str, Outcome], *, believed: bool) -> Outcome:
    if verdict_of(checks) is Outcome.FAILED or Outcome.FAILED in parts.values():
        return Outcome.FAILED
    good = all(outcome is Outcome.PASSED for outcome in parts.values())
    return Outcome.PASSED if good and believed else Outcome.NOT_COVERED


def _judge_list(
    message: SensorMessage, policy: SensorPolicy, checkpoint: Checkpoint | None
) -> tuple[ImaAppraisal | None, PolicyAppraisal | None, list[Check]]:
    """Return what the list gives, what the references say of it, and all checks of both."""
    checks = [_digest_check(message)]
    before = checkpoint if message.list_offset else None
    if message.list_offset and before is None:
        reason = f"the entries begin at offset {message.list_offset}, and none before are known"
        return None, None, [*checks, _failed("sensor.list", "entries from the list's head", reason)]
    try:
        found = verify_list(
            message.list_entries,
            pcrs=_relevant(message.pcrs),
            checkpoint=before,
            start_offset=message.list_offset or None,
            policy_digest=policy.references.digest if policy.references else None,
        )
    except ExciseError as error:
        return None, None, [*checks, _failed("sensor.list", "a measurement list", str(error))]
    checks += found.checks
    judged = None
    if policy.references is not None:
        judged = appraise_covered(
            message.list_entries, found, policy.references, before=before, options=policy.options
        )
        checks += judged.checks
    return found, judged, checks


def _relevant(pcrs: PcrBanks) -> dict[str, dict[int, bytes]]:
    """Return IMA's register and those of the boot_aggregate."""
    wanted = {_IMA_PCR, *_BOOT_PCRS}
    return {
        bank: {index: value for index, value in held.items() if index in wanted}
        for bank, held in pcrs.items()
        if _IMA_PCR in held
    }


def _digest_check(message: SensorMessage) -> Check:
    clause = "SHA-512 of the whole list, as in the sensor's message"
    if message.list_offset:
        return Check(
            id="sensor.list_sha512",
            outcome=Outcome.NOT_COVERED,
            clause=clause,
            detail="Only the new entries are here; the PCR covers them and all before.",
        )
    got = hashlib.sha512(message.list_entries).digest()
    return Check(
        id="sensor.list_sha512",
        outcome=Outcome.PASSED if got == message.list_sha512 else Outcome.FAILED,
        expected=message.list_sha512.hex(),
        got=got.hex(),
        clause=clause,
    )


def _claimed_policy(message: SensorMessage, assurance: KeyAssurance | None) -> bytes | None:
    """Return the PCR policy that the message's values give, over the PCRs keys are bound to."""
    if assurance is None or assurance.pcr_policy is None or not assurance.selection:
        return None
    selection = dict(parse_selection(assurance.selection))
    try:
        values = {b: {i: message.pcrs[b][i] for i in indices} for b, indices in selection.items()}
    except KeyError:
        return b""  # a value the key is bound to is not in the message: no policy is this one
    return policy_pcr_digest(values)


def _quoted(attest: bytes, message: SensorMessage) -> QuotedState:
    """Return the quote with the message's values of the PCRs that it selects."""
    selection = parse_attest(attest).pcr_select or ()
    values: dict[str, dict[int, bytes]] = {}
    for bank, indices in selection:
        held = message.pcrs.get(bank, {})
        values[bank] = {index: held[index] for index in indices if index in held}
    return QuotedState(attest=attest, pcrs=values)


def _state_check(
    assurance: KeyAssurance | None, quoted: QuotedState | None, message: SensorMessage
) -> Check:
    """Return whether IMA's register is the TPM's in each bank that the message has it of."""
    banks = {bank for bank, held in message.pcrs.items() if _IMA_PCR in held}
    by_quote = {b for b, held in (quoted.pcrs if quoted else {}).items() if _IMA_PCR in held}
    bound: set[str] = set()
    if assurance is not None and assurance.pcr_policy is not None and assurance.selection:
        selection = parse_selection(assurance.selection)
        bound = {bank for bank, indices in selection if _IMA_PCR in indices}
    if by_quote & banks:
        got = f"quoted by the TPM: {', '.join(sorted(by_quote))}"
    elif bound & banks:
        got = f"keys bound to {assurance.selection if assurance else ''}"
    else:
        got = "the sensor's word"
    proven = bool((by_quote | bound) & banks)
    return Check(
        id="sensor.state",
        outcome=Outcome.PASSED if proven else Outcome.NOT_COVERED,
        expected=f"PCR {_IMA_PCR} quoted, or keys that sign with one value of it only",
        got=got,
        clause="TPM Library Part 3, TPM2_Quote and TPM2_PolicyPCR",
        detail="" if proven else "Join with --quoting: the TPM then vouches for its PCRs.",
    )


def _facts(
    message: SensorMessage, signed: Mapping[str, Any], listed: ImaAppraisal | None
) -> dict[str, Any]:
    return {
        "embedder": message.embedder,
        "image_sha256": message.image_sha256.hex(),
        "list_offset": message.list_offset,
        "list_end": message.list_end,
        "covered_entries": listed.coverage.covered_entries if listed else None,
        **signed,
    }


def _failed(name: str, expected: str, got: str) -> Check:
    return Check(id=name, outcome=Outcome.FAILED, expected=expected, got=got)


def _only(*checks: Check) -> SensorAppraisal:
    return SensorAppraisal(subject="sensor", checks=checks, facts={}, outcome=Outcome.FAILED)
