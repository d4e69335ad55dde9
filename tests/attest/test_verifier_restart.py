"""The real program is killed and started anew under load: no session twice, none lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.evidence.base64text import decode_base64
from ports import free_port
from postgres_server import postgres_server
from token_builders import claims_2, corim, token
from verifier_runner import running

HEADERS = {"Content-Type": "application/psa-attestation-token"}
NEW = "/challenge-response/v1/newSession"


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    with postgres_server() as url:
        yield url


@pytest.fixture
def folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


class Service:
    """The program, which may be killed and started on the same port."""

    def __init__(self, database: str, known: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._command = [
            *(sys.executable, "-c", "from excise.cli.main import main; main()"),
            *("verifier", "serve", "--database", database, "--corim", str(known)),
            *("--listen", f"127.0.0.1:{self.port}"),
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.DEVNULL)

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self._process is not None
        os.kill(self._process.pid, number)
        self._process.wait(timeout=PATIENCE_S)

    def end(self) -> None:
        assert self._process is not None
        with ended(self._process):
            pass

    def wait(self) -> None:
        wait_until(self._answers, beside=self._process, what="the verifier")

    def _answers(self) -> bool:
        try:
            httpx.get(f"{self.url}/.well-known/veraison/verification", verify=False)
        except httpx.HTTPError:
            return False
        return True


@dataclass
class Seen:
    """What clients were told: what was acknowledged must hold whatever happens after."""

    opened: dict[str, bytes] = field(default_factory=dict)
    results: dict[str, list[str]] = field(default_factory=dict)
    uncertain: set[str] = field(default_factory=set)
    twice: int = 0


async def _client(url: str, seen: Seen, stop: asyncio.Event) -> None:
    """Open and answer sessions through every interruption, each submission twice at once."""
    async with httpx.AsyncClient(base_url=url, timeout=10, verify=False) as client:
        while not stop.is_set():
            try:
                answer = await client.post(NEW)
                assert answer.status_code == 201, answer.text
                path = f"/challenge-response/v1/{answer.headers['location']}"
                nonce = decode_base64(answer.json()["nonce"], field="nonce")
                seen.opened[path] = nonce
                evidence = token(claims_2(k10=nonce))
                seen.uncertain.add(path)
                answers = await asyncio.gather(
                    *(client.post(path, content=evidence, headers=HEADERS) for _ in range(2)),
                    return_exceptions=True,
                )
                for one in answers:
                    if isinstance(one, httpx.Response):
                        assert one.status_code in (200, 409), one.text
                        if one.status_code == 200:
                            seen.results.setdefault(path, []).append(one.json()["result"])
            except httpx.HTTPError:
                await asyncio.sleep(0.05)


async def _load(service: Service, seen: Seen, *, kills: int) -> None:
    stop = asyncio.Event()
    clients = [asyncio.create_task(_client(service.url, seen, stop)) for _ in range(4)]
    for number in range(kills):
        before = len(seen.results)
        while len(seen.results) < before + 15:
            await asyncio.sleep(0.02)
            for client in clients:
                if client.done():
                    client.result()  # it ends by an error alone
        # In the middle of whatever is under way; every other time with warning.
        await asyncio.to_thread(service.kill, signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
        service.start()
        await asyncio.to_thread(service.wait)
    await asyncio.sleep(0.2)
    stop.set()
    await asyncio.gather(*clients)


def _check(service: Service, seen: Seen) -> None:
    with httpx.Client(base_url=service.url, verify=False, timeout=30) as client:
        for path, nonce in seen.opened.items():
            session = client.get(path).json()
            # None acknowledged and lost.
            assert decode_base64(session["nonce"], field="nonce") == nonce
            given = seen.results.get(path, [])
            # None answered twice.
            assert len(given) <= 1
            if given:
                assert session["status"] == "complete"
                assert session["result"] == given[0]
                answer = client.post(path, content=token(claims_2(k10=nonce)), headers=HEADERS)
                assert answer.status_code == 409


def _restart(database: str, folder: Path, *, kills: int) -> Seen:
    (folder / "qemu.cbor").write_bytes(corim())
    service = Service(database, folder / "qemu.cbor")
    service.start()
    seen = Seen()
    try:
        service.wait()
        asyncio.run(_load(service, seen, kills=kills))
        _check(service, seen)
    finally:
        service.end()
    return seen


def test_a_killed_verifier_loses_nothing_and_answers_nothing_twice(folder: Path) -> None:
    seen = _restart(str(folder / "verifier.sqlite"), folder, kills=1)
    assert len(seen.results) >= 15


@pytest.mark.lab
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_many_kills_lose_nothing_and_answer_nothing_twice(
    kind: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    database = str(folder / "verifier.sqlite")
    if kind == "postgres":
        database = request.getfixturevalue("postgres")
    seen = _restart(database, folder, kills=6)
    assert len(seen.results) >= 90


def test_sessions_and_keys_are_kept_in_postgresql(postgres: str) -> None:
    with running(postgres) as client:
        answer = client.post(NEW)
        path = f"/challenge-response/v1/{answer.headers['location']}"
        nonce = decode_base64(answer.json()["nonce"], field="nonce")
        answer = client.post(path, content=token(claims_2(k10=nonce)), headers=HEADERS)
        assert answer.status_code == 200
        key = client.get("/.well-known/veraison/verification").json()["ear-verification-key"]
        waiting = f"/challenge-response/v1/{client.post(NEW).headers['location']}"
    with running(postgres, page=True) as client:
        assert client.get(path).json() == answer.json()
        again = client.post(path, content=token(claims_2(k10=nonce)), headers=HEADERS)
        assert again.status_code == 409
        assert client.get(waiting).json()["status"] == "waiting"
        assert client.delete(waiting).status_code == 204
        told = client.get("/.well-known/veraison/verification").json()
        assert told["ear-verification-key"] == key
        assert "affirming" in client.get("/").text


def test_two_verifiers_on_one_database_answer_a_session_once(postgres: str) -> None:
    with running(postgres) as first, running(postgres) as second:
        answer = first.post(NEW)
        path = f"/challenge-response/v1/{answer.headers['location']}"
        nonce = decode_base64(answer.json()["nonce"], field="nonce")
        evidence = token(claims_2(k10=nonce))
        assert second.post(path, content=evidence, headers=HEADERS).status_code == 200
        assert first.post(path, content=evidence, headers=HEADERS).status_code == 409


def test_a_lost_connection_to_the_database_is_made_anew(postgres: str) -> None:
    import psycopg

    with running(postgres) as client, psycopg.connect(postgres, autocommit=True) as other:
        assert client.post(NEW).status_code == 201
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
        answer = client.post(NEW)
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert answer.headers["content-type"] == "application/problem+json"
        assert client.post(NEW).status_code == 201


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("postgresql:///x?host=/nowhere", "cannot be connected to"),
        ("mysql://x", "is no database. A file's path, or postgresql"),
        ("/dev/null/x.sqlite", "cannot be opened as a database"),
    ],
)
def test_a_database_that_cannot_be_used_is_named(url: str, reason: str) -> None:
    from excise.attest.verifier import Database
    from excise.errors import ExciseError

    with pytest.raises(ExciseError, match=reason):
        Database(url)


def test_a_password_is_never_shown() -> None:
    from excise.attest.verifier import Database
    from excise.errors import ExciseError

    with pytest.raises(ExciseError, match="cannot be connected to") as info:
        Database("postgresql://excise:secret@127.0.0.1:9/x")
    assert "secret" not in json.dumps(info.value.as_dict())
    assert "excise@127.0.0.1" in str(info.value)


def test_one_failing_request_is_the_failure_of_one() -> None:
    from excise.attest.verifier import Database
    from excise.errors import HostError

    with tempfile.TemporaryDirectory() as name:
        database = Database(f"{name}/x.sqlite")

        async def many() -> list[object]:
            await database.run(lambda cursor: cursor.execute("CREATE TABLE t (x INTEGER)") and None)
            good = "INSERT INTO t VALUES (?)"
            works = [
                database.run(
                    lambda cursor, n=n: (
                        cursor.execute(good if n != 7 else "NONSENSE ?", (n,)) and None
                    )
                )
                for n in range(20)
            ]
            return list(await asyncio.gather(*works, return_exceptions=True))

        results = asyncio.run(many())
        assert [n for n, one in enumerate(results) if isinstance(one, HostError)] == [7]
        rows = database.run_now(lambda cursor: cursor.execute("SELECT x FROM t").fetchall())
        assert sorted(row[0] for row in rows) == [n for n in range(20) if n != 7]
        database.close()
        with pytest.raises(HostError, match="the database is closed"):
            database.run_now(lambda cursor: cursor.execute("SELECT 1").fetchone())
