"""Folders where a fleet's evidence and results are: local paths, or any URL that fsspec opens."""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from excise.errors import FormatError, HostError, UsageError
from excise.files import unwritable

PART: Final = ".part"
_ARCHIVES: Final = ("zip", "tar", "libarchive")
_LEAST_ROOM_BYTES: Final = 4096
_UNUSUAL: Final = re.compile(r"//|/\.|/$")
"""In a path that may also be written otherwise."""


class Item(NamedTuple):
    """Something in a folder.

    Attributes:
        is_folder: Whether it is a folder.
        is_file: Whether it is a file; pipes and devices are neither, and are never opened.
        size_bytes: Its length; None where the store does not tell, and for folders.
        modified_ns: When it was last written, since the epoch; None where the store does not tell.
    """

    name: str
    is_folder: bool
    is_file: bool
    size_bytes: int | None
    modified_ns: int | None

    @property
    def leads_nowhere(self) -> bool:
        """Whether it is a link to nothing, as where a store is not mounted, or to itself."""
        return not self.is_folder and not self.is_file and self.modified_ns is None


class Folder(Protocol):
    """A folder; may be handed to another process."""

    @property
    def url(self) -> str:
        """Its path or URL."""

    @property
    def is_far(self) -> bool:
        """Whether it is waited for, and may be asked by several threads at a time."""

    def child(self, name: str) -> Folder:
        """Return the folder of that name in it."""

    def items(self) -> list[Item]:
        """Return what is in it, sorted by name; FormatError where it cannot be read."""

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a file's bytes; FormatError where it cannot be read or is longer."""

    def read_from(self, name: str, offset: int, *, limit_bytes: int) -> bytes:
        """Return a file's bytes from an offset on."""

    def read_all(self, names: Iterable[str], *, limit_bytes: int) -> dict[str, bytes]:
        """Return the bytes of files, by name; elsewhere they are fetched at the same time."""

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files, each whole or not at all; UsageError where one cannot be written."""

    def fetched(self, name: str) -> AbstractContextManager[Path]:
        """Give a local path of a file or folder, copied for the time if it is elsewhere."""


def folder_at(url: str) -> Folder:
    """Return the folder of a path or URL.

    Raises:
        HostError: A URL, and fsspec or what it needs for this kind of URL is not installed.
        UsageError: A URL of an unknown kind.
    """
    if "://" not in url or url.startswith("file://"):
        plain = url.startswith("/") and not _UNUSUAL.search(url)
        return LocalFolder(url if plain else str(Path(url.removeprefix("file://")).absolute()))
    folder = RemoteFolder(url if url.endswith("://") else url.rstrip("/"))
    folder.file_system()
    return folder


def is_local(url: str) -> bool:
    """Return whether a path or URL is of this machine's file system."""
    return "://" not in url or url.startswith("file://")


def _too_long(url: str, name: str, limit_bytes: int) -> FormatError:
    return FormatError(f"is larger than {limit_bytes:,} bytes", source=f"{url}/{name}")


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A folder of this machine's file system."""

    url: str
    is_far = False

    def child(self, name: str) -> LocalFolder:
        """Return the folder of that name in it."""
        return LocalFolder(f"{self.url}/{name}")

    def items(self) -> list[Item]:
        """Return what is in it, sorted by name.

        Raises:
            FormatError: It cannot be read.
        """
        try:
            with os.scandir(self.url) as entries:
                found = [_item(entry) for entry in entries]
        except OSError as error:
            raise FormatError(
                f"cannot be read ({error.strerror})",
                source=self.url,
                hint="Name a folder with one folder a host; an archive of it is zip://::FILE.",
            ) from error
        return sorted(found)

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a file's bytes.

        Raises:
            FormatError: It cannot be read, or is longer than the limit.
        """
        return self.read_from(name, 0, limit_bytes=limit_bytes)

    def read_from(self, name: str, offset: int, *, limit_bytes: int) -> bytes:
        """Return a file's bytes from an offset on.

        Raises:
            FormatError: It cannot be read, or is longer than the limit.
        """
        try:
            data = _read_at(f"{self.url}/{name}", offset, limit_bytes + 1)
        except OSError as error:
            raise FormatError(
                f"cannot be read ({error.strerror})", source=f"{self.url}/{name}"
            ) from error
        if len(data) > limit_bytes:
            raise _too_long(self.url, name, limit_bytes)
        return data

    def read_all(self, names: Iterable[str], *, limit_bytes: int) -> dict[str, bytes]:
        """Return the bytes of files, by name.

        Raises:
            FormatError: One cannot be read, or is longer than the limit.
        """
        return {name: self.read(name, limit_bytes=limit_bytes) for name in names}

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files, each whole or not at all, and make the folder if it is not there.

        Raises:
            UsageError: One cannot be written; those before it are.
            HostError: There is no room for it.
        """
        path = self.url
        part = f".{os.getpid()}{PART}"  # another round may write the same file now
        try:
            os.makedirs(path, exist_ok=True)  # noqa: PTH103  a path, not an object, a host
            for name, data in files.items():
                path = f"{self.url}/{name}"
                with open(path + part, "wb") as file:  # noqa: PTH123
                    file.write(data)
                os.replace(path + part, path)  # noqa: PTH105
        except OSError as error:
            with suppress(OSError):
                os.unlink(path + part)  # noqa: PTH108
            raise unwritable(error, source=path) from error

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Give the path of a file or folder."""
        yield Path(self.url, name)


def _item(entry: os.DirEntry[str]) -> Item:
    try:
        state = entry.stat()
    except OSError:  # a link to nothing
        return Item(entry.name, False, False, None, None)
    is_file = stat.S_ISREG(state.st_mode)
    size = state.st_size if is_file else None
    return Item(entry.name, stat.S_ISDIR(state.st_mode), is_file, size, state.st_mtime_ns)


def _read_at(path: str, offset: int, most_bytes: int) -> bytes:
    """Return a file's bytes from an offset on, at most so many.

    Room is made for what there is: room for the most is tens of MiB, and takes longer than reading.
    """
    # What was a file when it was listed may be a pipe by now, which would be waited for.
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "not a file")
        size = state.st_size
        room = max(size - offset + 1, _LEAST_ROOM_BYTES)
        data = os.pread(handle, min(room, most_bytes), offset)
        if 0 < len(data) < room and offset + len(data) >= size:
            return data
        pieces = [data]
        while data and (most_bytes := most_bytes - len(data)) > 0:
            offset += len(data)
            data = os.pread(handle, min(room, most_bytes), offset)
            pieces.append(data)
    finally:
        os.close(handle)
    return b"".join(pieces)


def _parted(url: str) -> tuple[str, str, str]:
    """Return a URL's part that has the path, and what stands before and behind it in a chain."""
    parts = url.split("::")
    at = next(index for index, part in enumerate(parts) if "://" in part)
    before, behind = (part + "::" for part in parts[:at]), ("::" + part for part in parts[at + 1 :])
    return "".join(before), parts[at], "".join(behind)


def _joined(url: str, name: str) -> str:
    return url + name if url.endswith("/") else f"{url}/{name}"


@lru_cache(maxsize=16)
def _file_system(url: str) -> Any:
    import fsspec
    from fsspec.core import url_to_fs

    return url_to_fs(url)[0] if "://" in url else fsspec.filesystem(url)


def forget_stores() -> None:
    """Open archives anew from here on: one may have been replaced by another of its name."""
    _file_system.cache_clear()


@dataclass(frozen=True, slots=True)
class RemoteFolder:
    """A folder in any store that fsspec knows: `s3://`, `gs://`, `https://`, `sftp://`, `memory://`.

    Also in chains of them, such as `zip://hosts::s3://evidence/today.zip`. Credentials and other
    settings come from where fsspec takes them: its configuration files and the environment.
    """

    url: str

    @property
    def is_far(self) -> bool:
        """Whether the store is of those that fsspec asks many things at a time."""
        return bool(getattr(self.file_system(), "async_impl", False))

    def file_system(self) -> Any:
        """Return fsspec's object for the store, one a process until `forget_stores`.

        Raises:
            FormatError: What a chain ends in cannot be opened.
            HostError: fsspec, or what it needs for this kind of URL, is not installed.
            UsageError: The kind of URL is unknown.
        """
        before, here, behind = _parted(self.url)
        kind = here.partition("://")[0]
        hint = f"An archive's URL is {kind}://::FILE, or {kind}://FOLDER::URL."
        hint = hint if kind in _ARCHIVES else ""
        try:
            return _file_system(f"{before}{kind}://{behind}" if before or behind else kind)
        except ImportError as error:
            raise HostError(
                f"{kind}:// needs a package that is not installed ({error})",
                source=self.url,
                hint="pip install 'excise[fleet]', and what fsspec names for this kind of URL.",
            ) from error
        except (TypeError, ValueError) as error:
            if kind in _ARCHIVES:
                raise UsageError(
                    "does not say of which archive", source=self.url, hint=hint
                ) from error
            raise UsageError(f"unknown kind of URL {kind!r}", source=self.url) from error
        except Exception as error:  # BadZipFile, and whatever else a store has of its own
            raise FormatError(f"cannot be opened ({error})", source=self.url, hint=hint) from error

    def _path(self, name: str = "") -> str:
        _, here, _ = _parted(self.url)
        return str(self.file_system()._strip_protocol(_joined(here, name) if name else here))

    def child(self, name: str) -> RemoteFolder:
        """Return the folder of that name in it."""
        before, here, behind = _parted(self.url)
        return RemoteFolder(before + _joined(here, name) + behind)

    def items(self) -> list[Item]:
        """Return what is in it, sorted by name.

        Raises:
            FormatError: It cannot be read.
        """
        with _reading(self.url):
            files = self.file_system()
            # A store may keep a listing; what a host sent since is what is asked for.
            files.invalidate_cache(self._path())
            listed = files.ls(
                self._path() + ("/" if self.url.startswith("http") else ""), detail=True
            )
        own = self._path().rstrip("/")
        return sorted(
            _remote_item(each) for each in listed if each["name"].rstrip("/") not in ("", own)
        )

    def read(self, name: str, *, limit_bytes: int) -> bytes:
        """Return a file's bytes.

        Raises:
            FormatError: It cannot be read, or is longer than the limit.
        """
        with _reading(f"{self.url}/{name}"), self.file_system().open(self._path(name)) as file:
            data: bytes = file.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise _too_long(self.url, name, limit_bytes)
        return data

    def read_from(self, name: str, offset: int, *, limit_bytes: int) -> bytes:
        """Return a file's bytes from an offset on.

        Raises:
            FormatError: It cannot be read, or is longer than the limit.
        """
        with _reading(f"{self.url}/{name}"):
            size = self.file_system().info(self._path(name)).get("size")
            if size is not None and size - offset > limit_bytes:
                raise _too_long(self.url, name, limit_bytes)
            if size is not None and size <= offset:
                return b""
            data: bytes = self.file_system().cat_file(self._path(name), start=offset, end=size)
        # A server that knows no ranges answers with the whole file.
        whole = size is None or len(data) == size
        return data[offset:] if whole else data

    def read_all(self, names: Iterable[str], *, limit_bytes: int) -> dict[str, bytes]:
        """Return the bytes of files, by name, fetched at the same time where the store can.

        Raises:
            FormatError: One cannot be read, or is longer than the limit.
        """
        wanted = list(names)
        with _reading(self.url):
            # `cat` would take characters of a path for a pattern.
            paths = [self._path(name) for name in wanted]
            fetched = self.file_system().cat_ranges(paths, None, None, on_error="raise")
        found = dict(zip(wanted, fetched, strict=True))
        for name, data in found.items():
            if len(data) > limit_bytes:
                raise _too_long(self.url, name, limit_bytes)
        return found

    def write_all(self, files: Mapping[str, bytes]) -> None:
        """Write files, at the same time where the store can; each is seen whole or not at all.

        Raises:
            UsageError: One cannot be written; others may be.
        """
        try:
            store = self.file_system()
            store.makedirs(self._path(), exist_ok=True)
            store.pipe({self._path(name): data for name, data in files.items()})
        except Exception as error:  # each store has errors of its own
            raise UsageError(f"cannot be written ({error})", source=self.url) from error

    @contextmanager
    def fetched(self, name: str) -> Iterator[Path]:
        """Give a copy of a file or folder that goes away again.

        Raises:
            FormatError: It cannot be read.
        """
        with tempfile.TemporaryDirectory(prefix="excise-fleet-") as folder:
            with _reading(f"{self.url}/{name}"):
                path = self._path(name)
                target = str(Path(folder, name))
                recursive = self.file_system().isdir(path)
                self.file_system().get(path, target, recursive=recursive)
            yield Path(target)


@contextmanager
def _reading(source: str) -> Iterator[None]:
    """Turn a store's own errors into one that says where."""
    try:
        yield
    except (FormatError, HostError, UsageError):
        raise
    except Exception as error:  # aiohttp, botocore, paramiko: each store has errors of its own
        reason = str(error) or type(error).__name__
        if isinstance(error, FileNotFoundError):
            reason = "is not there"
        elif isinstance(error, TimeoutError) and not str(error):
            reason = "no answer in time"
        raise FormatError(f"cannot be read ({reason})", source=source) from error


def _remote_item(found: Mapping[str, Any]) -> Item:
    modified = next(
        (found[key] for key in ("mtime", "LastModified", "updated", "created") if found.get(key)),
        None,
    )
    if isinstance(modified, datetime):
        modified = modified.timestamp()
    folder = found.get("type") == "directory"
    return Item(
        found["name"].rstrip("/").rpartition("/")[2],
        folder,
        not folder,
        None if folder else found.get("size"),
        int(modified * 1e9) if isinstance(modified, int | float) else None,
    )
