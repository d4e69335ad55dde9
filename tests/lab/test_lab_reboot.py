"""A campaign that reboots a real Debian guest through its GRUB: nothing stands in for anything."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from excise.campaign.boot_state import read_state
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.ssh import address_of
from excise.capture.journal import Effect, Event, Loss, Run, decode
from excise.capture.store import JOURNAL
from excise.collect.remote import RemoteMachine
from reboot_guest import reboot_guest, wait_until_up
from skips import skip

COUNT = "/sys/kernel/security/ima/runtime_measurements_count"
BOOTED = "cat /boot/grub/grub.cfg; grub-editenv - list; ls /etc/grub.d; ls /var/lib/excise /var/tmp"


def ima_campaign(target: SshTarget) -> Campaign:
    """Return off, measure and fix, with the boot and the start of a program as tasks."""
    many = TookEffect(file=COUNT, matches="^[0-9]{3,}$")
    return Campaign(
        title="IMA by reboot",
        configurations=[
            Configuration(name="off", took_effect=[TookEffect(file=COUNT, matches="^[01]$")]),
            Configuration(name="measure", cmdline="ima_policy=tcb", took_effect=[many]),
            Configuration(
                name="fix",
                cmdline="ima_policy=tcb|appraise_tcb ima_appraise=fix",
                took_effect=[many],
            ),
        ],
        tasks=[Task(name="boot", workload="boot"), Task(name="start", command=["/bin/true"])],
        blocks=2,
        work_directory="/var/tmp",
        target=target,
    )


@pytest.mark.lab
@pytest.mark.long
def test_a_guest_is_booted_off_measure_and_fix_and_put_back(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    with reboot_guest(tmp_path) as target:
        wait_until_up(target)
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            before = machine.run(BOOTED).text
        campaign = ima_campaign(target)
        finished = run_campaign(campaign, tmp_path / "c")
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            assert machine.run(BOOTED).text == before, "the boot configuration is not restored"
            assert "excise" not in machine.run("cat /proc/cmdline").text
    assert (finished.done, finished.failed) == (campaign.runs, 0) == (24, 0)
    records = [decode(line) for line in (tmp_path / "c" / JOURNAL).read_bytes().splitlines()]
    runs = [each for each in records if isinstance(each, Run)]
    assert [run.sequence for run in runs] == list(range(24))
    boots = [run for run in runs if run.task == "boot"]
    assert len(boots) == 8
    assert {run.phase for run in runs if run.task == "start"} == {"first", "measured"}
    # One boot of configuration 1 was made to die; it was tried again.
    state = read_state(tmp_path / "c")
    assert (state.boots, state.failed, state.skipped, state.loader) == (9, 1, [], "")
    failed = [each for each in records if isinstance(each, Loss) and "attempt" in each.reason]
    assert len(failed) == 1
    assert "attempt 1 of 3 to boot 'measure'" in failed[0].reason
    assert "came up as the configuration it always had" in failed[0].reason
    effects = [each for each in records if isinstance(each, Effect)]
    assert {each.outcome for each in effects} == {"PASSED"}
    booted = {each.configuration: each.got for each in effects if each.check.endswith("cmdline")}
    assert booted["measure"] == "ima_policy=tcb excise.configuration=1"
    assert booted["off (A/A)"] == "excise.configuration=0"
    for boot in boots:
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
        # Inside and outside tell of the same boot: no login before sshd, by more than the looks.
        assert -1e9 < events["reconciled", "login after sshd"] < 60e9
    assert msgspec.json.decode((tmp_path / "c" / "boots.json").read_bytes())["boots"] == 9
