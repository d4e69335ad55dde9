"""From a capture's journal to tables, streamed: memory follows the tables, not the text."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeVar

import msgspec
import polars as pl

from excise.capture import journal
from excise.capture.archive import unpacked
from excise.capture.manifest import Manifest
from excise.capture.seal import require_unbroken
from excise.capture.store import JOURNAL, journal_chunks, read_manifest
from excise.errors import FormatError
from excise.events.dataset import Dataset
from excise.events.schema import AGGREGATES, EVENTS, RUNS, Schema

_PROBE: Final = pl.Struct(
    {"operations": pl.Int64, "op_ns": pl.List(pl.Float64), "first_op_ns": pl.Float64}
)
_DERIVED: Final = ("op_ns", "first_op_ns", "operations")
_COLUMNS: Final[Schema] = {**RUNS, **EVENTS}
_NAMES: Final = tuple(name for name, dtype in _COLUMNS.items() if dtype == pl.Categorical)
_LINE: Final[Schema] = {
    "kind": pl.String,
    **{n: pl.String if n in _NAMES else t for n, t in _COLUMNS.items() if n not in _DERIVED},
    "probe": _PROBE,
}


def load_capture(path: Path, *, name: str | None = None) -> Dataset:
    """Return the tables of a capture folder or `.tar.zst`.

    A sealed capture is checked against its seal first. A torn last line is dropped and appears
    among the losses.

    Args:
        path: Folder or archive.
        name: What reports call it; the path's last part by default.

    Raises:
        CaptureError: If it is not a capture.
        Refused: If it is sealed and a file was changed since.
        FormatError: If a journal line cannot be read, with its line number.
    """
    with unpacked(path) as folder:
        require_unbroken(folder)
        manifest = read_manifest(folder)
        tables = _Tables()
        for offset, chunk in journal_chunks(folder):
            tables.add(chunk, source=str(path / JOURNAL), offset=offset)
    return tables.dataset(name=name or path.name, manifest=manifest)


def from_records(records: Iterable[journal.Record], *, name: str, manifest: Manifest) -> Dataset:
    """Return the tables of records that are already in memory (imports, references)."""
    tables = _Tables()
    tables.add(b"".join(journal.encode(record) for record in records), source=name, offset=0)
    return tables.dataset(name=name, manifest=manifest)


_Kind = TypeVar("_Kind")


class _Tables:
    """Gathers journal chunks into tables."""

    def __init__(self) -> None:
        self._runs: list[pl.DataFrame] = []
        self._events: list[pl.DataFrame] = []
        self._batches: list[pl.DataFrame] = []
        self._other: dict[type, list[journal.Record]] = {}
        self._lines = 0

    def add(self, chunk: bytes, *, source: str, offset: int) -> None:
        """Take one chunk of whole lines; a last line without newline is torn."""
        if not chunk.endswith(b"\n"):
            cut = chunk.rfind(b"\n") + 1
            self._keep(
                journal.Loss(
                    source=JOURNAL,
                    line=self._lines + chunk.count(b"\n") + 1,
                    offset=offset + cut,
                    reason="torn last line dropped",
                    text=chunk[cut : cut + 200].decode(errors="replace"),
                )
            )
            chunk = chunk[:cut]
        if not chunk:
            return
        frame = self._read(chunk, source=source)
        kinds = frame.get_column("kind")
        if not kinds.is_in(["run", "event"]).all():
            self._read_other(chunk, kinds, source=source)
        self._lines += frame.height
        self._split(frame)

    def dataset(self, *, name: str, manifest: Manifest) -> Dataset:
        """Return everything gathered."""
        aggregates = self._kept(journal.Aggregate)
        rows = [msgspec.structs.asdict(row) for row in aggregates]
        return Dataset(
            name=name,
            manifest=manifest,
            runs=_joined(self._runs, RUNS),
            events=_joined(self._events, EVENTS),
            aggregates=pl.DataFrame(rows, schema=AGGREGATES),
            op_ns_batches=_joined(
                self._batches, {"sequence": pl.Int64, "op_ns": pl.List(pl.Float64)}
            ),
            losses=tuple(self._kept(journal.Loss)),
            effects=tuple(self._kept(journal.Effect)),
            calibrations=tuple(self._kept(journal.Calibration)),
            sessions=tuple(self._kept(journal.Session)),
        )

    def _kept(self, kind: type[_Kind]) -> list[_Kind]:
        return self._other.get(kind, [])  # type: ignore[return-value]

    def _keep(self, record: journal.Record) -> None:
        self._other.setdefault(type(record), []).append(record)

    def _read(self, chunk: bytes, *, source: str) -> pl.DataFrame:
        try:
            frame = pl.read_ndjson(io.BytesIO(chunk), schema=_LINE)
        except pl.exceptions.PolarsError as error:
            raise self._fault(chunk, source=source) or FormatError(
                str(error), source=source
            ) from error
        if frame.height != chunk.count(b"\n"):
            raise self._fault(chunk, source=source) or FormatError(
                "has empty lines", source=source, hint="Each line is one JSON object"
            )
        return frame

    def _fault(self, chunk: bytes, *, source: str) -> FormatError | None:
        """Find the line that the fast reader stumbled over."""
        for number, line in enumerate(chunk.splitlines(), start=self._lines + 1):
            try:
                journal.decode(line)
            except msgspec.MsgspecError as error:
                return FormatError(f"is not a journal record: {error}", source=source, line=number)
        return None

    def _read_other(self, chunk: bytes, kinds: pl.Series, *, source: str) -> None:
        lines = chunk.splitlines()
        for index in (~kinds.is_in(["run", "event"]).fill_null(False)).arg_true():
            try:
                self._keep(journal.decode(lines[index]))
            except msgspec.MsgspecError as error:
                raise FormatError(
                    f"is not a journal record: {error}", source=source, line=self._lines + index + 1
                ) from error

    def _split(self, frame: pl.DataFrame) -> None:
        frame = frame.with_columns(pl.col(name).cast(pl.Categorical) for name in _NAMES)
        runs = frame.filter(pl.col("kind") == "run")
        if runs.height:
            probe = pl.col("probe").struct
            batches = runs.select("sequence", probe.field("op_ns")).drop_nulls("op_ns")
            if batches.height:
                self._batches.append(batches)
            self._runs.append(
                runs.with_columns(
                    probe.field("op_ns").list.median(),
                    probe.field("first_op_ns"),
                    probe.field("operations"),
                ).select(RUNS.keys())
            )
        events = frame.filter(pl.col("kind") == "event")
        if events.height:
            self._events.append(
                events.select(EVENTS.keys()).with_columns(pl.col("labels").fill_null(""))
            )


def _joined(parts: list[pl.DataFrame], schema: Schema) -> pl.DataFrame:
    return pl.concat(parts, rechunk=False) if parts else pl.DataFrame(schema=schema)
