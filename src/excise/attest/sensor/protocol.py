"""What a sensor and its verifier say to each other.

    POST /sensor/v1/sessions                      → 201 Opened
    POST /sensor/v1/sessions/{session}/evidence   SensorEvidence → 200 Answer
    GET  /sensor/v1/transactions/{transaction}    → 200 the result; EAR or a page by Accept

A session is used once. A verifier whose list for the sensor's pseudonym ends elsewhere than where
the message begins answers 409, with the line `known_list_end=OFFSET` in the problem's
`differences`: the sensor sends again from there, in a new session.
"""

from __future__ import annotations

import binascii
from typing import Final, Literal

import msgspec

SESSIONS: Final = "/sensor/v1/sessions"
TRANSACTIONS: Final = "/sensor/v1/transactions"

PART_BYTES: Final = 1 << 20
"""Base64 that is decoded in one step; divisible by 4."""

Outcome = Literal["PASSED", "FAILED", "NOT_COVERED"]


class Opened(msgspec.Struct, frozen=True):
    """A session.

    Attributes:
        session: Its name; a secret of the two.
        nonce: What the signature must be over, beside the message.
        lifetime_s: Seconds until it expires.
        basename: What the sensor's pseudonym is made of; None: stay anonymous, send whole lists.
    """

    session: str
    nonce: bytes
    lifetime_s: float
    basename: bytes | None = None


class SensorEvidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message as `SensorMessage.to_bytes` gives it, and its DAA signature.

    Attributes:
        message: The message.
        signature: Over it and the session's nonce.
        attest: TPMS_ATTEST, where the signature is the TPM's quote of the message's PCRs.
    """

    message: bytes
    signature: bytes
    attest: bytes | None = None


class _Unread(SensorEvidence, frozen=True, forbid_unknown_fields=True):
    """Evidence whose message is still base64."""

    message: msgspec.Raw


def decode_evidence(body: bytes) -> SensorEvidence:
    """Return evidence from JSON, its message by parts, so that other threads go on meanwhile.

    Raises:
        DecodeError: It is no such JSON.
    """
    read = msgspec.json.decode(body, type=_Unread)
    return SensorEvidence(
        message=_decode_parts(read.message), signature=read.signature, attest=read.attest
    )


def _decode_parts(text: msgspec.Raw) -> bytes:
    view = memoryview(text)
    if view[0] != ord('"'):
        return msgspec.json.decode(text, type=bytes)  # which says what it is instead
    parts = []
    for at in range(1, len(view) - 1, PART_BYTES):
        part = bytes(view[at : min(at + PART_BYTES, len(view) - 1)])
        last = at + PART_BYTES >= len(view) - 1
        if b"\\" in part or (b"=" in part and not last):  # an escape, or padding before the end
            return msgspec.json.decode(text, type=bytes)
        try:
            parts.append(binascii.a2b_base64(part, strict_mode=True))
        except binascii.Error:
            reason = "Invalid base64 encoded string - at `$.message`"
            raise msgspec.ValidationError(reason) from None
    return b"".join(parts)


class Answer(msgspec.Struct, frozen=True):
    """What became of a transaction; it is stored when this is sent.

    Attributes:
        transaction: Name under which the result can be asked for again.
        outcome: PASSED: accepted. FAILED: refused. NOT_COVERED: what was sent cannot tell.
        reasons: Why, one sentence each, for an outcome other than PASSED.
        list_end: Offset in the whole list up to which the verifier has the entries.
    """

    transaction: str
    outcome: Outcome
    reasons: list[str] = []
    list_end: int = 0
