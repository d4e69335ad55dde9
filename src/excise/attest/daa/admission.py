"""What an issuer asks of a key before it admits it to the group.

For a key in a TPM: its public area is that of a member's key and of the same point; the TPM that
holds it opens a challenge made out to its name (TPM2_MakeCredential, TPM2_ActivateCredential); and,
where the rule asks for it, the EK the challenge was encrypted to is in a certificate under one of
the roots given. Without that last step a program can be the TPM.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from excise.errors import FormatError, HostError, Refused
from excise.evidence.attestation_key import read_attestation_key
from excise.evidence.daa import KeyAssurance
from excise.evidence.daa.curve import G1
from excise.evidence.tpm_structures import TpmPublic, parse_public
from excise.units import counted

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

CHALLENGE_BYTES: Final = 32
MAX_CHAIN: Final = 6
_EK_USAGE: Final = "2.23.133.8.1"  # tcg-kp-EKCertificate

_NEEDED: Final = ("fixedTPM", "fixedParent", "sensitiveDataOrigin", "sign")
_FORBIDDEN: Final = ("decrypt", "stClear", "encryptedDuplication")


def check_member_area(public: bytes, *, member: G1, rule: KeyAssurance) -> TpmPublic:
    """Return the public area of a member's key in a TPM, if the rule admits such a key.

    Args:
        public: TPM2B_PUBLIC or TPMT_PUBLIC.
        member: Q, which the member's proof is for.
        rule: What the issuer asks of every key.

    Raises:
        FormatError: Not a public area of a key.
        Refused: One whose attributes, scheme, curve, point or policy are not as asked; every
            difference is named.
    """
    area = parse_public(public)
    differences = [
        *(f"{name} is clear" for name in _NEEDED if name not in area.attributes),
        *(f"{name} is set" for name in _FORBIDDEN if name in area.attributes),
    ]
    if ("restricted" in area.attributes) != rule.quoting:
        differences.append(f"restricted is {'clear' if rule.quoting else 'set'}")
    if area.curve != "bn_p256":
        differences.append(f"the curve is {area.curve or area.type}, not bn_p256")
    if (area.scheme, area.scheme_hash) != ("ECDAA", "sha256"):
        differences.append(f"the scheme is {area.scheme} with {area.scheme_hash}")
    if area.name_algorithm != "sha256":
        differences.append(f"the name's hash is {area.name_algorithm}")
    if (area.x, area.y) != member:
        differences.append("the point is not the one that was proven")
    if rule.pcr_policy is not None:
        if area.auth_policy != rule.pcr_policy:
            differences.append(f"the policy is {area.auth_policy.hex() or 'none'}")
        if "userWithAuth" in area.attributes:
            differences.append("userWithAuth is set, so that the policy can be gone around")
    if differences:
        raise Refused("not a key this group admits", differences=tuple(differences))
    return area


def make_challenge(ek: bytes, name: bytes | None, secret: bytes) -> tuple[bytes, bytes]:
    """Return TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET that only the EK's TPM can open.

    Args:
        ek: TPM2B_PUBLIC of the endorsement key.
        name: Name of the key that must be in the same TPM.
        secret: What is to be given back.

    Raises:
        FormatError: Not an endorsement key.
        Refused: A key that is not for decryption of the TPM's own alone.
        HostError: No tpm2-pytss.
    """
    area = parse_public(ek)
    wanted = {"fixedTPM", "fixedParent", "sensitiveDataOrigin", "restricted", "decrypt"}
    lacking = sorted(wanted - area.attributes)
    if lacking or "sign" in area.attributes or name is None:
        raise Refused(
            "not an endorsement key",
            differences=(*(f"{attribute} is clear" for attribute in lacking),),
        )
    try:
        from tpm2_pytss import TPM2B_PUBLIC, TSS2_Exception
        from tpm2_pytss.utils import make_credential
    except ImportError as error:
        raise HostError(
            f"tpm2-pytss cannot be loaded: {error}", hint="pip install 'excise[tpm]'"
        ) from None
    framed = len(area.raw).to_bytes(2, "big") + area.raw
    try:
        public, _ = TPM2B_PUBLIC.unmarshal(framed)
        blob, encrypted = make_credential(public, secret, name)
    except (TSS2_Exception, ValueError, RuntimeError) as error:
        raise FormatError(f"no key to encrypt to ({error})", field="endorsement key") from None
    return bytes(blob.marshal()), bytes(encrypted.marshal())


def check_endorsement(
    certificate: bytes,
    *,
    ek: bytes,
    roots: Sequence[Certificate],
    intermediates: Sequence[Certificate] = (),
    now: datetime.datetime | None = None,
) -> str:
    """Return the subject, or else the serial number, of an EK certificate that holds.

    The chain is followed by signatures, dates, and who may sign certificates. The rules of the web
    are not applied: TPM makers' certificates do not follow them. Revocation is not looked up.

    Args:
        certificate: DER; what follows the certificate in the TPM's memory is left out.
        ek: TPM2B_PUBLIC of the endorsement key.
        roots: Certificates to trust.
        intermediates: Others that may be in between.
        now: Time to judge the dates by; the present when None.

    Raises:
        FormatError: Not a certificate, or not a key.
        Refused: Of another key, not for EKs, or under none of the roots.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    try:
        leaf = x509.load_der_x509_certificate(_first_der(certificate))
        theirs = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        usages = _extended_usages(leaf)
    except ValueError as error:
        raise FormatError(f"not a certificate ({error})", field="EK certificate") from None
    ours = read_attestation_key(ek, source="endorsement key").key
    if ours.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo) != theirs:
        raise Refused("the EK certificate is of another key")
    if usages is not None and _EK_USAGE not in usages:
        raise Refused("the certificate is not one of an endorsement key")
    moment = now or datetime.datetime.now(datetime.UTC)
    _check_dates(leaf, moment)
    chain = leaf
    for _ in range(MAX_CHAIN):
        for issuer in [*roots, *intermediates]:
            if _signed_by(chain, issuer):
                _check_dates(issuer, moment)
                if issuer in roots:
                    return leaf.subject.rfc4514_string() or f"serial {leaf.serial_number:x}"
                chain = issuer
                break
        else:
            break
    raise Refused(
        f"the EK certificate is under no root that was given ({counted(len(roots), 'root')})",
        hint=f"It was issued by {chain.issuer.rfc4514_string()}",
    )


def _first_der(data: bytes) -> bytes:
    """Return a DER structure without the padding that NV memory leaves behind it."""
    if len(data) > 4 and data[:2] == b"\x30\x82":
        return data[: 4 + int.from_bytes(data[2:4], "big")]
    return data


def _extended_usages(certificate: Certificate) -> set[str] | None:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    except x509.ExtensionNotFound:
        return None
    return {usage.dotted_string for usage in found.value}


def _check_dates(certificate: Certificate, moment: datetime.datetime) -> None:
    if not certificate.not_valid_before_utc <= moment <= certificate.not_valid_after_utc:
        dates = f"{certificate.not_valid_before_utc:%F} to {certificate.not_valid_after_utc:%F}"
        raise Refused(
            "a certificate of the EK's chain is not valid today",
            differences=(f"{certificate.subject.rfc4514_string() or 'the EK'}: {dates}",),
        )


def _signed_by(certificate: Certificate, issuer: Certificate) -> bool:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    try:
        basic = issuer.extensions.get_extension_for_class(x509.BasicConstraints).value
        if not basic.ca:
            return False
        with_usage = [e.value for e in issuer.extensions if isinstance(e.value, x509.KeyUsage)]
        if with_usage and not with_usage[0].key_cert_sign:
            return False
        certificate.verify_directly_issued_by(issuer)
    except (
        x509.ExtensionNotFound,
        InvalidSignature,
        UnsupportedAlgorithm,
        ValueError,
        TypeError,
    ):
        return False
    return True


def read_certificates(data: bytes, *, source: str) -> tuple[Certificate, ...]:
    """Return the certificates of a PEM file, or the one of a DER file.

    Raises:
        FormatError: There is none.
    """
    from cryptography import x509

    try:
        if b"-----BEGIN " in data:
            return tuple(x509.load_pem_x509_certificates(data))
        return (x509.load_der_x509_certificate(data),)
    except ValueError as error:
        raise FormatError(f"no certificate ({error})", source=source) from None
