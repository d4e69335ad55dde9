"""What `excise run -- true` adds to each run, against hyperfine and pyperf, side by side.

Each arm is a whole process that starts the same program n times. Its cost per run is the slope
(T(n2) - T(n1)) / (n2 - n1) of its wall time, so that its own start and its final report do not
count; its overhead is that less the slope of a static C loop of posix_spawn and waitpid. Arms are
interleaved at random in every round; the figures are medians over rounds. Arms whose program is
absent are left out and named.

    python benchmarks/run_overhead.py --rounds 7 --pyperf-python venv/bin/python --output out.json
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
    """A program that starts a command n times."""

    name: str
    words: Words
    slopes_us: list[float] = field(default_factory=list)


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


def wall_s(arm: Arm, runs: int, folder: Path) -> float:
    """Return the wall time of one process that starts so many runs."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        words = arm.words(runs, Path(place))
        began = time.perf_counter()
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False, cwd=place
        )
        took = time.perf_counter() - began
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed: {done.stderr.decode(errors='replace')[-500:]}")
    return took


def measure(found: list[Arm], *, rounds: int, few: int, many: int, folder: Path) -> None:
    """Take every arm's slope once a round, in an order drawn anew."""
    draw = random.Random(1)
    for number in range(rounds):
        for arm in draw.sample(found, len(found)):
            counts = draw.sample([few, many], 2)
            took = {count: wall_s(arm, count, folder) for count in counts}
            arm.slopes_us.append((took[many] - took[few]) / (many - few) * 1e6)
        print(f"round {number + 1} of {rounds}", file=sys.stderr)


def report(found: list[Arm]) -> list[dict[str, Any]]:
    """Return one row an arm: median cost and overhead per run, in microseconds."""
    reference = next(arm for arm in found if arm.name == REFERENCE)
    rows = []
    for arm in found:
        pairs = zip(arm.slopes_us, reference.slopes_us, strict=True)
        over = [mine - least for mine, least in pairs]
        middle = statistics.median(over)
        rows.append(
            {
                "arm": arm.name,
                "per_run_us": round(statistics.median(arm.slopes_us), 1),
                "overhead_us": round(middle, 1),
                "overhead_mad_us": round(statistics.median(abs(x - middle) for x in over), 1),
                "per_run_us_of_rounds": [round(x, 1) for x in arm.slopes_us],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--few", type=int, default=100, help="runs of the short process")
    parser.add_argument("--many", type=int, default=1100, help="runs of the long process")
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
