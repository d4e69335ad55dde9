"""`excise trace` and `excise attribute` as programs: what they refuse, and what they leave."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from captures import write
from excise.capture.journal import Aggregate, Record
from skips import skip


def excise(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = "from excise.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_host_that_cannot_trace_ends_with_4_and_leaves_no_capture(tmp_path: Path) -> None:
    capture = tmp_path / "t.excise"
    done = excise("trace", "-o", capture, "--pairs", "0", "--", "cat", "/proc/version")
    if done.returncode == 0:  # this host can: then everything is there
        assert (capture / "raw/trace.txt").stat().st_size
        assert "security_file_permission" in done.stdout
        return
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("excise: excise-probe trace: ")
    assert not capture.exists()


# Far apart, so that no jump is a short one; the second caller jumps, as its call is its last act.
KERNEL = """
#define FAR __attribute__((noinline, aligned(64)))
int sink;
FAR int security_file_open(int x) { sink += x; return x & 1; }
FAR int security_inode_permission(int x) { sink -= x; return x & 3; }
FAR int do_dentry_open(int x) { return security_file_open(x) ? 1 : sink; }
FAR int inode_permission(int x) { return security_inode_permission(x + 1); }
FAR int __inode_permission(int x) { sink = 7; return security_inode_permission(x); }
int main(int c) { return do_dentry_open(c) + inode_permission(c) + __inode_permission(c); }
"""


def test_the_functions_that_call_a_hook_are_found_in_a_kernels_file(tmp_path: Path) -> None:
    if shutil.which("cc") is None:
        skip("cc is not installed")
    kernel = tmp_path / "vmlinux"
    words = ["cc", "-O2", "-no-pie", "-x", "c", "-", "-o", str(kernel)]
    subprocess.run(words, input=KERNEL, text=True, check=True)
    done = excise("trace", "--list", "--kernel", kernel, "--json")
    found = {hook["hook"]: hook["callers"] for hook in json.loads(done.stdout)["hooks"]}
    assert found == {
        "file_open": [{"function": "do_dentry_open", "sites": 1}],
        "inode_permission": [
            {"function": "__inode_permission", "sites": 1},
            {"function": "inode_permission", "sites": 1},
        ],
    }
    shown = excise("trace", "--list", "--kernel", kernel).stdout
    assert "security_inode_permission  (__inode_permission, inode_permission)" in shown
    kernel.write_bytes(kernel.read_bytes()[:5_000])
    cut = excise("trace", "--list", "--kernel", kernel)
    assert (cut.returncode, "is cut off" in cut.stderr) == (2, True)
    assert "needs --list" in excise("trace", "--kernel", kernel, "--", "true").stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["trace"], "trace one of: a command, --pid, --all"),
        (["trace", "--all"], "--all needs --duration"),
        (["trace", "--pid", "x"], "--pid x: expected process ids"),
        (
            ["trace", "--backend", "magic", "--", "ls"],
            "'--backend': 'magic' is not one of 'function",
        ),
        (["trace", "--by", "moon", "--", "ls"], "'--by': 'moon' is not one of 'syscall'"),
        (["trace", "--unit", "s", "--", "ls"], "'--unit': 's' is not one of 'ns'"),
        (["lab", "trace", "--preset", "none"], "needs a baseline and at least one other preset"),
        (["attribute", "reference:lsmpmon-2008", "--calls", "x"], "--calls x: expected"),
        (["attribute", "reference:lsmpmon-2008", "-c", "x"], "there is no configuration 'x'"),
    ],
)
def test_what_makes_no_sense_is_refused_with_2(words: list[str], reason: str) -> None:
    done = excise(*words)
    assert done.returncode == 2
    assert reason in done.stderr


def test_a_and_b_are_attributed_as_json(tmp_path: Path) -> None:
    names = []
    for name, total, cost in (("none", 100.0, 5.0), ("lsm", 160.0, 30.0)):
        common = {"task": "stat", "configuration": name, "unit": "ns"}
        hook = {**common, "layer": "hook", "event": "inode_permission"}
        records: list[Record] = [
            Aggregate(**common, metric="duration", mean=total),
            Aggregate(**hook, metric="duration", mean=cost, sd=0.5),
            Aggregate(**hook, metric="per_call", mean=2.0),
        ]
        names.append(write(tmp_path / name, records))
    done = excise("attribute", *names, "--json")
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)["data"]["attributions"]
    assert found["configuration"] == "lsm − none"
    assert (found["total"], found["explained"]) == (60.0, pytest.approx(50 / 60))
    assert [part["event"] for part in found["parts"]] == ["inode_permission", "remainder"]
    assert found["parts"][0]["margin"] == pytest.approx(math.hypot(2 * 1.96 * 0.5, 2 * 1.96 * 0.5))
