"""Shared fixtures: where the public vectors are, and the rule about skips."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ("lab_guests", "software_tpm")

ROOT = Path(__file__).resolve().parent.parent

# Noisy machines make single examples slow without a fault; speed has its own tests.
settings.register_profile("excise", deadline=None)
settings.load_profile("excise")


def skip(reason: str) -> None:
    """Skip with a reason, or fail where skips are forbidden (EXCISE_FORBID_SKIPS=1)."""
    if os.environ.get("EXCISE_FORBID_SKIPS") == "1":
        pytest.fail(f"skips are forbidden: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def shared_vectors() -> Path:
    """Return the folder of public vectors, kept beside the project and not copied into it."""
    folder = Path(os.environ.get("EXCISE_VECTORS", ROOT.parent / "shared" / "vectors"))
    if not folder.is_dir():
        skip(f"no vectors in {folder} (set EXCISE_VECTORS)")
    return folder
