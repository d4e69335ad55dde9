"""The sensor's verifier under hostile clients and kill -9: up, nothing acknowledged lost."""

from __future__ import annotations

import base64
import dataclasses
import json
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest

from daa_group import Group, new_group
from excise.attest.daa.keys import sign
from excise.attest.sensor.protocol import (
    PART_BYTES,
    SESSIONS,
    TRANSACTIONS,
    Opened,
    SensorEvidence,
    decode_evidence,
)
from excise.attest.sensor.transaction import send
from excise.attest.service import ServiceClient
from excise.errors import ExciseError
from excise.evidence.daa import framed_message
from excise.evidence.sensor_message import PURPOSE, read_sensor_message
from ima_builder import binary_list, files
from sensor_service import FACE, Machine, membership, running_verifier, write_group


@pytest.fixture(scope="module")
def group() -> Group:
    return new_group()


@pytest.fixture
def options(tmp_path: Path, group: Group) -> list[str | Path]:
    return ["--group", write_group(group, tmp_path), "--database", tmp_path / "db"]


@pytest.fixture
def message(tmp_path: Path) -> bytes:
    with Machine(tmp_path).collector(whole_log=True) as collector:
        return collector.collect(FACE).to_bytes()


@pytest.fixture
def url(options: list[str | Path]) -> Iterator[str]:
    with running_verifier(*options) as (found, _):
        yield found


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        (b"{}", "application/json", 400),
        (b"", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"message": "=", "signature": ""}', "application/json", 400),
        (b'{"message": "", "signature": "", "more": 1}', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"{}", "text/plain", 415),
    ],
)
def test_a_malformed_body_is_a_problem_and_the_session_stays(
    url: str, body: bytes, media_type: str, status: int
) -> None:
    opened = httpx.post(url + SESSIONS, json={}).json()
    path = f"{url}{SESSIONS}/{opened['session']}/evidence"
    answer = httpx.post(path, content=body, headers={"Content-Type": media_type})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert set(answer.json()) >= {"type", "title", "status", "detail"}


def test_unknown_paths_methods_and_sessions_are_problems(url: str) -> None:
    for method, path, status in (
        ("GET", "/", 404),
        ("DELETE", SESSIONS, 405),
        ("GET", f"{TRANSACTIONS}/nothing", 404),
        ("POST", f"{SESSIONS}/nothing/evidence", 404),
    ):
        sent = {"json": {"message": "", "signature": ""}} if method == "POST" else {}
        answer = httpx.request(method, url + path, **sent)  # type: ignore[arg-type]
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"


def test_a_body_without_end_is_refused_before_it_is_read(url: str) -> None:
    opened = httpx.post(url + SESSIONS, json={}).json()
    address = urlsplit(url)
    head = (
        f"POST {SESSIONS}/{opened['session']}/evidence HTTP/1.1\r\nHost: x\r\n"
        f"Content-Type: application/json\r\nContent-Length: {1 << 40}\r\n\r\n{{"
    )
    place = (str(address.hostname), int(address.port or 0))
    with socket.create_connection(place, timeout=60) as connection:
        connection.sendall(head.encode())
        answer = connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"application/problem+json" in answer


def test_of_many_that_use_one_session_one_is_answered(
    url: str, group: Group, message: bytes
) -> None:
    with ServiceClient(url) as client:
        opened = client.post(SESSIONS, {}, Opened)
        framed = framed_message(purpose=PURPOSE, nonce=opened.nonce, payload=message)
        signature = sign(group.key, group.credential, message=framed).to_bytes()
        evidence = SensorEvidence(message=message, signature=signature)

        def post(_: int) -> str:
            try:
                path = f"{SESSIONS}/{opened.session}/evidence"
                return str(client.post(path, evidence, dict[str, Any])["outcome"])
            except ExciseError as error:
                return error.reason

        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(post, range(12)))
    assert answers.count("PASSED") == 1
    assert answers.count("the session was used already") == 11


@pytest.mark.parametrize(
    ("text", "decoded"),
    [
        (b"", b""),
        (b"AAEC", bytes(range(3))),
        (base64.b64encode(bytes(3 << 20)), bytes(3 << 20)),
        (b"-" * 8, None),
        (b"AA==" * (PART_BYTES // 2), None),
        (b"A" * PART_BYTES + b"A", None),
        (b"\\/w==", b"\xff"),
        (b"_w==", None),
    ],
)
def test_a_message_is_decoded_by_parts_as_msgspec_does_in_one(
    text: bytes, decoded: bytes | None
) -> None:
    body = b'{"signature": "", "message": "' + text + b'"}'
    try:
        whole = msgspec.json.decode(body, type=SensorEvidence)
    except msgspec.DecodeError:
        assert decoded is None
        with pytest.raises(msgspec.DecodeError, match="base64"):
            decode_evidence(body)
    else:
        assert decode_evidence(body) == whole
        assert whole.message == decoded


@pytest.mark.parametrize(
    "body",
    [
        b'{"signature": "", "message": 1}',
        b'{"signature": "", "message": null}',
        b'{"message": ""}',
        b'{"signature": "", "message": "", "more": 1}',
        b'{"signature": "", "message": "\xff"}',
        b"[]",
        b"",
    ],
)
def test_what_is_no_evidence_is_none_by_parts_either(body: bytes) -> None:
    for decode in (msgspec.json.Decoder(SensorEvidence).decode, decode_evidence):
        with pytest.raises((msgspec.DecodeError, UnicodeDecodeError)):
            decode(body)


def test_a_large_body_keeps_no_small_request_waiting(
    url: str, group: Group, message: bytes
) -> None:
    """It is received, decoded, verified and kept beside the small ones."""
    entries = binary_list(files(2000)) * 40
    data = dataclasses.replace(read_sensor_message(message), list_entries=entries).to_bytes()
    signature = sign(group.key, group.credential, message=data).to_bytes()
    body = msgspec.json.encode(SensorEvidence(message=data, signature=signature))
    # A busy machine may keep one waiting now and then; the service would each time.
    assert any(_longest_wait_beside(url, body) < 1 / 3 for _ in range(5))


def _longest_wait_beside(url: str, body: bytes) -> float:
    """Return the longest that a small request took beside a large one, as a share of its time."""
    opened = Opened(**httpx.post(url + SESSIONS, json={}).json())
    done: list[float] = []

    def large() -> None:
        path = f"{url}{SESSIONS}/{opened.session}/evidence"
        headers = {"Content-Type": "application/json"}
        began = time.monotonic()
        answer = httpx.post(path, content=body, headers=headers, timeout=300)
        done.append(time.monotonic() - began)
        # Signed for no session, and it leads to no PCR.
        assert answer.json()["outcome"] == "FAILED"

    sender = threading.Thread(target=large)
    waits = []
    with httpx.Client() as client:
        sender.start()
        while sender.is_alive():
            began = time.monotonic()
            assert client.post(url + SESSIONS, json={}).status_code == 201
            waits.append(time.monotonic() - began)
            time.sleep(0.001)
    sender.join()
    assert len(waits) > 20
    return max(waits) / done[0]


@pytest.mark.lab
def test_a_thousand_slow_clients_leave_room_for_a_sensor(
    url: str, group: Group, message: bytes
) -> None:
    address = urlsplit(url)
    # Each announces much: what does not come must take no room.
    head = b"POST /sensor/v1/sessions HTTP/1.1\r\nHost: x\r\nContent-Length: 90000000\r\n"
    slow = []
    try:
        for number in range(1000):
            connection = socket.create_connection((str(address.hostname), int(address.port or 0)))
            # Some stop in their head, some in their body.
            connection.sendall(head if number % 2 else head + b"\r\n{")
            slow.append(connection)
        with ServiceClient(url) as client:
            for _ in range(20):
                answer = send(message, membership=membership(group), client=client)
                assert answer.outcome == "PASSED"
                for connection in random.sample(slow, 50):
                    try:
                        connection.sendall(b" ")
                    except OSError:
                        continue  # the service has given it up
    finally:
        for connection in slow:
            connection.close()


@pytest.mark.lab
def test_no_acknowledged_transaction_is_lost_by_kill_9(
    options: list[str | Path], group: Group, message: bytes
) -> None:
    acknowledged: list[str] = []

    def work(url: str) -> None:
        """Send until nobody answers."""
        with suppress(ExciseError), ServiceClient(url) as client:
            while True:
                answer = send(message, membership=membership(group), client=client)
                acknowledged.append(answer.transaction)

    for more in (1, 4, 2, 5, 3):
        wanted = len(acknowledged) + more
        with running_verifier(*options) as (url, process):
            senders = [threading.Thread(target=work, args=(url,)) for _ in range(2)]
            for sender in senders:
                sender.start()
            while len(acknowledged) < wanted and any(sender.is_alive() for sender in senders):
                time.sleep(0.005)
            process.send_signal(signal.SIGKILL)  # others are under way
            for sender in senders:
                sender.join()
            assert process.wait() == -signal.SIGKILL
    assert len(acknowledged) >= 15
    with running_verifier(*options) as (url, _):
        for name in acknowledged:
            kept = json.loads(httpx.get(f"{url}{TRANSACTIONS}/{name}").content)
            assert kept["outcome"] == "PASSED"
