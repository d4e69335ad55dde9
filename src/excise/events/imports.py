"""Imported files as captures: bytes in `raw/`, rows in the journal, losses declared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise import __version__
from excise.capture.journal import Record
from excise.capture.manifest import Manifest, Source
from excise.capture.store import RAW, Capture, new_id, now, sha256_of
from excise.errors import FormatError
from excise.files import LargeFile
from excise.formats.registry import Reading


def import_readings(
    path: Path, *, inputs: Sequence[tuple[str, bytes | LargeFile]], readings: Sequence[Reading]
) -> Path:
    """Write what was read from foreign files as a capture.

    Sequence and run numbers are given anew, so that several files make one capture.

    Args:
        path: Capture folder to make.
        inputs: Name of each file, and its bytes or where it is.
        readings: What was read from each, in the same order.

    Raises:
        FormatError: If no file held any row, or a large one was changed since.
        OutputError: If the capture cannot be written.
    """
    if not any(reading.runs or reading.aggregates for reading in readings):
        lost = sum(loss.count for reading in readings for loss in reading.losses)
        raise FormatError(
            f"holds nothing that can be imported ({lost} lines lost)",
            source=", ".join(name for name, _ in inputs),
        )
    names = _raw_names([name for name, _ in inputs])
    manifest = Manifest(
        id=new_id(),
        created=now(),
        title=Path(inputs[0][0]).name if inputs[0][0] != "-" else "standard input",
        origin="imported",
        excise_version=__version__,
        clocks=list(
            {clock.name: clock for r in readings for clock in (r.clock, *r.clocks)}.values()
        ),
        host_facts=list({fact.name: fact for r in readings for fact in r.facts}.values()),
        sources=[
            Source(path=f"{RAW}/{name}", format=reading.format, sha256=_digest(data))
            for name, (_, data), reading in zip(names, inputs, readings, strict=True)
        ],
        notes=list(dict.fromkeys(note for reading in readings for note in reading.notes)),
    )
    _require_unchanged(inputs)
    with Capture.create(path, manifest) as capture:
        for name, (_, data) in zip(names, inputs, strict=True):
            capture.add_raw(name, data.path if isinstance(data, LargeFile) else data)
        _require_unchanged(inputs)
        capture.extend(_renumbered(readings))
    return path


def _digest(data: bytes | LargeFile) -> str:
    if isinstance(data, LargeFile):
        return sha256_of(data.path)
    return hashlib.sha256(data).hexdigest()


def _require_unchanged(inputs: Sequence[tuple[str, bytes | LargeFile]]) -> None:
    for _, data in inputs:
        if isinstance(data, LargeFile):
            data.require_unchanged()


def _renumbered(readings: Sequence[Reading]) -> list[Record]:
    records: list[Record] = []
    offset = 0
    run_numbers: dict[tuple[str, str], int] = {}
    for reading in readings:
        for run in reading.runs:
            key = (run.task, run.configuration)
            number = run_numbers.get(key, 0)
            run_numbers[key] = number + 1
            records.append(msgspec.structs.replace(run, sequence=run.sequence + offset, run=number))
        records += [
            msgspec.structs.replace(event, sequence=event.sequence + offset)
            for event in reading.events
        ]
        records += reading.aggregates
        records += reading.losses
        offset += 1 + max((run.sequence for run in reading.runs), default=-1)
    return records


def _raw_names(names: Sequence[str]) -> list[str]:
    """Return a distinct file name for each input: its own, numbered where names repeat."""
    taken: list[str] = []
    for name in names:
        plain = Path(name).name if name != "-" else "stdin"
        taken.append(plain if plain not in taken else f"{len(taken)}-{plain}")
    return taken
