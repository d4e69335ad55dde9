"""Keys, credentials and signatures of ECDAA, in the byte formats of xaptum/ecdaa 1.x.

Numbers are 32 bytes, points of G1 65 and of G2 129; structures are fields one after the other.
Parsed is not verified, but every point is on its curve, of order n and not the identity, every
number below the group order, and every structure exactly as long as it must be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from excise.errors import FormatError
from excise.evidence.daa.curve import (
    G1,
    G1_BYTES,
    G2,
    G2_BYTES,
    SCALAR_BYTES,
    decode_g1,
    decode_g2,
    decode_scalar,
    encode_g1,
    encode_g2,
    encode_scalar,
)


class _Reader:
    """Fields of fixed size in order; a fault names the structure and the field."""

    def __init__(self, data: bytes, sizes: tuple[int, ...], structure: str, source: str | None):
        self._structure, self._source = structure, source
        if len(data) not in sizes:
            expected = " or ".join(str(size) for size in sizes)
            raise FormatError(
                f"{len(data)} bytes; a {structure} has {expected}", source=source, field=structure
            )
        self._data, self._position = data, 0

    def _take(self, size: int, name: str) -> tuple[bytes, str]:
        start = self._position
        self._position += size
        return self._data[start : self._position], f"{self._structure}.{name}"

    def _located(self, error: FormatError, size: int) -> FormatError:
        error.source, error.offset = self._source, self._position - size
        return error

    def scalar(self, name: str, *, allow_zero: bool = False) -> int:
        data, field = self._take(SCALAR_BYTES, name)
        try:
            return decode_scalar(data, field=field, allow_zero=allow_zero)
        except FormatError as error:
            raise self._located(error, SCALAR_BYTES) from None

    def g1(self, name: str) -> G1:
        data, field = self._take(G1_BYTES, name)
        try:
            return decode_g1(data, field=field)
        except FormatError as error:
            raise self._located(error, G1_BYTES) from None

    def g2(self, name: str) -> G2:
        data, field = self._take(G2_BYTES, name)
        try:
            return decode_g2(data, field=field)
        except FormatError as error:
            raise self._located(error, G2_BYTES) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPublicKey:
    """What verifies a group's signatures: X = xP₂ and Y = yP₂."""

    SIZE_BYTES: ClassVar[int] = 258
    x: G2
    y: G2

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the key in X ‖ Y.

        Raises:
            FormatError: Not such a key.
        """
        reader = _Reader(data, (cls.SIZE_BYTES,), "group public key", source)
        return cls(x=reader.g2("X"), y=reader.g2("Y"))

    @property
    def group(self) -> GroupPublicKey:
        """Return the key itself: by this name an issuer's key has its group's."""
        return self

    def to_bytes(self) -> bytes:
        """Return X ‖ Y."""
        return encode_g2(self.x) + encode_g2(self.y)


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuerPublicKey:
    """A group key with the issuer's proof that it knows x and y."""

    SIZE_BYTES: ClassVar[int] = 354
    group: GroupPublicKey
    c: int
    sx: int
    sy: int

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the key in X ‖ Y ‖ c ‖ sx ‖ sy, its proof not checked.

        Raises:
            FormatError: Not such a key.
        """
        reader = _Reader(data, (cls.SIZE_BYTES,), "issuer public key", source)
        group = GroupPublicKey(x=reader.g2("X"), y=reader.g2("Y"))
        return cls(
            group=group,
            c=reader.scalar("c"),
            sx=reader.scalar("sx", allow_zero=True),
            sy=reader.scalar("sy", allow_zero=True),
        )

    def to_bytes(self) -> bytes:
        """Return X ‖ Y ‖ c ‖ sx ‖ sy."""
        numbers = (self.c, self.sx, self.sy)
        return self.group.to_bytes() + b"".join(encode_scalar(number) for number in numbers)


def read_group_key(data: bytes, *, source: str | None = None) -> GroupPublicKey | IssuerPublicKey:
    """Return a group or an issuer public key, which differ in their length.

    Raises:
        FormatError: Neither.
    """
    if len(data) == GroupPublicKey.SIZE_BYTES:
        return GroupPublicKey.from_bytes(data, source=source)
    if len(data) == IssuerPublicKey.SIZE_BYTES:
        return IssuerPublicKey.from_bytes(data, source=source)
    raise FormatError(
        f"{len(data)} bytes; a group public key has {GroupPublicKey.SIZE_BYTES} and an issuer "
        f"public key {IssuerPublicKey.SIZE_BYTES}",
        source=source,
        field="group public key",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberPublicKey:
    """A member's key Q = sk·P₁ with its proof over the issuer's nonce."""

    SIZE_BYTES: ClassVar[int] = 161
    q: G1
    c: int
    s: int
    nonce: bytes

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the key in Q ‖ c ‖ s ‖ N, its proof not checked.

        Raises:
            FormatError: Not such a key.
        """
        reader = _Reader(data, (cls.SIZE_BYTES,), "member public key", source)
        return cls(
            q=reader.g1("Q"),
            c=reader.scalar("c"),
            s=reader.scalar("s", allow_zero=True),
            nonce=encode_scalar(reader.scalar("N", allow_zero=True)),
        )

    def to_bytes(self) -> bytes:
        """Return Q ‖ c ‖ s ‖ N."""
        return encode_g1(self.q) + encode_scalar(self.c) + encode_scalar(self.s) + self.nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What an issuer gives a member: A = lP₁, B = yA, C = xA + lxyQ, D = lyQ."""

    SIZE_BYTES: ClassVar[int] = 260
    a: G1
    b: G1
    c: G1
    d: G1

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the credential in A ‖ B ‖ C ‖ D.

        Raises:
            FormatError: Not such a credential.
        """
        reader = _Reader(data, (cls.SIZE_BYTES,), "credential", source)
        return cls(a=reader.g1("A"), b=reader.g1("B"), c=reader.g1("C"), d=reader.g1("D"))

    def to_bytes(self) -> bytes:
        """Return A ‖ B ‖ C ‖ D."""
        return b"".join(encode_g1(point) for point in (self.a, self.b, self.c, self.d))


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialSignature:
    """The issuer's proof that B and D hide the same number."""

    SIZE_BYTES: ClassVar[int] = 64
    c: int
    s: int

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the proof in c ‖ s.

        Raises:
            FormatError: Not such a proof.
        """
        reader = _Reader(data, (cls.SIZE_BYTES,), "credential signature", source)
        return cls(c=reader.scalar("c"), s=reader.scalar("s", allow_zero=True))

    def to_bytes(self) -> bytes:
        """Return c ‖ s."""
        return encode_scalar(self.c) + encode_scalar(self.s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """A member's signature: a randomised credential and a proof of the key in it.

    Attributes:
        c: Challenge of the proof.
        s: Response of the proof.
        r: l·A.
        s_point: l·B, the proof's base.
        t: l·C.
        w: l·D, the proof's public key.
        nonce: N, 32 bytes.
        pseudonym: K = sk·H(basename) where it was signed with a basename.
    """

    SIZE_BYTES: ClassVar[int] = 356
    SIZE_WITH_PSEUDONYM_BYTES: ClassVar[int] = 421
    c: int
    s: int
    r: G1
    s_point: G1
    t: G1
    w: G1
    nonce: bytes
    pseudonym: G1 | None = None

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the signature in c ‖ s ‖ R ‖ S ‖ T ‖ W ‖ N, then ‖ K with a pseudonym.

        Raises:
            FormatError: Not such a signature.
        """
        sizes = (cls.SIZE_BYTES, cls.SIZE_WITH_PSEUDONYM_BYTES)
        reader = _Reader(data, sizes, "signature", source)
        return cls(
            c=reader.scalar("c"),
            s=reader.scalar("s", allow_zero=True),
            r=reader.g1("R"),
            s_point=reader.g1("S"),
            t=reader.g1("T"),
            w=reader.g1("W"),
            nonce=encode_scalar(reader.scalar("N", allow_zero=True)),
            pseudonym=reader.g1("K") if len(data) == cls.SIZE_WITH_PSEUDONYM_BYTES else None,
        )

    def to_bytes(self) -> bytes:
        """Return c ‖ s ‖ R ‖ S ‖ T ‖ W ‖ N, then ‖ K with a pseudonym."""
        points = (self.r, self.s_point, self.t, self.w)
        head = encode_scalar(self.c) + encode_scalar(self.s)
        body = b"".join(encode_g1(point) for point in points) + self.nonce
        return head + body + (encode_g1(self.pseudonym) if self.pseudonym is not None else b"")
