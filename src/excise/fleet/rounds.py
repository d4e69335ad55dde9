"""One round over a fleet: find the hosts, run them in batches, keep each state as it comes in.

What can go wrong with a batch, and what follows:

- A host's evidence is bad: a row of that host; nothing else happens.
- A worker dies: the hosts that may have been at work are run again, one at a time; one that takes
  two workers along when it runs alone ends in an error of its own.
- The leader is interrupted or dies: every state that came in is kept.

Where nearly all hosts are known, the leader itself does those whose list merely grew, at once; only
what is left takes an engine.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Final

from excise.errors import FormatError, HostError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.policy import Policy
from excise.fleet.engines import Engine
from excise.fleet.grown import follow_hosts
from excise.fleet.layout import sort_items
from excise.fleet.places import folder_at, forget_stores
from excise.fleet.records import (
    CheckRow,
    HostJob,
    HostState,
    Settings,
    decode_state,
    escaped_name,
    outline_of,
)
from excise.fleet.stores import StateStore
from excise.fleet.worker import Batch, peak_rss_bytes, worker_name
from excise.units import counted

MAX_DEATHS: Final = 2
"""Workers that a host may take along when it runs alone."""
MAX_BATCH: Final = 32
_SHARES: Final = 8
"""Batches that each worker gets at least, so that all end at about the same time."""
_MAX_SHORT_BATCH: Final = 256
_SHORT_SHARES: Final = 4
"""The same where hosts take so little that handing them over counts."""
_FOLLOWED: Final = 256
"""Hosts that the leader follows at a time: some ms, between which Ctrl-C is heard."""
_FEW_NEW: Final = 16
"""Hosts without a state that take less time than it takes to start a pool of processes."""
_IN_VAIN: Final = 8
"""Workers that may die one after another without one host done, before it is given up."""
_KEY_ENDINGS: Final = ("", ".pub", ".pem", ".der", ".crt", ".tpm", ".public")
_KEY_BYTES: Final = 1 << 20
_POLL_S: Final = 0.5
_SILENT: Final = 3
"""Waits without any result, beside a dead worker, after which its batch is taken for lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a round is.

    Attributes:
        entries: List entries read so far.
        rate: Hosts a second so far.
        left_s: Estimate of the time still needed; None at the beginning.
    """

    done: int
    total: int
    failed: int
    entries: int
    rate: float
    left_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRound:
    """What a round did.

    Attributes:
        encoded: Encoded state of each host done, sorted by host.
        total: Hosts that there are.
        engine: What it ran on.
        wall_s: Time on the clock.
        cpu_s: Processor time that the hosts took in the workers.
        peak_rss_bytes: Most memory of each worker, by its name.
        retried: Hosts that were run again because a worker died.
        absent: Hosts that have a state and are not in this round.
        interrupted: Whether it ended before all hosts were done.
        stopped_by: Why, if it was not the user.
    """

    encoded: tuple[bytes, ...]
    total: int
    engine: str
    wall_s: float
    cpu_s: float
    peak_rss_bytes: Mapping[str, int]
    retried: tuple[str, ...]
    absent: tuple[str, ...]
    interrupted: bool
    stopped_by: HostError | None = None

    def states(self) -> Iterator[HostState]:
        """Iterate over the states of the hosts done."""
        return (decode_state(data, source="result") for data in self.encoded)


def find_hosts(urls: Iterable[str]) -> dict[str, str]:
    """Return the folder of every host by its name, of some folders of hosts.

    A folder that itself holds evidence is a host.

    Raises:
        FormatError: A folder cannot be read.
        UsageError: There is no host, or two of one name.
    """
    found: dict[str, str] = {}
    named = list(urls)
    forget_stores()
    for url in named:
        folder = folder_at(url)
        items = folder.items()
        if sort_items(items).files:
            here = {escaped_name(folder.url.rstrip("/").rpartition("/")[2]): folder.url}
        else:
            here = {
                escaped_name(item.name): folder.child(item.name).url
                for item in items
                if item.is_folder or item.leads_nowhere
            }
        for name, place in here.items():
            if name in found:
                raise UsageError(
                    f"the host {name!r} is also in {found[name]}",
                    source=place,
                    hint="Rename one of the folders: a host is known by its folder's name.",
                )
            found[name] = place
    if not found:
        raise UsageError(
            "no host in it", source=", ".join(named), hint="A fleet has one folder a host."
        )
    return dict(sorted(found.items()))


def read_keys(url: str, hosts: Iterable[str]) -> dict[str, bytes]:
    """Return the attestation keys of a folder by host: files named as the host, with any ending.

    Raises:
        FormatError: The folder or a key cannot be read.
    """
    folder = folder_at(url)
    names = {item.name for item in folder.items() if item.is_file}
    found = {}
    for host in hosts:
        name = next((host + end for end in _KEY_ENDINGS if host + end in names), None)
        if name is not None:
            found[host] = folder.read(name, limit_bytes=_KEY_BYTES)
    return found


def verify_fleet(
    hosts: Mapping[str, str],
    *,
    engine: Engine,
    settings: Settings,
    policy: Policy | None = None,
    store: StateStore | None = None,
    keys: Mapping[str, bytes] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> FleetRound:
    """Verify every host once, and keep its state.

    Ctrl-C ends the round: what was done by then is kept and returned.

    Args:
        hosts: Folder of each host, by its name.
        engine: Where to run; it is started and stopped here.
        settings: How hosts are judged.
        policy: Reference values, shared by all workers.
        store: Where states are kept between rounds.
        keys: Attestation keys by host.
        progress: Called after every batch.

    Raises:
        HostError: The engine cannot be started.
        UsageError: The store cannot be written.
    """
    began = time.monotonic()
    work = _Round(hosts=hosts, keys=keys or {}, store=store, engine=engine, progress=progress)
    interrupted, stopped_by = False, None
    known = store.hosts() if store is not None else set()
    absent = tuple(sorted(known - hosts.keys()))
    left, started = list(hosts), False
    try:
        if len(hosts.keys() - known) <= _FEW_NEW:
            if engine.is_here:
                left = work.follow(policy=policy, settings=settings)
            engine.expect_short(len(left))
            work.most, work.shares = _MAX_SHORT_BATCH, _SHORT_SHARES
        if left:
            started = True
            engine.start(settings=settings, policy=policy)
            work.run(left)
    except KeyboardInterrupt:
        interrupted = True
        work.settle()
    except HostError as error:
        if not work.encoded:
            raise
        interrupted, stopped_by = True, error
    finally:
        engine.stop()
    return FleetRound(
        encoded=tuple(data for _, data in sorted(work.encoded.items())),
        total=len(hosts),
        engine=engine.name if started else "this process",
        wall_s=time.monotonic() - began,
        cpu_s=work.cpu_ns / 1e9,
        peak_rss_bytes=work.peaks,
        retried=tuple(work.retried),
        absent=absent,
        interrupted=interrupted,
        stopped_by=stopped_by,
    )


@dataclass(slots=True)
class _Round:
    """A round under way."""

    hosts: Mapping[str, str]
    keys: Mapping[str, bytes]
    store: StateStore | None
    engine: Engine
    progress: Callable[[Progress], None] | None
    encoded: dict[str, bytes] = field(default_factory=dict)
    keeping: Mapping[str, bytes] = field(default_factory=dict)
    read: dict[str, bytes] = field(default_factory=dict)
    suspects: deque[str] = field(default_factory=deque)
    alone: str | None = None
    silent: int = 0
    deaths: dict[str, int] = field(default_factory=dict)
    retried: dict[str, None] = field(default_factory=dict)
    peaks: dict[str, int] = field(default_factory=dict)
    cpu_ns: int = 0
    entries: int = 0
    failed: int = 0
    in_vain: int = 0
    most: int = MAX_BATCH
    shares: int = _SHARES
    began: float = field(default_factory=time.monotonic)

    def follow(self, *, policy: Policy | None, settings: Settings) -> list[str]:
        """Do the hosts whose list merely grew, here and now; return the others."""
        left, names = [], list(self.hosts)
        for at in range(0, len(names), _FOLLOWED):
            jobs = self._jobs(names[at : at + _FOLLOWED])
            began = time.process_time_ns()
            states = follow_hosts(jobs, policy=policy, settings=settings, threads=self.engine.slots)
            self.cpu_ns += time.process_time_ns() - began
            found = {}
            for job, state in zip(jobs, states, strict=True):
                if state is not None:
                    found[job.host] = state
                    continue
                left.append(job.host)
                if job.state is not None:
                    self.read[job.host] = job.state
            if found:
                self.peaks[worker_name()] = peak_rss_bytes()
                self._keep(found)
        return left

    def run(self, names: list[str]) -> None:
        """Run all batches, and then what a dead worker left, one at a time."""
        share = -(-len(names) // (self.shares * self.engine.slots))
        size = max(1, min(self.most, share))
        batches = deque(names[at : at + size] for at in range(0, len(names), size))
        running: dict[Future[Batch], list[str]] = {}
        while batches or running or self.suspects:
            if self.suspects and not running:
                self.alone = self.suspects.popleft()
                self._submit(running, [self.alone])
            while not self.suspects and batches and len(running) < self.engine.ahead:
                self._submit(running, batches.popleft())
            # In short waits, so that Ctrl-C is heard on every platform.
            done, _ = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            for future in done:
                self._take(running.pop(future), future)
            self._give_up_waiting(running, waited=not done)
            if not running:
                self.alone = None

    def _give_up_waiting(self, running: dict[Future[Batch], list[str]], *, waited: bool) -> None:
        """Take running batches for lost where a worker is dead and the pool waits on for it.

        A worker killed while it writes its result leaves half of it, and a pool of
        `concurrent.futures` waits for the other half for ever.
        """
        self.silent = self.silent + 1 if waited and running and self.engine.lost() else 0
        if self.silent < _SILENT:
            return
        self.silent = 0
        left = [name for names in running.values() for name in names]
        alone = self.alone if left == [self.alone] else None
        running.clear()
        self._renew()
        self.retried.update(dict.fromkeys(left))
        if alone is None:
            self.suspects.extend(left)
        else:
            self._died_alone(alone)

    def _died_alone(self, host: str) -> None:
        self.deaths[host] = self.deaths.get(host, 0) + 1
        if self.deaths[host] < MAX_DEATHS:
            self.suspects.append(host)
            return
        what = f"its worker died {counted(self.deaths[host], 'time')}"
        self._keep({host: error_state(host, what, self._known(host)).encode()})

    def _submit(self, running: dict[Future[Batch], list[str]], names: list[str]) -> None:
        running[self.engine.submit(self._jobs(names))] = names

    def _jobs(self, names: Sequence[str]) -> list[HostJob]:
        states = {name: self.read.pop(name) for name in names if name in self.read}
        if self.store is not None and (unread := [name for name in names if name not in states]):
            states.update(self.store.get(unread))
        return [
            HostJob(
                host=name, url=self.hosts[name], state=states.get(name), key=self.keys.get(name)
            )
            for name in names
        ]

    def _take(self, names: Sequence[str], future: Future[Batch]) -> None:
        try:
            batch = future.result()
        except Exception as error:
            self._lost(names, error)
            return
        self.in_vain = 0
        self.cpu_ns += batch.cpu_ns
        self.peaks[batch.worker] = max(batch.peak_rss_bytes, self.peaks.get(batch.worker, 0))
        self._keep(dict(zip(names, batch.states, strict=True)))

    def _lost(self, names: Sequence[str], error: Exception) -> None:
        """Run the hosts of a lost batch again, one at a time, until it is clear which it was."""
        died = self.engine.died(error)
        if died:
            self._renew()
        if died or len(names) > 1:
            self.retried.update(dict.fromkeys(names))
        host = names[0]
        # Beside others, nobody knows whose fault it was.
        if len(names) > 1 or (died and host != self.alone):
            self.suspects.extend(names)
            return
        if died:
            self._died_alone(host)
            return
        what = f"the worker failed: {error}"
        self._keep({host: error_state(host, what, self._known(host)).encode()})

    def _renew(self) -> None:
        self.in_vain += 1
        if self.in_vain > _IN_VAIN:
            raise HostError(
                f"{self.in_vain} workers died one after another",
                source=self.engine.name,
                hint="There may be too little memory: see --memory-limit and --workers.",
            )
        self.engine.renew()

    def _known(self, host: str) -> HostState | None:
        data = self.store.get([host]).get(host) if self.store is not None else None
        try:
            return decode_state(data, source=host) if data is not None else None
        except FormatError:
            return None

    def settle(self) -> None:
        """Count what was kept of the states that an interrupt met on their way to the store."""
        if self.store is None:
            return
        kept = self.store.get(list(self.keeping))
        self.encoded.update(self.keeping.items() & kept.items())

    def _keep(self, states: Mapping[str, bytes]) -> None:
        if self.store is not None:
            self.keeping = states
            self.store.put(states)
        self.encoded.update(states)
        for outline in map(outline_of, states.values()):
            self.entries += outline.new_entries
            self.failed += outline.verdict == Outcome.FAILED
        if self.progress is not None:
            self.progress(self._progress())

    def _progress(self) -> Progress:
        done, total = len(self.encoded), len(self.hosts)
        elapsed = max(time.monotonic() - self.began, 1e-9)
        return Progress(
            done=done,
            total=total,
            failed=self.failed,
            entries=self.entries,
            rate=done / elapsed,
            left_s=(total - done) * elapsed / done if done else None,
        )


def error_state(host: str, what: str, before: HostState | None) -> HostState:
    """Return the state of a host that could not be looked at; what was known of it stays."""
    import msgspec

    row = CheckRow("fleet", "fleet.worker", Outcome.FAILED, "a verdict", what, "", None)
    now = time.time_ns()
    if before is None:
        return HostState(host=host, verdict=Outcome.FAILED, attempted_ns=now, checks=(row,))
    return msgspec.structs.replace(
        before, verdict=Outcome.FAILED, attempted_ns=now, new_entries=0, checks=(row,)
    )
