from __future__ import annotations

import hashlib
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.cca import CcaAppraisal, is_collection, verify_cca_token
from excise.evidence.checks import Outcome
from token_builders import (
    NONCE,
    cca_token,
    platform_claims,
    private_key,
    public_key,
    realm_claims,
    realm_key,
)

KEY = public_key("platform", ec.SECP384R1)


def _failed(result: CcaAppraisal) -> set[str]:
    assert result.verdict is Outcome.FAILED
    assert result.problem
    return {
        check.id
        for part in result.results()
        for check in part.checks
        if check.outcome is Outcome.FAILED
    }


@pytest.mark.parametrize("tag", [907, 399])
def test_a_token_in_either_collection_passes(tag: int) -> None:
    data = cca_token(tag=tag)
    assert is_collection(data)
    result = verify_cca_token(data, KEY, nonce=NONCE)
    assert result.verdict is Outcome.PASSED
    assert result.problem == ""
    assert result.platform_claims is not None
    assert result.realm_claims is not None
    assert [part.subject for part in result.results()] == [
        "cca token",
        "cca platform token",
        "cca realm token",
    ]


def test_a_realm_token_with_a_profile_holds_its_key_as_a_cose_key() -> None:
    numbers = realm_key().public_key().public_numbers()
    x, y = (n.to_bytes(48, "big") for n in (numbers.x, numbers.y))
    held = write_cbor({1: 2, -1: 2, -2: x, -3: y})
    realm = realm_claims(k44237=held, k265="tag:arm.com,2023:realm#1.0.0")
    platform = platform_claims(k10=hashlib.sha256(held).digest())
    data = cca_token(platform, realm)
    assert verify_cca_token(data, KEY, nonce=NONCE).verdict is Outcome.PASSED
    raw = cca_token(realm=realm_claims(k265="tag:arm.com,2023:realm#1.0.0"))
    assert _failed(verify_cca_token(raw, KEY, nonce=NONCE)) == {"cca.realm_key"}


def test_a_short_challenge_is_padded_with_zeros_and_no_other_passes() -> None:
    data = cca_token()
    assert verify_cca_token(data, KEY, nonce=NONCE + b"\0").verdict is Outcome.PASSED
    for other in (NONCE[:31], NONCE + b"\1", bytes(64)):
        assert _failed(verify_cca_token(data, KEY, nonce=other)) == {"token.freshness"}
    assert _failed(verify_cca_token(data, KEY, nonce=None)) == {"token.freshness"}


def test_another_key_signs_neither_token() -> None:
    other = private_key("thief", ec.SECP384R1)
    result = verify_cca_token(cca_token(platform_key=other), KEY, nonce=NONCE)
    assert _failed(result) == {"cose.signature"}
    result = verify_cca_token(cca_token(signing_realm_key=other), KEY, nonce=NONCE)
    assert _failed(result) == {"cose.signature"}


def test_a_realm_token_of_another_device_is_not_bound() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    other = private_key("another realm", ec.SECP384R1)
    point = other.public_key().public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    data = cca_token(realm=realm_claims(k44237=point), signing_realm_key=other)
    result = verify_cca_token(data, KEY, nonce=NONCE)
    assert _failed(result) == {"cca.binding"}
    assert "binding" in result.problem


@pytest.mark.parametrize(
    ("platform", "realm", "check"),
    [
        (platform_claims(k2401=None), None, "cca.config"),
        (platform_claims(k2401=b""), None, "cca.config"),
        (platform_claims(k2402="md5"), None, "cca.hash_algorithm"),
        (platform_claims(k2395=0x3100), None, "cca.lifecycle"),
        (platform_claims(k2399=[]), None, "cca.software_components"),
        (platform_claims(k265="http://arm.com/psa/2.0.0"), None, "cca.profile"),
        (platform_claims(k265=None), None, "cca.profile"),
        (platform_claims(k10=[NONCE, NONCE]), None, "cca.nonce"),
        (None, realm_claims(k10=NONCE), "cca.challenge"),
        (None, realm_claims(k44235=b""), "cca.personalization_value"),
        (None, realm_claims(k44238=bytes(20)), "cca.initial_measurement"),
        (None, realm_claims(k44239=[]), "cca.extensible_measurements"),
        (None, realm_claims(k44239=[bytes(32)] * 5), "cca.extensible_measurements"),
        (None, realm_claims(k44240="sha-1"), "cca.key_hash_algorithm"),
        (None, realm_claims(k44237=b"\4" + bytes(96)), "cca.realm_key"),
    ],
)
def test_a_claim_that_breaks_its_rule_fails_its_own_check(
    platform: dict[int, Any] | None, realm: dict[int, Any] | None, check: str
) -> None:
    assert check in _failed(verify_cca_token(cca_token(platform, realm), KEY, nonce=NONCE))


@pytest.mark.parametrize(
    "value",
    [
        {},
        {44234: b"x"},
        {44234: [263, b"x"], 44241: b"y"},
        {44234: [263], 44241: [263, b"y"]},
        [b"x", b"y"],
    ],
)
def test_other_collections_are_refused(value: Any) -> None:
    result = verify_cca_token(write_cbor(Tag(907, value)), KEY, nonce=NONCE)
    assert _failed(result) == {"cca.collection"}


@given(st.binary(max_size=300))
def test_any_bytes_give_a_result_that_fails(data: bytes) -> None:
    assert verify_cca_token(data, KEY, nonce=NONCE).verdict is Outcome.FAILED
    wrapped = write_cbor(Tag(399, {44234: data, 44241: data}))
    assert verify_cca_token(wrapped, KEY, nonce=NONCE).verdict is Outcome.FAILED
