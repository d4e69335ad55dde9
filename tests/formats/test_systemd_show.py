"""systemctl show: a boot in microseconds, with the load of the security policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import SYSTEMD_SHOW


def _read(text: str | bytes) -> Reading:
    data = text.encode() if isinstance(text, str) else text
    return read(data, options=Options(source="show"), format_name="systemd-show")


def test_the_captured_boot_agrees_with_systemd_analyze(shared_vectors: Path) -> None:
    folder = shared_vectors / "formats/systemd_252"
    shown = _read((folder / "systemd_show_timestamps.txt").read_bytes())
    analyzed = read((folder / "systemd-analyze_time.txt").read_bytes(), options=Options())
    (run,) = shown.runs
    assert run.wall_ns == 23_156_487_000
    assert analyzed.runs[0].wall_ns == run.wall_ns // 10**6 * 10**6
    stages = {e.event: e.value for e in shown.events if e.layer == "stage"}
    assert stages == {"kernel": 7_395_577e3, "userspace": 15_760_910e3}
    for event in analyzed.events:
        if event.layer == "stage":
            assert stages[event.event] // 1e6 * 1e6 == event.value
    parts = {e.event: (e.value, e.parent) for e in shown.events if e.layer == "manager"}
    assert parts == {
        "security": (41_389e3, "stage|userspace"),
        "generators": (1_826_081e3, "stage|userspace"),
        "units_load": (100_203e3, "stage|userspace"),
    }
    assert shown.losses == []


def test_firmware_and_initrd_are_stages_and_stages_add_up() -> None:
    reading = _read(SYSTEMD_SHOW)
    stages = {e.event: e.value for e in reading.events if e.layer == "stage"}
    assert stages == {
        "firmware": 3_210e6,
        "loader": 1_404e6,
        "kernel": 7_395e6,
        "initrd": 2_500e6,
        "userspace": 15_760e6,
    }
    assert reading.runs[0].wall_ns == sum(stages.values())
    security = [(e.value, e.parent) for e in reading.events if e.event == "security"]
    assert security == [(41_389e3, "stage|userspace"), (10e6, "stage|initrd")]


def test_a_property_with_another_value_begins_another_boot() -> None:
    second = SYSTEMD_SHOW.replace("9895000", "9995000").replace("25655000", "25755000")
    reading = _read(SYSTEMD_SHOW + second.replace("4614000", "4615000"))
    assert [run.wall_ns for run in reading.runs] == [30_269_000_000, 30_370_000_000]


@pytest.mark.parametrize(
    "text",
    [
        "UserspaceTimestampMonotonic=7395577\nFinishTimestampMonotonic=0\n",
        "UserspaceTimestampMonotonic=18446744073709551615\nFinishTimestampMonotonic=5\n",
        "ActiveState=active\n",
    ],
)
def test_a_boot_that_is_not_finished_is_refused(text: str) -> None:
    with pytest.raises(FormatError, match="show: line 1: field FinishTimestampMonotonic: the time"):
        _read(text)


def test_a_stamp_that_does_not_fit_is_a_loss() -> None:
    reading = _read(SYSTEMD_SHOW + "UnitsLoadTimestampMonotonic=18446744073709551614\n")
    (lost,) = reading.losses
    assert (lost.line, lost.reason) == (15, "UnitsLoad does not fit in 64 bits")
