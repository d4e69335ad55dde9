"""Signed policies: DSSE envelopes, as keylime signs its runtime policies.

Source: secure-systems-lab/dsse, protocol.md and envelope.md.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from excise.errors import FormatError

DSSE_PAYLOAD_TYPE: Final = "application/vnd.keylime+json"


def open_envelope(
    envelope: dict[str, Any], *, signing_key: bytes | None
) -> tuple[bytes, str | None]:
    """Return an envelope's payload, and a note when its signature was not checked.

    Args:
        envelope: The envelope's members.
        signing_key: Public key or certificate in PEM or DER that must have signed it.

    Raises:
        FormatError: It is no envelope of a policy, or no signature is by the given key.
    """
    kind = envelope.get("payloadType")
    if kind != DSSE_PAYLOAD_TYPE:
        raise FormatError(f"holds {kind!r}, not {DSSE_PAYLOAD_TYPE}", field="payloadType")
    payload = _decode(envelope.get("payload"), "payload")
    entries = envelope.get("signatures")
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise FormatError("not a list of signatures", field="signatures")
    if signing_key is None:
        return payload, "the policy is signed, and no key was given to check the signature with"
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
    signatures = [
        _decode(entry.get("sig"), f"signatures[{number}].sig")
        for number, entry in enumerate(entries)
    ]
    if not any(_holds(signed, signature, signing_key) for signature in signatures):
        raise FormatError("no signature is by the given key", field="signatures")
    return payload, None


def _decode(value: object, field: str) -> bytes:
    if isinstance(value, str):
        for alphabet in (b"+/", b"-_"):
            try:
                return base64.b64decode(value, altchars=alphabet, validate=True)
            except (ValueError, binascii.Error):
                continue
    raise FormatError("not Base64", field=field)


def _holds(signed: bytes, signature: bytes, key: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.hashes import SHA256

    from excise.evidence.attestation_key import read_attestation_key

    public = read_attestation_key(key, source="signing key").key
    try:
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(signature, signed, ec.ECDSA(SHA256()))
        else:
            public.verify(signature, signed, padding.PKCS1v15(), SHA256())
    except InvalidSignature:
        return False
    return True
