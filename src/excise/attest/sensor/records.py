"""What a sensor verifier keeps: every transaction with its evidence, and each sensor's state."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from excise.attest.service.database import Cursor, Database
from excise.errors import Refused
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS sensor_transactions (
        id TEXT PRIMARY KEY, received_s DOUBLE PRECISION NOT NULL, pseudonym TEXT,
        outcome TEXT NOT NULL, nonce {bytes} NOT NULL, message {bytes} NOT NULL,
        signature {bytes} NOT NULL, attest {bytes}, result TEXT NOT NULL, basename {bytes})""",
    """CREATE INDEX IF NOT EXISTS sensor_transactions_pseudonym
        ON sensor_transactions (pseudonym, received_s)""",
    """CREATE TABLE IF NOT EXISTS sensors (
        pseudonym TEXT PRIMARY KEY, list_end BIGINT NOT NULL, checkpoint TEXT NOT NULL,
        accepted_s DOUBLE PRECISION NOT NULL)""",
)
_COLUMNS: Final = (
    "id, received_s, pseudonym, outcome, nonce, message, signature, attest, result, basename"
)
# Of bytes, and not in the tables of all earlier versions.
_LATER_COLUMNS: Final = ("attest", "basename")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTransaction:
    """A transaction as it was received and answered.

    Attributes:
        id: 128 random bits in hexadecimal.
        received_s: Seconds since the epoch.
        pseudonym: The sensor's, in hexadecimal; None where it stayed anonymous.
        outcome: The answer.
        nonce: The session's.
        message: The message's bytes.
        signature: The signature's bytes.
        attest: TPMS_ATTEST, where the signature is the TPM's quote; None otherwise.
        result: Checks and facts, as `AppraisalResult.as_dict` gives them, with the reasons.
        basename: What the pseudonym is made of; None where there is no pseudonym, and for
            transactions that were kept before basenames were.
    """

    id: str
    received_s: float
    pseudonym: str | None
    outcome: Outcome
    nonce: bytes
    message: bytes
    signature: bytes
    attest: bytes | None
    result: dict[str, Any]
    basename: bytes | None = None


class SensorRecords:
    """Transactions and sensors in a database; what was answered is on disk before.

    Args:
        database: Where they are kept.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        kind = database.bytes_type
        database.run_now(lambda cursor: _make_tables(cursor, kind))

    async def state(self, pseudonym: str) -> Checkpoint | None:
        """Return the state of a sensor's list after its last accepted message."""

        def work(cursor: Cursor) -> Any:
            return cursor.execute(
                "SELECT checkpoint FROM sensors WHERE pseudonym = ?", (pseudonym,)
            ).fetchone()

        row = await self._database.run(work)
        return Checkpoint.from_json(row[0], source="database") if row else None

    async def keep(
        self,
        transaction: StoredTransaction,
        *,
        checkpoint: Checkpoint | None = None,
        before: Checkpoint | None = None,
    ) -> None:
        """Keep a transaction and, where it was accepted, the sensor's new state, in one commit.

        Args:
            transaction: What to keep.
            checkpoint: The new state; None leaves the sensor's as it is.
            before: The state the new one was made from; None: from the list's head.

        Raises:
            Refused: Another transaction of the sensor came between and moved its state.
        """

        def work(cursor: Cursor) -> bool:
            if checkpoint is not None and transaction.pseudonym is not None:
                moved = _move(cursor, transaction.pseudonym, checkpoint, before)
                if not moved:
                    return False
            cursor.execute(
                f"INSERT INTO sensor_transactions ({_COLUMNS}) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    transaction.id,
                    transaction.received_s,
                    transaction.pseudonym,
                    transaction.outcome.value,
                    transaction.nonce,
                    transaction.message,
                    transaction.signature,
                    transaction.attest,
                    json.dumps(transaction.result, default=str),
                    transaction.basename,
                ),
            )
            return True

        if not await self._database.run(work):
            raise Refused(
                "another transaction of this sensor was accepted meanwhile",
                hint="Open a new session and send again",
            )

    async def transaction(self, name: str) -> StoredTransaction | None:
        """Return a transaction, or None where there is none of that name."""

        def work(cursor: Cursor) -> Any:
            return cursor.execute(
                f"SELECT {_COLUMNS} FROM sensor_transactions WHERE id = ?",
                (name,),
            ).fetchone()

        row = await self._database.run(work)
        return _stored(row) if row else None

    async def count(self) -> int:
        """Return how many transactions are kept."""

        def work(cursor: Cursor) -> Any:
            return cursor.execute("SELECT COUNT(*) FROM sensor_transactions").fetchone()

        return int((await self._database.run(work))[0])


def _make_tables(cursor: Cursor, kind: str) -> None:
    """Make what is not there, and give tables of before the columns that came later."""
    for text in _SCHEMA:
        cursor.execute(text.format(bytes=kind))
    held = cursor.execute("SELECT * FROM sensor_transactions LIMIT 0").description or ()
    there = {column[0] for column in held}
    for name in _LATER_COLUMNS:
        if name not in there:
            cursor.execute(f"ALTER TABLE sensor_transactions ADD COLUMN {name} {kind}")


def _move(
    cursor: Cursor, pseudonym: str, checkpoint: Checkpoint, before: Checkpoint | None
) -> bool:
    """Set a sensor's state; only from the state that the new one was made from."""
    document, end = checkpoint.to_json().decode(), checkpoint.offset
    now = time.time()
    if before is None:
        # From the head of a list: a new sensor, or a list that was begun anew by a boot.
        cursor.execute(
            "INSERT INTO sensors (pseudonym, list_end, checkpoint, accepted_s) "
            "VALUES (?, ?, ?, ?) ON CONFLICT (pseudonym) DO UPDATE SET "
            "list_end = excluded.list_end, checkpoint = excluded.checkpoint, "
            "accepted_s = excluded.accepted_s",
            (pseudonym, end, document, now),
        )
        return True
    cursor.execute(
        "UPDATE sensors SET list_end = ?, checkpoint = ?, accepted_s = ? "
        "WHERE pseudonym = ? AND checkpoint = ?",
        (end, document, now, pseudonym, before.to_json().decode()),
    )
    return cursor.rowcount == 1


def _stored(row: Sequence[Any]) -> StoredTransaction:
    name, received_s, pseudonym, outcome, nonce, message, signature, attest, result, base = row
    return StoredTransaction(
        id=name,
        received_s=received_s,
        pseudonym=pseudonym,
        outcome=Outcome(outcome),
        nonce=bytes(nonce),
        message=bytes(message),
        signature=bytes(signature),
        attest=bytes(attest) if attest is not None else None,
        result=json.loads(result),
        basename=bytes(base) if base is not None else None,
    )
