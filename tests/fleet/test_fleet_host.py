"""What a round says of one host."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog_builder import agile_log, boot, registers_after
from excise.evidence.eventlog_verify import EventLogAppraisal, verify_event_log
from excise.evidence.policy import PolicyBuilder
from excise.fleet import boot_logs
from excise.fleet.host import appraise_host
from excise.fleet.places import folder_at
from excise.fleet.records import MAX_FINDINGS, Finding, HostJob, HostState, Settings
from excise.fleet.rounds import error_state
from excise.fleet.stores import FolderStore, SqliteStore
from fleet_builder import (
    LIST,
    Attested,
    by_host,
    entries_of,
    fleet_policy,
    outcome_of,
    pcr_text,
    policy_for,
    run_round,
    write_host,
)
from ima_builder import Entry, binary_list, files, ng, violation


def test_a_host_whose_list_leads_to_its_values_passes(tmp_path: Path) -> None:
    write_host(tmp_path, "a")
    state = by_host(run_round(tmp_path, policy=fleet_policy(["a"])))["a"]
    assert (state.verdict, state.entries, state.new_entries) == ("PASSED", 41, 41)
    assert outcome_of(state, "ima.pcr.sha256") == "PASSED"
    assert outcome_of(state, "policy.digests") == "PASSED"
    assert state.verified_ns == state.attempted_ns
    assert state.evidence_ns == (tmp_path / "a" / "pcrs.txt").stat().st_mtime_ns


def test_a_list_without_values_proves_nothing_and_an_empty_folder_even_less(tmp_path: Path) -> None:
    (write_host(tmp_path, "a") / "pcrs.txt").unlink()
    (tmp_path / "b").mkdir()
    found = by_host(run_round(tmp_path))
    assert [found[name].verdict for name in "ab"] == ["NOT_COVERED", "NOT_COVERED"]
    assert found["a"].verified_ns is None
    assert outcome_of(found["b"], "fleet.evidence") == "NOT_COVERED"


def test_evidence_that_is_required_and_missing_fails_the_host(tmp_path: Path) -> None:
    write_host(tmp_path, "a")
    state = by_host(run_round(tmp_path, require=("ima", "quote")))["a"]
    assert state.verdict == "FAILED"
    assert outcome_of(state, "fleet.evidence") == "FAILED"


@pytest.mark.parametrize(
    ("name", "content", "check"),
    [
        ("pcrs.txt", b"\xff\xfe not values", "fleet.readable"),
        (LIST, b"", "ima.pcr.sha256"),
        (LIST, os.urandom(5000), "ima.pcr.sha256"),
        ("quote.attest", b"rubbish", "fleet.readable"),
        ("binary_bios_measurements", b"\0" * 7, "fleet.readable"),
        ("CCEL", b"CCEL" + bytes(52), "fleet.readable"),
        ("c.tar.zst", b"no archive", "fleet.readable"),
    ],
)
def test_bad_evidence_ends_in_a_row_of_that_host_and_the_others_pass(
    tmp_path: Path, name: str, content: bytes, check: str
) -> None:
    for host in ("a", "b", "c"):
        write_host(tmp_path, host)
    (tmp_path / "b" / name).write_bytes(content)
    found = by_host(run_round(tmp_path))
    assert [found[host].verdict for host in "ac"] == ["PASSED", "PASSED"]
    assert found["b"].verdict != "PASSED"
    rows = [row for row in found["b"].checks if row.outcome != "PASSED"]
    assert any(row.check == check or name in row.got for row in rows)


def test_guests_of_real_kernels_are_a_fleet(shared_vectors: Path) -> None:
    found = by_host(run_round(shared_vectors / "ima" / "lab"))
    assert len(found) == 9
    assert {n for n, state in found.items() if state.verdict != "PASSED"} == {"notpm"}
    assert found["notpm"].verdict == "NOT_COVERED"  # no TPM: there is no value to compare with
    assert found["tcb-ng"].entries == 55
    assert outcome_of(found["tcb-ng"], "ima.boot_aggregate") == "PASSED"
    assert [f.name for f in found["tcb-ng-violations"].findings] != []


def test_a_pipe_in_a_hosts_folder_is_never_opened(tmp_path: Path) -> None:
    folder = write_host(tmp_path, "a")
    (folder / "pcrs.txt").unlink()
    os.mkfifo(folder / "pcrs.txt")
    state = by_host(run_round(tmp_path))["a"]
    assert state.verdict == "NOT_COVERED"
    assert "pcrs.txt" in next(row.got for row in state.checks if row.check == "fleet.files")


def test_files_that_the_policy_does_not_allow_are_findings_with_their_digests(
    tmp_path: Path,
) -> None:
    other = ng("/usr/bin/prog3", b"trojan")
    write_host(tmp_path, "a", [*entries_of("a"), other, other, ng("/tmp/x", b"x"), violation()])
    state = by_host(run_round(tmp_path, policy=fleet_policy(["a"])))["a"]
    assert state.verdict == "FAILED"
    digests = [str(f.digest) for f in state.findings[:2]]
    assert state.findings == (
        Finding("digest differs", "/usr/bin/prog3", "sha256", digests[0], 2),
        Finding("unknown file", "/tmp/x", "sha256", digests[1], 1),
        Finding("violation", "/var/log/open", "", "", 1),
    )
    assert bytes.fromhex(digests[0]) == other.values["d-ng"][-32:]  # type: ignore[index]


def test_entries_that_no_value_covers_are_not_judged(tmp_path: Path) -> None:
    write_host(tmp_path, "a", tail=[ng("/tmp/later", b"later")])
    state = by_host(run_round(tmp_path, policy=fleet_policy(["a"])))["a"]
    assert (state.verdict, state.entries, state.findings) == ("PASSED", 41, ())


def test_a_list_of_nothing_but_findings_keeps_some_and_counts_the_others(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_host(fleet, "a", [*entries_of("a"), *files(MAX_FINDINGS + 7, prefix="/tmp/x")])
    for _ in range(2):  # what is not kept would be forgotten: the whole list again
        state = by_host(run_round(fleet, policy=fleet_policy(["a"]), store=store))["a"]
        assert (len(state.findings), state.findings_left_out) == (MAX_FINDINGS, 7)
        assert state.new_entries == state.entries == 41 + MAX_FINDINGS + 7


def test_the_next_round_reads_what_is_new_and_remembers_what_was_found(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    first = [*entries_of("a"), ng("/tmp/x", b"x"), violation()]
    write_host(fleet, "a", first)
    policy = fleet_policy(["a"], more=[ng("/usr/new", b"new")])
    before = by_host(run_round(fleet, policy=policy, store=store))["a"]
    assert before.verdict == "FAILED"
    write_host(fleet, "a", [*first, ng("/usr/new", b"new"), violation(), ng("/tmp/y", b"y")])
    after = by_host(run_round(fleet, policy=policy, store=store))["a"]
    assert (after.verdict, after.entries, after.new_entries) == ("FAILED", 46, 3)
    assert [(f.name, f.count) for f in after.findings] == [
        ("/tmp/x", 1),
        ("/var/log/open", 2),
        ("/tmp/y", 1),
    ]
    whole = by_host(run_round(fleet, policy=policy))["a"]
    assert set(whole.findings) == set(after.findings)
    rows = {row.check: (row.outcome, row.got) for row in whole.checks}
    resumed = {row.check: (row.outcome, row.got) for row in after.checks}
    assert {k: v for k, v in rows.items() if k.startswith("policy.")} == {
        k: v for k, v in resumed.items() if k.startswith("policy.")
    }


def test_a_changed_policy_or_rule_judges_the_whole_list_again(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", FolderStore(folder_at(str(tmp_path / "states")))
    write_host(fleet, "a")
    run_round(fleet, policy=fleet_policy(["a"]), store=store)
    stricter = policy_for(files(40))
    state = by_host(run_round(fleet, policy=stricter, store=store))["a"]
    assert (state.verdict, state.new_entries) == ("FAILED", 41)
    assert [f.name for f in state.findings] == ["/srv/a"]
    again = by_host(run_round(fleet, policy=stricter, store=store, violations="fail"))["a"]
    assert again.new_entries == 41


def test_a_list_that_was_changed_fails_and_the_state_stays_where_it_was(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_host(fleet, "a")
    good = by_host(run_round(fleet, store=store))["a"]
    write_host(fleet, "a", [*entries_of("a"), ng("/new", b"1")])
    (fleet / "a" / LIST).write_bytes(binary_list([*entries_of("a"), ng("/new", b"2")]))
    bad = by_host(run_round(fleet, store=store))["a"]
    assert bad.verdict == "FAILED"
    assert bad.checkpoint == good.checkpoint
    assert bad.verified_ns == good.verified_ns
    write_host(fleet, "a", [*entries_of("a"), ng("/new", b"1")])
    healed = by_host(run_round(fleet, store=store))["a"]
    assert (healed.verdict, healed.new_entries) == ("PASSED", 1)


def test_a_new_boot_is_verified_from_its_beginning(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    write_host(fleet, "a")
    run_round(fleet, store=store)
    write_host(fleet, "a", [ng("/other", b"boot"), *files(3)])
    state = by_host(run_round(fleet, store=store))["a"]
    assert (state.verdict, state.entries) == ("PASSED", 4)


def test_keys_learnt_from_a_list_are_not_lost_between_rounds(tmp_path: Path) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from quote_builders import rsa_key

    key = rsa_key().public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    import hashlib

    measured = Entry(
        template="ima-buf",
        values={
            "d-ng": b"sha256:\0" + hashlib.sha256(key).digest(),
            "n-ng": b".ima\0",
            "buf": key,
        },
    )
    builder = PolicyBuilder()
    keyrings = b'{"digests": {"/usr/bin/prog0": ["%s"]}, "keyrings": {".ima": ["%s"]}}' % (
        hashlib.sha256(b"/usr/bin/prog0").hexdigest().encode(),
        hashlib.sha256(key).hexdigest().encode(),
    )
    builder.add_keylime(keyrings)
    policy = builder.compile()
    write_host(fleet, "a", [measured, *files(1)])
    first = by_host(run_round(fleet, policy=policy, store=store))["a"]
    assert first.verdict == "PASSED"
    assert first.checkpoint is None


def test_quote_boot_log_and_list_of_a_known_key_pass_together(tmp_path: Path) -> None:
    fleet, keys = tmp_path / "fleet", tmp_path / "keys"
    host = Attested("a")
    host.write(fleet)
    host.write_key(keys)
    from excise.fleet.rounds import read_keys

    (fleet / "a" / "pcrs.txt").write_text("sha256:\n  10: 0x" + "00" * 32)
    known = read_keys(str(keys), ["a"])
    state = by_host(run_round(fleet, keys=known, require=("ima", "quote", "eventlog")))["a"]
    assert [row.check for row in state.checks if row.outcome == "FAILED"] == []
    assert state.verdict == "PASSED"
    assert "pcrs.txt" in next(row.got for row in state.checks if row.check == "fleet.files")
    for check in ("quote.signature", "ima.boot_aggregate", "eventlog.pcr.sha256"):
        assert outcome_of(state, check) == "PASSED"


def test_a_quote_by_the_hosts_own_key_proves_nothing_and_a_changed_key_fails(
    tmp_path: Path,
) -> None:
    fleet, store = tmp_path / "fleet", SqliteStore(tmp_path / "s.sqlite")
    Attested("a").write(fleet)
    first = by_host(run_round(fleet, store=store))["a"]
    assert first.verdict == "NOT_COVERED"
    assert outcome_of(first, "fleet.attestation_key") == "NOT_COVERED"
    Attested("a", nonce=b"second", key="somebody else's").write(fleet)
    second = by_host(run_round(fleet, store=store))["a"]
    assert second.verdict == "FAILED"
    assert outcome_of(second, "fleet.attestation_key") == "FAILED"


def test_the_same_quote_twice_does_not_move_the_time_of_the_last_verification(
    tmp_path: Path,
) -> None:
    fleet, keys, store = tmp_path / "fleet", tmp_path / "keys", SqliteStore(tmp_path / "s.sqlite")
    host = Attested("a")
    host.write(fleet)
    host.write_key(keys)
    known = {"a": (keys / "a.pem").read_bytes()}
    first = by_host(run_round(fleet, keys=known, store=store))["a"]
    second = by_host(run_round(fleet, keys=known, store=store))["a"]
    assert second.verdict == "PASSED"
    assert second.verified_ns == first.verified_ns
    assert second.attempted_ns > first.attempted_ns
    Attested("a", nonce=b"third", clock_ms=9_000).write(fleet)
    third = by_host(run_round(fleet, keys=known, store=store))["a"]
    assert third.verified_ns == third.attempted_ns
    Attested("a", nonce=b"fourth", clock_ms=1).write(fleet)
    back = by_host(run_round(fleet, keys=known, store=store))["a"]
    assert outcome_of(back, "quote.clock") == "FAILED"


def test_nothing_of_a_quote_with_a_wrong_nonce_vouches_for_the_list(tmp_path: Path) -> None:
    folder = Attested("a").write(tmp_path)
    (folder / "quote.nonce").write_text("00" * 8)
    state = by_host(run_round(tmp_path))["a"]
    assert state.verdict == "FAILED"
    assert state.entries == 0


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'{"host"', b"{"),
        (b'{"host":"a"', b'{"host":"b"'),
        (b'"schema":1', b'"schema":99'),
        (b'"list_format":"binary"', b'"list_format":"morse"'),
        (b'"counts":{"allowed"', b'"counts":{"liked"'),
        (b'"count":41', b'"count":-1'),
    ],
)
def test_a_damaged_state_is_said_and_costs_a_whole_verification(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    fleet, store = tmp_path / "fleet", FolderStore(folder_at(str(tmp_path / "states")))
    write_host(fleet, "a")
    run_round(fleet, policy=fleet_policy(["a"]), store=store)
    kept = tmp_path / "states" / "a.json"
    assert old in kept.read_bytes()
    kept.write_bytes(kept.read_bytes().replace(old, new))
    state = by_host(run_round(fleet, policy=fleet_policy(["a"]), store=store))["a"]
    assert (state.verdict, state.new_entries) == ("PASSED", 41)
    assert outcome_of(state, "fleet.state") == "NOT_COVERED"


@pytest.mark.parametrize("known", ["key", "state", "own key"])
def test_a_host_that_can_quote_and_does_not_is_without_proof(tmp_path: Path, known: str) -> None:
    fleet, keys = tmp_path / "fleet", tmp_path / "keys"
    folder = Attested("a").write(fleet)
    Attested("a").write_key(keys)
    from excise.fleet.rounds import read_keys

    given = read_keys(str(keys), ["a"])
    store = FolderStore(folder_at(str(tmp_path / "states")))
    first = None if known == "own key" else given
    before = by_host(run_round(fleet, keys=first, store=store))["a"]
    for path in (*folder.glob("quote.*"), folder / "binary_bios_measurements"):
        path.unlink()
    write_host(fleet, "a")
    for _ in range(2):
        now = run_round(
            fleet,
            keys=given if known == "key" else None,
            store=None if known == "key" else store,
        )
        state = by_host(now)["a"]
        assert outcome_of(state, "ima.pcr.sha256") == "PASSED"
        assert outcome_of(state, "fleet.quote") == "NOT_COVERED"
        assert state.verdict == "NOT_COVERED"
        assert state.verified_ns == (None if known == "key" else before.verified_ns)


def _replays(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the names of the boot logs that are replayed from now on."""
    names: list[str | None] = []

    def replayed(data: bytes, *, pcrs: Any, source: str | None = None) -> EventLogAppraisal:
        names.append(source)
        return verify_event_log(data, pcrs=pcrs, source=source)

    monkeypatch.setattr(boot_logs, "verify_event_log", replayed)
    return names


def _said(state: HostState) -> list[tuple[str, ...]]:
    return [row[:6] for row in map(msgspec.to_builtins, state.checks) if row[0] == "eventlog"]


def test_a_boot_log_is_replayed_once_and_says_the_same_while_nothing_of_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, store = Attested("a").write(tmp_path / "fleet"), SqliteStore(tmp_path / "s.sqlite")
    replayed = _replays(monkeypatch)

    def a_round(**changed: Any) -> HostState:
        Attested("a", **changed).write(tmp_path / "fleet")
        return by_host(run_round(tmp_path / "fleet", store=store))["a"]

    first = a_round()
    assert outcome_of(first, "eventlog.pcr.sha256") == "PASSED"
    for clock_ms in (6_000, 7_000):
        later = a_round(nonce=b"later", clock_ms=clock_ms)
        assert _said(later) == _said(first)
        assert all(
            row.passed_ns == later.attempted_ns
            for row in later.checks
            if row.subject == "eventlog" and row.outcome == "PASSED"
        )
    assert replayed == ["binary_bios_measurements"]
    monkeypatch.setattr(boot_logs, "__version__", "99.0")
    assert _said(a_round(nonce=b"newer", clock_ms=8_000)) == _said(first)
    assert replayed == ["binary_bios_measurements"] * 2
    log = folder / "binary_bios_measurements"
    log.write_bytes(log.read_bytes()[:-1])
    broken = by_host(run_round(tmp_path / "fleet", store=store))["a"]
    assert outcome_of(broken, "eventlog.whole") == "FAILED"
    assert outcome_of(broken, "eventlog.pcr.sha256") == "FAILED"
    assert by_host(run_round(tmp_path / "fleet", store=store))["a"].boot_log is None
    assert replayed == ["binary_bios_measurements"] * 4


def test_a_boot_log_is_held_to_the_values_of_this_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = agile_log(boot(), "sha256")
    right = registers_after(boot(), "sha256")
    wrong = {"sha256": {**right["sha256"], 5: bytes(32)}}
    replayed = _replays(monkeypatch)
    store = SqliteStore(tmp_path / "s.sqlite")
    folder = tmp_path / "fleet" / "a"
    folder.mkdir(parents=True)
    (folder / "binary_bios_measurements").write_bytes(log)
    outcomes = []
    for values in (right, right, wrong, wrong, right):
        (folder / "pcrs.txt").write_text(pcr_text(values))
        state = by_host(run_round(tmp_path / "fleet", store=store))["a"]
        outcomes.append(outcome_of(state, "eventlog.pcr.sha256"))
    assert outcomes == ["PASSED", "PASSED", "FAILED", "FAILED", "PASSED"]
    assert len(replayed) == 4


def test_a_boot_log_is_replayed_after_a_round_whose_worker_died(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Attested("a").write(tmp_path)
    replayed = _replays(monkeypatch)
    settings = Settings()
    job = HostJob(host="a", url=str(folder))
    first = appraise_host(job, policy=None, settings=settings)
    died = error_state("a", "its worker died", first)
    assert _said(died) == []
    again = msgspec.structs.replace(job, state=died.encode())
    assert _said(appraise_host(again, policy=None, settings=settings)) == _said(first)
    assert len(replayed) == 2


def test_of_two_boot_logs_neither_is_taken_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = _replays(monkeypatch)
    store = SqliteStore(tmp_path / "s.sqlite")
    folder = tmp_path / "fleet" / "a"
    folder.mkdir(parents=True)
    (folder / "binary_bios_measurements").write_bytes(agile_log(boot(), "sha256"))
    alone = by_host(run_round(tmp_path / "fleet", store=store))["a"]
    (folder / "CCEL").write_bytes(b"rubbish")
    for _ in range(2):
        state = by_host(run_round(tmp_path / "fleet", store=store))["a"]
        assert _said(state)[:-1] == _said(alone)
        assert _said(state)[-1][1] == "fleet.readable"
    (folder / "CCEL").unlink()
    assert _said(by_host(run_round(tmp_path / "fleet", store=store))["a"]) == _said(alone)
    assert replayed.count("binary_bios_measurements") == 3
