"""This machine as a target: runs are started and measured by the native launcher."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from excise.campaign.child_events import raw_name
from excise.campaign.effect import check_effects
from excise.campaign.schedule import Visit
from excise.campaign.spec import Campaign, Configuration, Task
from excise.campaign.targets.launches import Launches
from excise.campaign.targets.programs_here import program_facts_here, require_programs_here
from excise.capture.journal import Effect, Run, RunHead
from excise.capture.manifest import Fact
from excise.capture.store import RAW, Capture
from excise.clock import Clock, rusage_clock
from excise.collect.host import boot_id, file_system_fact, host_facts
from excise.collect.launcher import Launch, Launcher
from excise.collect.probe import ask_probe, probe_info, probe_path
from excise.errors import HostError


class LocalCampaignTarget:
    """The machine that excise runs on; see `excise.campaign.targets.Target`."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign

    def require(self) -> None:
        """Raise HostError naming every program that is not there."""
        probe_path()
        require_programs_here(self._campaign)

    def host_facts(self) -> list[Fact]:
        """Return facts of this host, of the work folder's file system and of the programs."""
        campaign = self._campaign
        return [
            *host_facts(),
            file_system_fact(campaign.work_directory or tempfile.gettempdir()),
            *program_facts_here(campaign),
        ]

    def clocks(self) -> list[Clock]:
        """Return the kernel's accounting clock and those the probe finds here."""
        probed = [
            Clock(name=clock.name, resolution_ns=clock.measured_resolution_ns)
            for clock in probe_info().clocks
        ]
        return [rusage_clock(), *probed]

    def notes(self) -> list[str]:
        """Return nothing: figures of this machine are what they seem."""
        return []

    @contextmanager
    def session(self, capture: Capture) -> Iterator[LocalSession]:
        """Make the work folder and start the launcher; what was set up is taken down at the end."""
        parent = self._campaign.work_directory
        try:
            folder = tempfile.TemporaryDirectory(prefix="excise-work-", dir=parent)
        except OSError as error:
            raise HostError(
                f"no work directory can be made ({error.strerror})", source=parent
            ) from error
        with folder as name:
            session = self._new_session(capture, work_directory=name)
            try:
                with session.launcher():
                    yield session
            finally:
                session.tear_down()

    def _new_session(self, capture: Capture, *, work_directory: str) -> LocalSession:
        return LocalSession(self._campaign, capture, work_directory=work_directory)


class LocalSession:
    """One span of work on this machine; see `excise.campaign.targets.TargetSession`."""

    def __init__(self, campaign: Campaign, capture: Capture, *, work_directory: str) -> None:
        self.boot_id = boot_id()
        self._campaign = campaign
        self._capture = capture
        self._work_directory = work_directory
        self._launches = Launches(campaign, probe=probe_path(), work_directory=work_directory)
        self._launcher: Launcher | None = None
        # What has been set up, or is about to be, and not yet torn down.
        self._standing: Configuration | None = None

    @contextmanager
    def launcher(self) -> Iterator[Launcher]:
        """Start a launcher for the journal and use it until the end."""
        with Launcher(
            journal_fd=self._capture.journal_fd,
            sync_interval_ns=self._campaign.sync_interval_ns,
            environment=os.environ,
        ) as launcher:
            self._launcher = launcher
            yield launcher

    def prove(self) -> list[Effect]:
        """Return the answers of every configuration, each set up for the question."""
        effects: list[Effect] = []
        for configuration in self._campaign.configurations:
            effects += self.prove_here(configuration)
        return effects

    def prove_here(self, configuration: Configuration) -> list[Effect]:
        """Return the answers of one configuration, set up for the question."""
        launcher = self._running()
        self._standing = configuration
        launcher.require(list(self._launches.steps(configuration, configuration.setup)))
        effects = check_effects(
            configuration,
            execute=launcher.execute,
            prefix=self._launches.prefix(configuration),
            work_directory=self._work_directory,
        )
        launcher.require(list(self._launches.steps(configuration, configuration.teardown)))
        self._standing = None
        return effects

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the probe finds fit here."""
        words = ["--workload", str(task.workload), "--directory", self._work_directory]
        return int(ask_probe("run", *words, "--calibrate"))

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Measure each visit's runs; the launcher writes their lines itself."""
        self._launches.operations = operations
        launches = (self._launch(head) for visit in visits for head in visit.heads)
        yield from self._running().run(launches)
        self._standing = None

    def stop(self) -> list[Run]:
        """Let the run in progress finish; called again, end it."""
        return self._running().stop()

    def tear_down(self) -> None:
        """Take down what an interrupt or an error left standing."""
        configuration, self._standing = self._standing, None
        if configuration is not None and configuration.teardown:
            with self.launcher() as launcher:
                launcher.require(list(self._launches.steps(configuration, configuration.teardown)))

    def _running(self) -> Launcher:
        assert self._launcher is not None, "the session is used within its context only"
        return self._launcher

    def _launch(self, head: RunHead) -> Launch:
        self._standing = self._campaign.configuration_of(head.configuration)
        kept = (self._capture.path / RAW / raw_name(head.sequence)).resolve()
        return self._launches.launch(head, stdout=str(kept))
