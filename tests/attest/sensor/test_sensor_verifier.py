"""A sensor's transactions against its verifier: accepted; and refused, each for its one reason."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from daa_group import Group, new_group
from excise.attest.daa.folders import init_issuer
from excise.attest.daa.keys import sign
from excise.attest.sensor.page import transaction_page
from excise.attest.sensor.protocol import SESSIONS, TRANSACTIONS, Answer, Opened, SensorEvidence
from excise.attest.sensor.records import StoredTransaction
from excise.attest.sensor.transaction import send
from excise.attest.service import ServiceClient
from excise.errors import Refused
from excise.evidence.checks import Outcome
from excise.evidence.cose_key import read_key
from excise.evidence.daa import (
    DaaVerifier,
    KeyAssurance,
    KeyProtection,
    RevokedKeys,
    framed_message,
    policy_pcr_digest,
)
from excise.evidence.ear import verify_ear
from excise.evidence.sensor import SensorPolicy, appraise_transaction
from excise.evidence.sensor_message import PURPOSE, SensorMessage
from sensor_service import FACE, Machine, excise, membership, running_verifier, write_group

BASENAME = "door-7"


@pytest.fixture(scope="module")
def group() -> Group:
    return new_group()


@pytest.fixture(scope="module")
def signing_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture(scope="module")
def url(
    tmp_path_factory: pytest.TempPathFactory,
    group: Group,
    signing_key: ec.EllipticCurvePrivateKey,
) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("verifier")
    pem = signing_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "key.pem").write_bytes(pem)
    options: list[str | Path] = ["--group", write_group(group, folder), "--basename", BASENAME]
    options += ["--database", folder / "db.sqlite", "--signing-key", folder / "key.pem"]
    with running_verifier(*options) as (found, _):
        yield found


@pytest.fixture
def client(url: str) -> Iterator[ServiceClient]:
    with ServiceClient(url) as opened:
        yield opened


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _message(machine: Machine) -> SensorMessage:
    with machine.collector(whole_log=True) as collector:
        return collector.collect(FACE)


def _signed(data: bytes, opened: Opened, group: Group) -> SensorEvidence:
    framed = framed_message(purpose=PURPOSE, nonce=opened.nonce, payload=data)
    signature = sign(group.key, group.credential, message=framed, basename=opened.basename)
    return SensorEvidence(message=data, signature=signature.to_bytes())


def _post(client: ServiceClient, session: str, evidence: SensorEvidence) -> Answer:
    return client.post(f"{SESSIONS}/{session}/evidence", evidence, Answer)


def _transact(client: ServiceClient, message: SensorMessage, group: Group) -> Answer:
    return send(message.to_bytes(), membership=membership(group), client=client)


def test_a_transaction_is_accepted_and_the_next_sends_what_is_new(
    client: ServiceClient, machine: Machine, group: Group
) -> None:
    with machine.collector() as collector:
        first = _transact(client, collector.collect(FACE), group)
        assert (first.outcome, first.reasons) == ("PASSED", [])
        assert first.list_end == collector.list_size
        collector.acknowledge(first.list_end)
        machine.grow(3)
        message = collector.collect(FACE)
        assert 0 < len(message.list_entries) < message.list_offset
        second = _transact(client, message, group)
        assert (second.outcome, second.list_end) == ("PASSED", message.list_end)
        collector.acknowledge(second.list_end)
        third = collector.collect(FACE)
        assert third.list_entries == b""
        assert _transact(client, third, group).outcome == "PASSED"


def test_what_is_stored_is_judged_again_by_who_has_the_database_alone(
    tmp_path: Path, machine: Machine, group: Group
) -> None:
    key, database = write_group(group, tmp_path), tmp_path / "db.sqlite"
    options = ["--group", key, "--basename", BASENAME, "--database", database]
    with running_verifier(*options) as (url, _), ServiceClient(url) as client:
        answer = _transact(client, _message(machine), group)
    with closing(sqlite3.connect(database)) as opened:
        query = "SELECT nonce, message, signature FROM sensor_transactions WHERE id = ?"
        nonce, message, signature = opened.execute(query, (answer.transaction,)).fetchone()
    (tmp_path / "m").write_bytes(message)
    (tmp_path / "sig").write_bytes(signature)
    words = ["daa", "verify", tmp_path / "sig", "-m", tmp_path / "m", "-g", key, "-b", BASENAME]
    purpose = ["--purpose", PURPOSE]
    again = excise(*words, "--nonce", nonce.hex(), *purpose)
    assert (again.returncode, again.stderr) == (0, "")
    assert excise(*words, "--nonce", nonce.hex()).returncode == 1  # signed for another purpose
    without = excise(*words, *purpose)
    assert (without.returncode, without.stdout) == (2, "")
    assert "--purpose is signed along with a nonce: give --nonce too" in without.stderr

    revoked = tmp_path / "pseudonyms.json"
    told = excise("daa", "revoke", revoked, "--signature", tmp_path / "sig", "-b", BASENAME)
    assert told.returncode == 0
    listed = ["--revoked-pseudonyms", revoked]
    later = excise(*words, "--nonce", nonce.hex(), *purpose, *listed)
    assert later.returncode == 1
    assert "FAILED      daa.revoked_pseudonyms" in later.stdout


def test_a_list_that_goes_on_from_elsewhere_is_asked_for_from_where_it_is_known(
    client: ServiceClient, machine: Machine
) -> None:
    stranger = new_group()
    with machine.collector() as collector:
        message = collector.collect(FACE)
        beyond = dataclasses.replace(message, list_offset=7)
        with pytest.raises(Refused, match="known here end at 0") as caught:
            _transact(client, beyond, stranger)
    assert caught.value.differences == ("known_list_end=0",)


@pytest.mark.parametrize("selection", ["", "sha256:0", "sha1:10"])
def test_pcr_values_that_are_the_sensors_word_are_not_covered(
    machine: Machine, group: Group, selection: str
) -> None:
    """Also where its key is bound to other registers than that of the list."""
    bound = policy_pcr_digest({"sha256": {0: machine.pcrs["sha256"][0]}}) if selection else None
    assurance = KeyAssurance(protection=KeyProtection.TPM, pcr_policy=bound, selection=selection)
    policy = SensorPolicy(daa=DaaVerifier(group.public, assurance=assurance))
    data = _message(machine).to_bytes()
    framed = framed_message(purpose=PURPOSE, nonce=b"n", payload=data)
    signature = sign(group.key, group.credential, message=framed).to_bytes()
    found = appraise_transaction(data, signature, nonce=b"n", policy=policy)
    state = next(check for check in found.checks if check.id == "sensor.state")
    assert (state.outcome, state.got) == (Outcome.NOT_COVERED, "the sensor's word")
    if selection != "sha1:10":  # whose values the message does not have: the policy fails
        assert found.outcome is Outcome.NOT_COVERED
        assert found.reasons()[0].startswith("sensor.state: the sensor's word")


def test_a_boot_begins_the_list_anew(client: ServiceClient, machine: Machine, group: Group) -> None:
    assert _transact(client, _message(machine), group).outcome == "PASSED"
    machine.entries = machine.entries[:5]
    assert _transact(client, _message(machine), group).outcome == "PASSED"


def _other_pcr(message: SensorMessage) -> SensorMessage:
    sha256 = {**message.pcrs["sha256"], 10: bytes(32)}
    return dataclasses.replace(message, pcrs={"sha256": sha256})


def _other_boot(message: SensorMessage) -> SensorMessage:
    sha256 = {**message.pcrs["sha256"], 7: bytes(32)}
    return dataclasses.replace(message, pcrs={"sha256": sha256})


def _other_digest(message: SensorMessage) -> SensorMessage:
    return dataclasses.replace(message, list_sha512=bytes(64))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_other_pcr, "ima.pcr.sha256"),
        (_other_boot, "ima.boot_aggregate"),
        (_other_digest, "sensor.list_sha512"),
    ],
)
def test_a_state_that_does_not_fit_its_list_is_refused(
    client: ServiceClient, machine: Machine, group: Group, change: Any, reason: str
) -> None:
    answer = _transact(client, change(_message(machine)), group)
    assert answer.outcome == "FAILED"
    assert [each for each in answer.reasons if each.startswith(reason)]


def test_a_list_without_one_of_its_entries_is_refused(
    client: ServiceClient, machine: Machine, group: Group
) -> None:
    whole = _message(machine)
    pcrs = machine.pcrs
    del machine.entries[20]
    shorter = dataclasses.replace(_message(machine), pcrs=pcrs)
    answer = _transact(client, shorter, group)
    assert answer.outcome == "FAILED"
    assert any(each.startswith("ima.pcr.sha256") for each in answer.reasons)
    assert _transact(client, whole, group).outcome == "PASSED"


def test_evidence_of_another_session_is_refused(
    client: ServiceClient, machine: Machine, group: Group
) -> None:
    first, second = (client.post(SESSIONS, {}, Opened) for _ in range(2))
    evidence = _signed(_message(machine).to_bytes(), first, group)
    answer = _post(client, second.session, evidence)
    assert answer.outcome == "FAILED"
    assert any(each.startswith("daa.proof") for each in answer.reasons)
    assert _post(client, first.session, evidence).outcome == "PASSED"
    with pytest.raises(Refused, match="used already"):
        _post(client, first.session, evidence)


def test_a_member_of_another_group_is_refused(client: ServiceClient, machine: Machine) -> None:
    answer = _transact(client, _message(machine), new_group())
    assert answer.outcome == "FAILED"
    assert any(each.startswith("daa.credential") for each in answer.reasons)


def test_a_revoked_key_is_refused(tmp_path: Path, machine: Machine, group: Group) -> None:
    secret = int.from_bytes(group.key.to_bytes(), "big")
    revoked = tmp_path / "revoked"
    revoked.write_bytes(RevokedKeys(keys=()).with_key(secret).to_bytes())
    options: list[str | Path] = ["--group", write_group(group, tmp_path)]
    options += ["--database", tmp_path / "db", "--revoked-keys", revoked]
    with running_verifier(*options) as (url, _), ServiceClient(url) as client:
        answer = _transact(client, _message(machine), group)
    assert answer.outcome == "FAILED"
    assert any(each.startswith("daa.revoked_keys") for each in answer.reasons)


def test_the_rule_of_another_group_is_no_rule_of_this_one(tmp_path: Path, group: Group) -> None:
    rule = KeyAssurance(protection=KeyProtection.TPM, quoting=True)
    init_issuer(tmp_path / "other", rule=rule)
    options: list[str | Path] = ["--group", write_group(group, tmp_path), "--listen", "nowhere"]
    options += ["--database", tmp_path / "db", "--group-rule", tmp_path / "other" / "group.json"]
    done = excise("sensor", "verifier", *options)
    assert (done.returncode, done.stdout) == (3, "")
    assert "it is of another group" in done.stderr


def test_files_without_a_reference_digest_are_refused_and_known_ones_accepted(
    tmp_path: Path, machine: Machine, group: Group
) -> None:
    known = [bytes(entry.values["n-ng"])[:-1] for entry in machine.entries[1:]]  # type: ignore[arg-type]
    # Each of these files holds its own name.
    lines = [f"{hashlib.sha256(name).hexdigest()}  {name.decode()}" for name in known]
    (tmp_path / "known.sha256").write_text("\n".join(lines) + "\n")
    options: list[str | Path] = ["--group", write_group(group, tmp_path), "--basename", BASENAME]
    options += ["--database", tmp_path / "db", "--policy", tmp_path / "known.sha256"]
    with (
        running_verifier(*options) as (url, _),
        ServiceClient(url) as client,
        machine.collector() as collector,
    ):
        good = _transact(client, collector.collect(FACE), group)
        assert (good.outcome, good.reasons) == ("PASSED", [])
        collector.acknowledge(good.list_end)
        same = _transact(client, collector.collect(FACE), group)
        assert same.outcome == "PASSED"
        machine.grow(1)
        unknown = _transact(client, collector.collect(FACE), group)
        assert unknown.outcome == "FAILED"
        assert any("policy." in each for each in unknown.reasons)


@pytest.mark.parametrize(
    ("message", "signature", "reason"),
    [
        (b"", None, "sensor.message"),
        (b"excise sensor message 1\n", None, "sensor.message"),
        (None, b"", "daa.signature"),
        (None, bytes(421), "daa.signature"),
    ],
)
def test_bytes_that_are_no_evidence_are_refused_and_kept(
    client: ServiceClient,
    machine: Machine,
    group: Group,
    message: bytes | None,
    signature: bytes | None,
    reason: str,
) -> None:
    opened = client.post(SESSIONS, {}, Opened)
    good = _signed(_message(machine).to_bytes(), opened, group)
    sent = SensorEvidence(
        message=good.message if message is None else message,
        signature=good.signature if signature is None else signature,
    )
    answer = _post(client, opened.session, sent)
    assert answer.outcome == "FAILED"
    assert answer.reasons[0].startswith(reason)
    kept = client.get(f"{TRANSACTIONS}/{answer.transaction}", dict[str, Any])
    assert kept["outcome"] == "FAILED"


def test_a_database_of_any_earlier_version_is_given_the_columns_that_came_later(
    tmp_path: Path, machine: Machine, group: Group
) -> None:
    path = tmp_path / "db.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE sensor_transactions (id TEXT PRIMARY KEY, received_s REAL NOT NULL, "
            "pseudonym TEXT, outcome TEXT NOT NULL, nonce BLOB NOT NULL, message BLOB NOT NULL, "
            "signature BLOB NOT NULL, result TEXT NOT NULL)"
        )
        old = ("0" * 32, 1.0, None, "PASSED", b"n", b"m", b"s", '{"outcome": "PASSED"}')
        connection.execute(f"INSERT INTO sensor_transactions VALUES ({', '.join('?' * 8)})", old)
    connection.close()
    options: list[str | Path] = ["--group", write_group(group, tmp_path), "--database", path]
    with running_verifier(*options) as (url, _), ServiceClient(url) as client:
        assert client.get(f"{TRANSACTIONS}/{old[0]}", dict[str, Any])["outcome"] == "PASSED"
        answer = _transact(client, _message(machine), group)
        found = client.get(f"{TRANSACTIONS}/{answer.transaction}", dict[str, Any])
        assert found["outcome"] == answer.outcome


def test_a_result_can_be_asked_for_again_as_json_as_ear_and_as_a_page(
    client: ServiceClient,
    url: str,
    machine: Machine,
    group: Group,
    signing_key: ec.EllipticCurvePrivateKey,
) -> None:
    opened = client.post(SESSIONS, {}, Opened)
    answer = _post(client, opened.session, _signed(_message(machine).to_bytes(), opened, group))
    found = client.get(f"{TRANSACTIONS}/{answer.transaction}", dict[str, Any])
    assert found["outcome"] == answer.outcome == "PASSED"
    assert {check["id"] for check in found["checks"]} >= {"daa.proof", "ima.pcr.sha256"}
    named = {"pseudonym": found["pseudonym"], "basename": BASENAME}
    assert found["basename"] == BASENAME
    assert len(bytes.fromhex(found["pseudonym"])) == 65
    accept = {"Accept": "application/eat+jwt"}
    got = httpx.get(f"{url}{TRANSACTIONS}/{answer.transaction}", headers=accept)
    assert got.headers["content-type"].startswith("application/eat+jwt")
    public = signing_key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    result = verify_ear(got.text, read_key(public), nonce=opened.nonce)
    failed = [check.id for check in result.checks if check.outcome is Outcome.FAILED]
    assert failed == ["ear.status"]
    assert result.claims is not None
    module = result.claims["submods"]["EXCISE_SENSOR"]
    assert module["ear.veraison.annotated-evidence"] == named
    vector = module["ear.trustworthiness-vector"]
    # The key is bound to no state: what the sensor says of itself is a warning's worth.
    assert (vector["instance-identity"], vector["sourced-data"]) == (2, 32)
    page = httpx.get(f"{url}{TRANSACTIONS}/{answer.transaction}", headers={"Accept": "text/html"})
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert all(f"<code>{value}</code>" in page.text for value in named.values())
    assert all(check["id"] in page.text for check in found["checks"])
    with pytest.raises(Refused, match="no transaction of this name"):
        client.get(f"{TRANSACTIONS}/{secrets.token_hex(16)}", dict[str, Any])


def test_what_a_page_shows_is_escaped_and_an_anonymous_sensor_has_no_basename() -> None:
    found = StoredTransaction(
        id="0",
        received_s=0.0,
        pseudonym="04",
        outcome=Outcome.FAILED,
        nonce=b"",
        message=b"",
        signature=b"",
        attest=None,
        result={"checks": [], "reasons": ["<script>"], "facts": {"embedder": "<b>"}},
        basename=b"<i>\xff",
    )
    page = bytes(transaction_page(found).body).decode()
    assert "<code>&lt;i&gt;\\xff</code>" in page
    assert "<script>" not in page
    assert "<b>" not in page
    anonymous = dataclasses.replace(found, pseudonym=None, basename=None)
    page = bytes(transaction_page(anonymous).body).decode()
    assert "<dt>Basename</dt><dd>none</dd>" in page
