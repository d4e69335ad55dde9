"""Rounds over many hosts: what a death, an interruption or a bad host costs."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import forkserver
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.errors import FormatError, HostError, UsageError
from excise.evidence.checks import Outcome
from excise.fleet.engines import InlineEngine, PoolEngine
from excise.fleet.records import Settings
from excise.fleet.rounds import FleetRound, Progress, find_hosts, read_keys, verify_fleet
from excise.fleet.stores import SqliteStore, StateStore, open_store, read_states
from fleet_builder import (
    DyingPool,
    by_host,
    fleet_policy,
    outcome_of,
    run_round,
    write_fleet,
    write_host,
)


def test_a_pool_finds_what_this_process_finds(tmp_path: Path) -> None:
    names = write_fleet(tmp_path, 12)
    policy = fleet_policy(names[:-1])
    alone = by_host(run_round(tmp_path, policy=policy))
    pooled = run_round(tmp_path, policy=policy, engine=PoolEngine(2))
    assert {name: state.verdict for name, state in by_host(pooled).items()} == {
        name: state.verdict for name, state in alone.items()
    }
    assert by_host(pooled)["host-011"].findings == alone["host-011"].findings != ()
    assert all(0 < peak < 512 << 20 for peak in pooled.peak_rss_bytes.values())
    assert pooled.cpu_s > 0


def test_killing_workers_mid_run_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    names = write_fleet(fleet, 40)
    engine, killed = PoolEngine(2), []

    def kill(progress: Progress) -> None:
        if len(killed) < 2 and progress.done >= 8 * (len(killed) + 1):
            killed.append(engine.pids()[0])
            os.kill(killed[-1], signal.SIGKILL)

    done = verify_fleet(
        find_hosts([str(fleet)]),
        engine=engine,
        settings=Settings(),
        store=store,
        progress=kill,
    )
    assert len(killed) == 2
    assert [state.host for state in done.states()] == names
    assert {state.verdict for state in done.states()} == {"PASSED"}
    assert [state.host for state in read_states(str(tmp_path / "s.sqlite"))] == names
    assert done.retried


def test_a_host_that_takes_its_workers_along_ends_alone_in_an_error(tmp_path: Path) -> None:
    names = write_fleet(tmp_path, 10)
    for name in ("dies-always", "dies-once"):
        write_host(tmp_path, name)
    found = by_host(run_round(tmp_path, engine=DyingPool(2)))
    assert outcome_of(found["dies-always"], "fleet.worker") == "FAILED"
    assert "died 2 times" in found["dies-always"].checks[0].got
    assert found["dies-once"].verdict == "PASSED"
    assert {found[name].verdict for name in names} == {"PASSED"}


def test_a_worker_that_dies_while_it_writes_its_result_does_not_hang_the_round(
    tmp_path: Path,
) -> None:
    names = write_fleet(tmp_path, 4)
    write_host(tmp_path, "dies-writing")
    found = by_host(run_round(tmp_path, engine=DyingPool(2)))
    assert outcome_of(found["dies-writing"], "fleet.worker") == "FAILED"
    assert {found[name].verdict for name in names} == {"PASSED"}


def test_a_worker_has_bounded_memory_and_a_host_beyond_it_ends_in_an_error(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_host(tmp_path, name)
    log = tmp_path / "b" / "binary_bios_measurements"
    with log.open("wb") as file:
        file.truncate(60 << 20)
    found = by_host(run_round(tmp_path, engine=PoolEngine(1, memory_limit_bytes=75 << 20)))
    assert [found[name].verdict for name in "abc"] == ["PASSED", "FAILED", "PASSED"]
    assert "MemoryError" in next(r.got for r in found["b"].checks if r.outcome == "FAILED")


def test_workers_that_cannot_live_end_the_round_with_advice(tmp_path: Path) -> None:
    write_fleet(tmp_path, 3)
    with pytest.raises(HostError, match="die before they have done anything"):
        run_round(tmp_path, engine=PoolEngine(1, memory_limit_bytes=1 << 20))


def test_an_interrupted_round_keeps_what_is_done_and_the_next_goes_on(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_fleet(fleet, 30)

    def interrupt(progress: Progress) -> None:
        if progress.done >= 10:
            raise KeyboardInterrupt

    done = verify_fleet(
        find_hosts([str(fleet)]),
        engine=InlineEngine(),
        settings=Settings(),
        store=store,
        progress=interrupt,
    )
    assert done.interrupted
    kept = list(done.states())
    assert 10 <= len(kept) < 30
    assert {state.verdict for state in kept} == {"PASSED"}
    assert read_states(str(tmp_path / "s.sqlite")) == kept
    rest = by_host(run_round(fleet, store=store))
    assert len(rest) == 30
    assert sum(state.new_entries == 0 for state in rest.values()) == len(kept)


def test_progress_tells_the_rate_and_the_time_left(tmp_path: Path) -> None:
    write_fleet(tmp_path, 9)
    seen: list[Progress] = []
    verify_fleet(
        find_hosts([str(tmp_path)]),
        engine=InlineEngine(),
        settings=Settings(),
        progress=seen.append,
    )
    assert [each.done for each in seen] == [3, 6, 9]
    assert all(each.total == 9 and each.rate > 0 for each in seen)
    assert seen[-1].entries == 9 * 41
    assert seen[-1].left_s == 0


@pytest.mark.parametrize("where", ["before", "after"])
def test_an_interrupt_beside_the_store_counts_what_was_kept(tmp_path: Path, where: str) -> None:
    class Interrupted(SqliteStore):
        def put(self, states: Mapping[str, bytes]) -> None:
            if where == "after":
                super().put(states)
            raise KeyboardInterrupt

    write_fleet(tmp_path / "fleet", 3)
    store = Interrupted(tmp_path / "s.sqlite")
    done = run_round(tmp_path / "fleet", store=store)
    assert done.interrupted
    assert len(by_host(done)) == len(store.hosts()) == (1 if where == "after" else 0)


@contextmanager
def room_for_some(store: StateStore) -> Iterator[None]:
    """Let a store have room for some hosts only."""
    if isinstance(store, SqliteStore):
        store._connection.execute("PRAGMA max_page_count = 3")
        yield
        store._connection.execute("PRAGMA max_page_count = 1000")
        return
    real, left = os.replace, iter(range(9))

    def replace(source: str, target: str) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(source, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", replace)
        yield


@pytest.mark.parametrize("where", ["s.sqlite", "folder"])
def test_a_state_without_room_ends_the_round_with_what_is_done_and_the_next_goes_on(
    tmp_path: Path, where: str
) -> None:
    fleet, state = tmp_path / "fleet", str(tmp_path / where)
    write_fleet(fleet, 30)
    store = open_store(state)
    with room_for_some(store):
        done = run_round(fleet, store=store)
    kept = read_states(state)
    assert done.interrupted
    assert "cannot be written" in str(done.stopped_by)
    assert 0 < len(kept) < 30
    assert {each.host for each in kept} >= set(by_host(done)) != set()
    assert len(by_host(run_round(fleet, store=store))) == len(read_states(state)) == 30


@contextmanager
def started_verify(fleet: Path, state: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the program in a session of its own, and wait until the first hosts are kept."""
    excise = str(Path(sys.executable).with_name("excise"))
    process = subprocess.Popen(
        [excise, "fleet", "verify", str(fleet), "--workers", "1", "--state", str(state), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with ended(process, group=True):
        wait_until(lambda: _kept(state), beside=process, what="the first hosts")
        yield process


def test_ctrl_c_of_the_program_keeps_what_is_done_and_leaves_no_process(tmp_path: Path) -> None:
    fleet, state = tmp_path / "fleet", tmp_path / "s.sqlite"
    names = write_fleet(fleet, 300)
    with started_verify(fleet, state, "--results", str(tmp_path / "r")) as process:
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
        wait_until(lambda: _is_gone(process.pid), what="the end of all processes")
    kept = _kept(state)
    assert kept > 0
    if kept == len(names):  # it was too late: all was done, and at most not yet written
        assert process.returncode in (0, 130), err
        return
    assert process.returncode == 130, err
    assert (tmp_path / "r" / "checks.parquet").exists()
    unseen = f"{len(names) - kept} of {len(names)} hosts were not looked at"
    assert unseen in " ".join(out.split())


def test_program_that_is_killed_keeps_what_came_in_and_leaves_no_process(tmp_path: Path) -> None:
    fleet, state = tmp_path / "fleet", tmp_path / "s.sqlite"
    write_fleet(fleet, 300)
    with started_verify(fleet, state) as process:
        process.kill()
        process.communicate(timeout=PATIENCE_S)  # ends when nobody holds the pipes any more
        assert _kept(state) > 0
        wait_until(lambda: _is_gone(process.pid), what="the end of all processes")


def test_death_of_what_forks_the_workers_costs_no_host(tmp_path: Path) -> None:
    write_fleet(tmp_path, 40)
    killed: list[int] = []

    def kill(progress: Progress) -> None:
        forks = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
        if not killed and progress.done < progress.total:
            killed.append(forks)
            os.kill(forks, signal.SIGKILL)

    done = verify_fleet(
        find_hosts([str(tmp_path)]), engine=PoolEngine(2), settings=Settings(), progress=kill
    )
    assert killed
    assert [state.verdict for state in done.states()] == ["PASSED"] * 40


def _short_round(fleet: Path, state: Path, pool: PoolEngine) -> FleetRound:
    """Make a first round here, and a second one with a pool, which is forked from here."""
    store = SqliteStore(state)
    run_round(fleet, store=store)
    return run_round(fleet, store=store, engine=pool)


def _needs_a_worker(folder: Path) -> None:
    """Give a host a file of evidence, of which only the long way knows what it is for."""
    (folder / "rtmrs.txt").write_text("")


def test_hosts_whose_list_merely_grew_take_no_process(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    names = write_fleet(fleet, 40)
    pool = PoolEngine(4)
    done = _short_round(fleet, tmp_path / "s.sqlite", pool)
    assert done.engine == "this process"
    assert not pool.pids()
    assert len(done.peak_rss_bytes) == 1
    assert done.cpu_s > 0
    found = by_host(done)
    assert [(state.verdict, state.new_entries) for state in found.values()] == [("PASSED", 0)] * 40
    assert list(found) == names


def test_short_round_takes_one_process_and_finds_what_a_long_one_finds(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    names = write_fleet(fleet, 40)
    for name in names[::3]:
        _needs_a_worker(fleet / name)
    done = _short_round(fleet, tmp_path / "s.sqlite", PoolEngine(4))
    assert done.engine == "a pool of 1 process"
    assert len(done.peak_rss_bytes) == 2
    found = by_host(done)
    assert [(state.verdict, state.new_entries) for state in found.values()] == [("PASSED", 0)] * 40
    assert list(found) == names


def test_worker_of_a_short_round_dies_without_harm_to_the_round(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    names = write_fleet(fleet, 40)
    for name in ("dies-always", "dies-once"):
        _needs_a_worker(write_host(fleet, name))
    found = by_host(_short_round(fleet, tmp_path / "s.sqlite", DyingPool(2)))
    assert outcome_of(found["dies-always"], "fleet.worker") == "FAILED"
    assert {found[name].verdict for name in (*names, "dies-once")} == {"PASSED"}


def test_interrupt_while_the_leader_follows_hosts_keeps_what_is_done(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet"
    names = write_fleet(fleet, 300)
    store = SqliteStore(tmp_path / "s.sqlite")
    run_round(fleet, store=store)
    before = dict(store.all())

    def interrupt(_: Progress) -> None:
        raise KeyboardInterrupt

    done = verify_fleet(
        find_hosts([str(fleet)]),
        engine=PoolEngine(2),
        settings=Settings(),
        store=store,
        progress=interrupt,
    )
    assert done.interrupted
    assert done.engine == "this process"
    assert len(done.peak_rss_bytes) == 1
    assert list(by_host(done)) == names[:256]
    assert [name for name, state in store.all() if state != before[name]] == names[:256]


WAYS = """
import sys, threading
from excise.fleet.engines import PoolEngine
from excise.fleet.records import Settings
from excise.fleet.rounds import find_hosts, verify_fleet

class Noting(PoolEngine):
    def _pool_of(self, method):
        print(method)
        return super()._pool_of(method)

def make_round(**limit):
    hosts = find_hosts([sys.argv[1]])
    done = verify_fleet(hosts, engine=Noting(1, **limit), settings=Settings())
    assert [state.verdict for state in done.states()] == ["PASSED"] * len(hosts)

if __name__ == "__main__":
    make_round()
    make_round(memory_limit_bytes=100 << 20)
    ended = threading.Event()
    threading.Thread(target=ended.wait).start()
    make_round()
    ended.set()
"""
"""Rounds of a process without threads, with little memory, and with a thread."""


def test_process_that_has_threads_or_little_memory_is_not_forked(tmp_path: Path) -> None:
    fleet, script = tmp_path / "fleet", tmp_path / "ways.py"
    write_fleet(fleet, 3)
    script.write_text(WAYS)
    done = subprocess.run(
        [sys.executable, str(script), str(fleet)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["fork", "forkserver", "forkserver"]


def test_killed_program_leaves_no_process_of_a_short_round(tmp_path: Path) -> None:
    fleet, state = tmp_path / "fleet", tmp_path / "s.sqlite"
    write_fleet(fleet, 300)
    run_round(fleet, store=SqliteStore(state))
    for delay_s in (0.2, 0.3, 0.4, 0.6):
        with started_verify(fleet, state) as process:
            time.sleep(delay_s)
            process.kill()
            process.communicate(timeout=PATIENCE_S)
            assert _kept(state) == 300
            wait_until(lambda: _is_gone(process.pid), what="the end of all processes")


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def _kept(state: Path) -> int:
    try:
        return len(read_states(str(state)))
    except (UsageError, FormatError):  # there is no file yet, or no table in it
        return 0


def test_one_folder_may_be_a_host_and_two_hosts_of_one_name_are_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_host(one, "a")
    write_host(other, "a")
    assert find_hosts([str(one / "a")]) == {"a": str(one / "a")}
    with pytest.raises(UsageError, match="the host 'a' is also in"):
        find_hosts([str(one), str(other)])
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no host in it"):
        find_hosts([str(tmp_path / "none")])
    with pytest.raises(FormatError, match="cannot be read"):
        find_hosts([str(tmp_path / "nowhere")])


def test_keys_are_found_by_the_name_of_the_host(tmp_path: Path) -> None:
    for name in ("a.pem", "b", "c.example.org.pub", "c.pem.bak"):
        (tmp_path / name).write_bytes(name.encode())
    found = read_keys(str(tmp_path), ["a", "b", "c", "c.example.org"])
    assert found == {"a": b"a.pem", "b": b"b", "c.example.org": b"c.example.org.pub"}


def test_a_fleet_of_captures_is_compared_by_what_its_machines_are(tmp_path: Path) -> None:
    from captures import run, write
    from excise.capture.manifest import Fact
    from excise.fleet.answers import answer

    for host, kernel, cost in (("a", "6.1", 1000), ("b", "6.1", 3000), ("c", "6.12", 4000)):
        (tmp_path / host).mkdir()
        records = [run(n, wall_ns=cost + n % 3) for n in range(12)]
        facts = [
            Fact(name="kernel.release", value=kernel),
            Fact(name="security.lsm", value="lockdown,selinux"),
            Fact(name="tpm.manufacturer", value="IFX"),
            Fact(name="tpm.firmware", value="7.85"),
        ]
        write(tmp_path / host / "today.excise", records, host_facts=facts)
    done = run_round(tmp_path)
    assert {s.verdict for s in done.states()} == {"NOT_COVERED"}
    table = answer(done.states()).costs
    rows = table.select("kernel", "tpm", "lsm", "hosts", "median").rows()
    assert rows == [
        ("6.1", "IFX 7.85", "lockdown,selinux", 2, 2001.0),
        ("6.12", "IFX 7.85", "lockdown,selinux", 1, 4001.0),
    ]
    assert table["ratio"].to_list() == pytest.approx([1.0, 4001 / 2001])


def test_a_capture_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    from captures import run, write

    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    (fleet / "a").mkdir(parents=True)
    path = write(fleet / "a" / "c.excise", [run(n) for n in range(10)])
    first = by_host(run_round(fleet, store=store))["a"]
    journal = path / "journal.jsonl"
    before, when = journal.read_bytes(), journal.stat()
    journal.write_bytes(b"x" * (len(before) - 1) + b"\n")
    os.utime(journal, ns=(when.st_atime_ns, when.st_mtime_ns))
    same = by_host(run_round(fleet, store=store))["a"]
    assert same.captures == first.captures
    os.utime(journal, ns=(when.st_atime_ns, when.st_mtime_ns + 1))
    changed = by_host(run_round(fleet, store=store))["a"]
    assert changed.verdict == Outcome.FAILED


def test_a_host_that_went_away_is_named_and_stays_in_the_state(tmp_path: Path) -> None:
    from excise.fleet.answers import answer
    from excise.report.fleet import build_fleet

    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_fleet(fleet, 3)
    assert run_round(fleet, store=store).absent == ()
    shutil.rmtree(fleet / "host-001")
    done = run_round(fleet, store=store)
    assert done.absent == ("host-001",)
    warnings = build_fleet(answer(done.states()), done=done).paragraphs("warning")
    assert "The state knows 1 host not in this round: host-001." in warnings
    assert len(read_states(str(tmp_path / "s.sqlite"))) == 3
