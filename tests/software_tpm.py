"""A software TPM for tests: swtpm on a unix socket in a temporary folder, always ended.

A pytest plugin (see `tests/conftest.py`) with the fixture `swtpm`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from ended import ended, wait_until
from excise.lab.processes import listens
from skips import skip


def require(module: str) -> None:
    """Skip a whole file where a module is absent, or fail where skips are forbidden."""
    if importlib.util.find_spec(module) is None:
        skip(f"{module} is not installed", module=True)


@dataclass(frozen=True)
class SoftwareTpm:
    folder: Path

    @property
    def tcti(self) -> str:
        return f"swtpm:path={self.folder}/s"

    def tool(self, *arguments: str) -> str:
        """Run one of tpm2-tools in the TPM's folder and return its output."""
        environment = {**os.environ, "TPM2TOOLS_TCTI": self.tcti}
        done = subprocess.run(
            arguments, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def flush(self) -> None:
        """Free the objects that tpm2-tools leave behind without a resource manager."""
        self.tool("tpm2_flushcontext", "-t")


@contextmanager
def software_tpm(folder: Path) -> Iterator[SoftwareTpm]:
    for program in ("swtpm", "tpm2_quote"):
        if shutil.which(program) is None:
            skip(f"{program} is not installed")
    state = folder / "state"
    state.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [
            "swtpm",
            "socket",
            "--tpm2",
            *("--tpmstate", f"dir={state}"),
            *("--server", f"type=unixio,path={folder}/s"),
            *("--ctrl", f"type=unixio,path={folder}/s.ctrl"),
            *("--flags", "not-need-init,startup-clear"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with ended(process):
        for socket in (folder / "s", folder / "s.ctrl"):
            wait_until(lambda: listens(socket), beside=process)  # noqa: B023  called at once
        yield SoftwareTpm(folder)


@contextmanager
def new_tpm() -> Iterator[SoftwareTpm]:
    """Run a new software TPM while the block runs; its folder's path is short, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="swtpm") as folder, software_tpm(Path(folder)) as tpm:
        yield tpm


@pytest.fixture(scope="module")
def swtpm() -> Iterator[SoftwareTpm]:
    """Run a software TPM for one file of tests."""
    with new_tpm() as tpm:
        yield tpm
