"""Attested captures: which of a capture's claims are proven by its own evidence.

The chain: files → seal (digests) → root → qualifying data of a TPM quote → PCRs → IMA list. What
hangs on the chain is proven, given that the attestation key is one of the machine's TPM; what does
not is only stated by whoever made the capture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from excise.capture.manifest import Manifest
from excise.capture.seal import Seal, broken_seal_lines, read_seal
from excise.capture.store import EVIDENCE, read_manifest
from excise.errors import FormatError
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.ima import ImaAppraisal, verify_list
from excise.evidence.pcr import read_pcr_bytes
from excise.evidence.policy import read_covered
from excise.evidence.policy.buffers import is_buffer
from excise.evidence.quote import QuoteAppraisal, verify_quote
from excise.units import counted

ATTEST: Final = "quote.attest"
SIGNATURE: Final = "quote.signature"
PUBLIC: Final = "quote.public"
PCRS: Final = "quote.pcrs"
KEY_CHECK: Final = "capture.attestation_key"
_SMALL_BYTES: Final = 1 << 20  # more than any quote, key or table of PCRs takes
IMA_LIST: Final = "ima_binary_runtime_measurements"
_POLICY_NAMES: Final = ("ima-policy", "ima_policy", "ima/policy")
_SEAL_CLAUSE: Final = "excise capture format: seal.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Something a capture says, and what stands behind it.

    Attributes:
        name: Name of the fact.
        value: Its value as stated.
        proven: Whether the evidence proves it.
        by: What proves it, or why nothing does.
    """

    name: str
    value: str
    proven: bool
    by: str

    def as_dict(self) -> dict[str, str | bool]:
        """Return plain values, for `--json`."""
        return {"name": self.name, "value": self.value, "proven": self.proven, "by": self.by}


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureAppraisal(AppraisalResult):
    """What is proven of a capture.

    Attributes:
        claims: Every fact of the manifest, proven or only stated.
        quote: The quote's own result, None without a quote.
        ima: The list's own result, None without a list.
    """

    claims: tuple[Claim, ...]
    quote: QuoteAppraisal | None
    ima: ImaAppraisal | None

    @property
    def verdict(self) -> Outcome:
        """Return PASSED only for a quote that holds, by a key that the caller knows.

        A seal alone, or a quote by the capture's own key, anybody could have made.
        """
        verdict = verdict_of(self.checks)
        known = any(
            check.id == KEY_CHECK and check.outcome is Outcome.PASSED for check in self.checks
        )
        return Outcome.NOT_COVERED if verdict is Outcome.PASSED and not known else verdict

    def details(self) -> tuple[str, ...]:
        """Return each claim with what proves it, the proven ones first."""
        ordered = sorted(self.claims, key=lambda claim: not claim.proven)
        return tuple(
            f"{'proven' if claim.proven else 'stated'}  {claim.name} = {claim.value} ({claim.by})"
            for claim in ordered
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for `--json`."""
        return AppraisalResult.as_dict(self) | {
            "claims": [claim.as_dict() for claim in self.claims]
        }


def verify_capture(path: Path, *, public_key: bytes | None = None) -> CaptureAppraisal:
    """Return every check of a capture's seal, quote and measurement list, and what they prove.

    Args:
        path: Capture folder.
        public_key: The attestation key the quote must be made with, as TPM2B_PUBLIC, PEM or DER.
            Without it the key in the capture is used, and that it is a real TPM's stays open.

    Raises:
        CaptureError: If it is not a capture.
        FormatError: If a piece of evidence cannot be read at all.
    """
    manifest = read_manifest(path)
    seal = read_seal(path)
    checks = [_seal_check(path, seal)]
    files = _evidence(path)
    measured = path / EVIDENCE / IMA_LIST
    quote = _quote(files, seal, public_key)
    checks += quote.checks if quote else [_no_quote(files)]
    checks.append(_key_check(quote, given=public_key is not None))
    ima = _ima(measured, quote)
    checks += ima.checks if ima else [_no_list()]
    return CaptureAppraisal(
        subject="capture",
        checks=tuple(checks),
        facts={
            "capture": manifest.id,
            "root": seal.root if seal else None,
            "covered_entries": ima.coverage.covered_entries if ima else 0,
        },
        claims=tuple(_claims(manifest, checks, quote, ima, measured)),
        quote=quote,
        ima=ima,
    )


def _seal_check(path: Path, seal: Seal | None) -> Check:
    if seal is None:
        return Check(
            id="capture.seal",
            outcome=Outcome.NOT_COVERED,
            expected="seal.json",
            got="not sealed",
            clause=_SEAL_CLAUSE,
        )
    broken = broken_seal_lines(path, seal)
    return Check(
        id="capture.seal",
        outcome=Outcome.FAILED if broken else Outcome.PASSED,
        expected=f"{counted(len(seal.digests), 'file')} with root {seal.root}",
        got="; ".join(broken) or "all files as sealed",
        clause=_SEAL_CLAUSE,
    )


def _evidence(path: Path) -> Mapping[str, bytes]:
    folder = path / EVIDENCE
    if not folder.is_dir():
        return {}
    found = {}
    for name in (ATTEST, SIGNATURE, PUBLIC, PCRS):
        file = folder / name
        try:
            if not file.is_file():
                continue
            if file.stat().st_size > _SMALL_BYTES:
                raise FormatError(f"is larger than {_SMALL_BYTES:,} bytes", source=str(file))
            found[name] = file.read_bytes()
        except OSError as error:
            raise FormatError(f"cannot be read ({error.strerror})", source=str(file)) from error
    return found


def _quote(
    files: Mapping[str, bytes], seal: Seal | None, public_key: bytes | None
) -> QuoteAppraisal | None:
    if seal is None or any(name not in files for name in (ATTEST, SIGNATURE, PUBLIC, PCRS)):
        return None
    return verify_quote(
        files[ATTEST],
        files[SIGNATURE],
        public_key if public_key is not None else files[PUBLIC],
        qualifying_data=bytes.fromhex(seal.root),
        pcrs=read_pcr_bytes(files[PCRS], source=PCRS),
    )


def _no_quote(files: Mapping[str, bytes]) -> Check:
    missing = [name for name in (ATTEST, SIGNATURE, PUBLIC, PCRS) if name not in files]
    return Check(
        id="capture.quote",
        # Part of a quote without the rest is a damaged capture, not one that was never attested.
        outcome=Outcome.FAILED if 0 < len(missing) < 4 else Outcome.NOT_COVERED,
        expected="a quote whose qualifying data is the seal's root",
        got=f"missing: {', '.join(missing)}" if missing else "not sealed",
        clause="TPM 2.0 Library, Part 3, TPM2_Quote",
    )


def _key_check(quote: QuoteAppraisal | None, *, given: bool) -> Check:
    outcome = Outcome.NOT_COVERED
    got = "the capture's own key, which anybody could have made"
    if given and quote is not None:
        passed = quote.verdict is Outcome.PASSED
        outcome = Outcome.PASSED if passed else Outcome.FAILED
        got = "signed with the key that was given" if passed else "the quote does not hold"
    elif quote is None:
        got = "no quote"
        # A key says that a quote is expected: its absence is what a forger would leave.
        outcome = Outcome.FAILED if given else Outcome.NOT_COVERED
    return Check(
        id=KEY_CHECK,
        outcome=outcome,
        expected="an attestation key known to belong to the machine's TPM",
        got=got,
        clause="RFC 9334, section 12; TPM 2.0 Library, Part 1, Attestation",
        detail="" if given else "Give the key with --key once it is known to be the TPM's",
    )


def _ima(measured: Path, quote: QuoteAppraisal | None) -> ImaAppraisal | None:
    if not measured.is_file():
        return None
    # Only what the quote proves may vouch for the list: an unproven PCR value proves nothing.
    return verify_list(measured, pcrs=quote.pcrs if quote else {})


def _no_list() -> Check:
    return Check(
        id="capture.ima",
        outcome=Outcome.NOT_COVERED,
        expected="the IMA measurement list read after the quote",
        got="none: the kernel kept no list, or it could not be read",
        clause="Linux, security/integrity/ima",
    )


def _claims(
    manifest: Manifest,
    checks: list[Check],
    quote: QuoteAppraisal | None,
    ima: ImaAppraisal | None,
    measured: Path,
) -> Iterator[Claim]:
    passed = {check.id for check in checks if check.outcome is Outcome.PASSED}
    quoted = {"capture.seal", KEY_CHECK} <= passed and quote is not None
    yield Claim(
        name="the numbers are those that were sealed",
        value=f"{manifest.title}",
        proven=quoted,
        by="the quote signs the seal's root" if quoted else "no quote by a known key holds over it",
    )
    covered = _covered_names(measured, ima) if quoted and ima is not None else {}
    if ima is not None:
        reached = quoted and ima.verdict is Outcome.PASSED
        match = ima.coverage.match
        last = match.index if match else -1
        violations = sum(place.index <= last for place in ima.replay.violations.items)
        yield Claim(
            name="IMA measured",
            value=f"{ima.coverage.covered_entries} entries, {violations} violations",
            proven=reached,
            by="the list leads to the quoted PCR 10" if reached else "PCR 10 is not reached",
        )
    policies = sorted({name for name in covered.values() if name.endswith(_POLICY_NAMES)})
    if policies:
        yield Claim(
            name="IMA policy loaded",
            value=", ".join(policies),
            proven=True,
            by="entries of the covered list",
        )
    for fact in manifest.host_facts:
        yield _fact_claim(fact.name, "" if fact.value is None else str(fact.value), covered)


def _fact_claim(name: str, value: str, covered: Mapping[str, str]) -> Claim:
    if name.startswith("program.") and name.endswith(".sha256") and value in covered:
        by = f"measured by IMA as {covered[value]}"
        return Claim(name=name, value=value, proven=True, by=by)
    if name == "kernel.release" and covered.get(f"kernel_version:{value}"):
        return Claim(name=name, value=value, proven=True, by="measured by IMA as kernel_version")
    if name == "ima.policy_present" and value == "True" and len(covered) > 1:
        return Claim(name=name, value=value, proven=True, by=f"{len(covered)} covered entries")
    return Claim(name=name, value=value, proven=False, by="stated by the capture")


def _covered_names(measured: Path, ima: ImaAppraisal) -> dict[str, str]:
    """Return, of covered entries of IMA's PCR that are no violations, hex digest to name.

    The value of a `kernel_version` buffer is a key of its own. Entries of other PCRs are covered by
    no value here, wherever they stand.
    """
    rows = read_covered(measured, ima) if ima.verdict is Outcome.PASSED else None
    found: dict[str, str] = {}
    for row in rows or ():
        if row.violation or row.hash_matches is False:
            continue
        name = (row.name or b"").decode(errors="backslashreplace")
        found[row.digest.hex()] = name
        if name == "kernel_version" and is_buffer(row):
            found[f"kernel_version:{(row.buf or b'').decode(errors='replace').rstrip(chr(0))}"] = (
                name
            )
    return found
