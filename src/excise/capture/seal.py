"""Sealing: digests of every file, and one root digest that stands for the capture.

The root is the SHA-256 of the sorted `digest  path` lines, so that `sha256sum` can check a capture
without excise. With a TPM the root is the qualifying data of a quote.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from excise.capture.store import EVIDENCE, SEAL, Capture, is_partial, now, sha256_of, write_durably
from excise.errors import CaptureError, OutputError, Refused
from excise.files import read_whole

_DIGEST: Final = re.compile("[0-9a-f]{64}")


class Seal(msgspec.Struct, frozen=True, kw_only=True):
    """What `seal.json` holds.

    Attributes:
        root: SHA-256 (hex) over the sorted `digest  path` lines of `digests`.
        digests: SHA-256 (hex) of each file, by its path below the capture.
    """

    root: str
    sealed_at: str
    digests: dict[str, str]
    algorithm: str = "sha256"


def root_of(digests: dict[str, str]) -> str:
    """Return the root digest (hex) of files and their digests."""
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def seal(path: Path) -> Seal:
    """Write `seal.json` over all files of a capture; from then on it is refused for writing.

    A torn last line is dropped and declared first.

    Raises:
        OutputError: If it is sealed already, being written by another process, or unwritable.
    """
    if (path / SEAL).exists():
        raise OutputError("is sealed already", source=str(path))
    with Capture.open(path):
        digests = {name: sha256_of(path / name) for name in sealed_files(path)}
        sealed = Seal(root=root_of(digests), sealed_at=now(), digests=digests)
        write_durably(path / SEAL, msgspec.json.format(msgspec.json.encode(sealed), indent=1))
    return sealed


def sealed_files(path: Path) -> list[str]:
    """Return the files a seal covers, by path below the capture, sorted.

    Evidence is made over the seal and therefore not under it.
    """
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    names = [file.relative_to(path).as_posix() for file in files]
    return [name for name in names if not _is_seal(name) and not name.startswith(f"{EVIDENCE}/")]


def _is_seal(name: str) -> bool:
    return name == SEAL or (name.startswith(f"{SEAL}.") and is_partial(name))


def read_seal(path: Path) -> Seal | None:
    """Return the seal of a capture, or None if it is not sealed.

    Raises:
        CaptureError: If `seal.json` cannot be read or understood.
    """
    try:
        found = msgspec.json.decode(read_whole(path / SEAL), type=Seal)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CaptureError(f"cannot be read ({error.strerror})", source=str(path / SEAL)) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CaptureError(f"cannot be understood: {error}", source=str(path / SEAL)) from error
    if not all(_DIGEST.fullmatch(digest) for digest in (found.root, *found.digests.values())):
        raise CaptureError("holds what is no SHA-256 in hexadecimal", source=str(path / SEAL))
    return found


def broken_seal_lines(path: Path, sealed: Seal) -> tuple[str, ...]:
    """Return one line for each file that is changed, missing or added since sealing."""
    present = set(sealed_files(path))
    lines = []
    for name, digest in sorted(sealed.digests.items()):
        if name not in present:
            lines.append(f"{name}: missing")
        elif (got := sha256_of(path / name)) != digest:
            lines.append(f"{name}: changed (sealed sha256 {digest[:16]}…, now {got[:16]}…)")
    lines += [
        f"{member.relative_to(path)}: neither a plain file nor a folder"
        for member in sorted(path.rglob("*"))
        if member.is_symlink() or not (member.is_file() or member.is_dir())
    ]
    lines += [f"{name}: added after sealing" for name in sorted(present - set(sealed.digests))]
    if root_of(sealed.digests) != sealed.root:
        lines.append(f"{SEAL}: its root digest does not follow from its file digests")
    return tuple(lines)


def require_unbroken(path: Path) -> Seal | None:
    """Return the seal after checking every file, or None if the capture is not sealed.

    Raises:
        Refused: If any file differs from the seal; each is named.
    """
    sealed = read_seal(path)
    if sealed is None:
        return None
    if broken := broken_seal_lines(path, sealed):
        raise Refused(
            "the seal is broken",
            source=str(path),
            differences=broken,
            hint="Its numbers can no longer be trusted to be those that were measured",
        )
    return sealed
