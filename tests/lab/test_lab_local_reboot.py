"""A campaign that reboots the machine it runs on: a real Debian guest with systemd and GRUB."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from excise.campaign.spec import Campaign
from excise.campaign.targets.ssh import address_of
from excise.capture.journal import Effect, Event, Loss, Run, Session, decode
from excise.capture.store import JOURNAL, read_manifest
from excise.collect.remote import RemoteMachine
from excise.errors import ConnectionLost
from reboot_guest import (
    EXCISE,
    GUEST_PYTHON,
    HOST_NAME,
    install_excise,
    reboot_guest,
    wait_until_up,
)
from skips import skip

CAPTURE: Final = "/root/ima.excise"
COUNT: Final = "/sys/kernel/security/ima/runtime_measurements_count"
BOOTED: Final = (
    "cat /boot/grub/grub.cfg; grub-editenv - list; sha256sum /boot/grub/grubenv /etc/default/grub;"
    " ls /etc/grub.d /var/lib/excise /etc/systemd/system /etc/systemd/system/*.wants"
)
CAMPAIGN: Final = f"""\
title = "IMA by reboots of this machine"
blocks = 2
work_directory = "/var/tmp"

[target]
kind = "local"
reboot = true
machine = "{HOST_NAME}"

[[configurations]]
name = "off"
took_effect = [{{ file = "{COUNT}", matches = "^[01]$" }}]

[[configurations]]
name = "measure"
cmdline = "ima_policy=tcb"
took_effect = [{{ file = "{COUNT}", matches = "^[0-9]{{3,}}$" }}]

[[tasks]]
name = "boot"
workload = "boot"

[[tasks]]
name = "start"
command = ["/bin/true"]

[[tasks]]
name = "open and close"
workload = "open_close"
"""


def status(machine: RemoteMachine) -> dict[str, Any]:
    """Return what `excise campaign status` says in the guest."""
    done = machine.run(f"{EXCISE} campaign status {CAPTURE} --json", timeout_s=120.0)
    assert done.exit_code == 0, done.reason
    found: dict[str, Any] = msgspec.json.decode(done.stdout)
    return found


def wait_for(
    machine: RemoteMachine, ended: Callable[[dict[str, Any]], bool], *, seconds: float
) -> dict[str, Any]:
    """Look at the campaign from outside now and then, over its boots, until it has ended."""
    deadline = time.monotonic() + seconds
    seen: dict[str, Any] = {}
    while time.monotonic() < deadline:
        time.sleep(10)
        try:
            if not machine.connected:
                machine.connect()
            seen = status(machine)
        except ConnectionLost:
            continue
        if ended(seen):
            return seen
    raise AssertionError(f"it did not end: {seen}")


def fetch(machine: RemoteMachine, into: Path) -> Path:
    """Bring the capture here."""
    done = machine.run(f"tar -C {CAPTURE} -c .", timeout_s=120.0)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(into, filter="data")
    return into


@pytest.mark.lab
@pytest.mark.long
def test_a_machine_boots_itself_through_a_campaign_and_is_put_back(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    if sys.version_info[:2] != GUEST_PYTHON:
        skip("the guest's Python is 3.11, and compiled packages are of this one")
    with reboot_guest(tmp_path, "python3") as target:
        wait_until_up(target)
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            install_excise(machine)
            before = machine.run(BOOTED).text
            began = machine.run("cat /proc/sys/kernel/random/boot_id").text
            machine.require("cat >/root/ima.toml", what="writing", stdin=CAMPAIGN.encode())
            refused = machine.run(
                f"sed s/{HOST_NAME}/another/ /root/ima.toml | {EXCISE} run - -o {CAPTURE}"
            )
            assert refused.exit_code == 4
            assert "and not another: nothing was changed on it" in refused.reason
            assert machine.run(BOOTED).text == before
            begun = machine.run(f"{EXCISE} run /root/ima.toml -o {CAPTURE}", timeout_s=600.0)
            assert begun.exit_code == 0, begun.reason
            assert "This machine reboots now" in begun.reason
            seen = wait_for(
                machine,
                lambda seen: (
                    bool(seen["stopped"])
                    or (seen["runs"] == seen["runs_of"] and seen["unit"] is None)
                ),
                seconds=2400.0,
            )
            after = machine.run(BOOTED).text
            words = machine.run("cat /proc/cmdline").text
            left = machine.run("systemctl list-unit-files | grep excise; ls /var/tmp /tmp").text
            log = machine.run("journalctl -q --no-pager -u excise-campaign.service").text
            (tmp_path / "unit.log").write_text(log)
            capture = fetch(machine, tmp_path / "c")
            again = machine.run("cat /proc/sys/kernel/random/boot_id").text
    assert seen["stopped"] is None, seen
    assert after == before, "the boot configuration is not restored"
    assert "excise" not in words
    assert "excise" not in left
    assert again != began
    check_capture(capture)


def check_capture(path: Path) -> None:
    """Check that the capture holds each run once, and tells of all boots."""
    records = [decode(line) for line in (path / JOURNAL).read_bytes().splitlines()]
    campaign = msgspec.convert(read_manifest(path).campaign, type=Campaign)
    runs = [each for each in records if isinstance(each, Run)]
    assert [run.sequence for run in runs] == list(range(campaign.runs)) == list(range(30))
    assert all(run.ok for run in runs)
    # Two blocks of three arms; the first boot of `measure` was made to die, and tried again.
    state = msgspec.json.decode((path / "boots.json").read_bytes())
    assert (state["boots"], state["failed"], state["skipped"]) == (7, 1, [])
    assert (state["loader"], state["asked"], state["stopped"]) == ("", None, "")
    failed = [each for each in records if isinstance(each, Loss) and "attempt" in each.reason]
    assert [each.reason for each in failed] == [
        "attempt 1 of 3 to boot 'measure' in block 0: came up as the configuration it always had"
    ]
    effects = [each for each in records if isinstance(each, Effect)]
    assert {each.outcome for each in effects} == {"PASSED"}
    booted = {each.configuration: each.got for each in effects if each.check.endswith("cmdline")}
    assert booted == {
        "off": "excise.configuration=0",
        "off (A/A)": "excise.configuration=0",
        "measure": "ima_policy=tcb excise.configuration=1",
    }
    assert {run.phase for run in runs if run.task != "boot"} == {"first", "measured"}
    sessions = [each for each in records if isinstance(each, Session)]
    # The boot that it began in, six of ours, the one in place of that which died, the last.
    assert len({each.boot_id for each in sessions}) == 9
    assert [each.state for each in sessions[:2]] == ["started", "interrupted"]
    assert [each.state for each in sessions[-2:]] == ["resumed", "finished"]
    for boot in (run for run in runs if run.task == "boot"):
        events = {
            (e.layer, e.event): e.value
            for e in records
            if isinstance(e, Event) and e.sequence == boot.sequence
        }
        assert boot.wall_ns is not None
        stages = sum(events["stage", name] for name in ("kernel", "initrd", "userspace"))
        assert abs(stages - boot.wall_ns) < 0.001 * boot.wall_ns
        assert 0 < events["inside", "shutdown to the last log line"] < 120e9
        assert events["inside", "dark"] > 0
        entries = events["ima", "ima_entries"]
        assert entries <= 1 if boot.configuration.startswith("off") else entries > 100
