"""Shared fixtures: where the public vectors are."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from skips import skip

# A shell's background jobs ignore SIGINT, and what they start inherits that: programs that are
# interrupted in tests would not be.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is printed is as wide as without a terminal, whatever the tests are started from.
os.environ["COLUMNS"] = "80"
os.environ.pop("LINES", None)

pytest_plugins = ("in_process", "lab_guests", "software_tpm")

ROOT = Path(__file__).resolve().parent.parent

# Noisy machines make single examples slow without a fault; speed has its own tests. The same
# examples each time: what a test says depends on the code alone. EXCISE_EXPLORE=1 draws new ones.
settings.register_profile(
    "excise",
    deadline=None,
    derandomize=os.environ.get("EXCISE_EXPLORE") != "1",
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("excise")


@pytest.fixture(scope="session")
def shared_vectors() -> Path:
    """Return the folder of public vectors, kept beside the project and not copied into it."""
    folder = Path(os.environ.get("EXCISE_VECTORS", ROOT.parent / "shared" / "vectors"))
    if not folder.is_dir():
        skip(f"no vectors in {folder} (set EXCISE_VECTORS)")
    return folder
