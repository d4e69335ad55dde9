"""`excise verify token`, `excise verify ear` and `excise corim` from their command lines."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from excise.attest.verifier import Records, open_database, rotate
from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.corim import read_corim
from excise.evidence.corim.schema import TAG_COMID
from excise.evidence.ear import sign_ear
from in_process import Program
from token_builders import (
    FIRMWARE,
    IMPLEMENTATION,
    NONCE,
    SIGNER,
    cca_token,
    claims_2,
    component,
    corim,
    private_key,
    public_key,
    token,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "key.pem").write_text(public_key().pem())
    (tmp_path / "token.cbor").write_bytes(token())
    (tmp_path / "qemu.cbor").write_bytes(corim())
    private = private_key("vendor").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "vendor.pem").write_bytes(private)
    (tmp_path / "vendor.pub").write_text(public_key("vendor").pem())
    return tmp_path


def test_a_token_is_checked_with_a_key(folder: Path, excise: Program) -> None:
    done = excise("verify", "token", "token.cbor", "--key", "key.pem", "--nonce", NONCE.hex())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("token: PASSED")
    assert "cose.signature" in done.stdout
    assert "lifecycle: secured" in done.stdout


def test_a_token_comes_in_hexadecimal_out_of_a_console(folder: Path, excise: Program) -> None:
    words = ("--key", "key.pem", "--nonce", NONCE.hex())
    digits = token().hex()  # each token has another signature
    lines = "\r\n".join(digits[i : i + 64] for i in range(0, len(digits), 64))
    done = excise("verify", "token", "-", *words, stdin=f"{lines}\r\n".encode())
    assert done.returncode == 0, done.stdout
    done = excise("verify", "token", "-", *words, stdin=digits[:-1].encode())
    assert done.returncode == 1
    assert "no tag" in done.stdout


def test_a_token_tells_what_it_measured(folder: Path, excise: Program) -> None:
    words = ("verify", "token", "token.cbor", "--key", "key.pem", "--nonce", NONCE.hex())
    measured = json.loads(excise(*words, "--json").stdout)["results"][0]["claims"]
    listed = measured["psa-software-components"]
    assert [one["measurement-type"] for one in listed]
    assert f"{FIRMWARE.hex()}, signer {SIGNER.hex()}" in excise(*words).stdout


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("", "--nonce is empty"),
        (NONCE.hex()[:-1], "two make a byte"),
        ("0x" + NONCE.hex()[:-1], "two make a byte"),
        ("*", "neither hexadecimal nor base64"),
    ],
)
def test_a_challenge_that_is_cut_off_is_not_taken_for_another_one(
    folder: Path, excise: Program, given: str, said: str
) -> None:
    done = excise("verify", "token", "token.cbor", "--key", "key.pem", "--nonce", given)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_challenge_may_be_written_as_c_writes_numbers(folder: Path, excise: Program) -> None:
    nonce = f"0x{NONCE.hex()} "
    done = excise("verify", "token", "token.cbor", "--key", "key.pem", "--nonce", nonce)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty, and so no key"),
        (b"\xde\x03", "neither PEM, DER, JWK nor a COSE_Key (as CBOR: "),
        (b"{}", "not a JWK: it has no 'kty'"),
    ],
)
def test_what_is_no_key_is_named_so(
    folder: Path, excise: Program, content: bytes, said: str
) -> None:
    (folder / "other").write_bytes(content)
    done = excise("verify", "token", "token.cbor", "--key", "other", "--nonce", NONCE.hex())
    assert done.returncode == 3
    assert said in done.stderr


def test_which_part_of_a_device_is_unknown_is_told(folder: Path, excise: Program) -> None:
    words = ("verify", "token", "-", "--corim", "qemu.cbor", "--nonce", NONCE.hex())
    other = token(claims_2(k256=b"\x01" + b"\x07" * 32))
    told = excise(*words, stdin=other).stdout
    assert f"none for the instance 01{'07' * 32}; 1 other of its implementation known" in told
    other = token(claims_2(k2396=b"\x07" * 32))
    assert f"none for the implementation {'07' * 32}" in excise(*words, stdin=other).stdout


def test_a_comid_alone_is_shown_and_told_from_a_corim(
    excise: Program, shared_vectors: Path
) -> None:
    comid = shared_vectors / "corim/veraison__corim/comid__testcases__comid-1.cbor"
    done = excise("corim", "show", comid)
    assert done.returncode == 0
    assert set(json.loads(done.stdout)) >= {"tag-identity", "triples"}
    assert "a CoMID, one tag of a CoRIM: nothing signs it" in done.stderr
    done = excise("corim", "check", comid)
    assert done.returncode == 3
    assert "is a CoMID, one tag of a CoRIM, and no CoRIM" in done.stderr


@pytest.mark.parametrize("wrapped", ["map", "tag", "tag of bytes"])
def test_a_comid_is_known_in_each_form_that_it_stands_in(
    folder: Path, excise: Program, wrapped: str
) -> None:
    content = read_corim(corim()).comids[0].content
    whole = write_cbor(Tag(TAG_COMID, content))
    forms = {
        "map": write_cbor(content),
        "tag": whole,
        "tag of bytes": write_cbor(Tag(TAG_COMID, write_cbor(content))),
    }
    (folder / "comid").write_bytes(forms[wrapped])
    done = excise("corim", "show", "comid")
    assert done.returncode == 0, done.stderr
    shown = json.loads(excise("corim", "show", "qemu.cbor").stdout)
    assert json.loads(done.stdout) == shown["tags"][0]
    assert "is a CoMID" in excise("corim", "check", "comid").stderr


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_folder_in_place_of_a_corim_is_told_to_be_one(
    folder: Path, excise: Program, command: str
) -> None:
    (folder / "refs").mkdir()
    done = excise("corim", command, "refs")
    assert done.returncode == 3
    assert "refs: is a folder, and one CoRIM is wanted. Name a file in it" in done.stderr


@pytest.mark.parametrize("place", [".", "refs", "new/refs"])
def test_templates_that_find_no_room_leave_nothing_behind(
    folder: Path, excise: Program, place: str
) -> None:
    words = ("corim", "new", place, "--build", "b", "--implementation-id", "i" * 32)
    words += ("--component", f"PRoT={'00' * 32}", "--key", "key.pem")
    (folder / "refs").mkdir()
    before = sorted(folder.rglob("*"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (900, hard))  # enough for the manifest alone
    try:
        done = excise(*words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (done.returncode, done.stdout) == (4, "")
    assert f"{place}: cannot be written (File too large)" in done.stderr
    assert sorted(folder.rglob("*")) == before
    assert excise(*words).returncode == 0
    assert len(list((folder / place).glob("*b.json"))) == 3


def test_a_refused_corim_is_named_by_its_file(folder: Path, excise: Program) -> None:
    words = ("--corim", "qemu.cbor", "--corim-key", "vendor.pub", "--nonce", NONCE.hex())
    done = excise("verify", "token", "token.cbor", *words)
    assert done.returncode == 1
    assert "qemu.cbor: the CoRIM is not to be believed" in done.stderr


def test_a_verifier_gives_sessions_a_time(excise: Program) -> None:
    done = excise("verifier", "serve", "--session-time", "0s")
    assert done.returncode == 2
    assert "'--session-time': '0s' is below a second" in done.stderr


def test_a_token_is_appraised_with_reference_values(folder: Path, excise: Program) -> None:
    words = ("--corim", "qemu.cbor", "--nonce", NONCE.hex(), "--json")
    done = excise("verify", "token", "-", *words, stdin=token())
    assert done.returncode == 0, done.stdout
    found = json.loads(done.stdout)
    assert [one["subject"] for one in found["results"]] == ["token", "appraisal of PSA_IOT"]
    assert found["results"][1]["facts"]["build"] == "qemu"
    changed = token(claims_2(k2399=[component(value=b"\xee" * 32)]))
    done = excise("verify", "token", "-", *words[:-1], stdin=changed)
    assert done.returncode == 1
    assert "33: some software is not recognised" in done.stdout
    assert "no reference value of it" in done.stdout


def test_a_policy_may_be_loosened_by_name(folder: Path, excise: Program) -> None:
    extra = token(claims_2(k2399=[component(), component("BL", b"\xee" * 32)]))
    words = ("verify", "token", "-", "--corim", "qemu.cbor", "--nonce", NONCE.hex())
    assert excise(*words, stdin=extra).returncode == 1
    assert excise(*words, "--allow", "extra", stdin=extra).returncode == 0
    done = excise(*words, "--allow", "everything", stdin=extra)
    assert done.returncode == 2
    assert "Known: signer, algorithm, missing, extra" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--key", "key.pem"), "no challenge was given"),
        (("--nonce", "00"), "nothing says which key to trust"),
        (("--key", "key.pem", "--nonce", "*"), "neither hexadecimal nor base64"),
        (("--key", "key.pem", "--nonce", "00", "--build", "x"), "Give --corim too"),
        (("--corim", "qemu.cbor", "--nonce", "00", "--build", "x"), "Builds: qemu"),
        (("--key", "key.pem", "--nonce", "00", "--profile", "3"), "Known: 1 (PSA_IOT_PROFILE_1)"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    folder: Path, excise: Program, words: tuple[str, ...], reason: str
) -> None:
    done = excise("verify", "token", "token.cbor", *words)
    assert done.returncode == 2
    assert reason in done.stderr
    assert done.stdout == ""


def test_a_cca_token_shows_three_results(folder: Path, excise: Program) -> None:
    from cryptography.hazmat.primitives.asymmetric import ec

    (folder / "platform.pem").write_text(public_key("platform", ec.SECP384R1).pem())
    words = ("verify", "token", "-", "--key", "platform.pem", "--nonce", NONCE.hex())
    done = excise(*words, stdin=cca_token())
    assert done.returncode == 0, done.stdout
    for subject in ("cca token: PASSED", "cca platform token: PASSED", "cca realm token: PASSED"):
        assert subject in done.stdout


def test_a_result_is_checked_as_who_relies_on_it(folder: Path, excise: Program) -> None:
    (folder / "verifier.pem").write_text(public_key("verifier").pem())
    claims = {
        "eat_profile": "tag:github.com,2023:veraison/ear",
        "iat": 1,
        "ear.verifier-id": {"build": "1", "developer": "excise"},
        "submods": {"PSA_IOT": {"ear.status": "affirming"}},
    }
    words = ("verify", "ear", "-", "--key", "verifier.pem")
    good = sign_ear(claims, private_key("verifier")).encode()
    done = excise(*words, stdin=good)
    assert done.returncode == 2
    assert "any old result would do. Give --nonce, or --any-nonce" in done.stderr
    words = (*words, "--any-nonce")
    assert excise(*words, stdin=good).returncode == 0
    assert excise(*words, "--max-age", "5min", stdin=good).returncode == 1
    claims["submods"] = {"PSA_IOT": {"ear.status": "warning"}}
    warned = sign_ear(claims, private_key("verifier")).encode()
    assert excise(*words, stdin=warned).returncode == 1
    assert excise(*words, "--accept", "warning", stdin=warned).returncode == 0


def test_templates_of_real_files_become_a_signed_corim_that_its_device_matches(
    folder: Path, excise: Program
) -> None:
    (folder / "tee.bin").write_bytes(b"firmware")
    for build in ("imx-caam", "qemu"):
        done = excise(
            *("corim", "new", "refs", "--build", build, "--key", "key.pem"),
            *("--implementation-id", IMPLEMENTATION.decode(), "--signer-id", SIGNER.hex()),
            *("--component", "PRoT@4.6.0=tee.bin", "--json"),
        )
        assert done.returncode == 0, done.stderr
        assert len(json.loads(done.stdout)["files"]) == 3
    done = excise("corim", "build", "refs", "-o", "x.cose")
    assert "Give --build, one of imx-caam, qemu" in done.stderr
    done = excise("corim", "build", "refs", "--build", "imx", "-o", "x.cose")
    assert "no build 'imx'. Builds: imx-caam, qemu" in done.stderr
    signed = ("--sign", "vendor.pem", "--signer", "ACME")
    done = excise("corim", "build", "refs", "--build", "qemu", "-o", "x.cose", *signed)
    assert done.returncode == 0, done.stderr
    assert excise("corim", "check", "x.cose", "--key", "vendor.pub").returncode == 0
    assert excise("corim", "check", "x.cose", "--key", "key.pem").returncode == 1
    shown = json.loads(excise("corim", "show", "x.cose").stdout)
    assert shown["signature"]["signer"]["name"] == "ACME"
    words = ("verify", "token", "token.cbor", "--nonce", NONCE.hex(), "--corim", "x.cose")
    assert excise(*words, "--corim-key", "vendor.pub").returncode == 0
    done = excise(*words, "--corim-key", "key.pem")
    assert done.returncode == 1
    assert "the CoRIM is not to be believed" in done.stderr


def test_a_component_may_be_named_by_its_digest(folder: Path, excise: Program) -> None:
    words = ("corim", "new", "refs", "--build", "qemu", "--key", "key.pem")
    words += ("--implementation-id", IMPLEMENTATION.hex(), "--signer-id", SIGNER.hex())
    assert excise(*words, "--component", f"PRoT@4.6.0={FIRMWARE.hex()}").returncode == 0
    done = excise("verify", "token", "token.cbor", "--nonce", NONCE.hex(), "--corim", "refs")
    assert done.returncode == 0, done.stdout
    for name, reason in (("none.bin", "No such file"), (".", "it is no file")):
        done = excise(*words, "--component", f"PRoT={name}")
        assert done.returncode == 3
        assert f"{name}: cannot be measured" in done.stderr
        assert reason in done.stderr
    done = excise(*words, "--component", "PRoT")
    assert done.returncode == 2
    assert "is not TYPE[@VERSION]=FILE. As PRoT@4.6.0=tee.bin" in done.stderr


def test_an_unsigned_corim_fails_its_check_unless_that_is_allowed(
    folder: Path, excise: Program
) -> None:
    assert excise("corim", "check", "qemu.cbor").returncode == 1
    assert excise("corim", "check", "qemu.cbor", "--allow-unsigned").returncode == 0
    (folder / "bad.cbor").write_bytes(b"\xa0")
    done = excise("corim", "check", "bad.cbor", "--allow-unsigned")
    assert done.returncode == 3
    assert "bad.cbor: corim-id is missing" in done.stderr


def test_a_key_is_rotated_from_the_command_line(folder: Path, excise: Program) -> None:
    with open_database("verifier.sqlite") as database:
        first = rotate(Records(database))
    private = private_key("v").private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "v.pem").write_bytes(private)
    done = excise("verifier", "rotate-key", "--key", "v.pem", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kid"] != first
    done = excise("verifier", "rotate-key", "--database", "verifer.sqlite")
    assert done.returncode == 2
    assert "verifer.sqlite: is not there" in done.stderr
    assert not (folder / "verifer.sqlite").exists()
    done = excise("verifier", "rotate-key", "--key", "vendor.pub")
    assert done.returncode == 3
    assert "not a private key in PEM without a password" in done.stderr


def test_a_verifier_that_cannot_start_says_why(folder: Path, excise: Program) -> None:
    done = excise("verifier", "serve", "--corim", "qemu.cbor", "--build", "imx", "--listen", ":0")
    assert done.returncode == 2
    assert "no build 'imx'. Builds: qemu" in done.stderr
    done = excise("verifier", "serve", "--tls-certificate", "x.pem", "--listen", ":0")
    assert done.returncode == 2
    assert "--tls-certificate and --tls-key go together" in done.stderr


def test_a_checked_corim_tells_what_it_holds_and_until_when(folder: Path, excise: Program) -> None:
    words = ("corim", "new", "refs", "--build", "b", "--implementation-id", IMPLEMENTATION.hex())
    assert excise(*words, "--component", f"PRoT={'11' * 32}", "--key", "key.pem").returncode == 0
    signed = ("--sign", "vendor.pem", "--signer", "ACME", "-o", "b.cose")
    assert excise("corim", "build", "refs", *signed).returncode == 0
    done = excise("corim", "check", "b.cose", "--key", "vendor.pub")
    assert done.returncode == 0, done.stdout
    assert "corim.content             1 reference value, 1 trust anchor\n" in done.stdout
    assert "corim.signature_validity  until 2" in done.stdout
