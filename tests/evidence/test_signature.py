from __future__ import annotations

import hashlib
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import given
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.evidence.signature import (
    FileSignature,
    Keyring,
    SignatureAppraisal,
    SignatureResult,
    parse_file_signature,
)
from quote_builders import ecc_key, pem, rsa_key
from skips import skip

DIGEST = hashlib.sha256(b"content").digest()
SHA256 = 4


def keyid(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        encoded = public.public_bytes(Encoding.DER, PublicFormat.PKCS1)
    else:
        encoded = public.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return hashlib.sha1(encoded).digest()[-4:]


def header(kind: int, version: int, key: bytes, size: int, *, order: str = "big") -> bytes:
    return bytes([kind, version, SHA256]) + key + size.to_bytes(2, order)  # type: ignore[arg-type]


def sign_digest(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, digest: bytes) -> bytes:
    if isinstance(key, rsa.RSAPrivateKey):
        return key.sign(digest, padding.PKCS1v15(), Prehashed(hashes.SHA256()))
    return key.sign(digest, ec.ECDSA(Prehashed(hashes.SHA256())))


def xattr(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey,
    *,
    kind: int = 3,
    version: int = 2,
    digest: bytes = DIGEST,
) -> bytes:
    signed = digest
    if version == 3:
        signed = hashlib.sha256(bytes([kind, SHA256]) + digest).digest()
    signature = sign_digest(key, signed)
    return header(kind, version, keyid(key), len(signature)) + signature


def ring(*keys: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> Keyring:
    made = Keyring()
    for key in keys:
        made.add_bytes(pem(key), source="test key")
    return made


def verify(keyring: Keyring, data: bytes, digest: bytes = DIGEST) -> SignatureAppraisal:
    return keyring.verify(data, digest_algorithm="sha256", digest=digest)


@pytest.mark.parametrize("key", [ecc_key(), rsa_key()], ids=["ec", "rsa"])
@pytest.mark.parametrize(("kind", "version"), [(3, 2), (3, 3), (6, 3)])
def test_signature_of_each_version_verifies_and_one_changed_thing_spoils_it(
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey, kind: int, version: int
) -> None:
    keyring = ring(key)
    data = xattr(key, kind=kind, version=version)
    result = verify(keyring, data)
    assert (result.result, result.key_source) == (SignatureResult.OK, "test key")
    assert result.keyid == keyid(key).hex()
    other_file = verify(keyring, data, hashlib.sha256(b"other").digest())
    assert other_file.result is SignatureResult.BAD_SIGNATURE
    changed = data[:-1] + bytes([data[-1] ^ 1])
    assert verify(keyring, changed).result is SignatureResult.BAD_SIGNATURE
    assert verify(Keyring(), data).result is SignatureResult.UNKNOWN_KEY


def test_verity_signature_is_not_taken_for_one_of_the_file_and_the_reverse() -> None:
    keyring = ring(ecc_key())
    verity, file = xattr(ecc_key(), kind=6, version=3), xattr(ecc_key(), kind=3, version=3)
    assert verify(keyring, b"\x03" + verity[1:]).result is SignatureResult.BAD_SIGNATURE
    assert verify(keyring, b"\x06" + file[1:]).result is SignatureResult.BAD_SIGNATURE


def test_key_with_the_same_identifier_but_another_value_gives_a_bad_signature() -> None:
    keyring = Keyring()
    data = xattr(ecc_key("another"))
    renamed = data[:3] + keyid(ecc_key()) + data[7:]
    keyring.add_bytes(pem(ecc_key()), source="test key")
    assert verify(keyring, renamed).result is SignatureResult.BAD_SIGNATURE


def test_signature_of_another_hash_than_the_list_measured_says_so() -> None:
    result = ring(ecc_key()).verify(xattr(ecc_key()), digest_algorithm="sha512", digest=bytes(64))
    assert result.result is SignatureResult.BAD_SIGNATURE
    assert result.detail == "signs sha256, the list has sha512"


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (b"", "the file has none"),
        (b"\x01" + bytes(20), "a digest only"),
        (b"\x04\x04" + bytes(32), "a digest only"),
        (b"\x02" + bytes(20), "an EVM HMAC"),
        (b"\x05\x02\x04" + bytes(70), "a portable EVM signature, which does not cover"),
    ],
)
def test_attribute_that_is_no_signature_of_the_file_is_named(data: bytes, detail: str) -> None:
    result = verify(ring(ecc_key()), data)
    assert result.result is SignatureResult.NO_SIGNATURE
    assert result.detail.startswith(detail)


LITTLE = header(3, 2, keyid(ecc_key()), 70, order="little") + bytes(70)


@pytest.mark.parametrize(
    ("data", "detail"),
    [
        (LITTLE, "its length is little-endian"),
        (header(3, 2, bytes(4), 71) + bytes(70), "announces 71 bytes and has 70"),
        (header(3, 2, bytes(4), 70)[:8], "8 bytes are too few"),
        (b"\x03\x02\x63" + bytes(80), "hash 99"),
        (b"\x03\x04\x04" + bytes(80), "unknown signature version 4"),
        (b"\x03", "unknown signature version 0"),
        (b"\x06\x02\x04" + bytes(80), "an fs-verity signature of version 2"),
        (b"\x07" + bytes(80), "unknown attribute type 7"),
        (b"\x03\x01" + bytes(10), "too few for version 1"),
        (b"\x03\x01" + bytes(80), "version 1 with an unknown algorithm"),
    ],
)
def test_malformed_attribute_is_named_for_its_fault(data: bytes, detail: str) -> None:
    result = verify(ring(ecc_key()), data)
    assert result.result is SignatureResult.MALFORMED
    assert detail in result.detail


def certificate(key: ec.EllipticCurvePrivateKey, *, subject_key_id: bytes | None) -> bytes:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "IMA signing key")])
    start = datetime(2020, 1, 1, tzinfo=UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=1))
    )
    if subject_key_id is not None:
        extension = x509.SubjectKeyIdentifier(subject_key_id)
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.DER)


def test_certificate_answers_to_its_subject_key_identifier_and_to_its_hash() -> None:
    key = ecc_key()
    signature = sign_digest(key, DIGEST)
    for encoded in (certificate(key, subject_key_id=b"0123456789abWXYZ"),):
        keyring = Keyring()
        keyring.add_bytes(encoded, source=".ima")
        for name in (b"WXYZ", keyid(key)):
            data = header(3, 2, name, len(signature)) + signature
            assert verify(keyring, data).result is SignatureResult.OK
    plain = Keyring()
    plain.add_bytes(certificate(key, subject_key_id=None), source=".ima")
    assert verify(plain, xattr(key)).result is SignatureResult.OK
    assert len(plain) == 1


def test_key_added_later_is_used_for_signatures_seen_before() -> None:
    keyring, data = Keyring(), xattr(ecc_key())
    assert verify(keyring, data).result is SignatureResult.UNKNOWN_KEY
    keyring.add_bytes(pem(ecc_key()), source="learnt")
    assert verify(keyring, data).result is SignatureResult.OK


def test_each_signature_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from excise.evidence import signature as module

    calls = 0
    original = module._holds

    def counted(*arguments: object) -> bool:
        nonlocal calls
        calls += 1
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_holds", counted)
    keyring, data = ring(ecc_key()), xattr(ecc_key())
    assert [verify(keyring, data).result for _ in range(5)] == [SignatureResult.OK] * 5
    assert calls == 1


def test_unreadable_and_foreign_keys_are_format_errors(tmp_path: Path) -> None:
    keyring = Keyring()
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    encoded = other.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    with pytest.raises(FormatError, match="neither an RSA nor an ECC key"):
        keyring.add_bytes(encoded, source="ed25519.pem")
    with pytest.raises(FormatError, match=r"x\.pem: .*neither a certificate nor a public key"):
        keyring.add_bytes(b"hello", source="x.pem")


def evmctl(folder: Path, *arguments: str) -> None:
    if shutil.which("evmctl") is None:
        skip("evmctl is not installed")
    subprocess.run(["evmctl", *arguments], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("kind", "algorithm", "options"),
    [
        ("rsa", "sha1", ("--rsa",)),
        ("rsa", "sha256", ()),
        ("rsa", "sha512", ()),
        ("ec", "sha256", ()),
        ("ec", "sha384", ()),
    ],
)
def test_signatures_that_evmctl_makes_verify(
    tmp_path: Path, kind: str, algorithm: str, options: tuple[str, ...]
) -> None:
    key = rsa_key() if kind == "rsa" else ecc_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    (tmp_path / "key.pem").write_bytes(private)
    (tmp_path / "file").write_bytes(b"content")
    evmctl(
        tmp_path,
        *("ima_sign", *options, "--sigfile", "-a", algorithm, "--key", "key.pem", "file"),
    )
    data = (tmp_path / "file.sig").read_bytes()
    digest = hashlib.new(algorithm, b"content").digest()
    keyring = ring(key)
    result = keyring.verify(data, digest_algorithm=algorithm, digest=digest)
    assert result.result is SignatureResult.OK
    parsed = parse_file_signature(data)
    assert isinstance(parsed, FileSignature)
    assert parsed.version == (1 if options else 2)
    wrong = bytes([digest[0] ^ 1]) + digest[1:]
    changed = keyring.verify(data, digest_algorithm=algorithm, digest=wrong)
    assert changed.result is SignatureResult.BAD_SIGNATURE


@given(st.binary(max_size=120))
def test_arbitrary_attributes_give_a_result_and_never_ok(data: bytes) -> None:
    assert verify(RING, data).result is not SignatureResult.OK


@given(st.integers(0, 200), st.integers(1, 255))
def test_any_changed_byte_of_a_good_signature_spoils_it(position: int, change: int) -> None:
    data = bytearray(GOOD)
    data[position % len(data)] ^= change
    assert verify(RING, bytes(data)).result is not SignatureResult.OK


RING, GOOD = ring(ecc_key(), rsa_key()), xattr(rsa_key())
