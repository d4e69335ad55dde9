"""Fixtures of the report tests: the example builder's folder on the path, and its report."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from report_example import HOSTILE, build_example

from excise.report.model import Report


@pytest.fixture(scope="session")
def example() -> Report:
    """Return the rich example report."""
    return build_example()


@pytest.fixture(scope="session")
def hostile() -> Report:
    """Return the example report with a task name that attacks every renderer."""
    return build_example(task=HOSTILE)
