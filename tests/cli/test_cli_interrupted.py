"""Ctrl-C ends long native work within a moment, with the usual words and exit code 130."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended, wait_until

PROGRAM = str(Path(sys.executable).with_name("excise"))
LARGE_BYTES = 1 << 40
"""Hours to read; sparse, so that the disk holds nearly nothing of it."""
BEGUN_BYTES = 16 << 20

LARGE = {
    "verify ima": (b"", ("verify", "ima", "large", "--pcr", "sha256:10=" + 32 * "5a")),
    "import": (
        b"# tracer: function_graph\n 0)   1.250 us    |  security_inode_permission();\n",
        ("import", "large", "--format", "function-graph"),
    ),
}


def _position(process: int, path: Path) -> int:
    """Return how far a process has read a file, 0 before it opens it."""
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            if link.readlink() != path:
                continue
            info = Path(f"/proc/{process}/fdinfo/{link.name}").read_text()
        except OSError:  # it was closed meanwhile
            continue
        return int(info.split()[1])
    return 0


@pytest.mark.parametrize(("head", "words"), LARGE.values(), ids=LARGE)
def test_ctrl_c_is_heard_while_a_large_file_is_read(
    tmp_path: Path, head: bytes, words: tuple[str, ...]
) -> None:
    path = tmp_path / "large"
    path.write_bytes(head)
    os.truncate(path, LARGE_BYTES)
    process = subprocess.Popen([PROGRAM, *words], stderr=subprocess.PIPE, cwd=tmp_path)
    with ended(process):
        wait_until(lambda: _position(process.pid, path) >= BEGUN_BYTES, beside=process)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (130, b"excise: interrupted\n")
