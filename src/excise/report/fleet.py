"""Reports of fleets: how many hosts passed, and what fleets ask."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import polars as pl

from excise.evidence.checks import Outcome
from excise.fleet.answers import FleetAnswers
from excise.fleet.rounds import FleetRound
from excise.report.model import NOTHING, Block, Cell, Column, Emphasis, Paragraph, Report, Section
from excise.report.model import Table as ReportTable
from excise.units import counted, format_bytes, format_count, format_ratio

SHOWN: Final = 20
"""Rows of a table in text; JSON and Parquet have all."""
_NAMED: Final = 5

_EMPHASIS: Final[Mapping[str, Emphasis]] = {
    Outcome.PASSED: "good",
    Outcome.FAILED: "bad",
    Outcome.NOT_COVERED: "warn",
}
_VERDICT: Final[Mapping[str, Callable[[Any], Cell]]] = {
    "verdict": lambda text: Cell(text=text, emphasis=_EMPHASIS.get(text, "none"))
}


def build_fleet(
    answers: FleetAnswers, *, done: FleetRound | None = None, rows: int = SHOWN
) -> Report:
    """Return a fleet's answers as a report.

    Args:
        answers: What its states say.
        done: The round that was made, if one was.
        rows: Rows of a table; the others are counted under it.
    """
    sections = [
        Section(heading="Hosts", blocks=[*_summary(answers, done), *_verdicts(answers)]),
        *_section("Hosts that did not pass", _not_passed(answers, rows)),
        *_section("Checks that did not pass", _checks(answers, rows)),
        *_section("Files that differ from the policy", _differing(answers, rows)),
        *_section("Digests unknown to the policy", _unknown(answers, rows)),
        *_section("Violations by path", _violations(answers, rows)),
        *_section(_stale_heading(answers), _stale(answers, rows)),
        *_section("Configurations by cost", _costs(answers, rows)),
    ]
    return Report(
        title=f"Fleet of {answers.hosts} host{'s' * (answers.hosts != 1)}",
        sections=sections,
        facts=_facts(answers, done),
        data=answers.as_dict() | ({"round": round_as_dict(done)} if done else {}),
    )


def round_as_dict(done: FleetRound) -> dict[str, Any]:
    """Return what a round took, as plain values."""
    return {
        "engine": done.engine,
        "hosts": done.total,
        "done": len(done.encoded),
        "interrupted": done.interrupted,
        "wall_s": done.wall_s,
        "cpu_s": done.cpu_s,
        "peak_rss_bytes": dict(done.peak_rss_bytes),
        "retried": list(done.retried),
        "absent": list(done.absent),
    }


def _summary(answers: FleetAnswers, done: FleetRound | None) -> list[Paragraph]:
    passed = answers.verdicts.get(Outcome.PASSED, 0)
    failed = answers.verdicts.get(Outcome.FAILED, 0)
    rest = answers.hosts - passed - failed
    good = passed == answers.hosts and answers.hosts > 0
    text = (
        f"{passed} of {counted(answers.hosts, 'host')} passed, {failed} failed, {rest} "
        "without proof."
    )
    found = [Paragraph(text=text, kind="result" if good else "warning")]
    if done is not None and done.interrupted:
        why = str(done.stopped_by) if done.stopped_by else "interrupted"
        left = done.total - len(done.encoded)
        text = f"{left} of {counted(done.total, 'host was', 'hosts were')} not looked at: {why}."
        found.append(Paragraph(text=text, kind="warning"))
    if done is not None and done.retried:
        text = (
            f"{counted(len(done.retried), 'host was', 'hosts were')} run again because a "
            "worker died."
        )
        found.append(Paragraph(text=text, kind="warning"))
    if done is not None and done.absent:
        names = ", ".join(done.absent[:_NAMED]) + (" …" if len(done.absent) > _NAMED else "")
        text = f"The state knows {counted(len(done.absent), 'host')} not in this round: {names}."
        found.append(Paragraph(text=text, kind="warning"))
    if answers.old_quotes:
        text = f"{counted(answers.old_quotes, 'host')} sent an old quote: it proves no newer state."
        found.append(Paragraph(text=text, kind="warning"))
    if not answers.policies:
        text = "No policy was given: nothing is said about the files that hosts measured."
        found.append(Paragraph(text=text, kind="warning"))
    if len(answers.policies) > 1:
        text = f"Hosts were judged by {len(answers.policies)} policies, each by its last round's."
        found.append(Paragraph(text=text, kind="warning"))
    if answers.findings_left_out:
        text = (
            f"{counted(answers.findings_left_out, 'entry has', 'entries have')} findings "
            "that were too many to be kept."
        )
        found.append(Paragraph(text=text, kind="warning"))
    return found


def _verdicts(answers: FleetAnswers) -> list[Block]:
    rows = [
        (
            Cell(text=verdict, emphasis=_EMPHASIS.get(verdict, "none")),
            Cell(text=format_count(count), value=count),
        )
        for verdict, count in sorted(answers.verdicts.items())
    ]
    columns = (_words("verdict", "Verdict"), Column(name="hosts", heading="Hosts"))
    return [ReportTable(name="verdicts", columns=columns, rows=rows)] if rows else []


def _section(heading: str, blocks: Sequence[Block]) -> list[Section]:
    return [Section(heading=heading, blocks=blocks)] if blocks else []


def _words(name: str, heading: str, *, optional: bool = False) -> Column:
    return Column(name=name, heading=heading, align="left", optional=optional)


def _table(
    name: str,
    data: pl.DataFrame,
    columns: Sequence[Column],
    rows: int,
    *,
    show: Mapping[str, Callable[[Any], Cell]] | None = None,
    notes: Sequence[str] = (),
) -> list[Block]:
    if not data.height:
        return []
    shown = [
        [(show or {}).get(column.name, _cell)(row[column.name]) for column in columns]
        for row in data.head(rows).iter_rows(named=True)
    ]
    left = data.height - rows
    more = (
        [f"{counted(left, 'more row')}; --json, --rows and --results have all."] if left > 0 else []
    )
    return [ReportTable(name=name, columns=columns, rows=shown, notes=[*notes, *more])]


def _cell(value: Any) -> Cell:
    if value is None:
        return Cell(text=NOTHING)
    if isinstance(value, datetime):
        text = value.strftime("%Y-%m-%d %H:%M:%SZ")
        return Cell(text=text, value=text)
    if isinstance(value, int):
        return Cell(text=f"{value:,}", value=value)
    text = str(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return Cell(text=text, value=value)


def _not_passed(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("host", "Host"),
        _words("verdict", "Verdict"),
        _words("failed_checks", "Failed checks"),
        _words("last_verified_at", "Last verified"),
        _words("attempted_at", "Last attempt", optional=True),
    )
    return _table("fleet-not-passed", answers.not_passed, columns, rows, show=_VERDICT)


def _checks(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("check", "Check"),
        Column(name="failed", heading="Failed"),
        Column(name="not_covered", heading="Not covered"),
        Column(name="before", heading="Before"),
        Column(name="passed", heading="Passed"),
        _words("host", "Such as"),
    )
    notes = (
        "Hosts by outcome of each check; the last column names one of the worst.",
        "Before: those not covered that passed in an earlier round, as where nothing is new.",
    )
    return _table("fleet-checks", answers.checks, columns, rows, notes=notes)


def _differing(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("name", "File"),
        Column(name="hosts", heading="Hosts"),
        Column(name="digests", heading="Digests"),
        _words("host", "Such as"),
    )
    return _table("fleet-differing", answers.differing, columns, rows)


def _unknown(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("name", "File"),
        Column(name="hosts", heading="Hosts"),
        _words("package", "Package"),
        _words("digest", "Digest"),
        Column(name="names", heading="Names", optional=True),
        _words("algorithm", "Hash", optional=True),
        _words("host", "Such as", optional=True),
    )
    show = {"digest": lambda digest: Cell(text=digest[:16], value=digest)}
    note = "The first 16 digits of digests that the policy lists under no name."
    return _table("fleet-unknown", answers.unknown, columns, rows, show=show, notes=(note,))


def _violations(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("name", "File"),
        Column(name="hosts", heading="Hosts"),
        Column(name="count", heading="Violations"),
        _words("host", "Such as"),
    )
    note = "The name in a violation is what the list says; no register authenticates it."
    return _table("fleet-violations", answers.violations, columns, rows, notes=(note,))


def _stale_heading(answers: FleetAnswers) -> str:
    if answers.since is None:
        return "Hosts never verified"
    return f"Hosts not verified since {answers.since:%Y-%m-%d %H:%M:%SZ}"


def _stale(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("host", "Host"),
        _words("verdict", "Verdict"),
        _words("last_verified_at", "Last verified"),
        _words("failed_checks", "Failed checks"),
        _words("attempted_at", "Last attempt", optional=True),
    )
    return _table("fleet-not-verified", answers.stale, columns, rows, show=_VERDICT)


def _costs(answers: FleetAnswers, rows: int) -> list[Block]:
    columns = (
        _words("task", "Task"),
        _words("configuration", "Config"),
        _words("kernel", "Kernel"),
        _words("tpm", "TPM"),
        _words("lsm", "LSMs"),
        Column(name="hosts", heading="Hosts"),
        Column(name="median", heading="Median"),
        Column(name="ratio", heading="Of the least"),
        _words("unit", "Unit"),
        _words("metric", "Metric", optional=True),
    )
    show = {
        "median": lambda value: Cell(text=format_count(value), value=value),
        "ratio": lambda value: (
            Cell(text=NOTHING) if value is None else Cell(text=format_ratio(value - 1), value=value)
        ),
    }
    note = (
        "Median over hosts of each host's median, the cheapest configuration of the machine first. "
        "Hosts differ in more than is listed: a difference here is a reason to measure, not a cost."
    )
    return _table("fleet-costs", answers.costs, columns, rows, show=show, notes=(note,))


def _facts(answers: FleetAnswers, done: FleetRound | None) -> list[tuple[str, str]]:
    facts = [("Policy", ", ".join(answers.policies) or "none")]
    if done is not None:
        rate = len(done.encoded) / done.wall_s if done.wall_s else 0.0
        peak = max(done.peak_rss_bytes.values(), default=0)
        facts += [
            ("Engine", done.engine),
            ("Time", f"{done.wall_s:.1f} s, {format_count(rate)} hosts a second"),
            ("Processor time", f"{done.cpu_s:.1f} s"),
            ("Most memory of a worker", format_bytes(peak)),
        ]
    return facts
