"""Running a campaign into a capture: start, go on after anything, and always leave it readable.

What a machine is, and how a run on it comes about, is its target's: `excise.campaign.targets`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from excise import __version__
from excise.campaign import boot_state
from excise.campaign.child_events import collect_events, require_formats
from excise.campaign.schedule import visits
from excise.campaign.spec import Campaign, from_plain
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets import target_of
from excise.campaign.targets.model import StageListener, Target, TargetSession
from excise.capture.journal import Calibration, Effect, Run, Session
from excise.capture.manifest import Manifest
from excise.capture.store import (
    MANIFEST,
    Capture,
    journal_chunks,
    new_id,
    now,
    read_manifest,
    require_free,
)
from excise.collect.host import SET_AT_BOOT
from excise.cost.facts import disagreements
from excise.errors import CaptureError, EffectError, OutputError, Refused, UsageError
from excise.units import counted

_RUN_LINE: Final = b'\n{"kind":"run",'


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a campaign stands after a run.

    Attributes:
        done: Runs complete, including those of earlier sessions.
        total: Runs of the whole campaign.
        failed: Runs of this session that were not ok.
        run: The run that just ended.
    """

    done: int
    total: int
    failed: int
    run: Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """How a session ended.

    Attributes:
        done: Runs complete in the capture.
        total: Runs of the whole campaign.
        failed: Runs of this session that were not ok.
        interrupted: Whether the user stopped it before the end.
        goes_down: Whether this machine goes down now, and the campaign goes on when it is up.
    """

    path: Path
    done: int
    total: int
    failed: int
    interrupted: bool
    goes_down: bool = False


def run_campaign(
    campaign: Campaign,
    path: Path,
    *,
    jobs: int = 1,
    on_progress: Callable[[Progress], None] | None = None,
    on_stage: StageListener | None = None,
    on_interrupt: Callable[[], None] | None = None,
) -> Finished:
    """Run a campaign into a new capture, or go on with the one at `path`.

    A KeyboardInterrupt lets what is in progress finish, a run or a guest; a second one ends it.

    Args:
        campaign: What to run.
        path: Capture folder; when it exists it must hold the same campaign, and is resumed.
        jobs: Guests of the lab at a time.
        on_progress: Called after every run.
        on_stage: Called with (configuration, stage) as work on a target of stages advances.
        on_interrupt: Called when an interrupt is about to wait for what is in progress.

    Raises:
        OutputError: If `path` holds another campaign, is sealed, or cannot be written.
        Refused: If the capture was begun under other conditions, such as another kernel.
        EffectError: If a configuration did not take effect; nothing was measured under it.
        HostError: If a program is missing, the kernel lacks a mechanism, or a guest fails.
    """
    if not (path / MANIFEST).exists():
        require_free(path)
    target = target_of(campaign, jobs=jobs, on_stage=on_stage)
    _await_boot(campaign, path, on_stage)
    target.require()
    require_formats(campaign)
    with _opened(campaign, path, target) as (capture, done):
        session = _Session(campaign, capture, target, done, on_progress, on_interrupt)
        finished = session.execute()
    if finished.goes_down:
        from excise.campaign.targets.local_reboot import reboot_now

        reboot_now()
    return finished


def _await_boot(campaign: Campaign, path: Path, on_stage: StageListener | None) -> None:
    """Wait for a machine elsewhere that this campaign left in a boot; of another's know nothing."""
    spec = campaign.target
    if not (isinstance(spec, SshTarget) and spec.reboot and boot_state.is_on_its_way(path)):
        return
    if kept_campaign(path).target.measured == spec.measured:
        from excise.campaign.targets.awaiting import await_boot

        await_boot(campaign, path, on_stage=on_stage)


def kept_campaign(path: Path) -> Campaign:
    """Return the campaign that a capture was made by.

    Raises:
        UsageError: If it was made by none.
    """
    kept = read_manifest(path).campaign
    if "tasks" not in kept:
        raise UsageError("holds no campaign", source=str(path))
    return from_plain(kept, source=str(path / MANIFEST))


def resume_campaign(path: Path, **listeners: Any) -> Finished:
    """Go on with the campaign of a capture; what stops it is written beside its boots.

    Args:
        path: The capture.
        **listeners: As `run_campaign` takes them.

    Raises:
        ExciseError: As `run_campaign` does.
    """
    try:
        return run_campaign(kept_campaign(path), path, **listeners)
    except Exception as error:
        boot_state.note_stop(path, str(error) or type(error).__name__)
        raise


_Done = Collection[int] | int


@contextmanager
def _opened(campaign: Campaign, path: Path, target: Target) -> Iterator[tuple[Capture, _Done]]:
    """Give the capture, new or resumed, and the runs it already has."""
    if not (path / MANIFEST).exists():
        with Capture.create(path, _manifest(campaign, target)) as capture:
            yield capture, 0
        return
    with Capture.open(path) as capture:
        kept = capture.manifest.campaign
        if "tasks" not in kept:
            what = "what no campaign measured" if kept else "imported data, not a campaign"
            raise OutputError(f"holds {what}", source=str(path), hint="Give another path with -o")
        before = from_plain(kept, source=str(path / MANIFEST))
        differing = _differing_keys(before, campaign)
        longer = differing == ["blocks"] and campaign.blocks > before.blocks
        done = _recorded(campaign, path)
        if differing and not _count(done):
            # Nothing was measured, so nothing is lost: a campaign that was put right starts anew.
            capture.start_over(_manifest(campaign, target))
            yield capture, 0
            return
        if differing and not longer:
            raise OutputError(
                f"holds another campaign: {', '.join(differing)} differ",
                source=str(path),
                hint="Give another path with -o; the same campaign, or one of more blocks, goes on",
            )
        if _count(done) < campaign.runs:
            at_boot = campaign.target.entry == "boot"
            ignored = SET_AT_BOOT if at_boot else frozenset[str]()
            _require_same_conditions(capture.manifest, target, ignored, source=str(path))
        if longer:
            capture.replace_manifest(_extended(capture.manifest, before, campaign))
        elif before.target != campaign.target:
            kept = msgspec.to_builtins(campaign)
            capture.replace_manifest(msgspec.structs.replace(capture.manifest, campaign=kept))
        yield capture, done


def _recorded(campaign: Campaign, path: Path) -> _Done:
    """Return what the journal holds: how many of the first runs, or which runs."""
    if campaign.target.entry == "run":
        return completed_runs(path)
    return frozenset(run.sequence for run in _records(path, Run))


def runs_recorded(campaign: Campaign, path: Path) -> int:
    """Return how many runs of a campaign a capture holds."""
    return _count(_recorded(campaign, path))


def _count(done: _Done) -> int:
    return done if isinstance(done, int) else len(done)


def _differing_keys(before: Campaign, now: Campaign) -> list[str]:
    """Return the keys that differ, but for those that are in no figure."""
    same = {"sync_interval"}
    if before.target.measured == now.target.measured:
        same.add("target")
    keys = [name for name in Campaign.__struct_fields__ if name not in same]
    return [name for name in keys if getattr(before, name) != getattr(now, name)]


def _extended(manifest: Manifest, before: Campaign, now: Campaign) -> Manifest:
    """Return the manifest of a campaign that got more blocks; the order goes on as it would have.

    Blocks added until a difference shows would show one where there is none: it is noted.
    """
    note = (
        f"Extended from {before.blocks} to {counted(now.blocks, 'block')}. If that was decided "
        "after a look "
        "at the results, a difference just below the limit is less certain than it says."
    )
    return msgspec.structs.replace(
        manifest, campaign=msgspec.to_builtins(now), notes=[*manifest.notes, note]
    )


def completed_runs(path: Path) -> int:
    """Return how many runs a capture's journal holds; they are always the first ones in order.

    Raises:
        CaptureError: If a run is missing in between: then the journal was edited.
    """
    count, last = 0, -1
    for _, chunk in journal_chunks(path):
        whole = b"\n" + chunk[: chunk.rfind(b"\n") + 1]
        if starts := whole.count(_RUN_LINE):
            count += starts
            line = whole[whole.rfind(_RUN_LINE) + 1 :].partition(b"\n")[0]
            last = msgspec.json.decode(line, type=Run).sequence
    if last + 1 != count:
        raise CaptureError(
            f"its journal holds {counted(count, 'run')} but the last one has number {last}",
            source=str(path),
            hint="The journal was changed by hand; start a new capture",
        )
    return count


def _manifest(campaign: Campaign, target: Target) -> Manifest:
    return Manifest(
        id=new_id(),
        created=now(),
        title=campaign.title,
        origin="measured",
        excise_version=__version__,
        baseline=campaign.baseline_name,
        twin=campaign.twin_name,
        further_twins=campaign.twin_names[1:],
        paired=campaign.target.entry != "once",
        seed=campaign.seed,
        campaign=msgspec.to_builtins(campaign),
        host_facts=target.host_facts(),
        clocks=target.clocks(),
        notes=target.notes(),
    )


def _require_same_conditions(
    manifest: Manifest, target: Target, ignored: Collection[str], *, source: str
) -> None:
    """Refuse to go on where the machine is no longer what it was: one capture, one condition."""
    before, here = (
        msgspec.structs.replace(manifest, host_facts=[f for f in facts if f.name not in ignored])
        for facts in (manifest.host_facts, target.host_facts())
    )
    if lines := disagreements(before, here):
        raise Refused(
            "was begun under other conditions than there are now",
            source=source,
            differences=lines,
            hint="Begin a new capture with -o",
        )


class _Session:
    """One span of work on a capture."""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        target: Target,
        done: _Done,
        on_progress: Callable[[Progress], None] | None,
        on_interrupt: Callable[[], None] | None,
    ) -> None:
        self.campaign = campaign
        self.capture = capture
        self.target = target
        self.recorded = done
        self.done = _count(done)
        self.failed = 0
        self.on_progress = on_progress
        self.on_interrupt = on_interrupt
        self.boot_id = ""

    def execute(self) -> Finished:
        """Check effects, calibrate, run what is left, and say how it ended."""
        path = self.capture.path
        if self.done >= self.campaign.runs and not boot_state.has_changed_the_machine(path):
            self._mark_finished_once()
            return self._finished(interrupted=False)
        with self.target.session(self.capture) as session:
            self.boot_id = session.boot_id
            self._mark("resumed" if self.done else "started")
            interrupted = self._measured_to_the_end(session)
        collect_events(self.capture, self.campaign)
        goes_down = not interrupted and boot_state.read_state(path).asked is not None
        self._mark("interrupted" if interrupted or goes_down else "finished")
        return self._finished(interrupted=interrupted, goes_down=goes_down)

    def _measured_to_the_end(self, session: TargetSession) -> bool:
        """Do all the work; tell whether it was interrupted."""
        try:
            self._require_effects(session)
            operations = self._calibrated(session)
            left = visits(self.campaign, done=self.recorded)
            for run in session.run(left, operations=operations):
                self._count(run)
        except KeyboardInterrupt:
            self._stop(session)
            return True
        return False

    def _stop(self, session: TargetSession) -> None:
        try:
            if self.on_interrupt is not None:
                self.on_interrupt()
            last = session.stop()
        except KeyboardInterrupt:
            last = session.stop()
        for run in last:
            self._count(run)
        # An interrupt may have struck between a line's writing and its counting.
        self.done = _count(_recorded(self.campaign, self.capture.path))

    def _mark_finished_once(self) -> None:
        """Declare a campaign finished whose last session was killed after the last run."""
        if _last_session_state(self.capture.path) != "finished":
            collect_events(self.capture, self.campaign)
            self._mark("finished")

    def _count(self, run: Run) -> None:
        self.done += 1
        self.failed += not run.ok
        if self.on_progress is not None:
            self.on_progress(
                Progress(done=self.done, total=self.campaign.runs, failed=self.failed, run=run)
            )

    def _finished(self, *, interrupted: bool, goes_down: bool = False) -> Finished:
        return Finished(
            path=self.capture.path,
            done=self.done,
            total=self.campaign.runs,
            failed=self.failed,
            interrupted=interrupted,
            goes_down=goes_down,
        )

    def _mark(self, state: Literal["started", "resumed", "interrupted", "finished"]) -> None:
        self.capture.append(
            Session(
                state=state,
                at=now(),
                runs_done=self.done,
                excise_version=__version__,
                boot_id=self.boot_id,
            )
        )

    def _require_effects(self, session: TargetSession) -> None:
        effects = session.prove()
        self.capture.extend(list(effects))
        if failed := [effect for effect in effects if effect.outcome == "FAILED"]:
            raise effect_error(failed)

    def _calibrated(self, session: TargetSession) -> dict[str, int]:
        """Return each workload's operations per batch, found once for all configurations alike."""
        known = _calibrations(self.capture.path)
        found = {}
        for task in self.campaign.tasks:
            if task.workload is None:
                continue
            operations = task.operations or known.get(task.name)
            if operations is None:
                operations = session.calibrate(task)
                self.capture.append(Calibration(task=task.name, operations=operations))
            found[task.name] = operations
        return found


def effect_error(failed: list[Effect]) -> EffectError:
    """Return the error of configurations that did not take effect, each answer in a clause."""
    lines = [
        f"{each.configuration}: {each.check}: expected {each.expected}, got {each.got}"
        for each in failed
    ]
    return EffectError(
        "a configuration did not take effect: " + "; ".join(lines),
        hint="Nothing was measured. `excise doctor` says what this host can do",
    )


def _last_session_state(path: Path) -> str | None:
    state = None
    for session in _records(path, Session):
        state = session.state
    return state


def _calibrations(path: Path) -> dict[str, int]:
    """Return the operations per batch that earlier sessions of this capture found."""
    return {record.task: record.operations for record in _records(path, Calibration)}


_Rare = TypeVar("_Rare", Calibration, Run, Session)


def _records(path: Path, kind: type[_Rare]) -> Iterator[_Rare]:
    """Yield the journal's records of one kind, without looking into the others."""
    start = b'{"kind":"' + kind.__name__.lower().encode() + b'"'
    for _, chunk in journal_chunks(path):
        if start in chunk:
            for line in chunk.splitlines(keepends=True):
                if line.startswith(start) and line.endswith(b"}\n"):
                    yield msgspec.json.decode(line, type=kind)
