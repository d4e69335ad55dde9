"""A member joins a group over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from excise.attest.daa.folders import (
    key_place,
    read_file,
    write_membership,
)
from excise.attest.daa.join import (
    JoinActivation,
    JoinAnswer,
    JoinIssued,
    JoinKey,
    JoinOpened,
    TpmClaim,
)
from excise.attest.daa.keys import MemberKey, SoftwareKey, accept_credential, prove_member_key
from excise.attest.daa.tpm import EkType, TpmKey, open_key
from excise.attest.service import ServiceClient
from excise.capture.store import write_durably
from excise.errors import FormatError, Refused
from excise.evidence.daa import (
    Credential,
    CredentialSignature,
    DaaVerifier,
    GroupPublicKey,
    IssuerPublicKey,
    KeyAssurance,
    check_issuer_key,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A membership that was accepted and kept.

    Attributes:
        folder: Where it is kept.
        assurance: What the issuer had proven of the key.
        rule: What the group asks of every key, and so what a signature proves.
        group_key: The group's public key.
    """

    folder: Path
    assurance: KeyAssurance
    rule: KeyAssurance
    group_key: bytes


def join(
    client: ServiceClient,
    folder: Path,
    *,
    expected: GroupPublicKey | None = None,
    certificates: Sequence[bytes] = (),
    ek: EkType = "ecc",
    endorsement_auth: bytes = b"",
) -> Joined:
    """Join the group of a service with the key of a member's folder, and keep the credential.

    Args:
        client: Of the issuer's service.
        folder: The member's, with a key in it.
        expected: The group's key as known from elsewhere; None to take the service's word.
        certificates: EK certificate and others of its chain, in DER; those in the TPM when empty.
        ek: Type of the EK to be addressed by.
        endorsement_auth: Password of the TPM's endorsement hierarchy.

    Raises:
        Refused: The issuer refuses, is another than expected, or sent what is no credential.
        HostError: The service or the TPM cannot be used.
        FormatError: A file or an answer cannot be read.
    """
    opened = client.post("/daa/v1/join", {}, JoinOpened)
    issuer = IssuerPublicKey.from_bytes(opened.issuer_key, source="issuer_key")
    if expected is not None and issuer.group != expected:
        raise Refused("the service is the issuer of another group than the one expected")
    if not check_issuer_key(issuer):
        raise Refused("the issuer does not prove its key")
    place = key_place(folder)
    if place is None:
        key = SoftwareKey.from_bytes(read_file(folder / "sk.bin"), source=str(folder / "sk.bin"))
        issued = _present(client, folder, key, opened, tpm=None).issued
        public = key.public
    else:
        with open_key(place, endorsement_auth=endorsement_auth) as held:
            issued = _join_tpm(client, folder, held, opened, place.public, certificates, ek)
            public = held.public
    if issued is None:
        raise FormatError("the issuer sent no credential")
    credential = Credential.from_bytes(issued.credential, source="credential")
    signature = CredentialSignature.from_bytes(
        issued.credential_signature, source="credential_signature"
    )
    accept_credential(DaaVerifier(issuer), credential, signature, member=public)
    group_key = issuer.group.to_bytes()
    write_membership(folder, credential, signature, issuer=issuer, group_key=group_key)
    return Joined(
        folder=folder,
        assurance=KeyAssurance.from_dict(issued.assurance),
        rule=KeyAssurance.from_dict(opened.rule),
        group_key=group_key,
    )


def _present(
    client: ServiceClient, folder: Path, key: MemberKey, opened: JoinOpened, *, tpm: TpmClaim | None
) -> JoinAnswer:
    member_key = prove_member_key(key, nonce=opened.nonce).to_bytes()
    write_durably(folder / "pk.bin", member_key)
    message = JoinKey(member_key=member_key, tpm=tpm)
    return client.post(f"/daa/v1/join/{opened.session}/key", message, JoinAnswer)


def _join_tpm(
    client: ServiceClient,
    folder: Path,
    key: TpmKey,
    opened: JoinOpened,
    public: bytes,
    certificates: Sequence[bytes],
    ek: EkType,
) -> JoinIssued | None:
    endorsement = key.endorsement_key(ek=ek)
    chain = list(certificates)
    if not chain and endorsement.certificate is not None:
        chain = [endorsement.certificate]
    claim = TpmClaim(public=public, endorsement_key=endorsement.public, certificates=chain)
    answer = _present(client, folder, key, opened, tpm=claim)
    if answer.challenge is None:
        return answer.issued
    secret = key.activate(answer.challenge.blob, answer.challenge.secret, ek=ek)
    return client.post(
        f"/daa/v1/join/{opened.session}/activation", JoinActivation(secret=secret), JoinAnswer
    ).issued
