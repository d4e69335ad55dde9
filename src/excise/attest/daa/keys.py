"""What a member key can do, wherever it lives, and how a member signs with it.

A key proves knowledge of its secret in one call, inside which the random number of the proof is
drawn, used once and forgotten: a number used for two challenges would give the secret away.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol, Self

from excise.errors import FormatError, Refused
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    DaaVerifier,
    Dialect,
    MemberPublicKey,
    Signature,
)
from excise.evidence.daa.curve import (
    G1,
    GENERATOR_1,
    decode_scalar,
    encode_scalar,
    multiply,
    multiply_each,
    random_scalar,
)
from excise.evidence.daa.field import N
from excise.evidence.daa.hashing import basename_point, challenge_with_nonce, hash_to_scalar
from excise.evidence.daa.schnorr import proof_preimage


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """A proof of knowledge of a member's secret key.

    Attributes:
        c: Challenge.
        s: Response.
        nonce: N, 32 bytes.
        pseudonym: K, with a basename.
        dialect: How the challenge was made.
        attempts: How often the key was asked.
    """

    c: int
    s: int
    nonce: bytes
    pseudonym: G1 | None = None
    dialect: Dialect = Dialect.HASHED_NONCE
    attempts: int = 1


class MemberKey(Protocol):
    """A member's secret key, in software or in a TPM."""

    @property
    def public(self) -> G1:
        """Q = sk·P₁."""

    def prove(
        self, *, base: G1, public: G1, message: bytes, basename: bytes | None = None
    ) -> Proof:
        """Return a proof that public = sk·base, bound to a message.

        Args:
            base: P₁ of the proof.
            public: sk·P₁.
            message: What is signed.
            basename: What the pseudonym is made of; None for none.
        """


class SoftwareKey:
    """A member's secret key in this process's memory.

    The arithmetic does not take constant time, so that whoever shares the processor may learn the
    key; a TPM is the place for keys that matter.

    Args:
        secret: sk, in 1..n−1.
    """

    def __init__(self, secret: int) -> None:
        self._secret = secret
        public = multiply(GENERATOR_1, secret)
        if public is None:
            raise FormatError("zero", field="member secret key")
        self._public = public

    @classmethod
    def generate(cls) -> Self:
        """Return a new random key."""
        return cls(random_scalar())

    @classmethod
    def from_bytes(cls, data: bytes, *, source: str | None = None) -> Self:
        """Return the key in 32 bytes, as xaptum's `sk.bin` has it.

        Raises:
            FormatError: Not such a key.
        """
        try:
            return cls(decode_scalar(data, field="member secret key"))
        except FormatError as error:
            error.source = source
            raise

    def to_bytes(self) -> bytes:
        """Return the secret key, 32 bytes."""
        return encode_scalar(self._secret)

    @property
    def public(self) -> G1:
        """Q = sk·P₁."""
        return self._public

    def prove(
        self, *, base: G1, public: G1, message: bytes, basename: bytes | None = None
    ) -> Proof:
        """Return a proof that public = sk·base; see `MemberKey.prove`."""
        k = random_scalar()
        commitment = _known(multiply(base, k))
        named, pseudonym = None, None
        if basename is not None:
            point = basename_point(basename).point
            pseudonym = _known(multiply(point, self._secret))
            named = (basename, _known(multiply(point, k)), point, pseudonym)
        digest = hash_to_scalar(
            proof_preimage(
                commitment=commitment, base=base, public=public, message=message, basename=named
            )
        )
        nonce = encode_scalar(secrets.randbelow(int(N)))
        c = challenge_with_nonce(nonce, digest)
        return Proof(c=c, s=(k + c * self._secret) % N, nonce=nonce, pseudonym=pseudonym)


def _known(point: G1 | None) -> G1:
    # A multiple of a point of prime order by a number in 1..n−1 is never the identity.
    if point is None:
        raise FormatError("the identity", field="multiple of a point")
    return point


def prove_member_key(key: MemberKey, *, nonce: bytes) -> MemberPublicKey:
    """Return the member's public key with its proof over the issuer's nonce."""
    proof = key.prove(base=GENERATOR_1, public=key.public, message=nonce)
    return MemberPublicKey(q=key.public, c=proof.c, s=proof.s, nonce=proof.nonce)


def accept_credential(
    verifier: DaaVerifier,
    credential: Credential,
    signature: CredentialSignature,
    *,
    member: G1,
) -> None:
    """Check a credential before it is kept: a wrong one would sign nothing that verifies.

    Args:
        verifier: Of the group.
        credential: What the issuer sent.
        signature: Its proof.
        member: Q of the member's key.

    Raises:
        Refused: It is not the issuer's, or for another key.
    """
    if not verifier.check_credential(credential, signature, member=member):
        raise Refused(
            "the credential is not of this issuer for this key",
            hint="Join again; check that the issuer's public key is the right one",
        )


def sign(
    key: MemberKey, credential: Credential, *, message: bytes, basename: bytes | None = None
) -> Signature:
    """Return a signature that no two of which can be linked, but by a common basename.

    Args:
        key: The member's key.
        credential: The credential for it.
        message: The bytes to sign; `framed_message` binds them to a purpose and a nonce.
        basename: What the pseudonym is made of; None for none.

    Raises:
        UsageError: An empty basename.
        HostError: The TPM refuses.
    """
    points = randomise(credential)
    proof = key.prove(base=points[1], public=points[3], message=message, basename=basename)
    return signature_of(points, proof)


def randomise(credential: Credential) -> tuple[G1, G1, G1, G1]:
    """Return R, S, T, W: the credential times a number that is used in one signature only."""
    points = (credential.a, credential.b, credential.c, credential.d)
    r, s_point, t, w = multiply_each(points, random_scalar())
    return r, s_point, t, w


def signature_of(points: tuple[G1, G1, G1, G1], proof: Proof) -> Signature:
    """Return the signature of R, S, T, W and the proof over them."""
    r, s_point, t, w = points
    return Signature(
        c=proof.c,
        s=proof.s,
        r=r,
        s_point=s_point,
        t=t,
        w=w,
        nonce=proof.nonce,
        pseudonym=proof.pseudonym,
    )
