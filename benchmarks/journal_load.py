"""How long `excise show` takes to load and summarise a journal, and how much memory.

Builds a capture of so many runs (ten tasks under four configurations and the A/A arm, written as
the launcher writes them), then runs the whole program on it several times. Wall time is what a
user waits; processor time is what is left of it on a busy machine; the peak is the resident set.

    python benchmarks/journal_load.py --lines 1000000 --rounds 5 --output out.json
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
from pathlib import Path
from typing import Any

EXCISE = Path(sys.executable).with_name("excise")
TASKS = [f"task-{number}" for number in range(10)]
ARMS = ["none", "none (A/A)", "landlock", "seccomp-100", "fips"]
PROBE = ',"probe":{{"workload":"stat","operations":4000,"op_ns":[{}],"first_op_ns":900.0}}'


def write_capture(folder: Path, *, lines: int, batches: int) -> None:
    """Write a capture of so many runs; each has so many of the probe's batches, or none."""
    (folder / "raw").mkdir(parents=True)
    manifest = {
        "id": "journal-load", "created": "2026-01-01T00:00:00+00:00", "title": "journal load",
        "origin": "measured", "baseline": ARMS[0], "twin": ARMS[1], "paired": True,
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    draw = random.Random(1)
    with (folder / "journal.jsonl").open("w") as file:
        sequence = block = 0
        while sequence < lines:
            for task in draw.sample(TASKS, len(TASKS)):
                for arm in draw.sample(ARMS, len(ARMS)):
                    file.write(line(sequence, block, task, arm, draw, batches))
                    sequence += 1
            block += 1
        file.write('{"kind":"session","state":"finished","at":"2026-01-01T00:00:00+00:00"}\n')


def line(sequence: int, block: int, task: str, arm: str, draw: random.Random, batches: int) -> str:
    wall_ns = int(draw.lognormvariate(13.4, 0.1))
    phase = "measured" if block else "first"
    probe = ""
    if batches:
        probe = PROBE.format(",".join(f"{draw.gauss(500, 20):.3f}" for _ in range(batches)))
    return (
        f'{{"kind":"run","sequence":{sequence},"block":{block},"task":"{task}",'
        f'"configuration":"{arm}","run":{block},"phase":"{phase}",'
        f'"start_ns":{10**12 + sequence * 900_000},"wall_ns":{wall_ns},'
        f'"user_ns":{wall_ns // 3},"system_ns":{wall_ns // 2},'
        f'"max_rss_bytes":{933_888 + 4096 * draw.randrange(9)},'
        f'"minor_faults":{50 + draw.randrange(4)},"major_faults":0,"voluntary_switches":1,'
        f'"involuntary_switches":{draw.randrange(2)},"exit_code":0,"signal":null,'
        f'"timed_out":false,"max_rss_floor_bytes":389120,'
        f'"instructions":{812_345 + draw.randrange(977)},'
        f'"cycles":{912_345 + draw.randrange(7777)}{probe},"ok":true}}\n'
    )


def show(capture: Path) -> dict[str, float]:
    """Run `excise show` once; return wall and processor time in s, and peak memory in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen([EXCISE, "show", capture], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"excise show ended with {process.returncode}")
    return {
        "wall_s": round(took, 3),
        "processor_s": round(usage.ru_utime + usage.ru_stime, 3),
        "peak_mib": round(usage.ru_maxrss / 1024, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--batches", type=int, default=0, help="batches of the probe in each run")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="also write the JSON result here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="journal-load-") as name:
        capture = Path(name) / "c.excise"
        write_capture(capture, lines=options.lines, batches=options.batches)
        size = (capture / "journal.jsonl").stat().st_size
        rounds = [show(capture) for _ in range(options.rounds)]
    result: dict[str, Any] = {
        "lines": options.lines,
        "batches": options.batches,
        "journal_mib": round(size / 2**20, 1),
        "cpu_count": os.cpu_count(),
        "kernel": platform.release(),
        "load_average_1min": os.getloadavg()[0],
        "best": {key: min(each[key] for each in rounds) for key in rounds[0]},
        "median": {key: statistics.median(each[key] for each in rounds) for key in rounds[0]},
        "rounds": rounds,
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
