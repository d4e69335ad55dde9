"""Captures of guests that were cut short: the same command goes on, another one is told why not."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import captures
from ended import PATIENCE_S, ended, wait_until
from excise.capture.journal import Effect, Loss, Probe, Record, Run, Session
from excise.capture.store import JOURNAL, journal_records
from excise.errors import HostError, OutputError, UsageError
from excise.events.load import load_capture
from excise.lab import GuestFailure, GuestJob, GuestResult, Machine, StepResult, preset, run_all
from excise.lab import jobs as lab_jobs
from excise.lab.count import counts
from excise.lab.kernel import Kernel
from excise.lab.record import LabCapture
from excise.lab.result import clock_of
from excise.lab.workloads import command, syscalls

PROGRAM = str(Path(sys.executable).with_name("excise"))


@pytest.fixture(autouse=True)
def kernel(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give guests a kernel that nobody has to fetch; those that really boot have their own."""
    if request.node.get_closest_marker("lab"):
        return None
    image = tmp_path / "bzImage"
    image.write_bytes(b"a kernel")
    made = Kernel(name="k", release="6.1.0", image=image, modules=None, config={})
    monkeypatch.setattr("excise.lab.recorded.resolve", lambda *_args, **_named: made)
    return made


def job(name: str, *, only: tuple[str, ...] = ("null",), **machine: Any) -> GuestJob:
    found = preset(name)
    return GuestJob(
        configuration=name,
        machine=Machine(kernel="6.1", **machine),
        preset=found,
        plan=syscalls(found, only=only),
    )


def printing(name: str) -> GuestJob:
    return dataclasses.replace(job(name), plan=command("echo", name, preset=preset(name)))


def result_of(job: GuestJob, kernel: Kernel, *, first: float = 100.0) -> GuestResult:
    """Return what such a guest might bring back."""
    clock = "CLOCK_MONOTONIC"
    steps = []
    for number, step in enumerate(job.plan.steps):
        probe = Probe(
            workload="null", operations=9, op_ns=[first + number], first_op_ns=900.0, clock=clock
        )
        steps.append(
            StepResult(
                step=step,
                exit_code=0,
                wall_ns=1000 + number,
                stdout=b"" if step.probe else f"{job.configuration}\n".encode(),
                stderr=b"",
                probe=probe if step.probe else None,
                ima_entries=number,
            )
        )
    effect = Effect(
        configuration=job.configuration, check="lsm", expected="x", got="x", outcome="PASSED"
    )
    return GuestResult(
        configuration=job.configuration,
        preset=job.preset.name,
        kernel=kernel,
        machine=job.machine,
        cmdline="console=ttyS0",
        clock=clock_of(job.machine),
        steps=tuple(steps),
        facts={"lsm": "capability"},
        effects=(effect,),
        marks_ns={"init": 5, "settle": 9},
        stages_s={"init": 1.0},
        evidence={"pcrs.txt": b"1\n"},
        dmesg=b"Linux\n",
        console="hello",
        wall_s=2.0,
    )


def records(capture: Path) -> list[Record]:
    return list(journal_records(capture))


def states(capture: Path) -> list[str]:
    return [each.state for each in records(capture) if isinstance(each, Session)]


def test_guests_that_are_there_come_back_as_they_were(tmp_path: Path, kernel: Kernel) -> None:
    jobs = [job("none"), printing("yama"), job("landlock")]
    made = [result_of(each, kernel) for each in jobs]
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
        for result in made[:2]:
            capture.add(result)
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as again:
        assert again.kept == {result.configuration: result for result in made[:2]}
        assert counts(again.kept["none"]) == counts(made[0])
        again.add(made[2])
    assert states(tmp_path / "c") == ["started", "finished", "resumed", "finished"]
    sequences = [each.sequence for each in records(tmp_path / "c") if isinstance(each, Run)]
    assert sequences == list(range(len(sequences)))


def test_guests_that_are_there_do_not_run_again(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [job("none"), job("yama")]
    ran = []

    def run(each: GuestJob, **_: object) -> GuestResult:
        ran.append(each.configuration)
        return result_of(each, kernel)

    monkeypatch.setattr(lab_jobs, "run_job", run)
    kept = {"none": result_of(jobs[0], kernel, first=7.0)}
    told: list[GuestResult | GuestFailure] = []
    outcomes = run_all(jobs, kept=kept, on_result=told.append)
    assert (outcomes[0], ran, told) == (kept["none"], ["yama"], outcomes[1:])


SIDE_BY_SIDE = """
import os
import polars
from excise.errors import HostError
from excise.lab import GuestFailure, jobs, preset_jobs, Machine

def run_job(job, *, on_stage, stop):
    os.write(1, b"begun\\n")  # whole, where print writes a line's end apart
    stop.wait()
    return GuestFailure(configuration=job.configuration, error=HostError("ended"))

jobs.run_job = run_job
planned = preset_jobs(Machine(), presets=["none", "yama", "landlock"])
try:
    jobs.run_all(planned, parallel=2, on_result=lambda each: print("told", each, flush=True))
except KeyboardInterrupt:
    print("heard", flush=True)
"""


def test_ctrl_c_ends_guests_that_run_side_by_side_and_makes_no_failures_of_them() -> None:
    """Polars has SIGINT restart what the main thread waits in."""
    words = [sys.executable, "-c", SIDE_BY_SIDE]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    with ended(process):
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == ["begun\n"] * 2
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=PATIENCE_S)
    assert rest == "heard\n"


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_guest_whose_lines_were_cut_short_runs_again(
    tmp_path: Path, kernel: Kernel, at: float
) -> None:
    jobs = [job("none", only=("null", "read")), job("yama", only=("null", "read"))]
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
        capture.add(result_of(jobs[0], kernel))
        before = (tmp_path / "c" / JOURNAL).stat().st_size
        capture.add(result_of(jobs[1], kernel))
        after = (tmp_path / "c" / JOURNAL).stat().st_size
    os.truncate(tmp_path / "c" / JOURNAL, before + int(at * (after - before)))
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as again:
        assert list(again.kept) == ["none"]
        again.add(result_of(jobs[1], kernel))
    found = records(tmp_path / "c")
    runs = [(each.configuration, each.task, each.run) for each in found if isinstance(each, Run)]
    assert len(runs) == len(set(runs)) == 2 * (1 + len(jobs[0].plan.steps))
    assert any("cut short" in each.reason for each in found if isinstance(each, Loss))
    assert load_capture(tmp_path / "c").runs.height == len(runs)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ([job("none")], "its guests are none, yama; now they are none"),
        ([job("none"), job("landlock")], "none, yama; now they are none, landlock"),
        ([job("none"), job("yama", memory_mib=768)], "yama: machine.memory_mib 512, now 768"),
        ([job("none"), job("yama", cmdline="a=1")], "machine.cmdline none, now a=1"),
        ([job("none"), job("yama", only=("read",))], "yama: tasks null, now read"),
        ([job("none"), printing("yama")], "yama: tasks null, now echo yama"),
    ],
)
def test_other_guests_than_those_of_a_capture_are_told(
    tmp_path: Path, kernel: Kernel, changed: list[GuestJob], said: str
) -> None:
    jobs = [job("none"), job("yama")]
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
        capture.add(result_of(jobs[0], kernel))
    with pytest.raises(OutputError, match=re.escape(said)) as refused:
        LabCapture(tmp_path / "c", jobs=changed, title="t")
    assert "-o" in str(refused.value.hint)
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as again:
        assert list(again.kept) == ["none"]


def test_another_kernel_under_the_same_name_is_told(tmp_path: Path, kernel: Kernel) -> None:
    jobs = [job("none"), job("yama")]
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
        capture.add(result_of(jobs[0], kernel))
    kernel.image.write_bytes(b"a kernel that was built anew")
    with pytest.raises(
        OutputError, match=r"none: kernel 6\.1\.0 \(image \w{16}\), now 6\.1\.0 \(image"
    ):
        LabCapture(tmp_path / "c", jobs=jobs, title="t")


def test_a_capture_in_which_no_guest_ran_takes_other_guests(tmp_path: Path, kernel: Kernel) -> None:
    lost = GuestFailure(configuration="none", error=HostError("it hung"))
    with LabCapture(tmp_path / "c", jobs=[job("none")], title="t") as capture:
        capture.add(lost)
    with LabCapture(tmp_path / "c", jobs=[job("yama")], title="t") as again:
        assert again.kept == {}
        again.add(result_of(job("yama"), kernel))
    assert load_capture(tmp_path / "c").configurations == ["yama"]


def test_what_is_no_capture_of_guests_is_refused(tmp_path: Path) -> None:
    captures.write(tmp_path / "c", [])
    with pytest.raises(OutputError, match="no capture of guests"):
        LabCapture(tmp_path / "c", jobs=[job("none")], title="t")


def test_two_guests_of_one_name_are_not_told_apart_in_a_capture(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two guests are called none"):
        LabCapture(tmp_path / "c", jobs=[job("none"), job("none")], title="t")
    assert not (tmp_path / "c").exists()


def test_raw_files_of_names_that_look_alike_stay_apart(tmp_path: Path, kernel: Kernel) -> None:
    jobs = [dataclasses.replace(job("none"), configuration=name) for name in ("a:b", "a/b")]
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
        for each in jobs:
            capture.add(result_of(each, kernel))
    with LabCapture(tmp_path / "c", jobs=jobs, title="t") as again:
        assert list(again.kept) == ["a:b", "a/b"]


@pytest.mark.lab
def test_an_interrupted_comparison_goes_on_and_prints_what_an_uninterrupted_one_does(
    lab_cache: Path, tmp_path: Path
) -> None:
    words = [PROGRAM, "lab", "compare", "--preset", "none,yama,landlock", "--kernel", "6.1"]
    words += ["--twins", "1", "-w", "null,stat/ext4", "--format", "json"]
    capture = tmp_path / "cut.excise"
    process = subprocess.Popen(
        [*words, "-o", str(capture)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with ended(process):
        journal = capture / JOURNAL
        wait_until(
            lambda: journal.exists() and b'"kind":"run"' in journal.read_bytes(), beside=process
        )
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert f"The same command goes on with {capture}" in said
    assert states(capture) == ["started", "interrupted"]
    kept = (capture / JOURNAL).read_bytes()

    done = subprocess.run([*words, "-o", str(capture)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{capture} has 1 of 4 guests" in done.stderr
    assert (capture / JOURNAL).read_bytes().startswith(kept)
    assert states(capture)[-2:] == ["resumed", "finished"]
    whole = subprocess.run(words, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == json.loads(whole.stdout)
    again = subprocess.run([*words, "-o", str(capture)], capture_output=True, text=True, check=True)
    assert again.stdout == done.stdout
