"""Boots by stage, beside published tables, and predicted from boots that are not their own."""

from __future__ import annotations

import dataclasses

import pytest

from captures import manifest
from excise.capture.journal import Event, Record, Run
from excise.cost.boot import boot_parts, boot_rows
from excise.cost.boot_prediction import predict_held_out
from excise.cost.extend import extend_rows
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.load import from_records
from excise.reference import load
from excise.report.boot import build_boots

S = 1_000_000_000


def _boot(
    sequence: int,
    *,
    configuration: str = "tcb",
    entries: int | None = None,
    shutdown_s: float | None = None,
    **stages_s: float,
) -> list[Record]:
    def run(offset: int, task: str, wall_s: float | None) -> Run:
        return Run(
            sequence=sequence + offset,
            block=0,
            task=task,
            configuration=configuration,
            run=sequence,
            phase="measured",
            wall_ns=None if wall_s is None else round(wall_s * S),
        )

    records: list[Record] = [run(0, "boot", sum(stages_s.values()))]
    records += [
        Event(sequence=sequence, layer="stage", event=name, value=value * S)
        for name, value in stages_s.items()
    ]
    if entries is not None:
        records.append(
            Event(
                sequence=sequence,
                layer="ima",
                event="ima_entries",
                value=float(entries),
                unit="1",
                labels="mode=none",
            )
        )
    if shutdown_s is not None:
        records.append(run(1, "shutdown", shutdown_s))
    return records


def _dataset(*boots: list[Record]) -> Dataset:
    records = [record for boot in boots for record in boot]
    return from_records(records, name="boots", manifest=manifest())


def test_stages_are_medians_over_the_boots_of_a_configuration() -> None:
    dataset = _dataset(
        _boot(0, firmware=1.0, kernel=2.0, userspace=5.0, entries=10, shutdown_s=1.0),
        _boot(10, firmware=1.0, kernel=4.0, userspace=7.0, entries=12, shutdown_s=3.0),
        _boot(20, firmware=1.0, kernel=3.0, userspace=9.0, entries=12, shutdown_s=2.0),
    )
    (row,) = boot_rows(dataset)
    assert (row.n, row.mode) == (3, "none")
    assert {name: each.median / S for name, each in row.stages.items()} == {
        "shutdown": 2.0,
        "firmware": 1.0,
        "kernel": 3.0,
        "userspace": 7.0,
    }
    assert row.total is not None
    assert (row.total.min / S, row.total.median / S, row.total.max / S) == (8.0, 12.0, 13.0)
    assert row.complete_ns == 14.0 * S
    assert row.entries is not None
    assert row.entries.median == 12.0


def test_stages_are_those_of_the_published_table() -> None:
    (row,) = boot_rows(
        _dataset(_boot(0, firmware=1.0, loader=0.5, kernel=2.0, initrd=3.0, userspace=5.0))
    )
    assert {name: value / S for name, value in row.groups.items()} == {
        "boot to disk decryption": 6.5,
        "boot with disk": 5.0,
    }


def test_unlocking_a_disk_is_taken_out_of_the_initrd() -> None:
    units = Run(
        sequence=5, block=0, task="boot-units", configuration="tcb", run=0, phase="measured"
    )
    unlock = Event(sequence=5, layer="unit", event="systemd-cryptsetup@root.service", value=2.0 * S)
    dataset = _dataset(_boot(0, kernel=2.0, initrd=3.0, userspace=5.0), [units, unlock])
    (row,) = boot_rows(dataset)
    assert {name: value / S for name, value in row.groups.items()} == {
        "boot to disk decryption": 3.0,
        "decrypt disk": 2.0,
        "boot with disk": 5.0,
    }


def test_published_reboots_have_their_printed_stages() -> None:
    rows = boot_rows(load("thesis-reboot"))
    (fix,) = [r for r in rows if (r.task, r.configuration) == ("reboot, System 1", "fix")]
    assert {name: value / S for name, value in fix.groups.items()} == {
        "shutdown": 21.0,
        "boot to disk decryption": pytest.approx(14.1),
        "decrypt disk": pytest.approx(4.2),
        "boot with disk": pytest.approx(27.4),
    }
    assert fix.complete_ns == pytest.approx(66.7 * S)
    assert (fix.n, fix.published) == (10, True)


def test_published_boots_have_their_entries() -> None:
    rows = {row.configuration: row for row in boot_rows(load("tpm-hmac-2024"))}
    assert rows["HMAC"].entries is not None
    assert rows["HMAC"].entries.median == 444
    assert rows["HMAC"].total is not None
    assert rows["HMAC"].total.median == 72.119 * S


def test_a_capture_without_boots_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"holds no boot.*excise lab boot"):
        boot_rows(load("lsmpmon-2008"))


def test_units_stand_without_a_total() -> None:
    units = Run(sequence=0, block=0, task="boot-units", configuration="a", run=0, phase="measured")
    events = [
        Event(sequence=0, layer="unit", event=name, value=value)
        for name, value in (("short.service", 1e6), ("long.service", 9e9))
    ]
    parts = boot_parts(_dataset([units, *events]))
    assert [(part.layer, part.name, part.duration.median) for part in parts] == [
        ("unit", "long.service", 9e9),
        ("unit", "short.service", 1e6),
    ]


def test_a_configuration_is_predicted_by_the_others_alone() -> None:
    boots = [
        _boot(
            10 * number, configuration=f"p{entries}", entries=entries, userspace=10 + entries / 100
        )
        for number, entries in enumerate((0, 100, 400))
    ]
    found = {each.configuration: each for each in predict_held_out(_dataset(*boots))}
    assert found["p400"].unit_ns == pytest.approx(S / 100)
    assert found["p400"].predicted_ns == pytest.approx(14 * S)
    assert found["p400"].error_ratio == pytest.approx(0.0, abs=1e-9)
    assert found["p400"].low_ns is None  # two boots fix two numbers


def test_what_is_predicted_by_boots_that_save_time_with_each_entry_has_no_interval() -> None:
    boots = [
        _boot(10 * number, configuration=f"p{entries}", entries=entries, userspace=seconds)
        for number, (entries, seconds) in enumerate(
            ((0, 20.0), (100, 19.0), (200, 18.01), (300, 17.0), (400, 30.0))
        )
    ]
    dataset = _dataset(*boots)
    found = {each.configuration: each for each in predict_held_out(dataset)}
    assert (found["p400"].low_ns, found["p400"].doubtful) == (None, True)
    assert (found["p0"].low_ns is None, found["p0"].doubtful) == (False, False)
    notes = build_boots([dataset]).table("prediction").notes
    assert any(note.startswith("p400: ") and "less than nothing" in note for note in notes)


def test_predictions_name_their_capture_and_what_is_not_predicted() -> None:
    plain, hmac = (
        _dataset(
            *(
                _boot(
                    10 * number, configuration=f"{entries} files", entries=entries, userspace=10.0
                )
                for number, entries in enumerate(counts)
            )
        )
        for counts in ((0, 100, 400), (7,))
    )
    alone = build_boots([plain]).table("prediction")
    assert (alone.caption, alone.columns[0].name) == ("", "configuration")
    both = build_boots([plain, load("tpm-hmac-2024")]).table("prediction")
    assert both.columns[0].heading == "Of"
    assert {row[0].text for row in both.rows} == {plain.name, "reference:tpm-hmac-2024"}
    beside = build_boots([dataclasses.replace(hmac, name="b"), plain]).table("prediction")
    assert beside.caption == f"Boots of {plain.name}"
    assert "do not tell what an entry costs" in beside.notes[1]
    assert "b: 7 files" in beside.notes[1]


def test_nothing_is_predicted_where_the_others_do_not_differ() -> None:
    same = [
        _boot(10 * number, configuration=name, entries=5, userspace=10.0)
        for number, name in enumerate("ab")
    ]
    assert predict_held_out(_dataset(*same)) == []
    assert predict_held_out(load("lsmpmon-2008")) == []


def test_published_extends_have_their_steps_and_what_is_left() -> None:
    rows = {row.configuration: row for row in extend_rows(load("tpm-hmac-2024"))}
    hmac = rows["HMAC"]
    assert hmac.steps_ns["StartAuthSession"] == pytest.approx(84_746_510)
    assert hmac.total.median == pytest.approx(151_171_000)
    # 151171.0 less 126795.1, 2.254, 3.546, 24356.46 and 3.496 us.
    assert hmac.unattributed_ns == pytest.approx(10_144, abs=1)
    assert rows["no HMAC"].unattributed_ns == pytest.approx(53_871, abs=1)
    assert "start_auth_session" not in rows["no HMAC"].steps_ns


def test_the_first_extend_is_kept_apart_and_a_missing_step_counts_as_none() -> None:
    records: list[Record] = []
    for number, (wall, salt) in enumerate(((90, 50), (10, 0), (12, 0), (40, 30))):
        records.append(
            Run(
                sequence=number,
                block=number,
                task="tpm2_pcr_extend",
                configuration="lazy",
                run=number,
                phase="first" if number == 0 else "measured",
                wall_ns=wall,
            )
        )
        if salt:
            records.append(
                Event(sequence=number, layer="kernel", event="start_auth_session", value=salt)
            )
    (row,) = extend_rows(_dataset(records))
    assert (row.n, row.first_ns, row.total.median) == (3, 90.0, 12.0)
    assert row.steps_ns == {"start_auth_session": 0.0}
    assert row.unattributed_ns == 10.0
