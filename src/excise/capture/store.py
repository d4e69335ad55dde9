"""The capture on disk: an append-only journal, raw files, and the seal that ends writing.

A line is written with one `write` before the next run starts: a crash of excise costs at most the
run in progress. The launcher waits for the disk at the campaign's `sync_interval`, so that a power
cut costs at most that much measuring more. A torn last line is dropped and declared as a `loss`
record when the capture is opened again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import time
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, Final, Self

import msgspec

from excise.capture import journal
from excise.capture.manifest import SCHEMA_VERSION, Manifest
from excise.errors import CaptureError, HostError, OutputError
from excise.files import read_whole, unwritable

MANIFEST: Final = "manifest.json"
JOURNAL: Final = "journal.jsonl"
SEAL: Final = "seal.json"
RAW: Final = "raw"
EVIDENCE: Final = "evidence"
PARTIAL: Final = ".partial"
LOCK_PATIENCE_S: Final = 3.0
CHUNK_BYTES: Final = 4 << 20
_RESUME: Final = "Free space, then run the same command again to resume"


def now() -> str:
    """Return the wall clock time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def new_id() -> str:
    """Return a fresh capture identifier."""
    return str(uuid.uuid4())


class Capture:
    """A capture that is open for appending, held by an exclusive lock.

    Attributes:
        path: The capture's folder.
        manifest: Its manifest.
        torn_bytes: Bytes of a torn last line that opening dropped, 0 when there was none.
    """

    def __init__(self, path: Path, manifest: Manifest, *, sync: bool) -> None:
        self.path = path
        self.manifest = manifest
        self.torn_bytes = 0
        self._sync = sync
        try:
            self._fd = os.open(
                path / JOURNAL, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise unwritable(error, source=path / JOURNAL) from error
        try:
            _lock(self._fd, source=str(path))
        except OutputError:
            self.close()
            raise

    @classmethod
    def create(cls, path: Path, manifest: Manifest, *, sync: bool = True) -> Self:
        """Make a new capture folder and open it.

        The manifest is written last: a folder that creating was cut short in holds nothing yet,
        and is taken over.

        Raises:
            OutputError: If the path exists and is not an empty folder, or cannot be written.
        """
        require_free(path)
        try:
            (path / RAW).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(error, source=path) from error
        _write_manifest(path, manifest)
        return cls(path, manifest, sync=sync)

    @classmethod
    def open(cls, path: Path, *, sync: bool = True) -> Self:
        """Open an existing capture for appending; drop and declare a torn last line.

        Raises:
            OutputError: If it is sealed, in use, or cannot be written.
            CaptureError: If it is not a capture.
        """
        if (path / SEAL).exists():
            raise OutputError(
                "is sealed and cannot be written",
                source=str(path),
                hint="Start a new capture with -o",
            )
        capture = cls(path, read_manifest(path), sync=sync)
        capture._drop_torn_line()
        return capture

    @property
    def journal_fd(self) -> int:
        """Return the descriptor the native launcher appends its lines to."""
        return self._fd

    def append(self, record: journal.Record) -> None:
        """Write one record, on disk when this returns."""
        self._write(journal.encode(record))

    def append_line(self, line: bytes) -> None:
        """Write one line as a launcher elsewhere made it, on disk when this returns."""
        self._write(line)

    def extend(self, records: list[journal.Record]) -> None:
        """Write several records with one write and one sync."""
        if records:
            self._write(b"".join(journal.encode(record) for record in records))

    def append_lines(self, file: BinaryIO) -> None:
        """Write the lines that an open file holds, with one sync; on disk when this returns."""
        while data := file.read(CHUNK_BYTES):
            self._put(data)
        self._settle()

    def start_over(self, manifest: Manifest) -> None:
        """Empty the journal and replace the manifest of a capture that holds no run yet."""
        os.ftruncate(self._fd, 0)
        self.replace_manifest(manifest)

    def drop_tail(self, size_bytes: int, *, source: str) -> None:
        """Drop lines from the journal's end that belong to a piece of work cut short; declare it.

        Args:
            size_bytes: Length of the journal that stays, which ends with a whole line.
            source: What they are of.
        """
        os.ftruncate(self._fd, size_bytes)
        reason = "lines of work that was cut short while they were written: it is done anew"
        self.append(journal.Loss(source=source, reason=reason))

    def replace_manifest(self, manifest: Manifest) -> None:
        """Write another manifest in place of the one there.

        Raises:
            OutputError: If it cannot be written; the old one stays.
        """
        _write_manifest(self.path, manifest)
        self.manifest = manifest

    def add_raw(self, name: str, data: bytes | Path) -> Path:
        """Keep a raw file, given its bytes or where it is; return its path below the capture.

        Raises:
            OutputError: If a raw file of that name exists, as raw data is never overwritten; or if
                it cannot be written.
        """
        relative = Path(RAW) / Path(name).name
        try:
            with (self.path / relative).open("xb") as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, CHUNK_BYTES)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError as error:
            raise OutputError("already exists", source=str(self.path / relative)) from error
        except OSError as error:
            raise unwritable(error, source=self.path / relative) from error
        return relative

    def replace_raw(self, name: str, data: bytes) -> Path:
        """Keep a raw file, in place of one that a killed session left.

        Such a file belongs to runs that the journal does not have: raw files come before them.
        """
        (self.path / RAW / Path(name).name).unlink(missing_ok=True)
        return self.add_raw(name, data)

    def close(self) -> None:
        """Close the journal and release the lock."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes) -> None:
        self._put(data)
        self._settle()

    def _put(self, data: bytes) -> None:
        try:
            written = os.write(self._fd, data)
        except OSError as error:
            raise unwritable(error, source=self.path / JOURNAL, hint=_RESUME) from error
        if written != len(data):
            raise HostError(
                "was written only in part: the disk is full",
                source=str(self.path / JOURNAL),
                hint=_RESUME,
            )

    def _settle(self) -> None:
        """Wait for the disk, where that is asked for."""
        try:
            if self._sync:
                os.fdatasync(self._fd)
        except OSError as error:
            raise unwritable(error, source=self.path / JOURNAL, hint=_RESUME) from error

    def _drop_torn_line(self) -> None:
        size = os.fstat(self._fd).st_size
        kept = end_of_last_line(self._fd, size)
        if kept < size:
            self.torn_bytes = size - kept
            text = os.pread(self._fd, 200, kept).decode(errors="replace")
            os.ftruncate(self._fd, kept)
            self.append(
                journal.Loss(
                    source=JOURNAL,
                    offset=kept,
                    reason=f"torn last line of {self.torn_bytes} bytes dropped on opening",
                    text=text,
                )
            )


def _lock(fd: int, *, source: str) -> None:
    """Take the exclusive lock of a journal; wait a little for a launcher that is just ending.

    Raises:
        OutputError: If another process keeps it.
    """
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise OutputError(
                    "another process is writing this capture",
                    source=source,
                    hint="Wait for it, or end it",
                ) from error
            time.sleep(0.02)
        else:
            return


def remove_capture(path: Path) -> None:
    """Remove the capture folder at a path, if there is one; anything else is left."""
    if (path / MANIFEST).is_file():
        shutil.rmtree(path)


def require_free(path: Path, *, hint: str = "Give another path with -o") -> None:
    """Check that a new capture can be made at a path, as far as that is seen before it is made.

    Args:
        path: Folder to be.
        hint: What to do where it is taken.

    Raises:
        OutputError: If the path is taken, or as `require_place`.
    """
    try:
        taken = path.exists() and not _is_empty(path)
    except OSError as error:
        raise unwritable(error, source=path) from error
    if taken:
        raise OutputError("already exists", source=str(path), hint=hint)
    require_place(path)


def require_place(path: Path) -> None:
    """Check that a capture that does not exist could be made at a path.

    Raises:
        OutputError: If it is below what is no folder, or may not be written.
    """
    try:
        above = next(each for each in (path, *path.absolute().parents) if each.exists())
    except OSError as error:
        raise unwritable(error, source=path) from error
    if not above.is_dir():
        raise OutputError(f"cannot be written ({above.name} is no folder)", source=str(path))
    if not os.access(above, os.W_OK | os.X_OK):
        raise OutputError("cannot be written (Permission denied)", source=str(path))


def _is_empty(path: Path) -> bool:
    """Tell whether a folder holds nothing but what an interrupted `Capture.create` leaves."""
    if not path.is_dir():
        return False
    left = {each.name for each in path.iterdir() if not is_partial(each.name)} - {RAW}
    return not left and not any((path / RAW).glob("*"))


def end_of_last_line(fd: int, size: int) -> int:
    """Return the offset just after the last newline below `size` bytes, 0 when there is none."""
    end = size
    while end > 0:
        start = max(0, end - 65_536)
        position = os.pread(fd, end - start, start).rfind(b"\n")
        if position >= 0:
            return start + position + 1
        end = start
    return 0


def is_partial(name: str) -> bool:
    """Return whether a file is what `write_durably` left of a write that was cut short."""
    return name.endswith(PARTIAL)


def write_durably(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Replace a file's content so that a crash leaves the old or the new, never a part.

    A symbolic link is followed. What is no regular file, such as a device or a pipe, is written to
    and not replaced. Of several writers at once, one's content stands whole.

    Args:
        path: The file.
        data: All of its content.
        mode: Permissions of a new file, less the umask; an existing one keeps its own.

    Raises:
        OutputError: If it cannot be written.
        HostError: If there is no room.
    """
    try:
        _replace(path.resolve(), data, mode)
    except OSError as error:
        raise unwritable(error, source=path) from error


def _replace(path: Path, data: bytes, mode: int) -> None:
    if path.exists() and not path.is_file():
        with path.open("wb") as file:
            file.write(data)
        return
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            if path.exists():
                os.fchmod(file.fileno(), path.stat().st_mode & 0o7777)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write_manifest(path: Path, manifest: Manifest) -> None:
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_durably(path / MANIFEST, text)


def read_manifest(path: Path) -> Manifest:
    """Return the manifest of a capture folder.

    Raises:
        CaptureError: If there is none, or it is not one of a schema version we know.
    """
    try:
        manifest = msgspec.json.decode(read_whole(path / MANIFEST), type=Manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not path.exists():
            raise CaptureError("there is no such file or folder", source=str(path)) from error
        raise CaptureError(
            f"is not a capture: it has no {MANIFEST}",
            source=str(path),
            hint="Make one with `excise run` or `excise import`",
        ) from error
    except OSError as error:
        raise CaptureError(f"cannot be read ({error.strerror})", source=str(path)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CaptureError(f"cannot be understood: {error}", source=str(path / MANIFEST)) from error
    if manifest.schema_version > SCHEMA_VERSION:
        raise CaptureError(
            f"has schema version {manifest.schema_version}, known are those up to {SCHEMA_VERSION}",
            source=str(path),
            hint="Update excise",
        )
    return manifest


def journal_chunks(path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, bytes) of the journal in chunks that end at a line's end.

    The last chunk may lack its newline: that is a torn line, which the caller declares.

    Raises:
        CaptureError: If the journal cannot be read.
    """
    try:
        with (path / JOURNAL).open("rb") as file:
            offset, rest = 0, b""
            while data := file.read(chunk_bytes):
                cut = data.rfind(b"\n") + 1
                if not cut:
                    rest += data
                    continue
                chunk = rest + data[:cut]
                yield offset, chunk
                offset += len(chunk)
                rest = data[cut:]
            if rest:
                yield offset, rest
    except OSError as error:
        raise CaptureError(
            f"cannot be read ({error.strerror})", source=str(path / JOURNAL)
        ) from error


def journal_records(path: Path) -> Iterator[journal.Record]:
    """Yield the records of a journal that has no torn line, as after `Capture.open`.

    Raises:
        CaptureError: If the journal cannot be read, or a line is no record.
    """
    for _, record in journal_records_at(path):
        yield record


def journal_records_at(path: Path) -> Iterator[tuple[int, journal.Record]]:
    """Yield (offset of its line, record) as `journal_records` does.

    Raises:
        CaptureError: If the journal cannot be read, or a line is no record.
    """
    number = 0
    for offset, chunk in journal_chunks(path):
        place = offset
        for line in chunk.splitlines(keepends=True):
            number += 1
            try:
                yield place, journal.decode(line)
            except msgspec.MsgspecError as error:
                raise CaptureError(
                    f"line {number} is no record: {error}", source=str(path / JOURNAL)
                ) from error
            place += len(line)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as lower-case hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
