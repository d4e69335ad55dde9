from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from excise.errors import UsageError
from excise.evidence.appraisal import (
    STRICT,
    SWITCHES,
    VERAISON,
    AppraisalPolicy,
    Submodule,
    appraise_cca,
    appraise_psa,
    match_components,
    policy_of,
)
from excise.evidence.cca import verify_cca_token
from excise.evidence.checks import Outcome
from excise.evidence.corim import ReferenceStore
from excise.evidence.corim.profiles import (
    Endorsements,
    TrustAnchor,
)
from excise.evidence.psa import verify_token
from excise.evidence.psa.claims import read_components
from excise.evidence.trust_vector import CLAIM_NAMES, Status, tier_of, worst
from token_builders import (
    APPLICATION,
    IMPLEMENTATION,
    NONCE,
    cca_store,
    cca_token,
    claims_1,
    claims_2,
    component,
    corim,
    public_key,
    reference,
    store,
    token,
)

AFFIRMED = {
    "instance-identity": 2,
    "configuration": 0,
    "executables": 2,
    "file-system": 0,
    "hardware": 2,
    "runtime-opaque": 2,
    "storage-opaque": 2,
    "sourced-data": 0,
}


def _appraise(
    claims: dict[int, Any] | None = None,
    known: ReferenceStore | None = None,
    *,
    policy: AppraisalPolicy = STRICT,
    nonce: bytes = NONCE,
) -> Submodule:
    held = known or store()
    return appraise_psa(verify_token(token(claims), held, nonce=nonce), held, policy=policy)


@pytest.mark.parametrize("policy", [STRICT, VERAISON], ids=["strict", "veraison"])
def test_known_software_on_a_secured_device_is_affirmed(policy: AppraisalPolicy) -> None:
    found = _appraise(policy=policy)
    assert found.vector.values() == AFFIRMED
    assert found.status is Status.AFFIRMING
    assert found.problem == ""
    assert found.as_result().verdict is Outcome.PASSED


def test_every_claim_says_why() -> None:
    reasons = _appraise().vector.reasons()
    assert list(reasons) == list(CLAIM_NAMES)
    assert all(reasons.values())
    assert reasons["executables"] == "1 measured component is of build qemu"
    assert reasons["instance-identity"] == "the security lifecycle is secured"
    assert reasons["configuration"] == "this scheme makes no statement on it"


@pytest.mark.parametrize("policy", [STRICT, VERAISON], ids=["strict", "veraison"])
def test_unknown_software_is_only_a_warning(policy: AppraisalPolicy) -> None:
    found = _appraise(claims_2(k2399=[component(value=b"\xee" * 32)]), policy=policy)
    assert found.vector.values() == {**AFFIRMED, "executables": 33}
    assert found.status is Status.WARNING
    assert found.as_result().verdict is Outcome.FAILED


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda p: _appraise(nonce=bytes(32), policy=p), "freshness: psa-nonce"),
        (lambda p: _appraise(claims_2(k10=[NONCE, NONCE]), policy=p), "could not establish"),
        (lambda p: _appraise(claims_2(k2396=bytes(32)), policy=p), "no trust anchor for evidence"),
        (lambda p: _appraise(known=store(q=corim(keys=("other",))), policy=p), "no trust anchor"),
    ],
)
@pytest.mark.parametrize("policy", [STRICT, VERAISON], ids=["strict", "veraison"])
def test_evidence_that_fails_a_check_is_contraindicated_in_every_claim(
    call: Callable[[AppraisalPolicy], Submodule], problem: str, policy: AppraisalPolicy
) -> None:
    found = call(policy)
    assert set(found.vector.values().values()) == {99}
    assert found.status is Status.CONTRAINDICATED
    assert problem in found.problem
    assert found.evidence is None


@pytest.mark.parametrize(
    ("lifecycle", "value"),
    [
        (0x0000, 96),
        (0x00FF, 96),
        (0x1000, 96),
        (0x20FF, 96),
        (0x3000, 2),
        (0x30FF, 2),
        (0x4000, 2),
        (0x40FF, 2),
        (0x5000, 96),
        (0x60FF, 96),
        (0x2FFF, 99),
        (0x3100, 99),
    ],
)
def test_the_lifecycle_decides_over_identity_memory_and_storage(lifecycle: int, value: int) -> None:
    values = _appraise(claims_2(k2395=lifecycle)).vector.values()
    assert {values[name] for name in ("instance-identity", "runtime-opaque", "storage-opaque")} == {
        value
    }
    assert values["hardware"] == (99 if value == 99 else 2)


TWO = (reference(), reference("ARoT", APPLICATION, version="1.0"))
BOTH = [component(), component("ARoT", APPLICATION, version="1.0")]

# Software, what differs from the two references, the reason, the switch that lets it pass, and
# what Veraison says of it.
SOFTWARE: list[tuple[str, list[dict[int, Any]], str, str | None, int]] = [
    ("both known", BOTH, "", None, 2),
    ("other order", BOTH[::-1], "", None, 2),
    ("signer", [BOTH[0], component("ARoT", APPLICATION, version="1.0", signer=b"\6" * 32)],
     "its signer is 0606", "signer", 2),
    ("algorithm", [BOTH[0], component("ARoT", APPLICATION, version="1.0", description="SHA3-256")],
     "it says SHA3-256, the reference sha-256", "algorithm", 2),
    ("named algorithm", [BOTH[0], component("ARoT", APPLICATION, version="1.0",
                                            description="SHA256")], "", None, 2),
    ("name", [BOTH[0], component("BL", APPLICATION, version="1.0")],
     "its type is BL, the reference's ARoT", None, 33),
    ("version", [BOTH[0], component("ARoT", APPLICATION, version="1.1")],
     "its version is 1.1, the reference's 1.0", None, 33),
    ("no version", [BOTH[0], component("ARoT", APPLICATION, version="")],
     "its version is not stated, the reference's 1.0", None, 0),
    ("missing", [BOTH[0]], "ARoT 1.0 was not measured", "missing", 2),
    ("extra", [*BOTH, component("BL", b"\x0b" * 32)], "BL has no reference value", "extra", 33),
    ("changed", [BOTH[0], component("ARoT", b"\x0b" * 32, version="1.0")],
     "no reference value of it", None, 33),
    ("duplicate type", [*BOTH, component("ARoT", APPLICATION, version="1.0")],
     "the type ARoT comes 2 times", "duplicates", 2),
    ("prefix", [BOTH[0], component("ARoT", APPLICATION + bytes(16), version="1.0")],
     "no reference value of it", None, 33),
]  # fmt: skip


@pytest.mark.parametrize(
    ("software", "reason", "switch", "veraison"),
    [case[1:] for case in SOFTWARE],
    ids=[case[0] for case in SOFTWARE],
)
def test_software_is_compared_in_everything_a_reference_states(
    software: list[dict[int, Any]], reason: str, switch: str | None, veraison: int
) -> None:
    known = store(qemu=corim(*TWO))
    claims = claims_2(k2399=software)
    found = _appraise(claims, known)
    claim = next(one for one in found.vector.claims if one.name == "executables")
    assert claim.value == (33 if reason else 2)
    assert reason in claim.reason
    assert _appraise(claims, known, policy=VERAISON).vector.values()["executables"] == veraison
    for name in SWITCHES:
        loose = _appraise(claims, known, policy=STRICT.allowing([name])).vector.values()
        passes = not reason or name == switch
        assert (loose["executables"] == 2) == passes, name


def test_a_digest_of_another_length_than_its_references_algorithm_is_refused() -> None:
    # No document gives such a reference; whoever makes one by hand is told of it.
    (measured,), _ = read_components([component()])
    (right,) = store().values_for(IMPLEMENTATION)["qemu"]
    for known, faults in (
        (right, ()),
        (
            replace(right, algorithm="sha-384"),
            ("PRoT: its digest has not the length of the reference's sha-384",),
        ),
    ):
        assert match_components([measured], {"b": [known]}, policy=STRICT).faults == faults


def test_changed_software_is_refused_even_where_extra_software_is_not() -> None:
    known = store(qemu=corim(*TWO))
    claims = claims_2(k2399=[BOTH[0], component("ARoT", b"\x0b" * 32, version="1.0")])
    policy = STRICT.allowing(["extra", "missing"])
    assert _appraise(claims, known, policy=policy).vector.values()["executables"] == 33


def test_evidence_that_measured_nothing_is_not_affirmed() -> None:
    claims = claims_1(k75006=None, k75007=1)
    found = _appraise(claims)
    assert found.vector.values()["executables"] == 33
    assert "no software was measured" in found.vector.reasons()["executables"]
    loose = STRICT.allowing(["unmeasured", "missing"])
    assert _appraise(claims, policy=loose).vector.values()["executables"] == 2
    assert _appraise(claims, policy=VERAISON).vector.values()["executables"] == 2


def test_evidence_matches_one_build_and_never_a_mixture() -> None:
    old = corim(
        reference(version="4.5.0"), reference("ARoT", b"\1" * 32, version="1.0"), build="old"
    )
    new = corim(reference(value=b"\2" * 32, version="4.6.0"),
                reference("ARoT", b"\3" * 32, version="1.1"), build="new")  # fmt: skip
    known = store(old=old, new=new)
    right = claims_2(
        k2399=[component(value=b"\2" * 32), component("ARoT", b"\3" * 32, version="1.1")]
    )
    assert _appraise(right, known).build == "new"
    mixed = claims_2(
        k2399=[component(value=b"\2" * 32), component("ARoT", b"\1" * 32, version="1.0")]
    )
    assert _appraise(mixed, known).vector.values()["executables"] == 33
    assert _appraise(mixed, known, policy=VERAISON).vector.values()["executables"] == 2


def test_without_reference_values_nothing_is_recognised() -> None:
    anchors = Endorsements(
        corim="x",
        profile="",
        anchors=(
            TrustAnchor(
                implementation_id=IMPLEMENTATION,
                instance_id=public_key().instance_id(),
                key=public_key(),
                corim="x",
            ),
        ),
    )
    known = ReferenceStore({"x": [anchors]})
    found = _appraise(known=known)
    assert found.vector.values()["executables"] == 33
    assert found.vector.reasons()["executables"] == "no reference values for this implementation"
    assert _appraise(known=known, policy=VERAISON).vector.values()["executables"] == 33


def test_veraison_makes_no_claim_where_an_optional_field_is_absent() -> None:
    for software in (component(version=""), component("")):
        found = _appraise(claims_2(k2399=[software]), policy=VERAISON)
        assert set(found.vector.values().values()) == {0}
        assert found.status is Status.NONE
    loose = store(qemu=corim(reference(version="")))
    assert _appraise(claims_2(k2399=[component(version="")]), loose).status is Status.AFFIRMING


def test_none_sorts_below_affirming() -> None:
    assert worst([Status.NONE, Status.AFFIRMING]) is Status.AFFIRMING
    assert worst([]) is Status.NONE
    assert worst(Status) is Status.CONTRAINDICATED


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (-128, "contraindicated"), (-97, "contraindicated"), (-96, "warning"), (-33, "warning"),
        (-32, "affirming"), (-2, "affirming"), (-1, "none"), (0, "none"), (1, "none"),
        (2, "affirming"), (31, "affirming"), (32, "warning"), (95, "warning"),
        (96, "contraindicated"), (127, "contraindicated"),
    ],
)  # fmt: skip
def test_tiers_have_their_bounds(value: int, status: str) -> None:
    assert tier_of(value) == status


def test_policies_and_switches_that_do_not_exist_are_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match=r"'lax' is unknown. Policies: strict, veraison"):
        policy_of("lax")
    with pytest.raises(UsageError, match=r"'all' is unknown. Known: signer, algorithm, missing"):
        policy_of("strict", ["all"])
    assert policy_of("strict", ["signer", "extra"]).name == "strict+extra+signer"


@pytest.mark.parametrize(
    ("changes", "platform", "realm"),
    [
        ({}, (2, 2), 2),
        ({"config": b"\xff"}, (32, 2), 2),
        ({"realm": {"cca.rem2": bytes(32)}}, (2, 2), 3),
        ({"realm": {"cca.rim": bytes(32)}}, (2, 2), 33),
        ({"personal": b"\x41" * 64}, (2, 2), 2),
        ({"personal": bytes(64)}, (2, 2), 96),
    ],
    ids=["right", "config", "extensible", "initial", "personal", "other person"],
)
def test_platform_and_realm_are_appraised_each_by_its_own(
    changes: dict[str, Any], platform: tuple[int, int], realm: int
) -> None:
    known = cca_store(**changes)
    found = appraise_cca(verify_cca_token(cca_token(), known, nonce=NONCE), known)
    assert [one.name for one in found] == ["CCA_SSD_PLATFORM", "CCA_REALM"]
    first, second = (one.vector.values() for one in found)
    assert (first["configuration"], first["executables"]) == platform
    assert (second["instance-identity"], second["executables"]) == (2, realm)


def test_a_cca_token_that_fails_is_contraindicated() -> None:
    known = cca_store()
    (found,) = appraise_cca(verify_cca_token(cca_token(), known, nonce=bytes(32)), known)
    assert found.status is Status.CONTRAINDICATED
    assert "freshness: realm challenge" in found.problem
