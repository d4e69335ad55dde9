"""Boots of a campaign on a machine that each boot ends, as a state machine: nothing is booted.

The machine here is a file's worth of state; what real ones do is in tests/lab.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from ended import wait_until
from excise.campaign import boot_state
from excise.campaign.boot_state import BootState, read_state
from excise.campaign.run import runs_recorded
from excise.campaign.schedule import Visit, visits
from excise.campaign.spec import Campaign, Configuration, Task
from excise.campaign.target_spec import LocalTarget
from excise.campaign.targets import boots as boots_module
from excise.campaign.targets.boots import WENT_DOWN, Boots
from excise.campaign.targets.resetting import BootLost, Power, Reboot, run_reset
from excise.capture.journal import Effect, Loss, Record, Run, RunHead
from excise.capture.manifest import Manifest
from excise.capture.store import Capture, journal_records
from excise.collect.boot_entries import MARK, BootEntry
from excise.collect.remote import Output
from excise.errors import HostError


class PaperMachine:
    """A machine that goes down with the process at each boot, and its boot loader."""

    name = "paper"
    saw_boot = True

    def __init__(self) -> None:
        self.boots = 0
        self.words: list[str] = []
        self.entries: dict[int, BootEntry] = {}
        self.chosen: int | None = None
        self.dies: Callable[[int], bool] = lambda _: False
        self.crashes_at = -1
        self.loses: Callable[[RunHead], bool] = lambda _: False
        self.hangs: Callable[[int], bool] = lambda _: False
        self.power: Power | None = None
        self.capture: Capture | None = None

    @property
    def shell(self) -> PaperMachine:
        return self

    @property
    def boot_id(self) -> str:
        return f"boot {self.boots}"

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        text = "1000.5" if script.startswith("date") else " ".join(["root=/dev/x", *self.words])
        return Output(exit_code=0, stdout=text.encode(), stderr=b"")

    def install(self, entries: Sequence[BootEntry]) -> None:
        self.entries = {entry.number: entry for entry in entries}

    def choose(self, entry: BootEntry) -> None:
        self.chosen = entry.number

    def undo(self) -> None:
        self.entries, self.chosen = {}, None

    def reboot(self) -> Reboot:
        if self.chosen is not None and self.hangs(self.chosen):
            self.chosen = None
            return Reboot(up=False, hung="no answer in 5min", power=self.power)
        return Reboot(up=False)

    def come_up(self) -> None:
        """Boot: what was chosen once, or what it always did where that dies."""
        self.boots += 1
        number, self.chosen = self.chosen, None
        if number is None or self.dies(number):
            self.words = []
        else:
            self.words = [*self.entries[number].words, self.entries[number].mark]

    def prove_here(self, configuration: Configuration) -> list[Effect]:
        return []

    def measured(self, visit: Visit) -> Iterator[Run]:
        assert self.capture is not None
        for head in visit.heads:
            if head.sequence == self.crashes_at:
                self.crashes_at = -1
                raise PowerCut
            if self.loses(head):
                if self.power is None:
                    self.come_up()
                raise BootLost(WENT_DOWN, source=self.name, power=self.power)
            yield self._done(head)

    def boot_records(self, head: RunHead, state: BootState) -> tuple[Run, list[Record]]:
        return Run(**msgspec.structs.asdict(head), wall_ns=1), []

    def _done(self, head: RunHead) -> Run:
        assert self.capture is not None
        run = Run(**msgspec.structs.asdict(head), wall_ns=1)
        self.capture.append(run)
        return run


class PowerCut(BaseException):
    """The machine is without power."""


def campaign_of(**options: object) -> Campaign:
    return Campaign(
        configurations=[Configuration(name="off"), Configuration(name="on", cmdline="a=1")],
        tasks=[Task(name="boot", workload="boot"), Task(name="t", command=["true"])],
        blocks=2,
        target=LocalTarget(reboot=True, machine="paper", **options),  # type: ignore[arg-type]
    )


class Unit:
    """What the unit does after each boot: a process that goes on from the capture."""

    def __init__(self, campaign: Campaign, path: Path, machine: PaperMachine) -> None:
        self.campaign = campaign
        self.path = path
        self.machine = machine
        plain = msgspec.to_builtins(campaign)
        manifest = Manifest(id="1", created="", title="t", origin="measured", campaign=plain)
        Capture.create(path, manifest).close()

    def process(self) -> bool:
        """Run one process; return whether it has come to the campaign's end."""
        assert isinstance(self.campaign.target, LocalTarget)
        with Capture.open(self.path) as capture:
            self.machine.capture = capture
            records = [each for each in journal_records(self.path) if isinstance(each, Run)]
            boots = Boots(
                self.campaign,
                capture,
                machine=self.machine,
                spec=self.campaign.target,
                tell=lambda _, __: None,
            )
            going = boots.run(visits(self.campaign, done={run.sequence for run in records}))
            while True:
                try:
                    next(going)
                except StopIteration as end:
                    return bool(end.value)

    def whole(self) -> None:
        """Go on over as many boots as it takes."""
        for _ in range(100):
            if self.process():
                return
            self.machine.come_up()
        raise AssertionError("it loops")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> PaperMachine:
    paper = PaperMachine()
    monkeypatch.setattr(boots_module, "boot_loader", lambda _: paper)
    return paper


def runs_in(path: Path) -> list[Run]:
    return [each for each in journal_records(path) if isinstance(each, Run)]


def test_every_boot_ends_the_process_and_nothing_is_lost_or_doubled(
    machine: PaperMachine, tmp_path: Path
) -> None:
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    unit.whole()
    assert [run.sequence for run in runs_in(unit.path)] == list(range(unit.campaign.runs))
    assert machine.boots == 7, "six boots of ours and the last one, of what it always booted"
    assert (machine.entries, machine.words) == ({}, [])
    assert read_state(unit.path) == BootState(boots=6)
    assert not boot_state.has_changed_the_machine(unit.path)


def test_a_configuration_that_never_boots_is_skipped_after_three_boots(
    machine: PaperMachine, tmp_path: Path
) -> None:
    machine.dies = lambda number: number == 1
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    unit.whole()
    runs = runs_in(unit.path)
    assert [run.sequence for run in runs] == list(range(unit.campaign.runs))
    assert {run.configuration for run in runs if not run.ok} == {"on"}
    assert all(run.ok == (run.configuration != "on") for run in runs)
    losses = [each.reason for each in journal_records(unit.path) if isinstance(each, Loss)]
    assert [reason[:14] for reason in losses] == [f"attempt {n} of 3" for n in (1, 2, 3)]
    assert read_state(unit.path).skipped == ["on"]


def test_a_power_cut_among_the_runs_counts_as_a_failed_boot_and_loses_none(
    machine: PaperMachine, tmp_path: Path
) -> None:
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    heads = [head for visit in visits(unit.campaign) for head in visit.heads]
    machine.crashes_at = next(h.sequence for h in heads if h.task == "t" and h.phase == "measured")
    with pytest.raises(PowerCut):
        unit.whole()
    # A process without power writes nothing any more.
    state = read_state(unit.path)
    assert (state.measuring, state.failed) == (False, 0)
    state.measuring = True
    state.save(unit.path)
    machine.come_up()
    unit.whole()
    assert [run.sequence for run in runs_in(unit.path)] == list(range(unit.campaign.runs))
    (loss,) = (each for each in journal_records(unit.path) if isinstance(each, Loss))
    assert loss.reason.endswith("the machine went down while runs were measured")
    assert read_state(unit.path).failed == 1


def on_and_measured(head: RunHead) -> bool:
    return head.configuration == "on" and head.phase == "measured"


@pytest.mark.parametrize("with_power", [False, True])
def test_a_machine_that_is_lost_under_its_runs_is_booted_again_and_measured_on(
    machine: PaperMachine, tmp_path: Path, with_power: bool
) -> None:
    if with_power:
        machine.power = Power(words=["true"], timeout="1min", wait=machine.come_up)
    lost: list[int] = []

    def once_a_block(head: RunHead) -> bool:
        if not on_and_measured(head) or head.block in lost:
            return False
        lost.append(head.block)
        return True

    machine.loses = once_a_block
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    unit.whole()
    runs = runs_in(unit.path)
    assert sorted(run.sequence for run in runs) == list(range(unit.campaign.runs))
    assert all(run.ok for run in runs)
    how = f"hung: {WENT_DOWN}, reset by true" if with_power else WENT_DOWN
    assert losses_in(unit.path) == [
        f"attempt 1 of 3 to boot 'on' in block {b}: {how}" for b in lost
    ]
    assert lost == [0, 1]
    assert read_state(unit.path) == BootState(boots=8, failed=2)


def test_a_configuration_under_which_the_machine_always_goes_down_is_skipped(
    machine: PaperMachine, tmp_path: Path
) -> None:
    machine.loses = on_and_measured
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    unit.whole()
    runs = runs_in(unit.path)
    assert [run.sequence for run in runs] == list(range(unit.campaign.runs))
    failed = [run for run in runs if not run.ok]
    assert all(run.configuration == "on" for run in failed)
    assert 0 < len(failed) < sum(run.configuration == "on" for run in runs), (
        "what was measured stays"
    )
    assert read_state(unit.path).skipped == ["on"]
    assert [reason[:14] for reason in losses_in(unit.path)] == [
        f"attempt {n} of 3" for n in (1, 2, 3)
    ]


def test_a_campaign_makes_no_more_boots_than_it_may(machine: PaperMachine, tmp_path: Path) -> None:
    unit = Unit(campaign_of(max_boots=2), tmp_path / "c", machine)
    with pytest.raises(HostError, match="2 boots were made, the most that were allowed"):
        unit.whole()
    assert machine.boots == 2
    assert boot_state.has_changed_the_machine(unit.path)


def test_a_pause_stops_before_the_next_boot(machine: PaperMachine, tmp_path: Path) -> None:
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    assert not unit.process()
    machine.come_up()
    boot_state.ask_to_pause(unit.path)
    with pytest.raises(KeyboardInterrupt):
        unit.process()
    assert machine.boots == 1
    boot_state.end_pause(unit.path)
    unit.whole()
    assert runs_recorded(unit.campaign, unit.path) == unit.campaign.runs


def test_what_was_asked_for_is_on_disk_before_the_machine_goes_down(
    machine: PaperMachine, tmp_path: Path
) -> None:
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    assert not unit.process()
    state = read_state(unit.path)
    assert state.asked is not None
    assert state.asked.mark == f"{MARK}{machine.chosen}"
    assert (state.boots, state.asked.boot_id, state.asked.at_s) == (1, "boot 0", 1000.5)


def losses_in(path: Path) -> list[str]:
    return [each.reason for each in journal_records(path) if isinstance(each, Loss)]


def test_a_boot_that_hangs_is_reset_and_counted_and_skipped_after_three(
    machine: PaperMachine, tmp_path: Path
) -> None:
    switched = tmp_path / "switched"
    command = ["sh", "-c", f"echo off and on >>{switched}"]
    machine.hangs = lambda number: number == 1
    machine.power = Power(words=command, timeout="1min", wait=machine.come_up)
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    unit.whole()
    assert switched.read_text().splitlines() == ["off and on"] * 3
    assert {run.configuration for run in runs_in(unit.path) if not run.ok} == {"on"}
    (first, *_) = losses = losses_in(unit.path)
    assert len(losses) == 3
    assert re.fullmatch(
        r"attempt 1 of 3 to boot 'on' in block \d: hung: no answer in 5min, "
        rf"reset by sh -c 'echo off and on >>{switched}'",
        first,
    )
    state = read_state(unit.path)
    assert (state.failed, state.skipped, state.hung, state.stopped) == (3, ["on"], "", "")


def test_a_hang_that_nothing_resets_pauses_the_campaign_with_the_boot_counted(
    machine: PaperMachine, tmp_path: Path
) -> None:
    machine.hangs = lambda number: number == 1
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    for attempt in (1, 2, 3):
        with pytest.raises(HostError, match=rf"'on' \(attempt {attempt} of 3\) hung") as stopped:
            unit.whole()
        assert f"excise campaign resume {unit.path}" in str(stopped.value)
        state = read_state(unit.path)
        assert (state.failed, state.asked, state.hung) == (attempt, None, "no answer in 5min")
        assert state.stopped == str(stopped.value)
        assert boot_state.is_on_its_way(unit.path)
        machine.come_up()  # a hand was on the switch
    unit.whole()
    assert [reason[-23:] for reason in losses_in(unit.path)] == ["hung: no answer in 5min"] * 3
    assert {run.configuration for run in runs_in(unit.path) if not run.ok} == {"on"}
    assert not boot_state.is_on_its_way(unit.path)


def test_a_reset_that_fails_says_so_and_leaves_the_boot_counted(
    machine: PaperMachine, tmp_path: Path
) -> None:
    machine.hangs = lambda number: number == 1
    command = ["sh", "-c", "echo no such place >&2; exit 3"]
    machine.power = Power(words=command, timeout="1min", wait=machine.come_up)
    unit = Unit(campaign_of(), tmp_path / "c", machine)
    with pytest.raises(HostError, match="reset command failed with exit code 3: no such place"):
        unit.whole()
    assert losses_in(unit.path)[0].endswith(
        "hung: no answer in 5min, and not reset: the reset command failed with exit code 3: no such"
        " place"
    )
    state = read_state(unit.path)
    assert (state.failed, state.hung) == (1, "no answer in 5min")
    assert "run again to resume" in state.stopped


def test_a_reset_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 600 & echo $! >{pid}.new; mv {pid}.new {pid}; wait"
    with pytest.raises(HostError, match="reset command did not end in 500ms") as ended:
        run_reset(["sh", "-c", script], timeout="500ms")
    assert ended.value.source == shlex.join(["sh", "-c", script])
    # It was sent SIGKILL, which a busy machine lets take effect a moment later.
    wait_until(lambda: is_dead(pid), what="the end of all that it started")


def is_dead(pid: Path) -> bool:
    try:
        stat = Path(f"/proc/{pid.read_text().strip()}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"
