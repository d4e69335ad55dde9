"""The example runs here as it is documented."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from ports import free_port

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.lab
def test_the_example_of_two_nodes_runs_and_leaves_no_process(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    port = str(free_port())
    programs = str(Path(sys.executable).parent)
    done = subprocess.run(
        [ROOT / "examples" / "fleet-two-nodes.sh", tmp_path],
        env={**os.environ, "EXCISE_DASK_PORT": port, "EXCISE_BIN": programs},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("50 of 50 hosts passed, 0 failed") == 3
    hosts = pl.read_parquet(tmp_path / "results" / "hosts.parquet")
    assert hosts["new_entries"].unique().to_list() == [6]
    assert hosts["entries"].unique().to_list() == [2006]
    for node in (1, 2):
        assert (
            "Starting Worker plugin excise-policy-" in (tmp_path / f"node-{node}.log").read_text()
        )
    with socket.socket() as sock:
        assert sock.connect_ex(("127.0.0.1", int(port))) != 0
