"""Where a list is: a path, bytes, or a stream, made fit for reading more than once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import BinaryIO, Final

from excise.errors import FormatError

ListInput = str | PathLike[str] | bytes | bytearray | memoryview | BinaryIO
"""What a list can be given as; a string is a path."""

_IN_MEMORY_BYTES: Final = 64 << 20
_PIECE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A list that can be read from any offset.

    Attributes:
        native: Bytes, or the path of a file, as the native reader takes them.
        name: Its name in messages; empty for bytes.
        size_bytes: Its length.
    """

    native: bytes | str
    name: str
    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> bytes:
        """Return the bytes from an offset on, fewer at the end of the list."""
        if isinstance(self.native, bytes):
            return self.native[offset : offset + size_bytes]
        with Path(self.native).open("rb") as file:
            file.seek(offset)
            return file.read(size_bytes)

    def find(self, needle: bytes, start: int) -> int:
        """Return the offset of the next occurrence from an offset on, or -1."""
        if isinstance(self.native, bytes):
            return self.native.find(needle, start)
        with Path(self.native).open("rb") as file:
            file.seek(start)
            offset, tail = start, b""
            while piece := file.read(_PIECE_BYTES):
                window = tail + piece
                found = window.find(needle)
                if found >= 0:
                    return offset - len(tail) + found
                offset += len(piece)
                tail = window[-(len(needle) - 1) :] if len(needle) > 1 else b""
        return -1


@contextmanager
def opened(data: ListInput) -> Iterator[Source]:
    """Give a source for the time of a verification.

    A file whose size the system does not tell (securityfs, a pipe) and a stream are first copied:
    into memory up to 64 MiB, into an anonymous temporary file beyond, so that memory stays flat.

    Raises:
        FormatError: The file cannot be read.
    """
    if isinstance(data, bytes | bytearray | memoryview):
        whole = bytes(data)
        yield Source(native=whole, name="", size_bytes=len(whole))
        return
    try:
        if isinstance(data, str | PathLike):
            path = Path(fspath(data))
            size_bytes = path.stat().st_size if path.is_file() else 0
            if size_bytes > 0:
                yield Source(native=str(path), name=str(path), size_bytes=size_bytes)
                return
            with path.open("rb") as stream, _copied(stream, str(path)) as source:
                yield source
            return
    except OSError as error:
        raise FormatError(
            error.strerror or "it cannot be read", source=str(data), hint="Name a readable list."
        ) from error
    with _copied(data, str(getattr(data, "name", "<stream>"))) as source:
        yield source


@contextmanager
def _copied(stream: BinaryIO, name: str) -> Iterator[Source]:
    head = bytearray()
    while len(head) <= _IN_MEMORY_BYTES:
        piece = stream.read(_PIECE_BYTES)
        if not piece:
            whole = bytes(head)
            yield Source(native=whole, name=name, size_bytes=len(whole))
            return
        head += piece
    import tempfile  # only long streams need it

    with tempfile.NamedTemporaryFile(prefix="excise-ima-") as file:
        file.write(head)
        size_bytes = len(head)
        head.clear()
        while piece := stream.read(_PIECE_BYTES):
            size_bytes += file.write(piece)
        file.flush()
        yield Source(native=file.name, name=name, size_bytes=size_bytes)
