"""A group with one member in software, for tests: made once, every key new."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.keys import SoftwareKey, prove_member_key, sign
from excise.evidence.checks import Outcome
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    DaaAppraisal,
    DaaVerifier,
    IssuerPublicKey,
    Signature,
)

MESSAGE = b"the state of a sensor"
BASENAME = b"verifier.example"
NONCE = b"nonce of the issuer"


@dataclass(frozen=True)
class Group:
    secret: IssuerSecretKey
    public: IssuerPublicKey
    key: SoftwareKey
    credential: Credential
    credential_signature: CredentialSignature
    verifier: DaaVerifier

    def sign(self, message: bytes = MESSAGE, basename: bytes | None = None) -> Signature:
        return sign(self.key, self.credential, message=message, basename=basename)


def new_group() -> Group:
    secret = IssuerSecretKey.generate()
    public = secret.public_key()
    key = SoftwareKey.generate()
    credential, proof = secret.admit(prove_member_key(key, nonce=NONCE), nonce=NONCE)
    return Group(secret, public, key, credential, proof, DaaVerifier(public))


@cache
def group() -> Group:
    return new_group()


def failed(result: DaaAppraisal) -> list[str]:
    """Return the ids of the checks that failed."""
    return [check.id for check in result.checks if check.outcome is Outcome.FAILED]


def got(result: DaaAppraisal, check_id: str) -> str:
    """Return what one check found."""
    return next(check.got for check in result.checks if check.id == check_id)


def changed(signature: Signature, **fields: object) -> Signature:
    return replace(signature, **fields)  # type: ignore[arg-type]
