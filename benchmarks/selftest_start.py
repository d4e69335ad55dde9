"""What watching self-tests costs, and how well they explain a start.

Three questions, answered side by side in one run:

- How much of a load is the self-test callback itself, and how much is explained by no test?
- Does the sum of self-tests agree with the difference of whole processes, with and without them,
  as a stopwatch would see it (the same helper, started and ended in one process each)?
- What does `excise selftest check` add to a command: plain and observed runs, in random order?

    python benchmarks/selftest_start.py --suite trixie --rounds 21 --output out.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from excise.collect.selftest.observe import observe
from excise.collect.selftest.openssl import OFF, ON, Provider, Variant, find_provider
from excise.collect.selftest.tree import host_tree, make_tree

COMMANDS = (["true"], ["gpg", "--version"], ["curl", "--version"])


def timed_ms(action: Callable[[], Any]) -> float:
    """Return the wall time of an action in ms."""
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e6


def quantiles(values: list[float]) -> dict[str, float]:
    """Return minimum, quartiles and number of values, in their unit."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"min": min(values), "p25": low, "median": middle, "p75": high, "n": len(values)}


def loads(provider: Provider, rounds: int, order: random.Random) -> dict[str, Any]:
    """Return sums, remainders, the callback's own cost, and the difference of whole processes."""
    variants = {each.name: each for each in provider.variants if each.name in (OFF, ON)}
    wall: dict[str, list[float]] = {OFF: [], ON: []}
    sums, remainders, own = [], [], []
    for _ in range(rounds):
        for name in order.sample(sorted(variants), 2):
            seen, took = _load(provider, variants[name])
            wall[name].append(took)
            if name == ON:
                tests = sum(test.end_ns - test.start_ns for test in seen.tests)
                steps = [seen.step(step) for step in ("configuration", "provider")]
                load = sum(step.end_ns - step.start_ns for step in steps)
                sums.append(tests / 1e6)
                remainders.append(1 - tests / load)
                own.append(seen.own_ns["load"] / load)
    difference = [on - off for on, off in zip(wall[ON], wall[OFF], strict=True)]
    return {
        "sum of self-tests, ms": quantiles(sums),
        "difference of processes, ms": quantiles(difference),
        "remainder, share of the load": quantiles(remainders),
        "callback, share of the load": quantiles(own),
    }


def _load(provider: Provider, variant: Variant) -> tuple[Any, float]:
    start = time.perf_counter_ns()
    seen = provider.load(variant)
    return seen, (time.perf_counter_ns() - start) / 1e6


def observed(rounds: int, order: random.Random) -> dict[str, Any]:
    """Return wall times of commands, plain and observed."""
    found: dict[str, Any] = {}
    for words in COMMANDS:
        if not any((Path(each) / words[0]).is_file() for each in os.get_exec_path()):
            continue
        arms: dict[str, Callable[[], Any]] = {
            "plain": lambda words=words: subprocess.run(words, stdout=2, check=False),
            "observed": lambda words=words: observe(words),
        }
        times: dict[str, list[float]] = {name: [] for name in arms}
        for _ in range(rounds):
            for name in order.sample(sorted(arms), 2):
                times[name].append(timed_ms(arms[name]))
        found[" ".join(words)] = {name: quantiles(values) for name, values in times.items()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--suite", default="trixie", help="Debian suite, or host")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    order = random.Random(options.seed)
    tree = host_tree() if options.suite == "host" else make_tree(options.suite)
    with tempfile.TemporaryDirectory() as folder:
        provider = find_provider(tree, folder=Path(folder))
        result = {
            "machine": platform.machine(),
            "processors": os.cpu_count(),
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "openssl": provider.version,
            "loads": loads(provider, options.rounds, order),
            "observed commands, ms": observed(options.rounds, order),
        }
    text = json.dumps(result, indent=1)
    if options.output:
        options.output.write_text(text + "\n")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
