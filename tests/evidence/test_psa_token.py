from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.cbor import write_cbor
from excise.evidence.checks import Check, Outcome
from excise.evidence.cose import sign1
from excise.evidence.cose_key import read_key, secret_key
from excise.evidence.psa import (
    PROFILE_1,
    PROFILE_2,
    PROFILE_TFM,
    Lifecycle,
    Profile,
    TokenAppraisal,
    TokenOptions,
    check_claims,
    claims_from_json,
    encode_claims,
    lifecycle_of,
    verify_token,
)
from token_builders import (
    IMPLEMENTATION,
    NONCE,
    claims_1,
    claims_2,
    claims_tfm,
    component,
    corim,
    private_key,
    public_key,
    store,
    token,
)


def _verify(data: bytes, **options: Any) -> TokenAppraisal:
    return verify_token(data, public_key(), nonce=NONCE, options=TokenOptions(**options))


def _failed(result: TokenAppraisal) -> dict[str, Check]:
    assert result.verdict is Outcome.FAILED
    return {check.id: check for check in result.checks if check.outcome is Outcome.FAILED}


@pytest.mark.parametrize("claims", [claims_1(), claims_2(), claims_tfm()], ids=["1", "2", "tfm"])
def test_a_right_token_of_each_profile_passes(claims: dict[int, Any]) -> None:
    result = _verify(token(claims))
    assert result.verdict is Outcome.PASSED
    assert result.problem == ""
    assert result.claims is not None
    assert result.claims.state is Lifecycle.SECURED
    assert {check.id: check.outcome for check in result.checks}["token.instance_key"] == "PASSED"


def test_vectors_of_trusted_firmware_and_the_rfc_verify(shared_vectors: Path) -> None:
    folder = shared_vectors / "psa"
    rfc = folder / "rfc9783"
    iak = read_key((rfc / "tfm-es-iak.pem").read_bytes())
    result = verify_token((rfc / "psa-sign1.cbor").read_bytes(), iak, nonce=b"\1" * 32)
    assert result.verdict is Outcome.PASSED
    assert result.claims is not None
    assert result.claims.profile is PROFILE_TFM
    assert result.claims.boot_seed == bytes(8)
    key = read_key((folder / "veraison__psatoken" / "testvectors__tf-m__public.pem").read_bytes())
    for name, profile in (("psa-iot-1", PROFILE_1), ("psa-2_0_0", PROFILE_2)):
        path = folder / "veraison__psatoken" / f"testvectors__tf-m__{name}_sign1.bin"
        result = verify_token(path.read_bytes(), key, nonce=bytes(64))
        assert result.verdict is Outcome.PASSED, name
        assert result.claims is not None
        assert result.claims.profile is profile
        mac = path.with_name(path.name.replace("sign1", "mac0")).read_bytes()
        assert set(_failed(verify_token(mac, key, nonce=bytes(64)))) == {"cose.tag"}


def test_a_mac_token_passes_only_where_a_secret_is_given(shared_vectors: Path) -> None:
    folder = shared_vectors / "psa" / "rfc9783"
    data = (folder / "psa-mac0.cbor").read_bytes()
    secret = secret_key((folder / "tfm-hs-iak.bin").read_bytes())
    options = TokenOptions(allow_mac0=True)
    assert verify_token(data, secret, nonce=b"\1" * 32, options=options).verdict is Outcome.PASSED
    wrong = secret_key(b"\1" * 64)
    result = verify_token(data, wrong, nonce=b"\1" * 32, options=options)
    assert set(_failed(result)) == {"cose.signature"}


VALID = {
    PROFILE_1.label: {
        "profile-invalid-missing",
        "profile-valid-missing",
        "token-valid-full",
        "token-valid-minimalist-no-sw-measurements",
        "token-valid-minimalist-p1",
    },
    PROFILE_2.label: {
        "token-valid-full",
        "token-valid-minimalist-p2",
        "boot-seed-invalid-missing",
    },
}


@pytest.mark.parametrize("profile", [PROFILE_1, PROFILE_2], ids=["1", "2"])
def test_claim_sets_of_psatoken_get_the_verdict_of_their_authors(
    shared_vectors: Path, profile: Profile
) -> None:
    """The verdict depends on the profile, and the file's name says that of profile 1."""
    folder = shared_vectors / "psa" / "veraison__psatoken"
    paths = sorted(folder.glob("testvectors__json__test-*.json"))
    assert len(paths) == 33
    accepted = set()
    for path in paths:
        raw = claims_from_json(path.read_bytes(), profile=profile)
        claims, checks = check_claims(raw, profile=profile)
        failed = [check for check in checks if check.outcome is Outcome.FAILED]
        assert (claims is None) == bool(failed), path.name
        if claims is not None:
            accepted.add(path.stem.removeprefix("testvectors__json__test-"))
    assert accepted == VALID[profile.label]


CASES: list[tuple[str, dict[int, Any], str]] = [
    ("nonce of 31 bytes", claims_2(k10=NONCE[:31]), "token.nonce"),
    ("nonce of 33 bytes", claims_2(k10=NONCE + b"\0"), "token.nonce"),
    ("nonce of 47 bytes", claims_2(k10=bytes(47)), "token.nonce"),
    ("nonce of 8 bytes", claims_2(k10=bytes(8)), "token.nonce"),
    ("two nonces", claims_2(k10=[NONCE, NONCE]), "token.nonce"),
    ("one nonce in an array", claims_2(k10=[NONCE]), "token.nonce"),
    ("nonce as text", claims_2(k10="AAECAwQFBgcICQoLDA0ODw=="), "token.nonce"),
    ("no nonce", claims_2(k10=None), "token.nonce"),
    ("instance of 32 bytes", claims_2(k256=b"\1" + bytes(31)), "token.instance_id"),
    ("instance of another type", claims_2(k256=b"\2" + bytes(32)), "token.instance_id"),
    ("implementation of 31 bytes", claims_2(k2396=bytes(31)), "token.implementation_id"),
    ("client of 33 bits", claims_2(k2394=1 << 31), "token.client_id"),
    ("client that is true", claims_2(k2394=True), "token.client_id"),
    ("boot seed of 7 bytes", claims_tfm(k268=bytes(7)), "token.boot_seed"),
    ("boot seed of 33 bytes", claims_2(k2397=bytes(33)), "token.boot_seed"),
    ("no boot seed in profile 1", claims_1(k75004=None), "token.boot_seed"),
    ("short reference", claims_tfm(k2398="1234567890123"), "token.certification_reference"),
    ("empty verifier", claims_2(k2400=""), "token.vsi"),
    ("no components", claims_2(k2399=None), "token.software_components"),
    ("empty components", claims_2(k2399=[]), "token.software_components"),
    ("component without signer", claims_2(k2399=[component(signer=b"")]),
     "token.software_components"),
    ("component of 20 bytes", claims_2(k2399=[component(value=bytes(20))]),
     "token.software_components"),
    ("component that is text", claims_2(k2399=["PRoT"]), "token.software_components"),
    ("type that is a number", claims_2(k2399=[{**component(), 1: 7}]),
     "token.software_components"),
    ("list and no measurements", claims_1(k75007=1), "token.software_components"),
    ("neither list nor statement", claims_1(k75006=None), "token.software_components"),
    ("statement that is 2", claims_1(k75006=None, k75007=2), "token.software_components"),
    ("unknown profile", claims_2(k265="http://UNKNOWN"), "token.profile"),
    ("profile that is a list", claims_2(k265=["http://arm.com/psa/2.0.0"]), "token.profile"),
]  # fmt: skip


@pytest.mark.parametrize(("claims", "check"), [case[1:] for case in CASES],
                         ids=[case[0] for case in CASES])  # fmt: skip
def test_a_claim_that_breaks_its_rule_fails_its_own_check(
    claims: dict[int, Any], check: str
) -> None:
    result = _verify(token(claims))
    assert set(_failed(result)) == {check}
    assert result.claims is None
    assert result.problem == "could not establish identity from evidence"


@pytest.mark.parametrize(
    ("claims", "check"),
    [
        (claims_2(k265=None), "token.foreign_claims"),
        (claims_1() | {265: "http://arm.com/psa/2.0.0"}, "token.profile"),
        (claims_2() | {-75000: "PSA_IOT_PROFILE_1"}, "token.profile"),
        (claims_1() | {2396: IMPLEMENTATION}, "token.foreign_claims"),
        (claims_2() | {268: bytes(8)}, "token.foreign_claims"),
        (claims_tfm() | {2397: bytes(8)}, "token.foreign_claims"),
        (claims_2(k265="PSA_IOT_PROFILE_1"), "token.profile"),
        (claims_1() | {-75000: "http://arm.com/psa/2.0.0"}, "token.profile"),
    ],
    ids=["2 unnamed", "both in 1", "both in 2", "2396 in 1", "268 in 2", "2397 in tfm",
         "1 under 265", "2 under -75000"],
)  # fmt: skip
def test_profiles_are_never_mixed(claims: dict[int, Any], check: str) -> None:
    assert check in _failed(_verify(token(claims)))


def test_a_token_without_a_profile_is_one_of_profile_1() -> None:
    result = _verify(token(claims_1(k75000=None)))
    assert result.verdict is Outcome.PASSED
    assert result.claims is not None
    assert result.claims.profile is PROFILE_1


def test_a_profile_can_be_insisted_on() -> None:
    assert _verify(token(claims_tfm()), profile=PROFILE_TFM).verdict is Outcome.PASSED
    assert set(_failed(_verify(token(claims_2()), profile=PROFILE_TFM))) == {"token.profile"}


def test_unknown_claims_cause_no_error_and_are_named() -> None:
    result = _verify(token(claims_2() | {4711: 1, "vendor": b"x"}))
    assert result.verdict is Outcome.PASSED
    named = next(check for check in result.checks if check.id == "token.unknown_claims")
    assert named.got == "ignored: 4711, 'vendor'"


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"\xa2\x0a\x01\x0a\x02", id="duplicate"),
        pytest.param(write_cbor(claims_2()) + b"\0", id="trailing"),
        pytest.param(b"\xbf\x0a\x01\xff", id="indefinite"),
        pytest.param(b"\xa1\xf9\x49\x00\x01", id="float key"),
        pytest.param(b"\xa1\xf5\x01", id="true key"),
        pytest.param(b"\x81\xd8\x1c\x81\xd8\x1d\x00", id="cycle"),
        pytest.param(b"\x01", id="no map"),
        pytest.param(b"", id="empty"),
    ],
)
def test_loose_encodings_are_no_token(payload: bytes) -> None:
    result = _verify(sign1(payload, private_key()))
    assert set(_failed(result)) == {"token.claims"}


def test_a_token_in_more_bytes_than_it_needs_verifies_as_received() -> None:
    plain = write_cbor(claims_2())
    # The lifecycle's three bytes as five: the same claims, other bytes.
    longer = plain.replace(b"\x19\x09\x5b\x19\x30\x00", b"\x19\x09\x5b\x1a\x00\x00\x30\x00")
    assert len(longer) == len(plain) + 2
    assert _verify(sign1(longer, private_key())).verdict is Outcome.PASSED


@pytest.mark.parametrize(
    "challenge", [NONCE[:31] + b"\xff", NONCE + b"\0", NONCE[:16], b"", NONCE.hex().encode()]
)
def test_the_whole_nonce_is_compared(challenge: bytes) -> None:
    result = verify_token(token(), public_key(), nonce=challenge)
    assert set(_failed(result)) == {"token.freshness"}
    assert result.problem.startswith("integrity validation failed: bad evidence: freshness: psa-")


def test_a_token_without_a_challenge_to_answer_fails_unless_that_is_allowed() -> None:
    assert set(_failed(verify_token(token(), public_key(), nonce=None))) == {"token.freshness"}
    options = TokenOptions(require_nonce=False)
    result = verify_token(token(), public_key(), nonce=None, options=options)
    assert result.verdict is Outcome.PASSED


def test_the_trust_anchor_is_that_of_implementation_and_instance_together() -> None:
    known = store(qemu=corim(), imx=corim(implementation=b"i" * 32, keys=("other",)))
    assert verify_token(token(), known, nonce=NONCE).verdict is Outcome.PASSED
    # A device of one kind that claims to be of the other, with its own key and its own instance.
    for claims in (
        claims_2(k2396=b"i" * 32),
        claims_2(k256=public_key("other").instance_id()),
        claims_2(k2396=bytes(32)),
    ):
        result = verify_token(token(claims), known, nonce=NONCE)
        assert set(_failed(result)) == {"token.trust_anchor"}
        assert result.problem == "no trust anchor for evidence"
        assert next(c for c in result.checks if c.id == "cose.signature").outcome == "NOT_COVERED"


def test_two_keys_for_one_device_are_no_trust_anchor() -> None:
    from excise.evidence.corim import ReferenceStore, TrustAnchor
    from excise.evidence.corim.profiles import Endorsements

    def anchor(name: str) -> Endorsements:
        made = TrustAnchor(
            implementation_id=IMPLEMENTATION,
            instance_id=public_key().instance_id(),
            key=public_key(name),
            corim=name,
        )
        return Endorsements(corim=name, profile="", anchors=(made,))

    known = ReferenceStore({"a": [anchor("device")], "b": [anchor("device")]})
    assert verify_token(token(), known, nonce=NONCE).verdict is Outcome.PASSED
    known = known.with_build("c", anchor("other"))
    result = verify_token(token(), known, nonce=NONCE)
    assert _failed(result)["token.trust_anchor"].got == "2 trust anchors"


def test_a_key_in_the_message_is_never_used() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    spki = (
        private_key("thief")
        .public_key()
        .public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    )
    forged = sign1(write_cbor(claims_2()), private_key("thief"), headers={33: spki})
    assert "cose.signature" in _failed(_verify(forged))


def test_an_instance_that_is_no_hash_of_the_key_is_told_and_refused_on_request() -> None:
    claims = claims_2(k256=b"\1" + bytes(32))
    result = _verify(token(claims))
    assert result.verdict is Outcome.PASSED
    assert {c.id: c.outcome for c in result.checks}["token.instance_key"] == "NOT_COVERED"
    assert set(_failed(_verify(token(claims), require_bound_instance=True))) == {
        "token.instance_key"
    }


@pytest.mark.parametrize(
    ("value", "state"),
    [
        (0x0000, Lifecycle.UNKNOWN),
        (0x00FF, Lifecycle.UNKNOWN),
        (0x0100, Lifecycle.INVALID),
        (0x0FFF, Lifecycle.INVALID),
        (0x1000, Lifecycle.ASSEMBLY),
        (0x10FF, Lifecycle.ASSEMBLY),
        (0x1100, Lifecycle.INVALID),
        (0x2000, Lifecycle.PROVISIONING),
        (0x20FF, Lifecycle.PROVISIONING),
        (0x2100, Lifecycle.INVALID),
        (0x2FFF, Lifecycle.INVALID),
        (0x3000, Lifecycle.SECURED),
        (0x30FF, Lifecycle.SECURED),
        (0x3100, Lifecycle.INVALID),
        (0x4000, Lifecycle.NON_PSA_ROT_DEBUG),
        (0x40FF, Lifecycle.NON_PSA_ROT_DEBUG),
        (0x5000, Lifecycle.RECOVERABLE_DEBUG),
        (0x50FF, Lifecycle.RECOVERABLE_DEBUG),
        (0x6000, Lifecycle.DECOMMISSIONED),
        (0x60FF, Lifecycle.DECOMMISSIONED),
        (0x6100, Lifecycle.INVALID),
        (0xFFFF, Lifecycle.INVALID),
        (0x10000, Lifecycle.INVALID),
        (-1, Lifecycle.INVALID),
    ],
)
def test_lifecycle_states_have_their_ranges(value: int, state: Lifecycle) -> None:
    assert lifecycle_of(value) is state
    failed = set(_failed(_verify(token(claims_2(k2395=value))))) if state == "invalid" else set()
    assert failed == ({"token.lifecycle"} if state is Lifecycle.INVALID else set())


@pytest.mark.parametrize("claims", [claims_1(), claims_2(), claims_tfm()], ids=["1", "2", "tfm"])
def test_claims_are_the_same_after_writing_them_and_as_json(claims: dict[int, Any]) -> None:
    found, _ = check_claims(claims)
    assert found is not None
    assert encode_claims(found) == write_cbor(claims)
    assert claims_from_json(json.dumps(found.as_json())) == claims


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"{", "not JSON"),
        (b"[]", "no JSON object"),
        (b'{"eat-profile": "a", "psa-profile": "b"}', "both eat-profile and psa-profile"),
        (b'{"eat-profile": "a"}', "the profile 'a' is unknown. Known: PSA_IOT_PROFILE_1"),
        (b'{"psa-profile": "PSA_IOT_PROFILE_1", "psa-nonce": "!"}', "neither base64 nor base64url"),
        (b'{"psa-profile": "PSA_IOT_PROFILE_1", "psa-nonce": "A"}', "cut-off base64"),
        (b'{"psa-software-components": [1]}', "a component is no object"),
    ],
)
def test_claims_in_json_that_cannot_be_read_are_refused(document: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        claims_from_json(document)


def test_another_signature_algorithm_is_taken_with_its_key() -> None:
    key = private_key("p384", ec.SECP384R1)
    signed = sign1(write_cbor(claims_2()), key)
    result = verify_token(signed, public_key("p384", ec.SECP384R1), nonce=NONCE)
    assert result.verdict is Outcome.PASSED


@given(st.binary(max_size=200), st.integers(0, 400))
def test_any_damage_gives_a_result_and_never_passes(damage: bytes, at: int) -> None:
    good = token()
    data = good[:at] + damage + good[at + len(damage) :]
    result = _verify(data)
    same = data == good
    assert (result.verdict is Outcome.PASSED) == same
