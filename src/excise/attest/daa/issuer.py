"""The issuer of a DAA group: its keys, and the credentials it gives to members."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from excise.errors import FormatError, Refused
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    GroupPublicKey,
    IssuerPublicKey,
    MemberPublicKey,
    check_member_key,
)
from excise.evidence.daa.curve import (
    G1,
    G2,
    GENERATOR_1,
    GENERATOR_2,
    decode_scalar,
    encode_g1,
    encode_g2,
    encode_scalar,
    multiply,
    multiply_g2,
    random_scalar,
    sum_of_multiples,
)
from excise.evidence.daa.field import N
from excise.evidence.daa.hashing import hash_to_scalar


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class IssuerSecretKey:
    """x and y of a group. Whoever has them can admit anybody."""

    SIZE_BYTES: ClassVar[int] = 64
    x: int
    y: int

    @classmethod
    def generate(cls) -> Self:
        """Return new random secrets."""
        return cls(x=random_scalar(), y=random_scalar())

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the key in x ‖ y, as xaptum's `isk.bin` has it.

        Raises:
            FormatError: Not such a key.
        """
        if len(data) != cls.SIZE_BYTES:
            raise FormatError(
                f"{len(data)} bytes; an issuer secret key has {cls.SIZE_BYTES}", source=source
            )
        try:
            return cls(
                x=decode_scalar(data[:32], field="issuer secret key.x"),
                y=decode_scalar(data[32:], field="issuer secret key.y"),
            )
        except FormatError as error:
            error.source = source
            raise

    def to_bytes(self) -> bytes:
        """Return x ‖ y."""
        return encode_scalar(self.x) + encode_scalar(self.y)

    def public_key(self) -> IssuerPublicKey:
        """Return X and Y with a fresh proof that x and y are known."""
        group = GroupPublicKey(x=_in_g2(self.x), y=_in_g2(self.y))
        rx, ry = random_scalar(), random_scalar()
        points = (_in_g2(rx), _in_g2(ry), GENERATOR_2, group.x, group.y)
        c = hash_to_scalar(*(encode_g2(point) for point in points))
        return IssuerPublicKey(group=group, c=c, sx=(rx + c * self.x) % N, sy=(ry + c * self.y) % N)

    def issue(self, member: G1) -> tuple[Credential, CredentialSignature]:
        """Return a credential for a member's Q, and the proof that it is one.

        Whether to admit the member has been decided: see `admit`.

        Raises:
            Refused: If the key could only be made with the issuer's secrets.
        """
        blind = random_scalar()
        blind_y = blind * self.y % N
        a = _in_g1(GENERATOR_1, blind)
        b = _in_g1(GENERATOR_1, blind_y)
        d = _in_g1(member, blind_y)
        c = sum_of_multiples([(a, self.x), (d, self.x)])
        if c is None:
            # Q = −1/y·P₁ alone gives this, and only the issuer could have made it.
            raise Refused("the member's key is made from the issuer's secrets")
        r = random_scalar()
        points = (_in_g1(GENERATOR_1, r), _in_g1(member, r), GENERATOR_1, b, member, d)
        challenge = hash_to_scalar(*(encode_g1(point) for point in points))
        return (
            Credential(a=a, b=b, c=c, d=d),
            CredentialSignature(c=challenge, s=(r + challenge * blind_y) % N),
        )

    def admit(
        self, key: MemberPublicKey, *, nonce: bytes
    ) -> tuple[Credential, CredentialSignature]:
        """Return a credential for a member that proves its key over the issuer's nonce.

        Args:
            key: The member's public key.
            nonce: The nonce given to this member, and to no other.

        Raises:
            Refused: The proof does not hold.
        """
        if not check_member_key(key, nonce=nonce).holds:
            raise Refused(
                "the member's key does not prove its secret over this nonce",
                hint="Each join needs the nonce it was given",
            )
        return self.issue(key.q)


def _in_g1(point: G1, scalar: int) -> G1:
    product = multiply(point, scalar)
    if product is None:
        raise FormatError("the identity", field="multiple of a point")
    return product


def _in_g2(scalar: int) -> G2:
    product = multiply_g2(GENERATOR_2, scalar)
    if product is None:
        raise FormatError("the identity", field="multiple of a point")
    return product
