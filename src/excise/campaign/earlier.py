"""What an interrupted bench left in its capture, and whether the same command may go on with it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from excise.capture.manifest import Manifest
from excise.capture.store import MANIFEST
from excise.cost.facts import disagreements
from excise.errors import OutputError
from excise.events.dataset import Dataset
from excise.events.load import load_capture


def require_unfinished(path: Path, *, is_kin: Callable[[Manifest], bool]) -> Dataset | None:
    """Return what an interrupted bench has measured, or None where there is no capture.

    Args:
        path: The capture's folder.
        is_kin: Whether a manifest is of this kind of bench.

    Raises:
        OutputError: There is something else, or it is complete.
    """
    if not (path / MANIFEST).is_file():
        return None
    found = load_capture(path)
    if not is_kin(found.manifest):
        raise OutputError("already exists", source=str(path), hint="Give another path with -o")
    if found.sessions and found.sessions[-1].state == "finished":
        raise OutputError(
            "already exists and is complete",
            source=str(path),
            hint="Give another path with -o, or --force to replace it",
        )
    return found


def require_same(found: Dataset, manifest: Manifest, *, path: Path, subject: str) -> None:
    """Refuse to go on under other conditions than those of the beginning.

    Args:
        found: What was measured.
        manifest: That of what is to be measured.
        path: The capture's folder.
        subject: What it is a bench of, for the error.

    Raises:
        OutputError: If a fact that must agree, or the seed, is another.
    """
    differences = disagreements(found.manifest, manifest)
    if differences or found.manifest.seed != manifest.seed:
        raise OutputError(
            f"is of another {subject}, host or seed: {'; '.join(differences) or 'seed'}",
            source=str(path),
            hint="Give another path with -o, or --force to replace it",
        )
