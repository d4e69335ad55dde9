"""File signatures of IMA entries (`security.ima`), and the keys they are checked with.

What the attribute holds is told by its first byte: a bare digest (1, 4) or an HMAC (2) is no
signature, a portable EVM signature (5) covers metadata and not the content measured, and 3 and 6
begin a signature header of version 1, 2 or 3. Version 1 signs SHA-1 over digest and header with
bare PKCS#1 padding; version 2 signs the file digest; version 3 signs the digest of
`struct ima_file_id` (attribute type, hash, digest), which tells an fs-verity digest from a file's.

Sources: Linux, `security/integrity/integrity.h`, `digsig.c`, `ima/ima_appraise.c`,
`lib/digsig.c`; ima-evm-utils, `libimaevm.c` (key identifiers).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from excise.errors import FormatError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

# enum evm_ima_xattr_type
_DIGEST, _HMAC, _SIGNATURE, _DIGEST_NG, _EVM_PORTABLE, _VERITY = 1, 2, 3, 4, 5, 6

# enum hash_algo, include/uapi/linux/hash_info.h, as far as anything signs with it
SIGNATURE_HASHES: Final = {
    1: "md5",
    2: "sha1",
    4: "sha256",
    5: "sha384",
    6: "sha512",
    7: "sha224",
    17: "sm3_256",
    20: "sha3_256",
    21: "sha3_384",
    22: "sha3_512",
}
"""Hashes that files are signed with, by the kernel's numbers (`enum hash_algo`)."""

_V1_HEADER_BYTES: Final = 16
_V2_HEADER_BYTES: Final = 9
_CACHE_ENTRIES: Final = 1 << 16


class SignatureResult(StrEnum):
    """What became of one entry's signature."""

    OK = "ok"
    NO_SIGNATURE = "no signature"
    UNKNOWN_KEY = "unknown key"
    BAD_SIGNATURE = "bad signature"
    MALFORMED = "malformed signature"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSignature:
    """A signature header, parsed and not verified.

    Attributes:
        xattr_type: First byte of the attribute: 3, or 6 for an fs-verity digest.
        version: 1, 2 or 3.
        hash_algorithm: Name of the hash.
        keyid: 8 bytes in version 1, else 4.
        header: The bytes that version 1 signs along.
        signature: PKCS#1 or DER bytes.
    """

    xattr_type: int
    version: int
    hash_algorithm: str
    keyid: bytes
    header: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureAppraisal:
    """The result for one attribute.

    Attributes:
        result: What became of it.
        detail: Why, in one clause; empty when it is ok.
        keyid: Key identifier in hexadecimal, where the attribute has one.
        key_source: Where the key that verified it came from.
    """

    result: SignatureResult
    detail: str = ""
    keyid: str = ""
    key_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileKey:
    """A key that signs files.

    Attributes:
        key: The public key.
        source: Where it came from: a file's name, or the keyring entry of a list.
    """

    key: RSAPublicKey | EllipticCurvePublicKey
    source: str


def parse_file_signature(data: bytes) -> FileSignature | SignatureAppraisal:
    """Return the header of a `security.ima` value, or why it is no signature that can be checked.

    A length in little-endian order, which some signing tools wrote, is named as such.
    """
    if not data:
        return _no_signature("the file has none")
    kind = data[0]
    if kind in (_DIGEST, _DIGEST_NG):
        return _no_signature("a digest only")
    if kind == _HMAC:
        return _no_signature("an EVM HMAC")
    if kind == _EVM_PORTABLE:
        return _no_signature("a portable EVM signature, which does not cover the content measured")
    if kind not in (_SIGNATURE, _VERITY):
        return _malformed(f"unknown attribute type {kind}")
    version = data[1] if len(data) > 1 else 0
    if version == 1 and kind == _SIGNATURE:
        return _parse_v1(data)
    if version in (2, 3):
        if kind == _VERITY and version == 2:
            return _malformed("an fs-verity signature of version 2")
        return _parse_v2(data)
    return _malformed(f"unknown signature version {version}")


def _no_signature(detail: str) -> SignatureAppraisal:
    return SignatureAppraisal(result=SignatureResult.NO_SIGNATURE, detail=detail)


def _malformed(detail: str) -> SignatureAppraisal:
    return SignatureAppraisal(result=SignatureResult.MALFORMED, detail=detail)


def _parse_v1(data: bytes) -> FileSignature | SignatureAppraisal:
    # version u8, timestamp u32, algorithm u8, hash u8, keyid 8 bytes, number of integers u8, then
    # each integer as a 16-bit length in bits and its bytes.
    header = data[1 : 1 + _V1_HEADER_BYTES]
    if len(header) < _V1_HEADER_BYTES or len(data) < _V1_HEADER_BYTES + 3:
        return _malformed(f"{len(data)} bytes are too few for version 1")
    hashes = {0: "sha1", 1: "sha256"}
    if header[5] != 0 or header[6] not in hashes or header[15] != 1:
        return _malformed("version 1 with an unknown algorithm")
    body = data[1 + _V1_HEADER_BYTES :]
    size = (int.from_bytes(body[:2], "big") + 7) // 8
    if size != len(body) - 2:
        return _wrong_length(size, len(body) - 2, (int.from_bytes(body[:2], "little") + 7) // 8)
    return FileSignature(
        xattr_type=data[0],
        version=1,
        hash_algorithm=hashes[header[6]],
        keyid=header[7:15],
        header=header,
        signature=body[2:],
    )


def _parse_v2(data: bytes) -> FileSignature | SignatureAppraisal:
    # type u8, version u8, hash u8, keyid be32, size be16, signature
    if len(data) < _V2_HEADER_BYTES:
        return _malformed(f"{len(data)} bytes are too few for version {data[1]}")
    hash_algorithm = SIGNATURE_HASHES.get(data[2])
    if hash_algorithm is None:
        return _malformed(f"hash {data[2]}, which nothing signs with")
    size, got = int.from_bytes(data[7:9], "big"), len(data) - _V2_HEADER_BYTES
    if size != got:
        return _wrong_length(size, got, int.from_bytes(data[7:9], "little"))
    return FileSignature(
        xattr_type=data[0],
        version=data[1],
        hash_algorithm=hash_algorithm,
        keyid=data[3:7],
        header=data[:_V2_HEADER_BYTES],
        signature=data[_V2_HEADER_BYTES:],
    )


def _wrong_length(announced: int, got: int, swapped: int) -> SignatureAppraisal:
    if swapped == got:
        return _malformed("its length is little-endian, and the kernel reads it big-endian")
    return _malformed(f"announces {announced} bytes and has {got}")


class Keyring:
    """Keys by identifier, and the signatures already checked with them.

    A signature costs as much as a hundred replayed entries and the same files are signed alike on
    every host, so results are kept by signature and digest. One keyring may serve many lists: as
    the parent of one keyring for each list, into which that list's own keys go.
    """

    def __init__(self, keys: Iterable[FileKey] = (), *, parent: Keyring | None = None) -> None:
        self._parent = parent
        self._keys: dict[bytes, list[FileKey]] = {}
        self._count = 0
        self._results: dict[tuple[bytes, str, bytes], SignatureAppraisal] = {}
        for key in keys:
            self.add(key)

    def __len__(self) -> int:
        """Return the number of keys, the parent's included."""
        return self._count + (len(self._parent) if self._parent is not None else 0)

    def add(self, key: FileKey, *, extra_ids: Iterable[bytes] = ()) -> None:
        """Add a key under the identifiers that signatures name it by."""
        self._count += 1
        for identifier in {*_key_ids(key.key), *extra_ids}:
            self._keys.setdefault(identifier, []).append(key)
        self._results = {
            known: result
            for known, result in self._results.items()
            if result.result not in (SignatureResult.UNKNOWN_KEY, SignatureResult.BAD_SIGNATURE)
        }

    def add_bytes(self, data: bytes, *, source: str) -> None:
        """Add the key of a certificate or public key in PEM or DER.

        A certificate also answers to the end of its subject key identifier. Its chain and dates
        are not checked: which keys to trust is the caller's to know.

        Raises:
            FormatError: The data is neither, or no RSA or ECC key.
        """
        key, extra_ids = _load(data, source)
        self.add(FileKey(key=key, source=source), extra_ids=extra_ids)

    def verify(self, data: bytes, *, digest_algorithm: str, digest: bytes) -> SignatureAppraisal:
        """Return what a `security.ima` value says of a file digest.

        Args:
            data: The attribute, as the `sig` field of a measurement list holds it.
            digest_algorithm: Hash of the measured digest.
            digest: The measured digest.
        """
        known = (data, digest_algorithm, digest)
        result = self._results.get(known)
        if result is None:
            result = self._verify(data, digest_algorithm, digest)
            if len(self._results) >= _CACHE_ENTRIES:
                self._results.clear()
            self._results[known] = result
        return result

    def _verify(self, data: bytes, digest_algorithm: str, digest: bytes) -> SignatureAppraisal:
        parsed = parse_file_signature(data)
        if isinstance(parsed, SignatureAppraisal):
            return parsed
        keyid = parsed.keyid.hex()
        candidates = self._keys.get(parsed.keyid, [])
        if self._parent is not None:
            result = self._parent.verify(data, digest_algorithm=digest_algorithm, digest=digest)
            if result.result is SignatureResult.OK or not candidates:
                return result
        if not candidates:
            return SignatureAppraisal(
                result=SignatureResult.UNKNOWN_KEY, detail=f"no key {keyid}", keyid=keyid
            )
        detail = "does not verify"
        if parsed.hash_algorithm != digest_algorithm:
            detail = f"signs {parsed.hash_algorithm}, the list has {digest_algorithm}"
            candidates = []
        for candidate in candidates:
            if _holds(parsed, candidate.key, digest):
                return SignatureAppraisal(
                    result=SignatureResult.OK, keyid=keyid, key_source=candidate.source
                )
        return SignatureAppraisal(result=SignatureResult.BAD_SIGNATURE, detail=detail, keyid=keyid)


def _key_ids(key: RSAPublicKey | EllipticCurvePublicKey) -> list[bytes]:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    if not isinstance(key, RSAPublicKey):
        point = key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
        return [hashlib.sha1(point, usedforsecurity=False).digest()[-4:]]
    encoded = key.public_bytes(Encoding.DER, PublicFormat.PKCS1)
    # Version 1 hashes its own encoding: version, timestamp, algorithm, count, then n and e.
    numbers = key.public_numbers()
    old = b"\x01" + bytes(4) + b"\x00\x02" + _mpi(numbers.n) + _mpi(numbers.e)
    return [
        hashlib.sha1(encoded, usedforsecurity=False).digest()[-4:],
        hashlib.sha1(old, usedforsecurity=False).digest()[-8:],
    ]


def _mpi(number: int) -> bytes:
    bits = number.bit_length()
    return bits.to_bytes(2, "big") + number.to_bytes((bits + 7) // 8, "big")


def _load(data: bytes, source: str) -> tuple[RSAPublicKey | EllipticCurvePublicKey, list[bytes]]:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    pem = data.lstrip()[:11] == b"-----BEGIN "
    loaders: list[Any] = (
        [x509.load_pem_x509_certificate, serialization.load_pem_public_key]
        if pem
        else [x509.load_der_x509_certificate, serialization.load_der_public_key]
    )
    for load in loaders:
        try:
            loaded = load(data)
            key = loaded.public_key() if isinstance(loaded, x509.Certificate) else loaded
        except (ValueError, UnsupportedAlgorithm):
            continue
        if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
            raise FormatError("neither an RSA nor an ECC key", source=source, field="public key")
        return key, _subject_key_ids(loaded)
    raise FormatError(
        "neither a certificate nor a public key, in PEM or DER", source=source, field="public key"
    )


def _subject_key_ids(loaded: Any) -> list[bytes]:
    """Return the end of a certificate's subject key identifier, by which the kernel finds it."""
    from cryptography import x509

    if not isinstance(loaded, x509.Certificate):
        return []
    try:
        found = loaded.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [found.value.digest[-4:]]


def _holds(
    parsed: FileSignature, key: RSAPublicKey | EllipticCurvePublicKey, digest: bytes
) -> bool:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, padding
    from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

    try:
        if parsed.version == 1:
            return _holds_v1(parsed, key, digest)
        signed, chosen = digest, _hash_for(parsed.hash_algorithm)
        if chosen is None:
            return False
        if parsed.version == 3:
            signed = _file_id_digest(parsed, digest)
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(parsed.signature, signed, ec.ECDSA(Prehashed(chosen)))
        else:
            key.verify(parsed.signature, signed, padding.PKCS1v15(), Prehashed(chosen))
    except (InvalidSignature, UnsupportedAlgorithm, ValueError):
        return False
    return True


def _holds_v1(
    parsed: FileSignature, key: RSAPublicKey | EllipticCurvePublicKey, digest: bytes
) -> bool:
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(key, RSAPublicKey):
        return False
    signed = hashlib.sha1(digest + parsed.header, usedforsecurity=False).digest()
    size = (key.key_size + 7) // 8
    signature = parsed.signature.rjust(size, b"\0")
    return key.recover_data_from_signature(signature, padding.PKCS1v15(), None) == signed


def _file_id_digest(parsed: FileSignature, digest: bytes) -> bytes:
    number = next(
        number for number, name in SIGNATURE_HASHES.items() if name == parsed.hash_algorithm
    )
    name = {"sm3_256": "sm3"}.get(parsed.hash_algorithm, parsed.hash_algorithm)
    return hashlib.new(name, bytes([parsed.xattr_type, number]) + digest).digest()


def _hash_for(name: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    from excise.evidence.quote_signature import hash_for

    return {"md5": hashes.MD5, "sha224": hashes.SHA224}.get(name, lambda: hash_for(name))()
