"""Boots of guests as stages, their policies, and what their kernels send to the TPM."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from excise.capture.journal import Event, Loss, Run
from excise.errors import UsageError
from excise.lab.boot_policies import boot_policy
from excise.lab.boot_stages import boot_of_guest, boot_records, kernel_mode
from excise.lab.boots import BootArm, boot_arms, boot_machine, in_rounds
from excise.lab.hmac import extend_records
from excise.lab.jobs import GuestJob
from excise.lab.plan import Plan
from excise.lab.tpm_trace import TraceText
from excise.lab.tpm_traffic import commands_of, counting
from test_lab_count import _guest

STAMPS = """\
FirmwareTimestampMonotonic=0
LoaderTimestampMonotonic=0
KernelTimestampMonotonic=0
InitRDTimestampMonotonic=0
UserspaceTimestampMonotonic=3300000
FinishTimestampMonotonic=11100000
"""
# As a 6.12 kernel prints it; code and size are in the TPM's byte order.
HISTOGRAM = """\
# event histogram
#
# trigger info: hist:keys=code,size:vals=hitcount:sort=hitcount:size=1024 [active]
#

{ code: 2063663104, size:  201326592 } hitcount:          2
{ code: 2181103616, size: 3405774848 } hitcount:        298

Totals:
    Hits: 300
    Entries: 2
    Dropped: 0
"""


def _booted(**changes: Any) -> Any:
    import dataclasses

    facts = {"systemd_timestamps": STAMPS, "ima_count_booted": "292", "tpm_commands": HISTOGRAM}
    given = {
        "facts": facts,
        "marks_ns": {"init": 2_300_000_000, "switch": 2_400_000_000, "booted": 11_200_000_000},
        "stages_s": {"init": 3.51, "switch": 3.605, "booted": 12.42, "saved": 22.0},
        "wall_s": 24.5,
        "clock": "guest time, emulated (TCG)",
    }
    return dataclasses.replace(_guest({}), **{**given, **changes})


def test_stages_come_from_outside_and_from_inside() -> None:
    boot = boot_of_guest(_booted())
    assert boot.stages_ns == {
        "firmware": 1_205_000_000,  # the nearest of the three differences
        "kernel": 2_300_000_000,
        "initrd": 1_000_000_000,
        "userspace": 7_800_000_000,
    }
    assert boot.shutdown_ns == 2_500_000_000
    assert boot.total_ns == 12_305_000_000
    assert boot.entries == 292


def test_a_guests_clock_that_ran_ahead_of_the_hosts_is_a_loss_and_no_stage() -> None:
    boot = boot_of_guest(
        _booted(stages_s={"init": 1.0, "switch": 1.1, "booted": 9.0, "saved": 9.5})
    )
    assert "firmware" not in boot.stages_ns
    (loss,) = [each for each in boot.losses if "firmware" in each.reason]
    assert "ran ahead" in loss.reason


def test_a_guest_without_systemd_has_no_user_space() -> None:
    boot = boot_of_guest(
        _booted(
            facts={"ima_count": "12"},
            marks_ns={"init": 2_300_000_000, "settle": 2_900_000_000},
        )
    )
    assert list(boot.stages_ns) == ["firmware", "kernel", "initrd"]
    assert boot.stages_ns["initrd"] == 600_000_000
    assert boot.entries == 12


def test_a_boot_is_a_run_with_its_entries_and_the_shutdown_another() -> None:
    boot = boot_of_guest(_booted())
    records = boot_records(boot, configuration="tcb", first_sequence=7, run=2, clock="guest")
    runs = [record for record in records if isinstance(record, Run)]
    assert [(r.task, r.sequence, r.run, r.wall_ns) for r in runs] == [
        ("boot", 7, 2, 12_305_000_000),
        ("shutdown", 8, 2, 2_500_000_000),
    ]
    events = [record for record in records if isinstance(record, Event) and record.sequence == 7]
    stages = [event for event in events if event.layer == "stage"]
    assert [event.start_ns for event in stages] == [0, 1_205_000_000, 3_505_000_000, 4_505_000_000]
    assert sum(event.value for event in stages) == runs[0].wall_ns
    (entries,) = [event for event in events if event.event == "ima_entries"]
    assert (entries.value, entries.unit) == (292.0, "1")
    sent = {event.event: (event.value, event.unit) for event in events if event.layer == "tpm"}
    assert sent["PCR_Extend"] == (298.0, "1")
    assert sent["PCR_Extend sent"] == (298.0 * 203, "B")


def test_initcalls_of_the_same_boot_are_a_run_with_a_total() -> None:
    log = (
        "[    0.000000] Linux version 6.12.1-test (b@h) #1\n"
        "[    0.100000] calling  init_ima+0x0/0x4a0 @ 1\n"
        "[    0.190000] initcall init_ima+0x0/0x4a0 returned 0 after 87000 usecs\n"
        "[    0.500000] Run /init as init process\n"
    )
    boot = boot_of_guest(_booted(dmesg=log.encode()))
    records = boot_records(boot, configuration="tcb", first_sequence=0, run=0)
    (kernel,) = [r for r in records if isinstance(r, Run) and r.task == "boot-kernel"]
    assert kernel.wall_ns == 500_000_000
    (call,) = [r for r in records if isinstance(r, Event) and r.layer == "initcall"]
    assert (call.sequence, call.event, call.value) == (kernel.sequence, "init_ima", 87e6)
    # The stages of the boot are the lab's own marks; the log's are not added to them.
    assert boot.stages_ns["kernel"] == 2_300_000_000


def test_time_stamps_that_cannot_be_read_are_declared() -> None:
    facts = {"systemd_timestamps": "UserspaceTimestampMonotonic=5\n"}
    boot = boot_of_guest(_booted(facts=facts))
    assert [loss.reason for loss in boot.losses] == [
        "the time stamps of a finished boot are missing"
    ]
    assert "userspace" not in boot.stages_ns


def test_commands_are_counted_by_name_in_the_tpms_byte_order() -> None:
    commands, dropped = commands_of(HISTOGRAM.replace("Dropped: 0", "Dropped: 4"))
    assert [(each.command, each.count, each.sent_bytes) for each in commands] == [
        ("PCR_Extend", 298, 298 * 203),
        ("GetRandom", 2, 2 * 12),
    ]
    assert dropped == 4
    assert commands_of("") == ([], 0)


LAZY = {"tpm_parameters": "disable_pcr_integrity\nsuspend_pcr\n"}


@pytest.mark.parametrize(
    ("facts", "config", "mode"),
    [
        (LAZY, {"CONFIG_TCG_TPM2_HMAC": "y"}, "lazy"),
        (LAZY | {"tpm_null_name": "000b"}, {}, "lazy"),
        (LAZY | {"tpm_disable_pcr_integrity": "N\n"}, {"CONFIG_TCG_TPM2_HMAC": "y"}, "lazy"),
        (LAZY | {"tpm_disable_pcr_integrity": "Y\n"}, {"CONFIG_TCG_TPM2_HMAC": "y"}, "none"),
        ({"tpm_parameters": "suspend_pcr\n"}, {"CONFIG_TCG_TPM2_HMAC": "y"}, "hmac"),
        ({}, {"CONFIG_TCG_TPM2_HMAC": "y"}, None),
        (LAZY, {"CONFIG_TCG_TPM": "y"}, "none"),
        (LAZY, {}, None),
    ],
)
def test_how_extends_are_protected_follows_from_what_the_kernel_shows(
    facts: dict[str, str], config: dict[str, str], mode: str | None
) -> None:
    assert kernel_mode(facts, config=config) == mode


def test_what_a_trace_of_extends_lost_is_declared() -> None:
    text = b"""\
# tracer: function_graph
#
# CPU  DURATION                  FUNCTION CALLS
# |     |   |                     |   |   |   |
 0)               |  tpm2_pcr_extend() {
 0) ! 300.000 us  |    tpm_transmit_cmd();
 0) ! 310.000 us  |  }
CPU:0 [LOST 5 EVENTS]
 0)               |  tpm2_pcr_extend() {
 0) ! 200.000 us  |    tpm_transmit_cmd();
 0) ! 210.000 us  |  }
"""
    trace = TraceText(text=text, set_up="", lost=12)
    records = list(extend_records(trace, configuration="HMAC", first_sequence=7))
    runs = [record for record in records if isinstance(record, Run)]
    assert [(run.sequence, run.phase, run.wall_ns) for run in runs] == [
        (7, "first", 310_000),
        (8, "measured", 210_000),
    ]
    losses = [record for record in records if isinstance(record, Loss)]
    assert sorted(loss.count for loss in losses) == [5, 7]
    assert all(loss.source == "HMAC: trace" for loss in losses)


def test_policies_prove_themselves_by_their_entries() -> None:
    few = boot_policy("few")
    assert few.files()["lab/ima-policy"].endswith(b"measure func=BPRM_CHECK uid=0\n")
    assert "/sys/kernel/security/ima/policy" in few.setup
    assert [(e.fact, e.rule, e.expected) for e in boot_policy("off").expectations] == [
        ("ima_count", "equals", "1")
    ]


def test_a_policy_of_ones_own_is_a_file_with_rules(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    path.write_text("measure func=MODULE_CHECK\n")
    assert boot_policy(str(path)).name == "ima-policy-mine"
    path.write_text("# nothing\n\n")
    with pytest.raises(UsageError, match="holds no rule of IMA"):
        boot_policy(str(path))
    with pytest.raises(UsageError, match="no IMA policy many"):
        boot_policy("many")


def test_a_policy_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none: cannot be read \(No such file"):
        boot_policy(str(tmp_path / "none"))


def test_configurations_are_named_by_what_differs() -> None:
    arms = boot_arms(kernels=["6.12"], policies=["off", "tcb"])
    assert [arm.configuration for arm in arms] == ["off", "tcb"]
    arms = boot_arms(kernels=["6.1", "own"], policies=["tcb"])
    assert [arm.configuration for arm in arms] == ["6.1 tcb", "own tcb"]
    with pytest.raises(UsageError, match="2 configurations are called 'tcb'"):
        boot_arms(kernels=["6.12"], policies=["tcb", "tcb"])


def test_boots_are_in_rounds_and_those_made_before_are_left_out() -> None:
    jobs = [
        GuestJob(
            configuration=name,
            machine=boot_machine(),
            preset=boot_policy("off"),
            plan=Plan(steps=()),
        )
        for name in "abc"
    ]
    planned = in_rounds(jobs, boots=3, done={"a": 1, "c": 2})
    assert "".join(job.configuration for job in planned) == "bbacab"
    assert in_rounds(jobs, boots=1, done=dict.fromkeys("abc", 1)) == []


def test_the_proof_of_a_kernel_follows_from_its_options() -> None:
    hmac, plain = {"CONFIG_TCG_TPM2_HMAC": "y"}, {"CONFIG_TCG_TPM": "y"}
    arm = BootArm(configuration="x", kernel="own")
    off = BootArm(configuration="x", kernel="own", words=("tpm.disable_pcr_integrity=1",))
    assert [e.rule for e in arm.expectations(plain)] == ["absent"]
    assert arm.expectations(hmac)[1].expected == "^(0|N)$"
    assert off.expectations(hmac)[1].expected == "^(1|Y)$"
    assert arm.expectations({}) == []


def test_counting_is_set_up_before_the_presets_own_work() -> None:
    found = counting(boot_policy("few"))
    assert found.setup.index("kprobe_events") < found.setup.index("ima/policy")


def test_a_debian_root_gets_the_memory_it_needs() -> None:
    assert boot_machine().memory_mib == 768
    assert boot_machine(root="initramfs").memory_mib == 512
    with pytest.raises(UsageError, match="root floppy: is initramfs or debian"):
        boot_machine(root="floppy")
