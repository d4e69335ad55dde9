"""The proofs of ECDAA, and the dialects in which TPMs make their part of them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from excise.evidence.daa.curve import (
    G1,
    GENERATOR_1,
    GENERATOR_2,
    add_g2,
    encode_g1,
    encode_g2,
    encode_scalar,
    multiply_g2,
    sum_of_multiples,
)
from excise.evidence.daa.field import Fp2, N, neg2
from excise.evidence.daa.hashing import basename_point, challenge_with_nonce, hash_to_scalar
from excise.evidence.daa.structures import (
    Credential,
    CredentialSignature,
    IssuerPublicKey,
    MemberPublicKey,
)
from excise.evidence.tpm_structures import TPM_GENERATED_VALUE


class Dialect(StrEnum):
    """How a signer makes the challenge c out of the digest c' and a nonce N.

    Source: rules read off signatures of real TPMs in crocs-muni/tpmscan-dataset.
    """

    HASHED_NONCE = "hashed nonce"
    """c = H(N ‖ c'): the TPM library specification today, and software."""
    ECHOED_DIGEST = "echoed digest"
    """c = c', and N repeats it: older firmware of Infineon, Intel, Nuvoton and ST."""
    OWN_CHALLENGE = "own challenge"
    """c = N, of the TPM's own making (Nuvoton 7.2.0.x): bound to no message, so that anybody can
    make such a signature; refused."""


QUOTE_PREFIX: Final = TPM_GENERATED_VALUE.to_bytes(4, "big")
_QUOTE_HASH_BYTES: Final = 30
"""With the prefix, 34 bytes: what fits the qualifying data of a TPM that knows SHA-256 alone."""

VERIFIABLE: Final = frozenset({Dialect.HASHED_NONCE, Dialect.ECHOED_DIGEST})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """What became of a proof.

    Attributes:
        dialect: The rule its challenge follows, or None when it follows none.
    """

    dialect: Dialect | None

    @property
    def holds(self) -> bool:
        """Return whether the proof binds the key to the message."""
        return self.dialect in VERIFIABLE


def dialect_of(*, c: int, nonce: bytes, digest: int) -> Dialect | None:
    """Return the rule by which a challenge follows from a digest, or None.

    Args:
        c: The challenge with which the equation of the proof holds.
        nonce: N of the signature, 32 bytes.
        digest: c'.
    """
    if c == challenge_with_nonce(nonce, digest):
        return Dialect.HASHED_NONCE
    if encode_scalar(c) != nonce:
        return None
    return Dialect.ECHOED_DIGEST if c == digest else Dialect.OWN_CHALLENGE


def proof_preimage(
    *,
    commitment: G1,
    base: G1,
    public: G1,
    message: bytes,
    basename: tuple[bytes, G1, G1, G1] | None = None,
) -> bytes:
    """Return R ‖ P₁ ‖ Q [‖ L ‖ P₂ ‖ K ‖ basename] ‖ message, of which c' is the hash.

    Args:
        commitment: R = k·P₁.
        base: P₁.
        public: Q = sk·P₁.
        message: What is signed.
        basename: The basename, L = k·P₂, its point P₂, and the pseudonym K = sk·P₂.
    """
    parts = [encode_g1(commitment), encode_g1(base), encode_g1(public)]
    if basename is not None:
        name, second, point, pseudonym = basename
        parts += [encode_g1(second), encode_g1(point), encode_g1(pseudonym), name]
    return b"".join((*parts, message))


def quote_data(preimage: bytes) -> bytes:
    """Return the qualifying data that binds a TPM's quote to what a proof is over.

    It begins like a structure of the TPM's own. Without that, a host could have the TPM hash it
    together with the digest of any structure (TPM2_Hash gives a ticket for data that does not begin
    so), and have that signed as if it were a quote: with ECDAA, what TPM2_Quote signs is no more
    than H(qualifying data ‖ H(TPMS_ATTEST)).
    """
    return QUOTE_PREFIX + hashlib.sha256(preimage).digest()[:_QUOTE_HASH_BYTES]


def quote_digest(preimage: bytes, attest: bytes) -> int:
    """Return the digest a TPM signs for a quote with ECDAA, modulo n."""
    return hash_to_scalar(quote_data(preimage), hashlib.sha256(attest).digest())


def check_proof(
    *,
    base: G1,
    public: G1,
    c: int,
    s: int,
    nonce: bytes,
    message: bytes,
    basename: bytes | None = None,
    pseudonym: G1 | None = None,
    attest: bytes | None = None,
) -> ProofResult:
    """Return whether c, s and N prove knowledge of sk with Q = sk·P₁ and K = sk·H(basename).

    Args:
        base: P₁.
        public: Q.
        c: Challenge.
        s: Response.
        nonce: N, 32 bytes.
        message: What was signed.
        basename: The basename it was signed with; goes with a pseudonym.
        pseudonym: K.
        attest: TPMS_ATTEST of a quote that carries the proof; None for a plain signature.

    Raises:
        UsageError: An empty basename.
    """
    none = ProofResult(dialect=None)
    commitment = sum_of_multiples([(base, s), (public, N - c)])
    if commitment is None or (basename is None) != (pseudonym is None):
        return none
    named = None
    if basename is not None and pseudonym is not None:
        point = basename_point(basename).point
        second = sum_of_multiples([(point, s), (pseudonym, N - c)])
        if second is None:
            return none
        named = (basename, second, point, pseudonym)
    preimage = proof_preimage(
        commitment=commitment, base=base, public=public, message=message, basename=named
    )
    digest = hash_to_scalar(preimage) if attest is None else quote_digest(preimage, attest)
    return ProofResult(dialect=dialect_of(c=c, nonce=nonce, digest=digest))


def check_member_key(key: MemberPublicKey, *, nonce: bytes) -> ProofResult:
    """Return whether a member's key proves knowledge of its secret over the issuer's nonce."""
    return check_proof(
        base=GENERATOR_1, public=key.q, c=key.c, s=key.s, nonce=key.nonce, message=nonce
    )


def check_issuer_key(key: IssuerPublicKey) -> bool:
    """Return whether an issuer's key proves knowledge of both its secrets."""
    commitments = []
    for public, response in ((key.group.x, key.sx), (key.group.y, key.sy)):
        minus: tuple[Fp2, Fp2] = (public[0], neg2(public[1]))
        blind, own = multiply_g2(GENERATOR_2, response), multiply_g2(minus, key.c)
        total = add_g2(blind, own) if blind is not None and own is not None else None
        if total is None:
            return False
        commitments.append(encode_g2(total))
    points = (encode_g2(GENERATOR_2), encode_g2(key.group.x), encode_g2(key.group.y))
    return key.c == hash_to_scalar(*commitments, *points)


def check_credential_signature(
    credential: Credential, signature: CredentialSignature, *, member: G1
) -> bool:
    """Return whether the issuer proves that B = ly·P₁ and D = ly·Q for one number."""
    c, s = signature.c, signature.s
    first = sum_of_multiples([(GENERATOR_1, s), (credential.b, N - c)])
    second = sum_of_multiples([(member, s), (credential.d, N - c)])
    if first is None or second is None:
        return False
    points = (first, second, GENERATOR_1, credential.b, member, credential.d)
    return c == hash_to_scalar(*(encode_g1(point) for point in points))
