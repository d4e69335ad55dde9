"""A policy from files of any known form, told apart by their first bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from excise.errors import FormatError, UsageError
from excise.evidence.policy.build import PolicyBuilder
from excise.evidence.policy.model import Policy
from excise.evidence.policy.rpm import is_rpm_dump
from excise.files import read_whole

COMPILED_MAGIC: Final = b"EXCPOL"
_HEAD_BYTES: Final = 1 << 16
"""A few lines, however long their paths."""


def read_policy_files(
    policies: Sequence[Path],
    *,
    excludes: Sequence[Path] = (),
    keys: Sequence[Path] = (),
    root: bytes | None = None,
) -> Policy:
    """Return one policy of several files.

    Args:
        policies: Checksum lists, rpm dumps, keylime policies, or one compiled policy alone.
        excludes: Files of patterns of names to leave out.
        keys: Keys or certificates that file signatures are trusted by.
        root: Where relative names of checksum lists are put.

    Raises:
        FormatError: A file cannot be read, or all together hold nothing.
        UsageError: A compiled policy beside other files, or a root that is not absolute.
    """
    if root is not None and not root.startswith(b"/"):
        raise UsageError(
            "is not absolute, and IMA's names are",
            source=f"--policy-root {root.decode(errors='backslashreplace')}",
        )
    heads = {path: _head(path) for path in policies}
    compiled = [path for path, head in heads.items() if head.startswith(COMPILED_MAGIC)]
    if compiled:
        if len(policies) > 1 or excludes or keys or root is not None:
            raise UsageError(
                "a compiled policy is whole and cannot be added to", source=str(compiled[0])
            )
        return Policy.load(compiled[0])
    builder = PolicyBuilder()
    at = root.rstrip(b"/") + b"/" if root is not None else None
    for path, head in heads.items():
        if head.lstrip().startswith(b"{"):
            builder.add_keylime(path)
        elif is_rpm_dump(head):
            builder.add_rpm_dump(path)
        else:
            builder.add_checksums(path, root=at)
    for path in excludes:
        builder.add_excludes(path)
    for path in keys:
        builder.add_key(_read(path), label=str(path))
    return builder.compile()


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error


def _read(path: Path) -> bytes:
    try:
        return read_whole(path)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error
