"""The verifier's signing keys: the newest signs, the retired ones stay known.

A key is rotated by writing a new one into the database; a running service takes it up within
seconds. Results name their key (`kid`), and discovery gives all keys, so that a result signed just
before a rotation can still be verified.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from excise.attest.verifier.records import Records
from excise.errors import FormatError
from excise.evidence.base64text import encode_base64url

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """A private key on P-256.

    Attributes:
        kid: Its JWK thumbprint.
        key: The key.
        retired_s: When another took its place; None while it signs.
    """

    kid: str
    key: EllipticCurvePrivateKey
    retired_s: float | None

    def jwk(self) -> dict[str, Any]:
        """Return the public half."""
        return {**_members(self.key), "alg": "ES256", "use": "sig", "kid": self.kid}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRing:
    """All keys, the one that signs first."""

    keys: tuple[SigningKey, ...]

    @property
    def current(self) -> SigningKey:
        """Return the key that signs."""
        return self.keys[0]


def load_ring(records: Records) -> KeyRing:
    """Return the keys in the database, with a new one when there is none."""
    if not any(stored.retired_s is None for stored in records.signing_keys()):
        rotate(records)
    return read_ring(records)


def read_ring(records: Records) -> KeyRing:
    """Return the keys in the database, the one that signs first."""
    stored = sorted(records.signing_keys(), key=lambda one: one.retired_s is not None)
    return KeyRing(
        keys=tuple(
            SigningKey(kid=one.kid, key=_load(one.pem), retired_s=one.retired_s) for one in stored
        )
    )


def rotate(records: Records, *, key: EllipticCurvePrivateKey | None = None) -> str:
    """Make a key the one that signs, and return its identifier.

    Args:
        records: Where keys are kept.
        key: The key; a new one when None.
    """
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = key or ec.generate_private_key(ec.SECP256R1())
    pem = made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode("ascii")
    kid = thumbprint(made)
    records.keep_key(kid, pem)
    return kid


def thumbprint(key: EllipticCurvePrivateKey) -> str:
    """Return the JWK thumbprint of a key's public half: RFC 7638."""
    members = _members(key)
    text = ",".join(f'"{name}":"{members[name]}"' for name in sorted(members))
    return encode_base64url(hashlib.sha256(f"{{{text}}}".encode()).digest())


def _members(key: EllipticCurvePrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    x, y = (encode_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}


def _load(pem: str) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(pem.encode("ascii"), password=None)
    if not isinstance(key, EllipticCurvePrivateKey) or key.curve.name != "secp256r1":
        raise FormatError("a signing key of the verifier is not on P-256", source="database")
    return key
