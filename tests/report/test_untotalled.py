"""Events of runs without a total are shown, and not summed."""

from __future__ import annotations

from captures import manifest, run
from excise.capture.journal import Event
from excise.events.load import from_records
from excise.report.build import build_report, build_show
from excise.report.untotalled import untotalled_sections


def _events(*values: float) -> list[Event]:
    return [
        Event(sequence=0, layer="unit", event=f"u{n}.service", value=value)
        for n, value in enumerate(values)
    ]


def test_units_without_a_total_are_shown_the_longest_first() -> None:
    records = [run(0, task="boot-units", wall_ns=None), *_events(1e9, 3e9, 2e9)]
    dataset = from_records(records, name="d", manifest=manifest())
    for report in (build_show(dataset), build_report(dataset)):
        (table,) = [each for each in report.tables() if each.name.startswith("events-boot-units")]
        assert [row[0].text for row in table.rows] == [
            *("unit|u1.service", "unit|u2.service"),
            "unit|u0.service",
        ]
        assert [row[1].text for row in table.rows] == ["3.00 s", "2.00 s", "1.00 s"]
        assert report.paragraphs("warning") == []


def test_events_of_runs_with_a_total_are_left_to_attribution() -> None:
    dataset = from_records([run(0), *_events(1.0)], name="d", manifest=manifest())
    assert untotalled_sections(dataset) == []


def test_what_is_not_printed_is_counted() -> None:
    records = [run(0, wall_ns=None), *_events(*range(1, 26))]
    (section,) = untotalled_sections(from_records(records, name="d", manifest=manifest()))
    (table,) = section.blocks
    assert table.notes == ["5 more are not printed."]  # type: ignore[union-attr]
