"""What the demonstration prints: counts of today beside a published table, and verdicts."""

from __future__ import annotations

from cost_counted import GUESTS, counted
from excise.campaign.lab_demo import PRESETS, SAME_MECHANISM, SAME_TASK, demo_campaign, is_complete
from excise.cost.comparison import compare_configurations
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.lab.workloads import task_names
from excise.reference import load
from excise.report.build import build_report
from excise.report.lab_demo import (
    build_lab_demo,
    evidence_lines,
    then_and_now,
    with_section,
)
from excise.report.text import render_text

PUBLISHED = "lsmpmon-2008"


def test_every_published_task_and_mechanism_of_the_table_exists() -> None:
    published = load(PUBLISHED)
    assert set(SAME_MECHANISM) <= set(published.configurations)
    assert set(SAME_TASK) <= set(published.tasks)
    assert set(SAME_MECHANISM.values()) <= set(PRESETS)
    assert set(SAME_TASK.values()) <= set(task_names())


def test_then_and_now_stand_side_by_side() -> None:
    now = compare_configurations(counted(GUESTS, task="stat/ext4"))
    table = then_and_now(
        now,
        compare_configurations(load(PUBLISHED)),
        mechanisms={"SELinux": "selinux", "LIDS": "lids"},
        tasks={"stat": "stat/ext4", "0K create": "create_0k/ext4"},
        year=2008,
    )
    assert [column.heading for column in table.columns] == [
        "Task",
        "SELinux 2008",
        "now",
        "LIDS 2008",
        "now",
    ]
    assert [cell.text for cell in table.rows[0]] == ["stat", "+58.7 %", "+20.0 %", "+29.9 %", "–"]
    assert [cell.text for cell in table.rows[1]][2] == "–"


def test_the_verdict_on_the_evidence_is_said_in_words() -> None:
    now = compare_configurations(counted(GUESTS, task="stat/ext4"))
    beside = then_and_now(
        now, compare_configurations(load(PUBLISHED)), mechanisms={}, tasks={}, year=2008
    )
    for outcome in Outcome:
        check = Check(id="ima.pcr.sha256", outcome=outcome)
        appraisal = AppraisalResult(subject="ima", checks=(check,), facts={})
        report = build_lab_demo(now, beside, [appraisal], title="t")
        passed = outcome is Outcome.PASSED
        assert f"ima: {outcome}" in report.paragraphs("result" if passed else "warning")[0]
        assert "+20.00 %" in render_text(report)


def test_the_whole_report_has_the_table_after_the_comparison() -> None:
    data = counted(GUESTS, task="stat/ext4")
    now = compare_configurations(data)
    beside = then_and_now(
        now, compare_configurations(load(PUBLISHED)), mechanisms={}, tasks={}, year=2008
    )
    report = with_section(build_report(data), beside, heading="Then and now")
    headings = [section.heading for section in report.sections]
    assert headings[:2] == ["Cost against none", "Then and now"]


def test_a_capture_that_is_not_there_is_not_complete(tmp_path) -> None:
    assert not is_complete(tmp_path / "c", demo_campaign())


def test_checks_that_evidence_does_not_cover_are_told_apart_from_those_that_failed() -> None:
    outcomes = (Outcome.PASSED, Outcome.PASSED, Outcome.NOT_COVERED, Outcome.FAILED)
    checks = tuple(Check(id=f"x.{n}", outcome=outcome) for n, outcome in enumerate(outcomes))
    held = AppraisalResult(subject="quote", checks=checks[:3], facts={})
    broken = AppraisalResult(subject="quote", checks=checks, facts={})
    assert [(block.text, block.kind) for block in evidence_lines([held, broken])] == [
        ("quote: PASSED (2 of 3 checks passed, 1 not covered by this evidence)", "result"),
        (
            "quote: FAILED (2 of 4 checks passed, 1 failed, 1 not covered by this evidence)",
            "warning",
        ),
    ]
