"""The attester's signing key: in software, in a TPM, or in a TPM and wrapped between signatures.

The three stand for what optee-ra compares: a key compiled in or given in plain, a key that hardware
holds, and CAAM's black key, which is unwrapped by hardware for each signature. Key material is
given as there: 32 bytes for a plain key, its public halves aside or before it
(PubX ‖ PubY ‖ blob); what is longer than 96 bytes is a wrapped one. The blob of a wrapped key is
TPM2B_PRIVATE ‖ TPM2B_PUBLIC under the TPM's storage primary key of P-256.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from excise.errors import HostError, UsageError
from excise.evidence.cose_key import (
    VerificationKey,
    raw_point_key,
    raw_signature,
    wrap_public_key,
)
from excise.units import parse_hex

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from tpm2_pytss import ESAPI

SignerKind = Literal["software", "tpm", "tpm-wrapped"]

PLAIN_BYTES: Final = 32
PACKED_PLAIN_BYTES: Final = 96
MAX_PACKED_BYTES: Final = 2048
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
EMBEDDED_WARNING: Final = (
    "the embedded key is the same in every copy of this program: for measuring only"
)
_EMBEDDED: Final = (
    1 + int.from_bytes(hashlib.sha256(b"excise attester: embedded test key").digest(), "big")
    % (_ORDER - 1)
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedKey:
    """Key material as it is given on a command line.

    Attributes:
        blob: 32 bytes of a plain key, or a wrapped one.
        point: PubX ‖ PubY; empty when not given.
    """

    blob: bytes
    point: bytes = b""

    @property
    def wrapped(self) -> bool:
        """Return whether this is a wrapped key: more than 96 bytes with its public halves."""
        return len(self.blob) + 64 > PACKED_PLAIN_BYTES

    def hex(self) -> str:
        """Return PubX ‖ PubY ‖ blob in hexadecimal."""
        return (self.point + self.blob).hex()


def parse_key(key_hex: str, *, pubx_hex: str | None, puby_hex: str | None) -> PackedKey:
    """Return key material given in hexadecimal.

    Args:
        key_hex: 32 bytes, or PubX ‖ PubY ‖ blob.
        pubx_hex: 32 bytes; the public half's x, given with its y or not at all.
        puby_hex: Its y.

    Raises:
        UsageError: It is not hexadecimal, has no fitting length, or halves are missing.
    """
    data = parse_hex(key_hex, option="--key-hex")
    if len(data) > MAX_PACKED_BYTES:
        raise UsageError(f"--key-hex has {len(data)} bytes, more than {MAX_PACKED_BYTES}")
    if (pubx_hex is None) != (puby_hex is None):
        raise UsageError("--pubx-hex and --puby-hex belong together")
    if pubx_hex is not None and puby_hex is not None:
        halves = [
            parse_hex(pubx_hex, option="--pubx-hex"),
            parse_hex(puby_hex, option="--puby-hex"),
        ]
        if any(len(half) != 32 for half in halves):
            raise UsageError("--pubx-hex and --puby-hex have 32 bytes each")
        return _packed(data, b"".join(halves))
    if len(data) == PLAIN_BYTES:
        return PackedKey(blob=data)
    if len(data) < PACKED_PLAIN_BYTES:
        raise UsageError(
            f"--key-hex has {len(data)} bytes",
            hint="32 bytes of a plain key, or PubX (32), PubY (32) and the key",
        )
    return _packed(data[64:], data[:64])


def _packed(blob: bytes, point: bytes) -> PackedKey:
    if len(blob) < PLAIN_BYTES:
        raise UsageError(f"the key in --key-hex has {len(blob)} bytes, fewer than {PLAIN_BYTES}")
    raw_point_key(b"\x04" + point, source="public halves")
    return PackedKey(blob=blob, point=point)


def mode_of(kind: SignerKind, packed: PackedKey | None) -> str:
    """Return what measurements call a kind of key: `embedded`, `plain` or `black`."""
    if kind == "tpm-wrapped":
        return "black"
    return "embedded" if packed is None else "plain"


def labels_of(kind: SignerKind) -> dict[str, str]:
    """Return the labels of measurements beside `key=`, which tells the other kinds apart.

    Fewer labels cost less between two steps.
    """
    return {"signer": "tpm"} if kind == "tpm" else {}


class Signer(Protocol):
    """A key that signs with ECDSA on P-256."""

    kind: SignerKind

    @property
    def public(self) -> VerificationKey:
        """Return the public half."""

    def set_up(self) -> None:
        """Make the key ready for one signature: the step that `sign_key_setup` measures."""

    def sign(self, digest: bytes) -> bytes:
        """Return r ‖ s over a SHA-256 digest."""


class SoftwareSigner:
    """A key in memory, decoded anew for each signature as the application does it."""

    kind: SignerKind = "software"

    def __init__(self, packed: PackedKey | None) -> None:
        self._scalar = packed.blob if packed is not None else _EMBEDDED.to_bytes(32, "big")
        self._key = _derive(self._scalar)
        self._public = wrap_public_key(self._key.public_key())
        _check_halves(packed, self._public)
        self.sign(bytes(32))  # loads what signs, so that no step has to

    @property
    def public(self) -> VerificationKey:
        """Return the public half."""
        return self._public

    def set_up(self) -> None:
        """Decode the key."""
        self._key = _derive(self._scalar)

    def sign(self, digest: bytes) -> bytes:
        """Return r ‖ s over a SHA-256 digest."""
        from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
        from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
        from cryptography.hazmat.primitives.hashes import SHA256

        return raw_signature(self._key.sign(digest, ECDSA(Prehashed(SHA256()))))


def _check_halves(packed: PackedKey | None, public: VerificationKey) -> None:
    if packed is not None and packed.point not in (b"", public.point()[1:]):
        raise UsageError("the public halves are not those of the key", source="--key-hex")


def _derive(scalar: bytes) -> EllipticCurvePrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ec

    value = int.from_bytes(scalar, "big")
    if not 0 < value < _ORDER:
        raise UsageError("the key is not between 1 and the order of P-256", source="--key-hex")
    return ec.derive_private_key(value, ec.SECP256R1())


class TpmSigner:
    """A key in a TPM: loaded once, or loaded from its wrapping for each signature.

    Attributes:
        kind: `tpm` or `tpm-wrapped`.
    """

    def __init__(self, tpm: ESAPI, packed: PackedKey | None, *, wrapped: bool) -> None:
        self.kind: SignerKind = "tpm-wrapped" if wrapped else "tpm"
        self._tpm = tpm
        self._wrapped = wrapped
        self._loaded: Any = None
        self._parent = _storage_primary(tpm)
        try:
            private, public = _unpack(packed) if packed is not None else _create(tpm, self._parent)
        except BaseException:
            self.close()
            raise
        self._parts = (private, public)
        point = public.publicArea.unique.ecc
        raw = b"\x04" + bytes(point.x).rjust(32, b"\0") + bytes(point.y).rjust(32, b"\0")
        self._public = raw_point_key(raw, source="TPM key")
        _check_halves(packed, self._public)
        if not wrapped:
            self._load()

    @property
    def public(self) -> VerificationKey:
        """Return the public half."""
        return self._public

    def packed(self) -> PackedKey:
        """Return the wrapped key with its public halves."""
        private, public = self._parts
        blob = private.marshal() + public.marshal()
        return PackedKey(blob=blob, point=self._public.point()[1:])

    def set_up(self) -> None:
        """Load a wrapped key anew; a key that stays loaded is ready."""
        if self._wrapped:
            self._flush()
            self._load()

    def sign(self, digest: bytes) -> bytes:
        """Return r ‖ s over a SHA-256 digest."""
        from tpm2_pytss import (
            TPM2_ALG,
            TPM2_RH,
            TPM2_ST,
            TPM2B_DIGEST,
            TPMT_SIG_SCHEME,
            TPMT_TK_HASHCHECK,
        )

        from excise.collect.tpm import patiently

        scheme = TPMT_SIG_SCHEME(scheme=TPM2_ALG.NULL)
        ticket = TPMT_TK_HASHCHECK(tag=TPM2_ST.HASHCHECK, hierarchy=TPM2_RH.NULL)
        made = patiently(lambda: self._tpm.sign(self._loaded, TPM2B_DIGEST(digest), scheme, ticket))
        signature = made.signature.ecdsa
        r, s = bytes(signature.signatureR), bytes(signature.signatureS)
        return r.rjust(32, b"\0") + s.rjust(32, b"\0")

    def close(self) -> None:
        """Leave nothing in the TPM."""
        self._flush()
        with suppress(Exception):
            self._tpm.flush_context(self._parent)

    def _load(self) -> None:
        from excise.collect.tpm import patiently

        private, public = self._parts
        self._loaded = patiently(lambda: self._tpm.load(self._parent, private, public))

    def _flush(self) -> None:
        if self._loaded is not None:
            with suppress(Exception):
                self._tpm.flush_context(self._loaded)
            self._loaded = None


def _storage_primary(tpm: ESAPI) -> Any:
    from tpm2_pytss import ESYS_TR, TPM2B_PUBLIC, TPM2B_SENSITIVE_CREATE, TPMA_OBJECT

    from excise.collect.tpm import patiently

    attributes = (
        TPMA_OBJECT.FIXEDTPM
        | TPMA_OBJECT.FIXEDPARENT
        | TPMA_OBJECT.SENSITIVEDATAORIGIN
        | TPMA_OBJECT.USERWITHAUTH
        | TPMA_OBJECT.RESTRICTED
        | TPMA_OBJECT.DECRYPT
        | TPMA_OBJECT.NODA
    )
    template = TPM2B_PUBLIC.parse("ecc256:aes128cfb", objectAttributes=attributes)
    made = patiently(lambda: tpm.create_primary(TPM2B_SENSITIVE_CREATE(), template, ESYS_TR.OWNER))
    return made[0]


def _create(tpm: ESAPI, parent: Any) -> tuple[Any, Any]:
    from tpm2_pytss import TPM2B_PUBLIC, TPM2B_SENSITIVE_CREATE, TPMA_OBJECT

    from excise.collect.tpm import patiently

    attributes = (
        TPMA_OBJECT.FIXEDTPM
        | TPMA_OBJECT.FIXEDPARENT
        | TPMA_OBJECT.SENSITIVEDATAORIGIN
        | TPMA_OBJECT.USERWITHAUTH
        | TPMA_OBJECT.SIGN_ENCRYPT
    )
    template = TPM2B_PUBLIC.parse("ecc256:ecdsa-sha256:null", objectAttributes=attributes)
    private, public, *_ = patiently(lambda: tpm.create(parent, TPM2B_SENSITIVE_CREATE(), template))
    return private, public


def _unpack(packed: PackedKey) -> tuple[Any, Any]:
    from tpm2_pytss import TPM2B_PRIVATE, TPM2B_PUBLIC, TSS2_Exception

    try:
        private, used = TPM2B_PRIVATE.unmarshal(packed.blob)
        public, more = TPM2B_PUBLIC.unmarshal(packed.blob[used:])
    except (TSS2_Exception, ValueError):
        raise UsageError("the key is no wrapped key of a TPM", source="--key-hex") from None
    if used + more != len(packed.blob):
        raise UsageError("bytes follow the wrapped key", source="--key-hex")
    return private, public


@contextmanager
def open_signer(
    kind: SignerKind, *, packed: PackedKey | None = None, tcti: str | None = None
) -> Iterator[Signer]:
    """Open a signing key for a block.

    Args:
        kind: Where it is, and whether it is wrapped between signatures.
        packed: Key material; None for the embedded key, or a new one in the TPM.
        tcti: Where the TPM is, as for tpm2-tools.

    Raises:
        UsageError: The material does not fit the kind.
        HostError: No TPM, or it refuses the key.
    """
    if kind == "software":
        if packed is not None and packed.wrapped:
            hint = "Give --key tpm-wrapped"
            raise UsageError("a wrapped key cannot be used in software", hint=hint)
        yield SoftwareSigner(packed)
        return
    if packed is not None and not packed.wrapped:
        hint = "Make one with --generate-key --key tpm-wrapped"
        raise UsageError("a plain key is not for a TPM", hint=hint)
    if not tcti:
        raise UsageError("a TPM is named", hint="Give --tcti, such as device:/dev/tpmrm0")
    from excise.collect.tpm import open_tpm

    with open_tpm(tcti) as tpm:
        signer = TpmSigner(tpm, packed, wrapped=kind == "tpm-wrapped")
        try:
            yield signer
        finally:
            signer.close()


def generate_key(kind: SignerKind, *, tcti: str | None = None) -> PackedKey:
    """Return a new key with its public halves, to be given back as `--key-hex`.

    Raises:
        UsageError: A key that stays in a TPM has no form to give back.
        HostError: No TPM.
    """
    if kind == "software":
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        scalar = key.private_numbers().private_value.to_bytes(32, "big")
        return PackedKey(blob=scalar, point=wrap_public_key(key.public_key()).point()[1:])
    if kind == "tpm":
        raise UsageError("a key that stays in the TPM is not printed", hint="Try tpm-wrapped")
    with open_signer(kind, tcti=tcti) as signer:
        if not isinstance(signer, TpmSigner):
            raise HostError("the TPM made no key")
        return signer.packed()
