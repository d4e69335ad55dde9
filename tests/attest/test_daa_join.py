"""Joining a group: the protocol at its desk, and over HTTP with a software TPM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from daa_group import MESSAGE, failed
from ended import PATIENCE_S, ended
from excise.attest.daa import folders
from excise.attest.daa.admission import read_certificates
from excise.attest.daa.folders import IssuerFolder, init_issuer
from excise.attest.daa.join import JoinActivation, JoinDesk, JoinKey, TpmClaim
from excise.attest.daa.joining import join
from excise.attest.daa.keys import SoftwareKey, prove_member_key, sign
from excise.attest.daa.tpm import TpmKey, open_key
from excise.attest.daa.tpm_setup import TpmKeyPlace, create_key
from excise.attest.service import ServiceClient, SessionStore
from excise.attest.service.sessions import SessionExpired, SessionUnknown, SessionUsed
from excise.errors import FormatError, Refused, UsageError
from excise.evidence.daa import (
    DaaVerifier,
    Dialect,
    KeyAssurance,
    KeyProtection,
    MemberPublicKey,
    check_member_key,
    policy_pcr_digest,
)
from excise.evidence.daa.curve import encode_g1, encode_scalar, random_scalar
from software_tpm import SoftwareTpm, new_tpm, require
from tls_files import write_tls

require("tpm2_pytss")

SOFTWARE = KeyAssurance(protection=KeyProtection.SOFTWARE)
TPM = KeyAssurance(protection=KeyProtection.TPM)


@pytest.fixture
def issuer(tmp_path: Path) -> IssuerFolder:
    return init_issuer(tmp_path / "issuer", rule=SOFTWARE)


@pytest.fixture
def tpm_issuer(tmp_path: Path) -> IssuerFolder:
    return init_issuer(tmp_path / "tpm-issuer", rule=TPM)


def presented(key: Any, nonce: bytes, claim: TpmClaim | None = None) -> JoinKey:
    return JoinKey(member_key=prove_member_key(key, nonce=nonce).to_bytes(), tpm=claim)


def claim_of(key: TpmKey, place: TpmKeyPlace) -> TpmClaim:
    return TpmClaim(public=place.public, endorsement_key=key.endorsement_key().public)


def noted(issuer: IssuerFolder) -> list[dict[str, Any]]:
    path = issuer.path / "issued.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# At the desk, a key in software


def test_a_key_in_software_joins_where_it_is_admitted(issuer: IssuerFolder) -> None:
    desk, key = JoinDesk(issuer), SoftwareKey.generate()
    opened = desk.open()
    issued = desk.present(opened.session, presented(key, opened.nonce)).issued
    assert issued is not None
    assert issued.assurance["protection"] == "software"
    assert [line["member"] for line in noted(issuer)] == [encode_g1(key.public).hex()]


def test_a_join_that_is_sent_again_is_refused(issuer: IssuerFolder) -> None:
    desk, key = JoinDesk(issuer), SoftwareKey.generate()
    opened = desk.open()
    message = presented(key, opened.nonce)
    assert desk.present(opened.session, message).issued
    with pytest.raises(SessionUsed, match="used already"):
        desk.present(opened.session, message)
    again = desk.open()
    with pytest.raises(Refused, match="does not prove its secret over the nonce of this session"):
        desk.present(again.session, message)
    assert len(noted(issuer)) == 1


def test_a_join_over_the_nonce_of_another_session_is_refused(issuer: IssuerFolder) -> None:
    desk, key = JoinDesk(issuer), SoftwareKey.generate()
    mine, other = desk.open(), desk.open()
    with pytest.raises(Refused, match="over the nonce of this session"):
        desk.present(mine.session, presented(key, other.nonce))
    with pytest.raises(SessionUnknown, match="no such session"):
        desk.present("00" * 32, presented(key, other.nonce))
    assert noted(issuer) == []


def test_a_join_after_its_time_is_refused(issuer: IssuerFolder) -> None:
    now = [0.0]
    desk = JoinDesk(issuer, sessions=SessionStore(lifetime_s=5, clock=lambda: now[0]))
    opened = desk.open()
    now[0] = 5.0
    with pytest.raises(SessionExpired, match="lasted 5 s"):
        desk.present(opened.session, presented(SoftwareKey.generate(), opened.nonce))


def test_a_join_with_a_challenge_of_the_keys_own_is_refused(issuer: IssuerFolder) -> None:
    """Anybody can make such a proof, for a key that is not theirs."""
    desk, victim = JoinDesk(issuer), SoftwareKey.generate()
    opened = desk.open()
    c, s = random_scalar(), random_scalar()
    forged = MemberPublicKey(q=victim.public, c=c, s=s, nonce=encode_scalar(c))
    assert check_member_key(forged, nonce=opened.nonce).dialect is Dialect.OWN_CHALLENGE
    with pytest.raises(Refused, match="does not prove its secret"):
        desk.present(opened.session, JoinKey(member_key=forged.to_bytes()))
    with pytest.raises(Refused, match="does not prove its secret"):
        issuer.secret.admit(forged, nonce=opened.nonce)
    assert noted(issuer) == []


def test_an_unreadable_key_is_an_error_and_uses_the_session(issuer: IssuerFolder) -> None:
    desk = JoinDesk(issuer)
    opened = desk.open()
    with pytest.raises(FormatError, match="a member public key has 161"):
        desk.present(opened.session, JoinKey(member_key=b"short"))
    with pytest.raises(SessionUsed, match="used already"):
        desk.present(opened.session, presented(SoftwareKey.generate(), opened.nonce))


# At the desk, a key in a TPM


def test_a_key_in_a_tpm_joins_by_opening_its_challenge(
    tpm_issuer: IssuerFolder, key: TpmKey, place: TpmKeyPlace
) -> None:
    desk = JoinDesk(tpm_issuer)
    opened = desk.open()
    answer = desk.present(opened.session, presented(key, opened.nonce, claim_of(key, place)))
    assert answer.issued is None
    assert answer.challenge is not None
    assert noted(tpm_issuer) == []
    secret = key.activate(answer.challenge.blob, answer.challenge.secret)
    issued = desk.activate(opened.session, JoinActivation(secret=secret)).issued
    assert issued is not None
    assert issued.assurance["protection"] == "tpm"
    assert noted(tpm_issuer)[0]["ek"] == key.endorsement_key().public.hex()
    with pytest.raises(SessionUsed, match="used already"):
        desk.activate(opened.session, JoinActivation(secret=secret))


def test_a_key_in_software_is_refused_where_a_tpm_is_asked_for(
    tpm_issuer: IssuerFolder, key: TpmKey, place: TpmKeyPlace
) -> None:
    desk, software = JoinDesk(tpm_issuer), SoftwareKey.generate()
    opened = desk.open()
    with pytest.raises(Refused, match=r"admits a key in a TPM only.*the kind software"):
        desk.present(opened.session, presented(software, opened.nonce))
    # Nor with the public area of a key that is in a TPM.
    opened = desk.open()
    with pytest.raises(Refused, match="the point is not the one that was proven"):
        desk.present(opened.session, presented(software, opened.nonce, claim_of(key, place)))


def test_a_challenge_that_was_not_opened_gives_no_credential(
    tpm_issuer: IssuerFolder, key: TpmKey, place: TpmKeyPlace
) -> None:
    desk = JoinDesk(tpm_issuer)
    opened = desk.open()
    desk.present(opened.session, presented(key, opened.nonce, claim_of(key, place)))
    with pytest.raises(Refused, match="the challenge was not opened"):
        desk.activate(opened.session, JoinActivation(secret=bytes(32)))
    with pytest.raises(SessionUsed, match="used already"):
        desk.activate(opened.session, JoinActivation(secret=bytes(32)))
    assert noted(tpm_issuer) == []


def test_the_steps_come_in_their_order(
    tpm_issuer: IssuerFolder, key: TpmKey, place: TpmKeyPlace
) -> None:
    desk = JoinDesk(tpm_issuer)
    opened = desk.open()
    with pytest.raises(Refused, match="waits for a key, not for an activation"):
        desk.activate(opened.session, JoinActivation(secret=b""))
    opened = desk.open()
    message = presented(key, opened.nonce, claim_of(key, place))
    desk.present(opened.session, message)
    with pytest.raises(Refused, match="waits for the activation of its key"):
        desk.present(opened.session, message)


def test_a_group_of_bound_keys_refuses_one_that_is_not(
    tmp_path: Path, key: TpmKey, place: TpmKeyPlace, swtpm: SoftwareTpm
) -> None:
    policy = policy_pcr_digest({"sha256": {7: bytes(32)}})
    rule = KeyAssurance(protection=KeyProtection.TPM, pcr_policy=policy, selection="sha256:7")
    desk = JoinDesk(init_issuer(tmp_path / "bound", rule=rule))
    opened = desk.open()
    with pytest.raises(Refused, match=r"the policy is none\n.*userWithAuth is set"):
        desk.present(opened.session, presented(key, opened.nonce, claim_of(key, place)))
    bound = create_key(swtpm.tcti, handle=place.handle + 1, bound_to={"sha256": (7,)})
    opened = desk.open()
    with open_key(bound) as other:
        assert desk.present(
            opened.session, presented(other, opened.nonce, claim_of(other, bound))
        ).challenge


def test_a_group_of_certified_tpms_needs_roots_and_a_certificate(
    tmp_path: Path, key: TpmKey, place: TpmKeyPlace
) -> None:
    rule = KeyAssurance(protection=KeyProtection.CERTIFIED_TPM)
    certified = init_issuer(tmp_path / "certified", rule=rule)
    with pytest.raises(UsageError, match="no root of their makers was given"):
        JoinDesk(certified)
    certificate, _ = write_tls(tmp_path)
    desk = JoinDesk(certified, roots=read_certificates(certificate.read_bytes(), source="root"))
    opened = desk.open()
    with pytest.raises(Refused, match="whose EK certificate is under its roots only"):
        desk.present(opened.session, presented(key, opened.nonce, claim_of(key, place)))
    opened = desk.open()
    wrong = TpmClaim(
        public=place.public,
        endorsement_key=key.endorsement_key().public,
        certificates=[_der(certificate)],
    )
    with pytest.raises(Refused, match="the EK certificate is of another key"):
        desk.present(opened.session, presented(key, opened.nonce, wrong))


def _der(path: Path) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return read_certificates(path.read_bytes(), source="pem")[0].public_bytes(Encoding.DER)


# Over HTTP, through the real programs

Program = Callable[..., subprocess.CompletedProcess[str]]
MAIN = [sys.executable, "-c", "from excise.cli.main import main; main()"]


def excise(*words: object, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(
        [*MAIN, *map(str, words)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def serve(*words: object, cwd: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [*MAIN, "daa", "issuer", "serve", *map(str, words), "--listen", "127.0.0.1:0"],
        cwd=cwd,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> None:
    with ended(process):
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


def test_a_sensor_joins_signs_is_verified_and_revoked(tmp_path: Path) -> None:
    with new_tpm() as tpm:
        call = {"cwd": tmp_path}
        certificate, key = write_tls(tmp_path)
        excise("daa", "issuer", "init", "issuer", "--admit", "tpm", **call)
        process, url = serve(
            "issuer", "--tls-certificate", certificate, "--tls-key", key, cwd=tmp_path
        )
        try:
            assert url.startswith("https://127.0.0.1:")
            at = ("--issuer", url, "--ca", certificate)
            said = excise("daa", "member", "join", "software", *at, **call, code=1)
            assert "this group admits a key in a TPM only" in said
            with_tpm = ("--tpm", tpm.tcti, "--group", "issuer/gpk.bin")
            joined = json.loads(
                excise("daa", "member", "join", "sensor", *at, *with_tpm, "--json", **call)
            )
            assert joined["key"]["protection"] == "tpm"
            assert any("cannot leave the TPM" in line for line in joined["proves"])
        finally:
            stop(process)
        (tmp_path / "report").write_bytes(MESSAGE)
        signing = ("--message", "report", "--nonce", "00aa", "--basename", "b")
        excise("daa", "member", "sign", "sensor", *signing, "-o", "sig.bin", **call)
        group = ("--group", "issuer/ipk.bin", "--rule", "issuer/group.json")
        said = excise("verify", "daa", "sig.bin", *signing, *group, **call)
        assert said.startswith("daa: PASSED")
        assert "leaves_open: The TPM may be a program" in said
        excise("daa", "revoke", "list.json", "--signature", "sig.bin", "--basename", "b", **call)
        said = excise(
            *("daa", "verify", "sig.bin", *signing, *group),
            *("--revoked-pseudonyms", "list.json"),
            **call,
            code=1,
        )
        assert "FAILED      daa.revoked_pseudonyms" in said
        other = ("--message", "report", "--nonce", "00ab", "--basename", "b")
        said = excise("daa", "verify", "sig.bin", *other, *group, **call, code=1)
        assert "FAILED      daa.proof" in said
        for name in ("pub_key.txt", "handle.txt"):
            assert (tmp_path / "sensor" / name).stat().st_size
        claimed = ("--pcr", "sha256:7=" + "00" * 32)
        said = excise("daa", "verify", "sig.bin", *signing, *group, *claimed, **call, code=1)
        assert "FAILED      daa.pcr_state" in said


def test_a_group_is_run_by_files_as_with_xaptum_s_tools(tmp_path: Path) -> None:
    call = {"cwd": tmp_path}
    excise("daa", "issuer", "init", "issuer", **call)
    excise("daa", "member", "join", "member", "--nonce", "nonce-text", **call)
    issue = ("daa", "issuer", "issue", "issuer", "--member-key", "member/pk.bin", "--nonce")
    said = excise(*issue, "another-text", **call, code=1)
    assert "does not prove its secret over this nonce" in said
    excise(*issue, "nonce-text", **call)
    take = ("--credential", "cred.bin", "--credential-signature", "cred_sig.bin")
    excise("daa", "member", "join", "member", *take, "--group", "issuer/gpk.bin", **call)
    (tmp_path / "message.bin").write_bytes(MESSAGE)
    excise("daa", "member", "sign", "member", "-m", "message.bin", **call)
    verify = ("daa", "verify", "sig.bin", "-m", "message.bin", "-g", "issuer/gpk.bin")
    excise(*verify, **call)
    sizes = {name: (tmp_path / name).stat().st_size for name in ("sig.bin", "cred.bin")}
    assert sizes == {"sig.bin": 356, "cred.bin": 260}
    excise("daa", "revoke", "keys.bin", "--bare", "--secret-key", "member/sk.bin", **call)
    assert (tmp_path / "keys.bin").read_bytes() == (tmp_path / "member/sk.bin").read_bytes()
    said = excise(*verify, "--revoked-keys", "keys.bin", **call, code=1)
    assert "FAILED      daa.revoked_keys" in said


@pytest.mark.parametrize(
    ("data", "options", "code", "reason"),
    [
        (None, (), 3, "cannot be read"),
        (b"", (), 3, "an empty list"),
        (b"\1" * 31, (), 3, "not a whole number of 32-byte entries"),
        (b"\1" * 32, ("--revoked-keys-count", "0"), 3, "1 entry, announced were 0"),
        (b"\1" * 32, ("--revoked-keys-count", "1"), 0, "none of them"),
    ],
)
def test_a_revocation_list_that_cannot_be_read_is_an_error_never_none(
    tmp_path: Path, data: bytes | None, options: tuple[str, ...], code: int, reason: str
) -> None:
    from daa_group import group

    made = group()
    (tmp_path / "sig.bin").write_bytes(made.sign().to_bytes())
    (tmp_path / "ipk.bin").write_bytes(made.public.to_bytes())
    (tmp_path / "message").write_bytes(MESSAGE)
    if data is not None:
        (tmp_path / "list").write_bytes(data)
    said = excise(
        *("daa", "verify", "sig.bin", "-m", "message", "-g", "ipk.bin"),
        *("--revoked-keys", "list", *options),
        cwd=tmp_path,
        code=code,
    )
    assert reason in said


def test_a_count_without_a_list_is_a_usage_error(tmp_path: Path) -> None:
    for name in ("sig.bin", "m", "ipk.bin"):
        (tmp_path / name).write_bytes(b"")
    from daa_group import group

    (tmp_path / "ipk.bin").write_bytes(group().public.to_bytes())
    said = excise(
        *("daa", "verify", "sig.bin", "-m", "m", "-g", "ipk.bin", "--revoked-keys-count", "1"),
        cwd=tmp_path,
        code=2,
    )
    assert "--revoked-keys was not given" in said


def test_the_group_of_a_service_must_be_the_one_expected(tmp_path: Path) -> None:
    excise("daa", "issuer", "init", "issuer", cwd=tmp_path)
    excise("daa", "issuer", "init", "other", cwd=tmp_path)
    process, url = serve("issuer", cwd=tmp_path)
    try:
        folders.write_software_key(tmp_path / "member", SoftwareKey.generate())
        other = folders.open_issuer(tmp_path / "other").public.group
        with ServiceClient(url) as client:
            with pytest.raises(Refused, match="another group than the one expected"):
                join(client, tmp_path / "member", expected=other)
            assert not (tmp_path / "member" / "cred.bin").exists()
            joined = join(client, tmp_path / "member")
        with folders.member_key(tmp_path / "member") as key:
            signature = sign(key, folders.read_credential(tmp_path / "member"), message=MESSAGE)
        verifier = DaaVerifier(folders.open_issuer(tmp_path / "issuer").public)
        assert failed(verifier.verify(signature, message=MESSAGE)) == []
        assert joined.rule == SOFTWARE
    finally:
        stop(process)


def test_a_sensor_quotes_its_pcrs_as_a_member(tmp_path: Path) -> None:
    with new_tpm() as tpm:
        call = {"cwd": tmp_path}
        excise("daa", "issuer", "init", "issuer", "--admit", "tpm", "--quoting", **call)
        process, url = serve("issuer", cwd=tmp_path)
        try:
            at = ("--issuer", url, "--tpm", tpm.tcti)
            said = excise("daa", "member", "join", "plain", *at, **call, code=1)
            assert "restricted is clear" in said
            replaced = ("--quoting", "--replace")
            excise("daa", "member", "join", "sensor", *at, *replaced, **call)
        finally:
            stop(process)
        (tmp_path / "m").write_bytes(MESSAGE)
        signing = ("-m", "m", "--nonce", "00aa")
        excise("daa", "member", "sign", "sensor", *signing, "--quote", "sha256:0,10", **call)
        verify = ("daa", "verify", "sig.bin", *signing, "-g", "issuer/ipk.bin")
        verify += ("--rule", "issuer/group.json", "--attest", "sig.bin.attest")
        said = excise(*verify, "--pcrs", "sig.bin.pcrs", **call)
        assert "PASSED      daa.quote_pcrs" in said
        other = (tmp_path / "sig.bin.pcrs").read_text().replace("0000\n", "0001\n")
        (tmp_path / "sig.bin.pcrs").write_text(other)
        said = excise(*verify, "--pcrs", "sig.bin.pcrs", **call, code=1)
        assert "FAILED      daa.quote_pcrs" in said
