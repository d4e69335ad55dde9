"""What fleets ask, on fleets whose answers are known."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from excise.errors import FormatError, Refused, UsageError
from excise.evidence.policy import PolicyBuilder
from excise.fleet.answers import FleetAnswers, answer, candidates
from excise.fleet.moments import parse_moment
from excise.fleet.packages import PackageMap, read_packages
from excise.fleet.places import folder_at
from excise.fleet.reference import policy_of_host
from excise.fleet.rounds import find_hosts
from excise.fleet.stores import FolderStore
from excise.report.fleet import build_fleet
from excise.report.write import render
from fleet_builder import (
    Attested,
    by_host,
    entries_of,
    fleet_policy,
    policy_for,
    run_round,
    write_fleet,
    write_host,
)
from ima_builder import ng, violation

UPDATED = ng("/usr/bin/prog3", b"a newer version")
LISTED = ng("/usr/bin/renamed", b"/usr/bin/prog1")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six hosts: two updated a file, one has one of its own, two have violations, one is cut."""
    folder = tmp_path_factory.mktemp("fleet")
    write_fleet(folder, 6)
    for host in ("host-001", "host-002"):
        write_host(folder, host, [*entries_of(host), UPDATED, violation("/var/log/a")])
    write_host(
        folder,
        "host-003",
        [*entries_of("host-003"), ng("/opt/x", b"x"), LISTED, violation("/var/log/a"),
         violation("/var/log/a"), violation("/var/log/b")],
    )  # fmt: skip
    (folder / "host-005" / "pcrs.txt").write_text("sha256:\n  10: 0x" + "00" * 32)
    return folder


@pytest.fixture(scope="module")
def answers(fleet: Path) -> FleetAnswers:
    policy = fleet_policy([f"host-{n:03d}" for n in range(6)])
    done = run_round(fleet, policy=policy)
    packages = PackageMap({"/bin/prog3": "tools", "/opt/y": "y"})
    return answer(done.states(), policy=policy, packages=packages)


def test_files_that_differ_are_counted_over_hosts(answers: FleetAnswers) -> None:
    assert answers.differing.rows() == [("/usr/bin/prog3", 2, 1, "host-001")]


def test_digests_unknown_everywhere_come_with_their_package(answers: FleetAnswers) -> None:
    rows = answers.unknown.select("name", "digest", "hosts", "package").rows()
    assert rows == [
        ("/usr/bin/prog3", hashlib.sha256(b"a newer version").hexdigest(), 2, "tools"),
        ("/opt/x", hashlib.sha256(b"x").hexdigest(), 1, None),
    ]


def test_violations_are_counted_by_path(answers: FleetAnswers) -> None:
    assert answers.violations.select("name", "hosts", "count").rows() == [
        ("/var/log/a", 3, 4),
        ("/var/log/b", 1, 1),
    ]


def test_checks_that_did_not_pass_name_a_host(answers: FleetAnswers) -> None:
    rows = {row["check"]: row for row in answers.checks.iter_rows(named=True)}
    assert answers.verdicts == {"FAILED": 4, "PASSED": 2}
    assert rows["policy.digests"]["failed"] == 3
    assert rows["ima.pcr.sha256"]["failed"] == 1
    assert rows["ima.pcr.sha256"]["host"] == "host-005"


def test_hosts_that_did_not_pass_are_named_with_what_failed(answers: FleetAnswers) -> None:
    rows = answers.not_passed.to_dicts()
    assert [row["verdict"] for row in rows] == ["FAILED"] * 4
    assert [row["host"] for row in rows] == sorted(row["host"] for row in rows)
    assert "policy.digests" in rows[0]["failed_checks"]
    assert answers.as_dict()["not_passed"][-1]["host"] == "host-005"
    sections = {section.heading for section in build_fleet(answers).sections}
    assert "Hosts that did not pass" in sections


def test_a_round_with_nothing_new_tells_what_passed_before(tmp_path: Path) -> None:
    write_host(tmp_path / "fleet", "a")
    store = FolderStore(folder_at(str(tmp_path / "states")))

    def fields() -> dict[str, dict[str, Any]]:
        states = list(run_round(tmp_path / "fleet", store=store).states())
        return {row["check"]: row for row in answer(states).checks.iter_rows(named=True)}

    assert "ima.fields" not in fields()
    again = fields()["ima.fields"]
    assert (again["failed"], again["not_covered"], again["before"]) == (0, 1, 1)
    assert again["passed"] == 0


def test_hosts_not_verified_since_a_time_are_found(fleet: Path) -> None:
    states = list(run_round(fleet).states())
    never = answer(states)
    assert never.stale["host"].to_list() == ["host-005"]
    now = datetime.now(UTC)
    assert answer(states, since=now - timedelta(hours=1)).stale.height == 1
    later = answer(states, since=now + timedelta(hours=1)).stale
    assert later.height == 6
    assert later["last_verified_at"].null_count() == 1
    assert later["host"][0] == "host-005"


def test_candidates_are_a_checksum_list_that_makes_a_policy(
    tmp_path: Path, answers: FleetAnswers
) -> None:
    text = candidates(answers)
    assert "# 2 hosts, sha256, package tools" in text
    builder = PolicyBuilder()
    builder.add_checksums(text.encode())
    policy = builder.compile()
    assert policy.counts() == {"sha256": answers.unknown.height}
    digest = hashlib.sha256(b"a newer version").digest()
    assert policy.table.lookup(b"/usr/bin/prog3", "sha256", digest) == 0
    assert "/opt/x" in candidates(answers)


def test_a_name_with_a_line_end_is_escaped_in_candidates(tmp_path: Path) -> None:
    write_host(tmp_path, "a", [*entries_of("a"), ng("/tmp/two\nlines", b"y")])
    policy = fleet_policy(["a"])
    found = answer(run_round(tmp_path, policy=policy).states(), policy=policy)
    builder = PolicyBuilder()
    builder.add_checksums(candidates(found).encode())
    table = builder.compile().table
    assert table.lookup(b"/tmp/two\nlines", "sha256", hashlib.sha256(b"y").digest()) == 0


def test_the_report_has_every_answer_in_every_format(answers: FleetAnswers) -> None:
    report = build_fleet(answers)
    names = {table.name for table in report.tables()}
    assert names >= {
        "verdicts",
        "fleet-checks",
        "fleet-differing",
        "fleet-unknown",
        "fleet-violations",
        "fleet-not-verified",
    }
    assert report.paragraphs("warning") == ["2 of 6 hosts passed, 4 failed, 0 without proof."]
    html = render(report, format="html")
    assert "/usr/bin/prog3" in html
    assert "Digests unknown to the policy" in html
    text = render(report, format="text", width=80)
    assert max(map(len, text.splitlines())) <= 80
    short = build_fleet(answers, rows=1).table("fleet-unknown")
    assert (len(short.rows), short.notes[-1]) == (
        1,
        "1 more row; --json, --rows and --results have all.",
    )


def test_without_a_policy_nothing_is_claimed_about_files(fleet: Path) -> None:
    found = answer(run_round(fleet).states())
    assert found.unknown.height == found.differing.height == 0
    assert any("No policy was given" in text for text in build_fleet(found).paragraphs("warning"))
    assert found.violations["count"].sum() == 5


def test_the_files_of_a_reference_host_judge_the_others(fleet: Path) -> None:
    hosts = find_hosts([str(fleet)])
    policy = policy_of_host("host-001", hosts)
    done = run_round(fleet, policy=policy)
    verdicts = {state.host: state.verdict for state in done.states()}
    assert verdicts["host-001"] == "PASSED"
    # Another host has a file of its own that the reference does not know.
    assert verdicts["host-002"] == "FAILED"
    with pytest.raises(UsageError, match="there is no host 'nobody'"):
        policy_of_host("nobody", hosts)
    with pytest.raises(Refused, match="does not pass"):
        policy_of_host("host-005", hosts)


def test_packages_are_read_from_what_package_managers_print(tmp_path: Path) -> None:
    file = tmp_path / "map"
    file.write_text("coreutils: /bin/ls\nfoo, bar: /usr/share/doc\n# note\n/opt/x\tx-package\n")
    packages = read_packages(str(file))
    assert packages.package_of("/usr/bin/ls") == "coreutils"
    assert packages.package_of("/opt/x") == "x-package"
    assert packages.package_of("/none") is None
    (tmp_path / "info").mkdir()
    (tmp_path / "info" / "bash:amd64.list").write_text("/.\n/usr/bin/bash\n")
    assert read_packages(str(tmp_path / "info")).package_of("/bin/bash") == "bash"
    file.write_text("/usr/bin/ls\n")
    with pytest.raises(FormatError, match="says no package"):
        read_packages(str(file))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("24h", "2026-01-01T00:00+00:00"),
        ("7d", "2025-12-26T00:00+00:00"),
        ("2026-01-31", "2026-01-31T00:00+00:00"),
        ("2026-01-31T12:00+02:00", "2026-01-31T10:00+00:00"),
    ],
)
def test_times_are_written_as_people_do(text: str, expected: str) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    assert parse_moment(text, now=now) == datetime.fromisoformat(expected)


def test_what_is_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match="is no time"):
        parse_moment("yesterday")


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("/usr/bin/a b", True),
        ("/usr/bin/ä", True),
        ("/usr/bin/back\\slash", True),
        ("/usr/bin/line\nend", True),
        ("/usr/bin/\\xff", False),
        ("/usr/bin/\x1b[31mred", False),
        ("/usr/bin/\x07", False),
    ],
)
def test_candidates_are_a_policy_of_what_was_measured_and_name_what_they_cannot_hold(
    tmp_path: Path, name: str, written: bool
) -> None:
    fleet = tmp_path / "fleet"
    raw = b"/usr/bin/\xff" if name.endswith("xff") else name.encode()
    entries = [ng("/usr/bin/known", b"known"), ng(raw, b"x")]
    write_host(fleet, "a", entries)
    done = run_round(fleet, policy=policy_for(entries[:1]))
    text = candidates(answer(done.states(), policy=policy_for(entries[:1])))
    assert "\x1b" not in text
    assert ("Cannot be written as a line" in text) is not written
    builder = PolicyBuilder()
    builder.add_digest(
        b"/usr/bin/known", algorithm="sha256", digest=hashlib.sha256(b"known").digest()
    )
    if written:
        builder.add_checksums(text.encode())
        assert by_host(run_round(fleet, policy=builder.compile()))["a"].verdict == "PASSED"


def test_hosts_that_send_an_old_quote_are_counted_at_the_top(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", FolderStore(folder_at(str(tmp_path / "states")))
    Attested("a").write(fleet)
    for old in (0, 1):
        answers = answer(run_round(fleet, store=store).states())
        assert answers.old_quotes == old
        warnings = build_fleet(answers).paragraphs("warning")
        assert any("old quote" in text for text in warnings) is bool(old)
