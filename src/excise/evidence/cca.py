"""Arm CCA tokens: a platform token and a realm token, each signed, the second bound to the first.

The platform's key is known to the verifier. The realm's key is in the realm token, and believed
only because the platform token, which the platform's key signed, holds its hash as its nonce. The
verifier's challenge is in the realm token; shorter challenges than its 64 bytes are padded with
zeros by the realm management monitor.

The collection is tag 907 (a CMW collection) or, as older firmware writes it, tag 399.

Sources: draft-ffm-rats-cca-token; Arm RMM specification (DEN0137), attestation; RFC 9711.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.base64text import encode_base64
from excise.evidence.cbor import Tag, read_cbor
from excise.evidence.checks import AppraisalResult, Check, Outcome, verdict_of
from excise.evidence.cose import CoseMessage, first_tag, read_message, reading_checks, verify_read
from excise.evidence.cose_key import VerificationKey, key_from_cose, raw_point_key
from excise.evidence.psa.claims import (
    SoftwareComponent,
    claim_check,
    described,
    read_components,
)
from excise.evidence.psa.lifecycle import Lifecycle, lifecycle_of
from excise.evidence.psa.profiles import (
    ClaimRule,
    bytes_fault,
    digest_fault,
    instance_fault,
    lifecycle_fault,
    nonce_fault,
    text_fault,
)
from excise.evidence.psa.token import (
    TrustAnchors,
    anchor_check,
    find_anchor,
    freshness_check,
    payload_check,
    unverified_checks,
)
from excise.units import counted

TAG_CMW_COLLECTION: Final = 907
TAG_EAT_COLLECTION: Final = 399
COLLECTION_TAGS: Final = (TAG_CMW_COLLECTION, TAG_EAT_COLLECTION)
PLATFORM_PROFILES: Final = (
    "tag:arm.com,2023:cca_platform#1.0.0",
    "http://arm.com/CCA-SSD/1.0.0",
)
REALM_PROFILE: Final = "tag:arm.com,2023:realm#1.0.0"
CHALLENGE_BYTES: Final = 64

_PLATFORM, _REALM, _COMPONENTS, _PROFILE = 44234, 44241, 2399, 265
_HASHES: Final = {"sha-256": "sha256", "sha-384": "sha384", "sha-512": "sha512"}
_CLAUSE: Final = "draft-ffm-rats-cca-token"


def _hash_fault(value: Any) -> str:
    return text_fault(value) or ("" if value in _HASHES else f"{value!r}")


def _extensible_fault(value: Any) -> str:
    if not isinstance(value, list) or not 1 <= len(value) <= 4:
        return counted(len(value), "value") if isinstance(value, list) else "no array"
    return next((fault for fault in map(digest_fault, value) if fault), "")


def _key_fault(value: Any) -> str:
    return "" if isinstance(value, bytes) and value else "no byte string"


def _rules(table: tuple[tuple[Any, ...], ...], section: str) -> tuple[ClaimRule, ...]:
    return tuple(
        ClaimRule(
            name=name,
            key=key,
            json=json,
            required=required,
            expected=expected,
            fault=fault,
            clause=f"{_CLAUSE}, {section}",
        )
        for name, key, json, required, expected, fault in table
    )


_DIGEST: Final = "32, 48 or 64 bytes"
PLATFORM_RULES: Final = _rules(
    (
        ("nonce", 10, "cca-platform-challenge", True, f"one of {_DIGEST}", nonce_fault),
        ("implementation_id", 2396, "cca-platform-implementation-id", True, "32 bytes",
         bytes_fault(32, 32)),
        ("instance_id", 256, "cca-platform-instance-id", True, "33 bytes, the first 0x01",
         instance_fault),
        ("config", 2401, "cca-platform-config", True, "bytes", bytes_fault(1, 1 << 16)),
        ("lifecycle", 2395, "cca-platform-lifecycle", True, "a state's range", lifecycle_fault),
        ("hash_algorithm", 2402, "cca-platform-hash-algo-id", True, ", ".join(_HASHES),
         _hash_fault),
        ("vsi", 2400, "cca-platform-service-indicator", False, "text, not empty", text_fault),
    ),
    "platform claims",
)  # fmt: skip
REALM_RULES: Final = _rules(
    (
        ("challenge", 10, "cca-realm-challenge", True, "64 bytes", bytes_fault(64, 64)),
        ("personalization_value", 44235, "cca-realm-personalization-value", True, "64 bytes",
         bytes_fault(64, 64)),
        ("hash_algorithm", 44236, "cca-realm-hash-algo-id", True, ", ".join(_HASHES), _hash_fault),
        ("public_key", 44237, "cca-realm-public-key", True, "a key", _key_fault),
        ("initial_measurement", 44238, "cca-realm-initial-measurement", True, _DIGEST,
         digest_fault),
        ("extensible_measurements", 44239, "cca-realm-extensible-measurements", True,
         f"one to four values of {_DIGEST}", _extensible_fault),
        ("key_hash_algorithm", 44240, "cca-realm-public-key-hash-algo-id", True,
         ", ".join(_HASHES), _hash_fault),
    ),
    "realm claims",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformClaims:
    """Claims of a platform token, all of them checked.

    Attributes:
        profile: Name of the profile.
        raw: Value by attribute name of `PLATFORM_RULES`.
        components: Measured firmware.
    """

    profile: str
    raw: Mapping[str, Any]
    components: tuple[SoftwareComponent, ...]

    @property
    def state(self) -> Lifecycle:
        """Return the lifecycle state; CCA and PSA use the same ranges."""
        return lifecycle_of(self.raw["lifecycle"])

    def as_json(self) -> dict[str, Any]:
        """Return the claims under ccatoken's names."""
        named = {"cca-platform-profile": self.profile, **_json(self.raw, PLATFORM_RULES)}
        named["cca-platform-sw-components"] = [one.as_json() for one in self.components]
        return named


@dataclass(frozen=True, slots=True, kw_only=True)
class RealmClaims:
    """Claims of a realm token, all of them checked.

    Attributes:
        profile: Name of the profile; empty for older tokens, which hold the key as a raw point.
        raw: Value by attribute name of `REALM_RULES`.
    """

    profile: str
    raw: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the claims under ccatoken's names."""
        named = {"cca-realm-profile": self.profile} if self.profile else {}
        return {**named, **_json(self.raw, REALM_RULES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class CcaAppraisal(AppraisalResult):
    """What a CCA token proves: the collection's own checks, then those of both tokens.

    Attributes:
        platform: Result for the platform token; None when the collection could not be read.
        realm: Result for the realm token.
        platform_claims: None when a claim is wrong. Trust them only when the verdict is PASSED.
        realm_claims: As above.
        problem: Why the token is not to be believed; empty when it is.
    """

    platform: AppraisalResult | None = None
    realm: AppraisalResult | None = None
    platform_claims: PlatformClaims | None = None
    realm_claims: RealmClaims | None = None
    problem: str = ""

    @property
    def verdict(self) -> Outcome:
        """Return the verdict over all three."""
        parts = [part for part in (self.platform, self.realm) if part is not None]
        return verdict_of([*self.checks, *(check for part in parts for check in part.checks)])

    def results(self) -> tuple[AppraisalResult, ...]:
        """Return the three results, each to be shown under its own name."""
        own = AppraisalResult(subject=self.subject, checks=self.checks, facts=self.facts)
        return (own, *(part for part in (self.platform, self.realm) if part is not None))


def is_collection(data: bytes) -> bool:
    """Return whether bytes begin as a CCA token does."""
    return first_tag(data) in COLLECTION_TAGS


def verify_cca_token(
    data: bytes, trust: VerificationKey | TrustAnchors, *, nonce: bytes | None
) -> CcaAppraisal:
    """Return every check made on a CCA token.

    Args:
        data: The collection.
        trust: The platform's key, or the trust anchors to find it in.
        nonce: The challenge, up to 64 bytes; None fails.
    """
    try:
        tokens = _collection(data)
    except FormatError as error:
        where = f" at offset {error.offset}" if error.offset is not None else ""
        check = _collection_check(Outcome.FAILED, f"{error.reason}{where}")
        problem = "could not establish identity from evidence"
        return CcaAppraisal(subject="cca token", checks=(check,), facts={}, problem=problem)
    platform, platform_claims = _platform(tokens[0], trust)
    realm, realm_claims = _realm(tokens[1], nonce)
    checks = (
        _collection_check(Outcome.PASSED, f"tag {first_tag(data)}, two tokens"),
        _binding(platform_claims, realm_claims),
    )
    everything = [*checks, *platform.checks, *realm.checks]
    return CcaAppraisal(
        subject="cca token",
        checks=checks,
        facts={},
        platform=platform,
        realm=realm,
        platform_claims=platform_claims,
        realm_claims=realm_claims,
        problem=_problem(everything, platform_claims, realm_claims, nonce),
    )


def _collection(data: bytes) -> tuple[bytes, bytes]:
    value = read_cbor(data, tags=COLLECTION_TAGS)
    if not isinstance(value, Tag) or not isinstance(value.value, Mapping):
        raise FormatError("not a tagged map (907, or 399 from older firmware)")
    held = [value.value.get(key) for key in (_PLATFORM, _REALM)]
    if value.number == TAG_CMW_COLLECTION:
        held = [one[1] if isinstance(one, list) and len(one) in (2, 3) else None for one in held]
    platform, realm = held
    if not isinstance(platform, bytes) or not isinstance(realm, bytes):
        raise FormatError("the platform token or the realm token is missing")
    return platform, realm


def _collection_check(outcome: Outcome, got: str) -> Check:
    return Check(
        id="cca.collection",
        outcome=outcome,
        expected="a platform token (44234) and a realm token (44241)",
        got=got,
        clause=_CLAUSE,
    )


def _read(token: bytes) -> tuple[CoseMessage | None, Any, tuple[Check, ...]]:
    """Return the message and its claims, or the checks that say why there are none."""
    try:
        message = read_message(token)
    except FormatError as error:
        return None, None, reading_checks(error)
    try:
        raw = read_cbor(message.payload)
    except FormatError as error:
        return message, None, (payload_check(error, name="cca.claims"),)
    if isinstance(raw, Mapping):
        return message, raw, ()
    got = f"a {type(raw).__name__}"
    return (
        message,
        None,
        (
            Check(
                id="cca.claims", outcome=Outcome.FAILED, expected="a map", got=got, clause=_CLAUSE
            ),
        ),
    )


def _platform(
    token: bytes, trust: VerificationKey | TrustAnchors
) -> tuple[AppraisalResult, PlatformClaims | None]:
    message, raw, checks = _read(token)
    claims: PlatformClaims | None = None
    if raw is not None:
        made = [_profile_check(raw, PLATFORM_PROFILES, required=True)]
        made += [claim_check(raw, rule, prefix="cca") for rule in PLATFORM_RULES]
        components, faults = read_components(raw.get(_COMPONENTS))
        made.append(_components_check(components, faults))
        if all(check.outcome is not Outcome.FAILED for check in made):
            values = {rule.name: raw.get(rule.key) for rule in PLATFORM_RULES}
            claims = PlatformClaims(profile=raw[_PROFILE], raw=values, components=components)
        checks = tuple(made)
    key, anchor = _platform_key(trust, claims)
    return _token_result("cca platform token", message, key, (*checks, anchor)), claims


def _platform_key(
    trust: VerificationKey | TrustAnchors, claims: PlatformClaims | None
) -> tuple[VerificationKey | None, Check]:
    if isinstance(trust, VerificationKey):
        return trust, anchor_check(Outcome.NOT_COVERED, "the caller vouches for the key")
    if claims is None:
        return None, anchor_check(Outcome.NOT_COVERED, "no claims to find one with")
    return find_anchor(trust, claims.raw["implementation_id"], claims.raw["instance_id"])


def _realm(token: bytes, nonce: bytes | None) -> tuple[AppraisalResult, RealmClaims | None]:
    message, raw, checks = _read(token)
    claims: RealmClaims | None = None
    key: VerificationKey | None = None
    if raw is not None:
        made = [_profile_check(raw, (REALM_PROFILE,), required=False)]
        made += [claim_check(raw, rule, prefix="cca") for rule in REALM_RULES]
        key, key_check = _realm_key(raw)
        made.append(key_check)
        if all(check.outcome is not Outcome.FAILED for check in made):
            values = {rule.name: raw[rule.key] for rule in REALM_RULES}
            claims = RealmClaims(profile=raw.get(_PROFILE, ""), raw=values)
        checks = tuple(made)
    padded = nonce.ljust(CHALLENGE_BYTES, b"\0") if nonce is not None else None
    fresh = freshness_check(claims.raw["challenge"] if claims else None, padded, required=True)
    return _token_result("cca realm token", message, key, (*checks, fresh)), claims


def _realm_key(raw: Mapping[Any, Any]) -> tuple[VerificationKey | None, Check]:
    held = raw.get(44237)
    key: VerificationKey | None = None
    got = "no byte string"
    if isinstance(held, bytes):
        try:
            # Tokens with a profile hold a COSE_Key, older ones the bare point.
            key = key_from_cose(read_cbor(held)) if _PROFILE in raw else raw_point_key(held)
            got = str(key)
        except FormatError as error:
            got = error.reason
    return key, Check(
        id="cca.realm_key",
        outcome=Outcome.PASSED if key is not None else Outcome.FAILED,
        expected="a COSE_Key, or a point on P-384 where no profile is named",
        got=got,
        clause=_CLAUSE,
    )


def _token_result(
    subject: str,
    message: CoseMessage | None,
    key: VerificationKey | None,
    checks: tuple[Check, ...],
) -> AppraisalResult:
    if message is None:
        made = checks
    elif key is None:
        made = (*unverified_checks(), *checks)
    else:
        made = (*verify_read(message, key), *checks)
    return AppraisalResult(subject=subject, checks=made, facts={})


def _profile_check(raw: Mapping[Any, Any], known: tuple[str, ...], *, required: bool) -> Check:
    named = raw.get(_PROFILE)
    absent = named is None and not required
    outcome = Outcome.NOT_COVERED if absent else Outcome.FAILED
    return Check(
        id="cca.profile",
        outcome=Outcome.PASSED if named in known else outcome,
        expected=" or ".join(known),
        got="none named: an older token" if absent else repr(named),
        clause=_CLAUSE,
    )


def _components_check(components: tuple[SoftwareComponent, ...], faults: list[str]) -> Check:
    return Check(
        id="cca.software_components",
        outcome=Outcome.FAILED if faults else Outcome.PASSED,
        expected="at least one component with measurement value and signer ID",
        got="; ".join(faults) or described(components),
        clause=f"{_CLAUSE}, platform claims",
    )


def _binding(platform: PlatformClaims | None, realm: RealmClaims | None) -> Check:
    name, expected = "cca.binding", "the platform token's nonce is the hash of the realm's key"
    if platform is None or realm is None:
        got = "a token's claims are wrong"
        return Check(id=name, outcome=Outcome.NOT_COVERED, expected=expected, got=got)
    algorithm = _HASHES[realm.raw["key_hash_algorithm"]]
    made = hashlib.new(algorithm, realm.raw["public_key"]).digest()
    return Check(
        id=name,
        outcome=Outcome.PASSED
        if hmac.compare_digest(made, platform.raw["nonce"])
        else Outcome.FAILED,
        expected=expected,
        got=f"{algorithm} {made.hex()}, and the nonce {platform.raw['nonce'].hex()}",
        clause=f"{_CLAUSE}, binding of the two tokens",
    )


def _problem(
    checks: list[Check],
    platform: PlatformClaims | None,
    realm: RealmClaims | None,
    nonce: bytes | None,
) -> str:
    failed = {check.id for check in checks if check.outcome is Outcome.FAILED}
    if platform is None or realm is None:
        return "could not establish identity from evidence"
    if "token.trust_anchor" in failed:
        return "no trust anchor for evidence"
    bad = "integrity validation failed: bad evidence: "
    if "token.freshness" in failed:
        challenge = realm.raw["challenge"].hex()
        against = nonce.hex() if nonce is not None else "none"
        return (
            f"{bad}freshness: realm challenge ({challenge}) "
            f"does not match session nonce ({against})"
        )
    if "cca.binding" in failed:
        return f"{bad}binding verification failed"
    return f"{bad}signature verification failed: verification error" if failed else ""


def _json(raw: Mapping[str, Any], rules: tuple[ClaimRule, ...]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for rule in rules:
        value = raw.get(rule.name)
        if isinstance(value, list):
            named[rule.json] = [encode_base64(one) for one in value]
        elif value is not None:
            named[rule.json] = encode_base64(value) if isinstance(value, bytes) else value
    return named
