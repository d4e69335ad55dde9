"""Runs inside a lab guest: collect after collect while the kernel's list grows; prints JSON.

python _sensor_growth_guest.py TRANSACTIONS ENTRIES WHOLE FILL SECONDS: collects incrementally in
every transaction, all PCRs included, of which each adds ENTRIES entries to a list that had FILL
more before; reads the whole list in WHOLE of them, and has the kernel's walks in those traced.
Ends early after SECONDS.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from excise.attest.sensor.collect import DEFAULT_LIST, Collector
from excise.attest.sensor.embed import Embedding
from excise.collect.tpm import PcrBanks, open_tpm, pcr_reader

TRANSACTIONS, ENTRIES, WHOLE, FILL, SECONDS = map(int, sys.argv[1:6])
FACE: Final = Embedding(model="none", values=(0.0,) * 128, image_sha256=bytes(32))
MEASURED: Final = Path("/excise/ext4/measured")
TRACING: Final = Path("/sys/kernel/tracing")
WALK: Final = "ima_measurements_start"


def measure_entries(number: int, entries: int = ENTRIES) -> None:
    """Let IMA measure new content: each gives the list an entry."""
    for each in range(entries):
        MEASURED.write_text(f"{number} {each}")
        MEASURED.read_bytes()


def listed() -> int:
    return int(DEFAULT_LIST.with_name("runtime_measurements_count").read_text())


def sample() -> set[int]:
    """Return the transactions that also read the whole list: at equal distances, and the last."""
    return {round(each * (TRANSACTIONS - 1) / max(1, WHOLE - 1)) for each in range(WHOLE)}


@contextmanager
def walks(row: dict[str, Any]) -> Iterator[None]:
    """Trace each walk that the kernel makes of its list."""
    (TRACING / "trace").write_text("")
    (TRACING / "tracing_on").write_text("1")
    yield
    (TRACING / "tracing_on").write_text("0")
    found = re.findall(rf"([\d.]+) us +\| +{WALK}\(", (TRACING / "trace").read_text())
    row["walks"], row["walks_ns"] = len(found), sum(round(1000 * float(each)) for each in found)


class Clocks:
    """Wall and processor time of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter_ns(), time.process_time_ns()

    def read(self) -> tuple[int, int]:
        cpu = time.process_time_ns() - self._cpu
        return time.perf_counter_ns() - self._wall, cpu


def main() -> None:
    (TRACING / "tracing_on").write_text("0")
    (TRACING / "set_ftrace_filter").write_text(WALK)
    (TRACING / "current_tracer").write_text("function_graph")
    rows = []
    measure_entries(-1, FILL)
    with open_tpm("device:/dev/tpmrm0") as tpm:
        read = pcr_reader(tpm)
        spent = (0, 0)

        def pcrs() -> PcrBanks:
            nonlocal spent
            clocks = Clocks()
            found = read()
            spent = clocks.read()
            return found

        def collect(collector: Collector, name: str, row: dict[str, Any]) -> int:
            clocks = Clocks()
            message = collector.collect(FACE)
            row[f"{name}_ns"], row[f"{name}_cpu_ns"] = clocks.read()
            row[f"{name}_list_ns"] = row[f"{name}_ns"] - spent[0]
            row[f"{name}_list_cpu_ns"] = row[f"{name}_cpu_ns"] - spent[1]
            return message.list_end

        sampled = sample()
        whole = Collector(pcrs=pcrs, whole_log=True)
        with Collector(pcrs=pcrs) as collector:
            collector.acknowledge(collector.collect(FACE).list_end)
            end_s = time.monotonic() + SECONDS
            for number in range(TRANSACTIONS):
                if time.monotonic() > end_s:
                    break
                measure_entries(number)
                row: dict[str, Any] = {"transaction": number, "entries": listed()}
                end = collect(collector, "incremental", row)
                collector.acknowledge(end)
                if number in sampled:
                    collect(whole, "whole", row)
                    measure_entries(-2 - number)
                    with walks(row):
                        message = collector.collect(FACE)
                    collector.acknowledge(message.list_end)
                rows.append(row)
    json.dump(rows, sys.stdout)


main()
