"""EAR, the EAT Attestation Result: made, signed, and checked by who relies on it.

Results are written with the names of Veraison (`ear.status`, profile
`tag:github.com,2023:veraison/ear`); on reading, the names of the newer draft (`ear_status`, profile
`tag:ietf.org,2026:rats/ear#03`) are taken too, but never both for one thing.

A result is a JWT signed with ES256. The key is the verifier's as the reader knows it: `jwk`,
`x5c` and the like in the header are ignored, and only ES256 is taken.

Sources: draft-ietf-rats-ear; draft-fv-rats-ear (older names); RFC 7515, RFC 7519, RFC 8725.
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError, UsageError
from excise.evidence.appraisal import Submodule
from excise.evidence.base64text import decode_base64, encode_base64url
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.evidence.cose_key import VerificationKey, der_signature, raw_signature
from excise.evidence.trust_vector import (
    CLAIM_NAMES,
    STATUS_NUMBERS,
    Status,
    meaning_of,
    tier_of,
    worst,
)
from excise.units import counted

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DEVELOPER: Final = "excise"
PROFILE: Final = "tag:github.com,2023:veraison/ear"
PROFILE_DRAFT: Final = "tag:ietf.org,2026:rats/ear#03"
MAX_EAR_BYTES: Final = 1 << 20
LEEWAY_S: Final = 60.0
"""How far ahead of this clock the verifier's may be."""

_CENTURY_S: Final = 100 * 365.25 * 86_400
_CLAUSE: Final = "draft-ietf-rats-ear section 3"
_EMBEDDED_KEYS: Final = ("jwk", "jku", "x5c", "x5u", "x5t", "x5t#S256")


def make_ear(
    submodules: Sequence[Submodule],
    *,
    nonce: bytes,
    developer: str = DEVELOPER,
    build: str,
    issued_s: int | None = None,
) -> dict[str, Any]:
    """Return the claims of a result, with Veraison's names.

    Args:
        submodules: The appraisals.
        nonce: The session's challenge.
        developer: Whose program the verifier is.
        build: Which build of the verifier it is.
        issued_s: Seconds since the epoch; now when None.
    """
    return {
        "eat_profile": PROFILE,
        "iat": int(time.time()) if issued_s is None else issued_s,
        "ear.verifier-id": {"build": build, "developer": developer},
        "eat_nonce": encode_base64url(nonce),
        "submods": {one.name: _submodule(one) for one in submodules},
    }


def _submodule(one: Submodule) -> dict[str, Any]:
    made: dict[str, Any] = {
        "ear.status": one.status.value,
        "ear.trustworthiness-vector": one.vector.values(),
        "ear.appraisal-policy-id": f"policy:{one.scheme}",
    }
    if one.evidence is not None:
        made["ear.veraison.annotated-evidence"] = one.evidence
    claims: dict[str, Any] = {}
    if one.problem:
        claims["problem"] = one.problem
    if one.state_reasons:
        claims |= {"policy": one.policy, "reasons": one.vector.reasons()}
        if one.build:
            claims["build"] = one.build
    if claims:
        made["ear.veraison.policy-claims"] = claims
    return made


def sign_ear(claims: Mapping[str, Any], key: EllipticCurvePrivateKey, *, key_id: str = "") -> str:
    """Return the result as a compact JWT signed with ES256.

    Raises:
        UsageError: The key is not on P-256.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.hashes import SHA256

    if key.curve.name != "secp256r1":
        raise UsageError(f"ES256 signs with a key on P-256, not {key.curve.name}", source="key")
    header = {"alg": "ES256", "typ": "JWT", **({"kid": key_id} if key_id else {})}
    parts = (json.dumps(one, separators=(",", ":")).encode() for one in (header, claims))
    signed = ".".join(encode_base64url(part) for part in parts)
    signature = raw_signature(key.sign(signed.encode("ascii"), ECDSA(SHA256())))
    return f"{signed}.{encode_base64url(signature)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EarOptions:
    """What who relies on a result asks of it.

    Attributes:
        accept: Statuses to rely on; never NONE unless it is named.
        submodules: Submodules that must be there; others count too.
        max_age_s: Oldest result to rely on; None for any age.
    """

    accept: tuple[Status, ...] = (Status.AFFIRMING,)
    submodules: tuple[str, ...] = ()
    max_age_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EarAppraisal(AppraisalResult):
    """Whether a result is to be relied on.

    Attributes:
        claims: The result's claims; None when they could not be read. Trust them only when the
            verdict is PASSED.
        status: The worst status of its submodules.
    """

    claims: Mapping[str, Any] | None
    status: Status = Status.NONE


DEFAULT_OPTIONS: Final = EarOptions()


def verify_ear(
    token: str,
    key: VerificationKey,
    *,
    nonce: bytes | None,
    options: EarOptions = DEFAULT_OPTIONS,
) -> EarAppraisal:
    """Return every check made on a result.

    Args:
        token: The compact JWT.
        key: The verifier's public key, on P-256.
        nonce: The challenge it must name; None leaves that open.
        options: What is asked.
    """
    try:
        header, claims, signed, signature = _parse(token)
    except FormatError as error:
        check = _check("ear.format", False, "three parts of base64url", error.reason, "RFC 7515")
        return EarAppraisal(subject="ear", checks=(check,), facts={}, claims=None)
    checks = [
        _check("ear.format", True, "", "a JWT", "RFC 7515 section 7.1"),
        _check(
            "ear.algorithm",
            header.get("alg") == "ES256" and "crit" not in header,
            "ES256, and nothing critical",
            f"{header.get('alg')!r}{', crit' if 'crit' in header else ''}",
            "RFC 8725 section 3.1",
        ),
        _embedded_check(header),
        _signature_check(key, signed, signature),
        *check_ear_claims(claims),
    ]
    submodules = _submodules(claims)
    status = worst(_status_of(one) or Status.NONE for one in submodules.values())
    checks += _relying_checks(claims, submodules, nonce, options)
    facts = {"status": status.value, "submodules": ", ".join(submodules) or None}
    return EarAppraisal(
        subject="ear", checks=tuple(checks), facts=facts, claims=claims, status=status
    )


def key_named(token: str, keys: Mapping[str, VerificationKey]) -> VerificationKey:
    """Return the one of a verifier's keys that a result names, else the first.

    The name (`kid`) only chooses among keys that are trusted already; a wrong one fails later.

    Args:
        token: The compact JWT.
        keys: Trusted keys by their names, at least one.
    """
    try:
        name = _parse(token)[0].get("kid")
    except FormatError:
        name = None
    first = next(iter(keys.values()))
    return keys.get(name, first) if isinstance(name, str) else first


def _check(
    name: str, holds: bool | None, expected: str, got: str, clause: str, detail: str = ""
) -> Check:
    outcome = Outcome.NOT_COVERED if holds is None else Outcome.FAILED
    return Check(
        id=name,
        outcome=Outcome.PASSED if holds else outcome,
        expected=expected,
        got=got,
        clause=clause,
        detail=detail,
    )


def _parse(token: str) -> tuple[dict[str, Any], dict[str, Any], bytes, bytes]:
    if len(token) > MAX_EAR_BYTES:
        raise FormatError(f"{len(token)} characters are more than {MAX_EAR_BYTES}")
    parts = token.split(".")
    if len(parts) != 3:
        raise FormatError(counted(len(parts), "part"))
    if any(set(part) & set("=+/") for part in parts):
        raise FormatError("not base64url without padding")
    header, claims = (_json_object(part) for part in parts[:2])
    signature = decode_base64(parts[2], field="signature")
    return header, claims, f"{parts[0]}.{parts[1]}".encode("ascii", "replace"), signature


def _json_object(part: str) -> dict[str, Any]:
    try:
        value = json.loads(decode_base64(part, field="JWT"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise FormatError("not a JSON object")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise FormatError("a name occurs twice in a JSON object")
    return value


def _embedded_check(header: Mapping[str, Any]) -> Check:
    found = [name for name in _EMBEDDED_KEYS if name in header]
    got = f"{', '.join(found)}: ignored" if found else "none"
    return _check("ear.embedded_key", True, "", got, "RFC 8725 section 3.10")


def _signature_check(key: VerificationKey, signed: bytes, signature: bytes) -> Check:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    clause = "RFC 7515 section 5.2; RFC 7518 section 3.4"
    if not isinstance(key.key, EllipticCurvePublicKey) or key.curve != "P-256":
        return _check("ear.signature", False, "a public key on P-256", str(key), clause)
    if len(signature) != 64:
        return _check("ear.signature", False, "64 bytes", f"{len(signature)} bytes", clause)
    try:
        key.key.verify(der_signature(signature), signed, ECDSA(SHA256()))
    except InvalidSignature:
        return _check("ear.signature", False, "verifies", "does not verify", clause)
    return _check("ear.signature", True, "verifies", "verifies (ES256)", clause)


def check_ear_claims(claims: Mapping[str, Any]) -> list[Check]:
    """Return one check for each thing a result must have, whoever signed it."""
    profile = claims.get("eat_profile")
    verifier = _named(claims, "verifier-id")
    issued = claims.get("iat")
    right_verifier = isinstance(verifier, Mapping) and all(
        isinstance(verifier.get(name), str) for name in ("build", "developer")
    )
    checks = [
        _check("ear.profile", profile in (PROFILE, PROFILE_DRAFT), f"{PROFILE} or {PROFILE_DRAFT}",
               repr(profile) if profile is not None else "absent", _CLAUSE),
        _check("ear.issued_at", _is_number(issued), "seconds since the epoch",
               "absent" if issued is None else str(issued), "RFC 7519 section 4.1.6"),
        _check("ear.verifier_id", right_verifier, "build and developer",
               "absent" if verifier is None else str(verifier), _CLAUSE),
    ]  # fmt: skip
    faults = _double_names(claims)
    submodules = _submodules(claims)
    if not submodules:
        faults.append("no submodule")
    for name, one in submodules.items():
        faults += [f"{name}: {fault}" for fault in _submodule_faults(one)]
    checks.append(
        _check(
            "ear.submods",
            not faults,
            "at least one, each with a status that its vector supports",
            "; ".join(faults) or ", ".join(submodules),
            _CLAUSE,
        )
    )
    return checks


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _normal(name: str) -> str:
    """Return a claim's name without what tells the two drafts apart."""
    for prefix in ("ear.", "ear_"):
        if name.startswith(prefix):
            return name.removeprefix(prefix).replace("_", "-")
    return ""


def _named(claims: Mapping[str, Any], name: str) -> Any:
    return next((value for key, value in claims.items() if _normal(key) == name), None)


def _double_names(claims: Mapping[str, Any]) -> list[str]:
    names = [normal for name in claims if (normal := _normal(name))]
    return [f"{name} comes under two names" for name in sorted(set(names)) if names.count(name) > 1]


def _submodules(claims: Mapping[str, Any]) -> dict[str, Any]:
    found = claims.get("submods")
    return dict(found) if isinstance(found, Mapping) else {}


def _status_of(submodule: Any) -> Status | None:
    stated = _named(submodule, "status") if isinstance(submodule, Mapping) else None
    if isinstance(stated, str) and stated in set(Status):
        return Status(stated)
    number = stated if isinstance(stated, int) and not isinstance(stated, bool) else -1
    return STATUS_NUMBERS.get(number)


def _submodule_faults(one: Any) -> list[str]:
    if not isinstance(one, Mapping):
        return ["no object"]
    faults = _double_names(one)
    status = _status_of(one)
    if status is None:
        faults.append(f"the status is {_named(one, 'status')!r}")
    vector = _named(one, "trustworthiness-vector")
    if vector is not None:
        faults += _vector_faults(vector, status)
    attested = _named(one, "veraison.key-attestation")
    if attested is not None:
        key = attested.get("akpub") if isinstance(attested, Mapping) else None
        if not isinstance(key, str) or not key:
            faults.append("the key attestation has no akpub")
    return faults


def _vector_faults(vector: Any, status: Status | None) -> list[str]:
    if not isinstance(vector, Mapping):
        return ["the vector is no object"]
    faults, tiers = [], []
    for name, value in vector.items():
        if str(name).replace("_", "-") not in CLAIM_NAMES:
            faults.append(f"the claim {name!r} is unknown")
        elif type(value) is not int or not -128 <= value <= 127:
            faults.append(f"{name} is {value!r}")
        else:
            tiers.append(tier_of(value))
    # A policy may make a status worse than its vector, never better.
    if status is not None and not faults and worst((status, *tiers)) is not status:
        faults.append(f"the status {status} is better than the vector's {worst(tiers)}")
    return faults


def _relying_checks(
    claims: Mapping[str, Any],
    submodules: Mapping[str, Any],
    nonce: bytes | None,
    options: EarOptions,
) -> list[Check]:
    missing = [name for name in options.submodules if name not in submodules]
    statuses = {name: _status_of(one) for name, one in submodules.items()}
    wrong = [f"{name} is {status}" for name, status in statuses.items()
             if status not in options.accept]  # fmt: skip
    wrong += [f"{name} is missing" for name in missing]
    return [
        _check(
            "ear.status",
            bool(submodules) and not wrong,
            f"every submodule {' or '.join(options.accept)}",
            "; ".join(wrong) or ", ".join(f"{name} is {held}" for name, held in statuses.items())
            or "no submodule",
            "RFC 9334 section 9; draft-ietf-rats-ear section 3.2",
            " ".join(why for name, one in submodules.items() if statuses[name] not in options.accept
                     and (why := _why(name, one))),
        ),
        _nonce_check(claims, nonce),
        _age_check(claims, options),
    ]  # fmt: skip


def _why(name: str, submodule: Any) -> str:
    """Return which claims of a submodule are not affirming, and why, as the result says."""
    if not isinstance(submodule, Mapping):
        return ""
    vector = _named(submodule, "trustworthiness-vector")
    said = _named(submodule, "veraison.policy-claims")
    said = said if isinstance(said, Mapping) else {}
    reasons = said.get("reasons")
    reasons = reasons if isinstance(reasons, Mapping) else {}
    if isinstance(problem := said.get("problem"), str) and problem:
        return f"{name}: {problem}."
    found = []
    for claim, value in vector.items() if isinstance(vector, Mapping) else ():
        if type(value) is not int or value == 0 or tier_of(value) is Status.AFFIRMING:
            continue
        reason = reasons.get(claim)
        because = f" ({reason})" if isinstance(reason, str) and reason else ""
        meaning = meaning_of(str(claim).replace("_", "-"), value)
        found.append(f"{claim} is {value}, {meaning}{because}")
    return f"{name}: {'; '.join(found)}." if found else ""


def _nonce_check(claims: Mapping[str, Any], nonce: bytes | None) -> Check:
    clause = "RFC 9711 section 4.1"
    stated = claims.get("eat_nonce")
    if nonce is None:
        return _check("ear.nonce", None, "", f"{stated!r}, and none to compare with", clause)
    wanted = encode_base64url(nonce)
    holds = isinstance(stated, str) and hmac.compare_digest(
        stated.rstrip("=").encode(), wanted.encode()
    )
    return _check("ear.nonce", holds, wanted, repr(stated), clause)


def _age_check(claims: Mapping[str, Any], options: EarOptions) -> Check:
    issued = claims.get("iat")
    if not _is_number(issued):
        return _check("ear.age", None, "", "no time of issue", "RFC 7519 section 4.1.6")
    assert isinstance(issued, int | float)
    age = time.time() - issued
    oldest = options.max_age_s
    holds = age >= -LEEWAY_S and (oldest is None or age <= oldest)
    expected = "not issued in the future"
    expected += f", and at most {oldest:,.10g} s ago" if oldest is not None else ""
    got = f"{age:,.0f} s ago"
    if age < -LEEWAY_S:
        ahead = f"{-age:,.0f} s" if age > -_CENTURY_S else "more than a century"
        got = f"{ahead} in the future: the verifier's clock or this one is wrong"
    return _check("ear.age", holds, expected, got, "RFC 7519 section 4.1.6")
