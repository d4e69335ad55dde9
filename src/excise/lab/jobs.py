"""Several guests: one after another or a few at a time, one's failure never another's loss."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from excise.collect.waiting import result_of
from excise.errors import ExciseError
from excise.lab.configurations import Preset
from excise.lab.machine import Machine
from excise.lab.plan import Plan
from excise.lab.result import GuestResult
from excise.lab.run import run_guest


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestJob:
    """One guest to run.

    Attributes:
        configuration: Name of its results.
        qualifying_data: Asks for a TPM quote that signs this; None for no quote.
    """

    configuration: str
    machine: Machine
    preset: Preset
    plan: Plan
    qualifying_data: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestFailure:
    """A guest that gave no results, and why."""

    configuration: str
    error: ExciseError


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a list of guests has come: called at each stage of each guest.

    Attributes:
        configuration: The guest that has news.
        stage: Its stage, `done` or `failed` at its end.
        done: Guests that have ended.
        total: Guests in all.
    """

    configuration: str
    stage: str
    done: int
    total: int


def run_job(
    job: GuestJob, *, on_stage: Callable[[str], None], stop: threading.Event
) -> GuestResult | GuestFailure:
    """Run one guest; return its result, or why it gave none.

    Args:
        job: The guest.
        on_stage: Called with the name of each stage, `prepare` first.
        stop: Ends the guest when it is set, from another thread.
    """
    on_stage("prepare")
    try:
        return run_guest(
            job.machine,
            preset=job.preset,
            plan=job.plan,
            configuration=job.configuration,
            qualifying_data=job.qualifying_data,
            on_stage=on_stage,
            stop=stop,
        )
    except ExciseError as error:
        return GuestFailure(configuration=job.configuration, error=error)


def run_all(
    jobs: Sequence[GuestJob],
    *,
    parallel: int = 1,
    kept: Mapping[str, GuestResult] = {},
    on_progress: Callable[[Progress], None] = lambda _: None,
    on_result: Callable[[GuestResult | GuestFailure], None] = lambda _: None,
) -> list[GuestResult | GuestFailure]:
    """Run every guest and return its result or its failure, in the order of the jobs.

    A guest that fails does not stop the others. Ctrl-C ends all guests that run.

    Args:
        jobs: Guests to run.
        parallel: How many at a time. Counts do not depend on it; times do.
        kept: Results of guests that ran before, by configuration: they do not run again.
        on_progress: Called at each stage.
        on_result: Called with each new result as soon as it is there, from one thread at a time;
            not with guests that an interrupt ended.
    """
    lock, stop = threading.Lock(), threading.Event()
    ended = sum(job.configuration in kept for job in jobs)

    def report(job: GuestJob, stage: str) -> None:
        with lock:
            on_progress(
                Progress(configuration=job.configuration, stage=stage, done=ended, total=len(jobs))
            )

    def run_one(job: GuestJob) -> GuestResult | GuestFailure:
        nonlocal ended
        if job.configuration in kept:
            return kept[job.configuration]
        outcome = run_job(job, on_stage=lambda stage: report(job, stage), stop=stop)
        with lock:
            ended += 1
            if not (stop.is_set() and isinstance(outcome, GuestFailure)):
                on_result(outcome)
        report(job, "failed" if isinstance(outcome, GuestFailure) else "done")
        return outcome

    if parallel == 1:
        return [run_one(job) for job in jobs]
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        try:
            futures = [pool.submit(run_one, job) for job in jobs]
            return [result_of(future) for future in futures]
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
