"""Captures as one `.tar.zst` file: packed whole, unpacked into a folder that goes away again."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

from excise.capture.store import MANIFEST
from excise.errors import CaptureError, OutputError
from excise.files import unwritable

SUFFIX = ".tar.zst"
MAX_UNPACKED_BYTES = 8 << 30  # ten million runs take 4 GiB; more is unpacked by hand


def pack(path: Path, target: Path) -> Path:
    """Write a capture folder as a `.tar.zst` file and return it.

    Owner, group and times are left out: the same capture gives the same bytes.

    Raises:
        OutputError: If the target exists or cannot be written.
    """
    import zstandard

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = 0
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    try:
        with (
            target.open("xb") as file,
            zstandard.ZstdCompressor(level=10).stream_writer(file) as stream,
            tarfile.open(fileobj=stream, mode="w|") as archive,
        ):
            for member in sorted(path.rglob("*")):
                archive.add(
                    member, member.relative_to(path).as_posix(), recursive=False, filter=plain
                )
    except FileExistsError as error:
        raise OutputError("already exists", source=str(target)) from error
    except OSError as error:
        raise unwritable(error, source=target) from error
    return target


@contextmanager
def unpacked(path: Path) -> Iterator[Path]:
    """Give the capture's folder: itself, or an unpacked copy that is removed afterwards.

    Raises:
        CaptureError: If the archive is damaged or holds anything but plain files and folders
            below itself.
    """
    if path.is_dir() or not path.name.endswith(SUFFIX):
        yield path
        return
    import zstandard

    with tempfile.TemporaryDirectory(prefix="excise-") as folder:
        try:
            with (
                path.open("rb") as file,
                zstandard.ZstdDecompressor().stream_reader(file) as stream,
                tarfile.open(fileobj=stream, mode="r|") as archive,
            ):
                _extract(archive, Path(folder))
        except FileNotFoundError as error:
            raise CaptureError("no such file", source=str(path)) from error
        except (OSError, EOFError, tarfile.TarError, zstandard.ZstdError) as error:
            reason = getattr(error, "strerror", None) or error
            raise CaptureError(
                f"is not a whole capture archive: {reason}", source=str(path)
            ) from error
        yield _capture_in(Path(folder))


def _extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Write an archive's files and folders; refuse anything else, and any path that leaves.

    `extractall(filter=...)` would do, but came to Python 3.11 only in 3.11.4.

    Raises:
        tarfile.TarError: If a member is a link, a device, or not below the folder.
    """
    left = MAX_UNPACKED_BYTES
    for member in archive:
        left -= member.size
        if left < 0:
            raise tarfile.TarError(f"it unpacks to more than {MAX_UNPACKED_BYTES:,} bytes")
        path = PurePosixPath(member.name)
        if path.is_absolute() or ".." in path.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is not a plain file or folder below it")
        target = folder / path
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        if content is None:
            raise tarfile.TarError(f"{member.name!r} has no content")
        with content, target.open("xb") as file:
            shutil.copyfileobj(content, file)


def _capture_in(folder: Path) -> Path:
    """Return where the capture is: the folder itself, or the one folder that was packed whole."""
    inside = list(folder.iterdir())
    if len(inside) == 1 and (inside[0] / MANIFEST).is_file():
        return inside[0]
    return folder
