"""Writers of TPM structures, so that a test can make any quote, sound or not."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ALGORITHMS = {"sha1": 4, "sha256": 0xB, "sha384": 0xC, "sha512": 0xD, "sm3_256": 0x12}
SIZES = {"sha1": 20, "sha256": 32, "sha384": 48, "sha512": 64}
HASHES = {
    "sha1": hashes.SHA1,
    "sha256": hashes.SHA256,
    "sha384": hashes.SHA384,
    "sha512": hashes.SHA512,
}
SCHEMES = {"RSASSA": 0x14, "RSAPSS": 0x16, "ECDSA": 0x18}

# fixedTPM, fixedParent, sensitiveDataOrigin, userWithAuth, restricted, sign
AK_ATTRIBUTES = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6 | 1 << 16 | 1 << 18

Selection = Sequence[tuple[str, Sequence[int]]]


def sized(data: bytes) -> bytes:
    return struct.pack(">H", len(data)) + data


def pcr_value(bank: str, index: int) -> bytes:
    return hashlib.shake_256(f"{bank}:{index}".encode()).digest(SIZES[bank])


def pcr_values(selection: Selection) -> dict[str, dict[int, bytes]]:
    values: dict[str, dict[int, bytes]] = {}
    for bank, indices in selection:
        values.setdefault(bank, {}).update({index: pcr_value(bank, index) for index in indices})
    return values


def digest_over(selection: Selection, algorithm: str) -> bytes:
    held = b"".join(pcr_value(bank, index) for bank, indices in selection for index in indices)
    return hashlib.new(algorithm, held).digest()


def bitmap(indices: Sequence[int], size: int = 3) -> bytes:
    number = sum(1 << index for index in indices)
    return number.to_bytes(size, "little")


@dataclass(frozen=True)
class AttestFields:
    magic: int = 0xFF544347
    type: int = 0x8018
    qualified_signer: bytes = b"\x00\x0b" + bytes(32)
    extra_data: bytes = b"verifier's nonce"
    clock_ms: int = 5_000
    reset_count: int = 7
    restart_count: int = 2
    safe: int = 1
    firmware_version: int = 0x0001_0002_0003_0004
    selection: Selection = (("sha256", (0, 7, 10)),)
    sizeof_select: int = 3
    digest_algorithm: str = "sha256"
    pcr_digest: bytes | None = None
    trailing: bytes = b""

    def build(self) -> bytes:
        digest = self.pcr_digest
        if digest is None:
            digest = digest_over(self.selection, self.digest_algorithm)
        entries = b"".join(
            struct.pack(">HB", ALGORITHMS[bank], self.sizeof_select)
            + bitmap(indices, self.sizeof_select)
            for bank, indices in self.selection
        )
        return (
            struct.pack(">IH", self.magic, self.type)
            + sized(self.qualified_signer)
            + sized(self.extra_data)
            + struct.pack(">QIIB", self.clock_ms, self.reset_count, self.restart_count, self.safe)
            + struct.pack(">Q", self.firmware_version)
            + struct.pack(">I", len(self.selection))
            + entries
            + sized(digest)
            + self.trailing
        )


@cache
def ecc_key(name: str = "ak") -> ec.EllipticCurvePrivateKey:
    scalar = int.from_bytes(hashlib.sha256(name.encode()).digest(), "big")
    return ec.derive_private_key(scalar, ec.SECP256R1())


@cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


def pem(key: PrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def tpmt_public(
    key: PrivateKey,
    *,
    attributes: int = AK_ATTRIBUTES,
    scheme: str | None = None,
    scheme_hash: str = "sha256",
) -> bytes:
    kind = 1 if isinstance(key, rsa.RSAPrivateKey) else 0x23
    head = struct.pack(">HHI", kind, ALGORITHMS["sha256"], attributes) + sized(b"")
    head += struct.pack(">H", 0x10)
    if scheme is None:
        head += struct.pack(">H", 0x10)
    else:
        head += struct.pack(">HH", SCHEMES[scheme], ALGORITHMS[scheme_hash])
    if isinstance(key, rsa.RSAPrivateKey):
        modulus = key.public_key().public_numbers().n
        return head + struct.pack(">HI", key.key_size, 0) + sized(modulus.to_bytes(256, "big"))
    point = key.public_key().public_numbers()
    coordinates = sized(point.x.to_bytes(32, "big")) + sized(point.y.to_bytes(32, "big"))
    return head + struct.pack(">HH", 3, 0x10) + coordinates


def tpm2b_public(key: PrivateKey, **options: object) -> bytes:
    return sized(tpmt_public(key, **options))  # type: ignore[arg-type]


def sign(
    message: bytes,
    key: PrivateKey,
    *,
    scheme: str = "ECDSA",
    algorithm: str = "sha256",
    salt: int | None = None,
) -> bytes:
    """Return a TPMT_SIGNATURE; the salt of RSAPSS is as long as the digest unless given."""
    head = struct.pack(">HH", SCHEMES[scheme], ALGORITHMS[algorithm])
    chosen = HASHES[algorithm]()
    if isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(message, ec.ECDSA(chosen)))
        return head + sized(r.to_bytes(32, "big")) + sized(s.to_bytes(32, "big"))
    form: padding.AsymmetricPadding = padding.PKCS1v15()
    if scheme == "RSAPSS":
        length = chosen.digest_size if salt is None else salt
        form = padding.PSS(mgf=padding.MGF1(chosen), salt_length=length)
    return head + sized(key.sign(message, form, chosen))


@dataclass(frozen=True)
class QuoteCase:
    """A quote that verifies; `but` gives the same with one thing changed."""

    fields: AttestFields = field(default_factory=AttestFields)
    key: PrivateKey = field(default_factory=ecc_key)
    scheme: str = "ECDSA"
    algorithm: str = "sha256"
    values: Mapping[str, Mapping[int, bytes]] | None = None

    def but(self, **fields: object) -> QuoteCase:
        return replace(self, fields=replace(self.fields, **fields))

    @property
    def attest(self) -> bytes:
        return self.fields.build()

    @property
    def signature(self) -> bytes:
        return sign(self.attest, self.key, scheme=self.scheme, algorithm=self.algorithm)

    @property
    def pcrs(self) -> Mapping[str, Mapping[int, bytes]]:
        return self.values if self.values is not None else pcr_values(self.fields.selection)
