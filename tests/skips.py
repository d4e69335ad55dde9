"""The rule about skips, in a module of its own: several folders have a `conftest`."""

from __future__ import annotations

import os

import pytest


def skip(reason: str) -> None:
    """Skip with a reason, or fail where skips are forbidden (EXCISE_FORBID_SKIPS=1)."""
    if os.environ.get("EXCISE_FORBID_SKIPS") == "1":
        pytest.fail(f"skips are forbidden: {reason}")
    pytest.skip(reason)
