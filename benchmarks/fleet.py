"""Verify a fleet on every engine: time, memory, the engine's cost, the second round, and growth.

usage: fleet.py FOLDER [--part full,host,quoted,growth,overhead] [--hosts N] [--json FILE]

FOLDER is what `fleet_hosts.py` wrote; it is left as it was. The figure is processor time, user and
system, of every process that took part, from its start to its end: leader, workers, what forks
them, and Dask's scheduler; the clock is given beside it. Lists are read once before, so that none
comes from the disk. Peers run one after the other in each repetition. Parts:

  overhead  a plain pool that only verifies and judges, `excise`'s pool, and Dask, on --subset hosts
  host      what the replay and the policy take of one host, first and later, without an engine
  quoted    what a later round takes of a host with a quote, a boot log and a short list
  growth    the pool on 10 to all hosts, and the exponent of processor time over hosts
  full      all hosts: one process, a pool, Dask with one and two workers; then --runs times with
            six new entries each
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from multiprocessing import forkserver, get_context
from pathlib import Path
from typing import Any

from excise.evidence.checks import Outcome
from excise.evidence.ima import verify_list
from excise.evidence.pcr import read_pcr_path
from excise.evidence.policy import Policy, appraise_covered
from excise.evidence.policy.files import read_policy_files
from excise.fleet.engines import Engine, InlineEngine, PoolEngine
from excise.fleet.grown import follow_hosts
from excise.fleet.host import appraise_host
from excise.fleet.records import HostJob, Settings
from excise.fleet.rounds import find_hosts, verify_fleet
from excise.fleet.stores import SqliteStore
from excise.fleet.worker import peak_rss_bytes
from fleet_hosts import LIST, PCRS, POLICY, grown

# What only the leader needs is imported where it is used: a spawned worker imports this file too.

SIZES = (10, 20, 40, 80, 160, 320, 640, 1250, 2000)
TICKS = os.sysconf("SC_CLK_TCK")

_policy: Policy | None = None


@dataclass
class Measured:
    """What one run took."""

    arm: str
    hosts: int
    wall_s: float
    cpu_s: float
    peak_mib: float
    passed: int

    def line(self) -> str:
        rate = self.hosts / self.wall_s
        return (
            f"{self.arm:32} {self.hosts:5} hosts {self.wall_s:8.2f} s {rate:8.1f} hosts/s "
            f"{self.cpu_s:8.2f} s CPU  {1e3 * self.cpu_s / self.hosts:6.2f} ms a host  "
            f"{self.peak_mib:6.1f} MiB"
        )


def load_policy(path: str) -> None:
    global _policy
    _policy = Policy.load(Path(path))


def plain(folder: str) -> tuple[str, int]:
    """Verify one host with the library alone, as a script of ten lines would."""
    place = Path(folder)
    found = verify_list(place / LIST, pcrs=read_pcr_path(place / PCRS))
    assert _policy is not None
    judged = appraise_covered(place / LIST, found, _policy)
    passed = found.verdict is judged.verdict is Outcome.PASSED
    return str(passed), peak_rss_bytes() >> 10


def cpu_of(pids: Sequence[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / TICKS


def own_cpu() -> float:
    """Return the processor time of this process and of all that it started and that ended."""
    # The process that forks workers stays, and starts anew with the next pool: its imports count.
    forkserver._forkserver._stop()
    both = (resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in both)


def forking() -> Any:
    """Return how a plain pool starts its processes: as cheaply as `excise`'s."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", "excise.evidence.policy"])
    return context


def run_plain(hosts: dict[str, str], policy: Policy, workers: int) -> Measured:
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "policy")
        policy.save(path)
        cpu = own_cpu()
        began = time.perf_counter()
        with ProcessPoolExecutor(
            workers,
            mp_context=forking(),
            initializer=load_policy,
            initargs=(str(path),),
        ) as pool:
            results = list(pool.map(plain, hosts.values(), chunksize=16))
        wall = time.perf_counter() - began
        cpu = own_cpu() - cpu
    passed = sum(verdict == "True" for verdict, _ in results)
    peak = max(kib for _, kib in results) / 1024
    return Measured(f"plain pool of {workers}", len(hosts), wall, cpu, peak, passed)


def run_engine(
    arm: str,
    hosts: dict[str, str],
    policy: Policy,
    engine: Engine,
    *,
    pids: Sequence[int] = (),
    state: Path | None = None,
) -> Measured:
    store = SqliteStore(state) if state is not None else None
    cpu = own_cpu() + cpu_of(pids)
    began = time.perf_counter()
    done = verify_fleet(
        hosts,
        engine=engine,
        settings=Settings(policy_digest=policy.digest),
        policy=policy,
        store=store,
    )
    if store is not None:
        store.close()
    wall = time.perf_counter() - began
    cpu = own_cpu() + cpu_of(pids) - cpu
    passed = sum(each.verdict == Outcome.PASSED for each in done.states())
    peak = max(done.peak_rss_bytes.values()) / 2**20
    return Measured(arm, len(hosts), wall, cpu, peak, passed)


@contextmanager
def cluster(workers: int) -> Iterator[tuple[str, list[int]]]:
    """Start a scheduler and workers, each a process; give the address and their numbers."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    dask = str(Path(sys.executable).with_name("dask"))
    options = ["--no-nanny", "--nthreads", "1", "--no-dashboard"]
    with tempfile.TemporaryDirectory() as scratch:
        argvs = [[dask, "scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard"]]
        argvs += [[dask, "worker", address, *options, "--local-directory", scratch]] * workers
        quiet = subprocess.DEVNULL
        processes = [subprocess.Popen(argv, stdout=quiet, stderr=quiet) for argv in argvs]
        try:
            from distributed import Client

            with Client(address, timeout=60) as client:
                client.wait_for_workers(workers, timeout=60)
            yield address, [process.pid for process in processes]
        finally:
            for process in reversed(processes):
                process.send_signal(signal.SIGTERM)
                process.wait()


def first(hosts: dict[str, str], count: int) -> dict[str, str]:
    return dict(list(hosts.items())[:count])


Note = Callable[[Measured], None]


def overhead(
    hosts: dict[str, str], policy: Policy, note: Note, *, runs: int, quiet: bool
) -> dict[str, Any]:
    from excise.fleet.dask_engine import DaskEngine

    found: dict[str, list[Measured]] = {}
    with real_time(quiet), cluster(2) as (address, pids):
        for _ in range(runs):
            for measured in (
                run_plain(hosts, policy, 2),
                run_engine("pool of 2", hosts, policy, PoolEngine(2)),
                run_engine("Dask, 2 workers", hosts, policy, DaskEngine(address), pids=pids),
            ):
                note(measured)
                found.setdefault(measured.arm, []).append(measured)
    base = found.pop("plain pool of 2")
    result = {}
    for arm, measured in found.items():
        for name in ("cpu_s", "wall_s"):
            pairs = zip(measured, base, strict=True)
            ratios = [getattr(one, name) / getattr(other, name) for one, other in pairs]
            result[f"{arm} / plain pool, {name}"] = statistics.median(ratios)
    return result


def one_host(hosts: dict[str, str], policy: Policy) -> dict[str, Any]:
    """Measure what a host takes without any engine: replay and policy, and a first and later round.

    The least of several runs: other work on the machine only ever adds.
    """
    folders = list(map(Path, list(hosts.values())[:40]))
    settings = Settings(policy_digest=policy.digest)
    kept: dict[Path, bytes] = {}

    def replay(place: Path) -> None:
        verify_list(place / LIST, pcrs=read_pcr_path(place / PCRS))

    def library(place: Path) -> None:
        found = verify_list(place / LIST, pcrs=read_pcr_path(place / PCRS))
        appraise_covered(place / LIST, found, policy)

    def a_round(place: Path, state: bytes | None) -> bytes:
        job = HostJob(host=place.name, url=str(place), state=state)
        (grown,) = follow_hosts([job], policy=policy, settings=settings)
        return grown or appraise_host(job, policy=policy, settings=settings).encode()

    def first_round(place: Path) -> None:
        kept[place] = a_round(place, None)

    def second_round(place: Path) -> None:
        a_round(place, kept[place])

    result = {step.__name__: least(step, folders) for step in (replay, library, first_round)}
    with grown(folders, count=6):
        result["second_round"] = least(second_round, folders)
    result["entries_per_s_library"] = 20_000 / result["library"]
    result["first / second round"] = result["first_round"] / result["second_round"]
    return result


def quoted(hosts: int = 100) -> dict[str, Any]:
    """Measure a later round of hosts with a quote, a boot log of nine events and a short list."""
    tests = Path(__file__).resolve().parents[1] / "tests"
    sys.path[:0] = [str(tests / place) for place in ("fleet", "evidence", "evidence/ima")]
    from fleet_builder import Attested, entries_of
    from ima_builder import ng

    settings = Settings()

    def a_round(place: Path, state: bytes | None) -> bytes:
        job = HostJob(host=place.name, url=str(place), state=state)
        return appraise_host(job, policy=None, settings=settings).encode()

    with tempfile.TemporaryDirectory() as scratch:
        fleet = Path(scratch)
        folders = [Attested(f"host-{number}").write(fleet) for number in range(hosts)]
        kept = {folder: a_round(folder, None) for folder in folders}
        for folder in folders:
            later = Attested(folder.name, nonce=b"a later nonce", clock_ms=9_000)
            later.write(fleet, [*entries_of(folder.name), ng("/opt/new")])
        return {"later_round": least(lambda folder: a_round(folder, kept[folder]), folders)}


def least(step: Callable[[Path], object], folders: Sequence[Path], runs: int = 7) -> float:
    """Return the median over hosts of the least processor time that a step took of a host."""
    took = []
    for folder in folders:
        found = []
        for _ in range(runs):
            began = time.process_time_ns()
            step(folder)
            found.append(time.process_time_ns() - began)
        took.append(min(found))
    return statistics.median(took) / 1e9


def grows(
    hosts: dict[str, str], policy: Policy, note: Note, known: Sequence[Measured]
) -> dict[str, Any]:
    """Measure the pool on more and more hosts; a size measured already is taken as it is.

    A process without threads forks the workers of a few hosts itself; with one all start alike.
    """
    ended = threading.Event()
    threading.Thread(target=ended.wait, daemon=True).start()
    points = []
    for size in (size for size in SIZES if size <= len(hosts)):
        # Other work on the machine only ever adds to processor time: the least of some runs.
        runs = 5 if size <= 640 else 2
        measured = [
            each
            for each in known
            if each.hosts == size and each.arm in ("pool of 2", "pool of 2, first round")
        ]
        while len(measured) < runs:
            with tempfile.TemporaryDirectory() as scratch:
                state = Path(scratch, "state.sqlite")
                part = first(hosts, size)
                measured.append(run_engine("pool of 2", part, policy, PoolEngine(2), state=state))
        least = min(measured, key=lambda each: each.cpu_s)
        note(least)
        points.append((size, least.cpu_s, least.wall_s))
    ended.set()
    result: dict[str, Any] = {"points": points}
    for place, name in ((1, "cpu_s"), (2, "wall_s")):
        result[name] = fit([p[0] for p in points], [p[place] for p in points])
    result["projection_100000_hosts_cpu_hours"] = result["cpu_s"]["s_per_host"] * 100_000 / 3600
    return result


def fit(sizes: Sequence[int], values: Sequence[float]) -> dict[str, float]:
    """Fit start + c hosts^k; errors are taken to be as large as the values are, in proportion.

    (`excise.stats.growth` fits series of runs, whose errors do not depend on the run.)
    """
    import numpy as np
    from scipy.optimize import curve_fit
    from scipy.stats import t

    n, y = np.array(sizes, float), np.array(values)

    def law(n: Any, start: float, c: float, k: float) -> Any:
        return start + c * n**k

    best, covariance = curve_fit(law, n, y, p0=(values[0] / 2, values[-1] / n[-1], 1), sigma=y)
    half = t.ppf(0.975, len(n) - 3) * np.sqrt(np.diag(covariance))
    slope, start = np.polyfit(n, y, 1, w=1 / y)
    return {
        "exponent": float(best[2]),
        "exponent_half_interval_95": float(half[2]),
        "s_per_host": float(slope),
        "start_s": float(start),
    }


@dataclass(frozen=True)
class Arm:
    """An engine to measure.

    Attributes:
        make: What makes it anew for a round.
        pids: Processes that run all the time, whose processor time is counted.
    """

    name: str
    make: Callable[[], Engine]
    pids: Sequence[int] = ()


@contextmanager
def arms(wanted: Sequence[str]) -> Iterator[list[Arm]]:
    """Give the engines; clusters run through all rounds, as clusters do."""
    from excise.fleet.dask_engine import DaskEngine

    with ExitStack() as stack:
        found = []
        for workers, name, local in (
            (1, "one process", InlineEngine),
            (2, "pool of 2", lambda: PoolEngine(2)),
        ):
            dask = f"Dask, {workers} worker{'s' if workers > 1 else ''}"
            if not wanted or name in wanted:
                found.append(Arm(name, local))
            if not wanted or dask in wanted:
                address, pids = stack.enter_context(cluster(workers))
                found.append(Arm(dask, partial(DaskEngine, address), pids))
        yield found


def full(
    hosts: dict[str, str],
    policy: Policy,
    note: Note,
    *,
    entries: int,
    runs: int,
    wanted: Sequence[str],
) -> dict[str, Any]:
    """Measure a first round, let every host measure six more files, and measure again."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch, arms(wanted) as engines:

        def go(arm: Arm, label: str, state: Path) -> Measured:
            name = f"{arm.name}, {label} round"
            measured = run_engine(name, hosts, policy, arm.make(), pids=arm.pids, state=state)
            note(measured)
            return measured

        first_rounds, later = {}, {}
        for arm in engines:
            first_rounds[arm.name] = go(arm, "first", Path(scratch, f"{arm.name}.sqlite"))
        with grown(map(Path, hosts.values()), count=entries):
            for _ in range(runs):
                for arm in engines:  # each time as it was after the first round
                    before = Path(scratch, f"{arm.name}.sqlite")
                    again = Path(shutil.copy(before, Path(scratch, "again.sqlite")))
                    later.setdefault(arm.name, []).append(go(arm, "second", again))
        for name, found in later.items():
            for what in ("cpu_s", "wall_s"):
                second = statistics.median(getattr(each, what) for each in found)
                result[f"{name}: second round, {what}"] = second
                ratio = getattr(first_rounds[name], what) / second
                result[f"{name}: first / second round, {what}"] = ratio
    return result


@contextmanager
def real_time(wanted: bool) -> Iterator[None]:
    """Keep other work off the processors; needs root."""
    if wanted:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    try:
        yield
    finally:
        if wanted:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", default="full,host,growth,overhead")
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--subset", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--quiet", action="store_true", help="real-time priority for parts that are short"
    )
    parser.add_argument("--arm", action="append", default=[], help="of full; all by default")
    parser.add_argument("--json", type=Path, help="write all raw values here")
    options = parser.parse_args()
    hosts = first(find_hosts([str(options.folder / "hosts")]), options.hosts)
    policy = read_policy_files([options.folder / POLICY])
    for place in hosts.values():
        Path(place, LIST).read_bytes()
    runs: list[Measured] = []

    def note(measured: Measured) -> None:
        if measured.passed != measured.hosts:
            raise SystemExit(f"{measured.arm}: {measured.passed} of {measured.hosts} passed")
        print(measured.line(), flush=True)
        runs.append(measured)

    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "overhead": lambda: overhead(
            first(hosts, options.subset), policy, note, runs=options.runs, quiet=options.quiet
        ),
        "host": lambda: one_host(hosts, policy),
        "quoted": quoted,
        "growth": lambda: grows(hosts, policy, note, list(runs)),
        "full": lambda: full(
            hosts,
            policy,
            note,
            entries=6,
            runs=options.runs,
            wanted=options.arm,
        ),
    }
    result: dict[str, Any] = {"kernel": platform.release(), "cpu": platform.processor()}
    for part in options.part.split(","):
        result[part] = parts[part]()
        print(json.dumps({part: result[part]}, indent=2), flush=True)
        if options.json:
            result["runs"] = [asdict(each) for each in runs]
            options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
