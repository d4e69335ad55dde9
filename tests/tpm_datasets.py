"""The bench of a made-up TPM, with known times, as a dataset."""

from __future__ import annotations

from typing import Any

from excise.capture.journal import Event, Run
from excise.capture.manifest import Fact, Manifest
from excise.clock import Clock
from excise.cost.tpm_record import CLIENT
from excise.events.dataset import Dataset
from excise.events.load import from_records

MS = 1e6
SECRETS = ("host.example", "SN-12345", "ro.cmdline=secret")


def bench_dataset(runs: int = 9) -> Dataset:
    """Return a bench of a made-up TPM with floors, modes, banks, and facts that are private."""
    records: list[Run | Event] = []

    def add(task: str, mode: str, number: int, parts: dict[str, float], layer: str = "tpm") -> None:
        sequence = len(records)
        phase: Any = "first" if number == 0 else "measured"
        total = round(sum(parts.values()))
        records.append(
            Run(
                sequence=sequence, block=number, task=task, configuration=mode, run=number,
                phase=phase, wall_ns=total,
            )
        )  # fmt: skip
        records.extend(
            Event(sequence=sequence, layer=layer, event=name, value=value)
            for name, value in parts.items()
            if len(parts) > 1
        )

    for number in range(runs + 1):
        jitter = 1.0 + 0.01 * (number % 5)
        add("ReadClock", "none", number, {"ReadClock": 2 * MS * jitter})
        add("PCR_Read", "none", number, {"PCR_Read": 3 * MS * jitter})
        add("PCR_Extend", "none", number, {"PCR_Extend": 6 * MS * jitter})
        add("PCR_Extend", "none (A/A)", number, {"PCR_Extend": 6 * MS * jitter})
        whole = {"ContextLoad": 30 * MS * jitter, "PCR_Extend": 20 * MS * jitter}
        add("PCR_Extend", "hmac", number, whole)
        add(CLIENT, "hmac", number, {"salt": 90e3, "check": 10e3}, layer="client")
        for banks in (1, 2):
            cost = (5 + banks) * MS * jitter
            add(f"PCR_Extend, {banks} of 2 banks", "none", number, {"PCR_Extend": cost})
    manifest = Manifest(
        id="x",
        created="2026-01-02T03:04:05+00:00",
        title="TPM commands",
        origin="measured",
        baseline="none",
        twin="none (A/A)",
        campaign={"tpm": "bench", "banks": 2},
        host_facts=[
            Fact(name="tpm.manufacturer", value="IFX"),
            Fact(name="tpm.vendor_string", value="SLB9999"),
            Fact(name="tpm.firmware", value="9.9"),
            Fact(name="tpm.type", value="discrete"),
            Fact(name="machine", value="x86_64"),
            Fact(name="host.name", value=SECRETS[0], private=True),
            Fact(name="board.serial", value=SECRETS[1], private=True),
            Fact(name="kernel.cmdline", value=SECRETS[2], private=True),
        ],
        clocks=[Clock(name="CLOCK_MONOTONIC", resolution_ns=1.0)],
    )
    return from_records(records, name="bench", manifest=manifest)
