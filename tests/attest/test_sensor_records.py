"""What a sensor's verifier keeps is read back, also from databases of earlier versions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from excise.attest.sensor.records import SensorRecords, StoredTransaction
from excise.attest.service.database import open_database
from excise.evidence.checks import Outcome
from postgres_server import postgres_server

# As the first version made it, which did not keep basenames.
_FIRST = """CREATE TABLE sensor_transactions (
    id TEXT PRIMARY KEY, received_s DOUBLE PRECISION NOT NULL, pseudonym TEXT,
    outcome TEXT NOT NULL, nonce {bytes} NOT NULL, message {bytes} NOT NULL,
    signature {bytes} NOT NULL, attest {bytes}, result TEXT NOT NULL)"""
_ROW = "INSERT INTO sensor_transactions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"


def _transaction(name: str, *, basename: bytes | None) -> StoredTransaction:
    return StoredTransaction(
        id=name,
        received_s=1.5,
        pseudonym="04ab",
        outcome=Outcome.PASSED,
        nonce=b"n",
        message=b"m",
        signature=b"s",
        attest=None,
        result={"checks": []},
        basename=basename,
    )


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "SQLite":
        yield str(tmp_path / "db")
        return
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra attest)")
    with postgres_server() as found:
        yield found


def test_a_database_without_basenames_is_given_them_and_loses_nothing(url: str) -> None:
    with open_database(url) as database:
        kind = database.bytes_type
        database.run_now(lambda cursor: cursor.execute(_FIRST.format(bytes=kind)) and None)
        row = ("old", 1.5, "04ab", "PASSED", b"n", b"m", b"s", None, '{"checks": []}')
        database.run_now(lambda cursor: cursor.execute(_ROW, row) and None)
    for _ in range(2):  # the second time there is nothing left to do
        with open_database(url) as database:
            SensorRecords(database)
    new = _transaction("new", basename=b"door-\xff")
    with open_database(url) as database:
        records = SensorRecords(database)

        async def work() -> tuple[StoredTransaction | None, ...]:
            await records.keep(new)
            return await records.transaction("old"), await records.transaction("new")

        assert asyncio.run(work()) == (_transaction("old", basename=None), new)
