"""Fixtures that drive the built native program, `excise-probe`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from excise.collect.probe import PROBE
from probe_driver import LauncherProcess


@pytest.fixture(scope="session")
def probe() -> Path:
    """Return the path of the built program."""
    if not PROBE.is_file():
        pytest.fail("excise-probe is not built: run tools/build-probe.sh")
    return PROBE


@pytest.fixture
def start_launcher(probe: Path) -> Iterator[Callable[..., LauncherProcess]]:
    """Return a function that starts a launcher; all are gone at the end of the test."""
    assert probe.is_file()
    started: list[LauncherProcess] = []

    def start(*options: str, pass_fds: tuple[int, ...] = ()) -> LauncherProcess:
        started.append(LauncherProcess(*options, pass_fds=pass_fds))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.process.kill()
        launcher.process.wait()
        for stream in (launcher.process.stdin, launcher.process.stdout):
            if stream is not None and not stream.closed:
                stream.close()


@pytest.fixture
def launcher(start_launcher: Callable[..., LauncherProcess]) -> LauncherProcess:
    """Return a launcher without a journal."""
    return start_launcher()
