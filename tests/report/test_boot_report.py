"""Reports of boots and of HMAC sessions, on published data and on a small capture."""

from __future__ import annotations

import json

import pytest

from captures import manifest
from excise.capture.journal import Event, Loss, Run
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.events.load import from_records
from excise.reference import load
from excise.report.boot import build_boots
from excise.report.hmac import build_hmac
from excise.report.json import render_json
from excise.report.model import Table
from excise.report.text import render_text


def _column(table: Table, name: str) -> list[str]:
    place = [column.name for column in table.columns].index(name)
    return [row[place].text for row in table.rows]


def _extends(*more: Loss, **totals_ns: int) -> Dataset:
    records: list[Run | Event | Loss] = [*more]
    for configuration, total in totals_ns.items():
        for number in range(3):
            sequence = len([r for r in records if isinstance(r, Run)])
            records += [
                Run(
                    sequence=sequence,
                    block=number,
                    task="tpm2_pcr_extend",
                    configuration=configuration,
                    run=number,
                    phase="first" if number == 0 else "measured",
                    wall_ns=total,
                ),
                Event(sequence=sequence, layer="kernel", event="transmit", value=0.75 * total),
            ]
            if configuration.startswith("hmac"):
                records.append(Event(sequence=sequence, layer="kernel", event="check", value=0.0))
    return from_records(records, name="mine", manifest=manifest(title="mine"))


def test_published_boots_and_reboots_stand_in_one_table() -> None:
    report = build_boots([load("tpm-hmac-2024"), load("thesis-reboot")])
    boots = report.table("boots")
    assert _column(boots, "configuration") == ["no HMAC", "no HMAC + IDC", "HMAC", "HMAC + IDC"]
    assert _column(boots, "entries") == ["444", "218", "444", "218"]
    assert _column(boots, "userspace") == ["11.6 s", "11.8 s", "65.8 s", "37.0 s"]
    reboot = report.table("reboot")
    assert _column(reboot, "stage")[-1] == "complete"
    assert len(reboot.columns) == 1 + 4 + 6


def test_boots_are_predicted_from_the_others_with_the_error_beside() -> None:
    table = build_boots([load("tpm-hmac-2024")]).table("prediction")
    assert _column(table, "configuration") == ["no HMAC", "no HMAC + IDC", "HMAC", "HMAC + IDC"]
    errors = [row[-1].value for row in table.rows]
    assert errors == pytest.approx([0.101, -0.050, -0.025, 0.020], abs=0.001)


def test_what_is_inside_is_cut_with_a_word_and_printed_in_full_on_demand() -> None:
    run = Run(
        sequence=0, block=0, task="boot", configuration="a", run=0, phase="measured", wall_ns=9
    )
    units = Run(sequence=1, block=0, task="boot-units", configuration="a", run=0, phase="measured")
    stage = Event(sequence=0, layer="stage", event="kernel", value=9.0)
    events = [
        Event(sequence=1, layer="unit", event=f"u{n}.service", value=float(n)) for n in range(1, 13)
    ]
    dataset = from_records([run, stage, units, *events], name="d", manifest=manifest())
    short = build_boots([dataset]).table("unit-0")
    assert len(short.rows) == 10
    assert short.notes == ["2 more are not printed; --all prints them."]
    assert len(build_boots([dataset], limit=0).table("unit-0").rows) == 12


def test_extends_stand_beside_the_published_traces() -> None:
    report = build_hmac(_extends(plain=1_000_000, hmac=2_500_000), beside=load("tpm-hmac-2024"))
    assert report.paragraphs("result") == [
        "A PCR extend takes 1.00 ms with plain; hmac 2.50 ms (×2.50)."
    ]
    table = report.table("extends")
    assert [column.heading for column in table.columns][1:] == [
        *("plain", "hmac"),
        *("no HMAC", "HMAC"),
    ]
    steps = dict(zip(_column(table, "step"), table.rows, strict=True))
    assert [cell.text for cell in steps["unattributed"][1:3]] == ["250 µs", "625 µs"]
    assert steps["· StartAuthSession"][4].text == "84.7 ms"
    data = json.loads(render_json(report))["data"]
    assert data["extends"][1]["total_ns"]["median"] == 2_500_000
    assert "start_auth_session" in render_text(report, width=100)


def test_guests_that_send_the_same_plain_command_show_the_noise() -> None:
    extends = _extends(plain=1_000_000, hmac=2_500_000, disabled=1_870_000)
    (said,) = build_hmac(extends).paragraphs("result")
    assert "plain and disabled send the same plain command" in said
    assert "(×1.87) is how far guests differ without a cause" in said
    assert build_hmac(_extends(hmac=1_000_000, hmac_each=2_000_000)).paragraphs("result") == [
        "A PCR extend takes 1.00 ms with hmac; hmac_each 2.00 ms (×2.00)."
    ]


def test_one_kind_of_extend_and_what_its_trace_lost_are_told() -> None:
    lost = Loss(source="plain: trace", reason="events that were overwritten", count=1234)
    report = build_hmac(_extends(lost, plain=1_000_000))
    assert report.paragraphs("result") == ["A PCR extend takes 1.00 ms with plain."]
    assert report.paragraphs("warning") == ["1,234 lines or events could not be used."]


def test_a_capture_of_neither_is_refused() -> None:
    with pytest.raises(UsageError, match="has neither traced extends nor boots"):
        build_hmac(load("lsmpmon-2008"))
