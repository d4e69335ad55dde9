"""Keys that evidence is verified with: PEM, DER, JWK or COSE_Key, and what they fit.

A certificate is no key: who signed it would have to be checked first, so that one is refused by
name instead of being opened.

Sources: RFC 9052 section 7 and RFC 9053 section 7 (COSE_Key), RFC 7517 and 7518 (JWK).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError, UsageError
from excise.evidence.base64text import decode_base64
from excise.evidence.cbor import read_cbor

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import (
        EllipticCurve,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
    )
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    PublicKey = EllipticCurvePublicKey | RSAPublicKey | Ed25519PublicKey | Ed448PublicKey

CURVE_BYTES: Final = {"P-256": 32, "P-384": 48, "P-521": 66}
"""Bytes of one coordinate, and of r and of s, by the curve's name in JOSE and COSE."""

_CRYPTOGRAPHY_CURVES: Final = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
_COSE_CURVES: Final = {1: "P-256", 2: "P-384", 3: "P-521", 6: "Ed25519", 7: "Ed448"}
_COSE_KEY_TYPES: Final = {1: "OKP", 2: "EC2", 3: "RSA", 4: "Symmetric"}
_MIN_RSA_BITS: Final = 2048
_MAX_KEY_BYTES: Final = 16_384
_MAX_KEY_SET_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerificationKey:
    """A key to verify signatures or MACs with.

    Attributes:
        kind: `EC`, `OKP`, `RSA` or `secret`.
        curve: `P-256`, `P-384`, `P-521`, `Ed25519`, `Ed448`, or empty.
        key: The public key for `cryptography`; None for a secret.
        secret: The shared secret; empty for a public key.
    """

    kind: str
    curve: str
    key: PublicKey | None
    secret: bytes = field(default=b"", repr=False)

    def __str__(self) -> str:
        """Return what kind of key this is, as a check prints it."""
        if self.kind == "secret":
            return f"a shared secret of {len(self.secret)} bytes"
        if self.kind == "RSA":
            return f"an RSA key of {self.key.key_size} bits"  # type: ignore[union-attr]
        return f"{'an' if self.kind == 'EC' else 'a'} {self.kind} key on {self.curve}"

    def point(self) -> bytes:
        """Return 04 ‖ x ‖ y of a key on a NIST curve, empty for any other key."""
        if self.kind != "EC":
            return b""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        assert self.key is not None
        return self.key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)

    def spki(self) -> bytes:
        """Return the key as a DER SubjectPublicKeyInfo, by which two records of it compare.

        Raises:
            UsageError: If it is a shared secret.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        if self.key is None:
            raise UsageError("a shared secret has no public form", source="key")
        return self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def pem(self) -> str:
        """Return the key as PEM text.

        Raises:
            UsageError: If it is a shared secret.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        if self.key is None:
            raise UsageError("a shared secret has no public form", source="key")
        form = PublicFormat.SubjectPublicKeyInfo
        return self.key.public_bytes(Encoding.PEM, form).decode("ascii")

    def instance_id(self) -> bytes:
        """Return 01 ‖ SHA-256 of what identifies the key: its point, or the secret itself.

        Source: TF-M initial attestation, which derives the PSA instance ID so; RFC 9783
        section 4.2.1 recommends a hash of the key.
        """
        return b"\x01" + hashlib.sha256(self.point() or self.secret).digest()


def read_key(data: bytes, *, source: str = "key") -> VerificationKey:
    """Return a public key in PEM, DER (SubjectPublicKeyInfo), JWK or COSE_Key form.

    A private key in PEM or JWK gives its public half. A JWK or COSE_Key may hold a shared secret.

    Raises:
        FormatError: The bytes are none of these, a certificate, or a key that is too weak.
    """
    try:
        if len(data) > _MAX_KEY_BYTES:
            raise FormatError(f"{len(data)} bytes are no key")
        text = data.lstrip()
        if text[:11] == b"-----BEGIN ":
            return _from_pem(text)
        if text[:1] == b"{":
            return _from_jwk(_json_object(text))
        if data[:1] == b"\x30":
            return _from_der(data)
        return key_from_cose(_cose_key_map(data))
    except FormatError as error:
        error.source = source
        raise


def read_key_set(data: bytes, *, source: str = "key") -> dict[str, VerificationKey]:
    """Return one key or several, by their names: what `read_key` reads, a JWK set, or discovery.

    Discovery is what a verifier answers at `/.well-known/veraison/verification`: its key, and in
    `ear-verification-keys` all that it ever signed with. The first is the one that signs now.

    Raises:
        FormatError: The bytes are none of these, or hold no key.
    """
    text = data.lstrip()
    if text[:1] != b"{" or len(data) > _MAX_KEY_SET_BYTES:
        return {"": read_key(data, source=source)}
    try:
        value = _json_object(text)
        listed = value.get("ear-verification-keys", value)
        held = listed.get("keys") if isinstance(listed, Mapping) else None
        first = [value["ear-verification-key"]] if "ear-verification-key" in value else []
        if held is None and not first:
            return {"": _from_jwk(value)}
        if not isinstance(held or [], list) or not (jwks := [*first, *(held or [])]):
            raise FormatError("a set of keys that holds none")
        if not all(isinstance(jwk, Mapping) for jwk in jwks):
            raise FormatError("a key of the set is no JSON object")
        return {str(jwk.get("kid", index)): _from_jwk(jwk) for index, jwk in enumerate(jwks)}
    except FormatError as error:
        error.source = source
        raise


def read_private_key(
    data: bytes, *, source: str = "key", curve: str | None = None
) -> EllipticCurvePrivateKey:
    """Return an ECDSA private key in PEM without a password.

    Args:
        data: The PEM.
        source: Where it is from, for errors.
        curve: The curve it must be on, such as `P-256`.

    Raises:
        FormatError: The bytes are none, or one on another curve.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FormatError("not a private key in PEM without a password", source=source) from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise FormatError("not an ECDSA key", source=source)
    if curve is not None and _CRYPTOGRAPHY_CURVES.get(key.curve.name) != curve:
        raise FormatError(f"is no key on {curve}", source=source)
    return key


def secret_key(secret: bytes) -> VerificationKey:
    """Return a shared secret as a key for MACs."""
    return VerificationKey(kind="secret", curve="", key=None, secret=secret)


def wrap_public_key(key: Any) -> VerificationKey:
    """Return a key object of `cryptography` as a verification key.

    Raises:
        FormatError: No ECDSA key on a NIST curve, EdDSA key, or RSA key of at least 2048 bits.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if isinstance(key, EllipticCurvePublicKey):
        curve = _CRYPTOGRAPHY_CURVES.get(key.curve.name)
        if curve is None:
            raise FormatError(f"no signature here uses the curve {key.curve.name}")
        return VerificationKey(kind="EC", curve=curve, key=key)
    if isinstance(key, Ed25519PublicKey | Ed448PublicKey):
        name = "Ed25519" if isinstance(key, Ed25519PublicKey) else "Ed448"
        return VerificationKey(kind="OKP", curve=name, key=key)
    if isinstance(key, RSAPublicKey):
        if key.key_size < _MIN_RSA_BITS:
            raise FormatError(f"an RSA key of {key.key_size} bits is too weak")
        return VerificationKey(kind="RSA", curve="", key=key)
    raise FormatError(f"a {type(key).__name__} verifies no signature here")


def key_from_cose(value: Any) -> VerificationKey:
    """Return the key in a decoded COSE_Key.

    Raises:
        FormatError: It lacks a part, or its point is not on its curve.
    """
    if not isinstance(value, Mapping):
        raise FormatError("neither PEM, DER, JWK nor a COSE_Key")
    numbers = [held if type(held := value.get(key)) is int else 0 for key in (1, -1)]
    kind = _COSE_KEY_TYPES.get(numbers[0], "")
    curve = _COSE_CURVES.get(numbers[1], "") if kind in ("EC2", "OKP") else ""
    if kind == "EC2" and curve in CURVE_BYTES:
        x, y = value.get(-2), value.get(-3)
        if not isinstance(x, bytes) or not isinstance(y, bytes):
            raise FormatError("a COSE_Key on a NIST curve needs both coordinates as byte strings")
        return _ec_key(curve, x, y)
    if kind == "OKP" and curve.startswith("Ed"):
        return _ed_key(curve, _bytes_of(value.get(-2), "x"))
    if kind == "RSA":
        n, e = _bytes_of(value.get(-1), "n"), _bytes_of(value.get(-2), "e")
        return _rsa_key(int.from_bytes(n, "big"), int.from_bytes(e, "big"))
    if kind == "Symmetric":
        return secret_key(_bytes_of(value.get(-1), "k"))
    raise FormatError(f"a COSE_Key of type {value.get(1)!r} and curve {value.get(-1)!r} is unknown")


def raw_point_key(data: bytes, *, source: str = "key") -> VerificationKey:
    """Return the key in an uncompressed point 04 ‖ x ‖ y, whose length tells the curve.

    Raises:
        FormatError: The length fits no curve or the point is not on it.
    """
    for curve, size in CURVE_BYTES.items():
        if len(data) == 1 + 2 * size and data[0] == 4:
            return _ec_key(curve, data[1 : 1 + size], data[1 + size :])
    raise FormatError("not an uncompressed point on P-256, P-384 or P-521", source=source)


def der_signature(value: bytes) -> bytes:
    """Return r ‖ s, each half of the value, in the form `cryptography` verifies."""
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    half = len(value) // 2
    halves = (int.from_bytes(value[:half], "big"), int.from_bytes(value[half:], "big"))
    return encode_dss_signature(*halves)


def raw_signature(der: bytes, *, curve: str = "P-256") -> bytes:
    """Return r ‖ s at the curve's full length, as COSE and JOSE want it, of a DER signature."""
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    size = CURVE_BYTES[curve]
    r, s = decode_dss_signature(der)
    return r.to_bytes(size, "big") + s.to_bytes(size, "big")


def _cose_key_map(data: bytes) -> Any:
    """Return what CBOR holds; what is no CBOR either is no key in any form that is read."""
    if not data:
        raise FormatError("is empty, and so no key")
    try:
        return read_cbor(data)
    except FormatError as error:
        at = f" at offset {error.offset}" if error.offset is not None else ""
        reason = f"neither PEM, DER, JWK nor a COSE_Key (as CBOR: {error.reason}{at})"
        raise FormatError(reason) from None


def _from_pem(data: bytes) -> VerificationKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from cryptography.hazmat.primitives.serialization import load_pem_public_key as load_public

    if b"-----BEGIN CERTIFICATE-----" in data:
        raise FormatError(
            "this is a certificate and not a key",
            hint="Check its chain first, then give the key it certifies",
        )
    try:
        if b"PRIVATE KEY-----" in data:
            return wrap_public_key(load_pem_private_key(data, password=None).public_key())
        return wrap_public_key(load_public(data))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FormatError("not a public key in PEM") from None


def _from_der(data: bytes) -> VerificationKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        return wrap_public_key(load_der_public_key(data))
    except (ValueError, UnsupportedAlgorithm):
        raise FormatError("not a public key in DER (SubjectPublicKeyInfo)") from None


def _from_jwk(value: Mapping[str, Any]) -> VerificationKey:
    kind, curve = value.get("kty"), str(value.get("crv", ""))
    if kind == "EC" and curve in CURVE_BYTES:
        return _ec_key(curve, _base64url(value, "x"), _base64url(value, "y"))
    if kind == "OKP" and curve in ("Ed25519", "Ed448"):
        return _ed_key(curve, _base64url(value, "x"))
    if kind == "RSA":
        numbers = [int.from_bytes(_base64url(value, name), "big") for name in ("n", "e")]
        return _rsa_key(*numbers)
    if kind == "oct":
        return secret_key(_base64url(value, "k"))
    if kind is None:
        raise FormatError("not a JWK: it has no 'kty'")
    raise FormatError(f"a JWK of type {kind!r} and curve {curve!r} is unknown")


def _json_object(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise FormatError("not a JWK: no JSON object")
    return value


def _base64url(value: Mapping[str, Any], name: str) -> bytes:
    text = value.get(name)
    if not isinstance(text, str):
        raise FormatError(f"the JWK has no {name!r}")
    return decode_base64(text, field=f"{name!r} of the JWK")


def _bytes_of(value: Any, name: str) -> bytes:
    if not isinstance(value, bytes):
        raise FormatError(f"{name!r} of the COSE_Key is not a byte string")
    return value


def _ec_key(curve: str, x: bytes, y: bytes) -> VerificationKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    size = CURVE_BYTES[curve]
    if len(x) != size or len(y) != size:
        reason = f"the coordinates have {len(x)} and {len(y)} bytes, and {curve} has {size}"
        raise FormatError(reason)
    curves: dict[str, Callable[[], EllipticCurve]] = {
        "P-256": ec.SECP256R1,
        "P-384": ec.SECP384R1,
        "P-521": ec.SECP521R1,
    }
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(curves[curve](), b"\x04" + x + y)
    except ValueError:
        raise FormatError(f"the point is not on {curve}") from None
    return VerificationKey(kind="EC", curve=curve, key=key)


def _ed_key(curve: str, x: bytes) -> VerificationKey:
    from cryptography.hazmat.primitives.asymmetric.ed448 import Ed448PublicKey
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    kinds: dict[str, Callable[[bytes], Any]] = {
        "Ed25519": Ed25519PublicKey.from_public_bytes,
        "Ed448": Ed448PublicKey.from_public_bytes,
    }
    try:
        return wrap_public_key(kinds[curve](x))
    except ValueError:
        raise FormatError(f"not a key on {curve}") from None


def _rsa_key(n: int, e: int) -> VerificationKey:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers

    try:
        return wrap_public_key(RSAPublicNumbers(e, n).public_key())
    except ValueError as error:
        raise FormatError(f"not a usable RSA key ({error})") from None
