"""Files of one boot as one run, and captures that grow by a boot at a time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import pytest

from excise.capture.journal import Event
from excise.cost.boot import boot_rows
from excise.cost.comparison import compare_configurations
from excise.cost.predict_boots import boots_of
from excise.errors import FormatError, OutputError, UsageError
from excise.events.boot_capture import add_boot
from excise.events.load import load_capture
from excise.events.one_boot import merge_boot
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from excise.report.boot import build_boots

TIME = b"Startup finished in 3.300s (kernel) + 7.800s (userspace) = 11.100s \n"
LATER = b"Startup finished in 3.900s (kernel) + 9.800s (userspace) = 13.700s \n"
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


CHAIN = (
    b"The time when unit became active or started is printed after the @ character.\n"
    b"graphical.target @7.800s\n"
    b"\xe2\x94\x94\xe2\x94\x80multi-user.target @7.790s +912ms\n"
)
REACHED = TIME + b"graphical.target reached after 7.799s in userspace.\n"
UNITS = b"5.000s dev-vda.device\n 912ms systemd-logind.service\n 80ms a.service\n"
PLOT = (
    b'[{"name":"dev-vda.device","activated":5,"activating":1,"time":5000400},'
    b'{"name":"systemd-logind.service","activated":9,"activating":2,"time":911600},'
    b'{"name":"a.service","activated":9,"activating":2,"time":4000000}]'
)


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (TIME, LATER, "kernel took 3.300 s in one, and 3.900 s in other"),
        (TIME, TIME.replace(b"7.800", b"7.805"), "userspace took 7.800 s in one, and 7.805 s"),
        (STAMPS, LATER, "kernel took 3.300 s in one, and 3.900 s in other"),
        (LOG, LOG.replace(b"6.12.1", b"6.13.0"), "kernel 6.12.1-test in the one, 6.13.0-test"),
        (LOG, LOG.replace(b"2.3", b"2.4"), "kernel took 2.300 s in one, and 2.400 s in other"),
        (LOG, TIME.replace(b"3.300", b"73.300"), "user space began 73.300 s after the kernel in o"),
        (TIME, LOG.replace(b"3.310000", b"63.310000"), "and 63.310 s after it in other"),
        (CHAIN, REACHED.replace(b"7.799", b"9.1"), "graphical.target took 7.800 s in one, and 9.1"),
        (CHAIN, CHAIN.replace(b"@7.8", b"@9.1"), "graphical.target took 7.800 s in one, and 9.1"),
        (BLAME, BLAME.replace(b"5.0", b"6.0").replace(b"912", b"712"), "dev-vda.device took 5.0"),
        (CHAIN, BLAME.replace(b"912ms systemd-logind.service", b"9s multi-user.target"), "multi-"),
    ],
)
def test_files_that_contradict_each_other_are_refused(one: bytes, other: bytes, what: str) -> None:
    readings = [read(data, options=Options(source="f")) for data in (one, other)]
    for names, files in ((("one", "other"), readings), (("other", "one"), readings[::-1])):
        with pytest.raises(FormatError, match="are not of one boot") as caught:
            merge_boot(files, configuration="tcb", names=names, source="f")
        assert "Import the files of each boot by a call of its own" in str(caught.value)
        assert names[0] in caught.value.reason
    with pytest.raises(FormatError, match=what):
        merge_boot(readings, configuration="tcb", names=("one", "other"))


def test_files_of_one_boot_agree_although_each_rounds_and_units_were_started_again() -> None:
    rounded = b"UserspaceTimestampMonotonic=3300999\nFinishTimestampMonotonic=11100998\n"
    reading = _merged(rounded, UNITS, PLOT, CHAIN, REACHED, LOG)
    assert reading.runs[0].wall_ns == 11_100_998_000
    assert _merged(TIME, LOG, UNITS, UNITS.replace(b"80ms", b"9s")).runs[1].task == "boot-units"
    # The real root's systemd says its version after it has loaded the policies.
    assert _stages(_merged(STAMPS, LOG.replace(b"3.310000", b"9.310000")))["userspace"][1] > 7e9


def test_one_file_with_the_units_of_several_boots_is_refused() -> None:
    with pytest.raises(FormatError, match=r"dev-vda.* more than once.*Give the files of one boot"):
        _merged(TIME, UNITS + UNITS)


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
    (path / "raw" / "1.t").write_bytes(LATER)
    assert add_boot(path, inputs=[("t", LATER)], reading=_merged(LATER)) == 2
    assert (path / "raw" / "1.t").read_bytes() == LATER


def test_a_boot_is_not_added_to_another_capture(tmp_path: Path) -> None:
    from captures import run, write

    path = write(
        tmp_path / "other.excise", [run(0), Event(sequence=0, layer="l", event="e", value=1)]
    )
    with pytest.raises(OutputError, match="no capture of recorded boots"):
        add_boot(path, inputs=[], reading=_merged(TIME))


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((TIME,), (TIME,)),
        ((TIME, LOG), (BLAME, TIME)),
        ((TIME,), (TIME.replace(b" \n", b"\r\n\r\n"),)),
        ((TIME,), (STAMPS,)),
        ((STAMPS, LOG), (TIME,)),
        ((LOG,), (LOG + b"[   90.000000] a line that came later\n",)),
    ],
)
def test_a_boot_is_not_imported_twice(
    tmp_path: Path, first: tuple[bytes, ...], second: tuple[bytes, ...]
) -> None:
    path = tmp_path / "boots.excise"

    def add(files: tuple[bytes, ...], configuration: str = "tcb", *, another: bool = False) -> int:
        readings = [read(data, options=Options(source="f")) for data in files]
        reading = merge_boot(readings, configuration=configuration)
        inputs = [(f"{number}.txt", data) for number, data in enumerate(files)]
        return add_boot(path, inputs=inputs, reading=reading, another=another)

    assert add((LATER,)) == 1
    assert add(first) == 2
    before = (path / "journal.jsonl").read_bytes()
    for configuration in ("tcb", "renamed"):
        with pytest.raises(UsageError, match=r"holds this boot already: .* its boot 2 of 'tcb'"):
            add(second, configuration)
    assert (path / "journal.jsonl").read_bytes() == before
    assert add(second, another=True) == 3


def test_a_boot_that_was_imported_is_not_recorded_but_one_as_long_to_the_millisecond_is(
    tmp_path: Path,
) -> None:
    path = tmp_path / "boots.excise"
    add_boot(path, inputs=[("t", TIME)], reading=_merged(TIME))
    assert add_boot(path, inputs=[("t", TIME)], reading=_merged(TIME), boot_id="a") == 2
    with pytest.raises(UsageError, match="all stages are as long as those of its boot 1"):
        add_boot(path, inputs=[("s", STAMPS)], reading=_merged(STAMPS), boot_id="b")


def test_a_boot_whose_end_nothing_tells_has_no_total_and_is_neither_compared_nor_predicted(
    tmp_path: Path,
) -> None:
    path = tmp_path / "boots.excise"
    kernel = b"Startup finished in 461ms (kernel)\n"
    for number, (files, configuration) in enumerate(
        (((LOG,), "cut"), ((kernel,), "cut"), ((TIME,), "whole"), ((LATER,), "whole"))
    ):
        reading = _merged(*files, entries=number)
        runs = [msgspec.structs.replace(r, configuration=configuration) for r in reading.runs]
        add_boot(path, inputs=[], reading=dataclasses.replace(reading, runs=runs))
    dataset = load_capture(path)
    cut, whole = boot_rows(dataset)
    assert (cut.n, cut.incomplete, cut.total, cut.complete_ns) == (2, 2, None, None)
    assert (whole.n, whole.incomplete) == (2, 0)
    assert [boot.configuration for boot in boots_of(dataset)] == ["whole", "whole"]
    compared = compare_configurations(dataset, baseline="whole").rows
    assert ("boot", "") not in {(row.task, row.event) for row in compared}
    boots = build_boots([dataset]).table("boots")
    assert any("cut: 2 of 2 boots are incomplete" in note for note in boots.notes)
    only = tmp_path / "cut.excise"
    add_boot(only, inputs=[], reading=_merged(LOG, entries=9))
    with pytest.raises(UsageError, match="and when it was ready; 1 are incomplete"):
        boots_of(load_capture(only))
