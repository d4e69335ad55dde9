"""`excise trace`, typed in a guest: a real Debian whose kernel can trace and where Python runs."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Final

import pytest

from excise.campaign.targets.ssh import address_of
from excise.collect.remote import Output, RemoteMachine
from excise.formats import lsmpmon
from excise.formats.model import Options
from reboot_guest import EXCISE, GUEST_PYTHON, install_excise, reboot_guest, wait_until_up
from skips import skip

MONITOR: Final = f"{EXCISE} trace --lsmpmon"
TRACING: Final = "/sys/kernel/tracing"
LEFT: Final = f"ls {TRACING}/instances; cat {TRACING}/kprobe_events; pgrep -l excise-probe; true"
CUT: Final = r"the trace ended at its limit of [0-9,]+ bytes: what came after"


def typed(machine: RemoteMachine, words: str) -> Output:
    return machine.run(words, timeout_s=300.0)


@pytest.mark.lab
@pytest.mark.long
def test_trace_is_typed_in_a_guest_and_monitors_it_as_lsmpmon_did(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    if sys.version_info[:2] != GUEST_PYTHON:
        skip("the guest's Python is 3.11, and compiled packages are of this one")
    with reboot_guest(tmp_path, "python3") as target:
        wait_until_up(target, settle="true")
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            install_excise(machine, "numpy", "polars", "scipy")
            check_a_command(machine)
            check_a_monitor_with_a_limit(machine)
            check_a_killed_monitor(machine)
            assert typed(machine, LEFT).text.split() == []


def check_a_command(machine: RemoteMachine) -> None:
    """Trace a command into a capture; show what it holds."""
    done = typed(
        machine, f"{EXCISE} trace --hooks 'file_*' --pairs 0 -o /tmp/c.excise -- cat /proc/version"
    )
    assert done.exit_code == 0, done.reason
    said = done.text
    assert said.startswith("Linux version 6.1")
    assert "Traced by kprobe: the kernel has kprobe events" in said
    assert re.search(r"^openat +security_file_open +\d", said, re.M)
    assert "Wrote /tmp/c.excise" in done.reason
    shown = typed(machine, f"{EXCISE} show /tmp/c.excise --json")
    assert json.loads(shown.stdout)["title"] == "Hooks of cat /proc/version"


def check_a_monitor_with_a_limit(machine: RemoteMachine) -> None:
    """Start, fill the trace up to its limit, interrupt the stop, and stop again."""
    began = typed(machine, f"{MONITOR} start --most-mb 1")
    assert began.exit_code == 0, began.reason
    again = typed(machine, f"{MONITOR} start")
    assert (again.exit_code, "is started already" in again.reason) == (4, True)
    full = "while [ $(stat -c %s /run/excise/lsmpmon/trace.txt) -lt 1000000 ]; do ls -R /etc; done"
    assert typed(machine, f"{full} >/dev/null").exit_code == 0
    interrupted = typed(machine, f"timeout -s INT 0.7 env {MONITOR} stop")
    assert interrupted.exit_code != 0
    ended = typed(machine, f"{MONITOR} stop")
    assert ended.exit_code == 0, ended.reason
    assert re.search(f"excise: lost: kprobe: {CUT}", ended.stderr.decode())
    reading = lsmpmon.read(ended.stdout, Options(source="x"))
    assert any(re.fullmatch(f"lost before: kprobe: {CUT}.*", one.reason) for one in reading.losses)
    rows = {row.event: row for row in reading.aggregates}
    assert rows["inode_permission"].count > 10
    assert 0 < rows["inode_permission"].min <= rows["inode_permission"].max
    nothing = typed(machine, f"{MONITOR} stop")
    assert (nothing.exit_code, "nothing was started" in nothing.reason) == (4, True)


def check_a_killed_monitor(machine: RemoteMachine) -> None:
    """Kill the tracer; the kernel is put back when it is asked for, and not before."""
    assert typed(machine, f"{MONITOR} start").exit_code == 0
    typed(machine, "kill -9 $(cut -d' ' -f1 /run/excise/lsmpmon/pid)")
    stopped = typed(machine, f"{MONITOR} stop")
    assert (stopped.exit_code, "it was killed" in stopped.reason) == (4, True)
    refused = typed(machine, f"{MONITOR} start")
    assert (refused.exit_code, "is still set up" in refused.reason) == (4, True)
    assert typed(machine, f"ls {TRACING}/instances").text.startswith("excise-")
    assert typed(machine, f"{EXCISE} trace --restore").exit_code == 0
