"""The rule about skips, in a module of its own: several folders have a `conftest`."""

from __future__ import annotations

import os

import pytest


def skip(reason: str, *, module: bool = False) -> None:
    """Skip with a reason, or fail where skips are forbidden (EXCISE_FORBID_SKIPS=1).

    Args:
        reason: What is absent.
        module: Whether a whole file is skipped, while it is read.
    """
    if os.environ.get("EXCISE_FORBID_SKIPS") == "1":
        pytest.fail(f"skips are forbidden: {reason}", pytrace=False)
    pytest.skip(reason, allow_module_level=module)
