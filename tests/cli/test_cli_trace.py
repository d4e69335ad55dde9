"""`excise trace` and `excise attribute` as programs: what they refuse, and what they leave."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from captures import write
from excise.capture.journal import Aggregate, Record


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
    done = excise("trace", "-o", capture, "--untraced", "0", "--", "cat", "/proc/version")
    if done.returncode == 0:  # this host can: then everything is there
        assert (capture / "raw/trace.txt").stat().st_size
        assert "security_file_permission" in done.stdout
        return
    assert done.returncode == 4, done.stderr
    assert done.stderr.startswith("excise: excise-probe trace: ")
    assert not capture.exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["trace"], "trace one of: a command, --pid, --all"),
        (["trace", "--all"], "--all needs --duration"),
        (["trace", "--pid", "x"], "--pid x: expected process ids"),
        (["trace", "--backend", "magic", "--", "ls"], "--backend magic: expected function_graph"),
        (["trace", "--by", "moon", "--", "ls"], "--by moon: expected syscall"),
        (["trace", "--unit", "s", "--", "ls"], "--unit s: expected ns"),
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
    assert found["parts"][0]["margin"] == pytest.approx(2 * 2 * 1.96 * 0.5)
