"""One host's evidence, appraised: a pure step from its old state and its folder to its new state.

Whatever a piece of evidence does to its reader ends in a row of that host. The pieces are
appraised in this order, because the later ones need what the earlier ones prove:

 1. The quote, by the key the host is known by, else by its own key, which is then held to.
 2. PCR values: those the quote proves; without a quote those that the collector read.
 3. The measurement list, from the checkpoint on; then its new entries by the policy.
 4. The boot log and the log of a confidential guest.
 5. Captures, if they have changed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from excise.errors import ExciseError, FormatError
from excise.evidence.checks import Outcome
from excise.evidence.pcr import read_pcr_bytes
from excise.evidence.policy import IMA_PCR, Policy
from excise.fleet import layout
from excise.fleet.captures import appraise_captures
from excise.fleet.judged import Judged, Said, as_judged
from excise.fleet.lists import ListResult, appraise_list
from excise.fleet.places import Folder, folder_at
from excise.fleet.records import (
    BootLogState,
    CaptureState,
    CheckRow,
    HostJob,
    HostState,
    Settings,
    check_state,
    decode_state,
)

SMALL_BYTES: Final = 1 << 20
"""More than any quote, key or table of PCR values takes."""
LOG_BYTES: Final = 64 << 20
"""More than any boot log takes: the firmware has it in memory."""

_PASSED: Final = Outcome.PASSED.value
_OPENS: Final = ("fleet.attestation_key", "fleet.quote")
"""Checks without which a host's evidence is anybody's word, whatever else passed."""
_NOTHING: Final = layout.sort_items(())
Pcrs = Mapping[str, Mapping[int, bytes]]


def appraise_host(job: HostJob, *, policy: Policy | None, settings: Settings) -> HostState:
    """Return a host's new state: every check, whatever its evidence does to the readers.

    Args:
        job: The host, its folder, and what was kept of it.
        policy: Reference values for its files.
        settings: How it is judged.
    """
    work = _Work(job=job, settings=settings, policy=policy, folder=folder_at(job.url))
    work.guard("fleet", work.run)
    return work.finish()


@dataclass(slots=True)
class _Work:
    """A host under way."""

    job: HostJob
    settings: Settings
    policy: Policy | None
    folder: Folder
    before: HostState | None = None
    evidence: layout.Evidence = _NOTHING
    checks: list[CheckRow] = field(default_factory=list)
    passed_ns: dict[tuple[str, str], int | None] = field(default_factory=dict)
    now_ns: int = field(default_factory=time.time_ns)
    verdicts: dict[str, Outcome] = field(default_factory=dict)
    proven: Pcrs = field(default_factory=dict)
    quote: bytes | None = None
    key_sha256: str | None = None
    list_result: ListResult | None = None
    captured: tuple[CheckRow, ...] = ()
    capture_states: dict[str, CaptureState] = field(default_factory=dict)
    boot_logs: list[BootLogState | None] = field(default_factory=list)

    def guard(self, subject: str, step: Callable[[], None]) -> None:
        """Make a step; what it raises becomes a failed check."""
        try:
            step()
        except ExciseError as error:
            self.note(subject, "fleet.readable", Outcome.FAILED, "evidence", str(error))
        except (Exception, MemoryError) as error:  # one host never stops the fleet
            text = f"{type(error).__name__}: {error}"
            self.note(subject, "fleet.error", Outcome.FAILED, "no fault of the program", text)

    def note(
        self,
        subject: str,
        identifier: str,
        outcome: Outcome,
        expected: str,
        got: str,
        detail: str = "",
    ) -> None:
        """Add a check of the fleet's own."""
        self._add(((subject, identifier, outcome.value, expected, got, detail),))
        if outcome is Outcome.FAILED:
            self.verdicts[subject] = Outcome.FAILED

    def take(self, found: Judged) -> None:
        """Add the checks and the verdict of a piece of evidence."""
        self._add(found.said)
        before = self.verdicts.get(found.subject)
        if before is not Outcome.FAILED:
            self.verdicts[found.subject] = found.verdict

    def _add(self, rows: tuple[Said, ...]) -> None:
        now, passed = self.now_ns, self.passed_ns
        self.checks += [
            CheckRow(*said, now if said[2] == _PASSED else passed.get(said[:2])) for said in rows
        ]

    def run(self) -> None:
        """Appraise everything there is."""
        self._open_state()
        self.evidence = layout.sort_items(self.folder.items())
        if layout.QUOTE in self.evidence.files:
            self.guard("quote", self._quote)
        else:
            self._no_quote()
            self.guard("fleet", self._pcrs)
        if name := self.evidence.first(layout.IMA_LISTS):
            self.guard("ima", partial(self._list, name))
        if name := self.evidence.first(layout.EVENT_LOGS):
            self.guard("eventlog", partial(self._event_log, name))
        if name := self.evidence.first(layout.CCELS):
            self.guard("eventlog", partial(self._ccel, name))
        if self.evidence.captures:
            self.guard("capture", self._captures)
        self._presence()

    def _open_state(self) -> None:
        if self.job.state is None:
            return
        try:
            source = f"state of {self.job.host}"
            state = decode_state(self.job.state, source=source)
            check_state(state, source=source, host=self.job.host)
            self.before = state
            self.passed_ns = {(row.subject, row.check): row.passed_ns for row in state.checks}
        except FormatError as error:
            self.note(
                "fleet",
                "fleet.state",
                Outcome.NOT_COVERED,
                "the state of the last round",
                str(error),
                "Everything is verified from its beginning.",
            )

    def _read(self, name: str) -> bytes:
        return self.folder.read(name, limit_bytes=SMALL_BYTES)

    def _pcrs(self) -> None:
        if name := self.evidence.pcrs:
            self.proven = read_pcr_bytes(self._read(name), source=name)

    def _quote(self) -> None:
        from excise.evidence.quote import verify_quote
        from excise.evidence.tpm_structures import parse_attest

        missing = [n for n in (layout.SIGNATURE, layout.NONCE) if n not in self.evidence.files]
        pcrs_name = self.evidence.pcrs
        if pcrs_name is None:
            missing.append(layout.QUOTED_PCRS)
        if self.job.key is None and layout.PUBLIC not in self.evidence.files:
            missing.append(layout.PUBLIC)
        if missing or pcrs_name is None:
            raise FormatError(f"a quote without {', '.join(missing)}", source=layout.QUOTE)
        attest = self._read(layout.QUOTE)
        key = self.job.key if self.job.key is not None else self._read(layout.PUBLIC)
        parsed = parse_attest(attest)
        pcrs = read_pcr_bytes(self._read(pcrs_name), source=pcrs_name, selection=parsed.pcr_select)
        same_key = self._known_key(key)
        earlier = self.before.quote if self.before and same_key else None
        found = verify_quote(
            parsed,
            self._read(layout.SIGNATURE),
            key,
            qualifying_data=_nonce(self._read(layout.NONCE)),
            pcrs=pcrs,
            allow_sha1=self.settings.allow_sha1,
            previous=earlier,
        )
        self.take(as_judged(found))
        self._freshness(attest)
        if found.verdict is Outcome.PASSED and self.verdicts["quote"] is Outcome.PASSED:
            self.proven, self.quote = found.pcrs, attest

    def _no_quote(self) -> None:
        """Say so where a host that can quote comes without a quote: its values are anybody's."""
        if self.job.key is not None:
            got = "none, and its attestation key was given"
        elif self.before is not None and (self.before.quote or self.before.key_sha256):
            got = "none, and it had one in an earlier round"
        else:
            return
        self.note(
            "quote",
            "fleet.quote",
            Outcome.NOT_COVERED,
            "a quote",
            got,
            "Its PCR values prove nothing. If it has no TPM now, remove its key or its state.",
        )

    def _known_key(self, key: bytes) -> bool:
        """Hold the host to the key it is known by, or to the one first seen."""
        digest = hashlib.sha256(key).hexdigest()
        first = self.before.key_sha256 if self.before else None
        self.key_sha256 = first or digest
        outcome, got = Outcome.NOT_COVERED, "the host's own key, which anybody could have made"
        if self.job.key is not None:
            outcome, got, self.key_sha256 = Outcome.PASSED, "the key that was given", digest
        elif first is not None and first != digest:
            outcome, got = Outcome.FAILED, "another key than in the rounds before"
        self.note(
            "quote",
            "fleet.attestation_key",
            outcome,
            "a key known to belong to the host's TPM",
            got,
            "" if outcome is Outcome.PASSED else "Give the keys with --keys once they are known.",
        )
        return first is None or first == digest

    def _freshness(self, attest: bytes) -> None:
        old = self.before is not None and self.before.quote == attest
        self.note(
            "quote",
            "fleet.quote_is_new",
            Outcome.NOT_COVERED if old else Outcome.PASSED,
            "a quote that was not seen before",
            "the quote of the round before" if old else "a new quote",
            "It proves no newer state: the time of the last verification stays." if old else "",
        )

    def _list(self, name: str) -> None:
        found = appraise_list(
            self.folder,
            self.evidence.files[name],
            pcrs=self.proven,
            before=self.before,
            state=self.job.state,
            policy=self.policy,
            settings=self.settings,
        )
        self.list_result = found
        self.take(found.ima)
        if found.policy is not None:
            self.take(found.policy)

    def _event_log(self, name: str) -> None:
        self._boot_log(
            name,
            {
                bank: kept
                for bank, values in self.proven.items()
                if (kept := {index: value for index, value in values.items() if index != IMA_PCR})
            },
        )

    def _ccel(self, name: str) -> None:
        values: Pcrs = {}
        if layout.RTMRS in self.evidence.files:
            rtmrs = read_pcr_bytes(self._read(layout.RTMRS), source=layout.RTMRS)
            values = {b: {i + 1: v for i, v in held.items()} for b, held in rtmrs.items()}
        self._boot_log(name, values)

    def _boot_log(self, name: str, values: Pcrs) -> None:
        from excise.fleet.boot_logs import judge_boot_log

        data = self.folder.read(name, limit_bytes=LOG_BYTES)
        found, kept = judge_boot_log(data, values=values, name=name, before=self.before)
        self.take(found)
        self.boot_logs.append(kept)

    def _captures(self) -> None:
        known = self.before.captures if self.before else {}
        states, verdict = appraise_captures(
            self.folder, self.evidence.captures, known=known, key=self.job.key
        )
        self.capture_states.update(states)
        self.captured = tuple(row for state in states.values() for row in state.checks)
        self.verdicts["capture"] = verdict

    def _presence(self) -> None:
        """Say what there is, what there must be, and what was not looked at."""
        there = {
            "ima": self.evidence.first(layout.IMA_LISTS),
            "quote": self.evidence.first((layout.QUOTE,)),
            "eventlog": self.evidence.first((*layout.EVENT_LOGS, *layout.CCELS)),
            "capture": next(iter(self.evidence.captures), None),
        }
        present = [kind for kind, name in there.items() if name]
        missing = [kind for kind in self.settings.require if not there[kind]]
        outcome = Outcome.PASSED if present else Outcome.NOT_COVERED
        self.note(
            "fleet",
            "fleet.evidence",
            Outcome.FAILED if missing else outcome,
            layout.wanted(self.settings.require),
            ", ".join(present) or "none",
            f"Missing: {', '.join(missing)}." if missing else "",
        )
        if self.evidence.unused:
            self.note(
                "fleet",
                "fleet.files",
                Outcome.NOT_COVERED,
                "evidence",
                f"not looked at: {', '.join(self.evidence.unused[:20])}",
            )

    def _verdict(self) -> Outcome:
        """Return the worst of the verdicts; evidence that proves nothing is not taken for proof."""
        outcomes = set(self.verdicts.values())
        if Outcome.FAILED in outcomes:
            return Outcome.FAILED
        # A capture that was never attested is a measurement, not evidence: it opens nothing.
        judged = {v for k, v in self.verdicts.items() if k != "capture" or v is Outcome.PASSED}
        is_open = any(row.check in _OPENS and row.outcome != Outcome.PASSED for row in self.checks)
        return Outcome.PASSED if judged == {Outcome.PASSED} and not is_open else Outcome.NOT_COVERED

    def finish(self) -> HostState:
        """Return the new state; what could not be looked at keeps what was known of it."""
        now = self.now_ns
        before, verdict, found = self.before, self._verdict(), self.list_result
        old_quote = self.quote is not None and before is not None and before.quote == self.quote
        renewed = verdict is Outcome.PASSED and not old_quote
        return HostState(
            host=self.job.host,
            verdict=verdict.value,
            attempted_ns=now,
            verified_ns=now if renewed else before.verified_ns if before else None,
            evidence_ns=self.evidence.modified_ns,
            entries=found.covered_entries if found else 0,
            new_entries=found.new_entries if found else 0,
            settings=self.settings.name(),
            checks=(*self.checks, *self.captured),
            findings=found.findings if found else before.findings if before else (),
            findings_left_out=found.left_out if found else 0,
            checkpoint=found.checkpoint if found else before.checkpoint if before else None,
            policy=found.policy_state if found else before.policy if before else None,
            quote=self.quote or (before.quote if before else None),
            key_sha256=self.key_sha256 or (before.key_sha256 if before else None),
            captures=self.capture_states,
            boot_log=self._kept_boot_log(),
        )

    def _kept_boot_log(self) -> BootLogState | None:
        """Return what the only log was judged by: a row says not which of two logs it is of."""
        failed = self.verdicts.get("eventlog") is Outcome.FAILED
        return None if failed or len(self.boot_logs) != 1 else self.boot_logs[0]


def _nonce(data: bytes) -> bytes:
    """Return the nonce of a file: its hexadecimal text, else its bytes."""
    try:
        return bytes.fromhex(data.decode("ascii").strip())
    except (UnicodeDecodeError, ValueError):
        return data
