"""Boots of a campaign: which configuration comes next, what came up, and what is run in it.

The machine is another's business: one reached by ssh, or the one that excise runs on and goes down
with. So whatever must outlive a boot is on disk before the boot is asked for (`boot_state`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from excise.campaign import boot_state
from excise.campaign.boot_state import Asked, BootState
from excise.campaign.schedule import Visit
from excise.campaign.spec import BOOT, Campaign, Configuration
from excise.campaign.target_spec import BootsSpec
from excise.campaign.targets.resetting import (
    ORIGINAL,
    BootLost,
    Power,
    Reboot,
    count_failed,
    failed_boot,
    recover,
)
from excise.capture.journal import Effect, Record, Run, RunHead
from excise.capture.store import Capture
from excise.collect.boot_entries import MARK, BootEntry, BootLoader, Shell
from excise.collect.boot_loaders import boot_loader
from excise.errors import EffectError, HostError, SpecError

ENTERED: Final = (
    "Each configuration was entered by a reboot; a value of a block is the median of a boot's "
    "runs, and the first run of each task after a boot is kept apart."
)
WENT_DOWN: Final = "the machine went down while runs were measured"
_SPARE: Final = 2
_RELABEL_WORDS: Final = ("ima_policy=appraise_tcb", "ima_appraise=fix")
_RELABEL_TIMEOUT_S: Final = 3600.0
# In that boot the kernel labels a file of root's that is opened, where its label is not right.
_RELABEL: Final = """\
while read -r from point kind _; do
    case $from:$kind in
    /dev/*:squashfs | /dev/*:iso9660 | /dev/*:vfat) ;;
    /dev/*) echo "$point" ;;
    esac
done </proc/self/mounts | sort -u | while read -r point; do
    find "$point" -xdev -type f -uid 0 -exec head -c 1 {} + >/dev/null 2>&1
done
sync
"""


class BootedMachine(Protocol):
    """A machine that a campaign boots.

    Attributes:
        boot_id: The kernel's identifier of the boot that the machine is up in.
    """

    boot_id: str

    @property
    def saw_boot(self) -> bool:
        """Return whether the boot that is up can be told as a run."""
        ...

    @property
    def shell(self) -> Shell:
        """Return what runs scripts on it."""
        ...

    def reboot(self) -> Reboot:
        """Reboot; return whether it is up again, goes down with this process, or hangs."""
        ...

    def prove_here(self, configuration: Configuration) -> list[Effect]:
        """Return whether a configuration took effect in the boot that is up."""
        ...

    def measured(self, visit: Visit) -> Iterator[Run]:
        """Measure runs in the boot that is up; yield each once it is in the journal.

        Raises:
            BootLost: If the machine leaves that boot, or hangs in it and can be reset.
        """
        ...

    def boot_records(self, head: RunHead, state: BootState) -> tuple[Run, list[Record]]:
        """Return the boot that is up as a run, and what it consisted of."""
        ...


def entries_of(campaign: Campaign) -> list[BootEntry]:
    """Return the boot entry of each configuration, and a last one that makes labels anew."""
    entries = [
        BootEntry(number=number, words=each.boot_words)
        for number, each in enumerate(campaign.configurations)
    ]
    if any(each.relabel for each in campaign.configurations):
        entries.append(BootEntry(number=len(entries), words=_RELABEL_WORDS))
    return entries


def boots_of(campaign: Campaign) -> int:
    """Return how many boots a campaign takes where none fails."""
    in_a_block = sum(1 + campaign.configuration_of(arm).relabel for arm in campaign.arms)
    return (campaign.warmup + campaign.blocks) * in_a_block


def require_boots(campaign: Campaign, spec: BootsSpec) -> None:
    """Refuse a campaign whose machine is not named, or that reads what a boot prints.

    Raises:
        SpecError: Naming the key.
    """
    for index, task in enumerate(campaign.tasks):
        if task.workload == BOOT and task.events is not None:
            raise SpecError("a boot prints nothing", key=f"tasks[{index}].events")
    if not spec.machine:
        raise SpecError(
            "is needed where reboot = true: the host name or machine id of the machine",
            key="target.machine",
        )


def require_named(shell: Shell, spec: BootsSpec) -> None:
    """Refuse a machine that is not the one named.

    Raises:
        HostError: If it is another.
    """
    names = shell.run("uname -n; cat /etc/machine-id").text.split()
    if spec.machine not in names:
        raise HostError(
            f"is {' / '.join(names)} and not {spec.machine}: nothing was changed on it",
            source=shell.name,
            hint="Reboots are for the machine that the file names: target.machine",
        )


class Boots:
    """What is left of a campaign's boots."""

    def __init__(
        self,
        campaign: Campaign,
        capture: Capture,
        *,
        machine: BootedMachine,
        spec: BootsSpec,
        tell: Callable[[str, str], None],
        goes_on: bool = True,
    ) -> None:
        """Read how far it has come.

        Args:
            campaign: The campaign.
            capture: Its capture.
            machine: What is booted.
            spec: The target that it is.
            tell: Called with (arm, stage).
            goes_on: Whether runs may be measured in a boot that an earlier session asked for.
        """
        self._campaign = campaign
        self._capture = capture
        self._machine = machine
        self._spec = spec
        self._tell = tell
        self._goes_on = goes_on
        self._entries = entries_of(campaign)
        self._state = boot_state.read_state(self._path)
        self._loader: BootLoader | None = None
        self._most_boots = spec.max_boots or _SPARE * (boots_of(campaign) + 1)

    @property
    def _path(self) -> Path:
        return self._capture.path

    def run(self, visits: Iterable[Visit]) -> Generator[Run, None, bool]:
        """Boot for each visit and yield its runs; at the end restore what was booted before.

        Returns whether all is done; if not, this process goes down with the machine.
        """
        self._state.stopped = self._state.hung = ""
        for visit in visits:
            if boot_state.wants_pause(self._path):
                raise KeyboardInterrupt  # as if the user had asked here
            self._install()
            if not (yield from self._visited(visit)):
                return False
        return self._restored()

    def _install(self) -> None:
        """Add the configurations to the boot loader, unless they are there."""
        words = [" ".join(each.words) for each in self._entries]
        if self._state.loader and self._state.entries == words:
            return
        loader = self._boot_loader()
        # Noted first, so that entries written in part are undone too.
        self._state.loader, self._state.entries = loader.name, words
        self._save()
        loader.install(self._entries)

    def _boot_loader(self) -> BootLoader:
        if self._loader is None:
            self._loader = boot_loader(self._machine.shell)
        return self._loader

    def _visited(self, visit: Visit) -> Generator[Run, None, bool]:
        arm, block = visit.arm, visit.heads[0].block
        self._note_crash(arm, block)
        left = visit
        while left.heads:
            boots = [h for h in left.heads if self._campaign.task(h.task).workload == BOOT]
            waits = arm not in self._state.skipped and not self._is_up(left, needs_boot=bool(boots))
            if waits and not self._entered(left, needs_boot=bool(boots)):
                return False
            if arm in self._state.skipped:
                yield from self._skipped(left)
                return True
            try:
                for run in self._measured(left, boots):
                    heads = tuple(h for h in left.heads if h.sequence != run.sequence)
                    left = Visit(arm=arm, heads=heads)
                    yield run
                break
            except BootLost as lost:
                self._note_loss(arm, block, lost)
        self._state.attempts = 0
        self._save()
        return True

    def _measured(self, visit: Visit, boots: list[RunHead]) -> Iterator[Run]:
        """Prove the configuration of the boot that is up, and yield that boot and its runs."""
        self._require_effects(visit.arm)
        for head in boots:
            yield self._boot_run(head)
        self._state.measuring = True
        self._save()
        try:
            rest = tuple(head for head in visit.heads if head not in boots)
            yield from self._machine.measured(Visit(arm=visit.arm, heads=rest))
        finally:
            self._state.measuring = False
            self._save()

    def _is_up(self, visit: Visit, *, needs_boot: bool) -> bool:
        arm, block = visit.arm, visit.heads[0].block
        up = self._state.is_up(arm, block, boot_id=self._machine.boot_id)
        return up and self._is_usable(needs_boot=needs_boot)

    def _is_usable(self, *, needs_boot: bool) -> bool:
        """Tell whether runs may be measured in the boot that is up, the boot itself too if wanted.

        One that nobody saw is made anew: a killed session loses time, and no run.
        """
        return self._goes_on and (self._machine.saw_boot or not needs_boot)

    def _note_crash(self, arm: str, block: int) -> None:
        """Count a boot as failed that the machine left while runs were measured in it."""
        state = self._state
        if not state.measuring:
            return
        state.measuring = False
        if (state.arm, state.block) == (arm, block) and state.boot_id != self._machine.boot_id:
            self._failed(arm, block, WENT_DOWN)
            state.boot_id = ""
        self._save()

    def _note_loss(self, arm: str, block: int, lost: BootLost) -> None:
        """Count the boot as failed that was lost under its runs; have the machine up again."""
        self._state.boot_id = ""
        if lost.hung:
            self._recover(arm, block, hung=lost.hung, power=lost.power)
            self._tell(arm, "up")
        else:
            self._failed(arm, block, lost.reason)

    def _entered(self, visit: Visit, *, needs_boot: bool) -> bool:
        """Have an arm's configuration up, or the arm noted as skipped; False if we go down."""
        arm, block = visit.arm, visit.heads[0].block
        state = self._state
        configuration = self._campaign.configuration_of(arm)
        entry = self._entry_of(configuration)
        # Labels that are right are right for the boot that follows, and for no other.
        following = self._entries[-1] if configuration.relabel else entry
        while True:
            asked, state.asked = state.asked, None
            usable = self._is_usable(needs_boot=needs_boot)
            if asked is not None and usable and self._came_back(asked, arm, block):
                relabelling = asked.mark != entry.mark
                reason = self._reason_not_up(self._entries[-1] if relabelling else entry)
                if reason is not None:
                    self._failed(arm, block, reason)
                elif not relabelling:
                    state.arm, state.block, state.asked_at_s = arm, block, asked.at_s
                    state.boot_id = self._machine.boot_id
                    self._save()
                    return True
                else:
                    self._relabel(arm)
                    following = entry
            if state.attempts >= self._spec.boot_attempts:
                state.skipped.append(arm)
                state.attempts = 0
                self._save()
                return True
            self._count_boot()
            self._boot_loader().choose(following)
            if not self._boot(arm, block, mark=following.mark):
                return False
            following = self._entries[-1] if configuration.relabel else entry

    def _relabel(self, arm: str) -> None:
        """Have the kernel label every file of root's."""
        self._tell(arm, "relabel")
        done = self._machine.shell.run(_RELABEL, timeout_s=_RELABEL_TIMEOUT_S)
        if done.exit_code != 0:
            raise HostError(
                f"files were not labelled: {done.reason}", source=self._machine.shell.name
            )

    def _entry_of(self, configuration: Configuration) -> BootEntry:
        return self._entries[self._campaign.configurations.index(configuration)]

    def _came_back(self, asked: Asked, arm: str, block: int) -> bool:
        """Tell whether the boot that is up is the one that was asked for these runs."""
        return (asked.arm, asked.block) == (arm, block) and self._machine.boot_id != asked.boot_id

    def _boot(self, arm: str, block: int, *, mark: str) -> bool:
        """Reboot; return whether the machine is up again, and not we down with it."""
        self._state.asked = Asked(
            arm=arm,
            block=block,
            boot_id=self._machine.boot_id,
            at_s=self._wall_clock_s(),
            mark=mark,
        )
        self._save()
        shown = arm or ORIGINAL
        self._tell(shown, "reboot")
        ended = self._machine.reboot()
        if ended.hung:
            self._recover(arm, block, hung=ended.hung, power=ended.power)
        elif not ended.up:
            return False
        self._tell(shown, "up")
        return True

    def _recover(self, arm: str, block: int, *, hung: str, power: Power | None) -> None:
        self._state.hung = hung
        recover(
            self._capture,
            self._state,
            arm=arm,
            block=block,
            spec=self._spec,
            name=self._machine.shell.name,
            power=power,
            tell=self._tell,
        )

    def _wall_clock_s(self) -> float:
        text = self._machine.shell.run("date +%s.%N").text
        try:
            return float(text)
        except ValueError:  # a date without fractions
            return time.time()

    def _failed(self, arm: str, block: int, reason: str) -> None:
        count_failed(self._state)
        self._save()
        self._capture.append(
            failed_boot(self._state, self._spec, arm=arm, block=block, reason=reason)
        )

    def _cmdline(self) -> list[str]:
        return self._machine.shell.run("cat /proc/cmdline").text.split()

    def _reason_not_up(self, entry: BootEntry) -> str | None:
        """Return why the wanted configuration is not up, or None."""
        words = self._cmdline()
        marks = [word for word in words if word.startswith(MARK)]
        if marks != [entry.mark]:
            return f"came up as {marks[0] if marks else 'the configuration it always had'}"
        missing = [word for word in entry.words if word not in words]
        return f"/proc/cmdline lacks {' '.join(missing)}" if missing else None

    def _skipped(self, visit: Visit) -> Iterator[Run]:
        error = f"{visit.arm!r} failed to boot {self._spec.boot_attempts} times and is skipped"
        runs = [Run(**msgspec.structs.asdict(head), ok=False, error=error) for head in visit.heads]
        self._capture.extend(list(runs))
        yield from runs

    def _count_boot(self) -> None:
        if self._state.boots >= self._most_boots:
            raise HostError(
                f"{self._most_boots} boots were made, the most that were allowed",
                source=self._machine.shell.name,
                hint="Runs are kept. Raise max_boots and run again, or `excise campaign undo`",
            )
        self._state.boots += 1

    def _require_effects(self, arm: str) -> None:
        """Ask whether the configuration took effect in this boot; write the answers down.

        Raises:
            EffectError: If it did not.
        """
        configuration = self._campaign.configuration_of(arm)
        entry = self._entry_of(configuration)
        wanted = (*entry.words, entry.mark)
        up = self._cmdline()
        cmdline = Effect(
            configuration=arm,
            check="file /proc/cmdline",
            expected=" ".join(wanted),
            got=" ".join(word for word in up if word in wanted),
            outcome="PASSED" if set(wanted) <= set(up) else "FAILED",
        )
        proven = self._machine.prove_here(configuration)
        effects = [cmdline, *(msgspec.structs.replace(e, configuration=arm) for e in proven)]
        self._capture.extend(list(effects))
        if failed := [each for each in effects if each.outcome == "FAILED"]:
            lines = [f"{each.check}: expected {each.expected}, got {each.got}" for each in failed]
            raise EffectError(
                f"{arm} was booted and did not take effect: {'; '.join(lines)}",
                source=self._machine.shell.name,
                hint="Nothing was measured under it. `excise campaign undo` restores the machine",
            )

    def _boot_run(self, head: RunHead) -> Run:
        """Write the boot itself down."""
        run, records = self._machine.boot_records(head, self._state)
        self._capture.extend([run, *records])
        return run

    def _restored(self) -> bool:
        """Take our entries away and boot what the machine always booted; False if we go down."""
        state = self._state
        if state.loader:
            self._boot_loader().undo()
            state.loader, state.entries, state.asked = "", [], None
            self._save()
        while any(word.startswith(MARK) for word in self._cmdline()):
            asked, state.asked = state.asked, None
            if asked is not None and self._came_back(asked, "", -1):
                raise HostError(
                    "the original configuration was booted and is not up",
                    source=self._machine.shell.name,
                    hint="The boot loader is as it was: look at what it boots by itself",
                )
            if not self._boot("", -1, mark=""):
                return False
        self._state = state.restored()
        self._save()
        boot_state.end_pause(self._path)  # one that was asked for too late to be of use
        self._tell(ORIGINAL, "done")
        return True

    def _save(self) -> None:
        self._state.save(self._path)
