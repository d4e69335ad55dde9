"""From a capture's journal to tables, chunk by chunk: memory follows the tables, not the text."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import numpy as np
import polars as pl

from excise._core import journal_read
from excise.capture import journal
from excise.capture.archive import unpacked
from excise.capture.manifest import Manifest
from excise.capture.seal import require_unbroken
from excise.capture.store import JOURNAL, journal_chunks, read_manifest
from excise.errors import CaptureError, FormatError
from excise.events.dataset import Dataset
from excise.events.schema import AGGREGATES, BATCHES, EVENTS, RUNS, Schema

# More threads than this wait for memory, not for a processor.
READERS: Final = min(4, os.cpu_count() or 1)
_ARRAY_TYPES: Final[dict[Any, type[np.generic]]] = {
    pl.Int64: np.int64,
    pl.Float64: np.float64,
    pl.Boolean: np.bool_,
}
# Values in native byte order; one byte a value that tells whether it is there, None where all are;
# and, for names, the texts that the values (uint32) number.
_Column = tuple[bytes, bytes | None, list[str] | None]


def load_capture(path: Path, *, name: str | None = None, with_batches: bool = False) -> Dataset:
    """Return the tables of a capture folder or `.tar.zst`.

    A sealed capture is checked against its seal first. A torn last line is dropped and appears
    among the losses.

    Args:
        path: Folder or archive.
        name: What reports call it; the path's last part by default.
        with_batches: Whether to keep every batch of the probe's runs, not only their median.

    Raises:
        CaptureError: If there is no such path, or it is not a capture.
        Refused: If it is sealed and a file was changed since.
        FormatError: If a journal line cannot be read, with its line number.
    """
    if not path.exists():
        raise CaptureError("there is no such file or folder", source=str(path))
    with unpacked(path) as folder:
        require_unbroken(folder)
        manifest = read_manifest(folder)
        tables = _Tables(source=str(path / JOURNAL), with_batches=with_batches)
        tables.read(journal_chunks(folder))
    return tables.dataset(name=name or path.name, manifest=manifest)


def from_records(records: Iterable[journal.Record], *, name: str, manifest: Manifest) -> Dataset:
    """Return the tables of records that are already in memory (imports, references)."""
    tables = _Tables(source=name, with_batches=True)
    tables.read([(0, b"".join(journal.encode(record) for record in records))])
    return tables.dataset(name=name, manifest=manifest)


_Kind = TypeVar("_Kind")


class _Tables:
    """Gathers journal chunks into tables."""

    def __init__(self, *, source: str, with_batches: bool) -> None:
        self._source = source
        self._with_batches = with_batches
        self._runs: list[pl.DataFrame] = []
        self._events: list[pl.DataFrame] = []
        self._batches: list[pl.DataFrame] = []
        self._other: dict[type, list[journal.Record]] = {}
        self._lines = 0

    def read(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        """Take every chunk: natively in threads, a few ahead, and in order."""
        ahead: deque[tuple[bytes, Future[dict[str, Any]]]] = deque()
        with ThreadPoolExecutor(READERS) as threads:
            for offset, chunk in chunks:
                whole, torn = _whole_lines(chunk)
                if whole:
                    ahead.append((whole, threads.submit(journal_read, whole, self._with_batches)))
                while ahead and (torn is not None or len(ahead) > READERS):
                    self._take(*ahead.popleft())
                if torn is not None:
                    self._keep(self._torn_line(torn, offset=offset + len(whole)))
            while ahead:
                self._take(*ahead.popleft())

    def dataset(self, *, name: str, manifest: Manifest) -> Dataset:
        """Return everything gathered."""
        rows = [msgspec.structs.asdict(row) for row in self._kept(journal.Aggregate)]
        return Dataset(
            name=name,
            manifest=manifest,
            runs=_joined(self._runs, RUNS),
            events=_joined(self._events, EVENTS),
            aggregates=pl.DataFrame(rows, schema=AGGREGATES),
            op_ns_batches=_joined(self._batches, BATCHES),
            losses=tuple(self._kept(journal.Loss)),
            effects=tuple(self._kept(journal.Effect)),
            calibrations=tuple(self._kept(journal.Calibration)),
            sessions=tuple(self._kept(journal.Session)),
        )

    def _take(self, chunk: bytes, reading: Future[dict[str, Any]]) -> None:
        try:
            found = reading.result()
        except FormatError as error:
            line = self._lines + (error.line or 1)
            raise FormatError(error.reason, source=self._source, line=line) from error
        for index, start, end in found["others"]:
            self._keep(self._decoded(chunk[start:end], line_number=self._lines + index + 1))
        self._lines += found["lines"]
        runs = _frame(found["runs"], {**RUNS, "batches": pl.Int64})
        if runs.height:
            if found["op_ns"]:
                self._batches.append(_batches(runs, found["op_ns"]))
            self._runs.append(runs.drop("batches"))
        events = _frame(found["events"], EVENTS)
        if events.height:
            self._events.append(events)

    def _decoded(self, line: bytes, *, line_number: int) -> journal.Record:
        try:
            return journal.decode(line)
        except msgspec.MsgspecError as error:
            raise FormatError(
                f"is not a journal record: {error}", source=self._source, line=line_number
            ) from error

    def _torn_line(self, text: bytes, *, offset: int) -> journal.Loss:
        return journal.Loss(
            source=JOURNAL,
            line=self._lines + 1,
            offset=offset,
            reason="torn last line dropped",
            text=text[:200].decode(errors="replace"),
        )

    def _kept(self, kind: type[_Kind]) -> list[_Kind]:
        return self._other.get(kind, [])  # type: ignore[return-value]

    def _keep(self, record: journal.Record) -> None:
        self._other.setdefault(type(record), []).append(record)


def _whole_lines(chunk: bytes) -> tuple[bytes, bytes | None]:
    """Split off a last line without an end; None where there is none."""
    if chunk.endswith(b"\n"):
        return chunk, None
    cut = chunk.rfind(b"\n") + 1
    return chunk[:cut], chunk[cut:]


def _frame(columns: dict[str, Any], schema: Schema) -> pl.DataFrame:
    return pl.DataFrame([_series(name, columns[name], dtype) for name, dtype in schema.items()])


def _series(name: str, column: _Column, dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    values, valid, texts = column
    if texts is not None:
        codes = pl.Series(np.frombuffer(values, dtype=np.uint32))
        return pl.Series(name, texts, dtype=dtype).gather(_nulled(codes, valid))
    array = np.frombuffer(values, dtype=_ARRAY_TYPES[dtype])
    if valid is not None and 1 not in valid:
        return pl.Series(name, dtype=dtype).extend_constant(None, len(array))
    return _nulled(pl.Series(name, array), valid)


def _nulled(column: pl.Series, valid: bytes | None) -> pl.Series:
    if valid is None:
        return column
    missing = pl.Series(np.frombuffer(valid, dtype=np.uint8) == 0)
    return column.set(missing, None)


def _batches(runs: pl.DataFrame, values: bytes) -> pl.DataFrame:
    """Return one row a batch of the probe's runs."""
    counts = runs.select("sequence", "batches").drop_nulls()
    sequence = np.repeat(counts.get_column("sequence"), counts.get_column("batches"))
    return pl.DataFrame({"sequence": sequence, "op_ns": np.frombuffer(values)}, schema=BATCHES)


def _joined(parts: list[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    return pl.concat(parts, rechunk=False) if parts else pl.DataFrame(schema=schema)
