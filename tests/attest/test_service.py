"""What the services share, on real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.attest.service import (
    NoRoomError,
    ServiceClient,
    SessionExpired,
    SessionStore,
    SessionUnknown,
    SessionUsed,
    Tls,
    problem_of,
)
from excise.attest.service.app import SMALL_BYTES
from excise.errors import FormatError, HostError, Refused, UsageError
from tls_files import write_tls

PROGRAM = Path(__file__).with_name("service_program.py")


@dataclass
class Running:
    process: subprocess.Popen[str]
    url: str

    @property
    def address(self) -> tuple[str, int]:
        host, port = self.url.split("//")[1].rsplit(":", 1)
        return host, int(port)

    def ask(self, head: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
        """Send raw bytes and read the answer to its end."""
        with socket.create_connection(self.address, timeout=PATIENCE_S) as connection:
            connection.sendall(head.replace("\n", "\r\n").encode() + body)
            data = b""
            while part := connection.recv(65536):
                data += part
        return parse_answer(data)


def parse_answer(data: bytes) -> tuple[int, dict[str, str], bytes]:
    top, _, body = data.partition(b"\r\n\r\n")
    first, *rest = top.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in rest)
    return int(first.split()[1]), headers, body


@contextmanager
def start(**options: object) -> Iterator[Running]:
    """Run the service; it is ended on the way out, if not before."""
    process = subprocess.Popen(
        [sys.executable, str(PROGRAM), json.dumps(options)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
    )
    assert process.stdout is not None
    with ended(process):
        url = process.stdout.readline().strip()
        assert url.startswith("http"), process.stderr.read() if process.stderr else ""
        yield Running(process, url)


def stop(running: Running, how: int = signal.SIGTERM) -> tuple[int, str]:
    running.process.send_signal(how)
    out, _ = running.process.communicate(timeout=PATIENCE_S)
    return running.process.returncode, out


LIMITS = {"body_bytes": 1000, "bodies_bytes": 100_000}


@pytest.fixture(scope="module")
def service() -> Iterator[Running]:
    with start(header_s=600.0, limits={**LIMITS, "body_s": 600.0}) as running:
        yield running


@pytest.fixture(scope="module")
def impatient() -> Iterator[Running]:
    with start(header_s=1.0, limits={**LIMITS, "body_s": 1.0}) as running:
        yield running


def post(path: str, body: bytes, *, length: int | None = None, kind: str = "application/json"):
    announced = len(body) if length is None else length
    head = f"POST {path} HTTP/1.1\nHost: x\nConnection: close\nContent-Type: {kind}\n"
    return head + f"Content-Length: {announced}\n\n", body


def test_a_good_request_is_answered(service: Running) -> None:
    status, headers, body = service.ask(*post("/echo", b'{"text": "hello"}'))
    assert (status, body) == (200, b'{"text":"hello"}')
    assert headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("request_", "status", "text"),
    [
        (post("/echo", b'{"text": 1}'), 400, "Expected `str`, got `int` - at `$.text`"),
        (post("/echo", b'{"text": "a", "more": 1}'), 400, "unknown field `more`"),
        (post("/echo", b"{"), 400, "truncated"),
        (post("/echo", b"\xff\xfe"), 400, "invalid"),
        (post("/echo", b"[" * 900), 400, "body"),
        (post("/echo", b'{"text": "a"}', kind="text/plain"), 415, "must be application/json"),
        (post("/size", b"x" * 1001), 413, "at most 1000 bytes"),
        (("GET /nowhere HTTP/1.1\nHost: x\nConnection: close\n\n", b""), 404, "Not Found"),
        (("GET /echo HTTP/1.1\nHost: x\nConnection: close\n\n", b""), 405, "Method Not Allowed"),
        (("GET /refuse HTTP/1.1\nHost: x\nConnection: close\n\n", b""), 403, "it rains"),
        (("GET /broken HTTP/1.1\nHost: x\nConnection: close\n\n", b""), 500, "Internal"),
    ],
)
def test_what_is_wrong_is_answered_with_a_problem(
    service: Running, request_: tuple[str, bytes], status: int, text: str
) -> None:
    found, headers, body = service.ask(*request_)
    assert found == status, body
    assert headers["content-type"] == "application/problem+json"
    problem = json.loads(body)
    assert problem["status"] == status
    assert text in body.decode()
    assert "42" not in body.decode()


def test_a_body_that_grows_past_the_limit_is_cut_off(service: Running) -> None:
    head = "POST /size HTTP/1.1\nHost: x\nConnection: close\nTransfer-Encoding: chunked\n\n"
    chunk = b"1f4\r\n" + b"x" * 500 + b"\r\n"
    good = service.ask(head, chunk * 2 + b"0\r\n\r\n")
    assert (good[0], good[2]) == (200, b"1000")
    status, headers, _ = service.ask(head, chunk * 3)
    assert (status, headers["content-type"]) == (413, "application/problem+json")


def test_a_body_that_does_not_come_is_given_up(impatient: Running) -> None:
    status, headers, body = impatient.ask(*post("/size", b"x", length=10))
    assert (status, headers["connection"]) == (408, "close"), body


def test_a_head_that_does_not_come_is_given_up(impatient: Running) -> None:
    with socket.create_connection(impatient.address, timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /size HTTP/1.1\r\nHost: x\r\n")
        assert connection.recv(100) == b""


def test_a_thousand_slow_clients_do_not_keep_others_out() -> None:
    with start(header_s=600.0, limits={"body_bytes": 2000, "body_s": 600.0}) as running:

        async def clients() -> list[int]:
            host, port = running.address
            slow = []
            for number in range(1000):
                reader, writer = await asyncio.open_connection(host, port)
                part = "POST /size HTTP/1.1\r\nHost: x\r\n"
                if number % 2:
                    part += "Content-Length: 1000\r\n\r\nx"
                writer.write(part.encode())
                slow.append((reader, writer, number))
            for _, writer, _ in slow:
                await writer.drain()
            quick = [
                await asyncio.to_thread(running.ask, *post("/size", b"y" * 9)) for _ in range(20)
            ]
            assert [body for *_, body in quick] == [b"9"] * 20
            answers = []
            for _, writer, number in slow:
                rest = b"x" * 999 if number % 2 else b"Content-Length: 1000\r\n\r\n" + b"x" * 1000
                writer.write(rest)
            for reader, writer, _ in slow:
                line = await reader.readline()
                answers.append(int(line.split()[1]))
                writer.close()
            return answers

        assert asyncio.run(clients()) == [200] * 1000
        code, _ = stop(running)
    assert code == 0


def test_bodies_together_have_a_limit_and_give_their_room_back() -> None:
    with start(limits={"body_bytes": 1000, "bodies_bytes": 1500, "body_s": 600.0}) as running:
        with socket.create_connection(running.address, timeout=PATIENCE_S) as held:
            head, _ = post("/size", b"", length=1000)
            # What is only announced takes no room.
            held.sendall(head.replace("\n", "\r\n").encode())
            assert running.ask(*post("/size", b"x" * 1000))[0] == 200
            held.sendall(b"x" * 999)
            wait_until(lambda: running.ask(*post("/size", b"x" * 502))[0] != 200)
            status, headers, _ = running.ask(*post("/size", b"x" * 502))
            assert (status, headers["retry-after"]) == (503, "1")
            assert running.ask(*post("/size", b"x" * 499))[0] == 200
        wait_until(lambda: running.ask(*post("/size", b"x" * 1000))[0] == 200)


def test_large_bodies_leave_room_for_small_ones() -> None:
    with start(limits={"body_bytes": 2 * SMALL_BYTES, "bodies_bytes": 2 * SMALL_BYTES}) as running:
        large = post("/size", b"x" * (SMALL_BYTES * 8 // 5), length=2 * SMALL_BYTES)
        assert running.ask(*large)[0] == 503  # above three quarters, before it is whole
        assert running.ask(*post("/size", b"x" * SMALL_BYTES))[0] == 200
        assert running.ask(*post("/size", b"x" * (SMALL_BYTES + 100)))[0] == 200


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_what_is_under_way_is_answered_before_the_end(how: int) -> None:
    answers = []

    def ask() -> None:
        answers.append(running.ask("GET /slow HTTP/1.1\nHost: x\nConnection: close\n\n"))

    with start() as running:
        asking = threading.Thread(target=ask)
        asking.start()
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == "slow\n"
        code, out = stop(running, how)
        asking.join()
    assert (answers[0][0], answers[0][2]) == (200, b"done")
    assert (code, out) == (0, "ended\n")


def test_tls_is_spoken_where_there_is_a_certificate(tmp_path: Path) -> None:
    certificate, key = write_tls(tmp_path)
    with start(certificate=str(certificate), key=str(key)) as running:
        assert running.url.startswith("https://")

        class Echo(msgspec.Struct):
            text: str

        with ServiceClient(running.url, ca_file=certificate) as client:
            assert client.post("/echo", Echo(text="hidden"), Echo) == Echo(text="hidden")
        with (
            ServiceClient(running.url) as client,
            pytest.raises(HostError, match="CERTIFICATE_VERIFY_FAILED"),
        ):
            client.post("/echo", Echo(text="hidden"), Echo)
        context = ssl.create_default_context(cafile=str(certificate))
        place = urlsplit(running.url)
        with (
            socket.create_connection((str(place.hostname), int(place.port or 0))) as plain,
            context.wrap_socket(plain, server_hostname=str(place.hostname)) as spoken,
        ):
            assert spoken.version() in ("TLSv1.2", "TLSv1.3")


def test_tls_files_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    certificate, key = write_tls(tmp_path)
    Tls(certificate=certificate, key=key).check()
    _, other = write_tls(tmp_path, name="other")
    with pytest.raises(FormatError, match="no certificate and key that fit each other"):
        Tls(certificate=certificate, key=other).check()
    with pytest.raises(FormatError, match="no certificate and key that fit each other"):
        Tls(certificate=tmp_path / "none", key=key).check()


def test_the_client_raises_what_the_service_says(service: Running) -> None:
    with ServiceClient(service.url) as client:
        with pytest.raises(Refused, match=r"not today\. come again\n  it rains"):
            client.get("/refuse", dict)
        with pytest.raises(HostError, match="HTTP status 500"):
            client.get("/broken", dict)
        with pytest.raises(FormatError, match="Expected `str`"):
            client.post("/echo", {"text": 1}, dict)


def test_the_client_says_when_nobody_answers() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
        with (
            ServiceClient(f"http://127.0.0.1:{port}") as client,
            pytest.raises(HostError, match=r"the service does not answer .*Is it running"),
        ):
            client.get("/", dict)
    with pytest.raises(UsageError, match="no http or https URL"):
        ServiceClient("ftp://127.0.0.1")


# Sessions


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_session_is_taken_once() -> None:
    store: SessionStore[str] = SessionStore()
    token = store.open("state")
    assert len(bytes.fromhex(token)) == 32
    assert store.take(token) == "state"
    with pytest.raises(SessionUsed, match="was used already"):
        store.take(token)
    with pytest.raises(SessionUnknown, match="no such session"):
        store.take("00")


def test_a_session_goes_on_where_it_was_kept_until_its_first_end() -> None:
    clock = Clock()
    store: SessionStore[str] = SessionStore(lifetime_s=10, clock=clock)
    token = store.open("first")
    clock.now = 6
    assert store.take(token) == "first"
    store.keep(token, "second")
    clock.now = 9.9
    assert store.take(token) == "second"
    store.keep(token, "third")
    clock.now = 10
    with pytest.raises(SessionExpired, match="lasted 10 s"):
        store.take(token)


def test_sessions_that_are_over_are_forgotten_and_make_room() -> None:
    clock = Clock()
    store: SessionStore[int] = SessionStore(lifetime_s=10, capacity=3, clock=clock)
    tokens = [store.open(number) for number in range(3)]
    with pytest.raises(NoRoomError, match="3 sessions are open"):
        store.open(3)
    assert store.take(tokens[2]) == 2
    clock.now = 10
    store.open(4)
    with pytest.raises(SessionUnknown, match="no such session"):
        store.take(tokens[0])
    clock.now = 30
    store.open(5)
    assert len(store) == 1


def test_of_many_threads_one_takes_the_session() -> None:
    store: SessionStore[str] = SessionStore()
    token = store.open("state")
    taken: list[str] = []
    barrier = threading.Barrier(16)

    def take() -> None:
        barrier.wait()
        with contextlib.suppress(SessionUsed):
            taken.append(store.take(token))

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert taken == ["state"]


def test_an_error_becomes_a_problem_with_its_attributes() -> None:
    problem = problem_of(FormatError("too short", source="body", field="c", offset=3, hint="send"))
    assert problem == {
        "type": "urn:excise:problem:FormatError",
        "title": "Unreadable input",
        "status": 400,
        "detail": "body: offset 3: field c: too short. send",
        "reason": "too short",
        "source": "body",
        "field": "c",
        "offset": 3,
        "hint": "send",
    }
    assert problem_of(RuntimeError("secret"))["title"] == "Internal Server Error"
