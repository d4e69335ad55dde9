"""TPM 2.0 structures a quote is made of: bytes in, typed values out, no judgement.

Parsed is not verified: nothing here says whether a value is acceptable. Readers refuse what cannot
be read, with the offset and the name the specification gives the field.

Source: TCG, Trusted Platform Module Library, Part 2: Structures (10.12 attestation, 11.3
signatures, 12.2 public areas).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from excise.errors import FormatError
from excise.evidence.pcr import ALGORITHM_BANKS, PcrSelection, bits_to_indices

TPM_GENERATED_VALUE: Final = 0xFF544347
TPM_ST_ATTEST_QUOTE: Final = 0x8018

ATTEST_TYPES: Final = {
    0x8014: "TPM_ST_ATTEST_NV",
    0x8015: "TPM_ST_ATTEST_COMMAND_AUDIT",
    0x8016: "TPM_ST_ATTEST_SESSION_AUDIT",
    0x8017: "TPM_ST_ATTEST_CERTIFY",
    0x8018: "TPM_ST_ATTEST_QUOTE",
    0x8019: "TPM_ST_ATTEST_TIME",
    0x801A: "TPM_ST_ATTEST_CREATION",
    0x801C: "TPM_ST_ATTEST_NV_DIGEST",
}

ALG_RSA: Final = 0x0001
ALG_NULL: Final = 0x0010
ALG_ECC: Final = 0x0023

SIGNATURE_SCHEMES: Final = {
    0x0005: "HMAC",
    0x0010: "NULL",
    0x0014: "RSASSA",
    0x0016: "RSAPSS",
    0x0018: "ECDSA",
    0x001A: "ECDAA",
    0x001B: "SM2",
    0x001C: "ECSCHNORR",
}
"""TPM_ALG_ID of each signature scheme."""

_RSA_SIGNATURES: Final = ("RSASSA", "RSAPSS")
_ECC_SIGNATURES: Final = ("ECDSA", "ECDAA", "SM2", "ECSCHNORR")

OBJECT_ATTRIBUTES: Final = {
    1: "fixedTPM",
    2: "stClear",
    4: "fixedParent",
    5: "sensitiveDataOrigin",
    6: "userWithAuth",
    7: "adminWithPolicy",
    8: "firmwareLimited",
    9: "svnLimited",
    10: "noDA",
    11: "encryptedDuplication",
    16: "restricted",
    17: "decrypt",
    18: "sign",
    19: "x509sign",
}
"""Name of each bit of TPMA_OBJECT."""

ECC_CURVES: Final = {
    0x0001: "secp192r1",
    0x0002: "secp224r1",
    0x0003: "secp256r1",
    0x0004: "secp384r1",
    0x0005: "secp521r1",
    0x0010: "bn_p256",
    0x0011: "bn_p638",
    0x0020: "sm2_p256",
}
"""TPM_ECC_CURVE by name (SEC 2 names where there is one)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockInfo:
    """TPMS_CLOCK_INFO.

    Attributes:
        clock_ms: Time the TPM has been powered, in milliseconds.
        reset_count: TPM resets (modulo 2^32, offset by a constant of the key when obfuscated).
        restart_count: TPM restarts and resumes since the last reset, likewise.
        safe: Whether no earlier clock value can have been higher.
    """

    clock_ms: int
    reset_count: int
    restart_count: int
    safe: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Attest:
    """TPMS_ATTEST, parsed and not verified.

    Attributes:
        raw: The bytes that were signed: all that was given, without a TPM2B size.
        magic: TPM_GENERATED_VALUE when a TPM made the structure.
        type: TPMI_ST_ATTEST.
        qualified_signer: Qualified name of the signing key.
        extra_data: What the caller of the TPM asked to have signed along.
        clock_info: Clock and counters.
        firmware_version: Vendor's number (offset by a constant of the key when obfuscated).
        pcr_select: Selected PCRs in the TPM's order; None when the type is not a quote.
        pcr_digest: Digest over the selected PCRs; None when the type is not a quote.
        trailing_bytes: Bytes after the structure; not counted for types other than a quote.
    """

    raw: bytes
    magic: int
    type: int
    qualified_signer: bytes
    extra_data: bytes
    clock_info: ClockInfo
    firmware_version: int
    pcr_select: PcrSelection | None
    pcr_digest: bytes | None
    trailing_bytes: int

    @property
    def type_name(self) -> str:
        """Return the specification's name of the type, or its number."""
        return ATTEST_TYPES.get(self.type, f"{self.type:#06x}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TpmSignature:
    """TPMT_SIGNATURE, or a signature without its TPM structure.

    Attributes:
        scheme: Name of the scheme; None when the form does not say it.
        hash_algorithm: Name of its hash; None when the form does not say it.
        rsa: Signature of an RSA scheme.
        r: First ECC value, as an integer.
        s: Second ECC value, as an integer.
        trailing_bytes: Bytes after the structure.
    """

    scheme: str | None
    hash_algorithm: str | None
    rsa: bytes | None = None
    r: int | None = None
    s: int | None = None
    trailing_bytes: int = 0


@dataclass(frozen=True, kw_only=True)  # no slots: its name is kept once it was asked for
class TpmPublic:
    """TPMT_PUBLIC of an RSA or ECC key.

    Attributes:
        raw: The TPMT_PUBLIC, without a TPM2B size.
        type: `RSA` or `ECC`.
        name_algorithm: Hash of the key's name, or None for TPM_ALG_NULL.
        attributes: Names of the set bits of TPMA_OBJECT.
        auth_policy: Digest of the policy that authorises its use; empty for none.
        scheme: Signature scheme the key is bound to, or None.
        scheme_hash: Hash of that scheme, or None.
        modulus: RSA modulus.
        exponent: RSA exponent.
        curve: ECC curve.
        x: ECC point.
        y: ECC point.
    """

    raw: bytes
    type: str
    name_algorithm: str | None
    attributes: frozenset[str]
    scheme: str | None
    scheme_hash: str | None
    modulus: int = 0
    exponent: int = 0
    curve: str = ""
    x: int = 0
    y: int = 0
    auth_policy: bytes = b""

    @cached_property
    def name(self) -> bytes | None:
        """Return the key's name: nameAlg ‖ H(TPMT_PUBLIC), or None without a name algorithm."""
        if self.name_algorithm is None:
            return None
        return _NAME_PREFIXES[self.name_algorithm] + digest_of(self.name_algorithm, self.raw)


_NAME_PREFIXES: Final = {
    bank: number.to_bytes(2, "big") for number, bank in ALGORITHM_BANKS.items()
}


def qualified_name(public: TpmPublic, parent: bytes) -> bytes | None:
    """Return a key's qualified name under a parent's qualified name or a hierarchy's handle.

    Source: TPM Library Part 1, "Names": QN = nameAlg ‖ H(QN of the parent ‖ name).
    """
    name = public.name
    if name is None or public.name_algorithm is None:
        return None
    return _NAME_PREFIXES[public.name_algorithm] + digest_of(public.name_algorithm, parent + name)


def digest_of(algorithm: str, data: bytes) -> bytes:
    """Return the digest of data under a TPM hash's name.

    Raises:
        FormatError: The OpenSSL of this Python lacks the hash.
    """
    name = {"sm3_256": "sm3"}.get(algorithm, algorithm)
    try:
        return hashlib.new(name, data).digest()
    except ValueError:
        raise FormatError(f"this Python's OpenSSL has no {algorithm}") from None


class _Reader:
    """Big-endian fields in order, each with its name."""

    def __init__(self, data: bytes, structure: str, *, base: int = 0) -> None:
        self._data = data
        self._structure = structure
        self._base = base
        self._position = 0

    @property
    def position(self) -> int:
        return self._position

    @property
    def left(self) -> int:
        return len(self._data) - self._position

    def take(self, size: int, field: str) -> bytes:
        if size > self.left:
            raise self.error(f"needs {size} bytes, {self.left} are left", field)
        start = self._position
        self._position += size
        return self._data[start : self._position]

    def number(self, size: int, field: str) -> int:
        return int.from_bytes(self.take(size, field), "big")

    def sized(self, field: str) -> bytes:
        return self.take(self.number(2, f"{field}.size"), field)

    def error(self, reason: str, field: str) -> FormatError:
        return FormatError(
            reason, offset=self._base + self._position, field=f"{self._structure}.{field}"
        )


def _unwrap(data: bytes) -> tuple[bytes, int]:
    """Return a structure without the TPM2B size in front of it, and how far it moved."""
    if len(data) >= 2 and int.from_bytes(data[:2], "big") == len(data) - 2:
        return data[2:], 2
    return data, 0


def parse_attest(data: bytes) -> Attest:
    """Return the fields of a TPMS_ATTEST or TPM2B_ATTEST.

    A wrong magic or another type than a quote is read as far as all types agree, since both are
    questions for the verifier.

    Raises:
        FormatError: The bytes end before the structure does, or a selection is impossible.
    """
    raw, base = _unwrap(data)
    reader = _Reader(raw, "TPMS_ATTEST", base=base)
    magic = reader.number(4, "magic")
    kind = reader.number(2, "type")
    signer = reader.sized("qualifiedSigner")
    extra_data = reader.sized("extraData")
    clock_ms = reader.number(8, "clockInfo.clock")
    reset_count = reader.number(4, "clockInfo.resetCount")
    restart_count = reader.number(4, "clockInfo.restartCount")
    safe = reader.number(1, "clockInfo.safe")
    if safe > 1:
        raise reader.error(f"{safe} is neither YES nor NO", "clockInfo.safe")
    firmware_version = reader.number(8, "firmwareVersion")
    selection: PcrSelection | None = None
    digest: bytes | None = None
    trailing = 0
    if kind == TPM_ST_ATTEST_QUOTE:
        selection = _pcr_selection(reader)
        digest = reader.sized("attested.quote.pcrDigest")
        trailing = reader.left
    return Attest(
        raw=raw,
        magic=magic,
        type=kind,
        qualified_signer=signer,
        extra_data=extra_data,
        clock_info=ClockInfo(
            clock_ms=clock_ms,
            reset_count=reset_count,
            restart_count=restart_count,
            safe=safe == 1,
        ),
        firmware_version=firmware_version,
        pcr_select=selection,
        pcr_digest=digest,
        trailing_bytes=trailing,
    )


def _pcr_selection(reader: _Reader) -> PcrSelection:
    field = "attested.quote.pcrSelect"
    count = reader.number(4, f"{field}.count")
    if count > 16:
        raise reader.error(f"{count} selections exceed 16", f"{field}.count")
    entries: list[tuple[str, tuple[int, ...]]] = []
    for _ in range(count):
        algorithm = reader.number(2, f"{field}.hash")
        size = reader.number(1, f"{field}.sizeofSelect")
        if size > 4:
            raise reader.error(f"sizeofSelect {size} exceeds 4", f"{field}.sizeofSelect")
        indices = bits_to_indices(reader.take(size, f"{field}.pcrSelect"))
        entries.append((ALGORITHM_BANKS.get(algorithm, f"{algorithm:#06x}"), indices))
    return tuple(entries)


_RSA_BYTES: Final = (128, 256, 384, 512)


def parse_signature(data: bytes) -> TpmSignature:
    """Return a TPMT_SIGNATURE, or what `tpm2_quote -f plain` writes (RSA bytes, or DER for ECDSA).

    Raises:
        FormatError: The bytes are neither.
    """
    if not data:
        raise FormatError("empty signature", offset=0, field="TPMT_SIGNATURE.sigAlg")
    scheme = SIGNATURE_SCHEMES.get(int.from_bytes(data[:2], "big"))
    # One plain signature in some thousands begins as a scheme does; its size is its modulus's.
    by_chance = len(data) in _RSA_BYTES and int.from_bytes(data[2:4], "big") not in ALGORITHM_BANKS
    if scheme is not None and not by_chance:
        return _tpmt_signature(data, scheme)
    return _plain_signature(data)


def _tpmt_signature(data: bytes, scheme: str) -> TpmSignature:
    reader = _Reader(data, "TPMT_SIGNATURE")
    reader.number(2, "sigAlg")
    if scheme == "NULL":
        return TpmSignature(scheme=scheme, hash_algorithm=None, trailing_bytes=reader.left)
    algorithm = reader.number(2, "hash")
    name = ALGORITHM_BANKS.get(algorithm, f"{algorithm:#06x}")
    if scheme in _RSA_SIGNATURES:
        rsa = reader.sized("sig")
        return TpmSignature(scheme=scheme, hash_algorithm=name, rsa=rsa, trailing_bytes=reader.left)
    if scheme in _ECC_SIGNATURES:
        r = int.from_bytes(reader.sized("signatureR"), "big")
        s = int.from_bytes(reader.sized("signatureS"), "big")
        return TpmSignature(
            scheme=scheme, hash_algorithm=name, r=r, s=s, trailing_bytes=reader.left
        )
    return TpmSignature(scheme=scheme, hash_algorithm=name)


def _plain_signature(data: bytes) -> TpmSignature:
    if data[0] == 0x30:
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        try:
            r, s = decode_dss_signature(data)
        except ValueError:
            pass
        else:
            return TpmSignature(scheme="ECDSA", hash_algorithm=None, r=r, s=s)
    if len(data) < 64:
        raise FormatError(
            f"{len(data)} bytes are neither a TPMT_SIGNATURE nor a DER ECDSA signature nor an RSA "
            "signature",
            offset=0,
            field="TPMT_SIGNATURE.sigAlg",
        )
    return TpmSignature(scheme=None, hash_algorithm=None, rsa=data)


def parse_public(data: bytes) -> TpmPublic:
    """Return the key of a TPM2B_PUBLIC or TPMT_PUBLIC.

    Raises:
        FormatError: The bytes are neither, or the object is no RSA or ECC key.
    """
    raw, base = _unwrap(data)
    reader = _Reader(raw, "TPMT_PUBLIC", base=base)
    kind = reader.number(2, "type")
    if kind not in (ALG_RSA, ALG_ECC):
        raise reader.error(f"{kind:#06x} is no RSA or ECC key", "type")
    name_algorithm = _hash_or_null(reader, "nameAlg")
    bits = reader.number(4, "objectAttributes")
    auth_policy = reader.sized("authPolicy")
    if reader.number(2, "parameters.symmetric.algorithm") != ALG_NULL:
        reader.take(4, "parameters.symmetric")
    scheme, scheme_hash = _key_scheme(reader)
    common = TpmPublic(
        raw=raw,
        type="RSA" if kind == ALG_RSA else "ECC",
        name_algorithm=name_algorithm,
        attributes=frozenset(n for b, n in OBJECT_ATTRIBUTES.items() if bits >> b & 1),
        scheme=scheme,
        scheme_hash=scheme_hash,
        auth_policy=auth_policy,
    )
    public = _rsa_key(reader, common) if kind == ALG_RSA else _ecc_key(reader, common)
    if reader.left:
        raise reader.error(f"{reader.left} bytes after the structure", "unique")
    return public


def _hash_or_null(reader: _Reader, field: str) -> str | None:
    algorithm = reader.number(2, field)
    if algorithm == ALG_NULL:
        return None
    name = ALGORITHM_BANKS.get(algorithm)
    if name is None:
        raise reader.error(f"unknown hash {algorithm:#06x}", field)
    return name


def _key_scheme(reader: _Reader) -> tuple[str | None, str | None]:
    field = "parameters.scheme"
    algorithm = reader.number(2, field)
    if algorithm == ALG_NULL:
        return None, None
    name = SIGNATURE_SCHEMES.get(algorithm, f"{algorithm:#06x}")
    if algorithm == 0x0015:  # RSAES has no parameters
        return name, None
    scheme_hash = _hash_or_null(reader, f"{field}.hashAlg")
    if name == "ECDAA":
        reader.take(2, f"{field}.count")
    return name, scheme_hash


def _rsa_key(reader: _Reader, common: TpmPublic) -> TpmPublic:
    reader.number(2, "parameters.keyBits")
    exponent = reader.number(4, "parameters.exponent") or 65537
    modulus = int.from_bytes(reader.sized("unique"), "big")
    return replace(common, modulus=modulus, exponent=exponent)


def _ecc_key(reader: _Reader, common: TpmPublic) -> TpmPublic:
    curve = reader.number(2, "parameters.curveID")
    if reader.number(2, "parameters.kdf") != ALG_NULL:
        reader.take(2, "parameters.kdf.hashAlg")
    x = int.from_bytes(reader.sized("unique.x"), "big")
    y = int.from_bytes(reader.sized("unique.y"), "big")
    name = ECC_CURVES.get(curve, f"{curve:#06x}")
    return replace(common, curve=name, x=x, y=y)
