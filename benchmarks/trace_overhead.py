"""What each back-end of `excise trace` costs the traced system calls, counted in a guest.

Every workload is run untraced and under each back-end, over the same hooks, in one guest in count
mode: instructions per operation, so that the ratios are exact.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from excise.collect.probe import probe_path
from excise.lab import Machine, Plan, preset, run_guest
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
BACKENDS: Final = ("function_graph", "kprobe", "fprobe", "function")
BATCHES: Final = 7


def _script(output: str) -> str:
    lines = [
        f"excise-probe run --workload {name} --operations {operations} --batches {BATCHES} "
        f"--directory /work/ext4 >>{output}"
        for name, operations in WORKLOADS.items()
    ]
    return "\n".join(["#!/bin/busybox sh", *lines, ""])


def _steps() -> tuple[Step, ...]:
    out = "/run/out/evidence"
    steps = [Step(task="untraced", command=("sh", "-c", _script(f"{out}/untraced.jsonl")))]
    for backend in BACKENDS:
        words = [f"/{TRACER}", "trace", "--backend", backend, "--hooks", HOOKS]
        words += ["--drain", "end", "--buffer-kb", "65536", "--calibration", "50"]
        words += ["--output", "/run/t", "--summary", f"{out}/{backend}.json", "--"]
        script = _script(f"{out}/{backend}.jsonl")
        steps.append(Step(task=backend, command=(*words, "sh", "-c", script)))
    return tuple(steps)


def run(preset_name: str = "selinux-enforcing") -> None:
    """Print a row for each workload: untraced instructions, and each back-end's ratio to it."""
    plan = Plan(
        steps=_steps(),
        files=proof_files(),
        root_files={TRACER: Path(probe_path()).read_bytes()},
    )
    machine = Machine(memory_mib=1024, timeout_s=3000)
    result = run_guest(machine, preset=preset(preset_name), plan=plan)
    counts = {
        name: {
            line["workload"]: min(line["op_ns"])
            for line in map(json.loads, result.evidence[f"{name}.jsonl"].splitlines())
        }
        for name in ("untraced", *BACKENDS)
    }
    functions = len(json.loads(result.evidence[f"{BACKENDS[0]}.json"])["functions"])
    print(f"Linux {result.kernel.release}, {preset_name}, {functions} functions, ext4, count mode")
    print(f"| operation | untraced | {' | '.join(BACKENDS)} |")
    print("|---|---|" + "---|" * len(BACKENDS))
    for name in WORKLOADS:
        base = counts["untraced"][name]
        ratios = [f"×{counts[backend][name] / base:.2f}" for backend in BACKENDS]
        print(f"| {name} | {base:,.0f} | {' | '.join(ratios)} |")


if __name__ == "__main__":
    run()
