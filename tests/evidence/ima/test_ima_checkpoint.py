"""Verification goes on from a checkpoint, and names what is in the way."""

from __future__ import annotations

import msgspec
import pytest

from excise.errors import FormatError
from excise.evidence.checks import Outcome
from excise.evidence.ima import Checkpoint, Meeting, verify_list
from ima_builder import (
    ascii_list,
    binary_list,
    boot_aggregate,
    files,
    pcr_after,
    pcrs_after,
    violation,
)

BOOT = {i: bytes([i]) * 32 for i in range(10)}
FIRST = [boot_aggregate(BOOT), *files(12)]
LATER = files(6, prefix="/later")
ALL = [*FIRST, *LATER]


@pytest.fixture
def checkpoint() -> Checkpoint:
    result = verify_list(binary_list(FIRST), pcrs=pcrs_after(FIRST, "sha1", "sha256"))
    assert result.checkpoint is not None
    return Checkpoint.from_json(result.checkpoint.to_json())


def meeting_check(result):
    return next(check for check in result.checks if check.id == "ima.checkpoint")


def test_only_new_entries_are_read(checkpoint):
    result = verify_list(
        binary_list(ALL), pcrs=pcrs_after(ALL, "sha1", "sha256"), checkpoint=checkpoint
    )
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.RESUMED
    assert result.facts["new_entries"] == 6
    assert result.coverage.entries == result.coverage.covered_entries == 19
    assert result.replay.end.offset == len(binary_list(ALL))
    assert result.checkpoint is not None
    assert result.checkpoint.count == 19
    whole = verify_list(binary_list(ALL), pcrs=pcrs_after(ALL, "sha1", "sha256"))
    assert result.checkpoint == whole.checkpoint


def test_checkpoints_follow_each_other_over_a_growing_list(checkpoint):
    for upto in range(13, 20):
        entries = ALL[:upto]
        result = verify_list(
            binary_list(ALL), pcrs=pcrs_after(entries, "sha1", "sha256"), checkpoint=checkpoint
        )
        assert result.verdict is Outcome.PASSED
        assert result.checkpoint.count == upto
        checkpoint = result.checkpoint


def test_a_quote_without_new_entries_passes_at_the_checkpoint(checkpoint):
    pcrs = pcrs_after(FIRST, "sha1", "sha256")
    for raw in (binary_list(FIRST), binary_list(ALL), b""):
        result = verify_list(raw, pcrs=pcrs, checkpoint=checkpoint)
        assert result.verdict is Outcome.PASSED
        assert result.coverage.covered_entries == 13
        assert result.checkpoint.count == 13


def test_the_state_is_given_only_on_success(checkpoint):
    wrong = {"sha1": {10: b"\1" * 20}, "sha256": {10: b"\1" * 32}}
    result = verify_list(binary_list(ALL), pcrs=wrong, checkpoint=checkpoint)
    assert result.verdict is Outcome.FAILED
    assert result.checkpoint is None
    assert meeting_check(result).outcome is Outcome.PASSED


def test_a_part_that_begins_at_the_checkpoint_goes_on(checkpoint):
    pcrs = pcrs_after(ALL, "sha1", "sha256")
    for start_offset in (None, checkpoint.offset):
        result = verify_list(
            binary_list(LATER), pcrs=pcrs, checkpoint=checkpoint, start_offset=start_offset
        )
        assert result.verdict is Outcome.PASSED
        assert result.meeting is Meeting.CONTINUED
        assert result.checkpoint.count == 19
        assert result.checkpoint.offset == len(binary_list(ALL))
        assert result.checkpoint.base_offset == checkpoint.offset


def test_an_overlap_is_found_and_named(checkpoint):
    pcrs = pcrs_after(ALL, "sha1", "sha256")
    skipped = len(binary_list(ALL[:7]))
    for start_offset in (None, skipped):
        result = verify_list(
            binary_list(ALL[7:]), pcrs=pcrs, checkpoint=checkpoint, start_offset=start_offset
        )
        assert result.verdict is Outcome.PASSED
        assert result.meeting is Meeting.OVERLAP
        covered_before = len(binary_list(ALL[7:13]))
        assert f"first {covered_before} bytes" in meeting_check(result).detail
        assert result.checkpoint.offset == len(binary_list(ALL))


def test_an_overlap_that_ends_in_a_repeated_violation_is_found():
    before = [*FIRST, violation(), violation(), violation()]
    old = verify_list(binary_list(before), pcrs=pcrs_after(before)).checkpoint
    entries = [*before, *LATER]
    result = verify_list(binary_list(entries[5:]), pcrs=pcrs_after(entries), checkpoint=old)
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.OVERLAP
    assert result.facts["new_entries"] == 6


def test_a_gap_is_found_and_named(checkpoint):
    pcrs = pcrs_after(ALL, "sha1", "sha256")
    missing = len(binary_list(ALL[13:15]))
    declared = verify_list(
        binary_list(ALL[15:]),
        pcrs=pcrs,
        checkpoint=checkpoint,
        start_offset=checkpoint.offset + missing,
    )
    assert declared.verdict is Outcome.FAILED
    assert declared.meeting is Meeting.GAP
    assert f"{missing} bytes" in meeting_check(declared).detail

    silent = verify_list(binary_list(ALL[15:]), pcrs=pcrs, checkpoint=checkpoint)
    assert silent.verdict is Outcome.FAILED
    assert silent.meeting is Meeting.MISMATCH
    assert "missing" in meeting_check(silent).detail


def test_a_part_without_a_checkpoint_is_a_gap():
    raw = binary_list(LATER)
    result = verify_list(raw, pcrs=pcrs_after(LATER), start_offset=1000)
    assert result.verdict is Outcome.FAILED
    assert result.meeting is Meeting.GAP


def test_a_reboot_is_named_and_the_new_list_verified_from_its_beginning(checkpoint):
    rebooted = [boot_aggregate(BOOT), *files(30, prefix="/boot2")]
    pcrs = pcrs_after(rebooted, "sha1", "sha256")
    result = verify_list(binary_list(rebooted), pcrs=pcrs, checkpoint=checkpoint)
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.RESTARTED
    assert "new boot with the same first entry" in meeting_check(result).detail
    assert meeting_check(result).outcome is Outcome.NOT_COVERED
    assert result.checkpoint.count == 31
    assert result.checkpoint.base_offset == 0


@pytest.mark.parametrize("start_offset", [None, 0])
@pytest.mark.parametrize("place", [3, 12, 20])
def test_a_new_boot_that_measures_the_same_last_file_is_still_a_new_boot(
    checkpoint, place, start_offset
):
    rebooted = [boot_aggregate(BOOT), *files(30, prefix="/usr/bin/boo2")]
    rebooted[place] = FIRST[-1]
    pcrs = pcrs_after(rebooted, "sha1", "sha256")
    result = verify_list(
        binary_list(rebooted), pcrs=pcrs, checkpoint=checkpoint, start_offset=start_offset
    )
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.RESTARTED


def test_a_shorter_list_of_a_new_boot_is_named(checkpoint):
    rebooted = [boot_aggregate(BOOT), *files(2, prefix="/boot2")]
    pcrs = pcrs_after(rebooted, "sha1", "sha256")
    result = verify_list(binary_list(rebooted), pcrs=pcrs, checkpoint=checkpoint)
    assert result.meeting is Meeting.RESTARTED
    assert "shorter" in meeting_check(result).detail
    declared = verify_list(binary_list(rebooted), pcrs=pcrs, checkpoint=checkpoint, start_offset=0)
    assert declared.meeting is Meeting.RESTARTED


def test_a_list_shortened_by_the_kernel_goes_on_and_keeps_going(checkpoint):
    staged = binary_list(LATER[:3])
    upto = [*FIRST, *LATER[:3]]
    first = verify_list(staged, pcrs=pcrs_after(upto, "sha1", "sha256"), checkpoint=checkpoint)
    assert first.verdict is Outcome.PASSED
    assert first.meeting is Meeting.CONTINUED
    assert "handed over" in meeting_check(first).detail
    grown = verify_list(
        binary_list(LATER), pcrs=pcrs_after(ALL, "sha1", "sha256"), checkpoint=first.checkpoint
    )
    assert grown.verdict is Outcome.PASSED
    assert grown.meeting is Meeting.RESUMED
    assert grown.facts["new_entries"] == 3
    assert grown.checkpoint.count == 19


@pytest.mark.parametrize("count", [1, 3, 12, 40])
def test_a_list_of_the_same_beginning_and_other_files_is_none_that_goes_on(checkpoint, count):
    forged = [FIRST[0], *files(count, prefix="/forged")]
    result = verify_list(
        binary_list(forged), pcrs=pcrs_after(FIRST, "sha1", "sha256"), checkpoint=checkpoint
    )
    assert result.verdict is Outcome.FAILED
    assert result.meeting is Meeting.MISMATCH
    assert result.checkpoint is None


def test_what_no_value_covers_is_not_said_to_go_on(checkpoint):
    result = verify_list(
        binary_list(LATER[:3]), pcrs=pcrs_after(FIRST, "sha1", "sha256"), checkpoint=checkpoint
    )
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.CONTINUED
    assert meeting_check(result).outcome is Outcome.NOT_COVERED
    assert "not proven" in meeting_check(result).detail
    assert result.coverage.tail_entries == 3
    assert result.checkpoint.count == len(FIRST)


def test_an_empty_list_goes_on_where_all_was_handed_over(checkpoint):
    result = verify_list(b"", pcrs=pcrs_after(FIRST, "sha1", "sha256"), checkpoint=checkpoint)
    assert result.meeting is Meeting.CONTINUED
    assert "handed over" in meeting_check(result).detail


def test_a_shortened_list_that_does_not_go_on_fails(checkpoint):
    result = verify_list(
        binary_list(FIRST[:5]), pcrs=pcrs_after(ALL, "sha1", "sha256"), checkpoint=checkpoint
    )
    assert result.verdict is Outcome.FAILED
    assert result.meeting is Meeting.MISMATCH
    assert "shorter" in meeting_check(result).detail


def test_a_covered_entry_changed_since_is_noticed(checkpoint):
    raw = bytearray(binary_list(ALL))
    raw[checkpoint.offset - 3] ^= 1
    result = verify_list(bytes(raw), pcrs=pcrs_after(ALL, "sha1", "sha256"), checkpoint=checkpoint)
    assert result.verdict is Outcome.FAILED
    assert result.meeting is Meeting.MISMATCH


def test_a_changed_policy_verifies_from_the_beginning():
    pcrs = pcrs_after(FIRST)
    old = verify_list(binary_list(FIRST), pcrs=pcrs, policy_digest="aa").checkpoint
    assert old.policy_digest == "aa"
    same = verify_list(binary_list(ALL), pcrs=pcrs_after(ALL), checkpoint=old, policy_digest="aa")
    assert same.meeting is Meeting.RESUMED
    changed = verify_list(
        binary_list(ALL), pcrs=pcrs_after(ALL), checkpoint=old, policy_digest="bb"
    )
    assert changed.verdict is Outcome.PASSED
    assert changed.meeting is Meeting.IGNORED
    assert changed.facts["new_entries"] == 19
    assert changed.checkpoint.policy_digest == "bb"


def test_a_bank_that_the_checkpoint_lacks_verifies_from_the_beginning():
    old = verify_list(binary_list(FIRST), pcrs=pcrs_after(FIRST, "sha1")).checkpoint
    result = verify_list(binary_list(ALL), pcrs=pcrs_after(ALL, "sha384"), checkpoint=old)
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.IGNORED
    assert "no PCR 10 of sha384" in meeting_check(result).detail


def test_another_form_of_the_list_verifies_from_the_beginning(checkpoint):
    pcrs = pcrs_after(ALL, "sha1", "sha256")
    result = verify_list(ascii_list(ALL, "sha256"), pcrs=pcrs, checkpoint=checkpoint)
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.IGNORED
    assert "binary list of sha1" in meeting_check(result).detail


def test_ascii_lists_resume_with_their_line_numbers():
    old = verify_list(ascii_list(FIRST), pcrs=pcrs_after(FIRST)).checkpoint
    assert old.line == 14
    entries = [*ALL, violation()]
    result = verify_list(ascii_list(entries), pcrs=pcrs_after(entries), checkpoint=old)
    assert result.verdict is Outcome.PASSED
    assert result.meeting is Meeting.RESUMED
    assert result.facts["violations"]["places"][0]["line"] == 20
    overlap = verify_list(ascii_list(entries[5:]), pcrs=pcrs_after(entries), checkpoint=old)
    assert overlap.meeting is Meeting.OVERLAP
    assert overlap.facts["violations"]["places"][0]["line"] == 15


def test_a_padded_bank_meets_its_first_violation_after_the_checkpoint():
    for rule in ("padded-sha1", "padded-sha1-wide-violations"):
        old = verify_list(
            binary_list(FIRST), pcrs=pcrs_after(FIRST, "sha256", rule=rule)
        ).checkpoint
        assert old.state(10, "sha256").rule == "padded-sha1"
        entries = [*FIRST, violation(), *LATER]
        result = verify_list(
            binary_list(entries), pcrs=pcrs_after(entries, rule=rule), checkpoint=old
        )
        assert result.verdict is Outcome.PASSED
        assert result.checkpoint.state(10, "sha256").rule == rule


def test_registers_of_other_pcrs_go_on_too():
    before = [*FIRST, *files(3, prefix="/eleven", pcr=11)]
    old = verify_list(binary_list([*before, *LATER[:1]]), pcrs=pcrs_after(
        [*before, *LATER[:1]])).checkpoint  # fmt: skip
    assert bytes.fromhex(old.state(11, "sha256").value) == pcr_after(before, "sha256", pcr=11)
    entries = [*before, *LATER, *files(2, prefix="/more", pcr=11)]
    pcrs = pcrs_after(entries)
    pcrs["sha256"][11] = pcr_after(entries, "sha256", pcr=11)
    result = verify_list(binary_list(entries), pcrs=pcrs, checkpoint=old)
    assert result.verdict is Outcome.PASSED
    assert all(bank.reached for bank in result.banks)
    assert len(result.banks) == 2


def test_damaged_documents_are_refused(checkpoint):
    good = msgspec.json.decode(checkpoint.to_json())
    register = {"pcr": 10, "bank": "sha1", "rule": "own", "value": "00" * 20}
    for change, message in (
        ({"kind": "other"}, "not excise.ima.checkpoint"),
        ({"version": 99}, "version 99"),
        ({"count": 0}, "field count"),
        ({"line": 0}, "field line"),
        ({"offset": -1}, "field base_offset"),
        ({"base_offset": 10**9}, "field base_offset"),
        ({"registers": []}, "field registers"),
        ({"registers": [{**register, "value": "00"}]}, "field registers"),
        ({"registers": [{**register, "value": "zz" * 20}]}, "field registers"),
        ({"registers": [{**register, "bank": "md5"}]}, "field registers"),
        ({"registers": [{**register, "rule": "own-zero-violations"}]}, "field registers"),
        ({"registers": [{**register, "pcr": 64}]}, "field registers"),
        ({"list_format": "xml"}, "field list_format"),
        ({"byte_order": "middle"}, "field byte_order"),
        ({"header_bank": "md5"}, "field header_bank"),
        ({"last_record": {**good["last_record"], "head": ""}}, "field records"),
        ({"last_record": {**good["last_record"], "size_bytes": 0}}, "field records"),
        ({"first_record": 3}, r"`\$.first_record`"),
    ):
        with pytest.raises(FormatError, match=message):
            Checkpoint.from_json(msgspec.json.encode({**good, **change}))
    with pytest.raises(FormatError, match="not an IMA checkpoint"):
        Checkpoint.from_json(b"{")
