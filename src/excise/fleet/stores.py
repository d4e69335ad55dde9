"""Where the state of hosts is kept between rounds: a folder, an SQLite file, or any fsspec URL.

Only the process that leads a round reads and writes it, after a host's result has arrived: a worker
that dies takes nothing along, and a state never runs ahead of what was recorded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote

from excise.errors import ExciseError, FormatError, HostError, UsageError
from excise.fleet.places import Folder, folder_at, is_local
from excise.fleet.records import HostState, decode_state, outline_of

_SQLITE_ENDINGS: Final = (".sqlite", ".sqlite3", ".db")
_STATE_BYTES: Final = 64 << 20
_NO_STORES: Final = frozenset((".zip", ".tar", ".gz", ".xz", ".zst", ".json", ".parquet", ".csv"))
_PATIENCE_S: Final = 10
_NAMED: Final = 3
_AT_A_TIME: Final = 500
"""Hosts whose states are read at once."""
_ANOTHER: Final = "Give another file with --state; one that is not there is made."
_PRIMARY: Final = 0xFF
"""The bits of an SQLite code that say what is wrong; the others say where it was met."""
_PAGE_BYTES: Final = 16 << 10
_SUFFIX: Final = ".json"
# File systems allow 255 bytes; a file is written beside under a name that is some longer.
_LONGEST_NAME: Final = 200
_DIGEST_MARK: Final = "%~"
"""Before the digest of a long name; no quoted name has it."""


class StateStore(Protocol):
    """Encoded states of hosts by name."""

    def get(self, hosts: Iterable[str]) -> Mapping[str, bytes]:
        """Return the states of those hosts that have one."""

    def put(self, states: Mapping[str, bytes]) -> None:
        """Keep states, each whole or not at all."""

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over all hosts that have a state."""

    def hosts(self) -> set[str]:
        """Return the names of all hosts that have a state."""

    def close(self) -> None:
        """Let go of the store."""


def open_store(where: str, *, read_only: bool = False) -> StateStore:
    """Return the store of a path or URL: SQLite by the ending `.sqlite` or `.db`, else a folder.

    Args:
        where: Path or URL.
        read_only: Whether it is only asked, perhaps while a round writes it.

    Raises:
        UsageError: It cannot be opened.
        FormatError: It is something else.
        HostError: What a URL needs is not installed.
    """
    _require_place(where)
    if where.endswith(_SQLITE_ENDINGS) and "://" not in where:
        return SqliteStore(Path(where), read_only=read_only)
    return FolderStore(folder_at(where))


def _require_place(where: str) -> None:
    """Refuse what is there and can be no store: a table, a pipe, a folder named as a database."""
    if not is_local(where):
        return
    path = Path(where.removeprefix("file://"))
    if path.suffix in _NO_STORES and not path.exists():
        raise UsageError(
            f"states are kept in a folder, an SQLite file or a store, not in a {path.suffix} file",
            source=where,
            hint=f"SQLite files end in {', '.join(_SQLITE_ENDINGS)}",
        )
    database = where.endswith(_SQLITE_ENDINGS) and "://" not in where
    if not path.exists() or (path.is_file() if database else path.is_dir()):
        return
    kind = "a folder" if path.is_dir() else "a file" if path.is_file() else "a device or a pipe"
    wanted = "an SQLite file" if database else "a folder with one JSON file a host"
    raise FormatError(
        f"is {kind}, and no state of a fleet by this name: that is {wanted}",
        source=where,
        hint=f"SQLite files end in {', '.join(_SQLITE_ENDINGS)}; --state of `excise fleet verify` "
        "makes both",
    )


def read_states(where: str) -> list[HostState]:
    """Return every state of a store, sorted by host.

    Raises:
        UsageError: There is no such store.
        FormatError: It is something else, or a state cannot be read.
    """
    if "://" not in where and not Path(where).exists():
        raise UsageError(
            "is not there", source=where, hint="Name the --state of `excise fleet verify`."
        )
    store = open_store(where, read_only=True)
    try:
        found = [decode_state(data, source=f"{where}: {host}") for host, data in store.all()]
    finally:
        store.close()
    return sorted(found, key=lambda state: state.host)


class FolderStore:
    """One JSON file a host, in a folder here or elsewhere."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._known: set[str] | None = None

    def _names(self) -> set[str]:
        if self._known is None:
            try:
                self._known = {item.name for item in self._folder.items()}
            except FormatError:  # not there yet: the first write makes it
                self._known = set()
        return self._known

    def get(self, hosts: Iterable[str]) -> Mapping[str, bytes]:
        """Return the states of those hosts that have one."""
        names = self._names()
        files = {file: host for host in hosts if (file := _file_name(host)) in names}
        found = self._folder.read_all(files, limit_bytes=_STATE_BYTES)
        return {files[file]: data for file, data in found.items()}

    def put(self, states: Mapping[str, bytes]) -> None:
        """Keep states, each whole or not at all.

        Raises:
            UsageError: The folder cannot be written.
        """
        files = {_file_name(host): data for host, data in states.items()}
        self._folder.write_all(files)
        if self._known is not None:
            self._known.update(files)

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over all hosts that have a state."""
        hosts = sorted(self.hosts())
        for at in range(0, len(hosts), _AT_A_TIME):
            yield from self.get(hosts[at : at + _AT_A_TIME]).items()

    def hosts(self) -> set[str]:
        """Return the names of all hosts that have a state."""
        return {self._host(name) for name in self._names() if name.endswith(_SUFFIX)}

    def _host(self, name: str) -> str:
        if _DIGEST_MARK not in name:
            return unquote(name.removesuffix(_SUFFIX))
        data = self._folder.read(name, limit_bytes=_STATE_BYTES)
        return decode_state(data, source=f"{self._folder.url}/{name}").host

    def close(self) -> None:
        """Do nothing: every file is closed."""


def _file_name(host: str) -> str:
    """Return the name of a host's file; of a name that is too long, its beginning and digest."""
    name = quote(host, safe=" ")
    if len(name) > _LONGEST_NAME:
        name = name[: _LONGEST_NAME // 2] + _DIGEST_MARK + sha256(host.encode()).hexdigest()
    return name + _SUFFIX


def _refused(error: sqlite3.Error, what: str, path: Path) -> ExciseError:
    """Return the error that says what SQLite could not do with a file, and whose fault it is."""
    reason, source = f"cannot {what} ({error})", str(path)
    code = getattr(error, "sqlite_errorcode", 0) & _PRIMARY
    if code == sqlite3.SQLITE_FULL:
        hint = "What came in is kept; the same command goes on once there is room."
        return HostError(reason, source=source, hint=hint)
    if code == sqlite3.SQLITE_BUSY:
        return UsageError(reason, source=source, hint="Another round writes it: wait for its end.")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return FormatError(reason, source=source, hint=_ANOTHER)
    return UsageError(reason, source=source)


class SqliteStore:
    """All hosts in one SQLite file, with the columns that one asks for beside the state."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        self._path = path
        try:
            if read_only:
                uri = f"{path.absolute().as_uri()}?mode=ro"
                self._connection = sqlite3.connect(uri, uri=True, timeout=_PATIENCE_S)
                return
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(path, timeout=_PATIENCE_S)
            self._require_no_other()
            # A state has 3 to 4 KiB, of which pages of the usual 4 KiB would hold one.
            self._connection.execute(f"PRAGMA page_size={_PAGE_BYTES}")
            # The log survives a crash of this program at any moment; a power cut costs at most
            # the last hosts, which are then verified once more.
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=NORMAL")
            self._connection.execute(
                "CREATE TABLE IF NOT EXISTS hosts (host TEXT PRIMARY KEY, verdict TEXT NOT NULL, "
                "attempted_ns INTEGER NOT NULL, verified_ns INTEGER, state BLOB NOT NULL)"
            )
        except OSError as error:
            reason = error.strerror or error
            raise UsageError(f"cannot be opened ({reason})", source=str(path)) from error
        except sqlite3.Error as error:
            raise _refused(error, "be opened", path) from error

    def _require_no_other(self) -> None:
        """Refuse another program's database before anything is written into it."""
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        tables = sorted(name for (name,) in rows)
        if tables and "hosts" not in tables:
            self._connection.close()
            raise FormatError(
                f"is a database of something else (it has {', '.join(tables[:_NAMED])})",
                source=str(self._path),
                hint=_ANOTHER,
            )

    def get(self, hosts: Iterable[str]) -> Mapping[str, bytes]:
        """Return the states of those hosts that have one."""
        found: dict[str, bytes] = {}
        names = list(hosts)
        for start in range(0, len(names), _AT_A_TIME):
            part = names[start : start + _AT_A_TIME]
            marks = ",".join("?" * len(part))
            rows = self._query(f"SELECT host, state FROM hosts WHERE host IN ({marks})", part)
            found.update(rows)
        return found

    def put(self, states: Mapping[str, bytes]) -> None:
        """Keep states in one transaction.

        Raises:
            UsageError: The file cannot be written.
            FormatError: It is damaged.
            HostError: There is no room for it.
        """
        rows = []
        for host, data in states.items():
            state = outline_of(data)
            rows.append((host, state.verdict, state.attempted_ns, state.verified_ns, data))
        try:
            with self._connection:
                self._connection.executemany(
                    "INSERT INTO hosts VALUES (?, ?, ?, ?, ?) ON CONFLICT (host) DO UPDATE SET "
                    "verdict = excluded.verdict, attempted_ns = excluded.attempted_ns, "
                    "verified_ns = excluded.verified_ns, state = excluded.state",
                    rows,
                )
        except sqlite3.Error as error:
            raise _refused(error, "be written", self._path) from error

    def all(self) -> Iterator[tuple[str, bytes]]:
        """Iterate over all hosts that have a state."""
        yield from self._query("SELECT host, state FROM hosts ORDER BY host", [])

    def hosts(self) -> set[str]:
        """Return the names of all hosts that have a state."""
        return {host for (host,) in self._query("SELECT host FROM hosts", [])}

    def _query(self, text: str, values: list[str]) -> Iterator[Any]:
        try:
            yield from self._connection.execute(text, values)
        except sqlite3.Error as error:
            raise FormatError(
                f"cannot be read as the state of a fleet ({error})",
                source=str(self._path),
                hint=_ANOTHER,
            ) from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
