"""Boards behind a console, and commands that yield lines, as a target.

Nothing runs on the board but what it runs anyway. A run begins with a line that is sent, or with a
command that is started, and ends with the line that the task names, with the line that closes its
format, with the shell's answer, or with the command. Time is taken here, so the console's own time
is in it; what the board timed itself comes in the lines (`events`).
"""

from __future__ import annotations

import re
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import msgspec

from excise.campaign.child_events import raw_name
from excise.campaign.effect import effect_of_text
from excise.campaign.schedule import Visit
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import CommandTarget, SerialTarget
from excise.campaign.targets.programs_here import program_facts_here, require_programs_here
from excise.campaign.targets.resetting import run_reset
from excise.capture.journal import Effect, Run, RunHead
from excise.capture.manifest import Fact
from excise.capture.store import Capture
from excise.clock import Clock
from excise.collect.host import boot_id, program_facts, require_programs
from excise.collect.remote_console import (
    END_PATIENCE_S,
    Console,
    Heard,
    ProgramLine,
    SerialLine,
)
from excise.collect.waiting import result_of
from excise.errors import HostError, SpecError, UsageError
from excise.units import parse_seconds

if TYPE_CHECKING:
    from excise.campaign.targets.model import StageListener

# The line that closes a run, of formats that have one.
FORMAT_ENDS: Final[Mapping[str, str]] = {"ra-perf": r"RA_PERF\|host\|total\|"}
_STEP_TIMEOUT_S: Final = 60.0
_EXIT_PATIENCE_S: Final = 30.0
_BITS_OF_A_CHARACTER: Final = 10


class ConsoleCampaignTarget:
    """A board or a command; see `excise.campaign.targets.Target`."""

    def __init__(
        self,
        campaign: Campaign,
        *,
        spec: CommandTarget | SerialTarget,
        on_stage: StageListener | None = None,
    ) -> None:
        self._campaign = campaign
        self._spec = spec
        self._on_stage = on_stage

    def require(self) -> None:
        """Refuse keys that mean nothing on a console, and name programs that are missing here."""
        _check_spec(self._campaign, self._spec)
        require_programs(self._own_programs())
        if self._starts_commands:
            require_programs_here(self._campaign)

    def host_facts(self) -> list[Fact]:
        """Return what is known of the line; of the board, only its own answers tell."""
        spec = self._spec
        facts = [Fact(name="console.kind", value=_kind(spec), must_agree=True)]
        if isinstance(spec, SerialTarget):
            facts += [
                Fact(name="console.port", value=spec.port, private=True),
                Fact(name="console.baud", value=spec.baud, unit="1", must_agree=True),
            ]
        started = program_facts_here(self._campaign) if self._starts_commands else []
        return [*facts, *program_facts(self._own_programs()), *started]

    def clocks(self) -> list[Clock]:
        """Return the clock here that lines are timed with as they come."""
        character_ns = None
        if isinstance(self._spec, SerialTarget):
            character_ns = _BITS_OF_A_CHARACTER * 1e9 / self._spec.baud
        return [Clock(name="CLOCK_MONOTONIC at the console", resolution_ns=character_ns)]

    def notes(self) -> list[str]:
        """Say where the time was taken."""
        where = (
            "Wall times were taken at this end of the console: from sending a line, or starting a "
            "command, to the coming of the line that ends the run. The console's time is in them."
        )
        return [where]

    @contextmanager
    def session(self, capture: Capture) -> Iterator[ConsoleSession]:
        """Open the console; it is closed on the way out."""
        session = ConsoleSession(self._campaign, capture, spec=self._spec, on_stage=self._on_stage)
        try:
            session.open()
            yield session
        finally:
            session.close()

    @property
    def _starts_commands(self) -> bool:
        """Tell whether the campaign's commands are started on this machine."""
        return isinstance(self._spec, CommandTarget) and self._spec.command is None

    def _own_programs(self) -> list[list[str]]:
        """Return the target's own commands, which are run on this machine."""
        spec = self._spec
        console = spec.command if isinstance(spec, CommandTarget) else None
        return [each for each in (spec.reset, console) if each]


def _kind(spec: CommandTarget | SerialTarget) -> str:
    return "serial" if isinstance(spec, SerialTarget) else "command"


def _stays(spec: CommandTarget | SerialTarget) -> bool:
    """Tell whether there is a console that stays open from run to run."""
    return isinstance(spec, SerialTarget) or spec.command is not None


def _check_spec(campaign: Campaign, spec: CommandTarget | SerialTarget) -> None:
    """Refuse what has no meaning here, naming the key.

    Raises:
        SpecError: Naming it.
    """
    for name in ("ready", "prompt"):
        pattern = getattr(spec, name)
        try:
            re.compile(pattern or "")
        except re.error as error:
            raise SpecError(
                f"is not a regular expression: {error}", key=f"target.{name}"
            ) from error
    if not _stays(spec) and (spec.prompt or spec.ready or spec.start or spec.shell):
        raise SpecError(
            "ready, start, prompt and shell belong to a console that stays open",
            key="target",
            hint="Name it: command = [...]",
        )
    if spec.start and spec.prompt is None:
        raise SpecError("needs the prompt that answers each line", key="target.start")
    for index, task in enumerate(campaign.tasks):
        _check_task(task, spec, f"tasks[{index}]")
    for index, configuration in enumerate(campaign.configurations):
        _check_configuration(configuration, spec, f"configurations[{index}]")


def _check_task(task: Task, spec: CommandTarget | SerialTarget, key: str) -> None:
    if task.workload is not None:
        raise SpecError("the probe does not run behind a console", key=f"{key}.workload")
    if not _stays(spec) and task.send is not None:
        raise SpecError(
            "there is no console to send it to", key=f"{key}.send", hint="Give command = [...]"
        )
    if _stays(spec) and task.command is not None and not spec.shell:
        raise SpecError(
            "a command needs shell = true; other consoles are sent a line",
            key=f"{key}.command",
            hint='Write send = "..."',
        )
    if task.directory is not None:
        raise SpecError("has no meaning on a console", key=f"{key}.directory")
    if _stays(spec) and not (task.until or spec.shell or task.events in FORMAT_ENDS or spec.prompt):
        raise SpecError(
            "nothing says how a run ends",
            key=f"{key}.until",
            hint="Give until = 'PATTERN', or the console's prompt, or shell = true",
        )


def _check_configuration(
    configuration: Configuration, spec: CommandTarget | SerialTarget, key: str
) -> None:
    if configuration.probe:
        raise SpecError("the probe does not run behind a console", key=f"{key}.probe")
    if not _stays(spec):
        return
    asks = configuration.setup or configuration.teardown or configuration.took_effect
    if asks and not (spec.shell or spec.prompt):
        raise SpecError(
            "set-up, tear-down and took_effect need shell = true, or the console's prompt", key=key
        )
    needs_shell = [
        configuration.environment or configuration.unset,
        *(check.file or check.environment for check in configuration.took_effect),
    ]
    if any(needs_shell) and not spec.shell:
        raise SpecError("variables and files need shell = true", key=key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What a line that was sent, or a command, brought.

    Attributes:
        exit_code: Exit code where a shell or a command tells it.
    """

    text: bytes
    start_ns: int
    end_ns: int
    exit_code: int | None = None
    error: str | None = None
    timed_out: bool = False


class ConsoleSession:
    """One span of work on a console; see `excise.campaign.targets.TargetSession`."""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        spec: CommandTarget | SerialTarget,
        on_stage: StageListener | None = None,
    ) -> None:
        self.boot_id = boot_id()
        self._campaign = campaign
        self._capture = capture
        self._spec = spec
        self._on_stage = on_stage
        self._console: Console | None = None
        self._standing: Configuration | None = None
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="console-run")
        self._running: Future[Run] | None = None
        self._stopping = False
        self._end = threading.Event()

    def open(self) -> None:
        """Open the console, reset the board, wait until it is ready, and log in."""
        spec = self._spec
        if isinstance(spec, SerialTarget):
            self._console = Console(SerialLine(spec.port, baud=spec.baud))
        elif spec.command is not None:
            self._console = Console(ProgramLine(spec.command))
        self._make_ready()

    def prove(self) -> list[Effect]:
        """Return the answers of every configuration, each set up for the question."""
        effects = []
        for configuration in self._campaign.configurations:
            if not configuration.took_effect:
                continue
            self._steps(configuration, configuration.setup)
            effects += [self._proof(each, configuration) for each in configuration.took_effect]
            self._steps(configuration, configuration.teardown)
        return effects

    def calibrate(self, task: Task) -> int:
        """Refuse: a console has no workloads of the probe."""
        raise UsageError("a console has no workloads", source=task.name)

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:  # noqa: ARG002  there are no workloads
        """Measure each visit's runs, each in the journal before the next."""
        for visit in visits:
            for head in visit.heads:
                self._running = self._pool.submit(self._measure, head)
                yield result_of(self._running)
                self._running = None

    def stop(self) -> list[Run]:
        """Let the run in progress finish; called again, end it."""
        running, self._running = self._running, None
        if self._stopping:
            self._end.set()
        self._stopping = True
        if running is None:
            return []
        try:
            return [result_of(running)]
        except KeyboardInterrupt:
            self._running = running
            raise
        except HostError:
            return []

    def close(self) -> None:
        """Take down what stands, and close the console."""
        self._pool.shutdown(cancel_futures=True)
        standing, self._standing = self._standing, None
        try:
            if standing is not None:
                self._steps(standing, standing.teardown)
        finally:
            if self._console is not None:
                self._console.close()

    def _make_ready(self) -> None:
        spec = self._spec
        if spec.reset:
            self._tell("reset")
            run_reset(spec.reset, timeout=spec.reset_timeout)
            self._tell("done")
        if self._console is None:
            return
        if spec.ready is not None:
            if isinstance(spec, SerialTarget) and not spec.reset:
                self._console.send("", newline=spec.newline)  # a board that waits says so again
            patience_s = parse_seconds(spec.ready_timeout)
            self._tell(f"wait for {spec.ready!r}, {spec.ready_timeout} at most")
            heard = self._console.wait_for(
                re.compile(spec.ready.encode()), timeout_s=patience_s, whole_lines=False
            )
            if heard.match is None:
                raise HostError(
                    f"did not say {spec.ready!r} in {patience_s:.0f} s: {_end_of(heard.data)}",
                    source=self._console.name,
                    hint="Is it switched on, and ready right?",
                )
            self._console.settle()
            self._tell("done")
        for line in spec.start:
            self._talk(line, timeout_s=_STEP_TIMEOUT_S, shell=False)

    def _tell(self, stage: str) -> None:
        if self._on_stage is not None:
            self._on_stage("board" if self._console is None else self._console.name, stage)

    def _measure(self, head: RunHead) -> Run:
        """Measure a run and write it down: its output first, then its line."""
        task = self._campaign.task(head.task)
        configuration = self._campaign.configuration_of(head.configuration)
        self._standing = configuration
        self._steps(configuration, configuration.setup)
        answer = self._answer(task, configuration)
        if self._end.is_set():
            raise HostError("ended by an interrupt", source=head.task)
        run = _run_of(head, task, answer)
        if task.events is not None:
            self._capture.replace_raw(raw_name(head.sequence), answer.text)
        self._capture.append(run)
        if answer.timed_out:
            self._make_ready()
        self._steps(configuration, configuration.teardown)
        self._standing = None
        return run

    def _answer(self, task: Task, configuration: Configuration) -> _Answer:
        timeout_s = parse_seconds(task.timeout)
        words = configuration.wrapped(task.command) if task.command else []
        if self._console is None:
            return self._of_program(words, configuration, task, timeout_s)
        line = shlex.join(words) if words else str(task.send)
        if task.send is not None and (configuration.prefix or configuration.environment):
            words = configuration.wrapped([])
            line = f"{shlex.join(words) if self._spec.shell else ' '.join(words)} {line}"
        return self._talk(line, task=task, timeout_s=timeout_s, shell=self._spec.shell)

    def _told(self, words: list[str]) -> _Answer:
        """Have a command run that is not measured."""
        shell = self._spec.shell
        line = shlex.join(words) if shell else " ".join(words)
        return self._talk(line, timeout_s=_STEP_TIMEOUT_S, shell=shell)

    def _talk(
        self, line: str, *, timeout_s: float, shell: bool, task: Task | None = None
    ) -> _Answer:
        """Send a line and listen until what ends its answer has come."""
        console, spec = self._console, self._spec
        assert console is not None
        console.discard()
        mark = f"excise-{uuid.uuid4().hex[:12]}"
        until = _end_pattern(task)
        if shell and until is None:
            line = f"{line}; echo {mark}:$?"
            until = f"{mark}:([0-9]+)"
        prompt = until is None
        pattern = until or str(spec.prompt)
        failed = task.failed if task is not None else None
        start_ns = console.send(line, newline=spec.newline)
        heard = console.wait_for(
            _either(pattern, failed),
            timeout_s=timeout_s,
            whole_lines=not prompt,
            skip=line.encode(),
            stop=self._end.is_set,
        )
        return _answer_of(heard, start_ns=start_ns, mark=mark, timeout_s=timeout_s)

    def _of_program(
        self, words: list[str], configuration: Configuration, task: Task, timeout_s: float
    ) -> _Answer:
        """Run a command here and listen to what it prints."""
        pattern = _either(_end_pattern(task), task.failed)
        start_ns = time.monotonic_ns()
        console = Console(ProgramLine(_with_variables(words, configuration)))
        patience_s = END_PATIENCE_S
        try:
            heard = console.wait_for(pattern, timeout_s=timeout_s, stop=self._end.is_set)
            if heard.ended and heard.match is None:
                patience_s = _EXIT_PATIENCE_S  # it is about to end, however busy this machine is
        finally:
            ended_with = console.close(patience_s=patience_s)
        answer = _answer_of(heard, start_ns=start_ns, mark="", timeout_s=timeout_s)
        if heard.match is None and heard.ended:
            until = _end_pattern(task)
            error = f"ended without a line that matches {until!r}" if until else None
            return replace(answer, exit_code=ended_with, error=error, timed_out=False)
        return answer

    def _steps(self, configuration: Configuration, commands: list[list[str]]) -> None:
        """Run set-up or tear-down: on the console where one stays, else here.

        Raises:
            HostError: If one fails.
        """
        for words in commands:
            if self._console is None:
                _run_here(_with_variables(words, configuration))
                continue
            answer = self._told(words)
            if answer.error is not None or answer.exit_code not in (None, 0):
                reason = answer.error or f"exit code {answer.exit_code}"
                raise HostError(
                    f"a set-up or tear-down command failed: {reason}",
                    source=shlex.join(words),
                    hint="Complete runs are kept; run again to resume",
                )

    def _proof(self, check: TookEffect, configuration: Configuration) -> Effect:
        words = check.command or (
            ["cat", check.file] if check.file else ["printenv", str(check.environment)]
        )
        wrapped = words if check.file else configuration.wrapped(words)
        code: int | None
        if self._console is None:
            command = _with_variables(wrapped, configuration)
            done = subprocess.run(command, capture_output=True, check=False)
            text, code = done.stdout, done.returncode
        else:
            answer = self._told(wrapped)
            text = answer.text
            # A console without a shell has no exit codes; what it says is the answer.
            code = answer.exit_code if self._spec.shell else check.exit_code
        return effect_of_text(
            check,
            configuration=configuration.name,
            text=text.decode(errors="replace"),
            exit_code=code,
        )


def _end_pattern(task: Task | None) -> str | None:
    if task is None:
        return None
    return task.until or FORMAT_ENDS.get(task.events or "")


def _either(until: str | None, failed: str | None) -> re.Pattern[bytes] | None:
    """Return one pattern for both; that which failed is the group `failed`."""
    parts = [f"(?P<failed>{failed})"] if failed else []
    parts += [f"(?:{until})"] if until else []
    return re.compile("|".join(parts).encode(), re.MULTILINE) if parts else None


def _answer_of(heard: Heard, *, start_ns: int, mark: str, timeout_s: float) -> _Answer:
    """Return the answer in what was heard."""
    match, text = heard.match, heard.data
    error: str | None = None
    code: int | None = None
    if match is None:
        silent = "the console ended" if heard.ended else f"no end in {timeout_s:g} s"
        error = f"{silent}: {_end_of(heard.data)}"
    elif match.groupdict().get("failed") is not None:
        error = f"the line that means failure came: {_end_of(heard.data)}"
    elif mark and match[0].startswith(f"{mark}:".encode()):
        code = int(match[0].rpartition(b":")[2])
        text = text[: text.rfind(mark.encode())]
    return _Answer(
        text=text,
        start_ns=start_ns,
        end_ns=heard.at_ns,
        exit_code=code,
        error=error,
        timed_out=match is None and not heard.ended,
    )


def _run_of(head: RunHead, task: Task, answer: _Answer) -> Run:
    expected = answer.exit_code is None or answer.exit_code in task.expect
    return Run(
        **msgspec.structs.asdict(head),
        start_ns=answer.start_ns,
        wall_ns=max(0, answer.end_ns - answer.start_ns),
        exit_code=answer.exit_code,
        timed_out=answer.timed_out,
        ok=answer.error is None and expected,
        error=answer.error,
        stderr=None if expected else _end_of(answer.text),
    )


def _end_of(data: bytes) -> str:
    lines = data.decode(errors="replace").strip().splitlines()
    return repr(lines[-1][-160:]) if lines else "nothing came"


def _with_variables(words: list[str], configuration: Configuration) -> list[str]:
    """Return a command that is run here with the configuration's variables set."""
    if words[:1] == ["env"]:
        return words
    return msgspec.structs.replace(configuration, prefix=[]).wrapped(words)


def _run_here(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise HostError(f"a command run here failed: {said}", source=shlex.join(words))
