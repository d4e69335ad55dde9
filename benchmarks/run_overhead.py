"""What `excise run -- true` adds to each run, against hyperfine and pyperf, side by side.

Each arm is a whole process that starts the same program n times. Its cost per run is the slope
(T(n2) - T(n1)) / (n2 - n1), so that its own start and its final report do not count; its overhead
is that less the slope of a static C loop of posix_spawn and waitpid. Arms are interleaved at random
in every round. Three slopes are given: of wall time, the median over rounds; of the least wall
times of all rounds, which other load on the machine hardly touches; and of processor time (of the
program and all it started), the median over rounds. Arms whose program is absent are named.
On a busy machine run all of it under `chrt -r 10`, which keeps other work off both sides alike.

    python benchmarks/run_overhead.py --rounds 21 --pyperf-python venv/bin/python --output out.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
EXCISE = Path(sys.executable).with_name("excise")
REFERENCE = "C posix_spawn loop"
PYPERF_LOOPS = 50

Words = Callable[[int, Path], list[str]]


@dataclass
class Arm:
    """A program that starts a command n times, and what it took: wall and processor time in s."""

    name: str
    words: Words
    wall_s: dict[int, list[float]] = field(default_factory=dict)
    processor_s: dict[int, list[float]] = field(default_factory=dict)


def excise(*options: str) -> Words:
    """Return the words of a campaign of n runs: the baseline and its A/A arm, half each."""

    def words(runs: int, folder: Path) -> list[str]:
        blocks = ["-n", str(runs // 2 - 1), "-o", str(folder / "c.excise")]
        return [str(EXCISE), "run", *blocks, *options, "--no-progress", "--", "true"]

    return words


def hyperfine(*options: str) -> Words:
    return lambda runs, _folder: [
        "hyperfine", *options, "--style", "none", "--runs", str(runs), "true",
    ]  # fmt: skip


def pyperf(python: str) -> Words:
    def words(runs: int, _folder: Path) -> list[str]:
        values = ["--processes", "1", "--warmups", "0", "--values", str(runs // PYPERF_LOOPS)]
        start = [python, "-m", "pyperf", "command", "--quiet", "--loops", str(PYPERF_LOOPS)]
        return [*start, *values, "--", "true"]

    return words


def arms(loop: Path, pyperf_python: str | None) -> list[Arm]:
    """Return the arms that can be run here; name those that cannot on standard error."""
    found = [
        Arm(REFERENCE, lambda runs, _folder: [str(loop), str(runs), "true"]),
        Arm("excise run", excise()),
        Arm("excise run --sync-interval 0s", excise("--sync-interval", "0s")),
        Arm("excise run --sync-interval never", excise("--sync-interval", "never")),
    ]
    if shutil.which("hyperfine"):
        found += [Arm("hyperfine -N", hyperfine("-N")), Arm("hyperfine", hyperfine())]
    else:
        print("left out: hyperfine is not installed", file=sys.stderr)
    if pyperf_python:
        found.append(Arm(f"pyperf command, loops {PYPERF_LOOPS}", pyperf(pyperf_python)))
    else:
        print("left out: pyperf, give --pyperf-python", file=sys.stderr)
    return found


def take(arm: Arm, runs: int, folder: Path) -> None:
    """Run one process that starts so many runs, and note what it took."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        words = arm.words(runs, Path(place))
        with (Path(place) / "said").open("w+b") as said:
            began = time.perf_counter()
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, cwd=place
            )
            _, status, usage = os.wait4(process.pid, 0)
            took = time.perf_counter() - began
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                said.seek(0)
                text = said.read().decode(errors="replace")
                sys.exit(f"{' '.join(words)} failed: {text[-500:]}")
    arm.wall_s.setdefault(runs, []).append(took)
    arm.processor_s.setdefault(runs, []).append(usage.ru_utime + usage.ru_stime)


def measure(found: list[Arm], *, rounds: int, few: int, many: int, folder: Path) -> None:
    """Take every arm at both counts once a round, in an order drawn anew."""
    draw = random.Random(1)
    for number in range(rounds):
        for arm in draw.sample(found, len(found)):
            for runs in draw.sample([few, many], 2):
                take(arm, runs, folder)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def slopes_us(taken: dict[int, list[float]]) -> list[float]:
    """Return the time per run of each round, in microseconds."""
    few, many = sorted(taken)
    pairs = zip(taken[few], taken[many], strict=True)
    return [(long - short) / (many - few) * 1e6 for short, long in pairs]


def least_us(taken: dict[int, list[float]]) -> float:
    """Return the time per run of the least times of all rounds, in microseconds."""
    few, many = sorted(taken)
    return (min(taken[many]) - min(taken[few])) / (many - few) * 1e6


def report(found: list[Arm]) -> list[dict[str, Any]]:
    """Return one row an arm: cost and overhead per run, in microseconds."""
    reference = next(arm for arm in found if arm.name == REFERENCE)
    least = {
        "wall": statistics.median(slopes_us(reference.wall_s)),
        "quiet_wall": least_us(reference.wall_s),
        "processor": statistics.median(slopes_us(reference.processor_s)),
    }
    rows = []
    for arm in found:
        per_run = {
            "wall": statistics.median(slopes_us(arm.wall_s)),
            "quiet_wall": least_us(arm.wall_s),
            "processor": statistics.median(slopes_us(arm.processor_s)),
        }
        rows.append(
            {
                "arm": arm.name,
                **{f"{name}_us": round(value, 1) for name, value in per_run.items()},
                **{
                    f"{name}_overhead_us": round(value - least[name], 1)
                    for name, value in per_run.items()
                },
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--few", type=int, default=50, help="runs of the short process")
    parser.add_argument("--many", type=int, default=350, help="runs of the long process")
    parser.add_argument("--folder", type=Path, help="where captures are written (and synced)")
    parser.add_argument("--pyperf-python", help="a Python that has pyperf")
    parser.add_argument("--output", type=Path, help="also write the JSON result here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="run-overhead-", dir=options.folder) as name:
        folder = Path(name)
        loop = folder / "spawn_loop"
        compiler = ["cc", "-O2", "-static", "-o", str(loop), str(HERE / "spawn_loop.c")]
        subprocess.run(compiler, check=True)
        found = arms(loop, options.pyperf_python)
        measure(found, rounds=options.rounds, few=options.few, many=options.many, folder=folder)
    result = {
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
        "scheduling_policy": os.sched_getscheduler(0),
        "load_average_1min": os.getloadavg()[0],
        "rounds": options.rounds,
        "runs": [options.few, options.many],
        "arms": report(found),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
