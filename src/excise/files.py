"""Files read whole, up to a size: a device or a pipe named by mistake has no end."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO, Final

from excise.errors import FormatError

LIMIT_BYTES: Final = 1 << 30
"""More than any key, policy, manifest or PCR file, and little enough for memory."""
_PIECE_BYTES: Final = 1 << 20


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
