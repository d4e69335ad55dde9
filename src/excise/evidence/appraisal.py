"""Appraise PSA and CCA evidence: a trustworthiness vector whose every claim says why.

The rules are those of Veraison's PSA and CCA schemes. What Veraison leaves open is decided by an
`AppraisalPolicy`: whether the signer and the digest's algorithm are compared, whether a component
that the reference values have and the evidence lacks matters, one they lack, one that comes twice,
and evidence that measured nothing. `STRICT` refuses all of them; `VERAISON` gives the verdicts of
veraison/services 6b88102 (August 2026).

Sources: draft-ietf-rats-ar4si; RFC 9783 section 4; veraison/services, scheme/psa-iot.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from excise.errors import UsageError
from excise.evidence.cca import CcaAppraisal, PlatformClaims, RealmClaims
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.evidence.corim.profiles import RealmReference, ReferenceValue
from excise.evidence.corim.store import ReferenceStore
from excise.evidence.psa.claims import SoftwareComponent
from excise.evidence.psa.lifecycle import TRUSTWORTHY, Lifecycle
from excise.evidence.psa.token import TokenAppraisal
from excise.evidence.trust_vector import (
    AFFIRMED,
    APPROVED_BOOT,
    CONTRAINDICATED,
    CRYPTO_FAILED,
    UNRECOGNIZED_RUNTIME,
    UNSAFE_CONFIGURATION,
    Status,
    TrustVector,
    make_vector,
    uniform_vector,
)

PSA_SUBMOD: Final = "PSA_IOT"
CCA_PLATFORM_SUBMOD: Final = "CCA_SSD_PLATFORM"
CCA_REALM_SUBMOD: Final = "CCA_REALM"
_CCA_SCHEME: Final = "ARM_CCA"

_DIGEST_BYTES: Final = {"sha-256": 32, "sha-384": 48, "sha-512": 64}
_UNMADE: Final = "this scheme makes no statement on it"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppraisalPolicy:
    """What an appraisal asks beyond a good signature and known digests.

    Attributes:
        name: Name of the policy.
        compare_signer: Whether a component's signer must be the reference's.
        compare_algorithm: Whether the digest's algorithm must be the reference's.
        refuse_missing: Whether every component of the reference values must have been measured.
        refuse_extra: Whether a component without a reference value is refused.
        refuse_duplicates: Whether two components of one type are refused.
        refuse_unmeasured: Whether evidence that measured no software is refused.
        one_build: Whether all components must match one build; else the builds are pooled, and
            the last reference value of a digest holds.
        require_optional: Whether a component without type or version ends the appraisal with no
            claim made, though both are optional.
        state_reasons: Whether the result carries the reason of each claim.
    """

    name: str = "strict"
    compare_signer: bool = True
    compare_algorithm: bool = True
    refuse_missing: bool = True
    refuse_extra: bool = True
    refuse_duplicates: bool = True
    refuse_unmeasured: bool = True
    one_build: bool = True
    require_optional: bool = False
    state_reasons: bool = True

    def allowing(self, switches: Sequence[str]) -> AppraisalPolicy:
        """Return the policy with some refusals switched off: see `SWITCHES`.

        Raises:
            UsageError: A switch is unknown; the hint lists them.
        """
        fields: dict[str, Any] = {}
        for switch in switches:
            if switch not in SWITCHES:
                known = ", ".join(SWITCHES)
                raise UsageError(f"the switch {switch!r} is unknown", hint=f"Known: {known}")
            fields[SWITCHES[switch]] = False
        name = "+".join((self.name, *sorted(set(switches)))) if switches else self.name
        return replace(self, name=name, **fields)


SWITCHES: Final[Mapping[str, str]] = {
    "signer": "compare_signer",
    "algorithm": "compare_algorithm",
    "missing": "refuse_missing",
    "extra": "refuse_extra",
    "duplicates": "refuse_duplicates",
    "unmeasured": "refuse_unmeasured",
}

STRICT: Final = AppraisalPolicy()
VERAISON: Final = AppraisalPolicy(
    name="veraison",
    compare_signer=False,
    compare_algorithm=False,
    refuse_missing=False,
    refuse_duplicates=False,
    refuse_unmeasured=False,
    one_build=False,
    require_optional=True,
    state_reasons=False,
)
POLICIES: Final = {policy.name: policy for policy in (STRICT, VERAISON)}


def policy_of(name: str, switches: Sequence[str] = ()) -> AppraisalPolicy:
    """Return a policy by name, with switches.

    Raises:
        UsageError: Name or switch are unknown; the hint lists what exists.
    """
    if name not in POLICIES:
        raise UsageError(f"the policy {name!r} is unknown", hint=f"Policies: {', '.join(POLICIES)}")
    return POLICIES[name].allowing(switches)


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """The appraisal of one attester.

    Attributes:
        name: Its name in the result, such as `PSA_IOT`.
        scheme: The scheme it was appraised under.
        vector: The claims.
        policy: Name of the policy.
        state_reasons: Whether the result is to carry the reasons.
        evidence: The claims of the evidence; None where it is not to be believed.
        problem: Why it is not; empty where it is.
        build: Name of the build it matched; empty when none.
    """

    name: str
    scheme: str
    vector: TrustVector
    policy: str
    state_reasons: bool
    evidence: Mapping[str, Any] | None = None
    problem: str = ""
    build: str = ""

    @property
    def status(self) -> Status:
        """Return the worst tier of its claims."""
        return self.vector.status

    def as_result(self) -> AppraisalResult:
        """Return the vector as checks: PASSED where affirming, NOT_COVERED where no claim is."""
        outcomes = {Status.AFFIRMING: Outcome.PASSED, Status.NONE: Outcome.NOT_COVERED}
        checks = tuple(
            Check(
                id=f"appraisal.{claim.name.replace('-', '_')}",
                outcome=outcomes.get(claim.tier, Outcome.FAILED),
                expected="an affirming value, 2 to 31",
                got=f"{claim.value}: {claim.meaning}",
                clause="draft-ietf-rats-ar4si section 2.3",
                detail=f"Why: {claim.reason}." if claim.value else "",
            )
            for claim in self.vector.claims
        )
        facts = {"status": self.status.value, "policy": self.policy, "build": self.build or None}
        return AppraisalResult(subject=f"appraisal of {self.name}", checks=checks, facts=facts)


def appraise_psa(
    token: TokenAppraisal, store: ReferenceStore, *, policy: AppraisalPolicy = STRICT
) -> Submodule:
    """Return the appraisal of a verified PSA token against reference values.

    Args:
        token: What `verify_token` returned; evidence that failed a check is contraindicated.
        store: Reference values.
        policy: What is asked.
    """
    claims = token.claims
    if claims is None or token.problem or token.verdict is not Outcome.PASSED:
        return _refused(PSA_SUBMOD, PSA_SUBMOD, token.problem or "not verified", policy)
    if policy.require_optional and _optional_absent(claims.components):
        vector = make_vector({}, rest="a component lacks its type or version")
        return _submodule(PSA_SUBMOD, PSA_SUBMOD, vector, policy)
    given = {
        "hardware": (AFFIRMED, "the signature holds under the trust anchor of this device"),
        **_lifecycle_claims(claims.state),
    }
    matched = match_components(
        claims.components, store.values_for(claims.implementation_id), policy=policy
    )
    given["executables"] = matched.claim
    return _submodule(
        PSA_SUBMOD,
        PSA_SUBMOD,
        make_vector(given, rest=_UNMADE),
        policy,
        evidence=claims.as_json(),
        build=matched.build,
    )


def appraise_cca(
    token: CcaAppraisal, store: ReferenceStore, *, policy: AppraisalPolicy = STRICT
) -> tuple[Submodule, ...]:
    """Return the appraisals of platform and realm of a verified CCA token."""
    platform, realm = token.platform_claims, token.realm_claims
    if platform is None or realm is None or token.problem or token.verdict is not Outcome.PASSED:
        problem = token.problem or "not verified"
        return (_refused(_CCA_SCHEME, _CCA_SCHEME, problem, policy),)
    return (_appraise_platform(platform, store, policy), _appraise_realm(realm, store, policy))


def _appraise_platform(
    claims: PlatformClaims, store: ReferenceStore, policy: AppraisalPolicy
) -> Submodule:
    implementation = claims.raw["implementation_id"]
    configs = store.configs_for(implementation)
    known = any(hmac.compare_digest(config, claims.raw["config"]) for config in configs)
    given = {
        "hardware": (AFFIRMED, "the signature holds under the trust anchor of this device"),
        **_lifecycle_claims(claims.state),
        "configuration": (
            AFFIRMED if known else UNSAFE_CONFIGURATION,
            "the platform's configuration is a reference value"
            if known
            else f"the platform's configuration {claims.raw['config'].hex()} is none of "
            f"{len(configs)} reference values",
        ),
    }
    matched = match_components(claims.components, store.values_for(implementation), policy=policy)
    given["executables"] = matched.claim
    return _submodule(
        CCA_PLATFORM_SUBMOD,
        _CCA_SCHEME,
        make_vector(given, rest=_UNMADE),
        policy,
        evidence=claims.as_json(),
        build=matched.build,
    )


def _appraise_realm(
    claims: RealmClaims, store: ReferenceStore, policy: AppraisalPolicy
) -> Submodule:
    given = {
        "instance-identity": (AFFIRMED, "the realm's key is bound to the platform's token"),
        "executables": _realm_executables(claims, store.realms()),
    }
    return _submodule(
        CCA_REALM_SUBMOD,
        _CCA_SCHEME,
        make_vector(given, rest=_UNMADE),
        policy,
        evidence=claims.as_json(),
    )


def _realm_executables(
    claims: RealmClaims, references: Sequence[RealmReference]
) -> tuple[int, str]:
    initial = claims.raw["initial_measurement"]
    known = [one for one in references if one.measurements["cca.rim"] == initial]
    if not known:
        return (
            UNRECOGNIZED_RUNTIME,
            f"no reference value has the initial measurement {initial.hex()}",
        )
    personal = claims.raw["personalization_value"]
    fitting = [one for one in known if one.personalization_value in (b"", personal)]
    if not fitting:
        return CONTRAINDICATED, "the realm's personalization value is none of its references'"
    extensible = claims.raw["extensible_measurements"]
    for one in fitting:
        wanted = [(n, one.measurements.get(f"cca.rem{n}")) for n in range(4)]
        if all(value is None or extensible[n : n + 1] == [value] for n, value in wanted):
            return AFFIRMED, "initial and extensible measurements are reference values"
    return APPROVED_BOOT, "the initial measurement is known, an extensible one is not"


def _lifecycle_claims(state: Lifecycle) -> dict[str, tuple[int, str]]:
    value = AFFIRMED if state in TRUSTWORTHY else CONTRAINDICATED
    reason = f"the security lifecycle is {state}"
    names = ("instance-identity", "runtime-opaque", "storage-opaque")
    return dict.fromkeys(names, (value, reason))


def _optional_absent(components: Sequence[SoftwareComponent]) -> bool:
    return any(not one.measurement_type or not one.version for one in components)


def _refused(name: str, scheme: str, problem: str, policy: AppraisalPolicy) -> Submodule:
    return _submodule(name, scheme, uniform_vector(CRYPTO_FAILED, problem), policy, problem=problem)


def _submodule(
    name: str,
    scheme: str,
    vector: TrustVector,
    policy: AppraisalPolicy,
    *,
    evidence: Mapping[str, Any] | None = None,
    problem: str = "",
    build: str = "",
) -> Submodule:
    return Submodule(
        name=name,
        scheme=scheme,
        vector=vector,
        policy=policy.name,
        state_reasons=policy.state_reasons,
        evidence=evidence,
        problem=problem,
        build=build,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentMatch:
    """How measured software compares with reference values.

    Attributes:
        faults: What is wrong, a clause each, against the build that fits best; empty when it
            matches.
        build: The build it matched, or fits best.
        measured: How many components were measured.
    """

    faults: tuple[str, ...]
    build: str
    measured: int

    @property
    def claim(self) -> tuple[int, str]:
        """Return value and reason of the `executables` claim."""
        if self.faults:
            return UNRECOGNIZED_RUNTIME, "; ".join(self.faults)
        if not self.measured:
            return AFFIRMED, "no software was measured, and the policy asks for none"
        against = f"of build {self.build}" if self.build else "of the reference values"
        noun = "component is" if self.measured == 1 else "components are"
        return AFFIRMED, f"{self.measured} measured {noun} {against}"


def match_components(
    components: Sequence[SoftwareComponent],
    builds: Mapping[str, Sequence[ReferenceValue]],
    *,
    policy: AppraisalPolicy,
) -> ComponentMatch:
    """Return how measured components compare with the builds of a device.

    A component matches by its whole digest and by everything else the reference states: name,
    version, and, as the policy asks, signer and algorithm.
    """
    if not policy.one_build:
        pooled = {one.digest: one for held in builds.values() for one in held}
        builds = {"": tuple(pooled.values())} if pooled else {}
    own = _own_faults(components, policy)
    if not builds:
        faults = ("no reference values for this implementation",) if components else ()
        return ComponentMatch(faults=(*own, *faults), build="", measured=len(components))
    found = [
        ComponentMatch(
            faults=(*own, *_build_faults(components, references, policy)),
            build=build,
            measured=len(components),
        )
        for build, references in builds.items()
    ]
    return min(found, key=lambda match: len(match.faults))


def _own_faults(components: Sequence[SoftwareComponent], policy: AppraisalPolicy) -> list[str]:
    faults = []
    if not components and policy.refuse_unmeasured:
        faults.append("no software was measured")
    if policy.refuse_duplicates:
        types = [one.measurement_type for one in components if one.measurement_type]
        twice = sorted({name for name in types if types.count(name) > 1})
        faults += [f"the type {name} comes {types.count(name)} times" for name in twice]
    return faults


def _build_faults(
    components: Sequence[SoftwareComponent],
    references: Sequence[ReferenceValue],
    policy: AppraisalPolicy,
) -> list[str]:
    faults: list[str] = []
    measured: set[str] = set()
    named = {one.name for one in references if one.name}
    for component in components:
        candidates = [one for one in references if one.digest == component.measurement_value]
        if not candidates:
            if component.measurement_type in named:
                # It was measured, and is told of as changed, not as missing too.
                measured.add(component.measurement_type)
                value = component.measurement_value.hex()
                faults.append(f"{component.name} measures {value}, no reference value of it")
            elif policy.refuse_extra:
                faults.append(f"{component.name} has no reference value")
            continue
        measured |= {_group(one) for one in candidates}
        differences = [_differences(component, one, policy) for one in candidates]
        if all(differences):
            faults.append(f"{component.name}: {', '.join(_fewest(differences))}")
    if policy.refuse_missing:
        absent = {_group(one): one for one in references if _group(one) not in measured}
        faults += [f"{one.title} was not measured" for one in absent.values()]
    return faults


def _fewest(differences: Sequence[list[str]]) -> list[str]:
    return min(differences, key=len)


def _group(reference: ReferenceValue) -> str:
    """Return what makes reference values alternatives of each other: one name."""
    return reference.name or reference.digest.hex()


def _differences(
    component: SoftwareComponent, reference: ReferenceValue, policy: AppraisalPolicy
) -> list[str]:
    found = []
    for what, got, wanted in (
        ("type", component.measurement_type, reference.name),
        ("version", component.version, reference.version),
    ):
        if wanted and got != wanted:
            found.append(f"its {what} is {got or 'not stated'}, the reference's {wanted}")
    if policy.compare_signer and reference.signer_id != component.signer_id:
        if reference.signer_id:
            found.append(
                f"its signer is {component.signer_id.hex()}, "
                f"the reference's {reference.signer_id.hex()}"
            )
        else:
            found.append("the reference states no signer to compare with")
    if policy.compare_algorithm:
        found += _algorithm_differences(component, reference)
    return found


def _algorithm_differences(component: SoftwareComponent, reference: ReferenceValue) -> list[str]:
    size = _DIGEST_BYTES.get(reference.algorithm)
    if size != len(component.measurement_value):
        return [f"its digest has not the length of the reference's {reference.algorithm}"]
    # The description is free text; only where it names a hash does it say which one was used.
    stated = re.fullmatch(
        r"sha(2|3)?(256|384|512)", re.sub(r"[^a-z0-9]", "", component.description.lower())
    )
    if stated is not None:
        name = f"sha3-{stated[2]}" if stated[1] == "3" else f"sha-{stated[2]}"
        if name != reference.algorithm:
            return [f"it says {component.description}, the reference {reference.algorithm}"]
    return []
