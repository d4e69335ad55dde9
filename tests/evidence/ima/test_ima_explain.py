"""A value that is not reached is explained by what would reach it."""

from __future__ import annotations

import time

import pytest

from excise.evidence.checks import Outcome
from excise.evidence.ima import verify_list
from ima_builder import (
    ascii_list,
    binary_list,
    boot_aggregate,
    digest,
    extended_with,
    files,
    pcr_after,
    pcrs_after,
    violation,
)

BOOT = {i: bytes([i]) * 32 for i in range(10)}
ENTRIES = [boot_aggregate(BOOT), *files(40)]


def reaching(result) -> dict[str, str]:
    assert result.verdict is Outcome.FAILED
    return {f"{e.bank} {e.id}": e.detail for e in result.explanations if e.reaches}


def test_a_failed_extend_is_found_in_every_bank_given():
    lost = [*ENTRIES[:17], *ENTRIES[18:]]
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(lost, "sha1", "sha256"))
    found = reaching(result)
    assert set(found) == {"sha1 dropped-entry", "sha256 dropped-entry"}
    assert "entry 17 at offset" in found["sha1 dropped-entry"]


def test_two_swapped_neighbours_are_found_before_an_uncovered_tail():
    swapped = [*ENTRIES[:20], ENTRIES[21], ENTRIES[20], *ENTRIES[22:35]]
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(swapped))
    found = reaching(result)
    assert "reached at entry 34 if entry 20" in found["sha256 swapped-entry"]


def test_a_padded_bank_with_a_failed_extend_is_explained_under_its_rule():
    lost = [*ENTRIES[:5], *ENTRIES[6:]]
    pcrs = pcrs_after(lost, rule="padded-sha1")
    found = reaching(verify_list(binary_list(ENTRIES), pcrs=pcrs))
    assert "rule padded-sha1" in found["sha256 dropped-entry"]


def test_zeros_fed_for_violations_are_recognised():
    entries = [*ENTRIES, violation(), *files(2, prefix="/late")]
    register = bytes(32)
    for entry in entries:
        value = bytes(32) if entry.violation else extended_with(entry, "sha256", "own")
        register = digest("sha256", register + value)
    found = reaching(verify_list(binary_list(entries), pcrs={"sha256": {10: register}}))
    assert list(found) == ["sha256 own-zero-violations"]


def test_changed_data_beside_its_old_hash_is_recognised():
    raw = bytearray(binary_list(ENTRIES))
    at = raw.index(b"/usr/bin/prog9\0")
    raw[at + 5] ^= 1
    result = verify_list(bytes(raw), pcrs=pcrs_after(ENTRIES, "sha1"))
    assert list(reaching(result)) == ["sha1 recorded"]


def test_a_wrongly_forced_byte_order_is_recognised():
    raw = ascii_list(ENTRIES, order="big")
    pcrs = pcrs_after(ENTRIES, order="big")
    result = verify_list(raw, pcrs=pcrs, byte_order="little")
    assert "sha256 byte-order" in reaching(result)


def test_the_list_of_another_boot_is_recognised_by_its_boot_aggregate():
    other = dict.fromkeys(range(10), b"\x77" * 32)
    pcrs = {"sha256": {**other, 10: b"\x55" * 32}}
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs)
    assert "other-boot" in [e.id for e in result.explanations]


def test_a_bank_that_the_kernel_shut_is_recognised():
    shut = digest("sha256", bytes(32) + b"\xff" * 32)
    result = verify_list(binary_list(ENTRIES), pcrs={"sha256": {10: shut}})
    assert "sha256 capped-bank" in reaching(result)


def test_a_search_of_a_long_list_is_bounded_and_says_so():
    entries = files(5000)
    began = time.process_time()
    result = verify_list(binary_list(entries), pcrs={"sha1": {10: b"\x99" * 20}})
    assert time.process_time() - began < 10
    searched = next(e for e in result.explanations if e.id == "dropped-or-swapped-entry")
    assert searched.reaches is False
    assert "last 3000 of 5000 entries" in searched.detail


def test_a_lost_extend_near_the_end_of_a_long_list_is_found():
    entries = files(5000)
    lost = [*entries[:4990], *entries[4991:]]
    result = verify_list(binary_list(entries), pcrs={"sha1": {10: pcr_after(lost, "sha1")}})
    assert "entry 4990" in reaching(result)["sha1 dropped-entry"]


def test_an_explanation_never_turns_the_verdict_and_can_be_left_out():
    lost = [*ENTRIES[:17], *ENTRIES[18:]]
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(lost), explain_failure=False)
    assert result.verdict is Outcome.FAILED
    assert result.explanations == ()


@pytest.mark.parametrize("order", ["little", "big"])
def test_what_each_explanation_would_give_is_shown(order):
    result = verify_list(binary_list(ENTRIES, order=order), pcrs={"sha256": {10: b"\x99" * 32}})
    values = {e.id: e.value for e in result.explanations if e.value}
    assert (
        values["padded-sha1"] == pcr_after(ENTRIES, "sha256", rule="padded-sha1", order=order).hex()
    )
