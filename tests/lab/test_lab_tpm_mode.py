"""TPM mode on real kernels: what IMA wrote leads to the PCRs of the guest's TPM, in every bank."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.errors import UsageError
from excise.evidence.checks import Outcome
from excise.lab import (
    GuestResult,
    Machine,
    Plan,
    Step,
    preset,
    run_guest,
    verify_guest_quote,
    verify_ima,
)
from excise.lab.workloads import command, distinct_files, proof_files

pytestmark = pytest.mark.lab
KERNELS = ("6.1", "6.12")
BANKS = ("sha1", "sha256", "sha384", "sha512")

# One file that is read while somebody writes it, one that is written while somebody reads it.
_VIOLATIONS = """\
exec 5>>/excise/ext4/written; cat /excise/ext4/written >/dev/null; exec 5>&-
echo x >/excise/ext4/read; exec 6</excise/ext4/read; cat <&6 >/dev/null; echo y >>/excise/ext4/read
exec 6<&-
"""


def _boot(name: str, *, kernel: str, words: str = "", plan: Plan | None = None) -> GuestResult:
    machine = Machine(kernel=kernel, mode="tpm", cmdline=words, accelerator="tcg")
    return run_guest(machine, preset=preset(name), plan=plan or distinct_files(20))


def _assert_replayed(result: GuestResult) -> dict[str, object]:
    appraisal = verify_ima(result)
    failed = [check for check in appraisal.checks if check.outcome is Outcome.FAILED]
    assert failed == []
    passed = {check.id for check in appraisal.checks if check.outcome is Outcome.PASSED}
    assert passed >= {f"ima.pcr.{bank}" for bank in BANKS} | {"ima.boot_aggregate"}
    assert appraisal.verdict is Outcome.PASSED
    return appraisal.facts


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("template", ["ima", "ima-ng", "ima-sig", "ima-ngv2"])
def test_pcr_10_of_four_banks_is_reproduced_for_every_template(lab_cache, kernel, template):
    plan = Plan(
        steps=(
            *distinct_files(20).steps,
            Step(task="violations", command=("sh", "-c", _VIOLATIONS)),
        ),
        files=distinct_files(20).files,
    )
    result = _boot("ima-measure", kernel=kernel, words=f"ima_template={template}", plan=plan)
    _assert_replayed(result)
    assert int(result.facts["ima_violations"]) == 2
    assert int(result.facts["ima_count"]) >= 23


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["ima-off", "ima-fix", "ima-enforce"])
def test_pcr_10_is_reproduced_in_every_mode(lab_cache, kernel, name):
    result = _boot(name, kernel=kernel)
    _assert_replayed(result)
    refused = result.facts["attempt.ima_unlabelled"].startswith("refused")
    assert refused == (name == "ima-enforce")
    per_bank = [name for name in result.evidence if name.startswith("binary_runtime_measurements_")]
    assert bool(per_bank) == (kernel == "6.12")


def test_a_list_of_20000_entries_is_reproduced(lab_cache):
    machine = Machine(
        mode="tpm", memory_mib=1024, work_disk_mib=160, results_mib=128, timeout_s=900,
        accelerator="tcg",
    )  # fmt: skip
    result = run_guest(machine, preset=preset("ima-measure"), plan=distinct_files(20_000))
    _assert_replayed(result)
    assert int(result.facts["ima_count"]) > 20_000


def test_a_quote_of_the_guests_tpm_is_sound_and_fits_its_pcrs(lab_cache):
    nonce = b"fresh-1"
    machine = Machine(mode="tpm", kernel="6.1", accelerator="tcg")
    found = preset("ima-measure")
    result = run_guest(machine, preset=found, plan=distinct_files(3), qualifying_data=nonce)
    appraisal = verify_guest_quote(result, qualifying_data=nonce)
    assert appraisal.verdict is Outcome.PASSED
    assert 10 in appraisal.pcrs["sha256"]
    assert verify_guest_quote(result, qualifying_data=b"stale-1").verdict is Outcome.FAILED
    _assert_replayed(result)


def test_a_quote_needs_tpm_mode():
    with pytest.raises(UsageError, match='needs mode = "tpm"'):
        run_guest(Machine(), preset=preset("none"), plan=Plan(steps=()), qualifying_data=b"x")


def test_figures_of_an_emulated_guest_say_so(lab_cache: Path):
    found = preset("none")
    machine = Machine(mode="tpm", kernel="6.1", accelerator="tcg")
    result = run_guest(machine, preset=found, plan=command("true", preset=found))
    assert result.clock == "guest time, emulated (TCG)"
    assert list(result.marks_ns) == ["init", "settle", "measure", "measured", "collect", "save"]
    assert sorted(result.marks_ns.values()) == list(result.marks_ns.values())
    assert proof_files().keys() == {"proof/labelled", "proof/unlabelled"}


@pytest.mark.parametrize(
    ("name", "kernel"), [("none", "6.12"), ("ima-measure", "6.1"), ("ima-enforce", "6.1")]
)
def test_debian_boots_with_systemd_runs_its_commands_and_tells_its_boot_in_parts(
    lab_cache: Path, name: str, kernel: str
):
    machine = Machine(
        mode="tpm", kernel=kernel, rootfs="debian", memory_mib=768, accelerator="tcg", timeout_s=600
    )
    found = preset(name)
    result = run_guest(machine, preset=found, plan=command("systemctl", "--version", preset=found))
    assert result.steps[0].stdout.startswith(b"systemd 252")
    assert result.facts["systemd_state"] == "running"
    assert "Startup finished in" in result.facts["systemd_time"]
    assert "multi-user.target" in result.facts["systemd_critical_chain"]
    assert int(result.facts["ima_count"]) > (0 if name == "none" else 200)
    assert list(result.marks_ns)[:3] == ["init", "switch", "booted"]
    _assert_replayed(result)


def test_debian_is_not_counted():
    with pytest.raises(ValueError, match='count mode needs rootfs = "initramfs"'):
        Machine(rootfs="debian")
