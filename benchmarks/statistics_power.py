"""How often the A/A arm is called different, and a planted cost is found, on this machine.

Each repetition is a small campaign of real processes: three arms (baseline, a twin that is the same
command, and the same command with a few more loop turns, calibrated to a planted cost). A quad is
two blocks as `excise run` schedules them, each with every arm once in an order drawn anew: four
runs of any two arms. Every block gives a pair; beside that, each quad gives one pair of medians.
Then the same numbers of runs are measured one arm after the other, as is common, and given to
Welch's t-test. Drift and noise are those of the machine: nothing is simulated.

    python benchmarks/statistics_power.py --repetitions 200 --quads 60 --output results.json

Processes are started and timed by `excise-probe launch` where it is built, else by posix_spawn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest, ttest_ind

from excise.stats import AAOutcome, Verdict, check_aa, compare_paired, compare_unpaired

PROBE = Path(__file__).resolve().parent.parent / "src" / "excise" / "_bin" / "excise-probe"
ARMS = ("baseline", "twin", "planted")
SHELL = "/bin/sh"


def command(turns: int) -> list[str]:
    """Return a command that loops a number of times and ends."""
    return [SHELL, "-c", f"i=0; while [ $i -lt {turns} ]; do i=$((i+1)); done"]


class Runner(Protocol):
    """Runs commands one after the other and returns the wall time of each in ns."""

    name: str

    def run(self, commands: Sequence[list[str]]) -> list[int]:
        """Run all commands in order; a failing one ends the benchmark."""


class ProbeRunner:
    """`excise-probe launch`, kept running over all repetitions."""

    name = "excise-probe launch"

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [PROBE, "launch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._answers = os.fdopen(os.dup(self._process.stdout.fileno()), "rb")

    def run(self, commands: Sequence[list[str]]) -> list[int]:
        requests = [
            json.dumps({"op": "run", "head": f'{{"sequence":{i}', "argv": argv}) + "\n"
            for i, argv in enumerate(commands)
        ]
        self._process.stdin.write("".join(requests).encode())
        answers = [json.loads(self._answers.readline()) for _ in commands]
        for answer in answers:
            if not answer.get("ok"):
                raise SystemExit(f"a run failed: {answer}")
        return [answer["wall_ns"] for answer in answers]


class SpawnRunner:
    """posix_spawn and wait4 from Python."""

    name = "posix_spawn"

    def run(self, commands: Sequence[list[str]]) -> list[int]:
        times = []
        for argv in commands:
            start = time.perf_counter_ns()
            pid = os.posix_spawn(argv[0], argv, os.environ)
            _, status, _ = os.wait4(pid, 0)
            times.append(time.perf_counter_ns() - start)
            if status != 0:
                raise SystemExit(f"a run failed with wait status {status}")
        return times


def calibrate(
    runner: Runner, *, turns: int, planted_ratio: float, rng: np.random.Generator, pairs: int
) -> int:
    """Return the turns to add so that the whole run takes `planted_ratio` longer.

    The cost of one turn is the median difference of pairs with and without many more turns.
    """
    many = max(400, turns)
    plain, more = [], []
    for _ in range(pairs):
        order = rng.permutation(2)
        times = runner.run([command(turns + many * int(arm)) for arm in order])
        plain.append(times[int(np.argmin(order))])
        more.append(times[int(np.argmax(order))])
    per_turn = float(np.median(np.array(more) - np.array(plain))) / many
    return max(1, round(planted_ratio * float(np.median(plain)) / per_turn))


def interleaved(
    runner: Runner, commands: Sequence[list[str]], *, quads: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Return times in ns of shape (arms, quads, 2): each quad is two blocks of random order."""
    times = np.zeros((len(commands), quads, 2))
    for quad in range(quads):
        for half in range(2):
            order = rng.permutation(len(commands))
            times[order, quad, half] = runner.run([commands[arm] for arm in order])
    return times


def sequential(runner: Runner, commands: Sequence[list[str]], *, quads: int) -> NDArray[np.float64]:
    """Return times in ns of shape (arms, 2 * quads): one arm after the other."""
    times = [
        [value for _ in range(quads) for value in runner.run([argv, argv])] for argv in commands
    ]
    return np.array(times, dtype=np.float64)


@dataclass
class Counts:
    """How often each method rejected, and what it estimated, over repetitions."""

    rejected: dict[str, list[bool]] = field(default_factory=dict)
    ratios: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, *, rejected: bool, ratio: float) -> None:
        """Record one repetition of one method on one question."""
        self.rejected.setdefault(name, []).append(rejected)
        self.ratios.setdefault(name, []).append(ratio)

    def as_dict(self) -> dict[str, Any]:
        """Return rates with exact 95 % intervals and the spread of the estimates."""
        result = {}
        for name, flags in self.rejected.items():
            low, high = binomtest(sum(flags), len(flags)).proportion_ci(method="exact")
            spread = np.quantile(self.ratios[name], (0, 0.025, 0.5, 0.975, 1)) - 1
            result[name] = {
                "called_different": sum(flags),
                "repetitions": len(flags),
                "rate": sum(flags) / len(flags),
                "rate_interval_95": [low, high],
                "change_percent_min_p2.5_median_p97.5_max": [
                    round(float(100 * x), 3) for x in spread
                ],
            }
        return result


def by_noise(counts: Counts, noise: NDArray[np.float64], *, parts: int = 4) -> list[dict[str, Any]]:
    """Return the rates in repetitions sorted by their noise, in equal parts, quietest first.

    Noise is the median of |ln(twin / baseline)| over blocks: how far two equal runs next to each
    other lie apart.
    """
    rows = []
    for part in np.array_split(np.argsort(noise), min(parts, noise.size)):
        rates = {
            name: round(float(np.array(counts.rejected[name])[part].mean()), 3)
            for name in ("aa, sign test on blocks", "planted, sign test on blocks")
        }
        low, high = noise[part].min(), noise[part].max()
        rows.append({"noise_percent": [round(100 * low, 2), round(100 * high, 2)], **rates})
    return rows


def judge(counts: Counts, paired: NDArray[np.float64], one_by_one: NDArray[np.float64]) -> None:
    """Put one repetition to every test."""
    base, twin, planted = (arm.ravel() for arm in paired)
    quads = np.repeat(np.arange(paired.shape[1]), 2)
    for unit, blocks in (("blocks", None), ("quad medians", quads)):
        check = check_aa(base, twin, blocks=blocks)
        same = check.comparison
        found = compare_paired(base, planted, blocks=blocks, resolution=0)
        is_above = found.interval is not None and found.interval.low > 1
        failed = check.outcome is AAOutcome.FAILED
        counts.add(f"aa, sign test on {unit}", rejected=failed, ratio=same.ratio)
        counts.add(f"planted, sign test on {unit}", rejected=is_above, ratio=found.ratio)
        counts.add(
            f"planted, verdict costs on {unit}",
            rejected=found.verdict is Verdict.COSTS,
            ratio=found.ratio,
        )
        counts.add(f"aa, Wilcoxon on {unit}", rejected=same.wilcoxon_p < 0.05, ratio=same.ratio)
        counts.add(
            f"planted, Wilcoxon on {unit}", rejected=found.wilcoxon_p < 0.05, ratio=found.ratio
        )
    first = one_by_one[0]
    for question, arm in (("aa", one_by_one[1]), ("planted", one_by_one[2])):
        welch = ttest_ind(first, arm, equal_var=False)
        counts.add(
            f"{question}, sequential Welch",
            rejected=bool(welch.pvalue < 0.05),
            ratio=float(arm.mean() / first.mean()),
        )
        brunner_munzel = compare_unpaired(first, arm, resamples=200)
        counts.add(
            f"{question}, sequential Brunner-Munzel",
            rejected=(brunner_munzel.brunner_munzel_p or 1.0) < 0.05,
            ratio=brunner_munzel.ratio,
        )


def progress(done: int, total: int, started: float) -> None:
    """Show what is done and how long the rest takes, on a terminal or every tenth."""
    left = (time.monotonic() - started) / done * (total - done)
    text = f"{done}/{total} repetitions, about {left:.0f} s left"
    if sys.stderr.isatty():
        print(f"\r{text}   ", end="" if done < total else "\n", file=sys.stderr, flush=True)
    elif done % max(1, total // 10) == 0:
        print(text, file=sys.stderr, flush=True)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the whole benchmark and return its results."""
    rng = np.random.default_rng(options.seed)
    runner: Runner = ProbeRunner() if PROBE.exists() and not options.spawn else SpawnRunner()
    runner.run([command(options.turns)] * 20)
    load_before = round(os.getloadavg()[0], 1)
    counts, pooled, run_times, raw = Counts(), [], [], []
    started = time.monotonic()
    added = []
    for done in range(1, options.repetitions + 1):
        # anew each time: what one turn costs, against a start of the process, drifts as well
        added.append(
            calibrate(
                runner,
                turns=options.turns,
                planted_ratio=options.planted_percent / 100,
                rng=rng,
                pairs=options.calibration_pairs,
            )
        )
        extra = round(float(np.median(added)))
        commands = [
            command(turns) for turns in (options.turns, options.turns, options.turns + extra)
        ]
        paired = interleaved(runner, commands, quads=options.quads, rng=rng)
        one_by_one = sequential(runner, commands, quads=options.quads)
        judge(counts, paired, one_by_one)
        pooled.append(np.log(paired[2] / paired[0]).ravel())
        raw.append(paired)
        run_times.append(float(np.median(paired[0])))
        progress(done, options.repetitions, started)
    if options.raw:
        np.save(options.raw, np.array(raw))
    everything = np.concatenate(pooled)
    achieved = compare_paired(np.ones(everything.size), np.exp(everything), resolution=0)
    return {
        "repetitions": options.repetitions,
        "quads": options.quads,
        "runs_per_arm_and_quad": 2,
        "runner": runner.name,
        "planted_percent": options.planted_percent,
        "achieved_percent": round(achieved.change_percent, 3),
        "achieved_percent_interval_95": [
            None if p is None else round(p, 3)
            for p in (achieved.low_percent, achieved.high_percent)
        ],
        "added_turns": [min(added), float(np.median(added)), max(added)],
        "median_run_us_min_median_max": [
            round(float(q) / 1000, 1) for q in np.quantile(run_times, (0, 0.5, 1))
        ],
        "load_average_1_min": [load_before, round(os.getloadavg()[0], 1)],
        "niceness": os.nice(0),
        "seconds": round(time.monotonic() - started, 1),
        "seed": options.seed,
        "results": counts.as_dict(),
        "by_noise": by_noise(
            counts, np.array([np.median(np.abs(np.log(r[1] / r[0]))) for r in raw])
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--quads", type=int, default=60)
    parser.add_argument("--planted-percent", type=float, default=2.7)
    parser.add_argument("--turns", type=int, default=100, help="loop turns of the baseline")
    parser.add_argument("--calibration-pairs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--spawn", action="store_true", help="do not use excise-probe")
    parser.add_argument("--output", type=Path, help="write the results as JSON here")
    parser.add_argument("--raw", type=Path, help="save the paired times in ns here, as .npy")
    options = parser.parse_args()
    if options.output:
        options.output.touch()
    results = measure(options)
    text = json.dumps(results, indent=2)
    if options.output:
        options.output.write_text(text + "\n")
    print(f"{'method':39} {'called different':>18}   estimate (2.5 % to 97.5 % of repetitions)")
    for name, row in results["results"].items():
        low, high = row["rate_interval_95"]
        _, from_, middle, to, _ = row["change_percent_min_p2.5_median_p97.5_max"]
        print(
            f"{name:39} {row['rate']:6.1%} [{low:.1%}, {high:.1%}]   "
            f"{middle:+.2f} % ({from_:+.2f} % to {to:+.2f} %)"
        )
    for row in results["by_noise"]:
        low, high = row["noise_percent"]
        print(
            f"repetitions in which equal neighbours differ by {low:.1f} % to {high:.1f} %: "
            f"A/A called different {row['aa, sign test on blocks']:.1%}, "
            f"planted cost found {row['planted, sign test on blocks']:.1%}"
        )
    print(
        f"planted {results['planted_percent']:+.2f} %, "
        f"achieved {results['achieved_percent']:+.2f} % over all blocks; "
        f"{results['seconds']} s by {results['runner']}"
    )


if __name__ == "__main__":
    main()
