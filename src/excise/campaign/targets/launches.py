"""From the head of a run to what the native launcher is asked, on whatever machine it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from excise.campaign.schedule import environment_padding
from excise.campaign.spec import BATCHES, Campaign, Configuration, Task
from excise.capture.journal import RunHead
from excise.collect.launcher import Exec, Launch
from excise.units import parse_duration

PADDING: Final = "EXCISE_PADDING"
STEP_TIMEOUT_NS: Final = 600_000_000_000


class Launches:
    """The launches of a campaign on a machine.

    Attributes:
        operations: Operations per batch of each workload task.
    """

    def __init__(self, campaign: Campaign, *, probe: str, work_directory: str) -> None:
        """Keep what all launches have in common.

        Args:
            campaign: The campaign.
            probe: Path of the native program on that machine.
            work_directory: Folder that workloads work in there.
        """
        self.operations: Mapping[str, int] = {}
        self._campaign = campaign
        self._probe = probe
        self._work_directory = work_directory
        self._timeouts_ns = {task.name: parse_duration(task.timeout) for task in campaign.tasks}

    def launch(self, head: RunHead, *, stdout: str) -> Launch:
        """Return the launch of a run.

        Args:
            head: Which run.
            stdout: File that keeps the output of a task with events.
        """
        task = self._campaign.task(head.task)
        configuration = self._campaign.configuration_of(head.configuration)
        environment = dict(configuration.environment)
        if self._campaign.randomise_environment:
            environment[PADDING] = environment_padding(head.sequence, seed=self._campaign.seed)
        return Launch(
            head=head,
            argv=self._argv(task, configuration),
            environment=environment,
            unset=configuration.unset,
            directory=task.directory,
            timeout_ns=self._timeouts_ns[task.name],
            expect=task.expect,
            stdout=_stdout(task, stdout),
            counters=task.counters,
            before=list(self.steps(configuration, configuration.setup)),
            after=list(self.steps(configuration, configuration.teardown)),
        )

    def prefix(self, configuration: Configuration) -> list[str]:
        """Return the words that put a command under a configuration.

        Where any configuration needs the probe, every one goes through it: else the cost of the
        probe's own start would be part of the difference.
        """
        words = list(configuration.prefix)
        if any(each.probe for each in self._campaign.configurations):
            words += [self._probe, "exec", *configuration.probe]
            if "--landlock" in configuration.probe:
                words += ["--directory", self._work_directory]
            words.append("--")
        return words

    def steps(self, configuration: Configuration, commands: list[list[str]]) -> Iterator[Exec]:
        """Yield the unmeasured commands of a configuration's set-up or tear-down."""
        for words in commands:
            yield Exec(
                argv=words,
                environment=configuration.environment,
                unset=configuration.unset,
                timeout_ns=STEP_TIMEOUT_NS,
            )

    def _argv(self, task: Task, configuration: Configuration) -> list[str]:
        if task.command is not None:
            return [*self.prefix(configuration), *task.command]
        words = [*configuration.prefix, self._probe, "run", "--workload", str(task.workload)]
        words += ["--operations", str(self.operations[task.name])]
        words += ["--batches", str(task.batches or BATCHES)]
        return [*words, "--directory", self._work_directory, *configuration.probe]


def _stdout(task: Task, file: str) -> str:
    if task.workload is not None:
        return "probe"
    return "discard" if task.events is None else file
