"""Files of one boot as one run, and captures that grow by a boot at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.capture.journal import Event
from excise.cost.boot import boot_rows
from excise.errors import FormatError, OutputError, UsageError
from excise.events.boot_capture import add_boot
from excise.events.load import load_capture
from excise.events.one_boot import merge_boot
from excise.formats.model import Options, Reading
from excise.formats.registry import read

TIME = b"Startup finished in 3.300s (kernel) + 7.800s (userspace) = 11.100s \n"
BLAME = b"5.000s dev-vda.device\n 912ms systemd-logind.service\n"
STAMPS = b"UserspaceTimestampMonotonic=3300004\nFinishTimestampMonotonic=11100007\n"
LOG = (
    b"[    0.000000] Linux version 6.12.1-test (b@h) #1\n"
    b"[    2.300000] Run /init as init process\n"
    b"[    3.310000] systemd[1]: systemd 252.39 running in system mode (+PAM)\n"
)


def _merged(*files: bytes, **settings: object) -> Reading:
    readings = [read(data, options=Options(source="f")) for data in files]
    return merge_boot(readings, configuration="tcb", source="f", **settings)  # type: ignore[arg-type]


def _stages(reading: Reading) -> dict[str, tuple[int | None, float]]:
    return {e.event: (e.start_ns, e.value) for e in reading.events if e.layer == "stage"}


@pytest.mark.parametrize("files", [(TIME, STAMPS, LOG), (LOG, TIME, STAMPS)])
def test_the_most_exact_source_of_each_stage_wins(files: tuple[bytes, ...]) -> None:
    reading = _merged(*files)
    assert _stages(reading) == {
        "kernel": (0, 2_300_000_000.0),
        "initrd": (2_300_000_000, 1_000_004_000.0),
        "userspace": (3_300_004_000, 7_800_003_000.0),
    }
    assert reading.runs[0].wall_ns == 11_100_007_000
    assert [run.task for run in reading.runs] == ["boot", "boot-kernel"]


def test_a_log_whose_kernel_ends_after_systemds_makes_no_initrd_of_negative_length() -> None:
    stages = _stages(_merged(TIME, LOG.replace(b"2.300000", b"3.305000")))
    assert stages["kernel"] == (0, 3_300_000_000.0)
    assert all(length >= 0 for _, length in stages.values())


def test_entries_and_mode_are_an_event_of_the_boot() -> None:
    reading = _merged(TIME, BLAME, entries=444, mode="hmac")
    (entries,) = [event for event in reading.events if event.event == "ima_entries"]
    assert (entries.value, entries.unit, entries.labels) == (444.0, "1", "mode=hmac")
    units = [event for event in reading.events if event.layer == "unit"]
    assert {event.sequence for event in units} == {1}
    assert reading.runs[1].task == "boot-units"


def test_several_boots_in_one_file_are_refused() -> None:
    with pytest.raises(FormatError, match="systemd-analyze holds several boots"):
        _merged(TIME + TIME)


def test_files_that_tell_no_stage_are_refused() -> None:
    with pytest.raises(FormatError, match="no file tells the stages"):
        _merged(BLAME)


def test_a_file_of_something_else_is_refused() -> None:
    with pytest.raises(FormatError, match="time-shell tells nothing of a boot"):
        _merged(TIME, b"\nreal\t0m1.000s\nuser\t0m0.500s\nsys\t0m0.100s\n")


def test_a_capture_grows_by_a_boot_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "boots.excise"
    for number, (boot_id, entries) in enumerate((("a", 10), ("b", 30)), start=1):
        reading = _merged(TIME, LOG, entries=entries, mode="none")
        added = add_boot(
            path, inputs=[("time", TIME), ("dmesg", LOG)], reading=reading, boot_id=boot_id
        )
        assert added == number
    (row,) = boot_rows(load_capture(path))
    assert row.n == 2
    assert row.entries is not None
    assert (row.entries.min, row.entries.max) == (10.0, 30.0)
    assert sorted(p.name for p in (path / "raw").iterdir()) == [
        *("0.dmesg", "0.time"),
        *("1.dmesg", "1.time"),
    ]


def test_the_same_boot_is_not_recorded_twice(tmp_path: Path) -> None:
    path = tmp_path / "boots.excise"
    add_boot(path, inputs=[], reading=_merged(TIME), boot_id="a")
    with pytest.raises(UsageError, match="holds this boot already"):
        add_boot(path, inputs=[], reading=_merged(TIME), boot_id="a")


def test_files_of_one_name_are_kept_and_a_killed_recording_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "boots.excise"
    add_boot(path, inputs=[("a/t", TIME), ("b/t", LOG)], reading=_merged(TIME, LOG))
    held = {file.name: file.read_bytes() for file in (path / "raw").iterdir()}
    assert held == {"0.t": TIME, "0.1.t": LOG}
    (path / "raw" / "1.t").write_bytes(b"of a recording that was killed")
    assert add_boot(path, inputs=[("t", TIME)], reading=_merged(TIME)) == 2
    assert (path / "raw" / "1.t").read_bytes() == TIME


def test_a_boot_is_not_added_to_another_capture(tmp_path: Path) -> None:
    from captures import run, write

    path = write(
        tmp_path / "other.excise", [run(0), Event(sequence=0, layer="l", event="e", value=1)]
    )
    with pytest.raises(OutputError, match="no capture of recorded boots"):
        add_boot(path, inputs=[], reading=_merged(TIME))
