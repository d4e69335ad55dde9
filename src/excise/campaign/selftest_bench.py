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
from excise.campaign.earlier import require_same, require_unfinished
from excise.campaign.schedule import runs_of_block
from excise.campaign.selftest_subjects import Part, Subject
from excise.campaign.spec import TWIN_SUFFIX
from excise.capture.journal import Event, Record, Run, RunHead, Session
from excise.capture.manifest import Manifest
from excise.capture.store import Capture, new_id, now, require_free
from excise.clock import Clock
from excise.collect.host import boot_id, host_facts
from excise.collect.selftest.openssl import OFF
from excise.collect.selftest.tree import OnStep
from excise.errors import ExciseError, OutputError
from excise.events.dataset import Dataset

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
    """Measure every subject under all its configurations, or go on with what was interrupted.

    Args:
        subjects: What to start.
        path: Capture folder to make, or that of an interrupted bench of the same subjects.
        blocks: Measured blocks; the first start of each configuration is one more, kept apart.
        seed: Seed of the order.
        raw: Further files to keep, by name.
        on_step: Called after each start with its task, starts done, and starts in all.

    Raises:
        OutputError: If the capture cannot be written, is complete, or is of something else.
    """
    per_block = sum(len(subject.measure) + 1 for subject in subjects)
    manifest = _manifest(subjects, seed)
    earlier = _interrupted(path, manifest)
    with Capture.open(path) if earlier else Capture.create(path, manifest) as capture:
        if earlier is None:
            for subject in subjects:
                for name, data in subject.raw.items():
                    capture.add_raw(f"{subject.version}-{name}", data)
            for name, data in (raw or {}).items():
                capture.add_raw(name, data)
        made, sequence = _made(earlier)
        capture.append(_session("resumed" if earlier else "started", sequence))
        try:
            for block in range(blocks + 1):
                for number, (subject, head) in enumerate(_block(subjects, block, seed), start=1):
                    if (subject.name, head.configuration, block) in made:
                        continue
                    arm = OFF if head.configuration == TWIN else head.configuration
                    records = _records(subject.measure[arm], subject.name, head, sequence)
                    capture.extend(records)
                    sequence += sum(isinstance(each, Run) for each in records)
                    if on_step is not None:
                        done = block * per_block + number
                        on_step(subject.name, done, per_block * (blocks + 1))
        except KeyboardInterrupt:
            capture.append(_session("interrupted", sequence))
            raise
        capture.append(_session("finished", sequence))
    return path


def require_place_or_unfinished(path: Path, *, hint: str) -> None:
    """Check, before anything is looked for, that a bench can be made at a path, or go on there.

    Args:
        path: The capture's folder.
        hint: What to do where something else is there.

    Raises:
        OutputError: If it cannot.
    """
    if require_unfinished(path, is_kin=_is_bench) is None:
        require_free(path, hint=hint)


def _is_bench(manifest: Manifest) -> bool:
    return (manifest.campaign or {}).get("selftest") == "bench"


def _interrupted(path: Path, manifest: Manifest) -> Dataset | None:
    """Return what an interrupted bench of the same subjects has measured, or None.

    Raises:
        OutputError: There is something else, or it is complete.
    """
    found = require_unfinished(path, is_kin=_is_bench)
    if found is None:
        return None
    if found.manifest.campaign != manifest.campaign:
        raise OutputError(
            "is of other libraries or configurations",
            source=str(path),
            hint="Give another path with -o, or --force to replace it",
        )
    require_same(found, manifest, path=path, subject="library")
    return found


def _made(earlier: Dataset | None) -> tuple[set[tuple[str, str, int]], int]:
    """Return the starts that were made, by task, configuration and block, and the next number."""
    if earlier is None or not earlier.runs.height:
        return set(), 0
    rows = earlier.runs.select("task", "configuration", "block", "sequence").rows()
    return {(task, arm, block) for task, arm, block, _ in rows}, 1 + max(row[3] for row in rows)


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
