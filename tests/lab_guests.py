"""A pytest plugin (see `tests/conftest.py`): guests for the lab's tests, each booted once."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from excise.errors import HostError
from excise.lab import GuestResult, Machine, Plan, Preset, kernels, preset, run_guest
from excise.lab.cache import cache_root
from excise.lab.workloads import syscalls

_PROGRAMS = ("qemu-system-x86_64", "swtpm", "setpriv", "prlimit", "apt-get")


@pytest.fixture(scope="session")
def lab_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Share the packages of the real cache, but run guests in a folder of our own."""
    from skips import skip

    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        skip(f"not installed: {', '.join(missing)}")
    shared = cache_root()
    own = tmp_path_factory.mktemp("lab")
    for name in ("packages", "apt", "policies", "busybox", "debian", "python"):
        (shared / name).mkdir(exist_ok=True)
        (own / name).symlink_to(shared / name)
    before = os.environ.get("EXCISE_LAB_CACHE")
    os.environ["EXCISE_LAB_CACHE"] = str(own)
    try:
        for series in ("6.1", "6.12"):
            try:
                kernels.resolve(series)
            except HostError as error:
                skip(f"no kernel {series}: {error}")
        yield own
    finally:
        if before is None:
            del os.environ["EXCISE_LAB_CACHE"]
        else:
            os.environ["EXCISE_LAB_CACHE"] = before


Counted = Callable[..., GuestResult]


@pytest.fixture(scope="session")
def counted(lab_cache: Path) -> Counted:
    """Return the function that boots a preset in count mode, once for each preset and kernel."""
    known: dict[tuple[str, str], GuestResult] = {}

    def boot(name: str, *, kernel: str = "6.12") -> GuestResult:
        if (name, kernel) not in known:
            found = preset(name)
            known[name, kernel] = run_guest(
                Machine(kernel=kernel), preset=found, plan=syscalls(found)
            )
        return known[name, kernel]

    return boot


def broken(found: Preset, **changes: object) -> Preset:
    """Return a preset with something changed so that it must fail."""
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


EMPTY = Plan(steps=())
