"""The campaign as a user writes it (TOML or command line), checked and fully spelt out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from excise.campaign.boot_keys import BootKeys, check_boot_keys
from excise.campaign.target_spec import (
    BootsSpec,
    ConsoleSpec,
    LabTarget,
    LocalTarget,
    SshTarget,
    TargetSpec,
)
from excise.errors import SpecError, UsageError
from excise.files import read_whole
from excise.units import parse_duration, parse_percentage
from excise.validation import spec_error

TWIN_SUFFIX: Final = " (A/A)"
COMMAND_LINE: Final = "command line"
BOOT: Final = "boot"  # the workload that is the boot itself
ALL_CALLS: Final = "syscalls"
"""Workload of the lab that stands for a task for each system call."""
LIMIT_BYTES: Final = 16 << 20  # a campaign file; no device without end
DURATIONS: Final = (  # keys of [target]
    "boot_timeout",
    "connect_timeout",
    "give_up",
    "keepalive",
    "ready_timeout",
    "reset_timeout",
)
BATCHES: Final = 11  # of a workload on this machine, where a task does not say
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=80)]


class TookEffect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to see that a configuration took effect. Exactly one way of looking is given.

    Attributes:
        command: Run under the configuration; its standard output is looked at.
        file: A file whose content is looked at.
        environment: A variable that a child started under the configuration must have.
        contains: Text that must occur; or
        equals: the whole text, without surrounding white space; or
        matches: a regular expression that must match somewhere.
        exit_code: For `command`: the exit code it must have.
    """

    command: list[str] | None = None
    file: str | None = None
    environment: str | None = None
    contains: str | None = None
    equals: str | None = None
    matches: str | None = None
    exit_code: int = 0


class Configuration(
    BootKeys, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """A state of the mechanism: what differs between arms, and nothing else.

    `BootKeys` has those of its keys that take a boot.

    Attributes:
        prefix: Words put before every command.
        environment: Variables added to the child's environment.
        unset: Variables removed from it.
        probe: Mechanisms the probe puts on the child: `--landlock`, `--seccomp N`,
            `--no-new-privs`.
        setup: Commands run, unmeasured, before each run of this configuration.
        teardown: Commands run, unmeasured, after each run of this configuration.
        preset: In the lab: preset that its guests boot with; the one of its own name by default.
        kernel: In the lab: kernel of its guests, where it is not the machine's.
        modules: In the lab: folder of the modules of a kernel given by path.
    """

    name: Name
    prefix: list[str] = []
    environment: dict[str, str] = {}
    unset: list[str] = []
    probe: list[str] = []
    setup: list[list[str]] = []
    teardown: list[list[str]] = []
    took_effect: list[TookEffect] = []
    preset: str | None = None
    kernel: str | None = None
    modules: str | None = None

    @property
    def has_own_path(self) -> bool:
        """Tell whether its children look for programs elsewhere than others do."""
        return "PATH" in (*self.environment, *self.unset)

    def wrapped(self, words: Iterable[str]) -> list[str]:
        """Return a command with the variables and the prefix, for a shell elsewhere."""
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        unset = [word for name in self.unset for word in ("-u", name)]
        return [*(["env", *unset, *pairs] if unset or pairs else []), *self.prefix, *words]


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is run under every configuration: a command, or a workload of the probe.

    Attributes:
        command: Words of a command.
        workload: Name of a probe workload, such as `open_close`; in the lab also those of
            `excise lab run`: `open_close/ext4`, `files:100`, `exec:100`, `boot`.
        batches: Batches of operations in one run of a workload; 11 where None, in the lab its own.
        operations: Operations in a batch; calibrated once for all configurations when None.
        directory: Working directory of a command.
        timeout: Longest a run may take, such as `30s`.
        expect: Exit codes that count as success.
        counters: Whether to ask the kernel for instructions and cycles.
        events: Format of the child's standard output to keep and read events from, or None.
        send: On a console: the line that starts a run.
        until: On a console: regular expression of the line that ends a run.
        failed: On a console: regular expression of a line that ends a run as a failed one.
    """

    name: Name
    command: list[str] | None = None
    workload: str | None = None
    batches: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    operations: Annotated[int, msgspec.Meta(ge=1)] | None = None
    directory: str | None = None
    timeout: str = "60s"
    expect: list[int] = msgspec.field(default_factory=lambda: [0])
    counters: bool = True
    events: str | None = None
    send: str | None = None
    until: str | None = None
    failed: str | None = None


class Campaign(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole campaign.

    Attributes:
        baseline: Configuration the others are compared with; the first one by default.
        blocks: Measured blocks; each holds every task under every configuration once.
        warmup: Blocks run after the first runs and before the measured ones, not counted.
        seed: Seed of the order; the same seed gives the same order.
        margin: Difference that would not matter, such as `1%`.
        randomise_environment: Whether each child gets a padding variable of random length, so
            that the place of its stack does not favour one arm (Mytkowicz et al., ASPLOS 2009).
        sync_interval: A power cut loses at most this much measuring, and the run in progress; `0s`
            waits for the disk after every run, which short runs feel; `never` leaves it to the
            kernel. Whatever it is, a crash of excise loses at most the run in progress.
        work_directory: Folder in which a work folder is made and removed again; where temporary
            files go when None. Its file system is part of what is measured.
        target: Where it runs: this machine, or guests of the lab.
    """

    title: str = "campaign"
    configurations: Annotated[list[Configuration], msgspec.Meta(min_length=1)]
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    baseline: str | None = None
    blocks: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 30
    warmup: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    seed: int = 1
    margin: str = "1%"
    randomise_environment: bool = True
    sync_interval: str = "100ms"
    work_directory: str | None = None
    target: TargetSpec = LocalTarget()

    @property
    def sync_interval_ns(self) -> int | None:
        """Return the sync interval in nanoseconds, None for never."""
        return None if self.sync_interval == "never" else parse_duration(self.sync_interval)

    @property
    def baseline_name(self) -> str:
        """Return the name of the baseline configuration."""
        return self.baseline or self.configurations[0].name

    @property
    def twin_name(self) -> str:
        """Return the name of the A/A arm: the baseline a second time."""
        return self.baseline_name + TWIN_SUFFIX

    @property
    def twin_names(self) -> list[str]:
        """Return the names of all A/A arms; a local campaign has one."""
        further = range(2, self.target.twins + 1)
        return [self.twin_name, *(f"{self.baseline_name} (A/A {number})" for number in further)]

    @property
    def arms(self) -> list[str]:
        """Return the names of all arms, the A/A arms next to the baseline."""
        names = [configuration.name for configuration in self.configurations]
        place = names.index(self.baseline_name) + 1
        return [*names[:place], *self.twin_names, *names[place:]]

    @property
    def baseline_first(self) -> list[Configuration]:
        """Return the configurations, the baseline before all others."""
        baseline = self.configuration_of(self.baseline_name)
        return [baseline, *(each for each in self.configurations if each is not baseline)]

    def programs_under(self, configuration: Configuration) -> list[list[str]]:
        """Return every command that the runs of one configuration need."""
        words = [task.command for task in self.tasks if task.command]
        return [*words, *([configuration.prefix] if configuration.prefix else [])]

    @property
    def runs(self) -> int:
        """Return how many runs the whole campaign has."""
        if self.target.entry == "boot":
            in_a_boot = sum(self.runs_in_boot(task) for task in self.tasks)
            return (self.warmup + self.blocks) * len(self.arms) * in_a_boot
        return (1 + self.warmup + self.blocks) * len(self.arms) * len(self.tasks)

    def runs_in_boot(self, task: Task) -> int:
        """Return how often a task is run in a boot: the first run, and those that count."""
        if task.workload == BOOT or not isinstance(self.target, BootsSpec):
            return 1
        return 1 + self.target.runs_per_boot

    def configuration_of(self, arm: str) -> Configuration:
        """Return the configuration an arm runs under."""
        name = self.baseline_name if arm in self.twin_names else arm
        return next(each for each in self.configurations if each.name == name)

    def task(self, name: str) -> Task:
        """Return the task of that name."""
        return next(each for each in self.tasks if each.name == name)


def read_campaign(path: Path) -> Campaign:
    """Return the campaign of a TOML file.

    Raises:
        SpecError: If it is not TOML, or a key is unknown, missing or of the wrong type; the error
            names the key and what was expected.
    """
    source = str(path)
    try:
        text = read_whole(path, limit_bytes=LIMIT_BYTES)
    except OSError as error:
        raise SpecError(f"cannot be read ({error.strerror})", source=source) from error
    return parse_campaign(text, source=source, default_title=path.stem)


def parse_campaign(text: bytes, *, source: str, default_title: str = "campaign") -> Campaign:
    """Return the campaign written in TOML text; see `read_campaign`."""
    try:
        campaign = msgspec.toml.decode(text, type=Campaign)
    except msgspec.ValidationError as error:
        hint = "docs/campaigns.md has all keys"
        raise spec_error(error, model=Campaign, source=source, hint=hint) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SpecError(f"is not TOML: {error}", source=source) from error
    if campaign.title == "campaign":
        campaign = msgspec.structs.replace(campaign, title=default_title)
    with naming(source):
        campaign = expanded(campaign)
    return checked(campaign, source=source)


def expanded(campaign: Campaign) -> Campaign:
    """Return the campaign with a task for each system call in place of the workload `syscalls`.

    In the lab what uses files is measured on two file systems, elsewhere in the working directory.
    """
    if all(task.workload != ALL_CALLS for task in campaign.tasks):
        return campaign
    from excise.lab import workloads

    in_lab = isinstance(campaign.target, LabTarget)
    calls = workloads.task_names() if in_lab else [each.name for each in workloads.SYSTEM_CALLS]
    tasks: list[Task] = []
    for task in campaign.tasks:
        names = calls if task.workload == ALL_CALLS else []
        tasks += [msgspec.structs.replace(task, name=name, workload=name) for name in names] or [
            task
        ]
    return msgspec.structs.replace(campaign, tasks=tasks)


@contextmanager
def naming(source: str) -> Iterator[None]:
    """Name the file in errors of its keys that a target finds, which does not know it."""
    try:
        yield
    except SpecError as error:
        error.source = error.source or source
        raise


def from_plain(plain: dict[str, Any], *, source: str) -> Campaign:
    """Return the campaign that a manifest keeps."""
    try:
        return checked(msgspec.convert(plain, type=Campaign), source=source)
    except msgspec.ValidationError as error:
        raise spec_error(error, model=Campaign, source=source) from error


def ad_hoc(configurations: list[str], command: list[str], **options: Any) -> Campaign:
    """Return a campaign of one command under configurations given as `NAME: PREFIX WORDS`.

    Words of the form `--landlock`, `--no-new-privs` and `--seccomp N` at the start of the prefix
    are mechanisms of the probe, and `env NAME=VALUE ...` sets the child's environment; all other
    words are put before the command.

    Raises:
        SpecError: If a configuration has no name, or there is no command.
    """
    if not command:
        raise SpecError("no command was given", hint="Write it after `--`: excise run -- true")
    parsed = [_ad_hoc_configuration(text) for text in configurations or ["plain"]]
    task = Task(name=Path(command[0]).name, command=command, **options.pop("task", {}))
    title = options.pop("title", shlex.join(command))[:80]
    return checked(
        Campaign(title=title, configurations=parsed, tasks=[task], **options), source=COMMAND_LINE
    )


def _ad_hoc_configuration(text: str) -> Configuration:
    name, _, rest = text.partition(":")
    if not name.strip():
        raise SpecError(
            f"configuration {text!r} has no name", hint="Write 'NAME: PREFIX', or just 'NAME'"
        )
    try:
        words = shlex.split(rest)
    except ValueError as error:
        raise SpecError(f"configuration {name!r}: {error}", hint="Check the quotes") from error
    probe: list[str] = []
    while words and words[0] in ("--landlock", "--no-new-privs", "--seccomp"):
        take = 2 if words[0] == "--seccomp" else 1
        probe, words = probe + words[:take], words[take:]
    environment, words = _environment(words)
    return Configuration(name=name.strip(), prefix=words, probe=probe, environment=environment)


def _environment(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """Take `env NAME=VALUE ...` off a prefix: set directly, it costs the child no extra exec."""
    if not words or words[0] != "env":
        return {}, words
    count = 1
    while count < len(words) and re.fullmatch(r"[A-Za-z_]\w*=.*", words[count], re.DOTALL):
        count += 1
    if count == 1 or (count < len(words) and words[count].startswith("-")):
        return {}, words
    pairs = (word.partition("=") for word in words[1:count])
    return {name: value for name, _, value in pairs}, words[count:]


def checked(campaign: Campaign, *, source: str) -> Campaign:
    """Return the campaign after the checks that types cannot express.

    Raises:
        SpecError: Naming the key.
    """
    names = [each.name for each in campaign.configurations]
    _unique(names, "configurations", source)
    _unique([each.name for each in campaign.tasks], "tasks", source)
    if campaign.baseline_name not in names:
        raise SpecError(
            f"no configuration is called {campaign.baseline!r}",
            source=source,
            key="baseline",
            hint=f"Configurations: {', '.join(names)}",
        )
    if twin := next((name for name in campaign.twin_names if name in names), None):
        raise SpecError(
            f"{twin!r} is the name of the A/A arm",
            source=source,
            key="configurations",
        )
    if _parsed(parse_percentage, campaign.margin, source, "margin") < 0:
        raise SpecError("must not be below zero", source=source, key="margin")
    if campaign.sync_interval != "never":
        _parsed(parse_duration, campaign.sync_interval, source, "sync_interval")
    for name in DURATIONS:
        if (text := getattr(campaign.target, name, None)) is not None:
            _require_duration(text, source, f"target.{name}")
    target = campaign.target
    if isinstance(target, SshTarget) and target.reset and not target.reboot:
        raise SpecError("belongs to campaigns with reboots", source=source, key="target.reset")
    for index, configuration in enumerate(campaign.configurations):
        _check_configuration(configuration, target, source, f"configurations[{index}]")
    for index, task in enumerate(campaign.tasks):
        _check_task(task, source, f"tasks[{index}]")
        for name in ("send", "until", "failed"):
            if getattr(task, name) is not None and not isinstance(campaign.target, ConsoleSpec):
                raise SpecError(
                    "belongs to targets of the kinds command and serial",
                    source=source,
                    key=f"tasks[{index}].{name}",
                )
    return campaign


def _unique(names: list[str], key: str, source: str) -> None:
    for index, name in enumerate(names):
        if name in names[:index]:
            raise SpecError(
                f"the name {name!r} is given twice", source=source, key=f"{key}[{index}].name"
            )


def _check_configuration(
    configuration: Configuration, target: TargetSpec, source: str, key: str
) -> None:
    for index, check in enumerate(configuration.took_effect):
        _check_effect(check, source, f"{key}.took_effect[{index}]")
    given = configuration.keys_given
    if isinstance(target, LabTarget):
        if others := [name for name in given if name != "cmdline"]:
            raise SpecError(
                "belongs to campaigns with reboots",
                source=source,
                key=f"{key}.{others[0]}",
                hint="In the lab a preset says so, and proves it: `excise lab list`",
            )
    elif given and target.entry != "boot":
        raise SpecError(
            "takes effect with a boot only",
            source=source,
            key=f"{key}.{given[0]}",
            hint='reboot = true under [target], or kind = "lab"',
        )
    check_boot_keys(configuration, loads_policy=bool(configuration.setup), source=source, key=key)


def _check_effect(check: TookEffect, source: str, key: str) -> None:
    if sum(each is not None for each in (check.command, check.file, check.environment)) != 1:
        raise SpecError("give exactly one of command, file, environment", source=source, key=key)
    if sum(each is not None for each in (check.contains, check.equals, check.matches)) > 1:
        raise SpecError("give at most one of contains, equals, matches", source=source, key=key)
    if check.file is not None and check.contains is check.equals is check.matches is None:
        raise SpecError(
            "say what the file must hold: contains, equals or matches", source=source, key=key
        )
    _check_pattern(check.matches, source, f"{key}.matches")


def _check_pattern(pattern: str | None, source: str, key: str) -> None:
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise SpecError(
                f"is not a regular expression: {error}", source=source, key=key
            ) from error


def _check_task(task: Task, source: str, key: str) -> None:
    if sum(each is not None for each in (task.command, task.workload, task.send)) != 1:
        raise SpecError("give exactly one of command, workload, send", source=source, key=key)
    for name in ("until", "failed"):
        _check_pattern(getattr(task, name), source, f"{key}.{name}")
    if task.command is not None and not task.command:
        raise SpecError("the command has no words", source=source, key=f"{key}.command")
    _require_duration(task.timeout, source, f"{key}.timeout")
    if wrong := [code for code in task.expect if not 0 <= code <= 255]:
        raise SpecError(
            f"{wrong[0]} is no exit code: they are from 0 to 255",
            source=source,
            key=f"{key}.expect",
        )


def _require_duration(text: str, source: str, key: str) -> None:
    if _parsed(parse_duration, text, source, key) <= 0:
        raise SpecError("must be above zero", source=source, key=key)


def _parsed(parse: Callable[[str], float], text: str, source: str, key: str) -> float:
    try:
        return parse(text)
    except UsageError as error:
        raise SpecError(error.reason, source=source, key=key, hint=error.hint) from error
