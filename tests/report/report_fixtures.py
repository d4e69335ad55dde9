"""Fixtures of the report tests: the example report, plain and with hostile names."""

from __future__ import annotations

import pytest

from excise.report.model import Report
from report_example import HOSTILE, build_example


@pytest.fixture(scope="session")
def example() -> Report:
    """Return the rich example report."""
    return build_example()


@pytest.fixture(scope="session")
def hostile() -> Report:
    """Return the example report with a task name that attacks every renderer."""
    return build_example(task=HOSTILE)
