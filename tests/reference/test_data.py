"""Published figures agree with themselves: what a source prints follows from what it prints."""

from __future__ import annotations

import math

import msgspec
import pytest

from excise import reference
from excise.errors import UsageError
from excise.reference.published import UNITS, Published, Row, Table, published

NAMES = reference.names()


def _half(table: Table) -> float:
    """Half of the last printed digit of a table's values."""
    return 0.5 * 10.0**-table.decimals if table.decimals is not None else 0.0


def _percentages() -> list[tuple[str, str, Row, Table]]:
    return [
        (name, row.task or row.event, row, table)
        for name in NAMES
        for table in published(name).table
        for row in table.row
        if row.percent
    ]


@pytest.mark.parametrize(("name", "label", "row", "table"), _percentages())
def test_printed_percentages_follow_from_printed_values(
    name: str, label: str, row: Row, table: Table
) -> None:
    half = _half(table)
    base = row.values[0]
    assert isinstance(base, float)
    assert len(row.percent) == len(row.values) - 1
    for value, percent in zip(row.values[1:], row.percent, strict=True):
        assert isinstance(value, float)
        assert isinstance(percent, float)
        low = ((value - half) / (base + half) - 1.0) * 100.0
        high = ((value + half) / (base - half) - 1.0) * 100.0
        # A figure printed without decimals may have been cut instead of rounded.
        printed_step = 1.0 if percent == int(percent) else 0.1
        assert low <= percent + printed_step, f"{name} {label}: {percent} % is too low for {value}"
        assert high >= percent - printed_step / 2, f"{name} {label}: {percent} % is too high"


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_a_value_for_each_configuration(name: str) -> None:
    for table in published(name).table:
        assert table.configurations
        for row in table.row:
            assert len(row.values) == len(table.configurations), f"{name}: {table.name}"


@pytest.mark.parametrize("name", NAMES)
def test_every_data_set_has_a_source_a_clock_and_its_baseline(name: str) -> None:
    figures = published(name)
    assert figures.source
    assert all(item.title and item.authors and item.where for item in figures.source)
    assert figures.clock.resolution_ns >= 0.0
    dataset = reference.load(name)
    assert dataset.manifest.origin == "reference"
    assert not dataset.manifest.paired
    if figures.baseline:
        assert dataset.manifest.baseline in dataset.configurations
    else:
        assert dataset.manifest.baseline is None


@pytest.mark.parametrize("name", NAMES)
def test_statistics_are_in_order(name: str) -> None:
    rows = reference.load(name).aggregates.to_dicts()
    for row in rows:
        known = [row[k] for k in ("min", "median", "mean", "max") if row[k] is not None]
        low, high = (row["min"], row["max"])
        assert low is None or all(low <= value for value in known), row
        assert high is None or all(value <= high for value in known), row


def _sums(figures: Published, task: str, layer: str) -> dict[str, tuple[float, float, int]]:
    """Total, sum of parts and number of parts of a task, by configuration, in printed units."""
    found: dict[str, tuple[float, float, int]] = {}
    totals = [t for t in figures.table if t.layer == "task"]
    parts = [t for t in figures.table if t.layer == layer]
    for table in totals:
        for row in table.row:
            if (row.task or table.task) != task or (row.statistic or table.statistic) != "mean":
                continue
            for configuration, value in zip(table.configurations, row.values, strict=True):
                values = [
                    r.values[t.configurations.index(configuration)]
                    for t in parts
                    for r in t.row
                    if (r.task or t.task) == task and (r.statistic or t.statistic) == "mean"
                ]
                numbers = [v for v in values if isinstance(v, float)]
                if isinstance(value, float) and len(numbers) == len(values):
                    found[configuration] = (value, math.fsum(numbers), len(numbers))
    return found


@pytest.mark.parametrize(
    ("name", "task", "layer", "decimals", "configurations"),
    [
        ("thesis-reboot", "reboot, System 1", "stage", 1, 3),
        ("thesis-reboot", "reboot, System 3", "stage", 1, 3),
        ("thesis-tasks", "transaction, System 1", "step", 2, 1),
        ("thesis-tasks", "transaction, System 3", "step", 2, 1),
    ],
)
def test_printed_parts_add_up_to_the_printed_total(
    name: str, task: str, layer: str, decimals: int, configurations: int
) -> None:
    sums = _sums(published(name), task, layer)
    assert len(sums) == configurations
    for total, parts, count in sums.values():
        assert count == 4
        assert abs(total - parts) <= 0.5 * 10.0**-decimals * (count + 1) + 1e-9


@pytest.mark.parametrize("name", NAMES)
def test_children_of_a_trace_do_not_exceed_their_parent(name: str) -> None:
    for trace in published(name).trace:
        for parent in {child.parent for child in trace.children}:
            _, _, event = parent.partition("|")
            inside = math.fsum(c.value for c in trace.children if c.parent == parent)
            whole = next(
                (c.value for c in trace.children if parent and c.event == event), trace.total
            )
            assert inside <= whole, f"{trace.configuration}: {parent or 'total'}"
            assert inside >= 0.97 * whole, f"{trace.configuration}: {parent or 'total'}"


def test_boot_stages_of_the_hmac_thread_add_up_to_a_millisecond() -> None:
    boots = [t for t in published("tpm-hmac-2024").trace if t.task == "boot"]
    assert len(boots) == 4
    for boot in boots:
        assert math.fsum(c.value for c in boot.children) == pytest.approx(boot.total, abs=0.0011)


def test_cost_of_an_entry_is_the_run_over_its_entries() -> None:
    figures = published("tpm-hmac-2024")
    runs = {s.configuration: s.values[0] for s in figures.series if s.task == "12313 measurements"}
    (table,) = (t for t in figures.table if t.metric == "duration_per_entry")
    for configuration, value in zip(table.configurations, table.row[0].values, strict=True):
        assert runs[configuration] / 12313 * 1000.0 == pytest.approx(value, rel=1e-3)
    assert runs["HMAC"] / runs["no HMAC"] == pytest.approx(18.9, abs=0.05)
    assert runs["HMAC, lazy flush"] / runs["no HMAC"] == pytest.approx(3.93, abs=0.005)


def test_shares_of_load_time_stay_below_the_whole() -> None:
    (table,) = (t for t in published("fips-today").table if t.metric == "share")
    for task in {row.task for row in table.row}:
        share = math.fsum(float(row.values[0]) for row in table.row if row.task == task)
        assert 95.0 < share < 100.0


def test_fips_2016_has_fourteen_runs_and_the_printed_ratio() -> None:
    runs = reference.load("fips-2016").runs
    assert runs.height == 14
    means = {
        str(configuration): float(group.get_column("wall_ns").mean())  # type: ignore[arg-type]
        for (configuration,), group in runs.group_by("configuration")
    }
    assert means["1ubuntu4.1"] == pytest.approx(692e6)
    assert means["1ubuntu4.1"] / means["1ubuntu2"] == pytest.approx(67.8, abs=0.06)
    assert means["1ubuntu4.1, FIPS_mode_set(1) removed"] == pytest.approx(10.2e6)


def test_the_black_key_costs_what_the_source_prints() -> None:
    (row,) = published("ra-perf-caam").table[0].row
    plain, black, software = (float(value) for value in row.values)
    assert black - plain == pytest.approx(61)
    assert software / plain == pytest.approx(31.6, abs=0.01)


def test_lsmpmon_hooks_times_their_calls_explain_less_than_the_difference() -> None:
    rows = reference.load("reference:lsmpmon-2008").aggregates.to_dicts()

    def cost(task: str, configuration: str) -> float:
        hooks = [
            r
            for r in rows
            if (r["task"], r["configuration"], r["layer"]) == (task, configuration, "hook")
        ]
        calls = {r["event"]: r["count"] for r in hooks if r["metric"] == "per_call"}
        unit = {r["event"]: r["mean"] for r in hooks if r["metric"] == "duration"}
        assert calls.keys() == unit.keys()
        return math.fsum(calls[event] * unit[event] for event in calls)

    def total(task: str, configuration: str) -> float:
        (row,) = (
            r
            for r in rows
            if (r["task"], r["configuration"], r["layer"]) == (task, configuration, "task")
        )
        return float(row["mean"])

    # 2 × 0.152 + 0.124 us of 2.65 us: the hooks explain a third of SELinux's 0.98 us on stat.
    assert cost("stat", "SELinux") == pytest.approx(428.0)
    explained = cost("stat", "SELinux") - cost("stat", "None")
    assert explained / (total("stat", "SELinux") - total("stat", "None")) == pytest.approx(
        0.331, abs=0.001
    )


def test_the_sample_of_the_result_file_is_the_printed_hook_time() -> None:
    own = reference.load("lsmpmon-2008-own-cost").aggregates.to_dicts()
    cycles = {row["event"]: row["mean"] for row in own if row["unit"] == "cycles"}
    table = next(t for t in published("lsmpmon-2008").table if t.layer == "hook")
    none = {row.event: row.values[0] for row in table.row}
    assert cycles["inode_create"] / 3.0 == pytest.approx(float(none["inode_create"]) * 1e3, abs=0.5)
    assert cycles["inode_unlink"] / 3.0 == pytest.approx(float(none["inode_unlink"]) * 1e3, abs=0.5)


def test_what_a_source_calls_not_applicable_is_a_null_with_a_note() -> None:
    rows = reference.load("thesis-tasks").aggregates.to_dicts()
    (row,) = (
        r
        for r in rows
        if (r["task"], r["configuration"], r["layer"]) == ("collect, System 1", "fix", "task")
    )
    assert row["mean"] is None
    assert row["max"] is None
    assert (row["min"], row["first"], row["count"]) == (140e6, 180e6, 10000.0)
    assert "mean: n/a in the source" in row["note"]


def test_computed_figures_are_marked_so() -> None:
    rows = reference.load("ra-perf-caam").aggregates.to_dicts()
    computed = {(r["task"], r["configuration"]) for r in rows if "computed" in r["note"]}
    assert ("sign_ecdsa", "software") in computed
    assert ("sign_verify", "embedded") not in computed


@pytest.mark.parametrize("name", NAMES)
def test_units_become_nanoseconds_and_bytes(name: str) -> None:
    units = set(reference.load(name).aggregates.get_column("unit"))
    assert {str(unit) for unit in units} <= {unit for _, unit in UNITS.values()}


def test_memory_is_in_bytes_of_1024_byte_kilobytes() -> None:
    rows = reference.load("thesis-memory").aggregates.to_dicts()
    (row,) = (
        r
        for r in rows
        if (r["task"], r["configuration"]) == ("embed", "System 1")
        if r["metric"] == "max_rss"
    )
    assert row["mean"] == 809_616 * 1024


def test_a_count_that_is_the_figure_itself_is_its_value() -> None:
    rows = reference.load("thesis-entries").aggregates.to_dicts()
    values = {(r["task"], r["configuration"]): (r["mean"], r["count"]) for r in rows}
    assert values["root login", "System 3"] == (2159.0, None)


def test_an_unknown_name_lists_those_that_exist() -> None:
    with pytest.raises(UsageError, match="no reference data is called 'lmbench'") as caught:
        reference.load("reference:lmbench")
    assert caught.value.hint is not None
    assert "lsmpmon-2008" in caught.value.hint


@pytest.mark.parametrize("name", ["../published", "", "fips-2016.toml"])
def test_a_name_is_never_a_path(name: str) -> None:
    with pytest.raises(UsageError, match="no reference data is called"):
        reference.load(name)


def test_a_value_that_is_neither_number_nor_not_applicable_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid enum value 'none'"):
        msgspec.convert({"values": ["none"]}, Row)


def test_notes_of_single_values_reach_the_manifest() -> None:
    notes = reference.load("tpm-hmac-2024").manifest.notes
    assert any(note.endswith("HMAC: kernel 6.10") for note in notes)


def test_all_data_sets_of_the_seed_systems_are_there() -> None:
    assert set(NAMES) >= {
        *("lsmpmon-2008", "ra-perf-caam", "fips-2016", "fips-today", "tpm-hmac-2024"),
        *("thesis-tasks", "thesis-reboot", "thesis-memory", "thesis-entries"),
        *("tpmscan", "tpmscan-ecdaa"),
    }
