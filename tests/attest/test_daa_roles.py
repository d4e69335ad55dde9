"""Issuer and member in software, and the files they keep."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from daa_group import MESSAGE, NONCE, failed, group, new_group
from excise.attest.daa import folders
from excise.attest.daa.issuer import IssuerSecretKey
from excise.attest.daa.keys import SoftwareKey, accept_credential, prove_member_key, sign
from excise.errors import FormatError, Refused, UsageError
from excise.evidence.daa import (
    DaaVerifier,
    KeyAssurance,
    KeyProtection,
    MemberPublicKey,
    read_group_key,
)
from excise.evidence.daa.curve import encode_g1, encode_scalar, multiply
from excise.evidence.daa.field import N

SOFTWARE = KeyAssurance(protection=KeyProtection.SOFTWARE)


def test_a_member_is_admitted_over_its_own_nonce_only() -> None:
    made = group()
    key = prove_member_key(made.key, nonce=NONCE)
    made.secret.admit(key, nonce=NONCE)
    with pytest.raises(Refused, match="does not prove its secret over this nonce"):
        made.secret.admit(key, nonce=NONCE + b"!")


def test_a_proof_for_another_key_is_refused() -> None:
    made = group()
    good = prove_member_key(made.key, nonce=NONCE)
    stolen = MemberPublicKey(q=multiply(good.q, 2), c=good.c, s=good.s, nonce=good.nonce)
    with pytest.raises(Refused, match="does not prove"):
        made.secret.admit(stolen, nonce=NONCE)


def test_a_credential_is_kept_for_the_own_key_of_the_own_issuer_only() -> None:
    made, other = group(), new_group()
    given = (made.credential, made.credential_signature)
    accept_credential(made.verifier, *given, member=made.key.public)
    for verifier, member in (
        (made.verifier, other.key.public),
        (other.verifier, made.key.public),
    ):
        with pytest.raises(Refused, match="not of this issuer for this key"):
            accept_credential(verifier, *given, member=member)
    with pytest.raises(Refused, match="not of this issuer"):
        accept_credential(
            made.verifier, made.credential, other.credential_signature, member=made.key.public
        )


def test_a_credential_signs_with_its_own_key_only() -> None:
    made = group()
    stranger = sign(SoftwareKey.generate(), made.credential, message=MESSAGE)
    assert failed(made.verifier.verify(made.sign(), message=MESSAGE)) == []
    assert failed(made.verifier.verify(stranger, message=MESSAGE)) == ["daa.proof"]


def test_a_secret_key_is_one_number_below_the_order() -> None:
    key = SoftwareKey.generate()
    assert SoftwareKey.from_bytes(key.to_bytes()).public == key.public
    for data, reason in (
        (bytes(32), "zero"),
        (encode_scalar(N), "not below the group order"),
        (key.to_bytes() + b"\0", "33 bytes instead of 32"),
    ):
        with pytest.raises(FormatError, match=reason):
            SoftwareKey.from_bytes(data, source="sk.bin")
    with pytest.raises(FormatError, match="an issuer secret key has 64"):
        IssuerSecretKey.from_bytes(b"x", source="isk.bin")


def test_secrets_do_not_show_in_what_is_printed() -> None:
    secret = IssuerSecretKey.generate()
    assert str(int(secret.x)) not in repr(secret)


def test_an_issuer_s_folder_is_read_as_it_was_made(tmp_path: Path) -> None:
    rule = KeyAssurance(protection=KeyProtection.TPM, pcr_policy=b"\1" * 32, selection="sha256:7")
    made = folders.init_issuer(tmp_path / "issuer", rule=rule)
    read = folders.open_issuer(tmp_path / "issuer")
    assert (read.secret, read.public, read.rule) == (made.secret, made.public, rule)
    group_key = (tmp_path / "issuer" / "gpk.bin").read_bytes()
    assert folders.read_group_rule(tmp_path / "issuer" / "group.json", group_key=group_key) == rule
    assert DaaVerifier(read_group_key((tmp_path / "issuer" / "ipk.bin").read_bytes()))


def test_secret_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        folders.init_issuer(tmp_path / "issuer", rule=SOFTWARE)
        folders.write_software_key(tmp_path / "member", SoftwareKey.generate())
    finally:
        os.umask(before)
    for path, mode in (
        ("issuer/isk.bin", 0o600),
        ("member/sk.bin", 0o600),
        ("issuer/ipk.bin", 0o644),
    ):
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode, path


def test_an_issuer_s_key_is_never_written_over(tmp_path: Path) -> None:
    folders.init_issuer(tmp_path, rule=SOFTWARE)
    before = (tmp_path / "isk.bin").read_bytes()
    with pytest.raises(UsageError, match="holds an issuer's key already"):
        folders.init_issuer(tmp_path, rule=SOFTWARE)
    assert (tmp_path / "isk.bin").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("isk.bin", None, "cannot be read"),
        ("ipk.bin", new_group().public.to_bytes(), "not the public key of isk.bin"),
        ("group.json", b"{", "not JSON"),
        ("group.json", b'{"format": "other"}', "not of the form"),
        ("group.json", b'{"format": "excise-daa-group/1"}', "no rule of admission"),
        (
            "group.json",
            b'{"format": "excise-daa-group/1", "group_key": "00", "rule": {}}',
            "of another group",
        ),
    ],
)
def test_a_broken_issuer_s_folder_is_an_error(
    tmp_path: Path, name: str, data: bytes | None, reason: str
) -> None:
    folders.init_issuer(tmp_path, rule=SOFTWARE)
    folders.open_issuer(tmp_path)
    if data is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(FormatError, match=reason):
        folders.open_issuer(tmp_path)


def test_a_folder_made_by_xaptum_s_tools_is_an_issuer_of_software_keys(
    shared_vectors: Path, tmp_path: Path
) -> None:
    vectors = json.loads((shared_vectors / "ecdaa/xaptum_c/xaptum_made.json").read_text())
    for name in ("isk", "ipk"):
        (tmp_path / f"{name}.bin").write_bytes(bytes.fromhex(vectors[name]))
    issuer = folders.open_issuer(tmp_path)
    assert issuer.rule == SOFTWARE
    member = MemberPublicKey.from_bytes(bytes.fromhex(vectors["pk"]))
    credential, proof = issuer.secret.admit(member, nonce=bytes.fromhex(vectors["nonce"]))
    accept_credential(DaaVerifier(issuer.public), credential, proof, member=member.q)


def test_every_credential_is_noted_on_the_disk(tmp_path: Path) -> None:
    issuer = folders.init_issuer(tmp_path, rule=SOFTWARE)
    members = [SoftwareKey.generate().public for _ in range(2)]
    for member in members:
        issuer.record(member, SOFTWARE, {"ek": "00"})
    lines = [json.loads(line) for line in (tmp_path / "issued.jsonl").read_text().splitlines()]
    assert [line["member"] for line in lines] == [encode_g1(member).hex() for member in members]
    assert {(line["protection"], line["ek"]) for line in lines} == {("software", "00")}


def test_a_member_that_has_not_joined_is_told_to(tmp_path: Path) -> None:
    folders.write_software_key(tmp_path, SoftwareKey.generate())
    with pytest.raises(FormatError, match="Join a group: excise daa member join"):
        folders.read_credential(tmp_path)


def test_a_group_that_binds_keys_to_pcrs_admits_tpms_only(tmp_path: Path) -> None:
    rule = KeyAssurance(protection=KeyProtection.SOFTWARE, pcr_policy=bytes(32))
    with pytest.raises(UsageError, match="a key in software is bound to no PCRs, and quotes none"):
        folders.init_issuer(tmp_path, rule=rule)


def test_the_issuer_refuses_a_key_made_from_its_own_secrets() -> None:
    secret = IssuerSecretKey.generate()
    # Q = −1/y·P₁ makes C the identity.
    key = SoftwareKey(pow(int(-secret.y % N), -1, int(N)))
    assert encode_g1(key.public)
    with pytest.raises(Refused, match="made from the issuer's secrets"):
        secret.issue(key.public)
