"""Runs inside a lab guest: collect after collect while the kernel's list grows; prints JSON.

python _sensor_growth_guest.py TRANSACTIONS ENTRIES EVERY FILL: collects incrementally in every
transaction, of which each adds ENTRIES entries to a list that had FILL more before, and reads the
whole list in every EVERY-th. PCRs are read in every PCRS-th, and in the others taken from before: a
TPM's answers take most of the time of an emulated guest, and do not depend on the list.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from excise.attest.sensor.collect import DEFAULT_LIST, Collector
from excise.attest.sensor.embed import Embedding
from excise.collect.tpm import PcrBanks, open_tpm, pcr_reader

TRANSACTIONS, ENTRIES, EVERY, FILL = map(int, sys.argv[1:5])
PCRS = 20
FACE = Embedding(model="none", values=(0.0,) * 128, image_sha256=bytes(32))
MEASURED = Path("/work/ext4/measured")


def measure_entries(number: int, entries: int = ENTRIES) -> None:
    """Let IMA measure new content: each gives the list an entry."""
    for each in range(entries):
        MEASURED.write_text(f"{number} {each}")
        MEASURED.read_bytes()


def listed() -> int:
    return int(DEFAULT_LIST.with_name("runtime_measurements_count").read_text())


def main() -> None:
    rows = []
    measure_entries(-1, FILL)
    with open_tpm("device:/dev/tpmrm0") as tpm:
        read = pcr_reader(tpm)
        held: PcrBanks = read()
        spent = 0
        fresh = True

        def pcrs() -> PcrBanks:
            nonlocal spent, held
            began = time.perf_counter_ns()
            held = read() if fresh else held
            spent = time.perf_counter_ns() - began
            return held

        whole = Collector(pcrs=pcrs, whole_log=True)
        with Collector(pcrs=pcrs) as collector:
            collector.acknowledge(collector.collect(FACE).list_end)
            for number in range(TRANSACTIONS):
                measure_entries(number)
                fresh = number % PCRS == 0
                row: dict[str, Any] = {"transaction": number, "entries": listed()}
                began = time.perf_counter_ns()
                message = collector.collect(FACE)
                row["incremental_ns"] = time.perf_counter_ns() - began
                row["pcrs_ns"] = spent if fresh else None
                row["list_ns"] = row["incremental_ns"] - spent
                collector.acknowledge(message.list_end)
                if number % EVERY == 0 or number == TRANSACTIONS - 1:
                    fresh = True
                    began = time.perf_counter_ns()
                    whole.collect(FACE)
                    row["whole_ns"] = time.perf_counter_ns() - began
                    row["whole_list_ns"] = row["whole_ns"] - spent
                rows.append(row)
    json.dump(rows, sys.stdout)


main()
