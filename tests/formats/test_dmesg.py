"""The kernel's log: stages, initcalls, quiet times, and what is missing from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from boot_inputs import VERSION, dmesg_json, initcall_log, kernel_log, kmsg, stamped
from excise.capture.journal import Event, Run
from excise.errors import FormatError
from excise.formats import dmesg
from excise.formats.model import Options, Reading


def _read(text: str | bytes, **options: str) -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return dmesg.read(data, Options(source="log", **options))  # type: ignore[arg-type]


def _run(reading: Reading, task: str) -> Run:
    (run,) = [run for run in reading.runs if run.task == task]
    return run


def _events(reading: Reading, layer: str) -> dict[str, Event]:
    return {event.event: event for event in reading.events if event.layer == layer}


def _plus_systemd(messages: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return [
        *messages,
        (3.0, "systemd[1]: systemd 252.39-1 running in system mode (+PAM -AUDIT)"),
    ]


def test_the_captured_log_has_the_kernels_stage_and_the_initrds(shared_vectors: Path) -> None:
    reading = _read((shared_vectors / "formats/systemd_252/dmesg_systemd.txt").read_bytes())
    stages = _events(reading, "stage")
    assert stages["kernel"].value == 7_319_581_000
    assert stages["initrd"].value == 7_642_669_000 - 7_319_581_000
    assert _run(reading, "boot-kernel").wall_ns == 7_319_581_000
    assert _run(reading, "boot").wall_ns is None
    quiet = _events(reading, "quiet")
    assert quiet["clocksource: Switched to clocksource tsc"].value == pytest.approx(
        2.96e9, rel=0.01
    )
    assert len(quiet) <= 50
    assert reading.losses == []


def test_the_captured_initcalls_are_all_read(shared_vectors: Path) -> None:
    path = shared_vectors / "formats/ftrace_6.1/dmesg_initcall_debug.txt"
    text = path.read_bytes()
    reading = _read(text)
    returned = text.count(b"] initcall ")
    assert len([e for e in reading.events if e.layer == "initcall"]) == returned == 670
    probes = [event for event in reading.events if event.layer == "device-probe"]
    assert len(probes) == text.count(b"] probe of ")
    kernel = _run(reading, "boot-kernel")
    assert kernel.wall_ns is not None
    total = sum(event.value for event in reading.events if event.layer == "initcall")
    assert 0.5 * kernel.wall_ns < total < kernel.wall_ns
    assert {fact.name: fact.value for fact in reading.facts}["kernel.release"] == "6.1.0-50-amd64"


def test_initcalls_explain_the_kernels_start() -> None:
    reading = _read(stamped(initcall_log()))
    calls = _events(reading, "initcall")
    assert {name: event.value for name, event in calls.items()} == {
        "con_init": 0.0,
        "acpi_init": 200e6,
        "pcspkr_init": 10e6,
        "lost_start": 5e6,
    }
    assert calls["acpi_init"].start_ns == 100_000_000
    assert calls["lost_start"].start_ns is None
    assert calls["pcspkr_init"].labels == "returned=-19"
    probe = _events(reading, "device-probe")["PNP0103:00"]
    assert (probe.parent, probe.value, probe.start_ns) == ("initcall|acpi_init", 50e6, 200_000_000)
    kernel = _run(reading, "boot-kernel")
    assert kernel.wall_ns == 500_000_000
    assert {event.sequence for event in calls.values()} == {kernel.sequence}


def test_a_modules_initcall_is_no_part_of_the_kernels_start() -> None:
    reading = _read(stamped(initcall_log()))
    module = _events(reading, "module-init")["crc32c_mod_init"]
    assert module.sequence == _run(reading, "boot").sequence
    assert module.labels == "module=crc32c_generic"


def test_an_initcall_that_did_not_return_is_declared() -> None:
    reading = _read(stamped([*initcall_log(), (1.0, "calling  stuck+0x0/0x8 @ 1")]))
    assert [loss.reason for loss in reading.losses] == ["the initcall stuck did not return"]


@pytest.mark.parametrize("spell", [stamped, kmsg, dmesg_json])
def test_every_way_to_print_the_log_reads_alike(spell: object) -> None:
    data = spell(_plus_systemd(kernel_log()))  # type: ignore[operator]
    assert dmesg.detect(data.encode()) == 0.95
    reading = _read(data)
    stages = {name: event.value for name, event in _events(reading, "stage").items()}
    assert stages == {"kernel": 2.5e9, "initrd": 0.5e9}


@pytest.mark.parametrize(
    "prefix",
    ["<6>", "kern  :info  : ", ""],
)
def test_levels_callers_hosts_and_deltas_before_the_text_are_taken_off(prefix: str) -> None:
    text = "".join(
        f"{prefix}[{at_s:12.6f}]{caller} host kernel: {line}\n"
        for caller, (at_s, line) in zip(["[    T0]", "[    C1]"] * 9, kernel_log(), strict=False)
    )
    assert _events(_read(text), "stage")["kernel"].value == 2.5e9
    deltas = "".join(f"[{at_s:12.6f} <    0.000010>] {line}\n" for at_s, line in kernel_log())
    assert _events(_read(deltas), "stage")["kernel"].value == 2.5e9


def test_without_an_initrd_systemd_begins_where_the_kernel_ends() -> None:
    reading = _read(stamped(_plus_systemd(kernel_log(init="/sbin/init"))))
    assert list(_events(reading, "stage")) == ["kernel"]


def test_an_initrd_of_systemd_lasts_until_the_real_roots() -> None:
    messages = [
        *_plus_systemd(kernel_log()),
        (3.1, "systemd[1]: Running in initrd."),
        (6.5, "systemd[1]: systemd 257.1 running in system mode (+PAM)"),
    ]
    assert _events(_read(stamped(messages)), "stage")["initrd"].value == 4.0e9


def test_systemds_last_line_gives_the_whole_boot() -> None:
    line = "Startup finished in 2.500s (kernel) + 1.000s (initrd) + 5.500s (userspace) = 9s."
    reading = _read(stamped([*kernel_log(), (9.0, f"systemd[1]: {line}")]))
    assert _run(reading, "boot").wall_ns == 9_000_000_000
    assert _events(reading, "stage")["userspace"].value == 5.5e9
    assert _events(reading, "stage")["userspace"].start_ns == 3_500_000_000


def test_quiet_times_are_named_by_the_line_before_them() -> None:
    quiet = _events(_read(stamped(kernel_log())), "quiet")
    assert quiet["ACPI: Core revision 20240827"].value == 1.5e9
    assert quiet["evm: HMAC attrs: 0x1"].start_ns == 1_900_000_000


def test_a_second_first_line_begins_another_boot() -> None:
    reading = _read(stamped([*kernel_log(init_s=2.5), *kernel_log(init_s=3.5)]))
    totals = [run.wall_ns for run in reading.runs if run.task == "boot-kernel"]
    assert totals == [2_500_000_000, 3_500_000_000]


def test_a_cut_log_and_dropped_messages_are_declared() -> None:
    text = stamped([*kernel_log()[3:-1], (2.4, "** 17 printk messages dropped **")])
    text += stamped(kernel_log()[-1:])
    reading = _read(text)
    assert [(loss.line, loss.count) for loss in reading.losses] == [(1, 1), (4, 17)]
    assert "beginning of the log is missing" in reading.losses[0].reason


def test_times_of_day_are_refused_with_what_to_do() -> None:
    text = f"[Mon Nov 30 13:51:40 2026] {VERSION}\n".encode()
    assert dmesg.detect(text) == 0.95
    with pytest.raises(FormatError, match="Print the log without -T"):
        _read(text)


def test_a_log_that_tells_nothing_of_a_boot_is_refused() -> None:
    with pytest.raises(FormatError, match="no line tells when init was started"):
        _read(stamped([(100.0, "usb 1-1: new device"), (101.0, "usb 1-1: gone")]))
