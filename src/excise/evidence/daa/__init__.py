"""ECDAA signatures: what they are made of, and whether they hold.

`DaaVerifier` verifies the signatures of a group. The roles that make keys, credentials and
signatures are in `excise.attest.daa`.
"""

from excise.evidence.daa.assurance import KeyAssurance, KeyProtection, policy_pcr_digest
from excise.evidence.daa.hashing import basename_point, framed_message
from excise.evidence.daa.linking import Links, link
from excise.evidence.daa.quoted import QuotedState
from excise.evidence.daa.revocation import RevokedKeys, RevokedPseudonyms
from excise.evidence.daa.schnorr import (
    Dialect,
    ProofResult,
    check_issuer_key,
    check_member_key,
)
from excise.evidence.daa.structures import (
    Credential,
    CredentialSignature,
    GroupPublicKey,
    IssuerPublicKey,
    MemberPublicKey,
    Signature,
    read_group_key,
)
from excise.evidence.daa.verify import DaaAppraisal, DaaVerifier, SignedMessage

__all__ = [
    "Credential",
    "CredentialSignature",
    "DaaAppraisal",
    "DaaVerifier",
    "Dialect",
    "GroupPublicKey",
    "IssuerPublicKey",
    "KeyAssurance",
    "KeyProtection",
    "Links",
    "MemberPublicKey",
    "ProofResult",
    "QuotedState",
    "RevokedKeys",
    "RevokedPseudonyms",
    "Signature",
    "SignedMessage",
    "basename_point",
    "check_issuer_key",
    "check_member_key",
    "framed_message",
    "link",
    "policy_pcr_digest",
    "read_group_key",
]
