"""Child events that measured commands print: kept, read after the runs, attributed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from campaign_runs import heads, losses, records, runs
from excise.campaign.run import run_campaign
from excise.campaign.spec import Campaign, Configuration, Task
from excise.capture.journal import Event
from excise.capture.store import JOURNAL
from excise.cost.explain import attributions
from excise.cost.lint import lint_dataset, read_rules
from excise.errors import SpecError
from excise.events.load import load_capture

ATTESTER = r"""
sleep 0.01
printf 'I/TA: RA_PERF|ta|cmd_total|4000|key=plain\n'
printf 'noise on the console\n'
printf 'RA_PERF|host|evidence_get|5000|key=plain\nRA_PERF|host|total|9000|key=plain\n'
"""


def campaign(script: str = ATTESTER, *, events: str = "ra-perf", blocks: int = 2) -> Campaign:
    return Campaign(
        configurations=[Configuration(name="plain")],
        tasks=[
            Task(name="attest", command=["sh", "-c", script], events=events, counters=False),
            Task(name="other", command=["true"], counters=False),
        ],
        blocks=blocks,
        sync_interval="never",
    )


def events(path: Path) -> list[Event]:
    return [record for record in records(path) if isinstance(record, Event)]


def test_events_of_every_run_stand_in_the_journal_after_the_runs(tmp_path: Path) -> None:
    run_campaign(campaign(), tmp_path / "c")
    ours = [run.sequence for run in runs(tmp_path / "c") if run.task == "attest"]
    assert len(ours) == 6
    assert sorted({event.sequence for event in events(tmp_path / "c")}) == ours
    first = [event for event in events(tmp_path / "c") if event.sequence == ours[0]]
    assert {event.event: event.value for event in first}["evidence_get"] == 5_000_000.0
    assert (tmp_path / "c" / "raw" / f"{ours[0]}.stdout").read_text().count("RA_PERF") == 3
    (plain, _twin) = attributions(load_capture(tmp_path / "c"))
    assert plain.n == 2
    assert plain.total > 9_000_000
    assert sum(part.value for part in plain.parts if part.depth == 0) == pytest.approx(plain.total)
    assert "evidence_get" in [part.event for part in plain.parts]


def test_what_the_client_took_is_told_from_what_was_measured_around_it(tmp_path: Path) -> None:
    run_campaign(campaign(), tmp_path / "c")
    every = events(tmp_path / "c")
    first = [event for event in every if event.sequence == every[0].sequence]
    found = {f"{event.layer}|{event.event}": event for event in first}
    assert found["host|total"].value == 9_000_000.0
    assert found["host|total"].parent is None
    assert found["host|evidence_get"].parent == "host|total"
    assert found["ta|cmd_total"].parent == "host|evidence_get"
    dataset = load_capture(tmp_path / "c")
    (plain, _twin) = attributions(dataset)
    assert [part.event for part in plain.parts if part.role == "child"][:1] == ["total"]


def test_the_steps_of_a_client_add_up_to_its_own_total(tmp_path: Path) -> None:
    planned = campaign(ATTESTER.replace("9000", "5000"))
    task = msgspec.structs.replace(planned.tasks[0], name="attestation")
    run_campaign(msgspec.structs.replace(planned, tasks=[task]), tmp_path / "c")
    found = {
        check.id: check.outcome
        for result in lint_dataset(load_capture(tmp_path / "c"), read_rules())
        for check in result.checks
    }
    assert found["lint.identity.ra-perf.total"] == "PASSED"


@pytest.mark.parametrize("script", ["echo nothing", "printf '\\377\\376'", "true"])
def test_output_without_events_is_a_declared_loss_of_each_run(tmp_path: Path, script: str) -> None:
    run_campaign(campaign(script, blocks=1), tmp_path / "c")
    assert events(tmp_path / "c") == []
    sources = {loss.source for loss in losses(tmp_path / "c")}
    ours = [run.sequence for run in runs(tmp_path / "c") if run.task == "attest"]
    assert sources == {f"raw/{sequence}.stdout" for sequence in ours}


def test_collecting_goes_on_where_it_was_cut_short(tmp_path: Path) -> None:
    planned = campaign()
    run_campaign(planned, tmp_path / "c")
    whole = events(tmp_path / "c")
    journal = tmp_path / "c" / JOURNAL
    lines = journal.read_bytes().splitlines(keepends=True)
    at = [index for index, line in enumerate(lines) if line.startswith(b'{"kind":"event"')]
    of_first = sum(event.sequence == whole[0].sequence for event in whole)
    journal.write_bytes(b"".join(lines[: at[of_first]]))
    run_campaign(planned, tmp_path / "c")
    assert events(tmp_path / "c") == whole
    assert len(heads(runs(tmp_path / "c"))) == planned.runs


def test_an_unknown_format_names_the_key_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\]\.events: no format is called 'dreams'"):
        run_campaign(campaign(events="dreams"), tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_a_longer_campaign_collects_the_new_runs_only(tmp_path: Path) -> None:
    run_campaign(campaign(), tmp_path / "c")
    before = events(tmp_path / "c")
    run_campaign(msgspec.structs.replace(campaign(), blocks=3), tmp_path / "c")
    after = events(tmp_path / "c")
    assert after[: len(before)] == before
    assert len({event.sequence for event in after}) == 8
