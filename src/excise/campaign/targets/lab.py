"""Guests of the lab as a target: a visit is a guest, booted, measured and thrown away."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from excise.campaign.child_events import raw_name
from excise.campaign.schedule import Visit
from excise.campaign.spec import Campaign, Task
from excise.campaign.target_spec import LabTarget
from excise.campaign.targets import guests
from excise.campaign.targets.guests import PlannedGuest
from excise.capture.journal import Effect, Event, Loss, Record, Run
from excise.capture.manifest import Fact
from excise.capture.store import Capture
from excise.clock import Clock
from excise.collect.host import host_facts
from excise.collect.probe import probe_path
from excise.collect.waiting import first_of
from excise.errors import EffectError, ExciseError
from excise.lab import kernels
from excise.lab.effects import require_effects
from excise.lab.jobs import GuestFailure, run_job
from excise.lab.kernel import Kernel
from excise.lab.processes import require
from excise.lab.record import boot_of, machine_facts, no_results, raw_files
from excise.lab.result import GuestResult, clock_of, file_safe, run_of
from excise.lab.run import choose_accelerator

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener


def _tell_nobody(_configuration: str, _stage: str) -> None:
    """Take notice of nothing."""


class LabCampaignTarget:
    """Guests under QEMU; see `excise.campaign.targets.Target`."""

    def __init__(
        self, campaign: Campaign, *, spec: LabTarget, jobs: int, on_stage: StageListener | None
    ) -> None:
        self._campaign = campaign
        self._spec = spec
        self._jobs = jobs
        self._on_stage = on_stage
        self._kernels: list[Kernel] = []

    def require(self) -> None:
        """Refuse keys that mean nothing here, and fetch the kernels."""
        guests.check_spec(self._campaign, self._spec)
        probe_path()
        for program in ("qemu-system-x86_64", "setpriv", "prlimit"):
            require(program)
        if self._spec.machine.mode == "tpm":
            require("swtpm")
        pairs = guests.kernels_of(self._campaign, self._spec)
        tell = self._on_stage or _tell_nobody
        tell("kernels", "fetch")
        self._kernels = [kernels.resolve(name, modules=modules) for name, modules in pairs]
        tell("kernels", "done")

    def host_facts(self) -> list[Fact]:
        """Return facts of the guests; of this host only where times depend on it."""
        machine = self._spec.machine
        releases = ", ".join(kernel.release for kernel in self._kernels)
        packages = ", ".join(kernel.package for kernel in self._kernels if kernel.package)
        return [
            *machine_facts(machine, clock=self._clock()),
            Fact(name="lab.kernel.release", value=releases, must_agree=True),
            Fact(name="lab.kernel.package", value=packages, must_agree=True),
            *guests.rules_facts(self._campaign),
            *([] if machine.mode == "count" else host_facts()),
        ]

    def clocks(self) -> list[Clock]:
        """Return the guests' clock."""
        return [Clock(name=self._clock())]

    def notes(self) -> list[str]:
        """Say of which clock the figures are."""
        return [f"Figures are {self._clock()}."]

    def _clock(self) -> str:
        machine = self._spec.machine
        return clock_of(machine, accelerator=choose_accelerator(machine, kernel=self._kernels[0]))

    @contextmanager
    def session(self, capture: Capture) -> Iterator[LabSession]:
        """Have threads ready for guests; every guest is ended on the way out."""
        session = LabSession(
            self._campaign, capture, spec=self._spec, jobs=self._jobs, on_stage=self._on_stage
        )
        try:
            yield session
        finally:
            session.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Visited:
    """What a visit gave: runs that are in the journal, or why the work cannot go on."""

    runs: list[Run]
    failure: ExciseError | None = None


class LabSession:
    """One span of work with guests; see `excise.campaign.targets.TargetSession`.

    Guests run in threads of their own, so that an interrupt reaches the thread that waits for them.
    """

    boot_id = ""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        spec: LabTarget,
        jobs: int,
        on_stage: StageListener | None,
    ) -> None:
        self._campaign = campaign
        self._capture = capture
        self._spec = spec
        self._tell = on_stage or _tell_nobody
        self._jobs = jobs
        self._pool = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="guest")
        self._end = threading.Event()
        self._writing = threading.Lock()
        self._running: set[Future[_Visited]] = set()
        self._told: set[Effect] = set()
        self._stopping = False

    def prove(self) -> list[Effect]:
        """Return nothing: each guest proves its configuration itself, before its runs count."""
        return []

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the lab has chosen, the same everywhere."""
        return guests.calibrated(task)

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Boot a guest for each visit, as many at a time as there are jobs.

        A guest that fails does not touch the others. Where each arm has one guest the error is
        raised at the end; where arms are booted in every block, a configuration that did not take
        effect, or a failure in the first block, stops the work, and later ones are failed runs.
        """
        waiting = iter(visits)
        failure: ExciseError | None = None
        while True:
            while (failure is None or self._spec.entry == "once") and (
                len(self._running) < self._jobs
            ):
                visit = next(waiting, None)
                if visit is None:
                    break
                self._running.add(self._pool.submit(self._visit, visit, operations))
            if not self._running:
                break
            visited = self._next()
            yield from visited.runs
            failure = failure or visited.failure
        if failure is not None:
            raise failure

    def stop(self) -> list[Run]:
        """Let guests in progress finish and return their runs; called again, end them."""
        if self._stopping:
            self._end.set()
        self._stopping = True
        found: list[Run] = []
        while self._running:
            found += self._next().runs
        return found

    def close(self) -> None:
        """End every guest and its thread."""
        self._end.set()
        self._pool.shutdown(cancel_futures=True)

    def _next(self) -> _Visited:
        """Wait for a guest to end."""
        future: Future[_Visited] = first_of(self._running).pop()
        self._running.discard(future)
        return future.result()

    def _visit(self, visit: Visit, operations: Mapping[str, int]) -> _Visited:
        """Plan, boot and record a guest. Here no interrupt strikes between the last two."""
        guest = guests.planned_guest(
            self._campaign,
            self._spec,
            visit,
            operations=operations,
            qualifying_data=self._nonce(visit) if self._spec.quote else None,
        )
        outcome = run_job(
            guest.job, on_stage=lambda stage: self._tell(visit.arm, stage), stop=self._end
        )
        with self._writing:
            if isinstance(outcome, GuestFailure):
                return self._failed(guest, outcome)
            try:
                return _Visited(runs=self._record(guest, outcome))
            except EffectError as error:
                return _Visited(runs=[], failure=error)

    def _failed(self, guest: PlannedGuest, outcome: GuestFailure) -> _Visited:
        """Write what became of a guest without results; tell whether the work must end."""
        error = outcome.error
        if self._end.is_set():
            return _Visited(runs=[], failure=error)  # ended by us: nothing is lost
        once = self._spec.entry == "once"
        if once or isinstance(error, EffectError) or guest.visit.heads[0].block == 0:
            self._capture.append(no_results(outcome))
            return _Visited(runs=[], failure=error)
        runs = [
            Run(**msgspec.structs.asdict(head), ok=False, error=str(error))
            for head in guest.visit.heads
        ]
        self._capture.extend(list(runs))
        return _Visited(runs=runs)

    def _nonce(self, visit: Visit) -> bytes:
        text = f"{self._capture.manifest.id}:{visit.heads[0].block}:{visit.arm}"
        return hashlib.sha256(text.encode()).digest()

    def _record(self, guest: PlannedGuest, result: GuestResult) -> list[Run]:
        """Write a guest: raw files first, then its effects, runs and events in one piece.

        Raises:
            EffectError: If one of the campaign's own checks failed; the effects are written.
        """
        effects = guest.effects(result)
        fresh: list[Record] = [each for each in effects if each not in self._told]
        self._told |= set(effects)
        failed = [each for each in effects if each.outcome == "FAILED"]
        if failed:
            self._capture.extend(fresh)
            require_effects(effects, configuration=guest.visit.arm, kernel=result.kernel.release)
        self._keep_files(guest, result)
        records = list(self._records(guest, result))
        self._capture.extend([*fresh, *records])
        return [record for record in records if isinstance(record, Run)]

    def _records(self, guest: PlannedGuest, result: GuestResult) -> Iterator[Run | Event | Loss]:
        recorded = guest.visit.recorded
        for head in guest.boots:
            if head.sequence not in recorded:
                yield from boot_of(result, head=head)
        for head, step in zip(guest.heads, result.steps, strict=True):
            if head.sequence not in recorded:
                run = run_of(result, step, head=head)
                ok = run.exit_code in self._campaign.task(head.task).expect
                yield msgspec.structs.replace(run, ok=ok)

    def _keep_files(self, guest: PlannedGuest, result: GuestResult) -> None:
        first = next(h for h in guest.visit.heads if h.sequence not in guest.visit.recorded)
        base = f"{file_safe(guest.visit.arm)}.b{first.block}"
        files = {f"{base}.{name}": data for name, data in raw_files(result).items()}
        for head, step in zip(guest.heads, result.steps, strict=True):
            if self._campaign.task(head.task).events and head.sequence not in guest.visit.recorded:
                files[raw_name(head.sequence)] = step.stdout
        for name, data in files.items():
            self._capture.replace_raw(name, data)
