"""The verifier's signing keys: the newest signs, the retired ones stay known.

A key is rotated by writing a new one into the database; a running service takes it up within
seconds. Results name their key (`kid`), and discovery gives all keys, so that a result signed just
before a rotation can still be verified.
"""

from __future__ import annotations

import hashlib
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from excise.attest.service.database import Cursor, open_database, shown_url
from excise.attest.verifier.records import Records
from excise.errors import FormatError, UsageError
from excise.evidence.base64text import encode_base64url
from excise.evidence.cose_key import read_private_key

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
            SigningKey(
                kid=one.kid,
                key=read_private_key(one.pem.encode(), source="signing_keys", curve="P-256"),
                retired_s=one.retired_s,
            )
            for one in stored
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


def require_keys(url: str) -> None:
    """Check that a database holds signing keys, and write nothing to what does not.

    Raises:
        UsageError: There is no such file.
        FormatError: It is no database of a verifier, or holds no key.
        HostError: It cannot be opened.
    """
    source = url.removeprefix("sqlite:")
    if "://" in url:
        with open_database(url) as opened:
            held = opened.run_now(_keys_in_postgres)
    else:
        if not Path(source).exists():
            raise UsageError(
                "is not there, so that no key of it can be rotated",
                source=source,
                hint="Name the --database of `excise verifier serve`",
            )
        held = _keys_in_sqlite(Path(source))
    if not held:
        raise FormatError(
            "is no database of a verifier with a signing key",
            source=shown_url(source),
            hint="Name the --database of `excise verifier serve`, which makes the first key",
        )


def _keys_in_postgres(cursor: Cursor) -> int:
    named = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'signing_keys'"
    if not cursor.execute(named).fetchone()[0]:
        return 0
    return int(cursor.execute("SELECT count(*) FROM signing_keys").fetchone()[0])


def _keys_in_sqlite(path: Path) -> int:
    if not path.is_file():
        return 0
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as opened:
            return int(opened.execute("SELECT count(*) FROM signing_keys").fetchone()[0])
    except sqlite3.Error as error:
        raise FormatError(
            f"is no database of a verifier ({error})",
            source=str(path),
            hint="Name the --database of `excise verifier serve`",
        ) from None


def thumbprint(key: EllipticCurvePrivateKey) -> str:
    """Return the JWK thumbprint of a key's public half: RFC 7638."""
    members = _members(key)
    text = ",".join(f'"{name}":"{members[name]}"' for name in sorted(members))
    return encode_base64url(hashlib.sha256(f"{{{text}}}".encode()).digest())


def _members(key: EllipticCurvePrivateKey) -> dict[str, str]:
    numbers = key.public_key().public_numbers()
    x, y = (encode_base64url(number.to_bytes(32, "big")) for number in (numbers.x, numbers.y))
    return {"crv": "P-256", "kty": "EC", "x": x, "y": y}
