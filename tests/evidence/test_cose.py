from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESCCM
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.cbor import Tag, read_cbor, write_cbor
from excise.evidence.checks import Check, Outcome
from excise.evidence.cose import (
    TAG_MAC0,
    TAG_SIGN,
    TAG_SIGN1,
    CoseOptions,
    CoseResult,
    sign1,
    verify_message,
)
from excise.evidence.cose_key import VerificationKey, read_key, secret_key
from token_builders import private_key, public_key

P256_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
LOOSE = {"require_tag": False, "unprotected_algorithm": True, "bind_curve": False}

# Why a vector that its authors accept is refused by default: what a PSA token must not have.
STRICTER = {
    "ecdsa-examples__ecdsa-04": "cose.key",
    "ecdsa-examples__ecdsa-sig-04": "cose.key",
    "mac0-tests__mac-pass-01": "cose.algorithm",
    "mac0-tests__mac-pass-02": "cose.algorithm",
    "mac0-tests__mac-pass-03": "cose.tag",
    "sign1-tests__sign-pass-01": "cose.algorithm",
    "sign1-tests__sign-pass-03": "cose.tag",
}


def _find(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        if name in value:
            return value[name]
        value = list(value.values())
    if isinstance(value, list):
        return next((found for one in value if (found := _find(one, name)) is not None), None)
    return None


def _key(entry: dict[str, Any]) -> VerificationKey:
    made = dict(entry)
    for name in [name for name in made if name.endswith("_hex")]:
        encoded = base64.urlsafe_b64encode(bytes.fromhex(made[name])).rstrip(b"=")
        made[name.removesuffix("_hex")] = encoded.decode()
    return read_key(json.dumps(made).encode())


def _examples(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((folder / "cose" / "cose-wg__Examples").glob("*.json")):
        yield path.stem, json.loads(path.read_text())


def _verify(example: dict[str, Any], **options: Any) -> CoseResult:
    given = example["input"]
    tag = TAG_MAC0 if "mac0" in given else TAG_SIGN if "sign" in given else TAG_SIGN1
    external = bytes.fromhex(_find(given, "external") or "")
    chosen = CoseOptions(tags=(tag,), external_aad=external, **options)
    data = bytes.fromhex(example["output"]["cbor"])
    return verify_message(data, _key(_find(given, "key")), options=chosen)


def test_working_group_examples_verify_and_their_failures_are_refused(shared_vectors: Path) -> None:
    seen = 0
    for name, example in _examples(shared_vectors):
        if "encrypted" in example["input"]:
            continue
        seen += 1
        strict, loose = _verify(example), _verify(example, **LOOSE)
        if example.get("fail"):
            assert not strict.verified, name
            assert not loose.verified, name
            continue
        assert loose.verified, name
        failed = [check.id for check in strict.checks if check.outcome is Outcome.FAILED]
        assert failed == ([STRICTER[name]] if name in STRICTER else []), name
    assert seen == 37


def test_a_signature_inside_an_encrypted_example_verifies_once_it_is_opened(
    shared_vectors: Path,
) -> None:
    examples = dict(_examples(shared_vectors))
    nested = examples["CWT__A_6"]
    outer = read_cbor(bytes.fromhex(nested["output"]["cbor"]), tags=(16,)).value
    secret = _key(_find(nested["input"], "key")).secret
    aad = write_cbor(["Encrypt0", outer[0], b""])
    opened = AESCCM(secret, tag_length=8).decrypt(outer[1][5], outer[2], aad)
    signer = _key(_find(examples["CWT__A_3"]["input"], "key"))
    assert verify_message(opened, signer).verified
    refused = verify_message(bytes.fromhex(nested["output"]["cbor"]), signer)
    assert "tag 16 (COSE_Encrypt0)" in refused.checks[1].got


def _parts(message: bytes) -> list[Any]:
    parts = read_cbor(message, tags=(18,)).value
    assert isinstance(parts, list)
    return parts


def _with(message: bytes, *, tag: int | None = 18, **changes: Any) -> bytes:
    parts = _parts(message)
    for place, value in changes.items():
        parts[["protected", "unprotected", "payload", "signature"].index(place)] = value
    return write_cbor(parts if tag is None else Tag(tag, parts))


def _failed(message: bytes, key: VerificationKey | None = None, **options: Any) -> list[Check]:
    result = verify_message(message, key or public_key(), options=CoseOptions(**options))
    assert not result.verified
    return [check for check in result.checks if check.outcome is Outcome.FAILED]


def _signed(headers: dict[Any, Any], *, unprotected: dict[Any, Any] | None = None) -> bytes:
    """Return a message whose signature holds over any protected header."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    protected = write_cbor(headers) if headers else b""
    tbs = write_cbor(["Signature1", protected, b"", b"payload"])
    r, s = decode_dss_signature(private_key().sign(tbs, ec.ECDSA(SHA256())))
    value = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    return write_cbor(Tag(18, [protected, unprotected or {}, b"payload", value]))


def test_a_signed_message_verifies() -> None:
    for curve in (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1):
        message = sign1(b"payload", private_key("c", curve))
        result = verify_message(message, public_key("c", curve))
        assert result.verified
        assert result.message is not None
        assert result.message.payload == b"payload"
        assert not verify_message(message, public_key("other", curve)).verified


@pytest.mark.parametrize(
    ("message", "got"),
    [
        (lambda: _signed({}, unprotected={1: -7}), "none (unprotected header only)"),
        (lambda: _signed({}), "none (no header)"),
        (lambda: _signed({1: -999}), "-999, in the protected header"),
        (lambda: _signed({1: "ES256"}), "'ES256', in the protected header"),
        (lambda: _signed({1: [-7]}), "[-7], in the protected header"),
        (lambda: _signed({1: 5}), "HMAC 256/256, in the protected header"),
    ],
    ids=["unprotected", "absent", "unknown", "text", "list", "hmac"],
)
def test_the_algorithm_comes_from_the_protected_header_alone(
    message: Callable[[], bytes], got: str
) -> None:
    failed = _failed(message())
    assert [(check.id, check.got) for check in failed] == [("cose.algorithm", got)]


def test_the_algorithm_must_fit_the_key() -> None:
    message = sign1(b"payload", private_key())
    wrong_curve = public_key("other", ec.SECP384R1)
    assert [check.id for check in _failed(message, wrong_curve)] == ["cose.key"]
    assert [check.id for check in _failed(message, secret_key(b"x" * 32))] == ["cose.key"]


def test_a_public_key_is_never_the_secret_of_a_mac() -> None:
    import hmac

    key = public_key()
    protected = write_cbor({1: 5})
    tbs = write_cbor(["MAC0", protected, b"", b"payload"])
    forged = hmac.digest(key.spki(), tbs, "sha256")
    message = write_cbor(Tag(TAG_MAC0, [protected, {}, b"payload", forged]))
    assert [check.id for check in _failed(message, key, tags=(TAG_MAC0,))] == ["cose.key"]
    assert [check.id for check in _failed(message, key)] == ["cose.tag"]


@pytest.mark.parametrize(
    ("headers", "got"),
    [
        ({1: -7, 2: [99], 99: 1}, "parameter 99"),
        ({1: -7, 2: [3]}, "parameter 3"),
        ({1: -7, 2: []}, "crit is no list"),
        ({1: -7, 2: 1}, "crit is no list"),
        ({1: -7, 2: [[1]]}, r"parameter \[1\]"),
    ],
)
def test_critical_parameters_must_be_understood(headers: dict[Any, Any], got: str) -> None:
    import re

    failed = _failed(_signed(headers))
    assert [check.id for check in failed] == ["cose.critical"]
    assert re.search(got, failed[0].got)


def test_critical_parameters_are_named_in_the_protected_header_alone() -> None:
    failed = _failed(_signed({1: -7}, unprotected={2: [1]}))
    assert [(check.id, check.got) for check in failed] == [
        ("cose.critical", "crit in the unprotected header")
    ]


@pytest.mark.parametrize(("size", "expected"), [(15, ["cose.key"]), (16, [])])
def test_a_secret_of_a_mac_has_at_least_sixteen_bytes(size: int, expected: list[str]) -> None:
    import hmac

    secret, protected = b"x" * size, write_cbor({1: 5})
    tbs = write_cbor(["MAC0", protected, b"", b"payload"])
    tag = hmac.digest(secret, tbs, "sha256")
    message = write_cbor(Tag(TAG_MAC0, [protected, {}, b"payload", tag]))
    options = CoseOptions(tags=(TAG_MAC0,))
    checks = verify_message(message, secret_key(secret), options=options).checks
    assert [check.id for check in checks if check.outcome is Outcome.FAILED] == expected


def test_a_critical_parameter_that_is_understood_passes() -> None:
    assert verify_message(_signed({1: -7, 2: [1]}), public_key()).verified


@pytest.mark.parametrize(
    ("tag", "got"),
    [
        (None, "no tag"),
        (17, "tag 17 \\(COSE_Mac0\\)"),
        (61, "tag 61 \\(CWT\\)"),
        (98, "tag 98 \\(COSE_Sign\\)"),
        (16, "tag 16 \\(COSE_Encrypt0\\)"),
    ],
)
def test_only_the_tag_of_a_signed_message_is_taken(tag: int | None, got: str) -> None:
    import re

    failed = _failed(_with(sign1(b"payload", private_key()), tag=tag))
    assert [check.id for check in failed] == ["cose.tag"]
    assert re.match(got, failed[0].got)


def test_a_cwt_tag_around_a_signed_message_is_refused_by_name() -> None:
    message = b"\xd8\x3d" + sign1(b"payload", private_key())
    assert [check.got for check in _failed(message)] == [
        "tag 61 (CWT), where 18 (COSE_Sign1) is expected"
    ]


@pytest.mark.parametrize(
    "signature",
    [
        pytest.param(lambda value: value[:32], id="half"),
        pytest.param(lambda value: b"\0" + value[:32] + b"\0" + value[32:], id="longer"),
        pytest.param(lambda value: _der(value), id="der"),
        pytest.param(lambda value: value[:0], id="empty"),
    ],
)
def test_signatures_of_another_length_are_refused(
    signature: Callable[[bytes], bytes],
) -> None:
    message = sign1(b"payload", private_key())
    failed = _failed(_with(message, signature=signature(_parts(message)[3])))
    assert [check.id for check in failed] == ["cose.signature_length"]


def _der(value: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    halves = (int.from_bytes(value[:32], "big"), int.from_bytes(value[32:], "big"))
    return encode_dss_signature(*halves)


def test_both_halves_of_the_group_verify_and_numbers_outside_it_do_not() -> None:
    message = sign1(b"payload", private_key())
    value = _parts(message)[3]
    r, s = int.from_bytes(value[:32], "big"), int.from_bytes(value[32:], "big")
    other = r.to_bytes(32, "big") + (P256_ORDER - s).to_bytes(32, "big")
    # The same content under other bytes: a token's bytes are not its identity.
    assert verify_message(_with(message, signature=other), public_key()).verified
    for wrong in (b"\0" * 64, r.to_bytes(32, "big") + P256_ORDER.to_bytes(32, "big"), b"\xff" * 64):
        failed = _failed(_with(message, signature=wrong))
        assert [check.id for check in failed] == ["cose.signature"]


def test_the_received_bytes_are_verified_and_never_an_encoding_of_them() -> None:
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    # {1: -7} with the key in two bytes and the value in three.
    protected = bytes.fromhex("a1" + "1801" + "390006")
    assert write_cbor(read_cbor(protected)) != protected
    tbs = write_cbor(["Signature1", protected, b"", b"payload"])
    r, s = decode_dss_signature(private_key().sign(tbs, ec.ECDSA(SHA256())))
    value = r.to_bytes(32, "big") + s.to_bytes(32, "big")
    message = write_cbor(Tag(18, [protected, {}, b"payload", value]))
    assert verify_message(message, public_key()).verified
    canonical = _with(message, protected=write_cbor({1: -7}))
    assert [check.id for check in _failed(canonical)] == ["cose.signature"]


@pytest.mark.parametrize(
    "parts",
    [
        [b"", {}, b"payload"],
        [b"", {}, b"payload", b"s", b"more"],
        [b"", {}, None, b"s"],
        [b"", [], b"payload", b"s"],
        ["", {}, b"payload", b"s"],
        [b"\x01", {}, b"payload", b"s"],
        [b"", {}, b"payload", "s"],
        [b"\xa1\x01\x26", {1: -7}, b"payload", b"s"],
    ],
)
def test_other_structures_are_refused(parts: list[Any]) -> None:
    failed = _failed(write_cbor(Tag(18, parts)))
    assert [check.id for check in failed] == ["cose.structure"]


def test_keys_of_every_form_are_the_same_key() -> None:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = private_key().public_key()
    spki = PublicFormat.SubjectPublicKeyInfo
    numbers = key.public_numbers()
    x, y = (n.to_bytes(32, "big") for n in (numbers.x, numbers.y))
    text = {
        name: base64.urlsafe_b64encode(value).rstrip(b"=").decode()
        for name, value in (("x", x), ("y", y))
    }
    forms = [
        key.public_bytes(Encoding.PEM, spki),
        key.public_bytes(Encoding.DER, spki),
        json.dumps({"kty": "EC", "crv": "P-256", **text}).encode(),
        write_cbor({1: 2, -1: 1, -2: x, -3: y}),
    ]
    assert {read_key(form).spki() for form in forms} == {public_key().spki()}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "a certificate"),
        (b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "not a public key in P"),
        (b"\x30\x03\x02\x01\x01", "not a public key in DER"),
        (b"{", "not JSON"),
        (b'{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}', "the coordinates have 1 and 1"),
        (b'{"kty": "EC", "crv": "P-256"}', "the JWK has no 'x'"),
        (b'{"kty": "oct", "k": "A*A"}', "'k' of the JWK: 'A.*A' is neither base64 nor base64url"),
        (b'{"kty": "EC", "crv": "secp256k1"}', "is unknown"),
        (b"\xa1\x01\x02", "of type 2 and curve None is unknown"),
        (b"\xa1\x01\x81\x02", "is unknown"),
        (b"\x01", "neither PEM, DER, JWK nor a COSE_Key"),
        (b"\xa4\x01\x02\x20\x01\x21\x58\x20" + b"\1" * 32 + b"\x22\x58\x20" + b"\2" * 32,
         "the point is not on P-256"),
    ],
)  # fmt: skip
def test_bytes_that_are_no_key_are_refused_by_name(data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        read_key(data)


@given(st.binary(max_size=48))
def test_any_bytes_are_a_key_or_a_format_error(data: bytes) -> None:
    with suppress(FormatError):
        read_key(data)


@given(st.binary(max_size=96))
def test_any_bytes_are_refused_and_never_raise(data: bytes) -> None:
    assert not verify_message(data, public_key()).verified
    assert not verify_message(b"\xd2\x84" + data, public_key()).verified
