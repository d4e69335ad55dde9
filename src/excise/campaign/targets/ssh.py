"""A machine reached by ssh as a target.

The static probe is copied there; its launcher starts and measures each run, whose line is on disk
here before the next one starts. When the connection breaks, the run in progress goes on to its end
there and is taken in when the connection is back; if the machine ended it, it is run anew.
"""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from excise.campaign.child_events import raw_name
from excise.campaign.effect import check_effects
from excise.campaign.schedule import Visit
from excise.campaign.spec import Campaign, Configuration, Task
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.launches import Launches
from excise.capture.journal import Effect, Run, RunHead
from excise.capture.manifest import Fact
from excise.capture.store import Capture
from excise.clock import Clock, rusage_clock
from excise.collect.host import facts_by_configuration
from excise.collect.launcher import Exec, Launch
from excise.collect.probe import ProbeInfo
from excise.collect.remote import RemoteMachine, SshAddress
from excise.collect.remote_facts import (
    RemotePrograms,
    missing_programs,
    remote_facts,
    remote_program_facts,
)
from excise.collect.remote_launcher import PROBE_NAME, RemoteLauncher
from excise.collect.remote_probe import ForeignProbe, ask_remote_probe, probe_for, try_probe
from excise.collect.waiting import result_of
from excise.errors import ConnectionLost, ExciseError, HostError
from excise.units import parse_seconds

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener

_T = TypeVar("_T")
_PARENT: Final = "/tmp"
_LAST_PATIENCE_S: Final = 10.0
# What a login sets anew each time: it is no part of what a child should find.
_OF_THE_LOGIN: Final = ("SSH_", "XDG_SESSION_ID", "_=", "SHLVL", "OLDPWD", "LC_EXCISE")


def address_of(spec: SshTarget) -> SshAddress:
    """Return how a target's machine is reached."""
    return SshAddress(
        host=spec.host,
        user=spec.user,
        port=spec.port,
        identities=tuple(spec.identities),
        known_hosts=spec.known_hosts,
        check_host_key=spec.check_host_key,
        config=spec.config,
        connect_timeout_s=parse_seconds(spec.connect_timeout),
        keepalive_s=parse_seconds(spec.keepalive),
    )


class SshCampaignTarget:
    """A machine elsewhere; see `excise.campaign.targets.Target`."""

    def __init__(
        self, campaign: Campaign, *, spec: SshTarget, on_stage: StageListener | None
    ) -> None:
        self._campaign = campaign
        self._spec = spec
        self._parent = campaign.work_directory or _PARENT
        self._on_stage = on_stage
        self._machine: RemoteMachine | None = None
        self._probe: ForeignProbe | None = None
        self._info: ProbeInfo | None = None

    def require(self) -> None:
        """Connect, and raise HostError unless the probe runs there and every program is there."""
        machine = self._connected()
        try:
            self._look(machine)
        except BaseException:
            self._machine = None
            machine.close()
            raise

    def _look(self, machine: RemoteMachine) -> None:
        architecture = machine.insist(lambda: machine.run("uname -m")).text.strip()
        probe = probe_for(architecture, given=self._spec.probe)
        self._probe = probe
        self._info = machine.insist(lambda: try_probe(machine, probe, parent=self._parent))
        for each in self._campaign.configurations:
            self._require_programs(machine, each)

    def _require_programs(self, machine: RemoteMachine, configuration: Configuration) -> None:
        own = f": configuration {configuration.name!r}" if configuration.has_own_path else ""
        programs = self._programs_under(configuration)
        if missing := machine.insist(lambda: missing_programs(machine, programs)):
            raise HostError(
                f"not found or not executable there: {', '.join(missing)}",
                source=f"{machine.name}{own}",
                hint="Install it, or give its full path",
            )

    def _programs_under(self, configuration: Configuration) -> RemotePrograms:
        return RemotePrograms(
            words=tuple(words[0] for words in self._campaign.programs_under(configuration)),
            environment=configuration.environment,
            unset=tuple(configuration.unset),
        )

    def host_facts(self) -> list[Fact]:
        """Return facts of that machine, of its work folder and of the programs there."""
        machine = self._connected()
        facts = machine.insist(lambda: remote_facts(machine, work_directory=self._parent))
        found = {
            each.name: machine.insist(
                partial(remote_program_facts, machine, self._programs_under(each))
            )
            for each in self._campaign.baseline_first
        }
        return [*facts, *facts_by_configuration(found)]

    def clocks(self) -> list[Clock]:
        """Return the kernel's accounting clock and those the probe finds there."""
        assert self._info is not None, "require comes first"
        return [
            rusage_clock(),
            *(
                Clock(name=clock.name, resolution_ns=clock.measured_resolution_ns)
                for clock in self._info.clocks
            ),
        ]

    def notes(self) -> list[str]:
        """Say that it was another machine."""
        return ["Measured on another machine, reached by ssh; its launcher timed every run there."]

    @contextmanager
    def session(self, capture: Capture) -> Iterator[SshSession]:
        """Copy the probe and start its launcher; all is removed on the way out."""
        machine = self._connected()
        assert self._probe is not None, "require comes first"
        session = self._new_session(
            capture,
            machine=machine,
            probe=self._probe,
            folder=f"{self._parent.rstrip('/')}/excise-{capture.manifest.id}",
        )
        try:
            session.open()
            yield session
        except BaseException:
            with suppress(ExciseError):
                session.close()
            raise
        else:
            session.close()
        finally:
            self._machine = None
            machine.close()

    def _new_session(
        self, capture: Capture, *, machine: RemoteMachine, probe: ForeignProbe, folder: str
    ) -> SshSession:
        return SshSession(self._campaign, capture, machine=machine, probe=probe, folder=folder)

    def _connected(self) -> RemoteMachine:
        if self._machine is None:
            machine = RemoteMachine(
                address_of(self._spec),
                patience_s=parse_seconds(self._spec.give_up),
                on_wait=self._tell,
            )
            try:
                machine.connect()
            except BaseException:
                machine.close()
                raise
            self._machine = machine
        return self._machine

    def _tell(self, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage(self._spec.host, "done" if stage == "connected" else stage)


class Restarted(HostError):  # noqa: N818  an event of a campaign, not a fault
    """The machine is up in another boot than the one that the session began in."""


class SshSession:
    """One span of work on that machine; see `excise.campaign.targets.TargetSession`.

    Runs are measured in a thread of their own, so that an interrupt reaches the thread that waits.
    """

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        machine: RemoteMachine,
        probe: ForeignProbe,
        folder: str,
    ) -> None:
        self.boot_id = ""
        self._campaign = campaign
        self._capture = capture
        self._machine = machine
        self._probe = probe
        self._folder = folder
        self._work_directory = f"{folder}/work"
        self._launches = Launches(
            campaign, probe=f"{folder}/{PROBE_NAME}", work_directory=self._work_directory
        )
        self._longest_run_s = max(parse_seconds(task.timeout) for task in campaign.tasks)
        self._environment: dict[str, str] = {}
        self._launcher: RemoteLauncher | None = None
        self._served = 0  # number of the connection that the launcher is on
        self._standing: Configuration | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ssh-run")
        self._running: Future[Run] | None = None
        self._stopping = threading.Event()

    def open(self) -> None:
        """Make the folder, copy the probe, and start its launcher."""
        self._machine.insist(self._place)
        self._insist(lambda _: None)

    def prove(self) -> list[Effect]:
        """Return the answers of every configuration, each set up for the question."""
        effects: list[Effect] = []
        for configuration in self._campaign.configurations:
            effects += self._proven(configuration)
        return effects

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch that the probe finds fit there."""
        words = ["run", "--workload", str(task.workload), "--directory", self._work_directory]
        return int(self._insist(lambda _: self._ask(*words, "--calibrate")))

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Measure each visit's runs; each line is on disk here before the next run starts."""
        self._launches.operations = operations
        for visit in visits:
            for head in visit.heads:
                if head.sequence not in visit.recorded:
                    self._running = self._pool.submit(self._measure, head)
                    yield result_of(self._running)
                    self._running = None
        self._standing = None

    def stop(self) -> list[Run]:
        """Let the run in progress finish; called again, end it."""
        running, again = self._running, self._stopping.is_set()
        if running is None:
            return []
        self._stopping.set()
        self._machine.give_up()
        if again and self._launcher is not None:
            with suppress(ExciseError):
                self._launcher.kill()
        try:
            run = result_of(running)
        except ExciseError:
            run = None  # lost with the connection, or ended by us: it is measured anew
        self._running = None
        return [] if run is None else [run]

    def close(self) -> None:
        """Take down what stands, end the launcher, remove the folder there.

        Raises:
            HostError: If the machine is not reached any more; it names what is left on it.
        """
        self._pool.shutdown(cancel_futures=True)
        try:
            self._machine.insist(self._leave, patience_s=_LAST_PATIENCE_S)
        except HostError as error:
            raise HostError(
                f"{self._folder} is left there ({error.reason})",
                source=self._machine.name,
                hint="Runs are kept. The same command, or removing it by hand, takes it away",
            ) from error

    def _leave(self) -> None:
        standing = self._standing
        if standing is not None and standing.teardown:
            self._ready().require(list(self._launches.steps(standing, standing.teardown)))
            self._standing = None
        launcher, self._launcher = self._launcher, None
        if launcher is not None and self._machine.connection == self._served:
            launcher.end()
        self._machine.require(
            f"rm -rf {shlex.quote(self._folder)}", what=f"removing {self._folder}"
        )

    def _place(self) -> None:
        machine = self._machine
        folder = shlex.quote(self._folder)
        machine.require(
            f"umask 077; mkdir {folder} 2>/dev/null || [ -O {folder} ] && mkdir -p {folder}/work",
            what=f"making {self._folder}",
        )
        machine.write_file(f"{self._folder}/{PROBE_NAME}", self._probe.data, mode=0o700)
        text = machine.run("cat /proc/self/environ").text
        pairs = [each for each in text.split("\0") if not each.startswith(_OF_THE_LOGIN)]
        self._environment = dict(each.split("=", 1) for each in pairs if "=" in each)
        self.boot_id = self._boot_id(machine)

    def _boot_id(self, machine: RemoteMachine) -> str:
        return machine.run("cat /proc/sys/kernel/random/boot_id").text.strip()

    def _insist(self, work: Callable[[RemoteLauncher], _T]) -> _T:
        """Do work with the launcher that may be done twice, over as many connections as needed."""
        return self._machine.insist(lambda: work(self._ready()))

    def _ready(self) -> RemoteLauncher:
        """Return the launcher; connect again, and start it again, where the connection broke."""
        if self._launcher is not None and self._machine.connection == self._served:
            return self._launcher
        self._launcher = None
        if not self._machine.connected:
            self._machine.reconnect()
        if self._served and self._boot_id(self._machine) != self.boot_id:
            raise Restarted(
                "was restarted while the campaign ran",
                source=self._machine.name,
                hint="Run again to resume: effects are then checked anew",
            )
        self._launcher = RemoteLauncher(
            self._machine,
            folder=self._folder,
            environment=self._environment,
            patience_s=self._longest_run_s,
        )
        self._served = self._machine.connection
        return self._launcher

    def _proven(self, configuration: Configuration) -> list[Effect]:
        """Ask a configuration's checks, over as many connections as it takes."""
        begun = False

        def attempt(launcher: RemoteLauncher) -> list[Effect]:
            nonlocal begun
            if begun:  # the connection broke, and what was set up may stand
                self._ignoring_failure(
                    launcher, self._launches.steps(configuration, configuration.teardown)
                )
            begun = True
            return self._prove(configuration, launcher)

        return self._insist(attempt)

    def _prove(self, configuration: Configuration, launcher: RemoteLauncher) -> list[Effect]:
        self._standing = configuration
        launcher.require(list(self._launches.steps(configuration, configuration.setup)))
        effects = check_effects(
            configuration,
            execute=launcher.execute,
            prefix=self._launches.prefix(configuration),
            work_directory=self._work_directory,
            read_file=self._read_file,
            ask=self._ask,
        )
        launcher.require(list(self._launches.steps(configuration, configuration.teardown)))
        self._standing = None
        return effects

    def _read_file(self, path: str) -> str:
        done = self._machine.run(f"cat {shlex.quote(path)}")
        if done.exit_code != 0:
            raise OSError(0, done.reason.removeprefix(f"cat: {path}: "))
        return done.text

    def _ask(self, *words: str) -> Any:
        return ask_remote_probe(self._machine, f"{self._folder}/{PROBE_NAME}", *words)

    def _measure(self, head: RunHead) -> Run:
        """Measure a run and write it down, over as many connections as it takes."""
        kept = f"{self._folder}/{raw_name(head.sequence)}"
        launch = self._launches.launch(head, stdout=kept)
        begun = False

        def attempt() -> bytes:
            nonlocal begun
            launcher = self._ready()
            line = launcher.finished(head)
            if line is None:
                if begun:  # the one that was cut off may have been set up
                    self._ignoring_failure(launcher, launch.after)
                begun = True
                self._standing = self._campaign.configuration_of(head.configuration)
                launcher.require(launch.before)
                line = launcher.measure(launch)
            if launch.stdout == kept:
                self._fetch(kept, head)
            return line

        line = self._machine.insist(attempt)
        self._capture.append_line(line)
        self._tear_down(launch)
        return msgspec.json.decode(line, type=Run)

    def _fetch(self, kept: str, head: RunHead) -> None:
        """Bring a run's output here, before its line says that it is complete."""
        data = self._machine.read_file(kept)
        if data is not None:
            self._capture.replace_raw(raw_name(head.sequence), data)

    def _ignoring_failure(self, launcher: RemoteLauncher, steps: Iterable[Exec]) -> None:
        for step in steps:
            launcher.execute(step)

    def _tear_down(self, launch: Launch) -> None:
        if launch.stdout.startswith(self._folder):
            remove = f"rm -f {shlex.quote(launch.stdout)}"
            self._machine.insist(lambda: self._machine.run(remove))
        if not launch.after:
            return
        try:
            self._ready().require(launch.after)
        except ConnectionLost:
            # It may have been done, and a second time may then fail.
            self._insist(lambda launcher: self._ignoring_failure(launcher, launch.after))
