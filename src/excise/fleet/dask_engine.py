"""Batches on a Dask cluster, through its executor.

Dask itself runs a batch again whose worker died, up to its `allowed-failures`. The policy goes once
to every worker, also to those that join later, as a plugin named by the policy's digest.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, Final

from distributed import Client, WorkerPlugin
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from excise.errors import HostError
from excise.evidence.policy import Policy
from excise.fleet.records import HostJob, Settings
from excise.fleet.worker import Batch, appraise_batch, forget_compiled, keep_compiled
from excise.units import counted

if TYPE_CHECKING:
    from distributed import Scheduler, Worker

CONNECT_S: Final = 30
_PLUGIN: Final = "excise-policy-"
_POLL_S: Final = 0.5
_AT_WORK: Final = ("running", "paused")
"""States of workers that answer; others are on their way in or out."""
_POLICIES_KEPT: Final = 4
"""Policies that a cluster keeps: it runs for months, and others may use it too."""
_INSTALL: Final = "pip install 'excise[fleet]'"
_LOST_HINT: Final = "The hosts done so far are kept; give the command again to go on."


class PolicyPlugin(WorkerPlugin):
    """Gives a worker the policy when it starts, or when it is there already.

    Args:
        digest: The policy's digest, which also names the plugin.
        compiled: The policy's compiled form.
    """

    idempotent = True

    def __init__(self, digest: str, compiled: bytes) -> None:
        self.name = _PLUGIN + digest
        self._digest = digest
        self._compiled = compiled

    def setup(self, worker: Worker) -> None:  # noqa: ARG002  as Dask calls it
        """Compile nothing, load once, share with every batch."""
        keep_compiled(self._digest, self._compiled)

    def teardown(self, worker: Worker) -> None:  # noqa: ARG002  as Dask calls it
        """Keep the policy no longer."""
        forget_compiled(self._digest)


class DaskEngine:
    """Runs batches on the workers of a Dask scheduler.

    Args:
        address: Its address, such as `tcp://10.0.0.1:8786`.
    """

    is_here = False

    def __init__(self, address: str) -> None:
        self._address = address
        self._settings = Settings()
        self._client: Any = None
        self._executor: Any = None
        self.slots = 1
        self.ahead = 2
        self.name = f"Dask at {address}"

    def expect_short(self, hosts: int) -> None:
        """Do nothing: its workers run already."""

    def start(self, *, settings: Settings, policy: Policy | None) -> None:
        """Connect, wait for a worker, and give every worker the policy.

        Raises:
            HostError: Nobody answers, no worker is there, or one has no or another excise.
        """
        self._settings = settings
        try:
            connect: Any = Client
            self._client = connect(self._address, timeout=CONNECT_S, set_as_default=False)
            self._client.wait_for_workers(1, timeout=CONNECT_S)
        except (OSError, TimeoutError, CommClosedError, ValueError, MemoryError) as error:
            self.stop()
            # What speaks another protocol is taken to announce a message of any length.
            said = "what answers is no scheduler" if isinstance(error, MemoryError) else error
            raise HostError(
                f"no Dask cluster with a worker answers ({said})",
                source=self._address,
                hint="Start `dask scheduler` there, and `dask worker ADDRESS` on every node.",
            ) from error
        try:
            self._wait_for_all()
            self._check_versions()
            if policy is not None:
                self._give(policy)
        except BaseException:
            self.stop()
            raise
        self.slots = max(1, sum(self._client.nthreads().values()))
        self.ahead = 2 * self.slots + 2
        self.name = f"Dask at {self._address}, {counted(self.slots, 'thread')}"
        self._executor = self._client.get_executor(pure=False)

    def _wait_for_all(self) -> None:
        """Wait until every worker answers or has left, since each is asked and told something.

        One that could not start, as where it lacks the excise of a policy that the cluster has,
        stays with its scheduler and never answers.

        Raises:
            HostError: One does neither.
        """
        end = time.monotonic() + CONNECT_S
        while others := self._not_at_work():
            if time.monotonic() > end:
                place, state = next(iter(others.items()))
                raise HostError(
                    f"worker {place} neither works nor leaves: it is {state}",
                    source=self._address,
                    hint=f"Its log says why. End it, or give it the same excise: {_INSTALL}",
                )
            time.sleep(_POLL_S)

    def _not_at_work(self) -> Mapping[str, str]:
        try:
            states: dict[str, str] = self._client.run_on_scheduler(worker_states)
        except (ImportError, AttributeError) as error:  # it could not even read the question
            raise HostError(
                f"the scheduler has no excise, or another ({error})",
                source=self._address,
                hint=f"Install the same excise there: {_INSTALL}",
            ) from error
        return {place: state for place, state in states.items() if state not in _AT_WORK}

    def _give(self, policy: Policy) -> None:
        """Give the policy to every worker that is there or will be, if they have it not yet."""
        held = self._client.run_on_scheduler(policies_of)
        if policy.digest in held:
            return
        self._client.register_plugin(PolicyPlugin(policy.digest, _compiled(policy)))
        for digest in held[: 1 - _POLICIES_KEPT]:
            self._client.unregister_worker_plugin(_PLUGIN + digest)

    def _check_versions(self) -> None:
        from excise import __version__

        hint = f"Install the same excise on every worker: {_INSTALL}"
        try:
            found = self._client.run(worker_version)
        except Exception as error:  # what a worker without excise makes of the question
            raise HostError(
                f"a worker has no excise ({error})", source=self._address, hint=hint
            ) from error
        others = {place: version for place, version in found.items() if version != __version__}
        if others:
            place, version = next(iter(others.items()))
            raise HostError(
                f"worker {place} has excise {version}, here is {__version__}",
                source=self._address,
                hint=hint,
            )

    def submit(self, jobs: Sequence[HostJob]) -> Future[Batch]:
        """Start a batch."""
        future: Future[Batch] = self._executor.submit(appraise_batch, jobs, settings=self._settings)
        return future

    def died(self, error: BaseException) -> bool:
        """Return whether the batch took its workers along.

        Raises:
            HostError: It is the scheduler that is gone.
        """
        if isinstance(error, CancelledError | CommClosedError):
            raise HostError(
                "the Dask scheduler has gone", source=self._address, hint=_LOST_HINT
            ) from error
        return isinstance(error, KilledWorker)

    def lost(self) -> bool:
        """Return False: the scheduler watches its workers."""
        return False

    def renew(self) -> None:
        """Do nothing: Dask's nannies start new workers."""

    def stop(self) -> None:
        """Give up what still runs, and leave the cluster as it is."""
        client, self._client = self._client, None
        if client is not None:
            client.close(timeout=5)


def policies_of(dask_scheduler: Scheduler) -> list[str]:
    """Return the digests of the policies that a scheduler gives its workers; runs there."""
    names = dask_scheduler.worker_plugins
    return [name.removeprefix(_PLUGIN) for name in names if name.startswith(_PLUGIN)]


def worker_states(dask_scheduler: Scheduler) -> dict[str, str]:
    """Return the state of each worker by its address; runs on the scheduler."""
    return {place: each.status.name for place, each in dask_scheduler.workers.items()}


def worker_version() -> str:
    """Return the version of excise where this runs."""
    from excise import __version__

    return __version__


def _compiled(policy: Policy) -> bytes:
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory(prefix="excise-fleet-") as folder:
        path = Path(folder, "policy")
        policy.save(path)
        return path.read_bytes()
