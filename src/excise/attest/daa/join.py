"""The protocol by which a member joins a group, without the wire it goes over.

1. The member opens a session and gets a nonce.
2. It sends its key with the proof over that nonce; with the key in a TPM, also the key's public
   area and the EK. A key in software gets its credential now, where the rule admits one.
3. A key in a TPM gets a challenge made out to its name, and its credential when it sends back what
   was in it.

Each step is taken once: a message sent again finds the session used.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from excise.attest.daa.admission import (
    CHALLENGE_BYTES,
    check_endorsement,
    check_member_area,
    make_challenge,
    read_certificates,
)
from excise.attest.daa.folders import IssuerFolder
from excise.attest.service.sessions import SessionStore
from excise.errors import Refused, UsageError
from excise.evidence.daa import KeyAssurance, KeyProtection, MemberPublicKey, check_member_key

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

NONCE_BYTES: Final = 32
_MAX_CERTIFICATES: Final = 5


class JoinOpened(msgspec.Struct, frozen=True):
    """What a member needs to prove its key."""

    session: str
    nonce: bytes
    lifetime_s: float
    issuer_key: bytes
    rule: dict[str, str | bool | None]


class TpmClaim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key in a TPM: its public area, the TPM's EK, and the EK's certificates in DER."""

    public: bytes
    endorsement_key: bytes
    certificates: list[bytes] = []


class JoinKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A member's public key with its proof, and where it lives."""

    member_key: bytes
    tpm: TpmClaim | None = None


class JoinActivation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was in the challenge."""

    secret: bytes


class JoinChallenge(msgspec.Struct, frozen=True):
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET."""

    blob: bytes
    secret: bytes


class JoinIssued(msgspec.Struct, frozen=True):
    """A credential, its proof, and what was proven of the key."""

    credential: bytes
    credential_signature: bytes
    assurance: dict[str, str | bool | None]


class JoinAnswer(msgspec.Struct, frozen=True):
    """A challenge or a credential."""

    challenge: JoinChallenge | None = None
    issued: JoinIssued | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """A session whose member has not sent its key; or, with a secret, not its activation."""

    nonce: bytes
    key: MemberPublicKey | None = None
    secret: bytes = b""
    assurance: KeyAssurance | None = None
    record: dict[str, Any] | None = None


class JoinDesk:
    """Where members join one issuer's group.

    Args:
        issuer: The issuer's keys and rule.
        roots: Certificates under which EK certificates are trusted.
        intermediates: Other certificates that may be in a chain.
        sessions: Where sessions are held; a new store when None.

    Raises:
        UsageError: The rule asks for EK certificates, and there is no root to judge them by.
    """

    def __init__(
        self,
        issuer: IssuerFolder,
        *,
        roots: Sequence[Certificate] = (),
        intermediates: Sequence[Certificate] = (),
        sessions: SessionStore[_Waiting] | None = None,
    ) -> None:
        if issuer.rule.protection is KeyProtection.CERTIFIED_TPM and not roots:
            raise UsageError(
                "the group admits certified TPMs only, and no root of their makers was given",
                hint="Give the makers' certificates: --ek-ca FILE",
            )
        self._issuer = issuer
        self._roots, self._intermediates = tuple(roots), tuple(intermediates)
        self._sessions = sessions if sessions is not None else SessionStore[_Waiting]()

    def open(self) -> JoinOpened:
        """Return a new session and its nonce.

        Raises:
            NoRoomError: Too many are open.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        return JoinOpened(
            session=self._sessions.open(_Waiting(nonce=nonce)),
            nonce=nonce,
            lifetime_s=self._sessions.lifetime_s,
            issuer_key=self._issuer.public.to_bytes(),
            rule=self._issuer.rule.as_dict(),
        )

    def present(self, session: str, message: JoinKey) -> JoinAnswer:
        """Return a credential for a key in software, a challenge for one in a TPM.

        Raises:
            FormatError: A part of the message cannot be read.
            Refused: The proof does not hold, or the rule does not admit the key.
            SessionError: The session is unknown, used or over.
        """
        waiting = self._sessions.take(session)
        if waiting.key is not None:
            raise Refused("this session waits for the activation of its key")
        key = MemberPublicKey.from_bytes(message.member_key, source="member_key")
        if not check_member_key(key, nonce=waiting.nonce).holds:
            raise Refused(
                "the key does not prove its secret over the nonce of this session",
                hint="Prove it over the nonce that opened the session",
            )
        rule = self._issuer.rule
        if message.tpm is None:
            assurance = KeyAssurance(protection=KeyProtection.SOFTWARE)
            _require(assurance, rule)
            return JoinAnswer(issued=self._issue(key, assurance, {}))
        area = check_member_area(message.tpm.public, member=key.q, rule=rule)
        assurance, record = self._endorsed(message.tpm)
        _require(assurance, rule)
        secret = secrets.token_bytes(CHALLENGE_BYTES)
        blob, encrypted = make_challenge(message.tpm.endorsement_key, area.name, secret)
        self._sessions.keep(
            session,
            _Waiting(
                nonce=waiting.nonce, key=key, secret=secret, assurance=assurance, record=record
            ),
        )
        return JoinAnswer(challenge=JoinChallenge(blob=blob, secret=encrypted))

    def activate(self, session: str, message: JoinActivation) -> JoinAnswer:
        """Return the credential of a key whose TPM opened the challenge.

        Raises:
            Refused: The secret is another.
            SessionError: The session is unknown, used or over.
        """
        waiting = self._sessions.take(session)
        if waiting.key is None or waiting.assurance is None:
            raise Refused("this session waits for a key, not for an activation")
        if not hmac.compare_digest(waiting.secret, message.secret):
            raise Refused(
                "the challenge was not opened",
                hint="Only the TPM of the EK that was sent, holding the key that was sent, can",
            )
        return JoinAnswer(issued=self._issue(waiting.key, waiting.assurance, waiting.record or {}))

    def _endorsed(self, claim: TpmClaim) -> tuple[KeyAssurance, dict[str, Any]]:
        """Return what the EK and its certificates prove, and what to keep of them."""
        rule = self._issuer.rule
        protection, record = KeyProtection.TPM, {"ek": claim.endorsement_key.hex()}
        if len(claim.certificates) > _MAX_CERTIFICATES:
            raise Refused(f"{len(claim.certificates)} certificates exceed {_MAX_CERTIFICATES}")
        if self._roots and claim.certificates:
            more = [
                certificate
                for data in claim.certificates[1:]
                for certificate in read_certificates(data, source="certificates")
            ]
            record["ek_certificate"] = check_endorsement(
                claim.certificates[0],
                ek=claim.endorsement_key,
                roots=self._roots,
                intermediates=[*self._intermediates, *more],
            )
            protection = KeyProtection.CERTIFIED_TPM
        return (
            KeyAssurance(
                protection=protection,
                pcr_policy=rule.pcr_policy,
                selection=rule.selection,
                quoting=rule.quoting,
            ),
            record,
        )

    def _issue(
        self, key: MemberPublicKey, assurance: KeyAssurance, record: dict[str, Any]
    ) -> JoinIssued:
        credential, signature = self._issuer.secret.issue(key.q)
        self._issuer.record(key.q, assurance, record)
        return JoinIssued(
            credential=credential.to_bytes(),
            credential_signature=signature.to_bytes(),
            assurance=assurance.as_dict(),
        )


def _require(proven: KeyAssurance, rule: KeyAssurance) -> None:
    if proven.protection.rank < rule.protection.rank:
        wanted = {
            KeyProtection.TPM: "a key in a TPM",
            KeyProtection.CERTIFIED_TPM: "a key in a TPM whose EK certificate is under its roots",
        }[rule.protection]
        raise Refused(
            f"this group admits {wanted} only, and this is one of the kind "
            f"{proven.protection.value}",
            hint="Join with --tpm, and with the EK's certificate where the group asks for it",
        )
    if rule.pcr_policy is not None and proven.pcr_policy is None:
        raise Refused(
            f"this group admits keys bound to the PCRs {rule.selection} only",
            hint="Join with --tpm and --bind",
        )
