"""A fleet on a real Dask scheduler with real worker processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.errors import HostError
from excise.fleet.records import Settings
from excise.fleet.rounds import Progress, find_hosts, verify_fleet
from excise.fleet.stores import SqliteStore, read_states
from fleet_builder import by_host, fleet_policy, run_round, write_fleet
from ima_builder import ng
from ports import free_port

pytest.importorskip("distributed")

DASK = str(Path(sys.executable).with_name("dask"))
QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the cluster, which is only just started, longer than a user would."""
    monkeypatch.setattr("excise.fleet.dask_engine.CONNECT_S", PATIENCE_S)


def _worker(address: str, folder: Path) -> subprocess.Popen[bytes]:
    options = ["--nthreads", "1", "--no-dashboard", "--local-directory", str(folder)]
    # Without a nanny, so that a killed worker is gone; Dask then gives its work to the other.
    return subprocess.Popen([DASK, "worker", address, "--no-nanny", *options], **QUIET)  # type: ignore[call-overload, no-any-return]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[int]]]:
    """Give a scheduler's address and the process numbers of its two workers."""
    folder = tmp_path_factory.mktemp("dask")
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    scheduler = subprocess.Popen(
        [DASK, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"],
        **QUIET,  # type: ignore[arg-type]
    )
    workers = [_worker(address, folder) for _ in range(2)]
    try:
        yield address, [worker.pid for worker in workers]
    finally:
        # Not asked to end: a worker would first look for a scheduler that has gone too.
        for process in [*workers, scheduler]:
            process.kill()
        for process in [*workers, scheduler]:
            process.wait()


@pytest.mark.lab
def test_dask_finds_what_this_process_finds(tmp_path: Path, cluster: tuple[str, list[int]]) -> None:
    from excise.fleet.dask_engine import DaskEngine

    names = write_fleet(tmp_path, 30)
    policy = fleet_policy(names[:-1])
    alone = by_host(run_round(tmp_path, policy=policy))
    done = run_round(tmp_path, policy=policy, engine=DaskEngine(cluster[0]))
    found = by_host(done)
    assert {n: s.verdict for n, s in found.items()} == {n: s.verdict for n, s in alone.items()}
    assert found["host-029"].findings == alone["host-029"].findings != ()
    again = run_round(tmp_path, policy=policy, engine=DaskEngine(cluster[0]))
    assert len(again.encoded) == 30


@pytest.mark.lab
def test_a_cluster_takes_one_policy_after_the_other_and_the_first_again(
    tmp_path: Path, cluster: tuple[str, list[int]]
) -> None:
    from distributed import Client

    from excise.fleet.dask_engine import DaskEngine, policies_of

    names = write_fleet(tmp_path, 8)
    policies = [fleet_policy(names, more=[ng(f"/opt/{n}", b"")]) for n in range(6)]
    for policy in (*policies, policies[0], policies[-1]):
        done = run_round(tmp_path, policy=policy, engine=DaskEngine(cluster[0]))
        assert [state.verdict for state in done.states()] == ["PASSED"] * 8
    with Client(cluster[0], timeout=30, set_as_default=False) as client:
        kept = client.run_on_scheduler(policies_of)
    # Those used last, and no more: a cluster runs for months.
    assert kept[-1] == policies[0].digest
    assert set(kept) < {policy.digest for policy in policies}


@pytest.mark.lab
def test_killing_a_dask_worker_mid_run_loses_nothing(
    tmp_path: Path, cluster: tuple[str, list[int]]
) -> None:
    from excise.fleet.dask_engine import DaskEngine

    address, pids = cluster
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    names = write_fleet(fleet, 200)
    policy = fleet_policy(names)
    engine, killed = DaskEngine(address), []

    def kill(progress: Progress) -> None:
        if not killed and progress.done >= 40:
            killed.append(pids[0])
            os.kill(pids[0], signal.SIGKILL)

    done = verify_fleet(
        find_hosts([str(fleet)]),
        engine=engine,
        settings=Settings(policy_digest=policy.digest),
        policy=policy,
        store=store,
        progress=kill,
    )
    assert killed
    assert [state.host for state in done.states()] == names
    assert {state.verdict for state in done.states()} == {"PASSED"}
    assert [state.host for state in read_states(str(tmp_path / "s.sqlite"))] == names


@pytest.mark.lab
def test_a_scheduler_that_goes_away_keeps_what_is_done(tmp_path: Path) -> None:
    from excise.fleet.dask_engine import DaskEngine

    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    argv = [DASK, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]
    scheduler = subprocess.Popen(argv, **QUIET)  # type: ignore[call-overload]
    worker = _worker(address, tmp_path / "w")
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_fleet(fleet, 400)

    def end(progress: Progress) -> None:
        if progress.done < 100:
            scheduler.kill()

    try:
        done = verify_fleet(
            find_hosts([str(fleet)]),
            engine=DaskEngine(address),
            settings=Settings(),
            store=store,
            progress=end,
        )
    finally:
        for process in (worker, scheduler):
            process.kill()
            process.wait()
    assert done.interrupted
    assert "scheduler" in str(done.stopped_by)
    assert read_states(str(tmp_path / "s.sqlite")) == list(done.states()) != []


def test_an_address_where_nobody_answers_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from excise.fleet import dask_engine

    monkeypatch.setattr(dask_engine, "CONNECT_S", 1)
    write_fleet(tmp_path, 1)
    with pytest.raises(HostError, match="no Dask cluster with a worker answers"):
        run_round(tmp_path, engine=dask_engine.DaskEngine(f"tcp://127.0.0.1:{free_port()}"))


@pytest.mark.lab
def test_a_worker_that_could_not_start_is_named_and_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cluster: tuple[str, list[int]]
) -> None:
    from distributed import Client

    from excise.fleet import dask_engine

    address, _ = cluster
    fleet = tmp_path / "fleet"
    policy = fleet_policy(write_fleet(fleet, 2))
    # What a cluster was given once, a worker without the same excise cannot take, and hangs.
    engine = dask_engine.DaskEngine
    run_round(fleet, engine=engine(address), policy=policy)
    other = tmp_path / "other" / "excise"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("__version__ = '0'\n")
    monkeypatch.setattr(dask_engine, "CONNECT_S", 3)
    argv = [DASK, "worker", address, "--nthreads", "1", "--no-dashboard"]
    argv += ["--local-directory", str(tmp_path / "w")]
    environment = os.environ | {"PYTHONPATH": str(other.parent)}
    worker = subprocess.Popen(argv, env=environment, start_new_session=True, **QUIET)  # type: ignore[call-overload]
    with ended(worker, by=signal.SIGKILL, group=True), Client(address) as client:
        states = dask_engine.worker_states
        wait_until(lambda: "closing" in client.run_on_scheduler(states).values(), beside=worker)
        with pytest.raises(HostError, match="neither works nor leaves: it is closing"):
            run_round(fleet, engine=engine(address), policy=policy)


def test_a_server_that_is_no_scheduler_is_said_to_be_none(tmp_path: Path) -> None:
    from excise.fleet.dask_engine import DaskEngine

    write_fleet(tmp_path, 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def greet() -> None:
            with server.accept()[0] as client:
                client.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                client.recv(1)

        greeter = threading.Thread(target=greet, daemon=True)
        greeter.start()
        with pytest.raises(HostError, match="what answers is no scheduler"):
            run_round(tmp_path, engine=DaskEngine(f"tcp://127.0.0.1:{port}"))
