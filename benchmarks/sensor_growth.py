"""How *collect* grows with the kernel's list: incremental against the whole log, in a lab guest.

python -m benchmarks sensor_growth [--transactions 10000] [--entries 3] [--whole 100] [--fill 0]
    [--seconds 7200] [--picture growth.png] [--keep rows.json]

A guest with `ima_policy=tcb` and a software TPM collects again and again, list and all PCRs, while
each transaction adds entries to its list. Prints the Markdown of RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from excise.lab import Machine, Plan, preset, run_guest
from excise.lab.disk import WorkFile
from excise.lab.host_share import ROOT
from excise.lab.plan import Step
from excise.lab.workloads import proof_files
from excise.report.charts import draw
from excise.report.model import Chart
from excise.stats import growth


def measured(*numbers: int, timeout_s: float) -> Any:
    script = Path(__file__).with_name("_sensor_growth_guest.py").read_bytes()
    # Where the programs of this host's Python see it, which were given /sys before.
    trace = f"mount -t tracefs tracefs {ROOT}/sys/kernel/tracing"
    script_words = " ".join(["exec python /excise/ext4/growth.py", *map(str, numbers)])
    words = ("sh", "-c", f"{trace} && {script_words}")
    plan = Plan(
        steps=(Step(task="growth", command=words),),
        files={**proof_files(), "growth.py": WorkFile(data=script)},
    )
    machine = Machine(
        mode="tpm", python=True, memory_mib=1024, work_disk_mib=96, timeout_s=timeout_s
    )
    started = time.monotonic()

    def show(stage: str) -> None:
        print(f"{time.monotonic() - started:6.0f} s  {stage}", file=sys.stderr)

    found = run_guest(machine, preset=preset("ima-measure"), plan=plan, on_stage=show)
    return json.loads(found.steps[0].stdout), found.clock


LONG = 1000
"""Entries from which on a walk costs more than its beginning."""

Points = tuple[list[int], list[float]]


def stands_still(rows: list[dict[str, Any]]) -> bool:
    """Return whether the transactions add no entries to the list."""
    return bool(rows[0]["entries"] == rows[-1]["entries"])


def series(rows: list[dict[str, Any]]) -> dict[tuple[str, str], Points]:
    """Return entries of the list and nanoseconds, by way of collecting and what was timed.

    Where the list stands still, the transaction's number from 1 in place of its entries.
    """
    still = stands_still(rows)
    found = {}
    for name, key in (("incremental", "incremental"), ("whole log", "whole")):
        read = [row for row in rows if f"{key}_ns" in row]
        places = [row["transaction"] + 1 if still else row["entries"] for row in read]
        for what, part in (("list and PCRs", ""), ("the list", "_list")):
            for clock in ("", "_cpu"):
                values = [row[f"{key}{part}{clock}_ns"] for row in read]
                kept = [(at, ns) for at, ns in zip(places, values, strict=True) if ns > 0]
                told = "processor" if clock else "wall"
                found[name, f"{what}, {told}"] = ([at for at, _ in kept], [ns for _, ns in kept])
    return found


def exponent(points: list[int], values: list[float]) -> tuple[float, float, float]:
    """Return k of time ~ points^k with its 95 % interval: the slope of the logarithms."""
    found = growth(np.log(points), np.log(values))
    assert found.slope is not None
    assert found.slope_interval is not None
    return found.slope, found.slope_interval.low, found.slope_interval.high


def table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| *collect* | what | n | at the start, ms | at the end, ms | k, 95 % |",
        "| --- | --- | ---: | ---: | ---: | --- |",
    ]
    for (name, what), (entries, values) in series(rows).items():
        tenth = max(1, len(values) // 10)
        first, last = (np.median(part) / 1e6 for part in (values[:tenth], values[-tenth:]))
        k, low, high = exponent(entries, values)
        lines.append(
            f"| {name} | {what} | {len(values):,} | {first:.3g} | {last:.3g} "
            f"| {k:.3f} [{low:.3f}, {high:.3f}] |"
        )
    entries = [row["entries"] for row in rows]
    text = f"The list had {entries[0]:,} entries at the first transaction, {entries[-1]:,} at last."
    said = "k is the exponent of entries; of transactions where they add none."
    return "\n".join([*lines, "", text, said, "", kernels_share(rows)])


def kernels_share(rows: list[dict[str, Any]]) -> str:
    """Say what the kernel's walks of its list are of an incremental collect."""
    traced = [row for row in rows if "walks" in row]
    counts = sorted({row["walks"] for row in traced})
    long = [row["walks_ns"] / row["entries"] for row in traced if row["entries"] >= LONG]
    found = growth(
        [row["entries"] for row in rows], [row["incremental_list_cpu_ns"] for row in rows]
    )
    text = f"Walks of the kernel's list in an incremental collect: {counts} (n = {len(traced)})"
    if long:
        low, middle, high = np.percentile(long, [25, 50, 75])
        text += f"; by function_graph {middle:.0f} ns an entry (quartiles {low:.0f} and {high:.0f})"
    if found.slope is not None and found.slope_interval is not None:
        low, high = found.slope_interval.low, found.slope_interval.high
        text += f".\nThe whole of reading the list: {found.slope:.0f} [{low:.0f}, {high:.0f}] ns"
        text += f" of processor time for each entry that it has (n = {len(rows):,})"
    return f"{text}."


def chart(rows: list[dict[str, Any]]) -> Chart:
    points = []
    for (name, what), (entries, values) in series(rows).items():
        if what == "the list, wall":
            step = max(1, len(values) // 1000)
            points += [
                {"configuration": name, "run": run, "value": value, "phase": "rest"}
                for run, value in list(zip(entries, values, strict=True))[::step]
            ]
    return Chart(
        name="growth",
        kind="run_order",
        title="collect over the length of the list",
        rows=points,
        unit="ns",
        caption="Time of collect without the PCRs, incremental and of the whole log",
        axis="time of collect",
        run_axis="transaction" if stands_still(rows) else "entries of the list",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transactions", type=int, default=10_000)
    parser.add_argument("--entries", type=int, default=3, help="that each transaction adds")
    parser.add_argument("--whole", type=int, default=100, help="transactions with a whole log too")
    parser.add_argument("--fill", type=int, default=0, help="entries added before the first one")
    parser.add_argument("--seconds", type=int, default=7200, help="end after these in the guest")
    parser.add_argument("--timeout-s", type=float, default=9000.0)
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--keep", type=Path, help="file for the rows")
    parser.add_argument("--rows", type=Path, help="take kept rows in place of a guest")
    given = parser.parse_args()
    if given.rows is not None:
        rows, clock = json.loads(given.rows.read_text()), "kept"
    else:
        numbers = (given.transactions, given.entries, given.whole, given.fill, given.seconds)
        rows, clock = measured(*numbers, timeout_s=given.timeout_s)
    if given.keep is not None:
        given.keep.write_text(json.dumps(rows))
    if given.picture is not None:
        given.picture.write_bytes(draw(chart(rows), picture="png"))
    print(table(rows))
    print(f"\nClock: {clock}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
