"""Campaigns whose guest hangs, in a boot or under runs: reset by QEMU's monitor or by hand."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from excise.campaign.target_spec import SshTarget
from excise.capture.journal import Loss, Run
from qmp_monitor import RESET, tell
from reboot_guest import SECTOR, booted, disk_image, wait_until_up
from skips import skip
from test_lab_reboot import booted as boots
from test_lab_reboot import excise, records_of, running, status, toml_of, wait_for_state

# systemd goes no further than there: no network, no sshd, and no panic.
STUCK: Final = "systemd.unit=sysinit.target"
LIMIT: Final = "200s"
CAMPAIGN: Final = """\
title = "a boot that hangs"
blocks = 1
work_directory = "/var/tmp"
[[configurations]]
name = "off"
[[configurations]]
name = "stuck"
cmdline = "{stuck}"
[[tasks]]
name = "boot"
workload = "boot"
[[tasks]]
name = "start"
command = ["/bin/true"]
{target}
"""


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SshTarget, Path, str]]:
    """Give a guest, the socket of its monitor, and what it boots before anything was changed."""
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    folder = tmp_path_factory.mktemp("guest")
    monitor = folder / "monitor"
    words = ["-qmp", f"unix:{monitor},server=on,wait=off"]
    with booted(disk_image(), folder, *words, offset=2048 * SECTOR) as target:
        target = msgspec.structs.replace(target, boot_timeout=LIMIT, connect_timeout="20s")
        # Its configuration 1 dies once by itself; here it shall hang, and nothing else.
        wait_until_up(target, settle="touch /var/lib/failed-once && update-grub && sync")
        yield target, monitor, boots(target)


def write(file: Path, target: SshTarget, **options: Any) -> Path:
    target = msgspec.structs.replace(target, **options)
    file.write_text(CAMPAIGN.format(stuck=STUCK, target=toml_of(target)))
    return file


def reset_command(monitor: Path) -> list[str]:
    return [sys.executable, str(Path(__file__).parent / "qmp_monitor.py"), str(monitor), *RESET]


def require_the_rest_measured(capture: Path) -> list[str]:
    """Check that the stuck configuration alone lacks runs; return what is told of its boots."""
    records = records_of(capture)
    runs = [each for each in records if isinstance(each, Run)]
    assert sorted(run.sequence for run in runs) == list(range(9))
    assert {run.configuration for run in runs if run.ok} == {"off", "off (A/A)"}
    assert [run.ok for run in runs].count(False) == 3
    found = status(capture)
    assert (found["skipped"], found["hung"], found["stopped"]) == (["stuck"], None, None)
    assert found["boot_loader_changed"] is None
    return [each.reason for each in records if isinstance(each, Loss) and "hung" in each.reason]


@pytest.mark.lab
@pytest.mark.long
def test_a_boot_that_hangs_is_reset_counted_and_skipped_after_three(
    guest: tuple[SshTarget, Path, str], tmp_path: Path
) -> None:
    target, monitor, before = guest
    file, capture = write(tmp_path / "c.toml", target), tmp_path / "c"
    # Killed in the first hang; the same campaign goes on, with a reset that it did not have then.
    with running(file, capture) as process:
        wait_for_state(capture, lambda s: s.asked is not None and s.asked.arm == "stuck", process)
        time.sleep(15.0)
    words = reset_command(monitor)
    write(file, target, reset=words)
    with running(file, capture) as process:
        _, said = process.communicate(timeout=3600.0)
    assert process.returncode == 1, said
    assert "Not compared: nothing to compare with 'off'" in said
    assert "start under stuck: 2 of 2 runs (not started)" in said
    assert boots(target) == before
    assert require_the_rest_measured(capture) == [
        f"attempt {number} of 3 to boot 'stuck' in block 0: hung: no answer in {LIMIT}, "
        f"reset by {' '.join(words)}"
        for number in (1, 2, 3)
    ]


@pytest.mark.lab
@pytest.mark.long
def test_without_a_reset_a_hang_pauses_the_campaign_until_a_hand_was_on_the_switch(
    guest: tuple[SshTarget, Path, str], tmp_path: Path
) -> None:
    target, monitor, before = guest
    file, capture = write(tmp_path / "c.toml", target, boot_attempts=1), tmp_path / "c"
    with running(file, capture) as process:
        _, said = process.communicate(timeout=3600.0)
    assert process.returncode == 4, said
    assert f"the boot of 'stuck' (attempt 1 of 1) hung (no answer in {LIMIT})" in said
    assert f"go on with `excise campaign resume {capture}`" in said
    found = status(capture)
    assert found["hung"] == f"no answer in {LIMIT}"
    assert "The campaign is paused" in found["stopped"]
    tell(str(monitor), *RESET)
    excise("campaign", "resume", capture)  # at once: it waits for the machine
    assert boots(target) == before
    assert require_the_rest_measured(capture) == [
        f"attempt 1 of 1 to boot 'stuck' in block 0: hung: no answer in {LIMIT}"
    ]


@pytest.mark.lab
@pytest.mark.long
def test_a_machine_that_hangs_or_starts_anew_under_its_runs_is_booted_again_and_loses_none(
    guest: tuple[SshTarget, Path, str], tmp_path: Path
) -> None:
    target, monitor, before = guest
    words = reset_command(monitor)
    target = msgspec.structs.replace(target, give_up="300s", keepalive="5s", reset=words)
    file, capture = tmp_path / "c.toml", tmp_path / "c"
    text = CAMPAIGN.format(stuck="audit=0", target=toml_of(target))
    file.write_text(text.replace('["/bin/true"]', '["/bin/sleep", "10"]'))
    done = set()
    with running(file, capture) as process:
        for command in ("stop", "system_reset"):
            state = wait_for_state(
                capture, lambda state: state.measuring and state.arm not in done, process
            )
            done.add(state.arm)
            tell(str(monitor), command)
        _, said = process.communicate(timeout=3600.0)
    assert process.returncode == 0, said
    assert boots(target) == before
    records = records_of(capture)
    runs = [each for each in records if isinstance(each, Run)]
    assert sorted(run.sequence for run in runs) == list(range(9))
    assert all(run.ok for run in runs)
    lost = [each.reason for each in records if isinstance(each, Loss) and "attempt" in each.reason]
    assert [reason.partition(" in block 0: ")[2] for reason in lost] == [
        f"hung: no answer in 300s while runs were measured, reset by {' '.join(words)}",
        "the machine went down while runs were measured",
    ]
    found = status(capture)
    assert (found["skipped"], found["boots"], found["boots_failed"]) == ([], 5, 2)
