"""`selftest bench` as a capture: every start in its own process, in randomised blocks.

A run is one start; its child events are the self-tests in it, as the library announced them, and
the steps before the one that runs them. Every event has its start, so that what remains can be told
apart into before the first test, between tests, and after the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from excise import __version__
from excise.campaign.schedule import runs_of_block
from excise.campaign.selftest_subjects import Part, Subject
from excise.campaign.spec import TWIN_SUFFIX
from excise.capture.journal import Event, Record, Run, RunHead, Session
from excise.capture.manifest import Manifest
from excise.capture.store import Capture, new_id, now
from excise.clock import Clock
from excise.collect.host import boot_id, host_facts
from excise.collect.selftest.openssl import OFF
from excise.collect.selftest.tree import OnStep
from excise.errors import ExciseError

TWIN: Final = OFF + TWIN_SUFFIX


def run_bench(
    subjects: Sequence[Subject],
    path: Path,
    *,
    blocks: int,
    seed: int = 1,
    raw: Mapping[str, bytes] | None = None,
    on_step: OnStep | None = None,
) -> Path:
    """Measure every subject under all its configurations into a new capture.

    Args:
        subjects: What to start.
        path: Capture folder to make.
        blocks: Measured blocks; the first start of each configuration is one more, kept apart.
        seed: Seed of the order.
        raw: Further files to keep, by name.
        on_step: Called after each start with its task, starts done, and starts in all.

    Raises:
        OutputError: If the capture cannot be written.
    """
    per_block = sum(len(subject.measure) + 1 for subject in subjects)
    with Capture.create(path, _manifest(subjects, seed)) as capture:
        for subject in subjects:
            for name, data in subject.raw.items():
                capture.add_raw(f"{subject.version}-{name}", data)
        for name, data in (raw or {}).items():
            capture.add_raw(name, data)
        capture.append(_session("started", 0))
        sequence = done = 0
        for block in range(blocks + 1):
            for subject, head in _block(subjects, block, seed):
                arm = OFF if head.configuration == TWIN else head.configuration
                records = _records(subject.measure[arm], subject.name, head, sequence)
                capture.extend(records)
                sequence += sum(isinstance(each, Run) for each in records)
                done += 1
                if on_step is not None:
                    on_step(subject.name, done, per_block * (blocks + 1))
        capture.append(_session("finished", sequence))
    return path


def _block(subjects: Sequence[Subject], block: int, seed: int) -> Iterator[tuple[Subject, RunHead]]:
    """Yield the starts of a block; the subjects in turn, each one's configurations at random."""
    for subject in subjects:
        arms = [*subject.measure]
        arms.insert(arms.index(OFF) + 1, TWIN)
        for head in runs_of_block(block, tasks=[subject.name], arms=arms, seed=seed, warmup=0):
            yield subject, head


def _records(
    measure: Callable[[], list[Part]], task: str, head: RunHead, sequence: int
) -> list[Record]:
    try:
        parts = measure()
    except ExciseError as error:
        failed = Part(task=task, wall_ns=0, start_ns=0, events=(), ok=False, error=str(error))
        parts = [failed]
    records: list[Record] = []
    for number, part in enumerate(parts):
        at = sequence + number
        records.append(
            Run(
                sequence=at,
                block=head.block,
                task=part.task,
                configuration=head.configuration,
                run=head.run,
                phase=head.phase,
                start_ns=part.start_ns,
                wall_ns=part.wall_ns if part.ok else None,
                ok=part.ok,
                error=part.error,
            )
        )
        records.extend(_at(event, at) for event in part.events)
    return records


def _at(event: Event, sequence: int) -> Event:
    from msgspec.structs import replace

    return replace(event, sequence=sequence)


def _manifest(subjects: Sequence[Subject], seed: int) -> Manifest:
    arms = list(dict.fromkeys(name for subject in subjects for name in subject.measure))
    return Manifest(
        id=new_id(),
        created=now(),
        title="Self-tests at the start of "
        + ", ".join(f"{subject.library} {subject.version}" for subject in subjects),
        origin="measured",
        excise_version=__version__,
        baseline=OFF,
        twin=TWIN,
        paired=True,
        seed=seed,
        campaign={
            "selftest": "bench",
            "configurations": [{"name": name} for name in arms],
            "tasks": [{"name": subject.name} for subject in subjects],
        },
        host_facts=[*host_facts(), *(fact for subject in subjects for fact in subject.facts)],
        clocks=[Clock(name="CLOCK_MONOTONIC_RAW", resolution_ns=1.0)],
        notes=[note for subject in subjects for note in subject.notes],
    )


def _session(state: str, runs: int) -> Session:
    import msgspec

    return msgspec.convert(
        {
            "kind": "session",
            "state": state,
            "at": now(),
            "runs_done": runs,
            "excise_version": __version__,
            "boot_id": boot_id(),
        },
        type=Session,
    )
