"""The hashes of ECDAA: challenges, points of basenames, and messages bound to their purpose.

Every part of a challenge is of fixed size but the basename and the message at its end, which
xaptum's format does not set apart; `framed_message` gives the message a form that does.

Source: FIDO ECDAA Algorithm v1.1; Camenisch, Chen, Drijvers, Lehmann, Novick, Urian, One TPM to
Bind Them All (IEEE S&P 2017, eprint 2017/639) for the nonce.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from excise.errors import FormatError, UsageError
from excise.evidence.daa.curve import G1, encode_scalar, lift_x
from excise.evidence.daa.field import N, integer

BASENAME_ATTEMPTS: Final = 232
_DOMAIN: Final = b"excise daa message 1"


def hash_to_scalar(*parts: bytes) -> int:
    """Return SHA-256 over the parts, one after the other, modulo the group order."""
    return integer(int.from_bytes(hashlib.sha256(b"".join(parts)).digest(), "big") % int(N))


def challenge_with_nonce(nonce: bytes, digest: int) -> int:
    """Return c = H(nonce ‖ c'), modulo the group order.

    Args:
        nonce: As the signer hashed it: 32 bytes from software, without leading zero bytes from a
            TPM.
        digest: c', which is hashed as 32 bytes.
    """
    return hash_to_scalar(nonce, encode_scalar(digest))


@dataclass(frozen=True, slots=True, kw_only=True)
class BasenamePoint:
    """The point a basename is hashed to.

    Attributes:
        point: Its y is even.
        preimage: The counter and the basename, of which SHA-256 is the point's x: what a TPM takes
            as `s2` of TPM2_Commit.
        counter: How many values before gave no point.
    """

    point: G1
    preimage: bytes
    counter: int


def basename_point(basename: bytes) -> BasenamePoint:
    """Return the point of G1 a basename is hashed to, by trying counters.

    The counter is little-endian, as xaptum's library has it on the hosts it runs on, and the hash
    is reduced modulo the group order.

    Raises:
        UsageError: The basename is empty, which would be confused with none.
    """
    if not basename:
        raise UsageError("an empty basename", hint="Leave it out to sign without a pseudonym")
    for counter in range(BASENAME_ATTEMPTS):
        preimage = counter.to_bytes(4, "little") + basename
        point = lift_x(hash_to_scalar(preimage))
        if point is not None:
            return BasenamePoint(point=point, preimage=preimage, counter=counter)
    raise FormatError("no counter gives a point", field="basename")


def framed_message(*, purpose: str, nonce: bytes, payload: bytes) -> bytes:
    """Return the bytes to sign for a payload, bound to a purpose and a verifier's nonce.

    The form is a domain tag, then purpose, nonce and SHA-256 of the payload, each behind its length
    as four bytes: no two different inputs give the same bytes.

    Raises:
        UsageError: An empty purpose or nonce.
    """
    if not purpose or not nonce:
        raise UsageError("a message is signed for a purpose and a nonce, and one is empty")
    fields = (purpose.encode(), nonce, hashlib.sha256(payload).digest())
    return _DOMAIN + b"".join(len(field).to_bytes(4, "big") + field for field in fields)
