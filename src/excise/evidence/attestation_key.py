"""The public key a quote is checked with, from PEM, DER or the TPM's own structures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from excise.errors import FormatError
from excise.evidence.tpm_structures import TpmPublic, parse_public

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttestationKey:
    """A key to verify quotes with.

    Attributes:
        key: The key for `cryptography`.
        public: The TPM's public area; None when the key came as PEM or DER, which do not say what
            the TPM lets the key do.
    """

    key: RSAPublicKey | EllipticCurvePublicKey
    public: TpmPublic | None

    @property
    def type(self) -> str:
        """Return `RSA` or `ECC`."""
        return "ECC" if hasattr(self.key, "curve") else "RSA"

    @property
    def size_bits(self) -> int:
        """Return the size of the modulus or of the curve's field."""
        return self.key.key_size


def read_attestation_key(data: bytes, *, source: str = "attestation key") -> AttestationKey:
    """Return the public key in PEM, DER (SubjectPublicKeyInfo or certificate), TPM2B or TPMT form.

    A certificate is only a container here; its chain is not checked.

    Raises:
        FormatError: The bytes are none of these, or no RSA or ECC key of a known curve.
    """
    try:
        if data.lstrip()[:11] == b"-----BEGIN ":
            return AttestationKey(key=_supported(_load_pem(data)), public=None)
        if data[:1] == b"\x30":
            return AttestationKey(key=_supported(_load_der(data)), public=None)
        public = parse_public(data)
        return AttestationKey(key=_from_public(public), public=public)
    except FormatError as error:
        error.source = source
        raise


def _load_pem(data: bytes) -> PublicKeyTypes:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        if b"-----BEGIN CERTIFICATE-----" in data:
            return x509.load_pem_x509_certificate(data).public_key()
        return load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise FormatError("not a public key or certificate in PEM", field="public key") from None


def _load_der(data: bytes) -> PublicKeyTypes:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_der_public_key

    try:
        return load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        pass
    try:
        return x509.load_der_x509_certificate(data).public_key()
    except (ValueError, UnsupportedAlgorithm):
        raise FormatError("not a public key or certificate in DER", field="public key") from None


def _supported(key: PublicKeyTypes) -> RSAPublicKey | EllipticCurvePublicKey:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

    if not isinstance(key, RSAPublicKey | EllipticCurvePublicKey):
        raise FormatError("neither an RSA nor an ECC key", field="public key")
    return key


def _from_public(public: TpmPublic) -> RSAPublicKey | EllipticCurvePublicKey:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    curves: dict[str, Callable[[], ec.EllipticCurve]] = {
        "secp192r1": ec.SECP192R1,
        "secp224r1": ec.SECP224R1,
        "secp256r1": ec.SECP256R1,
        "secp384r1": ec.SECP384R1,
        "secp521r1": ec.SECP521R1,
    }
    try:
        if public.type == "RSA":
            return rsa.RSAPublicNumbers(public.exponent, public.modulus).public_key()
        curve = curves.get(public.curve)
        if curve is None:
            raise FormatError(f"no verifier for curve {public.curve}", field="TPMT_PUBLIC.curveID")
        return ec.EllipticCurvePublicNumbers(public.x, public.y, curve()).public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FormatError(f"not a usable key: {error}", field="TPMT_PUBLIC.unique") from None
