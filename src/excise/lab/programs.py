"""Programs of this host for a guest's root: each with the shared libraries that it is linked to."""

from __future__ import annotations

import shutil
from pathlib import Path

from excise.errors import HostError
from excise.lab.host_share_tree import linked_libraries


def program_files(name: str) -> dict[str, bytes]:
    """Return the files of a program for `Plan.root_files`, by path; it is at `usr/bin`.

    Args:
        name: Of a program that is linked dynamically, such as `bpftrace`.

    Raises:
        HostError: If it is not installed.
    """
    found = shutil.which(name)
    if found is None:
        raise HostError(f"{name} is not installed", hint=f"apt-get install {name}")
    libraries = {path.lstrip("/"): path for path in linked_libraries(Path(found))}
    every = {f"usr/bin/{name}": found, **libraries}
    return {path: Path(source).read_bytes() for path, source in every.items()}
