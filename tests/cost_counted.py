"""Captures of guests that count instructions, with known counts."""

from __future__ import annotations

from typing import Any

from captures import manifest as manifest_of
from excise.capture.journal import Probe, Run
from excise.events.dataset import Dataset
from excise.events.load import from_records


def counted(counts: dict[str, list[float]], *, task: str = "stat", **manifest: Any) -> Dataset:
    """Return a capture of guests: for each configuration the least batch of each round."""
    runs = []
    for configuration, rounds in counts.items():
        for number, value in enumerate(rounds):
            probe = Probe(
                workload=task,
                operations=10,
                op_instructions=[value + 50.0, value, value + 7.0],
                first_op_instructions=value + 100.0,
            )
            head = {"block": number, "run": number, "phase": "measured" if number else "first"}
            runs.append(
                Run(sequence=len(runs), task=task, configuration=configuration, probe=probe, **head)  # type: ignore[arg-type]
            )
    twins = [name for name in counts if "(A/A" in name]
    given = {"baseline": "none", "twin": twins[0] if twins else None, "further_twins": twins[1:]}
    return from_records(
        runs, name="d", manifest=manifest_of(**{"paired": False, **given, **manifest})
    )


GUESTS = {
    "none": [900.0, 1000.0, 1000.0, 1000.0],
    "none (A/A)": [900.0, 1000.0, 1000.0, 1000.0],
    "none (A/A 2)": [900.0, 1001.0, 1001.0, 1001.0],
    "yama": [900.0, 1000.5, 1000.5, 1000.5],
    "selinux": [900.0, 1200.0, 1200.0, 1300.0],
}
