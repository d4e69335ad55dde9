"""What a verifier keeps: sessions, endorsements, signing keys.

A session is answered once. The answer is written by a statement that changes the row only while it
still waits, and is given out after the commit; of two submissions, also to two processes or before
and after a restart, one changes the row and the other is told that the session was used.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from excise.attest.service import NoRoomError, SessionExpired, SessionUnknown, SessionUsed
from excise.attest.service.database import Cursor, Database
from excise.units import counted

SESSION_S: Final = 150.0
"""How long a session waits for its evidence: two and a half minutes, as Veraison's do."""

KEPT_S: Final = 7 * 86_400.0
"""How long sessions are kept for the page after they ended."""

MAX_WAITING: Final = 100_000
"""Sessions that may wait for evidence at once: what 650 challenges a second leave in 150 s."""

WAITING, COMPLETE, DELETED = "waiting", "complete", "deleted"

_SCHEMA: Final = (
    """CREATE TABLE IF NOT EXISTS sessions (
        id TEXT PRIMARY KEY, nonce {bytes} NOT NULL, created_s DOUBLE PRECISION NOT NULL,
        expiry_s DOUBLE PRECISION NOT NULL, status TEXT NOT NULL, media_type TEXT,
        evidence {bytes}, result TEXT, verdict TEXT, answered_s DOUBLE PRECISION)""",
    "CREATE INDEX IF NOT EXISTS sessions_created ON sessions (created_s)",
    "CREATE UNIQUE INDEX IF NOT EXISTS sessions_nonce ON sessions (nonce)",
    """CREATE TABLE IF NOT EXISTS documents (
        build TEXT NOT NULL, corim TEXT NOT NULL, profile TEXT NOT NULL, data {bytes} NOT NULL,
        received_s DOUBLE PRECISION NOT NULL, PRIMARY KEY (build, corim))""",
    """CREATE TABLE IF NOT EXISTS signing_keys (
        kid TEXT PRIMARY KEY, pem TEXT NOT NULL, created_s DOUBLE PRECISION NOT NULL,
        retired_s DOUBLE PRECISION)""",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One challenge and what became of it.

    Attributes:
        id: 122 random bits, as a UUID.
        nonce: The challenge.
        created_s: When it was opened, in seconds since the epoch.
        expiry_s: Until when evidence is taken.
        status: `waiting`, `complete` or `deleted`.
        media_type: Of the evidence; empty before it came.
        evidence: As received.
        result: The signed result; empty before it was given.
        verdict: Status, vector, reasons and failed checks, for people to read.
        answered_s: When the result was given; None before.
    """

    id: str
    nonce: bytes
    created_s: float
    expiry_s: float
    status: str
    media_type: str = ""
    evidence: bytes = b""
    result: str = ""
    verdict: Mapping[str, Any] | None = None
    answered_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a session is answered with."""

    media_type: str
    evidence: bytes
    result: str
    verdict: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A CoRIM that was provisioned."""

    build: str
    corim: str
    profile: str
    data: bytes
    received_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKey:
    """A signing key of the verifier, in PEM; `retired_s` is set once another signs."""

    kid: str
    pem: str
    created_s: float
    retired_s: float | None


_COLUMNS: Final = (
    "id, nonce, created_s, expiry_s, status, media_type, evidence, result, verdict, answered_s"
)


class Records:
    """Sessions, endorsements and keys in a database.

    Args:
        database: Where they are kept.
        session_s: How long a session waits for evidence.
        kept_s: How long a session is kept after its end.
        max_waiting: How many sessions opened here may wait at once.
    """

    def __init__(
        self,
        database: Database,
        *,
        session_s: float = SESSION_S,
        kept_s: float = KEPT_S,
        max_waiting: int = MAX_WAITING,
    ) -> None:
        self._database = database
        self.session_s = session_s
        self._kept_s = kept_s
        self._max_waiting = max_waiting
        # Sessions opened here, so that evidence need not read them back. The row decides all the
        # same: a session in this cache can have been answered by another process.
        self._open: OrderedDict[str, Session] = OrderedDict()
        kind = database.bytes_type
        database.run_now(
            lambda cursor: [cursor.execute(text.format(bytes=kind)) for text in _SCHEMA] and None
        )

    async def open(self, nonce: bytes) -> Session:
        """Return a new session, once it is on disk.

        Raises:
            SessionUsed: The challenge was used before: an old answer to it would be taken.
            NoRoomError: Too many sessions wait already.
        """
        now = time.time()
        self._make_room(now)
        session = Session(
            id=str(uuid.uuid4()),
            nonce=nonce,
            created_s=now,
            expiry_s=now + self.session_s,
            status=WAITING,
        )
        values = (session.id, nonce, now, session.expiry_s, WAITING)

        def write(cursor: Cursor) -> int:
            cursor.execute(
                "INSERT INTO sessions (id, nonce, created_s, expiry_s, status) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                values,
            )
            return cursor.rowcount

        if await self._database.run(write) != 1:
            raise SessionUsed("this challenge was used before", hint="Let the verifier choose one")
        self._open[session.id] = session
        return session

    def _make_room(self, now: float) -> None:
        while self._open and next(iter(self._open.values())).expiry_s <= now:
            self._open.popitem(last=False)
        if len(self._open) >= self._max_waiting:
            raise NoRoomError(
                f"{counted(self._max_waiting, 'session waits', 'sessions wait')} for evidence",
                hint=f"Try again in {self.session_s:g} s",
            )

    async def waiting(self, session_id: str) -> Session:
        """Return a session that still takes evidence.

        Raises:
            SessionUnknown: There is none.
            SessionUsed: It was answered.
            SessionExpired: Its time is over.
        """
        session = self._open.get(session_id) or await self.get(session_id)
        if session.status != WAITING:
            raise SessionUsed("the session was answered already", hint="Open a new one")
        if time.time() >= session.expiry_s:
            raise SessionExpired(
                f"the session took evidence for {self.session_s:g} s", hint="Open a new one"
            )
        return session

    async def answer(self, session: Session, answer: Answer) -> Session:
        """Return the session with its answer, once that is on disk.

        Raises:
            SessionUsed: Another submission was answered meanwhile, or the session was deleted.
        """
        now = time.time()
        verdict = json.dumps(answer.verdict)
        values = (COMPLETE, answer.media_type, answer.evidence, answer.result, verdict, now)

        def write(cursor: Cursor) -> int:
            cursor.execute(
                "UPDATE sessions SET status = ?, media_type = ?, evidence = ?, result = ?, "
                "verdict = ?, answered_s = ? WHERE id = ? AND status = ?",
                (*values, session.id, WAITING),
            )
            return cursor.rowcount

        changed = await self._database.run(write)
        self._open.pop(session.id, None)
        if changed != 1:
            raise SessionUsed("the session was answered already", hint="Open a new one")
        return Session(
            id=session.id,
            nonce=session.nonce,
            created_s=session.created_s,
            expiry_s=session.expiry_s,
            status=COMPLETE,
            media_type=answer.media_type,
            evidence=answer.evidence,
            result=answer.result,
            verdict=answer.verdict,
            answered_s=now,
        )

    async def get(self, session_id: str, *, deleted: bool = False) -> Session:
        """Return a session.

        Raises:
            SessionUnknown: There is none, or it was deleted (unless those are asked for).
        """
        row = await self._database.run(
            lambda cursor: cursor.execute(
                f"SELECT {_COLUMNS} FROM sessions WHERE id = ?", (session_id,)
            ).fetchone()
        )
        if row is None or (row[4] == DELETED and not deleted):
            raise SessionUnknown("no such session", hint="Open a new one")
        return _session(row)

    async def delete(self, session_id: str) -> None:
        """Delete a session; the page shows it until it is forgotten.

        Raises:
            SessionUnknown: There is none.
        """

        def write(cursor: Cursor) -> int:
            cursor.execute(
                "UPDATE sessions SET status = ? WHERE id = ? AND status <> ?",
                (DELETED, session_id, DELETED),
            )
            return cursor.rowcount

        self._open.pop(session_id, None)
        if await self._database.run(write) != 1:
            raise SessionUnknown("no such session", hint="Open a new one")

    async def recent(self, *, limit: int = 50, offset: int = 0) -> tuple[int, list[Session]]:
        """Return how many sessions there are, and the latest of them."""

        def read(cursor: Cursor) -> tuple[int, list[Any]]:
            count = cursor.execute("SELECT COUNT(*) FROM sessions").fetchone()[0]
            rows = cursor.execute(
                f"SELECT {_COLUMNS} FROM sessions ORDER BY created_s DESC, id LIMIT ? OFFSET ?",
                (limit, offset),
            ).fetchall()
            return int(count), rows

        count, rows = await self._database.run(read)
        return count, [_session(row) for row in rows]

    async def forget(self) -> int:
        """Forget sessions that ended long ago, and return how many."""
        # By the time of opening, which has an index.
        before = time.time() - self._kept_s - self.session_s

        def write(cursor: Cursor) -> int:
            cursor.execute("DELETE FROM sessions WHERE created_s < ?", (before,))
            return cursor.rowcount

        return await self._database.run(write)

    async def keep_document(self, document: Document) -> None:
        """Keep a CoRIM; one of the same build and identity is replaced."""

        def write(cursor: Cursor) -> None:
            cursor.execute(
                "DELETE FROM documents WHERE build = ? AND corim = ?",
                (document.build, document.corim),
            )
            cursor.execute(
                "INSERT INTO documents (build, corim, profile, data, received_s) "
                "VALUES (?, ?, ?, ?, ?)",
                (
                    document.build,
                    document.corim,
                    document.profile,
                    document.data,
                    document.received_s,
                ),
            )

        await self._database.run(write)

    def documents(self) -> list[Document]:
        """Return every CoRIM kept, the oldest first."""
        rows = self._database.run_now(
            lambda cursor: cursor.execute(
                "SELECT build, corim, profile, data, received_s FROM documents "
                "ORDER BY received_s, build, corim"
            ).fetchall()
        )
        return [
            Document(build=row[0], corim=row[1], profile=row[2], data=bytes(row[3]),
                     received_s=row[4])
            for row in rows
        ]  # fmt: skip

    def signing_keys(self) -> list[StoredKey]:
        """Return every signing key kept, the newest first."""
        rows = self._database.run_now(
            lambda cursor: cursor.execute(
                "SELECT kid, pem, created_s, retired_s FROM signing_keys ORDER BY created_s DESC"
            ).fetchall()
        )
        return [
            StoredKey(kid=row[0], pem=row[1], created_s=row[2], retired_s=row[3]) for row in rows
        ]

    def keep_key(self, kid: str, pem: str) -> None:
        """Keep a new signing key and retire those before it."""
        now = time.time()

        def write(cursor: Cursor) -> None:
            cursor.execute("UPDATE signing_keys SET retired_s = ? WHERE retired_s IS NULL", (now,))
            cursor.execute(
                "INSERT INTO signing_keys (kid, pem, created_s) VALUES (?, ?, ?)", (kid, pem, now)
            )

        self._database.run_now(write)


def _session(row: Any) -> Session:
    return Session(
        id=row[0],
        nonce=bytes(row[1]),
        created_s=row[2],
        expiry_s=row[3],
        status=row[4],
        media_type=row[5] or "",
        evidence=bytes(row[6] or b""),
        result=row[7] or "",
        verdict=json.loads(row[8]) if row[8] else None,
        answered_s=row[9],
    )
