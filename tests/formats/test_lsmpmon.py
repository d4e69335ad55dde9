"""LSMPMON's table: cycles, or nanoseconds where the clock is known."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import FormatError
from excise.formats.model import Options, Reading
from excise.formats.registry import read
from foreign_inputs import LSMPMON


def _read(text: str, *, clock_hz: float | None = None, **options: str) -> Reading:
    return read(
        text.encode(),
        options=Options(source="result", clock_hz=clock_hz, **options),  # type: ignore[arg-type]
        format_name="lsmpmon",
    )


def test_without_a_clock_values_are_cycles() -> None:
    reading = _read(LSMPMON)
    rows = {row.event: row for row in reading.aggregates}
    create = rows["inode_create"]
    assert (create.min, create.max, create.mean, create.count) == (97, 1_818_075, 105, 3_035_605)
    assert (create.layer, create.metric, create.unit) == ("hook", "duration", "cycles")
    assert (create.task, create.configuration) == ("workload", "imported")
    assert rows["inode_unlink"].mean == 114
    assert any("values are cycles" in note for note in reading.notes)
    assert reading.clock.resolution_ns is None


def test_with_the_clock_they_are_the_published_nanoseconds() -> None:
    reading = _read(LSMPMON, clock_hz=3e9, configuration="None", task="stat")
    rows = {row.event: row for row in reading.aggregates}
    assert rows["inode_create"].mean == pytest.approx(35.0)
    assert rows["inode_unlink"].mean == pytest.approx(38.0)
    assert rows["inode_create"].unit == "ns"
    assert rows["inode_create"].count == 3_035_605
    assert rows["inode_create"].configuration == "None"
    assert reading.clock.resolution_ns == pytest.approx(1 / 3)


def test_settings_part_the_file_into_tables() -> None:
    text = (
        "# clock_hz: 3e9\n# configuration: None\n" + LSMPMON + "\n# configuration: SELinux\n"
        "# task = 0K create\n" + LSMPMON
    )
    reading = _read(text)
    keys = {(row.configuration, row.task, row.event) for row in reading.aggregates}
    assert keys == {
        ("None", "workload", "inode_create"),
        ("None", "workload", "inode_unlink"),
        ("SELinux", "0K create", "inode_create"),
        ("SELinux", "0K create", "inode_unlink"),
    }
    assert {row.unit for row in reading.aggregates} == {"ns"}
    assert reading.losses == []


def test_a_hook_that_was_never_called_has_no_times() -> None:
    (row,) = _read("inode_link 4294967295 0 0 0\n").aggregates
    assert (row.count, row.min, row.mean, row.note) == (0.0, None, None, "never called")


def test_values_out_of_order_are_kept_and_noted() -> None:
    (row,) = _read("inode_link 200 100 150 3\n").aggregates
    assert "not in order" in row.note


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("inode_create 97 1818075 105", "not a row"),
        ("inode_create 97 x 105 3", "not a row"),
        ("inode_unlink 1 2 1 1", "a second row for inode_unlink"),
        ("inode_link 1 99999999999999999999 2 1", "does not fit in 64 bits"),
        ("# clock_hz: 0", "clock_hz is no frequency"),
        ("# clock_hz: nan", "clock_hz is no frequency"),
    ],
)
def test_a_line_that_cannot_be_used_is_a_loss(line: str, reason: str) -> None:
    reading = _read(LSMPMON + line + "\n")
    (lost,) = reading.losses
    assert lost.line == 4
    assert reason in lost.reason
    assert len(reading.aggregates) == 2


def test_a_file_without_rows_is_refused() -> None:
    with pytest.raises(FormatError, match="result: line 1: there is no row of hook, min, max"):
        _read("hook min max ave count\n")


rows = st.dictionaries(
    st.from_regex(r"[a-z][a-z_]{1,20}", fullmatch=True),
    st.tuples(*[st.integers(min_value=0, max_value=10**12)] * 4).map(
        lambda v: (*sorted(v[:3]), v[3] + 1)
    ),
    min_size=1,
)


@given(rows)
@settings(deadline=None)
def test_reading_what_was_built_gives_it_back(table: dict[str, tuple[int, ...]]) -> None:
    text = "hook min max ave count\n" + "".join(
        f"{hook}\t{low}\t{high}\t{mean}\t{count}\n"
        for hook, (low, mean, high, count) in table.items()
    )
    found = {r.event: (r.min, r.mean, r.max, r.count) for r in _read(text).aggregates}
    assert found == {hook: tuple(map(float, values)) for hook, values in table.items()}
