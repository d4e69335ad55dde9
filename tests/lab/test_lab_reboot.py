"""Campaigns that reboot a real Debian guest through its GRUB: nothing stands in for anything."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from excise.campaign import boot_state
from excise.campaign.boot_state import BootState, read_state
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.rebooting import boot_id
from excise.campaign.targets.ssh import address_of
from excise.capture.journal import Effect, Event, Loss, Record, Run, decode
from excise.capture.store import JOURNAL, Capture
from excise.collect.remote import RemoteMachine
from reboot_guest import reboot_guest, wait_until_up
from skips import skip

COUNT = "/sys/kernel/security/ima/runtime_measurements_count"
BOOTED = (
    "cat /boot/grub/grub.cfg; grub-editenv - list; ls /etc/grub.d; ls -d /var/lib/excise; "
    "ls /var/tmp | grep -v systemd-private-"  # services' own, named by the boot
)
BOOT = Task(name="boot", workload="boot")
START = Task(name="start", command=["/bin/true"])
PATIENCE_S = 1800.0


def ima_campaign(target: SshTarget) -> Campaign:
    """Return off, measure and enforce, with the boot and the start of a program as tasks."""
    return Campaign(
        title="IMA by reboot",
        configurations=[
            Configuration(name="off", ima_policy="off"),
            Configuration(name="measure", ima_policy="tcb"),
            Configuration(
                name="enforce",
                ima_policy="tcb|appraise_tcb",
                ima_appraise="enforce",
                relabel=True,
                # GRUB forgot the choice by writing to this file past the kernel: it was altered.
                took_effect=[
                    TookEffect(file=COUNT, matches="^[0-9]{3,}$"),
                    TookEffect(command=["cat", "/boot/grub/grubenv"], exit_code=1),
                ],
            ),
        ],
        tasks=[BOOT, START],
        blocks=2,
        work_directory="/var/tmp",
        target=target,
    )


def booted(target: SshTarget) -> str:
    """Return what the guest boots, and what lies about in it."""
    with RemoteMachine(address_of(target)) as machine:
        machine.connect()
        text = machine.run(BOOTED, timeout_s=300.0).text
        assert "excise" not in machine.run("cat /proc/cmdline").text
        return text


def records_of(capture: Path) -> list[Record]:
    return [decode(line) for line in (capture / JOURNAL).read_bytes().splitlines()]


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshTarget, str]]:
    """Give a guest, and what it boots before anything was changed."""
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    with reboot_guest(tmp_path_factory.mktemp("guest")) as target:
        target = msgspec.structs.replace(target, boot_timeout="20min")
        wait_until_up(target)
        yield target, booted(target)


@pytest.mark.lab
@pytest.mark.long
def test_a_guest_is_booted_off_measure_and_enforce_and_put_back(
    guest: tuple[SshTarget, str], tmp_path: Path
) -> None:
    target, before = guest
    campaign = ima_campaign(target)
    finished = run_campaign(campaign, tmp_path / "c")
    assert booted(target) == before, "the boot configuration is not restored"
    assert (finished.done, finished.failed) == (campaign.runs, 0) == (24, 0)
    records = records_of(tmp_path / "c")
    runs = [each for each in records if isinstance(each, Run)]
    assert [run.sequence for run in runs] == list(range(24))
    boots = [run for run in runs if run.task == "boot"]
    assert len(boots) == 8
    assert {run.phase for run in runs if run.task == "start"} == {"first", "measured"}
    # Eight boots that count, one to make labels anew before each of two, and the first boot of
    # configuration 1, which was made to die: it was tried again.
    state = read_state(tmp_path / "c")
    assert (state.boots, state.failed, state.skipped, state.loader) == (11, 1, [], "")
    failed = [each for each in records if isinstance(each, Loss) and "attempt" in each.reason]
    assert len(failed) == 1
    assert "attempt 1 of 3 to boot 'measure'" in failed[0].reason
    assert "came up as the configuration it always had" in failed[0].reason
    require_effects([each for each in records if isinstance(each, Effect)])
    for boot in boots:
        require_stages(boot, records)


def require_effects(effects: list[Effect]) -> None:
    assert {each.outcome for each in effects} == {"PASSED"}
    up = {each.configuration: each.got for each in effects if each.check.endswith("cmdline")}
    assert up["measure"] == "ima_policy=tcb excise.configuration=1"
    assert up["off (A/A)"] == "excise.configuration=0"
    refused = [each.got for each in effects if each.check == "probe appraise"]
    assert refused == ["enforce (a file without a label was refused)"] * 2


def require_stages(boot: Run, records: list[Record]) -> None:
    """Inside and outside must tell of the same boot."""
    events = {
        (e.layer, e.event): e.value
        for e in records
        if isinstance(e, Event) and e.sequence == boot.sequence
    }
    outside = [value for (layer, _), value in events.items() if layer == "outside"]
    assert sum(outside) == boot.wall_ns
    assert events["stage", "kernel"] > 0
    entries = events["ima", "ima_entries"]
    assert entries <= 1 if boot.configuration.startswith("off") else entries > 100
    # Nobody logs in before sshd listens, and we look more often than once in a minute.
    assert -1e9 < events["reconciled", "login after sshd"] < 60e9


SHORT = """\
title = "modules and FIPS by reboot"
blocks = 1
work_directory = "/var/tmp"
[[configurations]]
name = "tomoyo"
lsm = "tomoyo"
fips = false
[[configurations]]
name = "fips"
fips = true
[[tasks]]
name = "boot"
workload = "boot"
[[tasks]]
name = "start"
command = ["/bin/true"]
{target}
"""


def toml_of(target: SshTarget) -> str:
    """Return the target's table as a user writes it; words, numbers and lists are as in JSON."""
    plain = msgspec.to_builtins(target).items()
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain if value is not None]
    return "\n".join(["[target]", *lines])


def excise(*words: str | Path, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "excise", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


@contextmanager
def running(file: Path, capture: Path) -> Iterator[subprocess.Popen[str]]:
    """Run the campaign as its user does, in a process of its own."""
    command = [sys.executable, "-m", "excise", "run", str(file), "-o", str(capture)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for_state(capture: Path, wanted: Any, process: subprocess.Popen[str]) -> BootState:
    """Wait until the campaign's boots have come so far."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        state = read_state(capture)
        if wanted(state):
            return state
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, state
        time.sleep(0.1)


def status(capture: Path) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(excise("campaign", "status", capture, "--json"))
    return found


@pytest.mark.lab
@pytest.mark.long
def test_a_campaign_is_paused_undone_interrupted_and_killed_and_loses_nothing(
    guest: tuple[SshTarget, str], tmp_path: Path
) -> None:
    target, before = guest
    file, capture = tmp_path / "c.toml", tmp_path / "c"
    file.write_text(SHORT.format(target=toml_of(target)))
    # Paused once the first boot is measured: it stops before the second.
    with running(file, capture) as process:
        wait_for_state(capture, lambda state: state.boot_id, process)
        excise("campaign", "pause", capture)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert "Paused after 3 of 9 runs" in said
    found = status(capture)
    assert (found["runs"], found["boot_loader_changed"]) == (3, "grub")
    with Capture.open(capture):
        assert "another process is writing this capture" in undo_refused(capture)
    # Undone in the middle: the machine is as it was; the campaign goes on all the same.
    up = read_state(capture).boot_id
    answer = msgspec.json.decode(excise("campaign", "undo", capture, "--json"))
    assert answer == {"restored": True, "rebooted": True, "loader": "grub"}
    wait_until_up_again(target, than=up)
    assert booted(target) == before
    # Ctrl-C in the middle of a boot, then a kill in the middle of the next.
    # SIGTERM is taken as Ctrl-C is, and a shell does not have it ignored in the background.
    for signal_number, code in ((signal.SIGTERM, 130), (signal.SIGKILL, -9)):
        boots = status(capture)["boots"]
        with running(file, capture) as process:
            state = wait_for_state(capture, lambda state, n=boots: is_booting(state, n), process)
            time.sleep(5.0)
            process.send_signal(signal_number)
            _, said = process.communicate(timeout=PATIENCE_S)
            assert process.returncode == code, said
        assert status(capture)["runs"] == 3
        assert state.asked is not None
        wait_until_up_again(target, than=state.asked.boot_id)
    with running(file, capture) as process:
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    assert booted(target) == before
    runs = [each for each in records_of(capture) if isinstance(each, Run)]
    assert [run.sequence for run in runs] == list(range(9))
    assert Counter(run.task for run in runs) == {"boot": 3, "start": 6}
    assert all(run.ok for run in runs)
    effects = [each for each in records_of(capture) if isinstance(each, Effect)]
    assert {each.outcome for each in effects} == {"PASSED"}
    got = {(each.configuration, each.check): each.got for each in effects}
    modules = got["tomoyo", "file /sys/kernel/security/lsm"]
    assert "tomoyo" in modules
    assert not re.search("apparmor|selinux|landlock|yama", modules)
    assert got["fips", "file /proc/sys/crypto/fips_enabled"] == "1"
    assert got["tomoyo", "file /proc/sys/crypto/fips_enabled"] == "0"
    assert not boot_state.wants_pause(capture)


def is_booting(state: BootState, before: int) -> bool:
    return state.boots > before and state.asked is not None


def undo_refused(capture: Path) -> str:
    command = [sys.executable, "-m", "excise", "campaign", "undo", str(capture)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stderr


def wait_until_up_again(target: SshTarget, *, than: str) -> None:
    """Wait until the guest answers in another boot than that one."""
    deadline = time.monotonic() + PATIENCE_S
    with RemoteMachine(address_of(target), patience_s=PATIENCE_S) as machine:
        while machine.insist(lambda: boot_id(machine)) in ("", than):
            assert time.monotonic() < deadline
            time.sleep(1.0)
