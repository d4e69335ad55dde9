"""Where batches of hosts run: in this process, in a pool of processes, or on a Dask cluster.

An engine is an executor of `concurrent.futures`, and what to do when a worker of it dies.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final, Protocol

from excise.errors import HostError, UsageError
from excise.evidence.policy import Policy
from excise.fleet.records import HostJob, Settings
from excise.fleet.worker import (
    Batch,
    appraise_batch,
    keep_policy,
    prepare,
    start_together,
    start_worker,
)
from excise.units import counted

DEFAULT_MEMORY_BYTES: Final = 2 << 30
"""Private memory a worker of a pool may have; a list of any length takes some tens of MiB."""
_MANAGER_END_S: Final = 2.0
_HOSTS_A_PROCESS: Final = 500
"""Hosts of a short round that take about as long as starting a process for them."""
_FORKED_BYTES: Final = 512 << 20
"""Private memory beside which that of the leader does not count."""
_STARTS: Final = 5
_PAUSE_S: Final = 0.2


class Engine(Protocol):
    """What runs batches."""

    @property
    def name(self) -> str:
        """What it is, in words."""

    @property
    def slots(self) -> int:
        """Batches that run at a time."""

    @property
    def is_here(self) -> bool:
        """Whether it is this machine's: what it reads, its leader can read as well."""

    @property
    def ahead(self) -> int:
        """Batches to have submitted at a time, so that no slot waits."""

    def expect_short(self, hosts: int) -> None:
        """Be told before the start that hosts will take so little that starting counts."""

    def start(self, *, settings: Settings, policy: Policy | None) -> None:
        """Make ready; HostError if it cannot be."""

    def submit(self, jobs: Sequence[HostJob]) -> Future[Batch]:
        """Start a batch."""

    def died(self, error: BaseException) -> bool:
        """Return whether an error says that the worker died and not what it found."""

    def lost(self) -> bool:
        """Return whether a worker is dead whose batch may never end by itself."""

    def renew(self) -> None:
        """Be ready for batches again after a worker died."""

    def stop(self) -> None:
        """Give up what still runs."""


class InlineEngine:
    """Runs every batch in this process, one after another; a crash of a reader takes it along."""

    name = "this process"
    slots = 1
    ahead = 1
    is_here = True

    def __init__(self) -> None:
        self._settings = Settings()

    def expect_short(self, hosts: int) -> None:
        """Do nothing: it is started."""

    def start(self, *, settings: Settings, policy: Policy | None) -> None:
        """Keep the settings and the policy."""
        self._settings = settings
        if policy is not None:
            keep_policy(policy)

    def submit(self, jobs: Sequence[HostJob]) -> Future[Batch]:
        """Run a batch and return it done."""
        done: Future[Batch] = Future()
        try:
            done.set_result(appraise_batch(jobs, settings=self._settings))
        except Exception as error:  # it is the future's, as with any executor
            done.set_exception(error)
        return done

    def died(self, error: BaseException) -> bool:  # noqa: ARG002  as the protocol has it
        """Return False: nobody would be there to ask."""
        return False

    def lost(self) -> bool:
        """Return False: it runs."""
        return False

    def renew(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing: nothing runs."""


class PoolEngine:
    """Runs batches in processes of this machine.

    Args:
        workers: Number of processes.
        memory_limit_bytes: Private memory that each may have; None for no bound.

    Attributes:
        work: What a process does with a batch.
    """

    work = staticmethod(appraise_batch)
    is_here = True

    def __init__(
        self, workers: int, *, memory_limit_bytes: int | None = DEFAULT_MEMORY_BYTES
    ) -> None:
        self.slots = workers
        self.ahead = 2 * workers
        self.name = f"a pool of {counted(workers, 'process', 'processes')}"
        self._memory_limit_bytes = memory_limit_bytes
        self._settings = Settings()
        self._policy: Policy | None = None
        self._policy_path: str | None = None
        self._short = False
        self._scratch = contextlib.ExitStack()
        self._pool: ProcessPoolExecutor | None = None

    def expect_short(self, hosts: int) -> None:
        """Start no more processes than are worth it, and in the cheapest way."""
        self._short = True
        self.slots = max(1, min(self.slots, hosts // _HOSTS_A_PROCESS))
        self.ahead = 2 * self.slots
        self.name = f"a pool of {counted(self.slots, 'process', 'processes')}"

    def start(self, *, settings: Settings, policy: Policy | None) -> None:
        """Start the processes, with the compiled policy where every one finds it."""
        self._settings, self._policy = settings, policy
        self.renew()

    def submit(self, jobs: Sequence[HostJob]) -> Future[Batch]:
        """Start a batch; one that cannot be started because the pool broke comes back broken."""
        if self._pool is None:
            raise HostError("the pool was not started")
        try:
            return self._pool.submit(
                self.work, jobs, settings=self._settings, policy_path=self._policy_path
            )
        except (BrokenProcessPool, OSError, EOFError) as error:
            broken: Future[Batch] = Future()
            broken.set_exception(BrokenProcessPool(str(error)))
            return broken

    def died(self, error: BaseException) -> bool:
        """Return whether the pool broke."""
        return isinstance(error, BrokenProcessPool)

    def renew(self) -> None:
        """Start new processes in place of those of a broken pool.

        Raises:
            HostError: They cannot be started.
        """
        for _ in range(_STARTS):
            self._kill()
            try:
                self._wait_for(self._started())
            except (OSError, EOFError):
                # What forks them was killed, and starts anew once that is noticed.
                time.sleep(_PAUSE_S)
            except (BrokenProcessPool, MemoryError):
                break
            else:
                return
        raise HostError(
            "its processes die before they have done anything",
            source=self.name,
            hint="There may be too little memory: see --memory-limit and --workers.",
        )

    def _started(self) -> Future[None]:
        """Start a pool; return what its first process is asked to do."""
        if self._may_fork():
            if self._policy is not None:
                keep_policy(self._policy)
            with start_together():
                return self._pool_of("fork").submit(prepare, self._settings, None, roomy=True)
        if self._policy is not None and self._policy_path is None:
            folder = self._scratch.enter_context(
                tempfile.TemporaryDirectory(prefix="excise-fleet-")
            )
            path = Path(folder, self._policy.digest)
            self._policy.save(path)
            self._policy_path = str(path)
        # Forked from a process that has imported everything once, and that has no threads.
        multiprocessing.get_context("forkserver").set_forkserver_preload(
            ["__main__", "excise.fleet.host"]
        )
        return self._pool_of("forkserver").submit(prepare, self._settings, self._policy_path)

    def _may_fork(self) -> bool:
        """Return whether this process itself can be forked: what starts others takes 0.2 s.

        Another thread (of Polars, of a progress bar) may hold a lock that its copy never gets.
        """
        limit = self._memory_limit_bytes
        if not self._short or (limit is not None and limit < _FORKED_BYTES):
            return False
        try:
            return sum(1 for _ in Path("/proc/self/task").iterdir()) == 1
        except OSError:
            return False

    def _pool_of(self, method: str) -> ProcessPoolExecutor:
        self._pool = ProcessPoolExecutor(
            self.slots,
            mp_context=multiprocessing.get_context(method),
            initializer=start_worker,
            initargs=(self._memory_limit_bytes,),
        )
        return self._pool

    def _wait_for(self, future: Future[None]) -> None:
        """Wait until a future is done, or the pool has nobody left who would finish it."""
        while not wait([future], timeout=_MANAGER_END_S).done:
            manager = getattr(self._pool, "_executor_manager_thread", None)
            if manager is not None and not manager.is_alive() and not future.done():
                raise BrokenProcessPool("the pool's own thread has ended")
        future.result()

    def lost(self) -> bool:
        """Return whether a process of the pool is dead, whether the pool knows it or not."""
        processes = (getattr(self._pool, "_processes", None) or {}).values()
        return any(process.exitcode is not None for process in processes)

    def pids(self) -> tuple[int, ...]:
        """Return the processes that run now."""
        processes = getattr(self._pool, "_processes", None) or {}
        return tuple(processes)

    def _kill(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        processes = list((getattr(pool, "_processes", None) or {}).values())
        results, calls = (getattr(pool, name, None) for name in ("_result_queue", "_call_queue"))
        manager = getattr(pool, "_executor_manager_thread", None)
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        # The pool's thread closes pipes as it ends. Closed here at the same time, one of them is
        # closed twice, and the second time it may be a pipe of the next pool by the same number.
        if manager is not None:
            manager.join(timeout=_MANAGER_END_S)
            if not manager.is_alive():
                return
        # A worker killed while it writes leaves half a result. The pool's thread waits for the
        # rest as long as this process holds the other end of the pipe, also at exit.
        for end in (getattr(calls, "_reader", None), getattr(results, "_writer", None)):
            if end is not None:
                end.close()
        if manager is not None:
            manager.join(timeout=_MANAGER_END_S)

    def stop(self) -> None:
        """End the processes, whatever they are at, and remove the policy's copy."""
        self._kill()
        self._scratch.close()


def engine_for(
    places: Iterable[str],
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    memory_limit_bytes: int | None = DEFAULT_MEMORY_BYTES,
) -> Engine:
    """Return the engine that a user asked for; it is not started.

    Args:
        places: Paths and URLs that its workers have to read.
        scheduler: Address of a Dask scheduler; None for this machine.
        workers: Processes of a pool; 0 for this process alone, None for one a processor.
        memory_limit_bytes: Private memory that each process of a pool may have.

    Raises:
        UsageError: These do not go together.
    """
    if workers != 0 and any(place.startswith("memory://") for place in places):
        raise UsageError(
            "memory:// is known to this process alone", hint="Use --workers 0 with it."
        )
    if scheduler is not None:
        if workers is not None:
            raise UsageError("--workers is of the pool; a Dask cluster has its own")
        from excise.fleet.dask_engine import DaskEngine

        return DaskEngine(scheduler)
    count = len(os.sched_getaffinity(0)) if workers is None else workers
    return PoolEngine(count, memory_limit_bytes=memory_limit_bytes) if count else InlineEngine()
