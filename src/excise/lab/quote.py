"""A quote from the guest's TPM without any TPM program in the guest.

The commands are fixed bytes made here; the guest's shell writes them to `/dev/tpm0` and brings the
answers back. The key is a primary key of the endorsement hierarchy, restricted to what the TPM
itself made. Source: TPM 2.0 Library, Part 3, TPM2_CreatePrimary and TPM2_Quote.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from excise.errors import FormatError, UsageError

if TYPE_CHECKING:
    from excise.evidence.quote import QuoteAppraisal

_TPM_ST_SESSIONS: Final = 0x8002
_TPM_RS_PW: Final = 0x40000009
_TPM_RH_ENDORSEMENT: Final = 0x4000000B
_TPM_CC_CREATE_PRIMARY: Final = 0x131
_TPM_CC_QUOTE: Final = 0x158
_TPM_ALG_NULL: Final = 0x0010
_TPM_ALG_SHA256: Final = 0x000B
_TPM_ALG_ECC: Final = 0x0023
_TPM_ALG_ECDSA: Final = 0x0018
_TPM_ECC_NIST_P256: Final = 0x0003
# fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, restricted, sign
_ATTRIBUTES: Final = 0x00050072
_FIRST_TRANSIENT: Final = 0x80000000
_HEADER_BYTES: Final = 10
_MAX_QUALIFYING_DATA_BYTES: Final = 34
QUOTE_NONCE: Final = "quote.nonce"
QUOTED_BANK: Final = "sha256"
QUOTED_PCRS: Final = tuple(range(11))

_SCRIPT: Final = """\
exec 3<>/dev/tpm0
q=${q%/*}
for c in create_primary quote; do
    cat $q/quote/$c >&3
    dd bs=4096 count=1 <&3 >$O/evidence/$c.response 2>/run/dd.err
done
exec 3>&-
"""


def _command(code: int, handle: int, parameters: bytes) -> bytes:
    session = struct.pack(">IHBH", _TPM_RS_PW, 0, 0, 0)
    body = struct.pack(">II", handle, len(session)) + session + parameters
    size = _HEADER_BYTES + len(body)
    return struct.pack(">HII", _TPM_ST_SESSIONS, size, code) + body


def _sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def quote_files(qualifying_data: bytes) -> dict[str, bytes]:
    """Return the files by which a guest asks its TPM for a quote over PCRs 0 to 10 of sha256.

    Args:
        qualifying_data: Bytes that the TPM signs along, 1 to 34 of them.

    Raises:
        UsageError: If there are none or too many.
    """
    if not 1 <= len(qualifying_data) <= _MAX_QUALIFYING_DATA_BYTES:
        raise UsageError(f"qualifying data must be 1 to {_MAX_QUALIFYING_DATA_BYTES} bytes")
    sensitive = _sized(_sized(b"") + _sized(b""))
    public = struct.pack(">HHI", _TPM_ALG_ECC, _TPM_ALG_SHA256, _ATTRIBUTES) + _sized(b"")
    public += struct.pack(">HHH", _TPM_ALG_NULL, _TPM_ALG_ECDSA, _TPM_ALG_SHA256)
    public += struct.pack(">HH", _TPM_ECC_NIST_P256, _TPM_ALG_NULL) + _sized(b"") + _sized(b"")
    create = sensitive + _sized(public) + _sized(b"") + struct.pack(">I", 0)
    bitmap = sum(1 << index for index in QUOTED_PCRS).to_bytes(3, "little")
    selection = struct.pack(">IHB", 1, _TPM_ALG_SHA256, len(bitmap)) + bitmap
    quote = _sized(qualifying_data) + struct.pack(">H", _TPM_ALG_NULL) + selection
    return {
        "lab/quote.sh": _SCRIPT.encode(),
        "lab/quote/create_primary": _command(_TPM_CC_CREATE_PRIMARY, _TPM_RH_ENDORSEMENT, create),
        "lab/quote/quote": _command(_TPM_CC_QUOTE, _FIRST_TRANSIENT, quote),
    }


def _parameters(response: bytes, *, source: str, handles: int) -> bytes:
    """Return the parameter area of a response.

    Raises:
        FormatError: If the TPM refused, or the response is cut off.
    """
    if len(response) < _HEADER_BYTES:
        raise FormatError("the TPM's answer is cut off", source=source)
    _, size, code = struct.unpack_from(">HII", response)
    if code:
        raise FormatError(f"the TPM refused with code {code:#x}", source=source)
    start = _HEADER_BYTES + 4 * handles
    if size != len(response) or size < start + 4:
        raise FormatError("the TPM's answer has a wrong size", source=source, offset=2)
    (length,) = struct.unpack_from(">I", response, start)
    area = response[start + 4 : start + 4 + length]
    if len(area) != length:
        raise FormatError("the TPM's answer is cut off", source=source, offset=start)
    return area


def _take_sized(area: bytes, *, source: str) -> tuple[bytes, bytes]:
    if len(area) < 2 or len(area) < 2 + struct.unpack_from(">H", area)[0]:
        raise FormatError("a sized field is cut off", source=source)
    end = 2 + struct.unpack_from(">H", area)[0]
    return area[:end], area[end:]


def read_quote(evidence: Mapping[str, bytes], *, qualifying_data: bytes) -> QuoteAppraisal:
    """Return every check of the quote among a guest's evidence, over its own PCRs 0 to 10.

    Raises:
        UsageError: If the guest brought back no quote.
        FormatError: If the TPM refused, or its answers cannot be read.
    """
    from excise.evidence.pcr import read_pcr_bytes
    from excise.evidence.quote import verify_quote

    names = ("create_primary.response", "quote.response", "pcrs.txt")
    for name in names:
        if name not in evidence:
            raise UsageError(
                f"the guest brought back no {name}", hint="Ask for a quote in TPM mode"
            )
    key, _ = _take_sized(
        _parameters(evidence[names[0]], source=names[0], handles=1), source=names[0]
    )
    attest, signature = _take_sized(
        _parameters(evidence[names[1]], source=names[1], handles=0), source=names[1]
    )
    pcrs = read_pcr_bytes(evidence[names[2]], source=names[2])
    return verify_quote(
        attest,
        signature,
        key,
        qualifying_data=qualifying_data,
        pcrs=pcrs.select(((QUOTED_BANK, QUOTED_PCRS),)),
    )
