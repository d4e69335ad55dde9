"""Fleets that are elsewhere: in memory, behind HTTP, and their states and results too."""

from __future__ import annotations

import asyncio
import functools
import io
import os
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest

from excise.errors import FormatError, UsageError
from excise.fleet.engines import Engine, InlineEngine, PoolEngine
from excise.fleet.places import folder_at
from excise.fleet.records import HostState, decode_state
from excise.fleet.stores import FolderStore, SqliteStore, open_store, read_states
from excise.fleet.tables import tables_of, write_tables
from fleet_builder import LIST, by_host, entries_of, run_round, write_fleet, write_host
from ima_builder import ng

fsspec = pytest.importorskip("fsspec")
AsyncFileSystem = pytest.importorskip("fsspec.asyn").AsyncFileSystem
FSTimeoutError = pytest.importorskip("fsspec.exceptions").FSTimeoutError


@pytest.fixture
def memory() -> Iterator[str]:
    files = fsspec.filesystem("memory")
    yield "memory://fleet"
    if files.exists("/fleet"):
        files.rm("/fleet", recursive=True)


def copy_to(url: str, fleet: Path) -> None:
    for path in sorted(fleet.rglob("*")):
        if path.is_file():
            folder = path.parent.relative_to(fleet)
            folder_at(f"{url}/{folder}").write_all({path.name: path.read_bytes()})


def test_a_fleet_in_a_store_gives_what_it_gives_on_disk(tmp_path: Path, memory: str) -> None:
    write_fleet(tmp_path, 3)
    (tmp_path / "host-001" / "pcrs.txt").write_text("sha256:\n  10: 0x" + "11" * 32 + "\n")
    copy_to(f"{memory}/hosts", tmp_path)
    here, there = by_host(run_round(tmp_path)), by_host(run_round(f"{memory}/hosts"))
    assert {n: s.verdict for n, s in here.items()} == {n: s.verdict for n, s in there.items()}
    assert [s.verdict for s in there.values()] == ["PASSED", "FAILED", "PASSED"]


def test_a_fleet_in_an_archive_gives_what_it_gives_on_disk_also_when_it_is_replaced(
    tmp_path: Path,
) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_fleet(fleet, 3)
    archive = shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path, "fleet")
    url = f"zip://fleet::{archive}"
    assert [s.verdict for s in by_host(run_round(url, store=store)).values()] == ["PASSED"] * 3
    write_host(fleet, "host-001", [*entries_of("host-001"), ng("/new", b"1")])
    (fleet / "host-002" / "pcrs.txt").write_text("sha256:\n  10: 0x" + "11" * 32 + "\n")
    shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path, "fleet")
    found = by_host(run_round(url, store=store))
    assert [s.verdict for s in found.values()] == ["PASSED", "PASSED", "FAILED"]
    assert found["host-001"].new_entries == 1
    top = shutil.make_archive(str(tmp_path / "top"), "zip", fleet)
    assert len(by_host(run_round(f"zip://::{top}"))) == 3


def test_archive_that_is_none_or_not_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_text("no archive")
    with pytest.raises(FormatError, match="cannot be opened"):
        run_round(f"zip://::{tmp_path / 'bad.zip'}")
    with pytest.raises(FormatError, match="No such file"):
        run_round(f"zip://::{tmp_path / 'none.zip'}")
    with pytest.raises(UsageError, match="unknown kind of URL 'nonsense'"):
        run_round("nonsense://x")


def test_only_the_new_end_of_a_list_elsewhere_is_fetched(
    tmp_path: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FolderStore(folder_at(f"{memory}/states"))
    write_host(tmp_path, "a")
    copy_to(f"{memory}/hosts", tmp_path)
    run_round(f"{memory}/hosts", store=store)
    write_host(tmp_path, "a", [*entries_of("a"), ng("/new", b"1"), ng("/new2", b"2")])
    copy_to(f"{memory}/hosts", tmp_path)
    fetched: list[int] = []
    files = fsspec.filesystem("memory")
    original = type(files).cat_file

    def counted(self, path, start=None, end=None, **options):  # type: ignore[no-untyped-def]
        data = original(self, path, start=start, end=end, **options)
        if path.endswith(LIST):
            fetched.append(len(data))
        return data

    monkeypatch.setattr(type(files), "cat_file", counted)
    state = by_host(run_round(f"{memory}/hosts", store=store))["a"]
    assert (state.verdict, state.new_entries, state.entries) == ("PASSED", 2, 43)
    size = (tmp_path / "a" / LIST).stat().st_size
    assert fetched
    assert max(fetched) < size / 5
    for more in (3, 4):
        tail = [ng(f"/new{n}", b"%d" % n) for n in range(more)]
        write_host(tmp_path, "a", [*entries_of("a"), ng("/new", b"1"), ng("/new2", b"2"), *tail])
        copy_to(f"{memory}/hosts", tmp_path)
        assert by_host(run_round(f"{memory}/hosts", store=store))["a"].verdict == "PASSED"


def test_a_new_boot_and_a_changed_list_elsewhere_are_told_apart(
    tmp_path: Path, memory: str
) -> None:
    store = SqliteStore(tmp_path / "s.sqlite")
    fleet = tmp_path / "fleet"
    write_host(fleet, "a")
    copy_to(f"{memory}/hosts", fleet)
    run_round(f"{memory}/hosts", store=store)
    write_host(fleet, "a", [ng("/another", b"boot"), *entries_of("a"), *entries_of("b")])
    copy_to(f"{memory}/hosts", fleet)
    rebooted = by_host(run_round(f"{memory}/hosts", store=store))["a"]
    assert rebooted.verdict == "PASSED"
    (fleet / "a" / LIST).write_bytes((fleet / "a" / LIST).read_bytes()[:-1] + b"\1")
    copy_to(f"{memory}/hosts", fleet)
    assert by_host(run_round(f"{memory}/hosts", store=store))["a"].verdict == "FAILED"


class _Quiet(SimpleHTTPRequestHandler):
    """Python's own server, which lists folders and knows no ranges."""

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    handler = functools.partial(_Quiet, directory=str(tmp_path / "www"))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_fleet_behind_http_passes_and_goes_on(tmp_path: Path, web: str) -> None:
    pytest.importorskip("aiohttp")
    store = SqliteStore(tmp_path / "s.sqlite")
    write_fleet(tmp_path / "www" / "fleet", 2)
    first = by_host(run_round(f"{web}/fleet", store=store))
    assert [s.verdict for s in first.values()] == ["PASSED", "PASSED"]
    listed = [*entries_of("host-000"), ng("/new", b"1")]
    write_host(tmp_path / "www" / "fleet", "host-000", listed)
    second = by_host(run_round(f"{web}/fleet", store=store))
    assert (second["host-000"].verdict, second["host-000"].new_entries) == ("PASSED", 1)
    with pytest.raises(FormatError, match="cannot be read"):
        run_round(f"{web}/nowhere")


class FarFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Files in memory that take a while to arrive, as those of object stores do."""

    protocol = "far"
    cachable = False
    files: ClassVar[dict[str, bytes]] = {}
    silent: ClassVar[set[str]] = set()
    under_way = 0
    most = 0

    async def _wait(self) -> None:
        FarFileSystem.under_way += 1
        FarFileSystem.most = max(FarFileSystem.most, FarFileSystem.under_way)
        await asyncio.sleep(0.005)
        FarFileSystem.under_way -= 1

    async def _cat_file(self, path: str, start: Any = None, end: Any = None, **_: Any) -> bytes:
        await self._wait()
        if path in self.silent:
            raise FSTimeoutError  # as fsspec does it: without a word
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path][start:end]

    async def _pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        await self._wait()
        self.files[path] = value

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: there are no folders."""

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        await self._wait()
        inside = {n: n.removeprefix(path + "/") for n in self.files if n.startswith(path + "/")}
        folders = {f"{path}/{rest.partition('/')[0]}" for rest in inside.values() if "/" in rest}
        files = [name for name, rest in inside.items() if "/" not in rest]
        return [
            *({"name": name, "size": None, "type": "directory"} for name in folders),
            *({"name": n, "size": len(self.files[n]), "type": "file"} for n in files),
        ]

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        kind = "file" if path in self.files else "directory"
        return {"name": path, "size": len(self.files.get(path, b"")), "type": kind}

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        return io.BytesIO(self.cat_file(path))

    async def _get_file(self, path: str, target: str, **_: Any) -> None:
        Path(target).write_bytes(await self._cat_file(path))


@pytest.fixture
def far() -> Iterator[str]:
    fsspec.register_implementation("far", FarFileSystem, clobber=True)
    yield "far://bucket"
    FarFileSystem.files.clear()
    FarFileSystem.silent.clear()
    FarFileSystem.most = 0


def test_a_store_that_does_not_answer_is_a_row_that_says_so(tmp_path: Path, far: str) -> None:
    write_fleet(tmp_path, 2)
    copy_to(f"{far}/hosts", tmp_path)
    FarFileSystem.silent.add(f"bucket/hosts/host-001/{LIST}")
    found = by_host(run_round(f"{far}/hosts"))
    assert [state.verdict for state in found.values()] == ["PASSED", "FAILED"]
    (row,) = [row for row in found["host-001"].checks if row.outcome == "FAILED"]
    assert "no answer in time" in row.got + row.detail


@pytest.mark.parametrize("engine", [InlineEngine(), PoolEngine(2)], ids=["here", "pool"])
def test_hosts_of_a_store_that_is_waited_for_are_asked_several_at_a_time(
    tmp_path: Path, far: str, engine: Engine
) -> None:
    write_fleet(tmp_path, 30)
    (tmp_path / "host-007" / "pcrs.txt").write_text("sha256:\n  10: 0x" + "11" * 32 + "\n")
    (tmp_path / "host-009" / LIST).write_bytes(b"no list")
    copy_to(f"{far}/hosts", tmp_path)
    engine._may_fork = lambda: True  # type: ignore[attr-defined]  # to have the files there too
    FarFileSystem.most = 0
    store = open_store(str(tmp_path / "s.sqlite"))
    for new in (41, 0):
        found = by_host(run_round(f"{far}/hosts", engine=engine, store=store))
        bad = {name for name, state in found.items() if state.verdict != "PASSED"}
        assert bad == {"host-007", "host-009"}
        assert {found[n].new_entries for n in found.keys() - bad} == {new}
    if isinstance(engine, InlineEngine):
        assert FarFileSystem.most > 1


def test_states_of_a_store_elsewhere_come_and_go_at_the_same_time(tmp_path: Path, far: str) -> None:
    names = write_fleet(tmp_path, 40)
    place = f"{far}/states of [a] fleet"
    first = run_round(tmp_path, store=open_store(place))
    assert len(FarFileSystem.files) == 40
    assert FarFileSystem.most > 1
    FarFileSystem.most = 0
    assert read_states(place) == list(first.states())
    assert FarFileSystem.most == 40
    second = by_host(run_round(tmp_path, store=open_store(place)))
    assert [(name, state.new_entries) for name, state in second.items()] == [(n, 0) for n in names]
    store = open_store(place)
    store.hosts()
    FarFileSystem.files.clear()
    with pytest.raises(FormatError, match=r"far://bucket/states of \[a\] fleet: .*is not there"):
        store.get(names)


@pytest.mark.parametrize("where", ["states", "s.sqlite", "memory://fleet/states"])
def test_every_store_gives_back_what_it_was_given(tmp_path: Path, memory: str, where: str) -> None:
    write_fleet(tmp_path / "fleet", 2)
    place = where if "://" in where else str(tmp_path / where)
    store = open_store(place)
    assert store.get(["host-000"]) == {}
    done = run_round(tmp_path / "fleet", store=store)
    store.close()
    assert read_states(place) == list(done.states())
    again = open_store(place)
    assert again.hosts() == {"host-000", "host-001"}
    assert set(again.get(["host-000", "nobody"])) == {"host-000"}
    again.close()


def test_a_host_with_a_slash_or_dots_in_its_name_stays_in_the_store(tmp_path: Path) -> None:
    store = FolderStore(folder_at(str(tmp_path / "states")))
    store.put({"../evil/%2e": b"{}"})
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == ["states"]
    assert [host for host, _ in store.all()] == ["../evil/%2e"]


def test_a_host_with_a_long_name_is_kept_beside_those_that_begin_like_it(tmp_path: Path) -> None:
    hosts = ["n" * 250 + end for end in ("a", "b")] + ["\u00e9" * 100]
    states = {host: HostState(host=host, verdict="PASSED", attempted_ns=1) for host in hosts}
    store = FolderStore(folder_at(str(tmp_path / "states")))
    store.put({host: state.encode() for host, state in states.items()})
    again = FolderStore(folder_at(str(tmp_path / "states")))
    assert again.hosts() == set(hosts)
    kept = {host: decode_state(data, source=host) for host, data in again.get(hosts).items()}
    assert kept == states == dict(zip(hosts, (states[host] for host in hosts), strict=True))
    assert {host for host, _ in again.all()} == set(hosts)


@pytest.mark.parametrize("make", [InlineEngine, lambda: PoolEngine(1)])
def test_names_that_are_no_text_are_shown_escaped_and_harm_no_other_host(
    tmp_path: Path, make: Callable[[], Engine]
) -> None:
    fleet = tmp_path / "fleet"
    write_fleet(fleet, 2)
    (fleet / "host-001" / os.fsdecode(b"\xfe.txt")).touch()
    os.rename(write_host(fleet, "raw"), fleet / os.fsdecode(b"raw\xff"))  # noqa: PTH104
    bad = fleet / os.fsdecode(b"bad\xff")
    bad.mkdir()
    (bad / LIST).write_bytes(bytes(200))
    (bad / os.fsdecode(b"\xfd.excise")).mkdir()
    store = open_store(str(tmp_path / "states"))
    found = by_host(run_round(fleet, store=store, engine=make()))
    assert {name: state.verdict for name, state in found.items()} == {
        "bad\\xff": "FAILED", "host-000": "PASSED", "host-001": "PASSED", "raw\\xff": "PASSED",
    }  # fmt: skip
    files = next(row for row in found["host-001"].checks if row.check == "fleet.files")
    assert "\\xfe.txt" in files.got + files.detail
    assert not {row.check for row in found["bad\\xff"].checks} & {"fleet.error", "fleet.worker"}
    assert store.hosts() == set(found)
    assert by_host(run_round(fleet, store=store, engine=make())).keys() == found.keys()


def test_a_host_whose_folder_is_a_link_to_nothing_is_told_and_not_left_out(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    for name in ("host-000", "host-001"):
        write_host(fleet, name, entries_of(name))
    (fleet / "gone").symlink_to(tmp_path / "not-mounted")
    (fleet / "itself").symlink_to("itself")
    os.mkfifo(fleet / "pipe")
    (fleet / "README").write_text("no host")
    found = by_host(run_round(fleet))
    assert {name: state.verdict for name, state in found.items()} == {
        "gone": "FAILED", "host-000": "PASSED", "host-001": "PASSED", "itself": "FAILED",
    }  # fmt: skip
    for name in ("gone", "itself"):
        assert [row.check for row in found[name].checks] == ["fleet.readable"]


def test_a_store_that_is_not_there_or_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        read_states(str(tmp_path / "nothing.sqlite"))
    (tmp_path / "bad.sqlite").write_bytes(b"this is no database, and long enough to be read" * 9)
    with pytest.raises(FormatError, match=r"cannot be opened .* Give another file with --state"):
        open_store(str(tmp_path / "bad.sqlite"))
    with pytest.raises(FormatError, match="cannot be read as the state of a fleet"):
        read_states(str(tmp_path / "bad.sqlite"))
    other = sqlite3.connect(tmp_path / "other.sqlite")
    other.execute("CREATE TABLE sessions (a)")
    with pytest.raises(FormatError, match=r"database of something else \(it has sessions\)"):
        open_store(str(tmp_path / "other.sqlite"))
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("sessions",)]
    other.close()
    (tmp_path / "table.csv").write_text("host,verdict\n")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.sqlite")
    (tmp_path / "folder.sqlite").mkdir()
    for name in ("table.csv", "pipe", "pipe.sqlite", "folder.sqlite"):
        for opened in (read_states, open_store):
            with pytest.raises(FormatError, match="and no state of a fleet by this name"):
                opened(str(tmp_path / name))
    for name in ("states.zip", "states.json", "states.parquet"):
        with pytest.raises(UsageError, match="states are kept in a folder, an SQLite file"):
            open_store(str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "host.json").write_text('{"another": "file"}')
    with pytest.raises(FormatError, match="empty: host"):
        read_states(str(tmp_path / "empty"))
    with pytest.raises(UsageError, match="unknown kind of URL"):
        folder_at("nosuchkind://x/y")


def test_results_are_parquet_with_one_row_a_host_and_check(tmp_path: Path, memory: str) -> None:
    write_fleet(tmp_path / "fleet", 3)
    states = list(run_round(tmp_path / "fleet").states())
    for place in (str(tmp_path / "results"), f"{memory}/results"):
        folder = folder_at(place)
        names = write_tables(tables_of(states), folder)
        assert names == [f"{n}.parquet" for n in ("hosts", "checks", "findings", "costs")]
        checks = pl.read_parquet(folder.read("checks.parquet", limit_bytes=1 << 20))
        assert checks.height == sum(len(state.checks) for state in states)
        assert checks.select("host", "subject", "check").is_unique().all()
        row = checks.filter(host="host-001", check="ima.pcr.sha256").row(0, named=True)
        assert row["outcome"] == "PASSED"
        assert row["last_passed_at"] == row["checked_at"] == row["host_last_verified_at"]
        never = checks.filter(check="ima.boot_aggregate")["last_passed_at"]
        assert never.null_count() == 3


def test_a_store_can_be_asked_while_a_round_writes_it(tmp_path: Path) -> None:
    write_fleet(tmp_path / "fleet", 3)
    path = str(tmp_path / "s.sqlite")
    store = SqliteStore(Path(path))
    assert read_states(path) == []
    store._connection.execute("BEGIN IMMEDIATE")
    assert read_states(path) == []
    store._connection.execute("ROLLBACK")
    done = run_round(tmp_path / "fleet", store=store)
    assert read_states(path) == list(done.states())
    store.close()


def test_a_table_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = folder_at(str(tmp_path))
    (tmp_path / "b").mkdir()
    with pytest.raises(UsageError, match="b: cannot be written"):
        folder.write_all({"a": b"1", "b": b"2"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_two_rounds_that_write_one_state_at_once_both_write_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other round writes the file just as this one is about to put it in place."""
    other = (
        "import sys; from excise.fleet.places import folder_at; "
        "folder_at(sys.argv[1]).write_all({'a.json': b'other'})"
    )
    real, seen = os.replace, []

    def replace(source: str, target: str) -> None:
        subprocess.run([sys.executable, "-c", other, str(tmp_path)], check=True)
        seen.append((tmp_path / "a.json").read_bytes())
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    folder_at(str(tmp_path)).write_all({"a.json": b"this"})
    assert [*seen, (tmp_path / "a.json").read_bytes()] == [b"other", b"this"]
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "list")
    with pytest.raises(FormatError, match="not a file"):
        folder_at(str(tmp_path)).read("list", limit_bytes=10)
