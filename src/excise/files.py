"""Files: read whole up to a size, read in pieces, and the error where one cannot be written.

A device or a pipe named by mistake has no end. A file too large for memory is read in pieces, by
who can, and must not change meanwhile. An output that cannot be written is in a wrong place, or
this host has no room for it, whoever writes it.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Self

from excise.errors import ExciseError, FormatError, HostError, OutputError

LIMIT_BYTES: Final = 1 << 30
"""More than any key, policy, manifest or PCR file, and little enough for memory."""
_PIECE_BYTES: Final = 1 << 20
_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def lacks_room(error: OSError) -> bool:
    """Return whether a write failed for want of room, and not because of where it went."""
    return error.errno in _NO_ROOM


def unwritable(error: OSError, *, source: str | Path, hint: str | None = None) -> ExciseError:
    """Return the error that says an output cannot be written.

    Args:
        error: What the system said.
        source: The output, as the user named it.
        hint: What to do, if known.

    Returns:
        An `OutputError`, or a `HostError` where the place is right and has no room.
    """
    kind = HostError if lacks_room(error) else OutputError
    reason = f"cannot be written ({error.strerror or error})"
    return kind(reason, source=str(source), hint=hint)


def read_whole(path: Path, *, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return the bytes of a file.

    Args:
        path: The file.
        limit_bytes: Bytes it may have at most.

    Raises:
        FormatError: If it is larger.
        OSError: If it cannot be opened or read.
    """
    with path.open("rb") as file:
        return read_stream(file, source=str(path), limit_bytes=limit_bytes)


def read_stream(file: BinaryIO, *, source: str, limit_bytes: int = LIMIT_BYTES) -> bytes:
    """Return all bytes of an open file, as `read_whole`.

    Raises:
        FormatError: If there are more than `limit_bytes`.
        OSError: If it cannot be read.
    """
    data = bytearray()
    # In pieces: a read of the limit's size would take the limit's memory for any file.
    while len(data) <= limit_bytes and (piece := file.read(_PIECE_BYTES)):
        data += piece
    if len(data) > limit_bytes:
        raise FormatError(
            f"has more than {limit_bytes:,} bytes",
            source=source,
            hint="Is it the right file, and not a device?",
        )
    return bytes(data)


@dataclass(frozen=True, slots=True)
class FileOnDisk:
    """A file that is read more than once, maybe in pieces, and must stay as it is meanwhile.

    Attributes:
        path: The file.
        state: What tells that it is another or was written to: inode, bytes, time in nanoseconds.
    """

    path: Path
    state: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> Self:
        """Return the file as it is now.

        Raises:
            OSError: If there is none.
        """
        return cls(path, _state(path))

    def head(self, size_bytes: int) -> bytes:
        """Return its first bytes.

        Raises:
            OSError: If it cannot be read.
        """
        with self.path.open("rb") as file:
            return file.read(size_bytes)

    def require_unchanged(self) -> None:
        """Check that it is what it was.

        Raises:
            FormatError: If it was changed or replaced.
            OSError: If it is gone.
        """
        if _state(self.path) != self.state:
            raise FormatError(
                "was changed while it was read",
                source=str(self.path),
                hint="Read it again once nothing writes to it",
            )


def _state(path: Path) -> tuple[int, int, int]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
