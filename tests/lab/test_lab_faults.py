"""What goes wrong in a guest, or to excise itself: one clear message, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended
from excise.capture.journal import Loss, decode
from excise.errors import EffectError, HostError
from excise.lab import (
    GuestFailure,
    GuestJob,
    Machine,
    Plan,
    Step,
    kernels,
    preset,
    run_all,
    run_guest,
)
from excise.lab.cache import remove_stale
from excise.lab.record import LabCapture
from excise.lab.workloads import command
from lab_guests import EMPTY, broken

pytestmark = pytest.mark.lab
MACHINE = Machine(kernel="6.1", timeout_s=120)
SHORT = Machine(kernel="6.1", timeout_s=25)
PANIC = "echo c >/proc/sysrq-trigger\n"
HANG = "while :; do :; done\n"


def _children(pid: int) -> list[int]:
    """Return all living descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(entry.name)] = int(fields[1])
    found, queue = [], [pid]
    while queue:
        parent = queue.pop()
        direct = [child for child, its in parents.items() if its == parent]
        found += direct
        queue += direct
    return found


def _named(pids: list[int]) -> list[str]:
    names = []
    for pid in pids:
        try:
            names.append(Path(f"/proc/{pid}/comm").read_text().strip())
        except OSError:
            continue
    return names


@pytest.fixture
def _clean(lab_cache: Path) -> Iterator[None]:
    """Assert that a test leaves no process and no working folder behind."""
    yield
    assert [
        name for name in _named(_children(os.getpid())) if "qemu" in name or "swtpm" in name
    ] == []
    assert list((lab_cache / "run").iterdir()) == []


@pytest.mark.usefixtures("_clean")
class TestGuestThat:
    def test_panics_gives_the_kernels_reason(self):
        with pytest.raises(HostError, match="kernel panicked: sysrq triggered crash"):
            run_guest(MACHINE, preset=broken(preset("none"), setup=PANIC), plan=EMPTY)

    def test_hangs_is_ended_and_its_stage_named(self):
        with pytest.raises(HostError, match='hung after its stage "init": ended after 25 s'):
            run_guest(SHORT, preset=broken(preset("none"), setup=HANG), plan=EMPTY)

    def test_hangs_before_its_init_is_ended(self, tmp_path: Path):
        shell = {"init": b"#!/bin/busybox sh\nwhile :; do :; done\n"}
        with pytest.raises(HostError, match="hung before its init started"):
            run_guest(SHORT, preset=preset("none"), plan=Plan(steps=(), root_files=shell))

    def test_fills_its_work_disk_says_which_task_failed(self):
        step = Step(task="fill", command=("dd", "if=/dev/zero", "of=/excise/ext4/x", "bs=1M"))
        with pytest.raises(HostError, match=r"fill failed .*No space left on device"):
            run_guest(MACHINE, preset=preset("none"), plan=Plan(steps=(step,)))

    def test_brings_back_too_much_is_ended(self):
        step = Step(
            task="big", command=("dd", "if=/dev/zero", "of=/run/out/big", "bs=1M", "count=3")
        )
        small = Machine(kernel="6.1", results_mib=1)
        with pytest.raises(HostError, match="brought back or printed more than 1 MiB"):
            run_guest(small, preset=preset("none"), plan=Plan(steps=(step,)))

    def test_has_a_mis_spelt_parameter_is_refused(self):
        wrong = broken(preset("lockdown"), words=("lockdwon=integrity",))
        with pytest.raises(EffectError, match=r"unknown kernel command line parameters.*lockdwon"):
            run_guest(MACHINE, preset=wrong, plan=EMPTY)

    def test_has_a_mis_spelt_value_is_refused(self):
        wrong = broken(preset("ima-measure"), words=("ima_policy=tbc",))
        with pytest.raises(EffectError, match="guest ima_count: expected at least 3, got 1"):
            run_guest(MACHINE, preset=wrong, plan=EMPTY)

    def test_needs_an_lsm_the_kernel_is_built_without_is_not_booted(self):
        with pytest.raises(HostError, match=r"built without smack, which the preset none needs"):
            run_guest(MACHINE, preset=broken(preset("none"), lsm=("smack",)), plan=EMPTY)

    def test_has_a_kernel_that_does_not_tell_its_options_fails_by_the_lsm_list(
        self, tmp_path: Path
    ):
        known = kernels.resolve("6.1")
        image = tmp_path / "bzImage"
        shutil.copy(known.image, image)
        machine = Machine(kernel=str(image), modules=str(known.modules), timeout_s=120)
        setup = '[ -d /sys/fs/smackfs ] || refuse "Smack is not in this kernel"\n'
        wanted = broken(preset("none"), lsm=("smack",), setup=setup)
        with pytest.raises(EffectError, match="Smack is not in this kernel"):
            run_guest(machine, preset=wanted, plan=EMPTY)

    def test_fails_beside_another_leaves_the_capture_of_the_others_intact(self, tmp_path: Path):
        def job(name: str, **changes: object) -> GuestJob:
            found = broken(preset("none"), **changes)
            plan = command("echo", name, preset=found)
            return GuestJob(configuration=name, machine=MACHINE, preset=found, plan=plan)

        jobs = [job("before"), job("panics", setup=PANIC), job("after")]
        with LabCapture(tmp_path / "c", jobs=jobs, title="t") as capture:
            outcomes = run_all(jobs, parallel=2, on_result=capture.add)
        assert [isinstance(out, GuestFailure) for out in outcomes] == [False, True, False]
        lines = (tmp_path / "c/journal.jsonl").read_bytes().splitlines()
        records = [decode(line) for line in lines]
        lost = [record for record in records if isinstance(record, Loss)]
        assert [(loss.source, "panicked" in loss.reason) for loss in lost] == [("panics", True)]
        names = {getattr(r, "configuration", None) for r in records} - {None}
        assert names == {"before", "after"}
        assert (tmp_path / "c/raw/after.dmesg").stat().st_size > 1000


_SCRIPT = """\
import dataclasses, sys
from excise.lab import Machine, Plan, preset, run_guest
hang = dataclasses.replace(preset("none"), setup="while :; do :; done\\n")
machine = Machine(kernel="6.1", mode="tpm", accelerator="tcg")
run_guest(machine, preset=hang, plan=Plan(steps=()), on_stage=lambda s: print(s, flush=True))
"""


@contextmanager
def _started() -> Iterator[subprocess.Popen[str]]:
    """Start excise on a guest that hangs, and yield when the guest's init runs.

    It is ended whatever happens: a guest left behind would be in the way of other tests.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", _SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with ended(process, by=signal.SIGINT):
        assert [process.stdout.readline() for _ in range(2)] == ["boot\n", "init\n"]
        yield process


def _wait_gone(pids: list[int]) -> list[str]:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        left = [name for name in _named([p for p in pids if Path(f"/proc/{p}").exists()]) if name]
        if not left:
            return []
        time.sleep(0.05)
    return left


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_qemu_and_swtpm_end_when_excise_is_interrupted_or_killed(lab_cache: Path, sent):
    with _started() as process:
        pids = _children(process.pid)
        assert sorted(_named(pids)) == ["qemu-system-x86", "swtpm"]
        process.send_signal(sent)
        process.wait(timeout=PATIENCE_S)
    assert _wait_gone(pids) == []
    left = list((lab_cache / "run").iterdir())
    assert len(left) == (1 if sent is signal.SIGKILL else 0)
    removed = remove_stale(lab_cache / "run")
    assert removed == [folder.name for folder in left]
    assert list((lab_cache / "run").iterdir()) == []


def test_a_running_guest_is_not_mistaken_for_a_stale_one(lab_cache: Path):
    with _started():
        assert remove_stale(lab_cache / "run") == []
