"""What each back-end of `excise trace` costs the traced system calls and a workload, counted.

In guests in count mode, so that ratios are those of instructions: system calls, untraced and under
each back-end, over the same hooks; then a workload of files, all hooks traced, in pairs of runs, as
`excise trace` measures it of any command. bpftrace is among them where this host has it.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Final

from excise.collect.probe import probe_path
from excise.cost.hook_trace import TraceSummary
from excise.lab import GuestResult, Machine, Plan, preset, run_guest
from excise.lab.host_share_tree import program_files
from excise.lab.plan import Step
from excise.lab.trace import TRACER
from excise.lab.workloads import proof_files

WORKLOADS: Final = {
    "null": 500,
    "read": 300,
    "stat": 60,
    "open_close": 24,
    "create_0k": 16,
    "delete_0k": 16,
    "fork_execve": 2,
}
HOOKS: Final = "file_*,inode_*,path_*,bprm_*,task_alloc,mmap_*"
BATCHES: Final = 7
OUT: Final = "/run/out/evidence"
TREE: Final = """
cd /excise/ext4 && mkdir tree
for d in 1 2 3 4 5 6 7 8; do
    mkdir tree/$d
    for f in 1 2 3 4 5; do cat /proc/cpuinfo /proc/meminfo >tree/$d/$f; done
done
"""
FILES: Final = (
    "cd /excise/ext4; tar cf t.tar tree; mkdir out; tar xf t.tar -C out; "
    "find out -type f -exec grep -c MHz {} + >/dev/null; rm -r out t.tar"
)
FEW: Final = "file_open,file_permission,inode_permission,inode_getattr,inode_create,inode_unlink"
PAIRS: Final = 6


def _backends() -> tuple[str, ...]:
    bpftrace = ("bpftrace",) if shutil.which("bpftrace") else ()
    return ("function_graph", "kprobe", "fprobe", *bpftrace, "function")


def _tracer(backend: str, hooks: str, *words: str) -> list[str]:
    options = ["--backend", backend, "--hooks", hooks, "--output", "/run/t", *words]
    return [f"/{TRACER}", "trace", *options, "--summary", f"{OUT}/{backend}.json", "--"]


def _script(output: str) -> str:
    lines = [
        f"excise-probe run --workload {name} --operations {operations} --batches {BATCHES} "
        f"--directory /excise/ext4 >>{output}"
        for name, operations in WORKLOADS.items()
    ]
    return "\n".join(["#!/bin/busybox sh", *lines, ""])


def _call_steps(backends: tuple[str, ...]) -> list[Step]:
    steps = [Step(task="untraced", command=("sh", "-c", _script(f"{OUT}/untraced.jsonl")))]
    for backend in backends:
        words = ["--drain", "end", "--buffer-kb", "65536", "--calibration", "0"]
        script = _script(f"{OUT}/{backend}.jsonl")
        command = (*_tracer(backend, HOOKS, *words), "sh", "-c", script)
        steps.append(Step(task=backend, command=command))
    return steps


def _file_steps(backend: str, hooks: str) -> list[Step]:
    words = ["--calibration", "0", "--pairs", str(PAIRS)]
    return [
        Step(task="tree", command=("sh", "-c", TREE)),
        Step(task=backend, command=(*_tracer(backend, hooks, *words), "sh", "-c", FILES)),
    ]


def _guest(steps: list[Step], preset_name: str) -> GuestResult:
    bpftrace = shutil.which("bpftrace")
    tracer = {TRACER: Path(probe_path()).read_bytes()}
    setup = "mkdir -p /tmp; mount -t tracefs t /sys/kernel/tracing"
    plan = Plan(
        steps=(Step(task="setup", command=("sh", "-c", setup)), *steps),
        files=proof_files(),
        root_files={**tracer, **(program_files(Path(bpftrace)) if bpftrace else {})},
    )
    machine = Machine(memory_mib=1536, cmdline="no_timer_check", timeout_s=3000)
    return run_guest(machine, preset=preset(preset_name), plan=plan)


def _summary(result: GuestResult, backend: str) -> TraceSummary:
    import msgspec

    return msgspec.json.decode(result.evidence[f"{backend}.json"], type=TraceSummary)


def calls(preset_name: str) -> None:
    """Print a row for each system call: untraced instructions, and each back-end's ratio to it."""
    backends = _backends()
    result = _guest(_call_steps(backends), preset_name)
    counts = {
        name: {
            line["workload"]: min(line["op_ns"])
            for line in map(json.loads, result.evidence[f"{name}.jsonl"].splitlines())
        }
        for name in ("untraced", *backends)
    }
    functions = len(_summary(result, backends[0]).functions)
    print(f"Linux {result.kernel.release}, {preset_name}, {functions} functions, ext4, count mode")
    print(f"| operation | untraced | {' | '.join(backends)} |")
    print("|---|---:|" + "---:|" * len(backends))
    for name in WORKLOADS:
        base = counts["untraced"][name]
        ratios = [f"×{counts[backend][name] / base:.2f}" for backend in backends]
        print(f"| {name} | {base:,.0f} | {' | '.join(ratios)} |")


def files(preset_name: str, only: tuple[str, ...] = ()) -> None:
    """Print what each back-end adds to a workload of files, of the clock and of its own time.

    bpftrace compiles each hook's programs before every run, so that it gets few of them; the others
    with events are set beside it.
    """
    print(f"{preset_name}, {PAIRS} pairs, ext4, count mode")
    print("| back-end | functions | untraced | traced | clock, 95 % | processor, 95 % |")
    print("|---|---:|---:|---:|---:|---:|")
    backends = _backends()
    rows = [(name, "security_*") for name in backends if name != "bpftrace"]
    rows += [(name, FEW) for name in backends if name != "function"]
    for backend, hooks in rows:
        if only and backend + (":few" if hooks == FEW else "") not in only:
            continue
        found = _summary(_guest(_file_steps(backend, hooks), preset_name), backend)
        said = []
        for change in (found.slowdown("wall_ns"), found.slowdown("cpu_ns")):
            assert change is not None
            low, high = change.low_percent, change.high_percent
            assert low is not None
            assert high is not None
            said.append(f"{change.change_percent:+.1f} % ({low:+.1f} to {high:+.1f})")
        untraced = min(run.wall_ns for run in found.runs if not run.traced)
        traced = min(run.wall_ns for run in found.runs if run.traced)
        row = [backend, f"{len(found.functions)}", f"{untraced:,}", f"{traced:,}", *said]
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Run both parts, or one."""
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("part", nargs="?", choices=("calls", "files"), help="only this part")
    words.add_argument("--preset", default="apparmor")
    words.add_argument(
        "--rows", default="", help="of the workload of files only these, such as fprobe,kprobe:few"
    )
    asked = words.parse_args()
    if asked.part in (None, "calls"):
        calls(asked.preset)
    if asked.part in (None, "files"):
        files(asked.preset, only=tuple(filter(None, asked.rows.split(","))))


if __name__ == "__main__":
    main()
