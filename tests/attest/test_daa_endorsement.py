"""Certificates of endorsement keys: each rule of the chain, broken alone, refuses it."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, replace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from excise.attest.daa.admission import check_endorsement
from excise.errors import Refused

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
YEAR = datetime.timedelta(days=365)
EK_USAGE = "2.23.133.8.1"


def key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


EK, MAKER, ROOT = key(), key(), key()


@dataclass(frozen=True, kw_only=True)
class Chain:
    """What an EK's certificate and those above it say; as it is, it holds."""

    usages: tuple[str, ...] = (EK_USAGE,)
    authority: bool | None = True
    signs_certificates: bool | None = True
    maker_ends: datetime.datetime = NOW + YEAR
    root_ends: datetime.datetime = NOW + YEAR
    signer: ec.EllipticCurvePrivateKey = MAKER
    subject: ec.EllipticCurvePrivateKey = EK

    def check(self) -> str:
        root = authority("root", ROOT, "root", ROOT, ends=self.root_ends)
        maker = authority(
            "maker",
            MAKER,
            "root",
            ROOT,
            ends=self.maker_ends,
            is_authority=self.authority,
            signs_certificates=self.signs_certificates,
        )
        leaf = certificate("ek", self.subject, "maker", ends=NOW + YEAR)
        if self.usages:
            found = [x509.ObjectIdentifier(each) for each in self.usages]
            leaf = leaf.add_extension(x509.ExtendedKeyUsage(found), critical=False)
        made = leaf.sign(self.signer, SHA256())
        public = EK.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        padded = made.public_bytes(Encoding.DER) + bytes(40)  # as memory of a TPM has it
        return check_endorsement(padded, ek=public, roots=[root], intermediates=[maker], now=NOW)


def certificate(
    name: str, of: ec.EllipticCurvePrivateKey, issuer: str, *, ends: datetime.datetime
) -> x509.CertificateBuilder:
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(named[0])
        .issuer_name(named[1])
        .public_key(of.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 2 * YEAR)
        .not_valid_after(ends)
    )


def authority(
    name: str,
    of: ec.EllipticCurvePrivateKey,
    issuer: str,
    by: ec.EllipticCurvePrivateKey,
    *,
    ends: datetime.datetime,
    is_authority: bool | None = True,
    signs_certificates: bool | None = True,
) -> x509.Certificate:
    made = certificate(name, of, issuer, ends=ends)
    if is_authority is not None:
        basic = x509.BasicConstraints(ca=is_authority, path_length=None)
        made = made.add_extension(basic, critical=True)
    if signs_certificates is not None:
        others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
        usage = x509.KeyUsage(
            digital_signature=True,
            key_cert_sign=signs_certificates,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
            **dict.fromkeys(others, False),
        )
        made = made.add_extension(usage, critical=True)
    return made.sign(by, SHA256())


@pytest.mark.parametrize(
    "sound", [Chain(), Chain(usages=()), Chain(usages=("1.2.3", EK_USAGE)),
              Chain(signs_certificates=None)],
)  # fmt: skip
def test_a_certificate_under_a_root_holds(sound: Chain) -> None:
    assert sound.check() == "CN=ek"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"usages": ("1.2.3",)}, "not one of an endorsement key"),
        ({"authority": False}, "under no root that was given"),
        ({"authority": None}, "under no root that was given"),
        ({"signs_certificates": False}, "under no root that was given"),
        ({"maker_ends": NOW - YEAR}, r"not valid today\n.*CN=maker"),
        ({"root_ends": NOW - YEAR}, r"not valid today\n.*CN=root"),
        ({"signer": key()}, "under no root that was given"),
        ({"subject": key()}, "is of another key"),
    ],
)
def test_a_chain_with_one_thing_wrong_is_refused(change: dict[str, object], reason: str) -> None:
    with pytest.raises(Refused, match=reason):
        replace(Chain(), **change).check()
