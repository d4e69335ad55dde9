"""bpftrace as back-end, in a guest that has this host's: the same calls, and a clean end."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Final

import pytest

from excise.collect.probe import probe_path
from excise.cost.hook_trace import HookTrace, read_hook_trace
from excise.lab import GuestResult, Machine, Plan, preset, run_guest
from excise.lab.host_share_tree import program_files
from excise.lab.plan import Step
from excise.lab.trace import TRACER
from excise.lab.workloads import proof_files
from skips import skip

pytestmark = [pytest.mark.lab, pytest.mark.long]

SCRIPT: Final = """
export PATH=$PATH:/usr/bin
mkdir -p /tmp
mount -t tracefs t /sys/kernel/tracing
T=/sys/kernel/tracing
E=/run/out/evidence
for b in bpftrace function_graph; do
    /lab/tracer trace --backend $b --hooks 'file_open,inode_permission,inode_getattr' \\
        --calibration 30 --pairs 2 --output $E/$b --summary $E/$b.json -- cat /proc/version
    echo "$b $?"
done
for s in INT KILL; do
    /lab/tracer trace --backend bpftrace --hooks file_open --calibration 0 --output /run/k \\
        --summary /run/k.json -- sleep 30 &
    p=$!
    w=0
    while [ -z "$(cat $T/enabled_functions)" ] && [ $w -lt 1500 ]; do sleep 0.1; w=$((w + 1)); done
    [ -n "$(cat $T/enabled_functions)" ] && echo "$s attached"
    sleep 0.2
    kill -$s $p
    wait $p
    echo "$s $?"
    w=0
    while [ -n "$(cat $T/enabled_functions)$(pidof bpftrace)" ] && [ $w -lt 200 ]; do
        sleep 0.1
        w=$((w + 1))
    done
    echo "$s left $(cat $T/enabled_functions | wc -l) $(pidof bpftrace)"
    /lab/tracer trace --restore
done
mv /usr/bin/bpftrace /usr/bin/away
/lab/tracer trace --backend bpftrace --output /run/k -- true
echo "away $?"
"""


def bpftrace_files() -> dict[str, bytes]:
    """Return this host's bpftrace for a guest's root, with the libraries that it is linked to."""
    found = shutil.which("bpftrace")
    if found is None:
        skip("bpftrace is not installed (tools/setup.sh lab)")
    return program_files(Path(found))


@pytest.fixture(scope="module")
def guest(lab_cache: Path) -> GuestResult:
    step = Step(task="script", command=("sh", "-c", SCRIPT), must_work=False)
    tracer = {TRACER: Path(probe_path()).read_bytes()}
    plan = Plan(steps=(step,), files=proof_files(), root_files={**tracer, **bpftrace_files()})
    # A busy host may be too late for the kernel's test of its timer.
    machine = Machine(mode="tpm", memory_mib=1536, cmdline="no_timer_check", timeout_s=900)
    return run_guest(machine, preset=preset("none"), plan=plan)


def read(guest: GuestResult, name: str, folder: Path) -> HookTrace:
    (folder / name).write_bytes(guest.evidence[name])
    return read_hook_trace(
        folder / name,
        summary=guest.evidence[f"{name}.json"],
        calibration=guest.evidence[f"{name}.calibration"],
    )


def test_bpftrace_counts_the_calls_that_function_graph_counts(
    guest: GuestResult, tmp_path: Path
) -> None:
    found = {name: read(guest, name, tmp_path) for name in ("bpftrace", "function_graph")}
    calls = {
        name: {
            (syscall, function): count
            for syscall, function, count in each.by_syscall.select(
                "syscall", "function", "calls"
            ).rows()
            if syscall in ("openat", "open", "execve", "read", "stat", "newfstatat")
        }
        for name, each in found.items()
    }
    assert set(calls["bpftrace"]) == set(calls["function_graph"])
    for place, count in calls["bpftrace"].items():
        # A walk along a path that meets a change of the cache begins anew, and asks again.
        again = 1 if place[1] == "security_inode_permission" else 0
        assert abs(count - calls["function_graph"][place]) <= again, place
    assert sum(calls["bpftrace"].values()) > 3
    summed = found["bpftrace"]
    assert "attached by trampolines" in summed.summary.reason
    assert summed.losses == ()
    assert summed.tracer is not None
    assert 0 < summed.tracer.floor < found["function_graph"].functions["mean"].max()
    assert summed.histogram is not None
    assert summed.histogram["count"].sum() == summed.functions["calls"].sum()
    assert summed.summary.slowdown is not None


def test_bpf_programs_end_with_the_tracer_also_when_it_is_killed(guest: GuestResult) -> None:
    said = guest.steps[0].stdout.decode()
    for signal, code in (("INT", "130"), ("KILL", "137")):
        assert f"{signal} attached\n" in said
        assert f"{signal} {code}\n" in said
        assert re.search(rf"^{signal} left 0\s*$", said, re.M), said


def test_a_machine_without_bpftrace_says_so(guest: GuestResult) -> None:
    assert "away 4\n" in guest.steps[0].stdout.decode()
    assert b"--backend bpftrace: bpftrace is not installed" in guest.steps[0].stderr
    offers = json.loads(guest.evidence["function_graph.json"])["offers"]
    assert {each["backend"]: each["offered"] for each in offers}["bpftrace"]
