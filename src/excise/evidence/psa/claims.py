"""PSA claims: checked against their profile, one check a claim, and given as typed values.

Source: RFC 9783 section 4, and the two drafts before it for the older profiles.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from excise.errors import FormatError
from excise.evidence.base64text import decode_base64, encode_base64
from excise.evidence.cbor import write_cbor
from excise.evidence.checks import Check, Outcome
from excise.evidence.psa.lifecycle import Lifecycle, lifecycle_of
from excise.evidence.psa.profiles import (
    ALL_KEYS,
    PROFILE_1,
    PROFILE_OF_NAME,
    PROFILES,
    ClaimRule,
    Profile,
    digest_fault,
)
from excise.units import counted

_TYPE, _VALUE, _VERSION, _SIGNER, _DESCRIPTION = 1, 2, 4, 5, 6
_COMPONENT_JSON: Final = {
    _TYPE: "measurement-type",
    _VALUE: "measurement-value",
    _VERSION: "version",
    _SIGNER: "signer-id",
    _DESCRIPTION: "measurement-description",
}
_BYTES_CLAIMS: Final = frozenset({"nonce", "instance_id", "implementation_id", "boot_seed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareComponent:
    """One measured component.

    Attributes:
        measurement_type: Its role, such as `PRoT`; empty when not stated.
        measurement_value: Digest of its code.
        version: Empty when not stated.
        signer_id: Digest of the key that signed it.
        description: Name of the digest's algorithm, mostly; empty when not stated.
    """

    measurement_type: str
    measurement_value: bytes
    version: str
    signer_id: bytes
    description: str

    @property
    def name(self) -> str:
        """Return what to call the component in a message."""
        return self.measurement_type or self.measurement_value.hex()[:16]

    def __str__(self) -> str:
        """Return the component in one line: type and version, digest, signer."""
        named = f"{self.measurement_type or 'unnamed'} {self.version}".rstrip()
        algorithm = f"{self.description} " if self.description else ""
        digest, signer = self.measurement_value.hex(), self.signer_id.hex()
        return f"{named}: {algorithm}{digest}, signer {signer}"

    def as_json(self) -> dict[str, str]:
        """Return the component under psatoken's names."""
        named = {
            "measurement-type": self.measurement_type,
            "measurement-value": encode_base64(self.measurement_value),
            "version": self.version,
            "signer-id": encode_base64(self.signer_id),
            "measurement-description": self.description,
        }
        return {name: value for name, value in named.items() if value}


@dataclass(frozen=True, slots=True, kw_only=True)
class PsaClaims:
    """The claims of a token whose every claim passed its check.

    Attributes:
        profile: The profile they follow.
        nonce: The challenge.
        client_id: Caller; negative or zero for the non-secure side.
        instance_id: 33 bytes that name the device.
        implementation_id: 32 bytes that name the kind of device.
        lifecycle: The claim's 16 bits; `state` is their meaning.
        boot_seed: Random value of the boot; empty when absent.
        certification_reference: Empty when absent.
        vsi: Where the verifier is; empty when absent.
        components: Measured software.
        ignored: Keys that no profile defines.
    """

    profile: Profile
    nonce: bytes
    client_id: int
    instance_id: bytes
    implementation_id: bytes
    lifecycle: int
    boot_seed: bytes
    certification_reference: str
    vsi: str
    components: tuple[SoftwareComponent, ...]
    ignored: tuple[Any, ...]

    @property
    def state(self) -> Lifecycle:
        """Return the lifecycle state."""
        return lifecycle_of(self.lifecycle)

    def as_json(self) -> dict[str, Any]:
        """Return the claims under psatoken's names, as a verifier annotates its result."""
        named: dict[str, Any] = {self.profile.profile_json: self.profile.name}
        for rule in self.profile.rules:
            value = getattr(self, rule.name)
            if rule.required or value:
                named[rule.json] = encode_base64(value) if isinstance(value, bytes) else value
        if self.components:
            named["psa-software-components"] = [one.as_json() for one in self.components]
        else:
            named["psa-no-software-measurements"] = 1
        return named


def check_claims(
    raw: Any, *, profile: Profile | None = None
) -> tuple[PsaClaims | None, tuple[Check, ...]]:
    """Return typed claims, if all of them are right, and one check for each.

    Args:
        raw: The decoded payload.
        profile: The profile it must follow; None takes the one that it names.
    """
    if not isinstance(raw, Mapping):
        got = f"a {type(raw).__name__}"
        check = _check("token.claims", Outcome.FAILED, "a map of claims", got, "RFC 9783 section 5")
        return None, (check,)
    chosen, first = _profile_check(raw, profile)
    if chosen is None:
        return None, (first,)
    checks = [first, _foreign_check(raw, chosen)]
    checks += [claim_check(raw, rule) for rule in chosen.rules]
    components, check = _components_check(raw, chosen)
    checks.append(check)
    ignored = tuple(key for key in raw if key not in ALL_KEYS)
    checks.append(_ignored_check(ignored, chosen))
    if any(check.outcome is Outcome.FAILED for check in checks):
        return None, tuple(checks)
    values = {rule.name: raw.get(rule.key, _empty(rule)) for rule in chosen.rules}
    claims = PsaClaims(profile=chosen, components=components, ignored=ignored, **values)
    return claims, tuple(checks)


def _check(
    name: str, outcome: Outcome, expected: str, got: str, clause: str, detail: str = ""
) -> Check:
    return Check(id=name, outcome=outcome, expected=expected, got=got, clause=clause, detail=detail)


def _empty(rule: ClaimRule) -> Any:
    return b"" if rule.name in _BYTES_CLAIMS else ""


def _profile_check(raw: Mapping[Any, Any], wanted: Profile | None) -> tuple[Profile | None, Check]:
    new, old = raw.get(265), raw.get(PROFILE_1.profile_key)
    got = " and ".join(repr(name) for name in (new, old) if name is not None) or "none named"
    expected = wanted.name if wanted else ", ".join(known.name for known in PROFILES)
    clause = "RFC 9783 section 4.5.1; draft-tschofenig-rats-psa-token-05 section 3"
    found: Profile | None = None
    if new is None and old is None:
        # Profile 1 need not name itself; any other profile must.
        found = PROFILE_1
        got = "none named, which means profile 1"
    elif new is None or old is None:
        stated = new if new is not None else old
        named = PROFILE_OF_NAME.get(stated) if isinstance(stated, str) else None
        right_key = named is not None and named.profile_key == (265 if new is not None else -75000)
        found = named if right_key else None
    if wanted is not None and found is not wanted:
        found = None
    outcome = Outcome.PASSED if found else Outcome.FAILED
    return found, _check("token.profile", outcome, expected, got, clause)


def _foreign_check(raw: Mapping[Any, Any], profile: Profile) -> Check:
    foreign = sorted(key for key in raw if key in ALL_KEYS and key not in profile.keys)
    return _check(
        "token.foreign_claims",
        Outcome.FAILED if foreign else Outcome.PASSED,
        "no claim of another profile",
        ", ".join(str(key) for key in foreign) or "none",
        profile.clause,
        "One reader could take the claim of one profile, and another that of the other."
        if foreign
        else "",
    )


def _ignored_check(ignored: tuple[Any, ...], profile: Profile) -> Check:
    return _check(
        "token.unknown_claims",
        Outcome.PASSED,
        "",
        f"ignored: {', '.join(repr(key) for key in ignored)}" if ignored else "none",
        f"{profile.clause}, unknown claims cause no error",
    )


def claim_check(raw: Mapping[Any, Any], rule: ClaimRule, *, prefix: str = "token") -> Check:
    """Return the check of one claim: absent ones pass into NOT_COVERED where they are optional."""
    name = f"{prefix}.{rule.name}"
    if rule.key not in raw:
        outcome = Outcome.FAILED if rule.required else Outcome.NOT_COVERED
        got = "absent" if rule.required else "absent (optional)"
        return _check(name, outcome, rule.expected, got, rule.clause)
    value = raw[rule.key]
    fault = rule.fault(value)
    outcome = Outcome.FAILED if fault else Outcome.PASSED
    return _check(name, outcome, rule.expected, fault or _shown(value, rule), rule.clause)


def _shown(value: Any, rule: ClaimRule) -> str:
    if rule.name == "lifecycle":
        return f"{value:#06x}: {lifecycle_of(value)}"
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, list):
        return counted(len(value), "value")
    return str(value)


def _components_check(
    raw: Mapping[Any, Any], profile: Profile
) -> tuple[tuple[SoftwareComponent, ...], Check]:
    listed = raw.get(profile.components_key)
    none = raw.get(profile.no_measurements_key) if profile.no_measurements_key else None
    if profile.no_measurements_key and listed is None:
        outcome = Outcome.PASSED if none == 1 and type(none) is int else Outcome.FAILED
        got = "no software measurements" if none == 1 else f"no list, and {none!r} measurements"
        components: tuple[SoftwareComponent, ...] = ()
    elif none is not None:
        outcome, got, components = Outcome.FAILED, "a list, and a claim that there is none", ()
    else:
        components, faults = read_components(listed)
        outcome = Outcome.FAILED if faults else Outcome.PASSED
        got = "; ".join(faults) or described(components)
    return components, _check(
        "token.software_components",
        outcome,
        "at least one component, each with measurement value and signer ID of 32, 48 or 64 bytes",
        got,
        f"{profile.clause}, section 4.4",
    )


def described(components: Sequence[SoftwareComponent]) -> str:
    """Return how many components there are, in words."""
    return f"{len(components)} component{'s' if len(components) != 1 else ''}"


def read_components(listed: Any) -> tuple[tuple[SoftwareComponent, ...], list[str]]:
    """Return the software components of a token, and what is wrong with them."""
    if not isinstance(listed, list):
        return (), ["absent" if listed is None else "no array"]
    if not listed:
        return (), ["an empty array"]
    components, faults = [], []
    for index, one in enumerate(listed):
        if not isinstance(one, Mapping):
            faults.append(f"component {index}: no map")
            continue
        found = _component_faults(one)
        faults += [f"component {index}: {fault}" for fault in found]
        if not found:
            components.append(
                SoftwareComponent(
                    measurement_type=one.get(_TYPE, ""),
                    measurement_value=one[_VALUE],
                    version=one.get(_VERSION, ""),
                    signer_id=one[_SIGNER],
                    description=one.get(_DESCRIPTION, ""),
                )
            )
    return tuple(components), faults


def _component_faults(one: Mapping[Any, Any]) -> list[str]:
    faults = []
    for key in (_VALUE, _SIGNER):
        fault = digest_fault(one[key]) if key in one else "absent"
        if fault:
            faults.append(f"{_COMPONENT_JSON[key]}: {fault}")
    faults += [
        f"{_COMPONENT_JSON[key]}: no text"
        for key in (_TYPE, _VERSION, _DESCRIPTION)
        if key in one and not isinstance(one[key], str)
    ]
    return faults


def encode_claims(claims: PsaClaims) -> bytes:
    """Return the CBOR of claims, as a token's payload carries it."""
    profile = claims.profile
    raw: dict[int, Any] = {profile.profile_key: profile.name}
    for rule in profile.rules:
        value = getattr(claims, rule.name)
        if rule.required or value:
            raw[rule.key] = value
    if claims.components:
        raw[profile.components_key] = [_component_map(one) for one in claims.components]
    elif profile.no_measurements_key:
        raw[profile.no_measurements_key] = 1
    return write_cbor(raw)


def _component_map(one: SoftwareComponent) -> dict[int, Any]:
    named = {
        _TYPE: one.measurement_type,
        _VALUE: one.measurement_value,
        _VERSION: one.version,
        _SIGNER: one.signer_id,
        _DESCRIPTION: one.description,
    }
    return {key: value for key, value in named.items() if value}


def claims_from_json(
    document: bytes | str | Mapping[str, Any], *, profile: Profile | None = None
) -> dict[int, Any]:
    """Return a claim set in psatoken's JSON form as the map a token carries, not yet checked.

    Args:
        document: JSON text or its object.
        profile: Which profile's names to read; None follows the document, where only one of
            `eat-profile` and `psa-profile` may stand.

    Raises:
        FormatError: No JSON object, a value that cannot be read, or no profile to follow.
    """
    if isinstance(document, Mapping):
        value: Any = document
    else:
        try:
            value = json.loads(document)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"not JSON ({error})", field="claims") from None
    if not isinstance(value, Mapping):
        raise FormatError("no JSON object", field="claims")
    chosen = profile or _profile_of_json(value)
    raw: dict[int, Any] = {}
    if chosen.profile_json in value:
        raw[chosen.profile_key] = value[chosen.profile_json]
    for rule in chosen.rules:
        if rule.json in value:
            held = value[rule.json]
            as_bytes = rule.name in _BYTES_CLAIMS
            raw[rule.key] = decode_base64(held, field=rule.json) if as_bytes else held
    if "psa-software-components" in value:
        raw[chosen.components_key] = _components_of_json(value["psa-software-components"])
    if chosen.no_measurements_key and "psa-no-software-measurements" in value:
        raw[chosen.no_measurements_key] = value["psa-no-software-measurements"]
    return raw


def _profile_of_json(value: Mapping[str, Any]) -> Profile:
    named = [value[name] for name in ("eat-profile", "psa-profile") if name in value]
    if len(named) == 2:
        raise FormatError("both eat-profile and psa-profile are given", field="claims")
    if not named:
        return PROFILE_1
    found = PROFILE_OF_NAME.get(named[0]) if isinstance(named[0], str) else None
    if found is None:
        known = ", ".join(profile.name for profile in PROFILES)
        raise FormatError(f"the profile {named[0]!r} is unknown", hint=f"Known: {known}")
    return found


def _components_of_json(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    components = []
    for one in value:
        if not isinstance(one, Mapping):
            raise FormatError("a component is no object", field="psa-software-components")
        components.append(
            {
                key: decode_base64(one[name], field=name) if key in (_VALUE, _SIGNER) else one[name]
                for key, name in _COMPONENT_JSON.items()
                if name in one
            }
        )
    return components
