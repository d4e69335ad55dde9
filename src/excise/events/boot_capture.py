"""A capture that grows by one boot at a time, each with its files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from excise import __version__
from excise.capture import store
from excise.capture.journal import Event, Record, Run, Session
from excise.capture.manifest import Fact, Manifest
from excise.errors import OutputError, UsageError
from excise.events.known_boot import require_new_boot
from excise.formats.model import Reading
from excise.formats.systemd_analyze import BOOT


def add_boot(
    path: Path,
    *,
    inputs: Sequence[tuple[str, bytes]],
    reading: Reading,
    facts: Sequence[Fact] = (),
    boot_id: str = "",
    another: bool = False,
) -> int:
    """Write a boot to a capture, made where there is none; return its number from 1.

    Args:
        path: The capture.
        inputs: Name and bytes of each file it was read from.
        reading: One boot, as `merge_boot` gives it.
        facts: Facts of this host, where it is this host's boot.
        boot_id: The kernel's identifier of this host's boot, which is recorded once.
        another: Whether it is another boot even if a file or all stages equal those of one there.

    Raises:
        UsageError: If the boot is in the capture already.
        OutputError: If the capture cannot be written.
    """
    if not (path / store.MANIFEST).is_file():
        store.Capture.create(path, _manifest(reading, facts=facts, live=bool(boot_id))).close()
    with store.Capture.open(path) as capture:
        if capture.manifest.campaign.get("kind") != "recorded boots":
            raise OutputError(
                "is no capture of recorded boots, so that none is added to it",
                source=str(path),
                hint="Give another capture with -o",
            )
        known = list(store.journal_records(path))
        if boot_id and any(isinstance(r, Session) and r.boot_id == boot_id for r in known):
            raise UsageError(
                "holds this boot already", source=str(path), hint="Record the next one, after it"
            )
        if not another:
            require_new_boot(path, known, inputs=inputs, reading=reading, live=bool(boot_id))
        runs = [record for record in known if isinstance(record, Run)]
        numbers = Counter((run.task, run.configuration) for run in runs)
        first = 1 + max((run.sequence for run in runs), default=-1)
        configuration = reading.runs[0].configuration
        number = numbers[BOOT, configuration]
        place = sum(run.task == BOOT for run in runs)
        for name, data in _raw_files(inputs, place=place).items():
            capture.replace_raw(name, data)
        records: list[Record] = [
            Session(
                state="resumed" if known else "started",
                at=store.now(),
                excise_version=__version__,
                boot_id=boot_id,
            )
        ]
        records += _renumbered(reading, first=first, numbers=numbers)
        records += reading.losses
        records.append(Session(state="finished", at=store.now(), runs_done=len(runs)))
        capture.extend(records)
    return number + 1


def _raw_files(inputs: Sequence[tuple[str, bytes]], *, place: int) -> dict[str, bytes]:
    """Return files by their name in the capture; those of one name are told apart by a number."""
    files: dict[str, bytes] = {}
    for number, (path, data) in enumerate(inputs):
        name = Path(path).name if path != "-" else "stdin"
        whole = f"{place}.{name}"
        files[whole if whole not in files else f"{place}.{number}.{name}"] = data
    return files


def _manifest(reading: Reading, *, facts: Sequence[Fact], live: bool) -> Manifest:
    clocks = {clock.name: clock for clock in (reading.clock, *reading.clocks)}
    known = {fact.name: fact for fact in (*reading.facts, *facts)}
    return Manifest(
        id=store.new_id(),
        created=store.now(),
        title="Boots",
        origin="measured" if live else "imported",
        excise_version=__version__,
        campaign={"kind": "recorded boots"},
        host_facts=list(known.values()),
        clocks=list(clocks.values()),
        notes=list(reading.notes),
    )


def _renumbered(
    reading: Reading, *, first: int, numbers: Counter[tuple[str, str]]
) -> list[Run | Event]:
    records: list[Run | Event] = []
    for run in reading.runs:
        number = numbers[run.task, run.configuration]
        records.append(
            msgspec.structs.replace(run, sequence=run.sequence + first, run=number, block=number)
        )
    records += [
        msgspec.structs.replace(event, sequence=event.sequence + first) for event in reading.events
    ]
    return records
