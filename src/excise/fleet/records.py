"""What a round keeps of each host: its checks, what was found, and the state to go on from."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from excise.errors import FormatError
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint
from excise.evidence.policy import EntryClass, PolicyState
from excise.evidence.signature import SignatureResult

SCHEMA: Final = 1
MAX_FINDINGS: Final = 2000
"""Findings kept of a host; a list with more is verified from its beginning each round."""


class CheckRow(msgspec.Struct, frozen=True, array_like=True):
    """One check of one host.

    Attributes:
        subject: `ima`, `policy`, `quote`, `eventlog`, `capture` or `fleet`.
        passed_ns: When it last PASSED, in ns since the epoch; None if it never did.
    """

    subject: str
    check: str
    outcome: str
    expected: str
    got: str
    detail: str
    passed_ns: int | None


class Finding(msgspec.Struct, frozen=True, array_like=True):
    """A file of a host that the policy does not allow, or a violation.

    Attributes:
        kind: Class of the entry, as the policy gives it.
        name: Path or event name; bytes that are no UTF-8 are escaped.
        algorithm: Hash of the digest; empty for violations.
        digest: The digest, in hexadecimal; empty for violations, which authenticate none.
        count: Entries of the list that say so.
    """

    kind: str
    name: str
    algorithm: str
    digest: str
    count: int


class CostRow(msgspec.Struct, frozen=True, array_like=True):
    """What a task took under a configuration, in a capture of a host."""

    capture: str
    kernel: str
    tpm: str
    lsm: str
    task: str
    configuration: str
    metric: str
    unit: str
    runs: int
    median: float


class CaptureState(msgspec.Struct, frozen=True, kw_only=True):
    """What was found in a capture, so that it is not read again while it is the same.

    Attributes:
        fingerprint: Names, sizes and times of its files.
    """

    fingerprint: str
    checks: tuple[CheckRow, ...]
    costs: tuple[CostRow, ...]


class BootLogState(msgspec.Struct, frozen=True, kw_only=True):
    """What a boot log was judged by, so that it is not replayed again while nothing of it changed.

    Its checks are those of the round.

    Attributes:
        fingerprint: Digest of the log, of the values it was held to, and of what judged it.
        verdict: PASSED or NOT_COVERED.
    """

    fingerprint: str
    verdict: Outcome


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is known of a host after a round.

    Attributes:
        host: Its name: that of its folder.
        verdict: PASSED, FAILED or NOT_COVERED.
        attempted_ns: When it was last looked at, in ns since the epoch.
        verified_ns: When its verdict was last PASSED over new evidence; None if it never was.
        evidence_ns: When the newest of its evidence was written, as its store says.
        entries: Entries of its list that are covered.
        new_entries: Those of them that this round read.
        settings: What it was judged by: the policy's digest, and the rule for violations.
        checks: Every check of the round.
        findings: What was found in all of its list, not only in this round.
        findings_left_out: Entries whose findings were beyond `MAX_FINDINGS`.
        checkpoint: Where the next round goes on in its list.
        policy: Counts by class at the checkpoint.
        quote: Its last quote (TPMS_ATTEST).
        key_sha256: Digest of its attestation key, as first seen.
        captures: What its captures hold, by name.
        boot_log: What its boot log was judged by; None where it has none or two, or it failed.
    """

    host: str
    verdict: str
    attempted_ns: int
    schema: int = SCHEMA
    verified_ns: int | None = None
    evidence_ns: int | None = None
    entries: int = 0
    new_entries: int = 0
    settings: str = ""
    checks: tuple[CheckRow, ...] = ()
    findings: tuple[Finding, ...] = ()
    findings_left_out: int = 0
    checkpoint: Checkpoint | None = None
    policy: PolicyState | None = None
    quote: bytes | None = None
    key_sha256: str | None = None
    captures: dict[str, CaptureState] = {}
    boot_log: BootLogState | None = None

    def encode(self) -> bytes:
        """Return the state as JSON; bytes of names that are no UTF-8 are escaped."""
        try:
            return _ENCODER.encode(self)
        except UnicodeEncodeError:
            return _ENCODER.encode(_escaped(msgspec.to_builtins(self)))

    @property
    def failed_checks(self) -> tuple[CheckRow, ...]:
        """Return the checks that FAILED."""
        return tuple(row for row in self.checks if row.outcome == Outcome.FAILED)


def escaped_name(name: str) -> str:
    r"""Return the name of a file with its bytes that are no UTF-8 escaped, such as `\xff`."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _escaped(value: Any) -> Any:
    """Return plain values with all texts in them escaped."""
    if isinstance(value, str):
        return escaped_name(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(inner) for inner in value]
    return value


def decode_state(data: bytes, *, source: str) -> HostState:
    """Return the state that was kept of a host.

    Raises:
        FormatError: It is none, or of another version.
    """
    try:
        state = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"is no state of a host ({error})", source=source) from error
    if state.schema != SCHEMA:
        raise FormatError(f"has schema {state.schema}, this version reads {SCHEMA}", source=source)
    return state


def check_state(state: HostState, *, source: str, host: str) -> None:
    """Refuse a state that a round could not go on from.

    Raises:
        FormatError: It is another host's, or its checkpoint or counts hold what none of this
            version's do.
    """
    if state.host != host:
        raise FormatError(f"is that of host {state.host!r}", source=source)
    if state.checkpoint is not None:
        state.checkpoint.validate(source)
    if state.policy is None:
        return
    try:
        for name in state.policy.counts.keys() - _CLASSES:
            EntryClass(name)
        for name in state.policy.signature_counts.keys() - _SIGNATURES:
            SignatureResult(name)
        if state.policy.boot_aggregate is not None:
            bytes.fromhex(state.policy.boot_aggregate[1])
    except ValueError as error:
        raise FormatError(str(error), source=source, field="policy") from error


class Outline(msgspec.Struct, frozen=True, kw_only=True):
    """What a leader needs of a state; the rest of it is not decoded."""

    verdict: str
    attempted_ns: int
    verified_ns: int | None = None
    new_entries: int = 0


def outline_of(data: bytes) -> Outline:
    """Return what a leader needs of an encoded state of this version."""
    return _OUTLINE.decode(data)


_CLASSES: Final = frozenset(each.value for each in EntryClass)
_SIGNATURES: Final = frozenset(each.value for each in SignatureResult)
_ENCODER: Final = msgspec.json.Encoder()
_DECODER: Final = msgspec.json.Decoder(HostState)
_OUTLINE: Final = msgspec.json.Decoder(Outline)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How every host is judged.

    Attributes:
        policy_digest: Digest of the compiled policy; None without one.
        violations: What a violation does: `fail`, `report` or `ignore`.
        allow_sha1: Whether a quote may have a SHA-1 signature.
        require: Kinds of evidence that every host must have.
        max_list_bytes: Longest list read.
    """

    policy_digest: str | None = None
    violations: str = "report"
    allow_sha1: bool = False
    require: tuple[str, ...] = ()
    max_list_bytes: int = 4 << 30

    def name(self) -> str:
        """Return what a state was judged by: under other settings it is not gone on from."""
        return f"{self.policy_digest or 'none'} violations={self.violations}"


class HostJob(msgspec.Struct, frozen=True, kw_only=True):
    """One host to look at, as it is handed to a worker.

    Attributes:
        url: Its folder.
        state: What was kept of it, encoded; None for a host not seen before.
        key: The attestation key it is known by.
    """

    host: str
    url: str
    state: bytes | None = None
    key: bytes | None = None
