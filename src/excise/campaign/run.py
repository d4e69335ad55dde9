"""Running a campaign into a capture: start, go on after anything, and always leave it readable."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from excise import __version__
from excise.campaign.child_events import collect_events, raw_name, require_formats
from excise.campaign.effect import check_effects
from excise.campaign.schedule import environment_padding, schedule
from excise.campaign.spec import Campaign, Configuration, Task, from_plain
from excise.capture.journal import Calibration, Effect, Run, RunHead, Session
from excise.capture.manifest import Fact, Manifest
from excise.capture.store import MANIFEST, RAW, Capture, journal_chunks, new_id, now
from excise.clock import Clock, rusage_clock
from excise.collect.host import boot_id, file_system_fact, host_facts, program_facts
from excise.collect.launcher import Exec, Launch, Launcher
from excise.collect.probe import ask_probe, probe_info, probe_path
from excise.cost.facts import disagreements
from excise.errors import CaptureError, EffectError, HostError, Refused
from excise.units import parse_duration

PADDING: Final = "EXCISE_PADDING"
STEP_TIMEOUT_NS: Final = 600_000_000_000
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
    """

    path: Path
    done: int
    total: int
    failed: int
    interrupted: bool


def run_campaign(
    campaign: Campaign,
    path: Path,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_interrupt: Callable[[], None] | None = None,
) -> Finished:
    """Run a campaign into a new capture, or go on with the one at `path`.

    A KeyboardInterrupt lets the run in progress finish; a second one ends it.

    Args:
        campaign: What to run.
        path: Capture folder; when it exists it must hold the same campaign, and is resumed.
        on_progress: Called after every run.
        on_interrupt: Called when an interrupt is about to wait for the run in progress.

    Raises:
        CaptureError: If `path` holds another campaign, is sealed, or cannot be written.
        Refused: If the capture was begun under other conditions, such as another kernel.
        EffectError: If a configuration did not take effect; nothing was measured since.
        HostError: If a program is missing or the kernel lacks a mechanism.
    """
    _require_programs(campaign)
    require_formats(campaign)
    with _opened(campaign, path) as (capture, done):
        return _Session(campaign, capture, done, on_progress, on_interrupt).execute()


def _require_programs(campaign: Campaign) -> None:
    """Raise HostError naming every program that is not there, before anything is written."""
    probe_path()
    words = [task.command[0] for task in campaign.tasks if task.command]
    words += [each.prefix[0] for each in campaign.configurations if each.prefix]
    missing = [word for word in dict.fromkeys(words) if shutil.which(word) is None]
    if missing:
        raise HostError(
            f"not found or not executable: {', '.join(missing)}",
            hint="Install it, or give its full path",
        )


@contextmanager
def _opened(campaign: Campaign, path: Path) -> Iterator[tuple[Capture, int]]:
    """Give the capture, new or resumed, and how many runs it already has."""
    if not (path / MANIFEST).exists():
        with Capture.create(path, _manifest(campaign)) as capture:
            yield capture, 0
        return
    with Capture.open(path) as capture:
        kept = capture.manifest.campaign
        if not kept:
            raise CaptureError("holds imported data, not a campaign", source=str(path))
        before = from_plain(kept, source=str(path / MANIFEST))
        differing = _differing_keys(before, campaign)
        longer = differing == ["blocks"] and campaign.blocks > before.blocks
        done = completed_runs(path)
        if differing and not done:
            # Nothing was measured, so nothing is lost: a campaign that was put right starts anew.
            capture.start_over(_manifest(campaign))
            yield capture, 0
            return
        if differing and not longer:
            raise CaptureError(
                f"holds another campaign: {', '.join(differing)} differ",
                source=str(path),
                hint="Give another path with -o; the same campaign, or one of more blocks, goes on",
            )
        if done < campaign.runs:
            _require_same_conditions(capture.manifest, campaign, source=str(path))
        if longer:
            capture.replace_manifest(_extended(capture.manifest, before, campaign))
        yield capture, done


def _differing_keys(before: Campaign, now: Campaign) -> list[str]:
    """Return the keys that differ, but for how often the disk is waited for."""
    keys = [name for name in Campaign.__struct_fields__ if name != "sync_interval"]
    return [name for name in keys if getattr(before, name) != getattr(now, name)]


def _extended(manifest: Manifest, before: Campaign, now: Campaign) -> Manifest:
    """Return the manifest of a campaign that got more blocks; the order goes on as it would have.

    Blocks added until a difference shows would show one where there is none: it is noted.
    """
    note = (
        f"Extended from {before.blocks} to {now.blocks} blocks. If that was decided after a look "
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
            f"its journal holds {count} runs but the last one has number {last}",
            source=str(path),
            hint="The journal was changed by hand; start a new capture",
        )
    return count


def _manifest(campaign: Campaign) -> Manifest:
    clocks = [rusage_clock()]
    clocks += [
        Clock(name=clock.name, resolution_ns=clock.measured_resolution_ns)
        for clock in probe_info().clocks
    ]
    return Manifest(
        id=new_id(),
        created=now(),
        title=campaign.title,
        origin="measured",
        excise_version=__version__,
        baseline=campaign.baseline_name,
        twin=campaign.twin_name,
        paired=True,
        seed=campaign.seed,
        campaign=msgspec.to_builtins(campaign),
        host_facts=_facts(campaign),
        clocks=clocks,
    )


def _facts(campaign: Campaign) -> list[Fact]:
    programs = [task.command for task in campaign.tasks if task.command]
    programs += [each.prefix for each in campaign.configurations if each.prefix]
    return [
        *host_facts(),
        file_system_fact(campaign.work_directory or tempfile.gettempdir()),
        *program_facts(programs),
    ]


def _require_same_conditions(manifest: Manifest, campaign: Campaign, *, source: str) -> None:
    """Refuse to go on where the machine is no longer what it was: one capture, one condition."""
    here = msgspec.structs.replace(manifest, host_facts=_facts(campaign))
    if lines := disagreements(manifest, here):
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
        done: int,
        on_progress: Callable[[Progress], None] | None,
        on_interrupt: Callable[[], None] | None,
    ) -> None:
        self.campaign = campaign
        self.capture = capture
        self.done = done
        self.failed = 0
        self.on_progress = on_progress
        self.on_interrupt = on_interrupt
        self.timeouts_ns = {task.name: parse_duration(task.timeout) for task in campaign.tasks}
        self.operations: dict[str, int] = {}
        self.work_directory = ""
        # What has been set up, or is about to be, and not yet torn down.
        self.standing: Configuration | None = None

    def execute(self) -> Finished:
        """Check effects, calibrate, run what is left, and say how it ended."""
        if self.done >= self.campaign.runs:
            self._mark_finished_once()
            return self._finished(interrupted=False)
        self._mark("resumed" if self.done else "started")
        with self._work_directory() as folder:
            self.work_directory = folder
            try:
                with self._launcher() as launcher:
                    interrupted = self._measured_to_the_end(launcher)
            finally:
                self._tear_down()
        collect_events(self.capture, self.campaign)
        self._mark("interrupted" if interrupted else "finished")
        return self._finished(interrupted=interrupted)

    def _measured_to_the_end(self, launcher: Launcher) -> bool:
        """Do all the work; tell whether it was interrupted."""
        try:
            self._require_effects(launcher)
            self._calibrate()
            for run in launcher.run(self._launches()):
                self._count(run)
            self.standing = None
        except KeyboardInterrupt:
            if self.on_interrupt is not None:
                self.on_interrupt()
            self._stop(launcher)
            return True
        return False

    def _stop(self, launcher: Launcher) -> None:
        try:
            last = launcher.stop()
        except KeyboardInterrupt:
            last = launcher.stop()
        for run in last:
            self._count(run)
        # An interrupt may have struck between a line's writing and its counting.
        self.done = completed_runs(self.capture.path)

    def _tear_down(self) -> None:
        """Take down what an interrupt or an error left standing."""
        configuration, self.standing = self.standing, None
        if configuration is not None and configuration.teardown:
            with self._launcher() as launcher:
                launcher.require(list(self._steps(configuration, configuration.teardown)))

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

    def _finished(self, *, interrupted: bool) -> Finished:
        return Finished(
            path=self.capture.path,
            done=self.done,
            total=self.campaign.runs,
            failed=self.failed,
            interrupted=interrupted,
        )

    def _mark(self, state: Literal["started", "resumed", "interrupted", "finished"]) -> None:
        self.capture.append(
            Session(
                state=state,
                at=now(),
                runs_done=self.done,
                excise_version=__version__,
                boot_id=boot_id(),
            )
        )

    @contextmanager
    def _work_directory(self) -> Iterator[str]:
        parent = self.campaign.work_directory
        try:
            folder = tempfile.TemporaryDirectory(prefix="excise-work-", dir=parent)
        except OSError as error:
            raise HostError(
                f"no work directory can be made ({error.strerror})", source=parent
            ) from error
        with folder as name:
            yield name

    def _launcher(self) -> Launcher:
        return Launcher(
            journal_fd=self.capture.journal_fd,
            sync_interval_ns=self.campaign.sync_interval_ns,
            environment=os.environ,
        )

    def _require_effects(self, launcher: Launcher) -> None:
        effects: list[Effect] = []
        for configuration in self.campaign.configurations:
            self.standing = configuration
            launcher.require(list(self._steps(configuration, configuration.setup)))
            effects += check_effects(
                configuration,
                execute=launcher.execute,
                prefix=self._prefix(configuration),
                work_directory=self.work_directory,
            )
            launcher.require(list(self._steps(configuration, configuration.teardown)))
            self.standing = None
        self.capture.extend(list(effects))
        if failed := [effect for effect in effects if effect.outcome == "FAILED"]:
            lines = [
                f"{each.configuration}: {each.check}: expected {each.expected}, got {each.got}"
                for each in failed
            ]
            raise EffectError(
                "a configuration did not take effect: " + "; ".join(lines),
                hint="Nothing was measured. `excise doctor` says what this host can do",
            )

    def _calibrate(self) -> None:
        """Find each workload's operations per batch once, for all configurations alike."""
        known = _calibrations(self.capture.path)
        for task in self.campaign.tasks:
            if task.workload is None:
                continue
            operations = task.operations or known.get(task.name)
            if operations is None:
                words = ["--workload", task.workload, "--directory", self.work_directory]
                operations = int(ask_probe("run", *words, "--calibrate"))
                self.capture.append(Calibration(task=task.name, operations=operations))
            self.operations[task.name] = operations

    def _launches(self) -> Iterator[Launch]:
        for head in schedule(self.campaign, start=self.done):
            yield self._launch(head)

    def _launch(self, head: RunHead) -> Launch:
        task = self.campaign.task(head.task)
        configuration = self.campaign.configuration_of(head.configuration)
        self.standing = configuration
        environment = dict(configuration.environment)
        if self.campaign.randomise_environment:
            environment[PADDING] = environment_padding(head.sequence, seed=self.campaign.seed)
        return Launch(
            head=head,
            argv=self._argv(task, configuration),
            environment=environment,
            unset=configuration.unset,
            directory=task.directory,
            timeout_ns=self.timeouts_ns[task.name],
            expect=task.expect,
            stdout=self._stdout(task, head),
            counters=task.counters,
            before=list(self._steps(configuration, configuration.setup)),
            after=list(self._steps(configuration, configuration.teardown)),
        )

    def _stdout(self, task: Task, head: RunHead) -> str:
        if task.workload is not None:
            return "probe"
        if task.events is None:
            return "discard"
        return str((self.capture.path / RAW / raw_name(head.sequence)).resolve())

    def _prefix(self, configuration: Configuration) -> list[str]:
        """Return the words that put a command under a configuration.

        Where any configuration needs the probe, every one goes through it: else the cost of the
        probe's own start would be part of the difference.
        """
        words = list(configuration.prefix)
        if any(each.probe for each in self.campaign.configurations):
            words += [probe_path(), "exec", *configuration.probe]
            if "--landlock" in configuration.probe:
                words += ["--directory", self.work_directory]
            words.append("--")
        return words

    def _argv(self, task: Task, configuration: Configuration) -> list[str]:
        if task.command is not None:
            return [*self._prefix(configuration), *task.command]
        words = [*configuration.prefix, probe_path(), "run", "--workload", str(task.workload)]
        words += ["--operations", str(self.operations[task.name]), "--batches", str(task.batches)]
        return [*words, "--directory", self.work_directory, *configuration.probe]

    def _steps(self, configuration: Configuration, commands: list[list[str]]) -> Iterator[Exec]:
        for words in commands:
            yield Exec(
                argv=words,
                environment=configuration.environment,
                unset=configuration.unset,
                timeout_ns=STEP_TIMEOUT_NS,
            )


def _last_session_state(path: Path) -> str | None:
    state = None
    for session in _records(path, Session):
        state = session.state
    return state


def _calibrations(path: Path) -> dict[str, int]:
    """Return the operations per batch that earlier sessions of this capture found."""
    return {record.task: record.operations for record in _records(path, Calibration)}


_Rare = TypeVar("_Rare", Calibration, Session)


def _records(path: Path, kind: type[_Rare]) -> Iterator[_Rare]:
    """Yield the journal's records of a rare kind, without looking into the runs."""
    start = b'{"kind":"' + kind.__name__.lower().encode() + b'"'
    for _, chunk in journal_chunks(path):
        if start in chunk:
            for line in chunk.splitlines(keepends=True):
                if line.startswith(start) and line.endswith(b"}\n"):
                    yield msgspec.json.decode(line, type=kind)
