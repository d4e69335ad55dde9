"""Imported files as captures: bytes in `raw/`, rows in the journal, losses declared."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from excise import __version__
from excise.capture.journal import Record, encode
from excise.capture.manifest import Fact, Manifest, Source
from excise.capture.store import RAW, Capture, new_id, now, sha256_of
from excise.clock import Clock
from excise.errors import FormatError, UsageError
from excise.files import FileOnDisk, lacks_room, unwritable
from excise.formats.model import Reading
from excise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A foreign file, and what was read from it.

    Attributes:
        name: Its name, or `-`.
        data: Its bytes, or where it is.
        reading: What was read from it.
    """

    name: str
    data: bytes | FileOnDisk
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A file as a user named it.

    Attributes:
        name: The name, or `-`.
        configuration: Configuration given for it, None where its format is to tell it.
        same_as: The name of the same file where it was named before, so that it is not read again.
    """

    name: str
    configuration: str | None = None
    same_as: str | None = None


def named_once(files: Sequence[tuple[str, str | None]]) -> list[Named]:
    """Return files in the order named, each with whether it was named before, by any name.

    Its runs are there once however often it is named: counted twice, they would be twice as many
    as were made, and differences look surer than they are.

    Args:
        files: Name and configuration of each.

    Raises:
        UsageError: The same file is named under two configurations.
    """
    first: dict[tuple[int, int] | str, Named] = {}
    found = []
    for name, configuration in files:
        before = first.get(_identity(name))
        if before is not None and before.configuration != configuration:
            raise UsageError(
                f"is given as {before.configuration!r} and as {configuration!r}",
                source=name,
                hint="What ran under one configuration did not run under the other: name it once",
            )
        same_as = before.name if before is not None else None
        found.append(Named(name=name, configuration=configuration, same_as=same_as))
        first.setdefault(_identity(name), found[-1])
    return found


def _identity(name: str) -> tuple[int, int] | str:
    """Return what is the same for all names of one file; its name where nothing tells."""
    try:
        state = Path(name).stat() if name != "-" else None
    except OSError:
        return name
    return (state.st_dev, state.st_ino) if state is not None else name


def import_readings(
    path: Path,
    files: Iterable[Imported],
    *,
    on_copy: Callable[[str, str], None] | None = None,
) -> Path:
    """Write what was read from foreign files as a capture.

    Sequence and run numbers are given anew, so that several files make one capture. The files are
    taken one by one, and the rows of each let go of before the next; the capture is made at the
    end, when all could be read.

    Args:
        path: Capture folder to make.
        files: The files, at least one.
        on_copy: Called with the names of a file that holds what another one holds, and of that
            one: both are counted, as two short runs may well print the same.

    Raises:
        FormatError: If no file held any row, or one was changed since.
        OutputError: If the capture cannot be written.
    """
    with _spool(path) as spool:
        gathered = _Gathered(spool, path=path, on_copy=on_copy)
        imports = iter(files)
        while (imported := next(imports, None)) is not None:
            gathered.add(imported)
            del imported  # Or its rows would still be held while the next file is read.
        gathered.require_rows()
        gathered.require_unchanged()
        spool.seek(0)
        with Capture.create(path, gathered.manifest()) as capture:
            for name, data in gathered.raw.items():
                capture.add_raw(name, data.path if isinstance(data, FileOnDisk) else data)
            gathered.require_unchanged()
            capture.append_lines(spool)
    return path


@contextmanager
def _spool(path: Path) -> Iterator[BinaryIO]:
    """Give a file without a name where the capture goes: nothing is left of it, whatever happens.

    Closing it writes what a failed write has left, and fails once more: that is told here.
    """
    above = next(each for each in (path, *path.absolute().parents) if each.is_dir())
    try:
        opened = tempfile.TemporaryFile(dir=above)  # noqa: SIM115  closed below
    except OSError as error:
        raise unwritable(error, source=path) from error
    try:
        with opened as spool:
            yield spool
    except OSError as error:
        if not lacks_room(error):
            raise
        raise unwritable(error, source=path) from error


class _Gathered:
    """What the files so far come to.

    Attributes:
        raw: Bytes of each file or where it is, by its name in the capture.
    """

    def __init__(
        self, spool: BinaryIO, *, path: Path, on_copy: Callable[[str, str], None] | None = None
    ) -> None:
        self.raw: dict[str, bytes | FileOnDisk] = {}
        self._spool = spool
        self._path = path
        self._on_copy = on_copy
        self._by_digest: dict[str, str] = {}
        self._names: list[str] = []
        self._sources: list[Source] = []
        self._clocks: dict[str, Clock] = {}
        self._facts: dict[str, Fact] = {}
        self._notes: dict[str, None] = {}
        self._lost = 0
        self._empty = True
        self._sequence = 0
        self._run_numbers: dict[tuple[str, str], int] = {}

    def add(self, imported: Imported) -> None:
        """Keep a file's rows on disk, and the rest of what is known of it here."""
        reading = imported.reading
        name = _raw_name(imported.name, self.raw)
        self.raw[name] = imported.data
        self._names.append(imported.name)
        digest = _digest(imported.data)
        self._sources.append(Source(path=f"{RAW}/{name}", format=reading.format, sha256=digest))
        original = self._by_digest.setdefault(digest, imported.name)
        if original != imported.name and self._on_copy is not None:
            self._on_copy(imported.name, original)
        self._clocks.update({clock.name: clock for clock in (reading.clock, *reading.clocks)})
        self._facts.update({fact.name: fact for fact in reading.facts})
        self._notes.update(dict.fromkeys(reading.notes))
        self._lost += sum(loss.count for loss in reading.losses)
        self._empty &= not (reading.runs or reading.aggregates)
        try:
            self._spool.writelines(map(encode, self._renumbered(reading)))
            self._spool.flush()
        except OSError as error:
            raise unwritable(error, source=self._path) from error

    def _renumbered(self, reading: Reading) -> Iterator[Record]:
        replace = msgspec.structs.replace
        offset, last = self._sequence, -1
        for run in reading.runs:
            key = (run.task, run.configuration)
            number = self._run_numbers.get(key, 0)
            self._run_numbers[key] = number + 1
            last = max(last, run.sequence)
            yield replace(run, sequence=run.sequence + offset, run=number)
        for event in reading.events:
            yield replace(event, sequence=event.sequence + offset)
        yield from reading.aggregates
        yield from reading.losses
        self._sequence += 1 + last

    def require_rows(self) -> None:
        if self._empty:
            raise FormatError(
                f"holds nothing that can be imported ({counted(self._lost, 'line')} lost)",
                source=", ".join(self._names),
            )

    def require_unchanged(self) -> None:
        for data in self.raw.values():
            if isinstance(data, FileOnDisk):
                data.require_unchanged()

    def manifest(self) -> Manifest:
        return Manifest(
            id=new_id(),
            created=now(),
            title=Path(self._names[0]).name if self._names[0] != "-" else "standard input",
            origin="imported",
            excise_version=__version__,
            clocks=list(self._clocks.values()),
            host_facts=list(self._facts.values()),
            sources=self._sources,
            notes=list(self._notes),
        )


def _digest(data: bytes | FileOnDisk) -> str:
    if isinstance(data, FileOnDisk):
        return sha256_of(data.path)
    return hashlib.sha256(data).hexdigest()


def _raw_name(name: str, taken: Iterable[str]) -> str:
    """Return a file name that is not taken: its own, numbered where names repeat."""
    others = list(taken)
    plain = Path(name).name if name != "-" else "stdin"
    return plain if plain not in others else f"{len(others)}-{plain}"
