"""Campaigns on guests: counted once each, resumed after a kill, proven, sealed and judged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from ended import ended
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect, parse_campaign
from excise.campaign.target_spec import LabTarget
from excise.capture.journal import Effect, Loss, Run, Session, decode
from excise.capture.seal import require_unbroken, seal
from excise.capture.store import JOURNAL
from excise.cost.comparison import compare_configurations
from excise.cost.gate import judge
from excise.cost.series import series_of
from excise.errors import EffectError, HostError
from excise.events.load import load_capture
from excise.evidence.checks import Outcome
from excise.lab.evidence import verify_guests
from excise.lab.machine import Machine

pytestmark = pytest.mark.lab

DRIVER = """
import sys
from pathlib import Path
from excise.campaign.run import run_campaign
from excise.campaign.spec import read_campaign
run_campaign(
    read_campaign(Path(sys.argv[1])),
    Path(sys.argv[2]),
    on_stage=lambda configuration, stage: print(configuration, stage, flush=True),
    on_interrupt=lambda: print("interrupted", flush=True),
)
"""
TEXT = """
title = "counted"
baseline = "none"
blocks = 2
[target]
kind = "lab"
aa_guests = 1
machine = { kernel = "6.1", mode = "count" }
[[configurations]]
name = "none"
[[configurations]]
name = "ima-measure"
[[tasks]]
name = "null"
workload = "null"
[[tasks]]
name = "open_close"
workload = "open_close/ext4"
[[tasks]]
name = "files"
workload = "exec:20"
"""


def campaign(**changes: object) -> Campaign:
    return msgspec.structs.replace(parse_campaign(TEXT.encode(), source="c"), **changes)


def journal(capture: Path) -> list[object]:
    return [decode(line) for line in (capture / JOURNAL).read_bytes().splitlines()]


def figures(capture: Path) -> dict[int, tuple[object, ...]]:
    """Return what must be the same in every campaign of these guests, by sequence number."""
    runs = [each for each in journal(capture) if isinstance(each, Run)]
    assert len({run.sequence for run in runs}) == len(runs)
    return {
        run.sequence: (
            run.task,
            run.configuration,
            run.block,
            run.phase,
            run.instructions,
            run.ima_entries,
            run.probe and run.probe.op_instructions,
        )
        for run in runs
    }


@pytest.fixture(scope="session")
def whole(lab_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a campaign that ran to its end without a disturbance."""
    path = tmp_path_factory.mktemp("campaign") / "whole"
    finished = run_campaign(campaign(), path)
    assert (finished.done, finished.failed, finished.interrupted) == (27, 0, False)
    return path


def test_guests_give_instructions_and_the_floor_they_are_known_by(whole: Path):
    dataset = load_capture(whole)
    assert {series.unit for series in series_of(dataset)} == {"instructions"}
    assert dataset.runs.get_column("wall_ns").null_count() == dataset.runs.height
    rows = {row.task: row for row in compare_configurations(dataset).rows}
    assert rows["null"].ratio == pytest.approx(1.0, abs=1e-4)
    assert rows["open_close"].ratio > 1.05
    assert rows["open_close"].noise_ratio is not None
    assert rows["open_close"].noise_ratio < 0.002
    assert rows["open_close"].order == "exact counts"


def test_entries_of_the_measurement_list_are_told_task_by_task(whole: Path):
    runs = [each for each in journal(whole) if isinstance(each, Run)]
    added = {
        (run.task, run.block): run.ima_entries for run in runs if run.configuration == "ima-measure"
    }
    assert added["files", 0] == 20
    assert added["files", 1] == added["files", 2] == 0
    assert {run.ima_entries for run in runs if run.configuration == "none"} == {0}


def test_every_guests_proof_and_evidence_are_in_the_capture(whole: Path):
    effects = [each for each in journal(whole) if isinstance(each, Effect)]
    assert {effect.outcome for effect in effects} == {"PASSED"}
    assert {effect.configuration for effect in effects} == {"none", "none (A/A)", "ima-measure"}
    raw = whole / "raw"
    for name in ("binary_runtime_measurements", "dmesg", "facts.json", "cmdline"):
        assert (raw / f"ima-measure.b0.{name}").stat().st_size > 0
    facts = msgspec.json.decode((raw / "ima-measure.b0.facts.json").read_bytes())
    assert facts["clock"] == "instructions (TCG, icount)"
    assert "capability" in facts["facts"]["lsm"]


def test_a_campaign_of_guests_is_sealed_and_judged(whole: Path, tmp_path: Path):
    copy = tmp_path / "sealed"
    subprocess.run(["cp", "-r", str(whole), str(copy)], check=True)
    seal(copy)
    require_unbroken(copy)
    dataset = load_capture(copy)
    assert not judge(dataset, baseline="none", max_regression_ratio=0.01).passed
    assert judge(dataset, baseline="none", max_regression_ratio=0.9).passed


def test_guests_at_the_same_time_give_the_same_counts(whole: Path, tmp_path: Path):
    run_campaign(campaign(), tmp_path / "c", jobs=2)
    assert figures(tmp_path / "c") == figures(whole)


@contextmanager
def _started(folder: Path) -> Iterator[subprocess.Popen[str]]:
    (folder / "c.toml").write_text(TEXT)
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(folder / "c.toml"), str(folder / "c")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with ended(process, group=True):
        yield process


def _wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for got in process.stdout:
        if got.strip() == line:
            return
    pytest.fail(f"no line {line!r}: {process.communicate()[1]}")


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_a_campaign_that_was_killed_or_interrupted_goes_on(whole: Path, tmp_path: Path, sent):
    with _started(tmp_path) as process:
        _wait_for(process, "none (A/A) measure")
        os.kill(process.pid, sent)
        process.communicate(timeout=600)
    done = figures(tmp_path / "c")
    # An interrupt lets the guest in progress finish; a kill loses it, and nothing else.
    assert len(done) == (9 if sent is signal.SIGKILL else 18)
    assert done == {sequence: figures(whole)[sequence] for sequence in done}
    finished = run_campaign(campaign(), tmp_path / "c")
    assert finished.done == finished.total
    assert figures(tmp_path / "c") == figures(whole)
    states = [each.state for each in journal(tmp_path / "c") if isinstance(each, Session)]
    between = [] if sent is signal.SIGKILL else ["interrupted"]
    assert states == ["started", *between, "resumed", "finished"]


def test_a_second_interrupt_ends_the_guest_at_once(lab_cache: Path, tmp_path: Path):
    with _started(tmp_path) as process:
        _wait_for(process, "none measure")
        os.kill(process.pid, signal.SIGINT)
        _wait_for(process, "interrupted")
        time.sleep(0.3)  # it says so a moment before it is done with the first
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=600)
    assert figures(tmp_path / "c") == {}
    assert list((lab_cache / "run").iterdir()) == []


def test_a_configuration_without_effect_fails_and_keeps_the_others(lab_cache: Path, tmp_path: Path):
    wrong = Configuration(
        name="wrong",
        preset="none",
        took_effect=[TookEffect(file="/proc/cmdline", contains="excise.absent=1")],
    )
    setup = Configuration(name="setup", preset="none", setup=[["false"]])
    planned = campaign(
        configurations=[Configuration(name="none"), wrong, setup],
        tasks=[Task(name="null", workload="null")],
        blocks=1,
    )
    with pytest.raises(EffectError, match=r"wrong did not take effect .*excise\.absent=1"):
        run_campaign(planned, tmp_path / "c")
    records = journal(tmp_path / "c")
    assert {r.configuration for r in records if isinstance(r, Run)} == {"none", "none (A/A)"}
    failed = [r for r in records if isinstance(r, Effect) and r.outcome == "FAILED"]
    assert [(each.configuration, each.check) for each in failed] == [
        ("wrong", "file /proc/cmdline")
    ]
    [lost] = [r for r in records if isinstance(r, Loss)]
    assert lost.source == "setup"
    assert "a set-up command failed: false" in lost.reason


TIMED = Campaign(
    title="timed",
    configurations=[Configuration(name="ima-measure")],
    tasks=[
        Task(name="boot", workload="boot"),
        Task(name="files", workload="files:10"),
        Task(name="no such file", command=["cat", "/none"], expect=[1]),
    ],
    blocks=1,
    target=LabTarget(machine=Machine(kernel="6.1", mode="tpm", accelerator="tcg"), quote=True),
)


def test_timed_guests_are_booted_in_every_block_and_bring_evidence_that_verifies(
    lab_cache: Path, tmp_path: Path
):
    finished = run_campaign(TIMED, tmp_path / "c", jobs=2)
    assert (finished.done, finished.failed) == (12, 0)
    dataset = load_capture(tmp_path / "c")
    assert dataset.manifest.paired
    assert {(each.metric, each.unit) for each in series_of(dataset)} == {("wall_ns", "ns")}
    assert set(dataset.events.get_column("event").unique()) >= {"kernel", "initrd"}
    proven = verify_guests(tmp_path / "c")
    assert proven is not None
    assert proven.verdict is Outcome.PASSED
    assert [check.id for check in proven.checks] == ["guest.ima", "guest.quote"] * 4
    assert {check.outcome for check in proven.checks} == {Outcome.PASSED}
    assert {check.got.partition(":")[0] for check in proven.checks} == {
        f"ima-measure{twin}.b{block}" for twin in ("", "-A-A") for block in (0, 1)
    }


def test_a_guest_that_cannot_start_is_said_before_the_capture_is_made(tmp_path: Path):
    target = LabTarget(machine=Machine(kernel=str(tmp_path / "vmlinuz")))
    with pytest.raises(HostError, match="no such kernel image"):
        run_campaign(campaign(target=target), tmp_path / "c")
    assert not (tmp_path / "c").exists()
