"""Verify a PSA attestation token: encoding, claims, trust anchor, signature, freshness.

Steps: (1) the COSE message is read strictly; (2) every claim is checked against the profile;
(3) exactly one trust anchor is found for implementation and instance together; (4) the signature
is checked with it, over the received bytes; (5) the nonce is compared whole with the verifier's.
All checks are listed, whether others failed or not; what could not be reached is NOT_COVERED.

Sources: RFC 9783; RFC 9334 section 10 (freshness).
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from excise.errors import FormatError
from excise.evidence.cbor import read_cbor
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.cose import (
    READ_PASSED,
    TAG_MAC0,
    TAG_SIGN1,
    CoseMessage,
    CoseOptions,
    read_message,
    reading_checks,
    verify_read,
)
from excise.evidence.cose_key import VerificationKey
from excise.evidence.psa.claims import PsaClaims, check_claims
from excise.evidence.psa.profiles import Profile


class TrustAnchors(Protocol):
    """Where verification keys come from."""

    def keys_for(
        self, *, implementation_id: bytes, instance_id: bytes
    ) -> Sequence[VerificationKey]:
        """Return the keys registered for one device; a verifier needs exactly one."""
        ...

    def instances_of(self, implementation_id: bytes) -> Sequence[bytes]:
        """Return the instance IDs of one kind of device that have keys."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """What a verifier of tokens accepts.

    Attributes:
        profile: The profile to insist on; None takes any that is known.
        allow_mac0: Whether a COSE_Mac0 with a shared secret may come instead of a signature.
        require_nonce: Whether a token without a nonce to compare it with fails.
        require_bound_instance: Whether the instance ID must be 01 ‖ SHA-256 of the key.
    """

    profile: Profile | None = None
    allow_mac0: bool = False
    require_nonce: bool = True
    require_bound_instance: bool = False


DEFAULT_OPTIONS: Final = TokenOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAppraisal(AppraisalResult):
    """What a token proves.

    Attributes:
        claims: Its claims; None when one of them is wrong. Trust them only when the verdict is
            PASSED.
        key: The trust anchor that was used; None when there was not exactly one.
        problem: Why the token is not to be believed, in Veraison's words; empty when it is.
    """

    claims: PsaClaims | None
    key: VerificationKey | None = None
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain values; claims have psatoken's names, and binary is base64."""
        claims = self.claims.as_json() if self.claims is not None else None
        return {**AppraisalResult.as_dict(self), "claims": claims}

    @property
    def verdict(self) -> Outcome:
        """Return the verdict; claims without a verified signature are never PASSED."""
        verdict = verdict_of(self.checks)
        signed = any(
            check.id == "cose.signature" and check.outcome is Outcome.PASSED
            for check in self.checks
        )
        return Outcome.NOT_COVERED if verdict is Outcome.PASSED and not signed else verdict


def verify_token(
    data: bytes,
    trust: VerificationKey | TrustAnchors,
    *,
    nonce: bytes | None,
    options: TokenOptions = DEFAULT_OPTIONS,
) -> TokenAppraisal:
    """Return every check made on a PSA token.

    Args:
        data: The token.
        trust: The key to verify it with, or the trust anchors to find it in.
        nonce: The challenge it must answer; None when there is none, which fails unless the
            options allow it.
        options: What is accepted.
    """
    tags = (TAG_SIGN1, TAG_MAC0) if options.allow_mac0 else (TAG_SIGN1,)
    cose = CoseOptions(tags=tags)
    try:
        message = read_message(data, options=cose)
    except FormatError as error:
        checks = reading_checks(error)
        return _result(checks, None, None, "could not establish identity from evidence", {})
    claims, claim_checks = _claims(message, options)
    key, anchor = _anchor(trust, claims)
    got_nonce = claims.nonce if claims is not None else None
    checks = (
        *_signature(message, key, cose),
        *claim_checks,
        anchor,
        freshness_check(got_nonce, nonce, required=options.require_nonce),
        _binding_check(claims, key, required=options.require_bound_instance),
    )
    problem = _problem_of(checks, got_nonce, nonce)
    return _result(checks, claims, key, problem, _facts(claims))


def _claims(
    message: CoseMessage, options: TokenOptions
) -> tuple[PsaClaims | None, tuple[Check, ...]]:
    try:
        raw = read_cbor(message.payload)
    except FormatError as error:
        return None, (payload_check(error),)
    return check_claims(raw, profile=options.profile)


def payload_check(error: FormatError, *, name: str = "token.claims") -> Check:
    """Return the failed check of a payload whose CBOR is not strict."""
    at = f" at offset {error.offset} of the payload" if error.offset is not None else ""
    return Check(
        id=name,
        outcome=Outcome.FAILED,
        expected="one map of claims in strict CBOR",
        got=f"{error.reason}{at}",
        clause="RFC 9783 section 5.1; RFC 8949 section 5",
    )


def _anchor(
    trust: VerificationKey | TrustAnchors, claims: PsaClaims | None
) -> tuple[VerificationKey | None, Check]:
    if isinstance(trust, VerificationKey):
        return trust, anchor_check(Outcome.NOT_COVERED, "the caller vouches for the key")
    if claims is None:
        return None, anchor_check(Outcome.NOT_COVERED, "no claims to find one with")
    return find_anchor(trust, claims.implementation_id, claims.instance_id)


def find_anchor(
    trust: TrustAnchors, implementation_id: bytes, instance_id: bytes
) -> tuple[VerificationKey | None, Check]:
    """Return the one key registered for a device, and the check that there is exactly one."""
    found = trust.keys_for(implementation_id=implementation_id, instance_id=instance_id)
    if not found:
        known = trust.instances_of(implementation_id)
        got = f"none for the implementation {implementation_id.hex()}"
        if known:
            got = (
                f"none for the instance {instance_id.hex()}; "
                f"{len(known)} other{'s' if len(known) != 1 else ''} of its implementation known"
            )
        return None, anchor_check(Outcome.FAILED, got)
    if len(found) > 1:
        return None, anchor_check(Outcome.FAILED, f"{len(found)} trust anchors")
    return found[0], anchor_check(Outcome.PASSED, f"one: {found[0]}")


def anchor_check(outcome: Outcome, got: str) -> Check:
    """Return the check that a token's key is known."""
    return Check(
        id="token.trust_anchor",
        outcome=outcome,
        expected="exactly one trust anchor for this implementation and instance",
        got=got,
        clause="RFC 9334 section 7.3; RFC 9783 section 4.2",
    )


def _signature(
    message: CoseMessage, key: VerificationKey | None, cose: CoseOptions
) -> tuple[Check, ...]:
    if key is not None:
        return verify_read(message, key, options=cose)
    return unverified_checks()


def unverified_checks() -> tuple[Check, ...]:
    """Return the checks of a message for which there is no key."""
    names = ("algorithm", "critical", "key", "signature_length", "signature")
    return (
        *READ_PASSED,
        *(
            Check(id=f"cose.{name}", outcome=Outcome.NOT_COVERED, got="no key to check with")
            for name in names
        ),
    )


def freshness_check(got: bytes | None, nonce: bytes | None, *, required: bool) -> Check:
    """Return the check that evidence answers the verifier's challenge, compared whole."""
    expected = nonce.hex() if nonce is not None else "the verifier's challenge"
    shown = got.hex() if got is not None else "no nonce that could be read"
    if got is None:
        outcome = Outcome.NOT_COVERED
    elif nonce is None:
        outcome = Outcome.FAILED if required else Outcome.NOT_COVERED
        shown = f"{shown}, and no challenge to compare it with"
    else:
        outcome = Outcome.PASSED if hmac.compare_digest(got, nonce) else Outcome.FAILED
    return Check(
        id="token.freshness",
        outcome=outcome,
        expected=expected,
        got=shown,
        clause="RFC 9783 section 4.1.1; RFC 9334 section 10.2",
    )


def _binding_check(
    claims: PsaClaims | None, key: VerificationKey | None, *, required: bool
) -> Check:
    clause = "RFC 9783 section 4.2.1, recommended derivation"
    if claims is None or key is None:
        got = "no claims or no key"
        return Check(id="token.instance_key", outcome=Outcome.NOT_COVERED, got=got, clause=clause)
    derived = key.instance_id()
    if hmac.compare_digest(derived, claims.instance_id):
        outcome, got = Outcome.PASSED, "the instance ID is a hash of the key"
    else:
        outcome = Outcome.FAILED if required else Outcome.NOT_COVERED
        got = "the instance ID is no hash of the key: the trust anchor alone ties them"
    return Check(
        id="token.instance_key", outcome=outcome, expected=derived.hex(), got=got, clause=clause
    )


def _problem_of(checks: Sequence[Check], got: bytes | None, wanted: bytes | None) -> str:
    """Return why evidence is not to be believed, in the words of Veraison's verifier.

    The order is Veraison's: claims first, then the trust anchor, then freshness, then signature.
    """
    failed = {check.id: check for check in checks if check.outcome is Outcome.FAILED}
    claims = [
        check
        for name, check in failed.items()
        if name not in ("token.trust_anchor", "token.freshness", "token.instance_key")
        and not name.startswith("cose.")
    ]
    if claims or any(name in failed for name in ("cose.encoding", "cose.tag", "cose.structure")):
        return "could not establish identity from evidence"
    if "token.trust_anchor" in failed:
        return "no trust anchor for evidence"
    bad = "integrity validation failed: bad evidence: "
    if "token.freshness" in failed and got is not None:
        against = wanted.hex() if wanted is not None else "none"
        return f"{bad}freshness: psa-nonce ({got.hex()}) does not match session nonce ({against})"
    if failed:
        return f"{bad}signature verification failed: verification error"
    return ""


def _facts(claims: PsaClaims | None) -> dict[str, Any]:
    if claims is None:
        return {}
    named: dict[str, Any] = {
        "profile": claims.profile.name,
        "implementation id": claims.implementation_id.hex(),
        "instance id": claims.instance_id.hex(),
        "lifecycle": str(claims.state),
    }
    for number, one in enumerate(claims.components, start=1):
        named[f"component {number}"] = str(one)
    return named if claims.components else {**named, "components": "none measured"}


def _result(
    checks: Sequence[Check],
    claims: PsaClaims | None,
    key: VerificationKey | None,
    problem: str,
    facts: dict[str, Any],
) -> TokenAppraisal:
    return TokenAppraisal(
        subject="token",
        checks=tuple(checks),
        facts=facts,
        claims=claims,
        key=key,
        problem=problem,
    )
