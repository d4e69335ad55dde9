"""Whether a TPM's signature holds: RSASSA, RSAPSS and ECDSA by `cryptography`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from excise.evidence.attestation_key import AttestationKey
from excise.evidence.tpm_structures import TpmSignature

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.hashes import HashAlgorithm

RsaScheme = Literal["RSASSA", "RSAPSS"]


def signature_fault(
    message: bytes, signature: TpmSignature, key: AttestationKey, *, hash_algorithm: str
) -> str | None:
    """Return why a signature does not hold, or None when it does.

    Args:
        message: The signed bytes.
        signature: The parsed signature; plain RSA bytes are tried in the scheme of the key, or in
            both RSA schemes.
        key: The key.
        hash_algorithm: Name of the hash, as in `excise.evidence.pcr`.
    """
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    digest = hash_for(hash_algorithm)
    if digest is None:
        return f"hash {hash_algorithm} is not supported"
    try:
        if isinstance(key.key, ec.EllipticCurvePublicKey):
            if signature.scheme != "ECDSA" or signature.r is None or signature.s is None:
                return f"{signature.scheme or 'plain RSA'} signature for an ECC key"
            key.key.verify(
                encode_dss_signature(signature.r, signature.s), message, ec.ECDSA(digest)
            )
            return None
        if signature.rsa is None:
            return f"{signature.scheme} signature for an RSA key"
        bound = key.public.scheme if key.public is not None else None
        for scheme in _rsa_schemes(signature.scheme or bound):
            if _rsa_holds(message, signature.rsa, key.key, digest=digest, scheme=scheme):
                return None
    except InvalidSignature:
        pass
    except UnsupportedAlgorithm:
        return f"this OpenSSL refuses {hash_algorithm} signatures"
    return "invalid"


def hash_for(name: str) -> HashAlgorithm | None:
    """Return the hash of a TPM name for `cryptography`, or None when it has none."""
    from cryptography.hazmat.primitives import hashes

    known: dict[str, Callable[[], HashAlgorithm]] = {
        "sha1": hashes.SHA1,
        "sha256": hashes.SHA256,
        "sha384": hashes.SHA384,
        "sha512": hashes.SHA512,
        "sm3_256": hashes.SM3,
        "sha3_256": hashes.SHA3_256,
        "sha3_384": hashes.SHA3_384,
        "sha3_512": hashes.SHA3_512,
    }
    made = known.get(name)
    return made() if made is not None else None


def _rsa_schemes(scheme: str | None) -> tuple[RsaScheme, ...]:
    if scheme == "RSASSA":
        return ("RSASSA",)
    if scheme == "RSAPSS":
        return ("RSAPSS",)
    return ("RSASSA", "RSAPSS") if scheme is None else ()


def _rsa_holds(
    message: bytes, signature: bytes, key: RSAPublicKey, *, digest: HashAlgorithm, scheme: RsaScheme
) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric import padding

    # TPMs differ in the salt they use: as long as the digest, or as long as fits.
    chosen: padding.AsymmetricPadding = padding.PKCS1v15()
    if scheme == "RSAPSS":
        chosen = padding.PSS(mgf=padding.MGF1(digest), salt_length=padding.PSS.AUTO)
    try:
        key.verify(signature, message, chosen, digest)
    except InvalidSignature:
        return False
    return True
