"""Campaigns with reboots: their order, their boot entries, what they refuse, what is seen of them.

Nothing here reboots anything: the machine that a campaign names is never this one.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import typer

from excise.campaign import boot_state
from excise.campaign.boot_state import Asked, BootState
from excise.campaign.run import Finished, resume_campaign, run_campaign
from excise.campaign.schedule import Visit, visits
from excise.campaign.spec import Campaign, Configuration, Task, checked
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.boots import boots_of, entries_of
from excise.campaign.targets.reboot import RebootSession
from excise.campaign.targets.reboot_stages import BootTimes, Inside, boot_records
from excise.campaign.targets.resetting import BootLost
from excise.campaign.targets.ssh import address_of
from excise.campaign.targets.undo import undo_boots
from excise.capture.journal import Event, Loss, Run, RunHead
from excise.capture.manifest import Manifest
from excise.capture.store import Capture, journal_records
from excise.cli.main import main
from excise.cli.run import conclude_interrupted
from excise.collect.boot_entries import BootEntry
from excise.collect.grub import grub_script
from excise.collect.remote import OutOfReach, RemoteMachine
from excise.collect.remote_probe import probe_for
from excise.errors import CaptureError, HostError, OutputError, SpecError
from ssh_servers import SshServer, ssh_server

# What GRUB's own 10_linux prints, as update-grub of Debian 12 runs it: two kernels, one recovery;
# @ stands for a tab.
TEN_LINUX = """\
#!/bin/sh
entry() {
cat <<X
menuentry 'Debian GNU/Linux, with Linux $1$2' --class debian --class gnu-linux {
@load_video
@if [ x\\$feature_platform_search_hint = xy ]; then
@  search --no-floppy --fs-uuid --set=root 0f
@fi
@linux@/boot/vmlinuz-$1 root=/dev/vda1 ro $3$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT
@initrd@/boot/initrd.img-$1
}
X
}
entry 9.9.9 "" ""
entry $(uname -r) " (recovery mode)" "single "
entry $(uname -r) "" ""
"""


def reboot_campaign(**options: object) -> Campaign:
    target = {"host": "nowhere.invalid", "reboot": True, "machine": "another", **options}
    return Campaign(
        configurations=[
            Configuration(name="off"),
            Configuration(name="fix", cmdline="ima_policy=tcb|appraise_tcb ima_appraise=fix"),
        ],
        tasks=[Task(name="boot", workload="boot"), Task(name="t", command=["true"])],
        blocks=3,
        target=SshTarget(**target),  # type: ignore[arg-type]
    )


def test_each_block_boots_every_arm_once_and_keeps_first_runs_apart() -> None:
    campaign = reboot_campaign(runs_per_boot=2)
    boots = list(visits(campaign))
    assert len(boots) == 3 * 3
    assert Counter((boot.heads[0].block, boot.arm) for boot in boots) == {
        (block, arm): 1 for block in range(3) for arm in ("off", "off (A/A)", "fix")
    }
    for boot in boots:
        assert [(head.task, head.phase) for head in boot.heads] == [
            ("boot", "measured"),
            ("t", "first"),
            ("t", "measured"),
            ("t", "measured"),
        ]
    heads = [head for boot in boots for head in boot.heads]
    assert [head.sequence for head in heads] == list(range(campaign.runs))
    assert len({(head.task, head.configuration, head.run) for head in heads}) == len(heads)
    orders = {tuple(b.arm for b in boots if b.heads[0].block == block) for block in range(3)}
    assert len(orders) > 1, "the order of boots is not random"


def test_a_boot_that_was_cut_short_goes_on_with_the_runs_it_lacks() -> None:
    campaign = reboot_campaign()
    whole = list(visits(campaign))
    left = list(visits(campaign, done=frozenset({0, 1})))
    assert left[0].heads == whole[0].heads[2:]
    assert left[1:] == whole[1:]


def test_grub_gets_the_running_kernels_entry_once_for_each_configuration(tmp_path: Path) -> None:
    ten_linux = tmp_path / "10_linux"
    ten_linux.write_text(TEN_LINUX.replace("@", "\t"))
    ten_linux.chmod(0o755)
    odd = BootEntry(number=2, words=("a=b,c&d", "e=f\\g"))
    script = grub_script([*entries_of(reboot_campaign()), odd])
    done = subprocess.run(
        ["sh", "-c", script.replace("/etc/grub.d/10_linux", str(ten_linux))],
        env={**os.environ, "GRUB_CMDLINE_LINUX": "console=ttyS0"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert [line for line in lines if line.startswith("menuentry")] == [
        f'menuentry "excise-{number}" --id excise-{number} {{' for number in range(3)
    ]
    kernel = f"\tlinux\t/boot/vmlinuz-{os.uname().release} root=/dev/vda1 ro console=ttyS0"
    assert [line.rstrip() for line in lines if "\tlinux\t" in line] == [
        f"{kernel} excise.configuration=0",
        f"{kernel} 'ima_policy=tcb|appraise_tcb' ima_appraise=fix excise.configuration=1",
        f"{kernel} 'a=b,c&d' 'e=f\\g' excise.configuration=2",
    ]
    assert done.stdout.count("}\n") == 3


def test_labels_are_made_anew_in_a_boot_of_its_own_before_each_that_needs_them() -> None:
    plain = reboot_campaign()
    assert (len(entries_of(plain)), boots_of(plain)) == (2, 9)
    enforce = Configuration(
        name="enforce", ima_policy="appraise_tcb", ima_appraise="enforce", relabel=True
    )
    configurations = [*plain.configurations, enforce]
    campaign = msgspec.structs.replace(plain, configurations=configurations)
    entries = entries_of(campaign)
    assert [entry.number for entry in entries] == [0, 1, 2, 3]
    assert entries[2].words == ("ima_policy=appraise_tcb", "ima_appraise=enforce")
    assert entries[3].words == ("ima_policy=appraise_tcb", "ima_appraise=fix")
    assert boots_of(campaign) == 3 * 5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def test_a_machine_that_is_not_the_named_one_is_not_touched(
    server: SshServer, tmp_path: Path
) -> None:
    target = server.target(reboot=True, machine="no-machine-is-called-so")
    campaign = msgspec.structs.replace(reboot_campaign(), target=target)
    with pytest.raises(HostError, match="and not no-machine-is-called-so: nothing was changed"):
        run_campaign(campaign, tmp_path / "c")
    assert not (tmp_path / "c").exists()
    with pytest.raises(HostError, match="and not no-machine-is-called-so: nothing was changed"):
        undo_boots(campaign, tmp_path)


def test_a_campaign_with_reboots_must_name_its_machine(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"target\.machine: is needed where reboot = true"):
        run_campaign(reboot_campaign(machine=None), tmp_path / "c")


def test_a_reset_that_is_not_there_or_has_no_meaning_is_refused_before_all_else(
    tmp_path: Path,
) -> None:
    campaign = reboot_campaign(reset=["no-such-power-switch", "cycle"])
    with pytest.raises(HostError, match="not found or not executable: no-such-power-switch"):
        run_campaign(campaign, tmp_path / "c")
    plain = reboot_campaign(reset=["true"], reboot=False)
    plain = msgspec.structs.replace(
        plain, configurations=plain.configurations[:1], tasks=[plain.tasks[1]]
    )
    with pytest.raises(SpecError, match=r"target\.reset: belongs to campaigns with reboots"):
        checked(plain, source="c.toml")
    assert not (tmp_path / "c").exists()


def test_a_machine_that_hung_is_waited_for_and_reset_and_named_where_it_stays_down(
    tmp_path: Path,
) -> None:
    switched = tmp_path / "switched"
    reset = ["sh", "-c", f"echo off and on >>{switched}"]
    nobody = {"host": "127.0.0.1", "port": 1, "boot_timeout": "200ms", "connect_timeout": "1s"}
    campaign = reboot_campaign(**nobody)
    path = capture_of(campaign, tmp_path / "c")
    BootState(hung="no answer in 5min", loader="grub").save(path)
    with pytest.raises(HostError, match="still does not answer, after 200ms more"):
        resume_campaign(path)
    assert "still does not answer" in boot_state.read_state(path).stopped
    # The same campaign with a reset that it did not have.
    with pytest.raises(HostError, match="did not come back in 200ms after its reset either"):
        run_campaign(reboot_campaign(**nobody, reset=reset), path)
    assert switched.read_text() == "off and on\n"
    assert losses_in(path) == []
    # A session that was killed while it waited knew nothing of the hang.
    asked = Asked(arm="fix", block=1, boot_id="b", at_s=1.0, mark="excise.configuration=1")
    BootState(boots=4, asked=asked, loader="grub").save(path)
    with pytest.raises(HostError, match="did not come back in 200ms after its reset either"):
        run_campaign(reboot_campaign(**nobody, reset=reset), path)
    (loss,) = losses_in(path)
    assert loss == (
        "attempt 1 of 3 to boot 'fix' in block 1: hung: no answer in 200ms, "
        f"reset by {shlex.join(reset)}"
    )
    state = boot_state.read_state(path)
    assert (state.asked, state.failed, state.attempts) == (None, 1, 1)
    with Capture.open(path), pytest.raises(OutputError, match="another process is writing"):
        run_campaign(reboot_campaign(**nobody, reset=reset), path)
    assert switched.read_text() == "off and on\n" * 2, "reset under a campaign that runs"


class Elsewhere:
    """A session on the server whose boot the test changes: all but the reboots are real."""

    def __init__(self, server: SshServer, path: Path, **options: object) -> None:
        self.server = server
        self.boot = 1
        target = server.target(
            reboot=True, machine="m", give_up="1s", connect_timeout="5s", **options
        )
        task = Task(name="t", command=["true"])
        self.campaign = msgspec.structs.replace(reboot_campaign(), tasks=[task], target=target)
        self.path = capture_of(self.campaign, path)
        self.heads = next(iter(visits(self.campaign))).heads

    @contextmanager
    def session(self) -> Iterator[RebootSession]:
        spec = self.campaign.target
        assert isinstance(spec, SshTarget)
        with (
            Capture.open(self.path) as capture,
            RemoteMachine(address_of(spec), patience_s=1.0) as machine,
        ):
            session = RebootSession(
                self.campaign,
                capture,
                machine=machine,
                probe=probe_for(os.uname().machine),
                folder=f"{self.server.folder}/there",
                spec=spec,
                on_stage=None,
            )
            session._boot_id = lambda _: f"boot {self.boot}"  # type: ignore[method-assign]
            session.open()
            try:
                yield session
            finally:
                session.close()

    def runs(self) -> list[int]:
        return [each.sequence for each in journal_records(self.path) if isinstance(each, Run)]

    def measured(self, session: RebootSession, heads: Sequence[RunHead]) -> None:
        list(session.measured(Visit(arm=heads[0].configuration, heads=tuple(heads))))

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Have the machine answer nobody."""
        self.server.process.send_signal(signal.SIGSTOP)
        try:
            self.server.cut()
            yield
        finally:
            self.server.process.send_signal(signal.SIGCONT)


def test_a_machine_that_starts_anew_under_its_runs_is_measured_on_in_its_next_boot(
    server: SshServer, tmp_path: Path
) -> None:
    there = Elsewhere(server, tmp_path / "c")
    with there.session() as session:
        there.measured(session, there.heads[:1])
        there.boot = 2
        server.cut()
        with pytest.raises(
            BootLost, match="the machine went down while runs were measured"
        ) as lost:
            there.measured(session, there.heads[1:])
        assert (lost.value.hung, lost.value.power) == ("", None)
        assert session.boot_id == "boot 2"
        assert not session.saw_boot
        there.measured(session, there.heads[1:])
    assert there.runs() == [head.sequence for head in there.heads]
    assert not (server.folder / "there").exists()


def test_a_machine_that_hangs_under_its_runs_is_reset_where_something_resets_it(
    server: SshServer, tmp_path: Path
) -> None:
    switched = tmp_path / "switched"
    there = Elsewhere(server, tmp_path / "c", reset=["touch", str(switched)])
    with there.session() as session:
        with there.silent(), pytest.raises(BootLost, match="no answer in 1s while runs") as lost:
            there.measured(session, there.heads[:1])
        assert lost.value.hung == lost.value.reason
        assert lost.value.power is not None
        lost.value.power.cycle()
        assert switched.exists()
        there.boot = 2
        lost.value.power.wait()
        there.measured(session, there.heads)
    assert there.runs() == [head.sequence for head in there.heads]


def test_a_machine_out_of_reach_that_nothing_resets_is_no_failed_boot(
    server: SshServer, tmp_path: Path
) -> None:
    there = Elsewhere(server, tmp_path / "c")
    with there.session() as session:
        with there.silent(), pytest.raises(OutOfReach, match="did not come back in 1 s"):
            there.measured(session, there.heads[:1])
        there.measured(session, there.heads)  # as the next session does, in the same boot
    assert there.runs() == [head.sequence for head in there.heads]


def losses_in(path: Path) -> list[str]:
    return [each.reason for each in journal_records(path) if isinstance(each, Loss)]


def heard(**outputs: bytes) -> Inside:
    return Inside(outputs={k.replace("_", "-"): v for k, v in outputs.items()}, missing={"x": "y"})


def test_the_stages_from_outside_sum_to_the_boot_and_are_reconciled_with_inside() -> None:
    head = RunHead(sequence=7, block=1, task="boot", configuration="off", run=1, phase="measured")
    second = 1_000_000_000
    times = BootTimes(
        asked_ns=10 * second,
        silent_ns=13 * second,
        kernel_ns=20 * second,
        answered_ns=45 * second,
        asked_at_s=1000.0,
    )
    inside = heard(
        systemd_time=b"Startup finished in 4.000s (kernel) + 16.000s (userspace) = 20.000s\n",
        sshd=b"22000000\n\n",
        last_line=b"1004.5\n",
        entries=b"341\n",
    )
    run, records = boot_records(head, times, inside)
    assert run.wall_ns == 35 * second
    events = {(e.layer, e.event): e.value for e in records if isinstance(e, Event)}
    outside = [value for (layer, _), value in events.items() if layer == "outside"]
    assert sum(outside) == run.wall_ns
    assert events["outside", "dark"] == 7 * second
    assert events["inside", "kernel to sshd"] == 22 * second
    assert events["reconciled", "login after sshd"] == 3 * second
    assert events["reconciled", "silent before the last line"] == 1.5 * second
    assert events["stage", "kernel"] == 4 * second
    assert events["ima", "ima_entries"] == 341
    assert all(e.sequence == 7 for e in records if isinstance(e, Event))
    (loss,) = (each for each in records if isinstance(each, Loss))
    assert (loss.source, loss.reason) == ("boot of off: x", "y")


def capture_of(campaign: Campaign, path: Path) -> Path:
    plain = msgspec.to_builtins(campaign)
    with Capture.create(
        path, Manifest(id="1", created="", title="t", origin="measured", campaign=plain)
    ):
        return path


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(words)
    return int(caught.value.code or 0)


def test_status_and_pause_say_what_was_done_and_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture_of(reboot_campaign(), tmp_path / "c")
    state = BootState(boots=5, failed=3, skipped=["fix"], arm="off", block=1, loader="grub")
    state.save(path)
    assert call("campaign", "pause", str(path)) == 0
    assert boot_state.wants_pause(path)
    assert call("campaign", "status", str(path)) == 0
    out = capsys.readouterr().out
    assert out.splitlines() == [
        "0 of 27 runs",
        "5 boots, 3 failed",
        "skipped: fix",
        "booted for: off",
        f"entries in grub; `excise campaign undo {path}` removes them",
        "a pause was asked for: it stops before the next boot",
    ]
    assert call("campaign", "status", str(path), "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out)["boots_failed"] == 3


def test_a_pause_is_an_orderly_end_and_no_failure_of_the_unit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = capture_of(reboot_campaign(), tmp_path / "c")
    finished = Finished(path=path, done=3, total=27, failed=0, interrupted=True)
    with pytest.raises(typer.Exit) as ended:
        conclude_interrupted(finished, as_json=False)
    assert ended.value.exit_code == 130
    boot_state.ask_to_pause(path)
    with pytest.raises(typer.Exit) as ended:
        conclude_interrupted(finished, as_json=False)
    assert ended.value.exit_code == 0
    assert capsys.readouterr().err.endswith("Paused after 3 of 27 runs\n")


def test_pause_and_undo_are_for_campaigns_with_reboots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = [Configuration(name="off"), Configuration(name="fix")]
    campaign = msgspec.structs.replace(reboot_campaign(reboot=False), configurations=plain)
    path = capture_of(campaign, tmp_path / "c")
    for word in ("pause", "undo"):
        assert call("campaign", word, str(path)) == 2
        assert "is of a campaign without reboots" in capsys.readouterr().err


def test_a_state_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / boot_state.STATE).write_text("{")
    with pytest.raises(CaptureError, match=r"boots\.json: cannot be read"):
        boot_state.read_state(tmp_path)
