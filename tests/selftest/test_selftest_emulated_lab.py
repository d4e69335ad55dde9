"""Loads on an emulated aarch64, counted in instructions."""

from __future__ import annotations

import shutil

import pytest

from excise.collect.selftest.emulate import counted_loads
from excise.collect.selftest.openssl import CACHED, OFF, ON
from excise.cost.selftest_counted import counted_costs
from skips import skip

pytest_plugins = ("selftest_programs",)
pytestmark = pytest.mark.lab


def test_the_cached_status_saves_no_instruction_on_aarch64() -> None:
    needed = ("qemu-aarch64", "aarch64-linux-gnu-gcc", "apt-get")
    if missing := [name for name in needed if shutil.which(name) is None]:
        skip(f"not installed: {', '.join(missing)}")
    found = {
        each.configuration: each
        for each in counted_costs(counted_loads("trixie", machine="aarch64"))
    }
    assert found[OFF].tests == 0
    assert found[ON].tests >= 40
    assert found[ON].remainder_share < 0.10
    assert next(iter(found[ON].families)) == "SLH-DSA"
    assert found[CACHED].total == pytest.approx(found[ON].total, rel=1e-3)
    assert found[ON].total > 100 * found[OFF].total
