"""What runs in a worker, whoever started it: some hosts with one shared policy.

A worker gets hosts and gives back encoded states; it keeps nothing but policies, by their digest.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from excise.errors import FormatError
from excise.evidence.policy import Policy
from excise.fleet.records import HostJob, Settings

_policies: dict[str, Policy] = {}
_compiled: dict[str, bytes] = {}
_POLICIES_KEPT: Final = 2
_LEADERS_SIGNALS: Final = frozenset({signal.SIGINT, signal.SIGTERM})
_LEAST_BYTES: Final = 8 << 20
"""Memory without which no list can be read."""
_FAR_AT_A_TIME: Final = 8
"""Hosts whose evidence a worker waits for at a time, where it comes over a network."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Some hosts done.

    Attributes:
        states: Encoded state of each host, in the order asked.
        worker: Name of the worker.
        cpu_ns: Processor time that the hosts took.
        peak_rss_bytes: Most memory the worker's process ever had.
    """

    states: tuple[bytes, ...]
    worker: str
    cpu_ns: int
    peak_rss_bytes: int


def appraise_batch(
    jobs: Sequence[HostJob], *, settings: Settings, policy_path: str | None = None
) -> Batch:
    """Return the new states of some hosts.

    Args:
        jobs: The hosts.
        settings: How they are judged.
        policy_path: Where the compiled policy is, if this worker does not have it yet.
    """
    from excise.fleet.grown import follow_hosts
    from excise.fleet.host import appraise_host
    from excise.fleet.places import folder_at, forget_stores

    forget_stores()
    far = bool(jobs) and all(folder_at(job.url).is_far for job in jobs)
    clock = time.process_time_ns if far else time.thread_time_ns
    began = clock()
    policy = _policy(settings, policy_path)

    def appraise(job: HostJob) -> bytes:
        return appraise_host(job, policy=policy, settings=settings).encode()

    if far:
        with ThreadPoolExecutor(_FAR_AT_A_TIME) as threads:
            states = tuple(threads.map(appraise, jobs))
    else:
        found = follow_hosts(jobs, policy=policy, settings=settings)
        states = tuple(state or appraise(job) for job, state in zip(jobs, found, strict=True))
    return Batch(
        states=states,
        worker=worker_name(),
        cpu_ns=clock() - began,
        peak_rss_bytes=peak_rss_bytes(),
    )


def prepare(settings: Settings, policy_path: str | None, *, roomy: bool = False) -> None:
    """Load what every batch needs, so that a worker that cannot is known before it gets a host.

    Args:
        settings: How hosts are judged.
        policy_path: Where the compiled policy is.
        roomy: Whether there surely is the memory that a list takes.
    """
    import excise.fleet.host  # noqa: F401

    _policy(settings, policy_path)
    if not roomy:
        bytearray(_LEAST_BYTES)


def keep_policy(policy: Policy) -> None:
    """Keep a policy for the batches that name its digest."""
    while len(_policies) >= _POLICIES_KEPT and policy.digest not in _policies:
        _policies.pop(next(iter(_policies)))
    _policies[policy.digest] = policy


def keep_compiled(digest: str, compiled: bytes) -> None:
    """Keep a policy's compiled form, and load it."""
    _compiled[digest] = compiled
    keep_policy(_loaded(digest, compiled))


def forget_compiled(digest: str) -> None:
    """Keep a policy no longer."""
    _compiled.pop(digest, None)
    _policies.pop(digest, None)


def _policy(settings: Settings, path: str | None) -> Policy | None:
    digest = settings.policy_digest
    if digest is None:
        return None
    if digest not in _policies:
        source = Path(path) if path is not None else _compiled.get(digest)
        if source is None:
            raise FormatError(f"this worker has no policy {digest}", source="policy")
        keep_policy(_loaded(digest, source))
    return _policies[digest]


def _loaded(digest: str, source: Path | bytes) -> Policy:
    loaded = Policy.load(source)
    if loaded.digest != digest:
        raise FormatError(f"has digest {loaded.digest}, not {digest}", source="policy")
    return loaded


def worker_name() -> str:
    """Return the name of this process among those of a cluster."""
    return f"{os.uname().nodename}:{os.getpid()}"


def peak_rss_bytes() -> int:
    """Return the most memory this process ever had; a child's rusage would have its parent's."""
    _, found, rest = Path("/proc/self/status").read_bytes().partition(b"VmHWM:")
    if found:
        return int(rest.split(maxsplit=1)[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def start_together() -> Iterator[None]:
    """Hold back the leader's signals while it is forked, until `start_worker` has settled them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _LEADERS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_worker(memory_limit_bytes: int | None) -> None:
    """Prepare a process of a pool: Ctrl-C is its leader's, and its memory is bounded.

    Args:
        memory_limit_bytes: Most private memory; beyond it a host ends in an error of its own.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEADERS_SIGNALS)
    # What is there already stays: looking for garbage in it would only copy the leader's memory.
    gc.freeze()
    threading.Thread(target=_end_with_leader, daemon=True).start()
    if memory_limit_bytes is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_limit_bytes, memory_limit_bytes))


def _end_with_leader() -> None:
    """End this process when its leader was killed: the pool itself would wait for ever."""
    leader = multiprocessing.parent_process()
    if leader is not None:
        leader.join()
        os._exit(1)
