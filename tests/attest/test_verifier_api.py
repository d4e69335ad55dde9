from __future__ import annotations

import asyncio
import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx import Client

from ended import wait_until
from excise.attest.service import NoRoomError
from excise.attest.verifier import Database, Records, rotate
from excise.attest.verifier.media import ACCEPTED, EVIDENCE_TYPES, SESSION_TYPE, evidence_type
from excise.errors import FormatError
from excise.evidence.appraisal import VERAISON
from excise.evidence.base64text import decode_base64, encode_base64, encode_base64url
from excise.evidence.cbor import Tag, write_cbor
from excise.evidence.checks import Outcome
from excise.evidence.corim import CorimOptions, ReferenceStore, sign_corim
from excise.evidence.cose_key import read_key
from excise.evidence.ear import EarOptions, verify_ear
from token_builders import (
    NONCE,
    cca_store,
    cca_token,
    claims_2,
    claims_tfm,
    component,
    corim,
    private_key,
    public_key,
    realm_claims,
    store,
    token,
)
from verifier_runner import running

PSA = "application/psa-attestation-token"
NEW = "/challenge-response/v1/newSession"
SUBMIT = "/endorsement-provisioning/v1/submit"
RIM = 'application/rim+cbor; profile="tag:arm.com,2025:psa#1.0.0"'
PROBLEM = "application/problem+json"


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Give a folder in memory: these tests wait for many commits and for no power cut."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with running(tmp_path) as client:
        yield client


def _open(client: Client, query: str = "") -> tuple[str, bytes]:
    answer = client.post(f"{NEW}{query}")
    assert answer.status_code == 201, answer.text
    nonce = decode_base64(answer.json()["nonce"], field="nonce")
    return f"/challenge-response/v1/{answer.headers['location']}", nonce


def _submit(client: Client, path: str, evidence: bytes, media_type: str = PSA) -> Any:
    return client.post(path, content=evidence, headers={"Content-Type": media_type})


def _affirmed(client: Client, answer: Any, nonce: bytes) -> bool:
    jwk = client.get("/.well-known/veraison/verification").json()["ear-verification-key"]
    key = read_key(json.dumps(jwk).encode())
    options = EarOptions(submodules=("PSA_IOT",), max_age_s=60)
    found = verify_ear(answer.json()["result"], key, nonce=nonce, options=options)
    return found.verdict is Outcome.PASSED


def test_a_session_has_the_form_of_veraisons(client: Client) -> None:
    answer = client.post(NEW)
    assert answer.status_code == 201
    assert answer.headers["content-type"] == SESSION_TYPE
    assert answer.headers["location"].startswith("session/")
    session = answer.json()
    assert list(session) == ["nonce", "expiry", "accept", "status"]
    assert len(decode_base64(session["nonce"], field="nonce")) == 32
    assert session["status"] == "waiting"
    assert PSA in session["accept"]


def test_challenge_evidence_and_result_make_a_session(client: Client) -> None:
    path, nonce = _open(client)
    answer = _submit(client, path, token(claims_2(k10=nonce)))
    assert answer.status_code == 200
    assert answer.headers["content-type"] == SESSION_TYPE
    session = answer.json()
    assert session["status"] == "complete"
    assert session["evidence"]["type"] == PSA
    assert _affirmed(client, answer, nonce)
    assert client.get(path).json() == session
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.delete(path).status_code == 404


@pytest.mark.parametrize("size", [8, 32, 48, 64])
def test_a_challenge_has_the_size_asked_for(client: Client, size: int) -> None:
    assert len(_open(client, f"?nonceSize={size}")[1]) == size


@pytest.mark.parametrize(
    "query",
    ["?nonceSize=7", "?nonceSize=65", "?nonceSize=", "?nonceSize=+8", "?nonceSize=٣٢", "?nonce=",
     "?nonce=AAAA", "?nonce=*", f"?nonce={'A' * 88}", "?nonceSize=32&nonceSize=32", "?other=1",
     f"?nonceSize=32&nonce={'A' * 43}"],
)  # fmt: skip
def test_a_challenge_that_makes_no_sense_is_refused(client: Client, query: str) -> None:
    answer = client.post(f"{NEW}{query}")
    assert answer.status_code == 400
    assert answer.headers["content-type"] == PROBLEM
    assert answer.json()["status"] == 400


def test_a_clients_challenge_is_taken_once(client: Client) -> None:
    query = f"?nonce={encode_base64url(NONCE)}"
    path, nonce = _open(client, query)
    assert nonce == NONCE
    answer = client.post(f"{NEW}{query}")
    assert answer.status_code == 409
    assert "used before" in answer.json()["detail"]
    assert _submit(client, path, token()).status_code == 200
    assert client.post(f"{NEW}{query}").status_code == 409


def test_a_verifier_may_insist_on_its_own_challenges(tmp_path: Path) -> None:
    with running(tmp_path, client_nonces=False) as client:
        answer = client.post(f"{NEW}?nonce={encode_base64url(NONCE)}")
        assert answer.status_code == 400
        assert "chooses the challenge itself" in answer.json()["detail"]
        _open(client)


def test_a_session_is_answered_once(client: Client) -> None:
    path, nonce = _open(client)
    evidence = token(claims_2(k10=nonce))
    assert _submit(client, path, evidence).status_code == 200
    for again in (evidence, token(claims_2(k10=nonce, k2394=2))):
        answer = _submit(client, path, again)
        assert answer.status_code == 409
        assert answer.headers["content-type"] == PROBLEM


def test_of_two_submissions_at_once_one_is_answered(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with running(tmp_path) as client, ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            path, nonce = _open(client)
            evidence = token(claims_2(k10=nonce))
            words = ([client] * 8, [path] * 8, [evidence] * 8)
            answers = list(pool.map(_submit, *words))
            assert sorted(answer.status_code for answer in answers) == [200] + [409] * 7


def test_evidence_for_another_session_is_not_fresh(client: Client) -> None:
    _, first = _open(client)
    path, nonce = _open(client)
    answer = _submit(client, path, token(claims_2(k10=first)))
    assert answer.status_code == 200
    assert not _affirmed(client, answer, nonce)
    # The session is used up all the same: nobody may try until something fits.
    assert _submit(client, path, token(claims_2(k10=nonce))).status_code == 409


@pytest.mark.parametrize("size", [8, 31, 33, 47])
def test_a_challenge_of_no_digests_size_is_never_answered_well(client: Client, size: int) -> None:
    path, nonce = _open(client, f"?nonceSize={size}")
    for claims in (claims_2(k10=nonce), claims_2(k10=nonce.ljust(48, b"\0"))):
        answer = _submit(client, path, token(claims))
        assert answer.status_code in (200, 409)
        assert answer.status_code == 409 or not _affirmed(client, answer, nonce)


def test_expiry_is_enforced_at_submission(tmp_path: Path) -> None:
    with running(tmp_path, session_s=0.2) as client:
        path, nonce = _open(client)
        time.sleep(0.25)
        answer = _submit(client, path, token(claims_2(k10=nonce)))
        assert answer.status_code == 410
        assert answer.headers["content-type"] == PROBLEM
        assert client.get(path).json()["status"] == "waiting"


@pytest.mark.parametrize("session", ["x", "00000000-0000-4000-8000-000000000000", "..", "%00"])
def test_an_unknown_session_is_not_found(client: Client, session: str) -> None:
    path = f"/challenge-response/v1/session/{session}"
    for answer in (client.get(path), _submit(client, path, token()), client.delete(path)):
        assert answer.status_code in (404, 405)
        assert answer.headers["content-type"] == PROBLEM


def test_refusals_before_the_evidence_is_read_leave_the_session_open(client: Client) -> None:
    path, nonce = _open(client)
    evidence = token(claims_2(k10=nonce))
    answer = _submit(client, path, evidence, "application/cbor")
    assert answer.status_code == 415
    assert answer.headers["accept"] == ", ".join(ACCEPTED)
    assert _submit(client, path, evidence, "cbor").status_code == 400
    assert client.post(path, content=evidence).status_code == 400
    assert _submit(client, path, b"").status_code == 400
    headers = {"Content-Type": PSA, "Accept": "text/html"}
    assert client.post(path, content=evidence, headers=headers).status_code == 406
    for size in (2 << 20, (64 << 10) + 1):
        answer = _submit(client, path, b"x" * size)
        assert answer.status_code == 413
        assert answer.headers["content-type"] == PROBLEM
    answer = _submit(client, path, evidence)
    assert answer.status_code == 200
    assert _affirmed(client, answer, nonce)


def test_every_media_type_that_is_offered_is_taken() -> None:
    assert [evidence_type(text) for text in ACCEPTED] == list(EVIDENCE_TYPES)
    same = "Application/EAT-CWT;  profile=http://arm.com/psa/2.0.0"
    found = evidence_type(same)
    assert found is not None
    assert found.text == 'application/eat-cwt; profile="http://arm.com/psa/2.0.0"'
    assert evidence_type('application/eat-cwt; profile="http://arm.com/psa/3.0.0"') is None
    bare = evidence_type("application/eat-cwt; charset=x")
    assert bare is not None
    assert (bare.text, bare.profile) == ("application/eat-cwt", None)
    for broken in ("", "x", "a/b; c", 'a/b; c="d', "a/b c=d"):
        with pytest.raises(FormatError, match=r"media type|parameters"):
            evidence_type(broken)


def test_a_media_type_that_names_a_profile_is_held_to_it(client: Client) -> None:
    tfm = 'application/eat+cwt; eat_profile="tag:psacertified.org,2023:psa#tfm"'
    path, nonce = _open(client)
    assert _affirmed(client, _submit(client, path, token(claims_tfm(k10=nonce)), tfm), nonce)
    path, nonce = _open(client)
    assert not _affirmed(client, _submit(client, path, token(claims_2(k10=nonce)), tfm), nonce)


@pytest.mark.parametrize(
    ("media_type", "wrap"),
    [
        ("application/cmw+json", lambda e: json.dumps([PSA, encode_base64url(e)]).encode()),
        ("application/vnd.veraison.cmw", lambda e: json.dumps([PSA, encode_base64(e)]).encode()),
        ("application/cmw+cbor", lambda e: write_cbor([PSA, e])),
        ("application/cmw", lambda e: write_cbor([PSA, e, 4])),
        # Content format 263, application/eat+cwt, as a tag: one is left out at every 255.
        ("application/cmw+cbor", lambda e: write_cbor(Tag(1_668_546_817 + 264, e))),
    ],
)
def test_wrapped_evidence_is_taken_out_of_its_wrapper(
    client: Client, media_type: str, wrap: Callable[[bytes], bytes]
) -> None:
    path, nonce = _open(client)
    answer = _submit(client, path, wrap(token(claims_2(k10=nonce))), media_type)
    assert answer.status_code == 200, answer.text
    assert answer.json()["evidence"]["type"] in (PSA, "application/eat+cwt")
    assert _affirmed(client, answer, nonce)


@pytest.mark.parametrize(
    ("media_type", "body", "status"),
    [
        ("application/cmw+json", b"{}", 400),
        ("application/cmw+json", b"[", 400),
        ("application/cmw+json", b'["application/x", "AA"]', 415),
        ("application/cmw+json", b'[7, "AA"]', 400),
        ("application/cmw+cbor", b"\x82\x07\x41\x00", 400),
        ("application/cmw+cbor", b"\x9f\xff", 400),
        ("application/cmw+cbor", write_cbor(Tag(1, b"x")), 400),
        ("application/cmw+cbor", write_cbor(Tag(1_668_546_817 + 7, b"x")), 400),
    ],
)
def test_wrappers_that_cannot_be_read_are_refused(
    client: Client, media_type: str, body: bytes, status: int
) -> None:
    path, _ = _open(client)
    assert _submit(client, path, body, media_type).status_code == status


def test_a_cca_token_is_appraised_in_two_submodules(tmp_path: Path) -> None:
    with running(tmp_path, known=cca_store()) as client:
        path, nonce = _open(client)
        evidence = cca_token(realm=realm_claims(nonce=nonce))
        answer = _submit(client, path, evidence, ACCEPTED[-1])
        body = json.loads(base64.urlsafe_b64decode(answer.json()["result"].split(".")[1] + "=="))
        assert {name: one["ear.status"] for name, one in body["submods"].items()} == {
            "CCA_SSD_PLATFORM": "affirming",
            "CCA_REALM": "affirming",
        }


def test_signed_endorsements_are_taken_up_at_once_and_kept(tmp_path: Path) -> None:
    options = CorimOptions(keys=(public_key("vendor"),))
    signed = sign_corim(corim(), private_key("vendor"), signer="v", not_after=4_000_000_000)
    with running(tmp_path, known=ReferenceStore(), corim=options) as client:
        path, nonce = _open(client)
        assert not _affirmed(client, _submit(client, path, token(claims_2(k10=nonce))), nonce)
        cose = RIM.replace("cbor", "cose")
        answer = client.post(SUBMIT, content=signed, headers={"Content-Type": cose})
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("application/vnd.veraison.provisioning")
        assert answer.json()["status"] == "success"
        path, nonce = _open(client)
        assert _affirmed(client, _submit(client, path, token(claims_2(k10=nonce))), nonce)
    with running(tmp_path, known=ReferenceStore(), corim=options) as client:
        path, nonce = _open(client)
        assert _affirmed(client, _submit(client, path, token(claims_2(k10=nonce))), nonce)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (lambda: corim(), "not to be believed"),
        (lambda: sign_corim(corim(), private_key("thief"), signer="v", not_after=4_000_000_000),
         "not to be believed"),
        (lambda: b"\xff", "indefinite"),
    ],
    ids=["unsigned", "other signer", "rubbish"],
)  # fmt: skip
def test_endorsements_that_are_not_to_be_believed_change_nothing(
    tmp_path: Path, data: Callable[[], bytes], reason: str
) -> None:
    options = CorimOptions(keys=(public_key("vendor"),))
    with running(tmp_path, known=ReferenceStore(), corim=options) as client:
        answer = client.post(SUBMIT, content=data(), headers={"Content-Type": RIM})
        assert answer.status_code == 200
        assert answer.json()["status"] == "failed"
        assert reason in answer.json()["failure-reason"]
        path, nonce = _open(client)
        assert not _affirmed(client, _submit(client, path, token(claims_2(k10=nonce))), nonce)


def test_unsigned_endorsements_are_taken_where_that_is_allowed(tmp_path: Path) -> None:
    options = CorimOptions(require_signed=False)
    with running(tmp_path, known=ReferenceStore(), corim=options) as client:
        answer = client.post(SUBMIT, content=corim(), headers={"Content-Type": RIM})
        assert answer.json()["status"] == "success"


def test_endorsements_of_another_media_type_are_refused(client: Client) -> None:
    for media_type in ("application/cbor", "application/rim+cbor; profile=other"):
        answer = client.post(SUBMIT, content=corim(), headers={"Content-Type": media_type})
        assert answer.status_code == 415
        assert RIM in answer.headers["accept"]
    assert client.post(SUBMIT, headers={"Content-Type": RIM}).status_code == 400


def test_discovery_tells_keys_media_types_and_paths(client: Client) -> None:
    answer = client.get("/.well-known/veraison/verification")
    assert answer.headers["content-type"] == "application/vnd.veraison.discovery+json"
    told = answer.json()
    assert told["service-state"] == "READY"
    assert told["media-types"] == ACCEPTED
    assert told["api-endpoints"] == {"newChallengeResponseSession": NEW}
    assert told["ear-verification-key"]["kty"] == "EC"
    told = client.get("/.well-known/veraison/provisioning").json()
    assert told["api-endpoints"] == {"provisioningSubmit": SUBMIT}
    assert "ear-verification-key" not in told


def test_a_rotated_key_signs_and_the_retired_one_is_still_told(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        path, nonce = _open(client)
        before = _submit(client, path, token(claims_2(k10=nonce)))
        assert _affirmed(client, before, nonce)
    database = Database(str(tmp_path / "verifier.sqlite"))
    kid = rotate(Records(database))
    database.close()
    with running(tmp_path) as client:
        told = client.get("/.well-known/veraison/verification").json()
        assert told["ear-verification-key"]["kid"] == kid
        assert len(told["ear-verification-keys"]["keys"]) == 2
        path, other = _open(client)
        assert _affirmed(client, _submit(client, path, token(claims_2(k10=other))), other)
        assert not _affirmed(client, before, nonce)
        old = read_key(json.dumps(told["ear-verification-keys"]["keys"][1]).encode())
        found = verify_ear(before.json()["result"], old, nonce=nonce)
        assert found.verdict is Outcome.PASSED


def test_the_veraison_policy_answers_as_veraison_does(tmp_path: Path) -> None:
    extra = component(signer=b"\6" * 32)
    for policy, status in (("strict", "warning"), ("veraison", "affirming")):
        folder = tmp_path / policy
        folder.mkdir()
        with running(folder, **({"policy": VERAISON} if policy == "veraison" else {})) as client:
            path, nonce = _open(client)
            answer = _submit(client, path, token(claims_2(k10=nonce, k2399=[extra])))
            claims = json.loads(
                base64.urlsafe_b64decode(answer.json()["result"].split(".")[1] + "==")
            )
            assert claims["submods"]["PSA_IOT"]["ear.status"] == status
            assert claims["eat_nonce"] == encode_base64url(nonce)


def test_one_build_may_be_chosen(tmp_path: Path) -> None:
    known = store(qemu=corim(), imx=corim(build="imx"))
    with running(tmp_path, known=known, builds=("imx",), page=True) as client:
        assert "Builds: imx." in client.get("/").text


def test_other_methods_and_paths_are_problems(client: Client) -> None:
    for answer, status in (
        (client.get(NEW), 405),
        (client.put("/.well-known/veraison/verification"), 405),
        (client.get("/"), 404),
        (client.get("/nothing"), 404),
    ):
        assert answer.status_code == status
        assert answer.headers["content-type"] == PROBLEM


def test_so_many_sessions_wait_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(str(tmp_path / "verifier.sqlite"))
    records = Records(database, session_s=300, max_waiting=2)
    now = time.time()

    async def once() -> None:
        for number in range(2):
            await records.open(bytes([number]) * 32)
        with pytest.raises(NoRoomError, match=r"2 sessions wait for evidence. Try again in 300 s"):
            await records.open(b"\2" * 32)
        monkeypatch.setattr(time, "time", lambda: now + 600)
        await records.open(b"\2" * 32)

    asyncio.run(once())
    database.close()


def test_sessions_that_ended_long_ago_are_forgotten(tmp_path: Path) -> None:
    database = Database(str(tmp_path / "verifier.sqlite"))
    records = Records(database, session_s=0.0, kept_s=0.0)

    async def once() -> tuple[int, int]:
        await records.open(NONCE)
        await asyncio.sleep(0.01)
        forgotten = await records.forget()
        return forgotten, (await records.recent())[0]

    assert asyncio.run(once()) == (1, 0)
    database.close()


def test_a_running_verifier_takes_up_a_rotated_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from excise.attest.verifier import service

    monkeypatch.setattr(service, "UPKEEP_S", 0.05)
    with running(tmp_path) as client:
        database = Database(str(tmp_path / "verifier.sqlite"))
        kid = rotate(Records(database))
        database.close()

        def told() -> str:
            found = client.get("/.well-known/veraison/verification").json()
            return str(found["ear-verification-key"]["kid"])

        wait_until(lambda: told() == kid, what="the new key")
        path, nonce = _open(client)
        assert _affirmed(client, _submit(client, path, token(claims_2(k10=nonce))), nonce)


def test_the_database_with_its_keys_is_the_users_alone(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        _open(client)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes.values()) == {0o600}
    assert "verifier.sqlite-wal" in modes
