"""What a capture says of itself and of its machine, for a report's end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from excise.capture.manifest import Manifest
from excise.events.dataset import Dataset
from excise.report import tables
from excise.units import format_count


def facts_of(datasets: Sequence[Dataset], *, private: bool) -> list[tuple[str, str]]:
    """Return name and value of every fact to print at a report's end, private ones if asked."""
    rows = []
    for dataset in datasets:
        manifest = dataset.manifest
        before = f"{dataset.name}: " if len(datasets) > 1 else ""
        rows.append(
            (f"{before}capture", " of ".join(filter(None, [manifest.id, manifest.created])))
        )
        if manifest.seed is not None:
            rows.append((f"{before}seed", str(manifest.seed)))
        rows += [
            (f"{before}{name}", value) for name, value in _fact_rows(manifest, private=private)
        ]
    return rows


_TOLD: Final = ("cpu.model", "kernel.release", "lab.kernels", "lab.clock", "system")
_FEW: Final = 8


def facts_in_short(datasets: Sequence[Dataset]) -> str:
    """Return in one sentence when and on what it was measured; "" where the facts are few."""
    listed = facts_of(datasets, private=False)
    if len(listed) <= _FEW:
        return ""
    several = len(datasets) > 1
    said = [
        f"{dataset.name}: {_measured_on(dataset.manifest)}"
        if several
        else _measured_on(dataset.manifest)
        for dataset in datasets
    ]
    return f"{'; '.join(said)}. `excise show` and every other format list all {len(listed)} facts."


def _measured_on(manifest: Manifest) -> str:
    values = {fact.name: str(fact.value) for fact in manifest.host_facts if fact.value is not None}
    for name in {"kernel.release", "lab.kernels"} & values.keys():
        values[name] = f"Linux {values[name]}"
    told = [values[name] for name in _TOLD if name in values]
    place = f" on {', '.join(told)}" if told else ""
    seed = f", seed {manifest.seed}" if manifest.seed is not None else ""
    return f"Measured {manifest.created[:10]}{place}; capture {manifest.id[:8]}{seed}"


def _fact_rows(manifest: Manifest, *, private: bool) -> Iterable[tuple[str, str]]:
    for fact in manifest.host_facts:
        if fact.private and not private:
            continue
        value = str(fact.value)
        if fact.value is None:
            value = f"unknown ({fact.note})" if fact.note else "unknown"
        if fact.unit not in ("", "1"):
            value = tables.shown(float(fact.value), fact.unit) if fact.value is not None else value
        elif isinstance(fact.value, float):
            value = format_count(fact.value)
        yield fact.name, value
    for clock in manifest.clocks:
        resolution = tables.shown(clock.resolution_ns, "ns")
        yield f"clock {clock.name}", f"resolution {resolution}"
    for source in manifest.sources:
        yield "source", " ".join(filter(None, [source.title or source.path, source.url]))
