"""One connection to SQLite or PostgreSQL, behind one thread that commits many requests at once.

A service that answers nothing before it is on disk would wait for the disk in every request. Here
requests put their statements into a queue; the thread takes all that wait, runs them in one
transaction, and answers them after the commit. Under load one wait for the disk serves many; alone,
a request waits for its own.

If a statement of a batch fails, the batch is rolled back and its requests are run one by one, so
that one failure is the failure of one request.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from excise.errors import HostError, UsageError

_T = TypeVar("_T")

MAX_BATCH: Final = 512
BUSY_S: Final = 30.0


class Cursor(Protocol):
    """What a request does with the database; `?` marks parameters in both databases."""

    @property
    def rowcount(self) -> int:
        """Return how many rows the last statement changed."""

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        """Return the columns of the last statement's rows, each with its name first."""

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        """Run a statement."""

    def fetchone(self) -> Any:
        """Return the next row, or None."""

    def fetchall(self) -> list[Any]:
        """Return all rows left."""


class Connection(Protocol):
    """A connection that is used by one thread."""

    bytes_type: str

    def begin(self) -> None:
        """Begin a transaction."""

    def cursor(self) -> Cursor:
        """Return a cursor in it."""

    def commit(self) -> None:
        """End it; what it wrote is on disk when this returns."""

    def rollback(self) -> None:
        """Undo it."""

    def usable(self) -> bool:
        """Return whether the connection can go on."""

    def close(self) -> None:
        """Close the connection."""


@dataclass(slots=True)
class _Request:
    work: Callable[[Cursor], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None
    error: BaseException | None = None


class Database:
    """Runs requests in the thread of its connection.

    Args:
        url: A path or `sqlite:PATH` for SQLite, `postgresql://…` for PostgreSQL.

    Raises:
        UsageError: Another kind of URL.
        HostError: The database cannot be opened, or its driver is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._connect = _connector(url)
        self._connection = self._connect()
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name="database", daemon=True)
        self._closed = False
        self._thread.start()

    @property
    def bytes_type(self) -> str:
        """Return the database's word for bytes."""
        return self._connection.bytes_type

    async def run(self, work: Callable[[Cursor], _T]) -> _T:
        """Return what `work` returns, once its changes are committed.

        Args:
            work: Called with a cursor, in the thread of the connection. It may be called twice,
                when another request of its batch failed; only one call is committed.

        Raises:
            HostError: The database failed or is closed.
        """
        if self._closed:
            raise HostError("the database is closed", source=shown_url(self.url))
        loop = asyncio.get_running_loop()
        request = _Request(work, loop, loop.create_future())
        self._queue.put(request)
        result: _T = await request.future
        return result

    def run_now(self, work: Callable[[Cursor], _T]) -> _T:
        """Return what `work` returns, committed, from outside an event loop."""

        async def once() -> _T:
            return await self.run(work)

        return asyncio.run(once())

    def close(self) -> None:
        """Finish what is in the queue and close the connection."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            first = self._queue.get()
            batch = [first] if first is not None else []
            stopping = first is None
            while len(batch) < MAX_BATCH:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    stopping = True
                else:
                    batch.append(more)
            if batch:
                self._together(batch)
                _answer(batch)
        self._connection.close()

    def _together(self, batch: list[_Request]) -> None:
        try:
            self._transaction(batch)
        except Exception as error:
            if len(batch) == 1:
                batch[0].error = error
                return
            for request in batch:
                self._together([request])

    def _transaction(self, batch: list[_Request]) -> None:
        if not self._connection.usable():
            with suppress(Exception):
                self._connection.close()
            self._connection = self._connect()
        self._connection.begin()
        try:
            cursor = self._connection.cursor()
            for request in batch:
                request.result = request.work(cursor)
            self._connection.commit()
        except BaseException:
            with suppress(Exception):
                self._connection.rollback()
            raise


def _answer(batch: list[_Request]) -> None:
    """Resolve the futures of a batch, waking each event loop once."""
    loops: dict[asyncio.AbstractEventLoop, list[_Request]] = {}
    for request in batch:
        loops.setdefault(request.loop, []).append(request)
    for loop, requests in loops.items():
        # A loop that was closed meanwhile has nobody left to answer.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_resolve, requests)


def _resolve(requests: list[_Request]) -> None:
    for request in requests:
        if request.future.done():
            continue
        if request.error is None:
            request.future.set_result(request.result)
        else:
            failure = HostError(f"the database failed ({request.error})", source="database")
            failure.__cause__ = request.error
            request.future.set_exception(failure)


def _connector(url: str) -> Callable[[], Connection]:
    if url.startswith(("postgresql://", "postgres://")):
        return lambda: _Postgres(url)
    if "://" in url or not url:
        raise UsageError(
            f"{shown_url(url)!r} is no database", hint="A file's path, or postgresql://HOST/NAME"
        )
    return lambda: _Sqlite(url.removeprefix("sqlite:"))


def shown_url(url: str) -> str:
    """Return a URL without its password."""
    head, at, tail = url.rpartition("@")
    if not at:
        return url
    user, colon, _ = head.rpartition(":")
    return f"{user if colon and '/' not in head.rpartition(':')[2] else head}@{tail}"


class _Sqlite:
    bytes_type = "BLOB"

    def __init__(self, path: str) -> None:
        try:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            # Signing keys are in it: nobody else reads it, nor the files SQLite puts beside it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
            self._connection = sqlite3.connect(
                path, timeout=BUSY_S, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode=WAL")
            # FULL waits for the disk at every commit, also in WAL mode.
            self._connection.execute("PRAGMA synchronous=FULL")
        except (OSError, sqlite3.Error) as error:
            reason = getattr(error, "strerror", None) or error
            raise HostError(f"cannot be opened as a database ({reason})", source=path) from None

    def begin(self) -> None:
        # IMMEDIATE takes the write lock at once: two processes on one file wait for each other
        # here and never fail halfway.
        self._connection.execute("BEGIN IMMEDIATE")

    def cursor(self) -> Cursor:
        return self._connection.cursor()

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        self._connection.execute("ROLLBACK")

    def usable(self) -> bool:
        return True

    def close(self) -> None:
        self._connection.close()


class _PostgresCursor:
    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    @property
    def rowcount(self) -> int:
        return int(self._cursor.rowcount)

    @property
    def description(self) -> Sequence[Sequence[Any]] | None:
        columns: Sequence[Sequence[Any]] | None = self._cursor.description
        return columns

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> Cursor:
        self._cursor.execute(statement.replace("?", "%s"), parameters)
        return self

    def fetchone(self) -> Any:
        return self._cursor.fetchone()

    def fetchall(self) -> list[Any]:
        return list(self._cursor.fetchall())


class _Postgres:
    bytes_type = "BYTEA"

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError as error:
            hint = "pip install 'excise[attest]'"
            raise HostError("PostgreSQL needs psycopg", hint=hint) from error
        try:
            self._connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
        except psycopg.Error as error:
            text = str(error).strip().replace("\n", " ")
            raise HostError(f"cannot be connected to ({text})", source=shown_url(url)) from None

    def begin(self) -> None:
        self._connection.execute("BEGIN")

    def cursor(self) -> Cursor:
        return _PostgresCursor(self._connection.cursor())

    def commit(self) -> None:
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        self._connection.execute("ROLLBACK")

    def usable(self) -> bool:
        return not self._connection.closed

    def close(self) -> None:
        self._connection.close()


@contextmanager
def open_database(url: str) -> Iterator[Database]:
    """Open a database, and close it with all its requests answered."""
    database = Database(url)
    try:
        yield database
    finally:
        database.close()
