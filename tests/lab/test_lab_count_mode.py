"""Count mode on real kernels: exact repetition, the noise floor, and who costs what."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from excise.errors import UsageError
from excise.lab import (
    GuestResult,
    Machine,
    compare,
    kernel_jobs,
    preset,
    preset_jobs,
    presets,
    run_guest,
)
from excise.lab.comparison import twin_jobs
from excise.lab.count import counts, noise_floor
from excise.lab.workloads import syscalls

pytestmark = pytest.mark.lab
KERNELS = ("6.1", "6.12")
FINE = ("null", "read", "write", "fstat", "stat", "open_close")
COARSE = ("create_0k", "delete_0k", "create_10k", "delete_10k")


def _figures(result: GuestResult) -> list[tuple[str, float | None, list[float]]]:
    return [
        (step.step.task, step.probe.first_op_ns, step.probe.op_ns)
        for step in result.steps
        if step.probe is not None
    ]


@pytest.mark.parametrize("kernel", KERNELS)
def test_three_boots_print_identical_counts_under_load_and_after_a_rebuild(
    counted, lab_cache: Path, kernel: str
):
    idle = counted("none", kernel=kernel)
    plan = syscalls(preset("none"))
    burn = [sys.executable, "-c", "while True: pass"]
    burners = [subprocess.Popen(burn) for _ in range(4)]
    try:
        loaded = run_guest(Machine(kernel=kernel), preset=preset("none"), plan=plan)
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    shutil.rmtree(lab_cache / "images")  # the disk image is built anew; so is every initramfs
    rebuilt = run_guest(Machine(kernel=kernel), preset=preset("none"), plan=plan)
    assert len(_figures(idle)) == 3 * 23
    assert _figures(loaded) == _figures(idle)
    assert _figures(rebuilt) == _figures(idle)
    assert rebuilt.dmesg == idle.dmesg


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_noise_floor_to_irrelevant_changes_is_as_promised(counted, kernel: str):
    [job] = preset_jobs(Machine(kernel=kernel), presets=["none"])
    twins = [
        run_guest(twin.machine, preset=twin.preset, plan=twin.plan, configuration="twin")
        for twin in twin_jobs(job, number=2)
    ]
    floor = noise_floor(counted("none", kernel=kernel), twins)
    fine = {task: ratio for task, ratio in floor.items() if task.partition("/")[0] in FINE}
    coarse = {task: ratio for task, ratio in floor.items() if task.partition("/")[0] in COARSE}
    assert len(fine) == 9
    assert len(coarse) == 8
    assert {task: ratio for task, ratio in fine.items() if ratio > 0.0002} == {}
    assert {task: ratio for task, ratio in coarse.items() if ratio > 0.005} == {}


LSMS = ("yama", "lockdown", "landlock", "apparmor", "selinux-enforcing", "tomoyo-enforcing")


@pytest.mark.parametrize("name", LSMS)
def test_no_lsm_changes_the_null_call(counted, name: str):
    base = counts(counted("none"))["null"].steady
    assert counts(counted(name))["null"].steady == pytest.approx(base, rel=1e-5)


@pytest.mark.parametrize("place", ["tmpfs", "ext4"])
def test_tomoyo_costs_more_than_selinux_and_selinux_more_than_apparmor_on_create(counted, place):
    steady = {
        name: counts(counted(name))[f"create_0k/{place}"].steady
        for name in ("none", "apparmor", "selinux-enforcing", "tomoyo-enforcing")
    }
    assert sorted(steady, key=steady.__getitem__) == list(steady)


@pytest.mark.parametrize("place", ["tmpfs", "ext4"])
def test_landlock_costs_on_open_and_not_on_stat(counted, place):
    none, landlock = counts(counted("none")), counts(counted("landlock"))
    opened = landlock[f"open_close/{place}"].steady / none[f"open_close/{place}"].steady
    looked = landlock[f"stat/{place}"].steady / none[f"stat/{place}"].steady
    assert opened > 1.10
    assert abs(looked - 1) < 0.002


def test_only_apparmor_and_selinux_cost_on_read_and_write(counted):
    base = counts(counted("none"))
    for task in ("read", "write"):
        for name in LSMS:
            ratio = counts(counted(name))[task].steady / base[task].steady
            pays = name in ("apparmor", "selinux-enforcing")
            assert (ratio > 1.10) == pays, (task, name, ratio)
            assert pays or abs(ratio - 1) < 0.001, (task, name, ratio)


def test_ima_costs_on_ext4_more_than_on_tmpfs_which_its_policy_leaves_out(counted):
    base, ima = counts(counted("none")), counts(counted("ima-measure"))
    extra = {
        place: ima[f"open_close/{place}"].steady - base[f"open_close/{place}"].steady
        for place in ("tmpfs", "ext4")
    }
    assert extra["ext4"] > 1.5 * extra["tmpfs"] > 0


@pytest.mark.parametrize("name", sorted(presets()))
def test_under_no_preset_does_a_program_start_with_less(counted, name: str):
    """What a mechanism refuses to a program's start would look like a saving."""
    base = counts(counted("none"))["fork_execve"].steady
    assert counts(counted(name))["fork_execve"].steady > 0.995 * base


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_takes_effect_and_proves_it(counted, name: str, kernel: str):
    result = counted(name, kernel=kernel)
    assert {effect.outcome for effect in result.effects} == {"PASSED"}
    assert len(result.effects) >= 4


def test_two_kernels_are_compared_with_an_a_a_guest(lab_cache: Path):
    machines = [Machine(kernel=kernel) for kernel in KERNELS]
    found = compare(kernel_jobs(machines, only=("null", "open_close")), twins=1)
    assert len(found.twins) == 1
    assert [d.task for d in found.differences["6.12"]] == [
        "null",
        "open_close/tmpfs",
        "open_close/ext4",
    ]
    assert found.failures == ()
    assert found.noise["null"] < 0.0002
    assert any(difference.visible for difference in found.differences["6.12"])


def test_times_are_not_compared_as_counts():
    with pytest.raises(UsageError, match="compared in count mode"):
        preset_jobs(msgspec.structs.replace(Machine(), mode="tpm"), presets=["none"])
