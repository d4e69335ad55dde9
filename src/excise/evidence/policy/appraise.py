"""Judge the entries of a measurement list by a policy: one class for each, and three checks.

What the PCR does not authenticate is not judged as if it did: a violation extends ones instead of
the entry's hash, so its name and digest are only what the list says, and neither an exclude nor a
reference applies to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from excise.errors import UsageError
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.names import quoted_name
from excise.evidence.policy.buffers import BufferJudge, LearnKeys, is_buffer
from excise.evidence.policy.classes import EntryClass
from excise.evidence.policy.entry import PolicyEntry, algorithm_of, table_algorithm
from excise.evidence.policy.model import Policy
from excise.evidence.policy.state import PolicyState
from excise.evidence.signature import (
    SIGNATURE_HASHES,
    Keyring,
    SignatureAppraisal,
    SignatureResult,
    parse_file_signature,
)

if TYPE_CHECKING:
    from excise._core import PolicyScreen
    from excise.evidence.ima import ImaList, ImaRow
    from excise.evidence.ima.rows import Settled


class Treatment(StrEnum):
    """What a kind of entry does to the verdict."""

    FAIL = "fail"
    REPORT = "report"
    IGNORE = "ignore"


class Accept(StrEnum):
    """What makes a file acceptable."""

    DIGEST = "digest"
    SIGNATURE = "signature"
    EITHER = "either"
    BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalOptions:
    """How to judge.

    Attributes:
        accept: What makes a file acceptable; by default what the policy and the keys allow to
            ask: its digest, its signature, or either.
        violations: `report` counts them and leaves them open, which is what the evidence says.
        pseudo_files: Files without a path in a file system, such as memfds.
        buffers: Measured buffers the policy does not list; by default they fail where it lists
            any, and are reported where it lists none.
        learn_keys: Which keys of `ima-buf` entries verify the signatures after them.
        first: How many offenders of each class are kept.
    """

    accept: Accept | None = None
    violations: Treatment = Treatment.REPORT
    pseudo_files: Treatment = Treatment.FAIL
    buffers: Treatment | None = None
    learn_keys: LearnKeys = LearnKeys.APPROVED
    first: int = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryAppraisal:
    """One entry and what became of it.

    Attributes:
        position: Position in the list, from 0.
        offset: Byte offset of its record.
        name: Event name, as bytes.
        entry_class: What became of it.
        expected: Digests the policy lists for the name, in hexadecimal.
        got: Measured digest, as `algorithm:hexadecimal`.
        signature: What its signature says; None where none was looked at.
        detail: One clause more, or empty.
    """

    position: int
    offset: int
    name: bytes
    entry_class: EntryClass
    expected: tuple[str, ...] = ()
    got: str = ""
    signature: SignatureAppraisal | None = None
    detail: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for `--json`; bytes of the name that are no UTF-8 are escaped."""
        signature = self.signature
        return {
            "position": self.position,
            "offset": self.offset,
            "name": self.name.decode("utf-8", "backslashreplace"),
            "class": self.entry_class.value,
            "expected": list(self.expected),
            "got": self.got,
            "signature": signature.result.value if signature else "",
            "signature_detail": signature.detail if signature else "",
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyAppraisal(AppraisalResult):
    """What a policy says of a list.

    Attributes:
        counts: Number of entries by class.
        signature_counts: Number of file entries by signature result.
        offenders: The first entries of every class that fails or is left open, in list order.
        files: File entries that were compared: neither excluded nor the boot aggregate.
    """

    counts: Mapping[EntryClass, int]
    signature_counts: Mapping[SignatureResult, int]
    offenders: tuple[EntryAppraisal, ...]
    files: int

    def details(self) -> tuple[str, ...]:
        """Return counts by class, then the first offenders, one line each."""
        counts = ", ".join(f"{count} {name}" for name, count in self.counts.items() if count)
        lines = [f"Entries: {counts or 'none'}."]
        lines += [f"Policy: {note}" for note in self.facts.get("policy_notes", ())]
        for each in self.offenders:
            name = quoted_name(each.name)
            expected = f", expected {' or '.join(each.expected)}" if each.expected else ""
            detail = f" ({each.detail})" if each.detail else ""
            lines.append(
                f"{each.entry_class}: entry {each.position} {name}: {each.got}{expected}{detail}"
            )
        return tuple(lines)

    @property
    def verdict(self) -> Outcome:
        """Return the verdict; without one file compared it is never PASSED."""
        verdict = verdict_of(self.checks)
        compared = {"policy.digests", "policy.signatures"}
        passed = {check.id for check in self.checks if check.outcome is Outcome.PASSED}
        if verdict is Outcome.PASSED and not (passed & compared and self.files):
            return Outcome.NOT_COVERED
        return verdict


def appraise_entries(
    entries: Iterable[PolicyEntry],
    policy: Policy,
    *,
    keyring: Keyring | None = None,
    options: AppraisalOptions | None = None,
) -> PolicyAppraisal:
    """Return what a policy says of a list's entries.

    Args:
        entries: The entries a PCR covers; those after the covered part prove nothing.
        policy: The reference values.
        keyring: Keys for file signatures, beside those of the policy; it is not changed.
        options: How to judge.

    Raises:
        UsageError: Digests are asked for and the policy has none.
    """
    appraiser = PolicyAppraiser(policy, keyring=keyring, options=options)
    for entry in entries:
        appraiser.take(entry)
    return appraiser.finish()


_FILE_FAULTS: Final = (
    EntryClass.UNKNOWN_FILE,
    EntryClass.DIGEST_DIFFERS,
    EntryClass.OTHER_ALGORITHM,
    EntryClass.UNREADABLE,
)
_ACCEPTED: Final = (EntryClass.ALLOWED, EntryClass.SIGNED)
_CODES: Final = (
    EntryClass.ALLOWED,
    EntryClass.DIGEST_DIFFERS,
    EntryClass.OTHER_ALGORITHM,
    EntryClass.UNKNOWN_FILE,
)
_LONGEST_LIST_HEADER_BYTES: Final = 64  # struct ima_kexec_hdr has 24
_PSEUDO_PREFIXES: Final = (
    b"memfd:",
    b"/memfd:",
    b"anon_inode:",
    b"/anon_inode:",
    b"pipe:",
    b"socket:",
)
_NONE_IN_TEMPLATE: Final = SignatureAppraisal(
    result=SignatureResult.NO_SIGNATURE, detail="the template has no signature field"
)


class PolicyAppraiser:
    """Judges entries one after another, so that a list may arrive in pieces.

    With the state of an earlier appraiser it goes on where that one stopped; keys that one learnt
    from the list are not in the state.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        keyring: Keyring | None = None,
        options: AppraisalOptions | None = None,
        before: PolicyState | None = None,
    ) -> None:
        self._policy = policy
        self._options = options or AppraisalOptions()
        # A child, so that a key learnt from one host's list verifies nothing of another's.
        self._keyring = Keyring(parent=keyring)
        for number, key in enumerate(policy.description.keys):
            self._keyring.add_bytes(key, source=f"policy key {number}")
        self._has_digests = len(policy.table) > 0
        self._buffers = BufferJudge(
            policy.description, keyring=self._keyring, learn=self._options.learn_keys
        )
        may_learn = self._options.learn_keys is LearnKeys.ALL or policy.description.keyrings
        self._uses_keys = bool(len(self._keyring) or may_learn)
        self._accept = self._options.accept or self._default_accept()
        if self._accept in (Accept.DIGEST, Accept.BOTH) and not self._has_digests:
            raise UsageError("digests are asked for, and the policy has none")
        before = before or PolicyState()
        self._counts: Counter[EntryClass] = Counter()
        for name, count in before.counts.items():
            self._counts[EntryClass(name)] = count
        self._signatures: Counter[SignatureResult] = Counter()
        for name, count in before.signature_counts.items():
            self._signatures[SignatureResult(name)] = count
        self._unsigned_faults = before.unsigned_faults
        self._files = before.files
        self._first: dict[tuple[str, str], list[EntryAppraisal]] = {}
        self._boot_aggregate: tuple[str, bytes] | None = None
        if before.boot_aggregate is not None:
            algorithm, digest = before.boot_aggregate
            self._boot_aggregate = (algorithm, bytes.fromhex(digest))

    def _default_accept(self) -> Accept:
        if not self._has_digests:
            return Accept.SIGNATURE
        return Accept.EITHER if self._uses_keys else Accept.DIGEST

    def screen(self) -> PolicyScreen:
        """Return what of a list needs no judgement but to be counted; for `take_list`."""
        from excise._core import PolicyScreen

        return PolicyScreen(
            self._policy.table,
            prefixes=self._policy.prefixes,
            digest_suffices=self._accept in (Accept.DIGEST, Accept.EITHER),
            verifies_signatures=self._uses_keys,
            signature_hashes=bytes(SIGNATURE_HASHES),
        )

    @property
    def lists_buffers(self) -> bool:
        """Return whether the policy has digests of measured buffers."""
        return self._buffers.has_references

    def take_list(self, rows: ImaList) -> Iterator[tuple[ImaRow, EntryClass]]:
        """Judge a list opened with `screen`; give the entries that were not settled by it.

        The others are counted when the last row was taken.
        """
        for row in rows:
            yield row, self.take(row)
        self.settle(rows.settled)

    def settle(self, settled: Settled) -> None:
        """Count entries that `screen` settled."""
        self._counts[EntryClass.ALLOWED] += settled.allowed
        self._counts[EntryClass.EXCLUDED] += settled.excluded
        self._signatures[SignatureResult.NO_SIGNATURE] += settled.without_signature
        self._signatures[SignatureResult.UNKNOWN_KEY] += settled.unknown_key
        self._files += settled.files

    def take(self, entry: PolicyEntry) -> EntryClass:
        """Judge one entry, keep the count, and return its class."""
        signature: SignatureAppraisal | None = None
        if entry.violation:
            found = EntryClass.VIOLATION
        elif is_buffer(entry):
            found = self._buffers.judge(entry)
        else:
            found = self._file(entry)
            self._files += found is not EntryClass.EXCLUDED and entry.name != b"boot_aggregate"
            if found not in (EntryClass.BOOT_AGGREGATE, EntryClass.EXCLUDED):
                signature = self._signature(entry)
                self._signatures[signature.result] += 1
                found = self._accepted(found, signature.result)
        self._counts[found] += 1
        self._note(entry, found, signature)
        return found

    def _file(self, entry: PolicyEntry) -> EntryClass:
        name = entry.name
        if name is None or not entry.digest:
            return EntryClass.UNREADABLE
        code = self._policy.table.lookup(name, table_algorithm(entry), entry.digest)
        if code == 0:
            return EntryClass.ALLOWED
        if code == 3 and name == b"boot_aggregate" and self._is_boot_aggregate(entry):
            return EntryClass.BOOT_AGGREGATE
        if self._policy.is_excluded(name):
            return EntryClass.EXCLUDED
        if code == 3 and name.startswith(_PSEUDO_PREFIXES):
            return EntryClass.PSEUDO_FILE
        return _CODES[code]

    def _is_boot_aggregate(self, entry: PolicyEntry) -> bool:
        # Only the kernel makes the first entry. Later ones follow a kexec and repeat its digest;
        # any other entry of this name is a file without a path that someone called so. The offset
        # is asked too, since the rows of a resumed list may be counted from 0 again.
        if entry.position == 0 and entry.offset <= _LONGEST_LIST_HEADER_BYTES:
            self._boot_aggregate = (entry.algorithm, entry.digest)
            return True
        return self._boot_aggregate == (entry.algorithm, entry.digest)

    def _signature(self, entry: PolicyEntry) -> SignatureAppraisal:
        if entry.signature is None:
            return _NONE_IN_TEMPLATE
        if not self._uses_keys:
            parsed = parse_file_signature(entry.signature)
            if isinstance(parsed, SignatureAppraisal):
                return parsed
            keyid = parsed.keyid.hex()
            return SignatureAppraisal(
                result=SignatureResult.UNKNOWN_KEY, detail=f"no key {keyid}", keyid=keyid
            )
        algorithm = algorithm_of(entry)
        return self._keyring.verify(
            entry.signature, digest_algorithm=algorithm, digest=entry.digest
        )

    def _accepted(self, found: EntryClass, signature: SignatureResult) -> EntryClass:
        """Return the class after the signature had its say."""
        signed = signature is SignatureResult.OK
        if self._accept in (Accept.SIGNATURE, Accept.BOTH) and not signed:
            self._unsigned_faults += 1
        if self._accept is Accept.SIGNATURE:
            return EntryClass.SIGNED if signed else EntryClass.NOT_SIGNED
        if self._accept is Accept.EITHER and signed and found is not EntryClass.ALLOWED:
            return EntryClass.SIGNED
        return found

    def _note(
        self, entry: PolicyEntry, found: EntryClass, signature: SignatureAppraisal | None
    ) -> None:
        bad = signature is not None and signature.result in (
            SignatureResult.BAD_SIGNATURE,
            SignatureResult.MALFORMED,
        )
        unsigned = (
            self._accept is Accept.BOTH
            and signature is not None
            and signature.result is not SignatureResult.OK
        )
        silent = found in (
            EntryClass.ALLOWED,
            EntryClass.SIGNED,
            EntryClass.EXCLUDED,
            EntryClass.BOOT_AGGREGATE,
            EntryClass.BUFFER_ALLOWED,
        )
        if silent and not bad and not unsigned:
            return
        kept = self._first.setdefault((found, signature.result if signature else ""), [])
        if len(kept) < self._options.first:
            kept.append(self._describe(entry, found, signature))

    def _describe(
        self, entry: PolicyEntry, found: EntryClass, signature: SignatureAppraisal | None
    ) -> EntryAppraisal:
        name = entry.name or b""
        expected: tuple[str, ...] = ()
        detail = ""
        if found is EntryClass.DIGEST_DIFFERS:
            listed = self._policy.table.expected(name, table_algorithm(entry))
            expected = tuple(digest.hex() for digest in listed)
        elif found is EntryClass.OTHER_ALGORITHM:
            known = ", ".join(self._policy.counts())
            kind = "an fs-verity digest" if entry.digest_type == "verity" else "this algorithm"
            detail = f"the policy lists the file, not {kind} (it has {known})"
        elif found is EntryClass.UNKNOWN_FILE:
            if self._policy.table.holds_digest(table_algorithm(entry), entry.digest):
                detail = "the digest is listed under another name"
        elif found is EntryClass.VIOLATION:
            detail = "name and digest are not authenticated: the PCR was extended with ones"
        elif found in (EntryClass.BUFFER_UNKNOWN, EntryClass.BUFFER_DIFFERS):
            expected = self._buffers.expected(name)
        return EntryAppraisal(
            position=entry.position,
            offset=entry.offset,
            name=name,
            entry_class=found,
            expected=expected,
            got=f"{algorithm_of(entry)}:{entry.digest.hex()}",
            signature=signature,
            detail=detail,
        )

    def state(self) -> PolicyState:
        """Return what to go on from with the next part of the list."""
        aggregate = self._boot_aggregate
        return PolicyState(
            counts={name.value: n for name, n in self._counts.items() if n},
            signature_counts={name.value: n for name, n in self._signatures.items() if n},
            files=self._files,
            unsigned_faults=self._unsigned_faults,
            boot_aggregate=(aggregate[0], aggregate[1].hex()) if aggregate else None,
        )

    def finish(self) -> PolicyAppraisal:
        """Return the checks over all entries taken so far."""
        offenders = sorted(
            (entry for kept in self._first.values() for entry in kept),
            key=lambda entry: entry.position,
        )
        counts = {entry_class: self._counts[entry_class] for entry_class in EntryClass}
        signatures = {result: self._signatures[result] for result in SignatureResult}
        return PolicyAppraisal(
            subject="policy",
            checks=tuple(self._checks()),
            facts={
                "policy_digest": self._policy.digest,
                "policy_digests": dict(self._policy.counts()),
                "policy_notes": list(self._policy.notes),
                "accept": self._accept.value,
                "entries": self._counts.total(),
                "counts": {entry_class.value: n for entry_class, n in counts.items() if n},
                "signatures": {result.value: n for result, n in signatures.items() if n},
                "keys": len(self._keyring),
                "keys_learnt": self._buffers.learnt,
                "offenders": [entry.as_dict() for entry in offenders],
            },
            counts=MappingProxyType(counts),
            signature_counts=MappingProxyType(signatures),
            offenders=tuple(offenders),
            files=self._files,
        )

    def _checks(self) -> Iterable[Check]:
        yield self._digests_check()
        yield self._signatures_check()
        yield self._treated(
            "policy.violations",
            EntryClass.VIOLATION,
            self._options.violations,
            clause="Linux, ima_main.c, ima_rdwr_violation_check",
            detail="Files were written while measured, or read while open for writing; the "
            "content and even the name in such an entry are not authenticated.",
        )
        yield self._buffers_check()
        if self._counts.get(EntryClass.EXCLUDED):
            yield Check(
                id="policy.excludes",
                outcome=Outcome.NOT_COVERED,
                got=f"{self._counts[EntryClass.EXCLUDED]} excluded entries",
                clause="The policy's excludes",
                detail="Nothing was asked of these files.",
            )

    def _digests_check(self) -> Check:
        faults = list(_FILE_FAULTS)
        if self._options.pseudo_files is Treatment.FAIL:
            faults.append(EntryClass.PSEUDO_FILE)
        counts = self._counts
        accepted = sum(counts.get(each, 0) for each in _ACCEPTED)
        found = [(counts[each], each) for each in faults if counts.get(each)]
        bad = sum(count for count, _ in found)
        outcome = Outcome.PASSED if accepted else Outcome.NOT_COVERED
        if bad:
            outcome = Outcome.FAILED
        detail = ""
        if not self._has_digests:
            outcome, detail = Outcome.NOT_COVERED, "The policy has no file digests."
        elif not accepted and not bad:
            detail = "No entry of a file was compared."
        reported = counts.get(EntryClass.PSEUDO_FILE, 0)
        if reported and self._options.pseudo_files is Treatment.REPORT:
            detail = f"{reported} entries of pseudo files are not judged."
        listed = ", ".join(f"{count} × {each.value}" for count, each in found)
        return Check(
            id="policy.digests",
            outcome=outcome,
            expected="every measured file with a digest of the policy",
            got="; ".join(part for part in (f"{accepted} accepted", listed) if part),
            clause="RFC 9334, 8.3 (Reference Values); Linux, ima_template_lib.c, d-ng and n-ng",
            detail=detail,
        )

    def _signatures_check(self) -> Check:
        seen = self._signatures
        bad = seen.get(SignatureResult.BAD_SIGNATURE, 0) + seen.get(SignatureResult.MALFORMED, 0)
        required = self._accept in (Accept.SIGNATURE, Accept.BOTH)
        outcome = Outcome.PASSED if seen.get(SignatureResult.OK) else Outcome.NOT_COVERED
        detail = ""
        if (bad and self._uses_keys) or (required and self._unsigned_faults):
            outcome = Outcome.FAILED
        elif not self._uses_keys:
            outcome, detail = Outcome.NOT_COVERED, "No key was given."
        return Check(
            id="policy.signatures",
            outcome=outcome,
            expected="a valid signature on every file" if required else "no bad signature",
            got=", ".join(f"{n} × {result.value}" for result, n in sorted(seen.items()) if n),
            clause="Linux, integrity/digsig.c, struct signature_v2_hdr; ima_appraise.c",
            detail=detail,
        )

    def _treated(
        self, identifier: str, entry_class: EntryClass, treatment: Treatment, **text: str
    ) -> Check:
        count = self._counts.get(entry_class, 0)
        outcome = Outcome.PASSED if any(self._counts.values()) else Outcome.NOT_COVERED
        if count and treatment is not Treatment.IGNORE:
            outcome = Outcome.FAILED if treatment is Treatment.FAIL else Outcome.NOT_COVERED
        ignored = " (ignored on request)" if count and treatment is Treatment.IGNORE else ""
        return Check(
            id=identifier,
            outcome=outcome,
            expected="none",
            got=f"{count} {entry_class.value}{ignored}",
            clause=text["clause"],
            detail=text["detail"] if count else "",
        )

    def _buffers_check(self) -> Check:
        counts = self._counts
        differs = counts.get(EntryClass.BUFFER_DIFFERS, 0)
        unknown = counts.get(EntryClass.BUFFER_UNKNOWN, 0)
        allowed = counts.get(EntryClass.BUFFER_ALLOWED, 0)
        treatment = self._options.buffers
        if treatment is None:
            treatment = Treatment.FAIL if self._buffers.has_references else Treatment.REPORT
        outcome = Outcome.PASSED if allowed else Outcome.NOT_COVERED
        if unknown and treatment is Treatment.REPORT:
            outcome = Outcome.NOT_COVERED
        if differs or (unknown and treatment is Treatment.FAIL):
            outcome = Outcome.FAILED
        return Check(
            id="policy.buffers",
            outcome=outcome,
            expected="keys and other buffers with digests of the policy",
            got=f"{allowed} allowed, {differs} differ, {unknown} unknown",
            clause="Linux, ima_main.c, process_buffer_measurement; ima_asymmetric_keys.c",
            detail="" if self._buffers.has_references else "The policy lists no buffer.",
        )
