"""Where the lab keeps kernels, policies and running guests: the XDG cache, never the host's root.

Finished things are stored under a name or digest by renaming a complete folder into place, so that
a killed build leaves nothing that looks finished. A running guest works in a folder that it holds a
lock on; a folder whose lock is free belongs to a killed process and is removed by the next start.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from excise.errors import HostError

_LOCK_NAME = ".lock"


def cache_root() -> Path:
    """Return the lab's folder in the user's cache (`EXCISE_LAB_CACHE`, else XDG), made if absent.

    Raises:
        HostError: If it cannot be made.
    """
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    root = Path(os.environ.get("EXCISE_LAB_CACHE") or Path(base) / "excise" / "lab")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(
            f"cannot make the lab's cache folder: {error.strerror}",
            source=str(root),
            hint="Set EXCISE_LAB_CACHE to a folder that can be written",
        ) from error
    return root


def digest_of(*parts: bytes | str | Path) -> str:
    """Return the SHA-256 over the parts in order; a path stands for its file's content."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, Path):
            with part.open("rb") as stream:
                inner = hashlib.file_digest(stream, "sha256").digest()
        else:
            data = part.encode() if isinstance(part, str) else part
            inner = hashlib.sha256(data).digest()
        total.update(inner)
    return total.hexdigest()


def stored(kind: str, key: str, build: Callable[[Path], None]) -> Path:
    """Return the folder `kind/key` of the cache, built by `build(folder)` when it is absent.

    Two processes that build the same thing wait for each other. A failed build leaves nothing.

    Raises:
        HostError: If the cache cannot be written.
    """
    parent = cache_root() / kind
    parent.mkdir(parents=True, exist_ok=True)
    final = parent / key
    if final.is_dir():
        return final
    with locked(parent / f".{key}.lock"):
        if final.is_dir():
            return final
        building = Path(tempfile.mkdtemp(prefix=f".{key}.", dir=parent))
        try:
            build(building)
            building.chmod(0o755)
            building.rename(final)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise
    return final


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is made if absent; wait for others who hold it."""
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


@contextmanager
def working_folder() -> Iterator[Path]:
    """Yield a private folder for one guest and remove it afterwards, whatever happens.

    A folder left by a process that was killed is removed first.
    """
    parent = cache_root() / "run"
    parent.mkdir(exist_ok=True)
    remove_stale(parent)
    folder = Path(tempfile.mkdtemp(prefix="guest-", dir=parent))
    lock = (folder / f"{_LOCK_NAME}.new").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / f"{_LOCK_NAME}.new").rename(folder / _LOCK_NAME)  # nobody ever sees it free
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.close()


def remove_stale(parent: Path) -> list[str]:
    """Remove folders of guests whose process is gone; return their names."""
    removed = []
    for folder in parent.iterdir():
        try:
            stream = (folder / _LOCK_NAME).open("r+")
        except OSError:
            continue  # being made or removed at this moment
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder.name)
    return removed
