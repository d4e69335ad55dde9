"""What a campaign's runner asks of a target, of any kind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from excise.campaign.schedule import Visit
    from excise.campaign.spec import Task
    from excise.capture.journal import Effect, Run
    from excise.capture.manifest import Fact
    from excise.capture.store import Capture
    from excise.clock import Clock


class TargetSession(Protocol):
    """One span of work on a machine, from its opening to its closing.

    Attributes:
        boot_id: Identifier of the boot that this session began in, or "".
    """

    boot_id: str

    def prove(self) -> list[Effect]:
        """Return whether each configuration took effect; nothing is measured if one FAILED.

        A machine that enters a configuration only with a boot returns [] here. It proves it in
        `run`, appends the effects to the journal before the runs, and raises EffectError.

        Raises:
            HostError: If the machine cannot be asked.
        """
        ...

    def calibrate(self, task: Task) -> int:
        """Return the operations per batch of a workload that does not give them.

        Raises:
            HostError: If the probe cannot run there.
        """
        ...

    def run(self, visits: Iterable[Visit], *, operations: Mapping[str, int]) -> Iterator[Run]:
        """Measure the visits in their order; yield each run once it is in the journal.

        Raw files and evidence of a visit are in the capture before its runs are. Heads whose
        sequence is in `visit.recorded` are not written again.

        Args:
            visits: What to measure.
            operations: Operations per batch of each workload task.

        Raises:
            EffectError: If a configuration entered in a visit did not take effect.
            HostError: If the machine fails; runs of other visits are in the journal.
        """
        ...

    def stop(self) -> list[Run]:
        """End after an interrupt: what is in progress finishes; return the runs not yet yielded.

        Called a second time (interrupted again), end at once.
        """
        ...


class Target(Protocol):
    """Where a campaign runs. Nothing on the machine is changed before `session`."""

    def require(self) -> None:
        """Refuse what cannot work, before anything is written.

        Raises:
            HostError: If a program, a right or the machine is missing.
            SpecError: If the campaign asks for what this kind of target does not have.
        """
        ...

    def host_facts(self) -> list[Fact]:
        """Return the facts of the machine under test."""
        ...

    def clocks(self) -> list[Clock]:
        """Return the clocks that figures will be of."""
        ...

    def notes(self) -> list[str]:
        """Return sentences for the manifest that a reader of the figures needs."""
        ...

    def session(self, capture: Capture) -> AbstractContextManager[TargetSession]:
        """Open the machine: connect, place the probe, make work folders; undo it on the way out.

        Args:
            capture: Open for appending. The target writes runs, effects, losses and raw files;
                all else is the runner's.
        """
        ...


class StageListener(Protocol):
    """Something that is told how far a visit has come."""

    def __call__(self, configuration: str, stage: str) -> None:
        """Take notice of a stage, such as `measure`."""
        ...
