"""Campaigns that are killed, cut short or interrupted, and go on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import msgspec
import pytest

from campaign_runs import (
    RunningCampaign,
    heads,
    losses,
    records,
    runs,
    session_states,
    small_campaign,
)
from ended import wait_until
from excise.campaign.run import completed_runs, kept_campaign, run_campaign
from excise.campaign.schedule import schedule
from excise.campaign.spec import Campaign, Configuration, Task, TookEffect
from excise.campaign.target_spec import LocalTarget, SshTarget
from excise.capture.journal import Effect, Run, Session, encode
from excise.capture.manifest import Manifest
from excise.capture.store import JOURNAL, MANIFEST, Capture, read_manifest
from excise.errors import CaptureError, EffectError, HostError, OutputError, Refused


def planned(campaign: Campaign) -> list[tuple[int, int, str, str, int, str]]:
    return [
        (head.sequence, head.block, head.task, head.configuration, head.run, head.phase)
        for head in schedule(campaign)
    ]


def kill_at_random_moments(folder: Path, *, moments: int, seed: int) -> None:
    """Kill one campaign after the other until it was killed often enough; finish the last one."""
    draw = random.Random(seed)
    killed = number = 0
    while killed < moments:
        capture, marks = folder / f"c{number}.excise", folder / f"marks{number}"
        campaign = small_campaign(marks)
        number += 1
        kills_here = 0
        while True:
            with RunningCampaign(campaign, capture) as session:
                if killed < moments:
                    # From before Python has started to well into the runs.
                    time.sleep(draw.uniform(0.0, 1.2))
                    session.kill()
                called_complete, error = session.finish()
                session.wait_until_nothing_is_left()
            assert error == ""
            if session.process.returncode == -signal.SIGKILL:
                killed += 1
                kills_here += 1
            if not (capture / JOURNAL).exists():
                continue
            done = runs(capture, killed=kills_here > 0)
            assert heads(done) == planned(campaign)[: len(done)]
            assert set(called_complete) <= {run.sequence for run in done}
            executed = len(marks.read_bytes().splitlines()) if marks.exists() else 0
            assert len(done) <= executed <= len(done) + kills_here
            if session.process.returncode == 0:
                break
        assert heads(runs(capture)) == planned(campaign)
        assert session_states(capture)[-1] == "finished"
        torn = losses(capture)
        assert all(loss.reason.startswith("torn last line") for loss in torn)
        assert len(torn) <= kills_here


def test_a_campaign_killed_at_fifteen_moments_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    kill_at_random_moments(tmp_path, moments=15, seed=1)


@pytest.mark.lab
def test_a_campaign_killed_at_two_hundred_moments_equals_an_uninterrupted_one(
    tmp_path: Path,
) -> None:
    kill_at_random_moments(tmp_path, moments=200, seed=2)


def test_an_uninterrupted_campaign_is_what_was_planned(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=2)
    finished = run_campaign(campaign, tmp_path / "c")
    assert (finished.done, finished.total, finished.failed) == (24, 24, 0)
    assert heads(runs(tmp_path / "c")) == planned(campaign)
    assert session_states(tmp_path / "c") == ["started", "finished"]


def test_a_journal_cut_at_any_byte_of_its_last_line_goes_on(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    run_campaign(campaign, tmp_path / "whole")
    lines = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    numbers = [index for index, line in enumerate(lines) if line.startswith(b'{"kind":"run"')]
    kept, torn = b"".join(lines[: numbers[9]]), lines[numbers[9]]
    manifest = (tmp_path / "whole" / MANIFEST).read_bytes()
    for cut in (1, 2, len(torn) // 2, len(torn) - 2, len(torn) - 1):
        capture = tmp_path / f"cut{cut}"
        (capture / "raw").mkdir(parents=True)
        (capture / MANIFEST).write_bytes(manifest)
        (capture / JOURNAL).write_bytes(kept + torn[:cut])
        finished = run_campaign(campaign, capture)
        assert finished.done == campaign.runs
        assert heads(runs(capture)) == planned(campaign)
        (loss,) = losses(capture)
        assert (loss.offset, loss.text) == (len(kept), torn[:cut].decode()[:200])
        assert f"torn last line of {cut} bytes" in loss.reason


def test_a_campaign_killed_after_its_last_run_is_declared_finished(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    run_campaign(campaign, tmp_path / "c")
    journal = tmp_path / "c" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:-1]))
    for _ in range(2):
        assert not run_campaign(campaign, tmp_path / "c").interrupted
        assert session_states(tmp_path / "c") == ["started", "finished"]


def test_a_capture_whose_creation_was_cut_short_is_taken_over(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    (tmp_path / "c" / "raw").mkdir(parents=True)
    (tmp_path / "c" / f"{MANIFEST}.partial").write_text("{")
    assert run_campaign(campaign, tmp_path / "c").done == campaign.runs
    (tmp_path / "c" / JOURNAL).unlink()
    assert run_campaign(campaign, tmp_path / "c").done == campaign.runs
    assert heads(runs(tmp_path / "c")) == planned(campaign)


def test_another_campaign_does_not_go_on_in_this_capture(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    run_campaign(campaign, tmp_path / "c")
    other = msgspec.structs.replace(campaign, seed=8, margin="3%")
    with pytest.raises(OutputError, match="holds another campaign: seed, margin differ"):
        run_campaign(other, tmp_path / "c")
    with Capture.create(
        tmp_path / "imported", Manifest(id="1", created="", title="t", origin="imported")
    ):
        pass
    with pytest.raises(OutputError, match="holds imported data"):
        run_campaign(campaign, tmp_path / "imported")


def test_what_is_in_no_figure_may_be_changed_and_is_kept(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    ssh = SshTarget(host="board", reboot=True, give_up="1min", reset=["a"])
    assert ssh.measured == SshTarget(host="board", reboot=True, boot_attempts=2).measured
    assert ssh.measured != SshTarget(host="other", reboot=True).measured
    run_campaign(campaign, tmp_path / "c")
    patient = msgspec.structs.replace(campaign, target=LocalTarget(boot_timeout="1h"))
    assert run_campaign(patient, tmp_path / "c").done == campaign.runs
    assert kept_campaign(tmp_path / "c") == patient
    named = msgspec.structs.replace(campaign, target=LocalTarget(machine="b"))
    with pytest.raises(OutputError, match="holds another campaign: target differ"):
        run_campaign(named, tmp_path / "c")


def test_a_campaign_gets_more_blocks_in_the_order_it_would_have_had(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=2)
    run_campaign(campaign, tmp_path / "c")
    longer = msgspec.structs.replace(campaign, blocks=5)
    assert run_campaign(longer, tmp_path / "c").done == longer.runs
    assert heads(runs(tmp_path / "c")) == planned(longer)
    manifest = read_manifest(tmp_path / "c")
    assert manifest.campaign["blocks"] == 5
    assert manifest.notes[0].startswith("Extended from 2 to 5 blocks.")
    with pytest.raises(OutputError, match="holds another campaign: blocks differ"):
        run_campaign(campaign, tmp_path / "c")


def test_a_campaign_does_not_go_on_on_another_machine(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=2)
    run_campaign(campaign, tmp_path / "c")
    path = tmp_path / "c" / MANIFEST
    release = os.uname().release
    path.write_text(path.read_text().replace(f'"{release}"', '"2.6.32"'))
    with pytest.raises(Refused, match="begun under other conditions") as caught:
        run_campaign(msgspec.structs.replace(campaign, blocks=3), tmp_path / "c")
    assert caught.value.differences == (f"kernel.release: 2.6.32 against {release}",)
    assert run_campaign(campaign, tmp_path / "c").done == campaign.runs, "nothing was left to do"


def test_a_campaign_put_right_starts_anew_where_nothing_was_measured(tmp_path: Path) -> None:
    right = small_campaign(tmp_path / "marks", blocks=1)
    without_effect = [TookEffect(environment="EXCISE_NOT_SET")]
    first, *others = right.configurations
    wrong = msgspec.structs.replace(
        right,
        configurations=[msgspec.structs.replace(first, took_effect=without_effect), *others],
    )
    with pytest.raises(EffectError, match="did not take effect"):
        run_campaign(wrong, tmp_path / "c")
    finished = run_campaign(right, tmp_path / "c")
    assert finished.done == finished.total == right.runs
    assert not [r for r in records(tmp_path / "c") if isinstance(r, Effect)]


def test_a_journal_with_a_run_missing_in_between_is_refused(tmp_path: Path) -> None:
    campaign = small_campaign(tmp_path / "marks", blocks=1)
    run_campaign(campaign, tmp_path / "c")
    kept = [r for r in records(tmp_path / "c") if not (isinstance(r, Run) and r.sequence == 3)]
    (tmp_path / "c" / JOURNAL).write_bytes(b"".join(encode(record) for record in kept))
    with pytest.raises(CaptureError, match="holds 17 runs but the last one has number 17"):
        completed_runs(tmp_path / "c")


def test_runs_are_counted_whatever_their_output_says(tmp_path: Path) -> None:
    said = 'x\n{"kind":"run","sequence":99}\n'
    lines = [
        Run(sequence=0, block=0, task="t", configuration="c", run=0, phase="first", stderr=said),
        Session(state="resumed", at=""),
    ]
    (tmp_path / JOURNAL).write_bytes(b"".join(encode(line) for line in lines) + b'{"kind":"run",')
    assert completed_runs(tmp_path) == 1


def held(folder: Path, *, blocks: int = 30) -> Campaign:
    """Return a campaign with a configuration that is set up and torn down around each run.

    A run says when it has begun, and ends when it is let.
    """
    standing = str(folder / "standing")
    script = f"touch {folder}/begun; until [ -e {folder}/let ]; do sleep 0.05; done"
    return Campaign(
        configurations=[
            Configuration(
                name="none",
                setup=[["sh", "-c", f"echo up >> {standing}"]],
                teardown=[["sh", "-c", f"echo down >> {standing}"]],
            )
        ],
        tasks=[Task(name="t", command=["sh", "-c", script])],
        blocks=blocks,
        sync_interval="never",
    )


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_in_the_process_finishes_the_run_or_ends_it(
    tmp_path: Path, times: int
) -> None:
    with RunningCampaign(held(tmp_path), tmp_path / "c") as session:
        wait_until((tmp_path / "begun").exists, beside=session.process, what="the first run")
        session.interrupt(times=times)
        if times == 1:
            (tmp_path / "let").touch()
        called_complete, error = session.finish()
        assert error == ""
        session.wait_until_nothing_is_left()
    done = runs(tmp_path / "c")
    assert called_complete == [run.sequence for run in done] == ([] if times == 2 else [0])
    assert session_states(tmp_path / "c") == ["started", "interrupted"]
    words = (tmp_path / "standing").read_text().split()
    assert words.count("up") == words.count("down")
    assert words[-1] == "down"


def test_a_run_whose_set_up_fails_does_not_start(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    fails_third = f"echo up >> {marks}; test $(grep -c up {marks}) -lt 3"
    campaign = Campaign(
        configurations=[
            Configuration(
                name="none",
                setup=[["sh", "-c", fails_third]],
                teardown=[["sh", "-c", f"echo down >> {marks}"]],
            )
        ],
        tasks=[Task(name="t", command=["sh", "-c", f"echo run >> {marks}"])],
        sync_interval="never",
    )
    with pytest.raises(HostError, match="a set-up or tear-down command failed: exit code 1"):
        run_campaign(campaign, tmp_path / "c")
    assert marks.read_text().split() == ["up", "down", "up", "run", "down", "up", "down"]
    assert len(runs(tmp_path / "c")) == 1
