"""A host's captures: what is proven of each, and what its tasks cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from excise.capture.archive import SUFFIX, unpacked
from excise.capture.manifest import Fact
from excise.errors import ExciseError
from excise.evidence.checks import Outcome
from excise.fleet.places import Folder
from excise.fleet.records import CaptureState, CheckRow, CostRow

if TYPE_CHECKING:
    from pathlib import Path

_UNKNOWN: Final = "unknown"


def appraise_captures(
    folder: Folder,
    names: Iterable[str],
    *,
    known: Mapping[str, CaptureState],
    key: bytes | None,
) -> tuple[dict[str, CaptureState], Outcome]:
    """Return what each capture holds and the worst verdict; an unchanged one is not read again."""
    found: dict[str, CaptureState] = {}
    for name in names:
        fingerprint = _fingerprint(folder, name, key)
        before = known.get(name)
        if before is not None and before.fingerprint == fingerprint:
            found[name] = before
            continue
        with folder.fetched(name) as path:
            checks, costs = _read(path, name, key)
        found[name] = CaptureState(fingerprint=fingerprint, checks=checks, costs=costs)
    outcomes = {row.outcome for state in found.values() for row in state.checks}
    attested = any(
        row.check == "capture.attestation_key" and row.outcome == Outcome.PASSED
        for state in found.values()
        for row in state.checks
    )
    if Outcome.FAILED in outcomes:
        return found, Outcome.FAILED
    return found, Outcome.PASSED if attested else Outcome.NOT_COVERED


def _fingerprint(folder: Folder, name: str, key: bytes | None) -> str:
    """Return what changes when a capture does: names, sizes and times of its files."""
    inside = folder if name.endswith(SUFFIX) else folder.child(name)
    items = [item for item in inside.items() if not name.endswith(SUFFIX) or item.name == name]
    parts = [f"{item.name} {item.size_bytes} {item.modified_ns}" for item in items]
    return "; ".join([*parts, "own key" if key is None else "known key"])


def _read(
    path: Path, name: str, key: bytes | None
) -> tuple[tuple[CheckRow, ...], tuple[CostRow, ...]]:
    import time

    from excise.evidence.capture import verify_capture

    now = time.time_ns()
    try:
        with unpacked(path) as opened:
            appraised = verify_capture(opened, public_key=key)
            costs = tuple(_costs(opened, name))
    except ExciseError as error:
        failed = CheckRow(
            "capture", "fleet.readable", Outcome.FAILED, "a capture", f"{name}: {error}", "", None
        )
        return (failed,), ()
    return tuple(
        CheckRow(
            "capture",
            check.id,
            check.outcome.value,
            check.expected,
            f"{name}: {check.got}",
            check.detail,
            now if check.outcome is Outcome.PASSED else None,
        )
        for check in appraised.checks
    ), costs


def _costs(path: Path, name: str) -> Iterable[CostRow]:
    from excise.cost.summary import summaries
    from excise.events.load import load_capture

    dataset = load_capture(path)
    facts = {fact.name: fact for fact in dataset.manifest.host_facts}
    for row in summaries(dataset):
        value = row.typical
        if value is None or row.event or row.growing:
            continue  # a mean of what grows says nothing; parts of a task are not the task
        yield CostRow(
            name,
            _text(facts.get("kernel.release")),
            _tpm(facts.values()),
            _text(facts.get("security.lsm")),
            row.task,
            row.configuration,
            row.metric,
            row.unit,
            row.n or 0,
            float(value),
        )


def _text(fact: Fact | None) -> str:
    return _UNKNOWN if fact is None or fact.value is None else str(fact.value)


def _tpm(facts: Iterable[Fact]) -> str:
    """Return maker, model and firmware of the TPM, as far as the capture says."""
    said: dict[str, Any] = {f.name: f.value for f in facts if f.name.startswith("tpm.")}
    named = ("manufacturer", "vendor_string", "firmware")
    words = [str(said[f"tpm.{name}"]) for name in named if said.get(f"tpm.{name}")]
    if words:
        return " ".join(words)
    present = said.get("tpm.present")
    return _UNKNOWN if present is None else "present" if present else "none"
