"""Time the reading of function_graph text: natively, by a native loop, by Python.

usage: trace_parse.py [--megabytes N] [--runs N] [--json FILE]

Every arm is a whole process that gives calls, total and self time of each function, and all must
agree on their sums; the native reader also tells tasks, CPUs and system calls apart, keeps
histograms, and checks every line. The figure is the CPU time of the process, the median over
interleaved runs. The native loop (trace_parse_peer.rs) needs rustc and is written for this one
layout; the Python peers stand below.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent

OURS = """
import sys
from excise import _core
found = _core.function_graph_read(sys.argv[1], paths=PATHS)
from array import array
rows = found["functions"]
sums = [sum(array("q", rows[key])) for key in ("calls", "total_ns", "self_ns")]
print(len(set(array("q", rows["name"]))), *sums)
"""
OURS_WHOLE = """
import sys
from pathlib import Path
from excise.formats.function_graph import read_function_graph
rows = read_function_graph(Path(sys.argv[1])).by("function")
print(rows.height, *(int(rows[key].sum()) for key in ("calls", "total_ns", "self_ns")))
"""
REGEX = r"""
import re, sys
LINE = re.compile(rb" *(\d+)\) (?:[ +!#*@$] *(\d+)\.?(\d*) us +| {14})\|  ( *)"
                  rb"(?:(\})|([^(]+)\(\)(;| \{))")
sums, stacks = {}, {}
def add(stack, name, ns, children):
    row = sums.get(name)
    if row is None:
        sums[name] = [1, ns, ns - children]
    else:
        row[0] += 1; row[1] += ns; row[2] += ns - children
    if stack:
        stack[-1][1] += ns
for line in open(sys.argv[1], "rb"):
    found = LINE.match(line)
    if found is None:
        continue
    cpu, whole, part, _, end, name, kind = found.groups()
    ns = int(whole) * 1000 + int(part.ljust(3, b"0")) if whole else 0
    stack = stacks.setdefault(cpu, [])
    if end:
        if stack:
            name, children = stack.pop()
            add(stack, name, ns, children)
    elif kind == b";":
        add(stack, name, ns, 0)
    else:
        stack.append([name, 0])
print(len(sums), *(sum(row[i] for row in sums.values()) for i in range(3)))
"""


def write_trace(path: Path, *, size: int) -> int:
    """Write about `size` bytes in the kernel's default layout; return the number of lines."""
    chance = random.Random(7)
    names = [
        f"{chance.choice(('security', 'selinux', 'do', 'vfs', 'ext4'))}_{word}"
        for word in (
            "_".join(
                chance.choices(
                    ("inode", "file", "path", "lookup", "perm", "alloc", "get", "put"), k=3
                )
            )
            + str(i)
            for i in range(400)
        )
    ]
    lines: list[str] = []

    def duration(ns: int) -> str:
        text = f"{ns // 1000}.{ns % 1000:03}"[:8].rstrip(".")
        mark = next(
            (m for m, least in (("#", 1_000_000), ("!", 100_000), ("+", 10_000)) if ns > least), " "
        )
        return f"{mark} {text} us".ljust(13)

    def call(cpu: int, depth: int) -> int:
        name = chance.choice(names)
        blanks = "  " * depth
        if depth > 9 or chance.random() < 0.6:
            ns = chance.randrange(300, 3000)
            lines.append(f" {cpu}) {duration(ns)}|  {blanks}{name}();")
            return ns
        lines.append(f" {cpu})               |  {blanks}{name}() {{")
        ns = chance.randrange(200, 2000) + sum(
            call(cpu, depth + 1) for _ in range(chance.randrange(1, 4))
        )
        # Above 10 ms two decimals are printed: round up, so that children fit.
        ns = ns if ns < 10_000_000 else ns // 10 * 10 + 10
        lines.append(f" {cpu}) {duration(ns)}|  {blanks}}}")
        return ns

    block = 0
    while block < 4_000_000:
        before = len(lines)
        call(chance.randrange(2), 0)
        block += sum(len(line) + 1 for line in lines[before:])
    text = ("\n".join(lines) + "\n").encode()
    with path.open("wb") as file:
        file.write(
            b"# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n"
        )
        for _ in range(max(1, size // len(text))):
            file.write(text)
    return len(lines) * max(1, size // len(text))


def arms(folder: Path) -> dict[str, list[str]]:
    """Return the command of every arm whose programs are here."""
    found = {
        "excise, reader alone": [sys.executable, "-c", OURS.replace("PATHS", "False")],
        "excise, with the call tree": [sys.executable, "-c", OURS.replace("PATHS", "True")],
        "excise, read_function_graph and tables": [sys.executable, "-c", OURS_WHOLE],
        "Python, compiled regex": [sys.executable, "-c", REGEX],
    }
    if rustc := shutil.which("rustc"):
        peer = folder / "peer"
        source = HERE / "trace_parse_peer.rs"
        subprocess.run([rustc, "-O", "--edition=2021", "-o", peer, source], check=True)
        found["hand-written native loop"] = [str(peer)]
    return found


def timed(command: list[str]) -> tuple[str, float, int]:
    """Return the output, CPU seconds and peak KiB of one process."""
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    output = child.stdout.read().strip()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} ended with {child.returncode}")
    return output, usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "trace.txt"
        count = write_trace(trace, size=options.megabytes * 1_000_000)
        size = trace.stat().st_size
        commands = arms(folder)
        results: dict[str, list[tuple[float, int]]] = {arm: [] for arm in commands}
        answers = {}
        for _ in range(options.runs):
            for arm in random.sample(list(commands), len(commands)):
                answers[arm], seconds, peak = timed([*commands[arm], str(trace)])
                results[arm].append((seconds, peak))
    if len(set(answers.values())) != 1:
        raise SystemExit(f"the arms do not agree: {answers}")
    rows = [
        {
            "arm": arm,
            "cpu_s": statistics.median(seconds for seconds, _ in runs),
            "low_s": min(seconds for seconds, _ in runs),
            "high_s": max(seconds for seconds, _ in runs),
            "peak_mib": statistics.median(peak for _, peak in runs) / 1024,
            "mb_per_s": size / 1e6 / statistics.median(seconds for seconds, _ in runs),
        }
        for arm, runs in results.items()
    ]
    print(f"{size / 1e6:.0f} MB, {count:,} lines; functions, calls, total, self: {answers[arm]}")
    for row in sorted(rows, key=lambda row: row["cpu_s"]):
        print(
            f"{row['arm']:<42}{row['cpu_s']:8.3f} s ({row['low_s']:.3f}-{row['high_s']:.3f})"
            f"{row['mb_per_s']:8.0f} MB/s{row['peak_mib']:8.0f} MiB"
        )
    if options.json:
        options.json.write_text(json.dumps({"bytes": size, "lines": count, "arms": rows}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
