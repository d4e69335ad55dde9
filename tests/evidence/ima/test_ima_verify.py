"""Verdicts of `verify_list` on lists with one trait each."""

from __future__ import annotations

import struct

import pytest

from excise.errors import FormatError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.ima import read_list, verify_list
from ima_builder import (
    SIZES,
    Entry,
    ascii_list,
    binary_list,
    boot_aggregate,
    d_ng,
    digest,
    files,
    ng,
    pcr_after,
    pcrs_after,
    violation,
)

BOOT = {bank: {i: bytes([i]) * SIZES[bank] for i in range(10)} for bank in ("sha1", "sha256")}
ENTRIES = [boot_aggregate(BOOT["sha256"]), *files(20)]


def outcomes(result) -> dict[str, Outcome]:
    return {check.id: check.outcome for check in result.checks}


def detail(result, check_id: str) -> str:
    return next(check.detail for check in result.checks if check.id == check_id)


def test_a_whole_list_passes_in_every_bank():
    banks = ("sha1", "sha256", "sha384", "sha512", "sm3_256")
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(ENTRIES, *banks))
    assert result.verdict is Outcome.PASSED
    assert {bank.bank: bank.rule for bank in result.banks} == dict.fromkeys(banks, "own")
    assert outcomes(result)["ima.coverage"] is Outcome.PASSED


def test_no_pcr_proves_nothing():
    result = verify_list(binary_list(ENTRIES), pcrs={})
    assert result.verdict is Outcome.NOT_COVERED
    assert outcomes(result)["ima.pcr"] is Outcome.NOT_COVERED


def test_pcrs_of_the_boot_alone_prove_nothing_about_the_list():
    result = verify_list(binary_list(ENTRIES), pcrs=BOOT)
    assert outcomes(result)["ima.boot_aggregate"] is Outcome.PASSED
    assert result.verdict is Outcome.NOT_COVERED
    assert result.checkpoint is None


def test_an_empty_list_never_passes():
    assert verify_list(b"", pcrs={"sha1": {10: bytes(20)}}).verdict is Outcome.NOT_COVERED
    assert verify_list(b"", pcrs={"sha1": {10: b"\1" * 20}}).verdict is Outcome.FAILED


@pytest.mark.parametrize("order", [("sha1", "sha256"), ("sha256", "sha1")])
@pytest.mark.parametrize("wrong", ["sha1", "sha256"])
def test_one_wrong_bank_fails_whatever_the_order(order, wrong):
    right = pcrs_after(ENTRIES, "sha1", "sha256")
    pcrs = {bank: right[bank] for bank in order}
    pcrs[wrong] = {10: b"\5" * SIZES[wrong]}
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs)
    assert result.verdict is Outcome.FAILED
    assert outcomes(result)[f"ima.pcr.{wrong}"] is Outcome.FAILED
    assert result.checkpoint is None


def test_a_list_longer_than_the_quote_is_covered_up_to_it():
    pcrs = pcrs_after(ENTRIES[:15], "sha1", "sha256")
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert result.coverage.covered_entries == 15
    assert result.coverage.tail_entries == 6
    assert result.coverage.match is not None
    assert result.coverage.match.index == 14
    assert result.coverage.match_end == len(binary_list(ENTRIES[:15]))
    assert outcomes(result)["ima.coverage"] is Outcome.NOT_COVERED


def test_an_uncovered_tail_fails_only_when_completeness_is_asked_for():
    pcrs = pcrs_after(ENTRIES[:15])
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs, require_complete=True)
    assert result.verdict is Outcome.FAILED
    whole = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(ENTRIES), require_complete=True)
    assert whole.verdict is Outcome.PASSED


def test_banks_read_at_different_times_count_the_least():
    pcrs = {**pcrs_after(ENTRIES[:10], "sha1"), **pcrs_after(ENTRIES[:12], "sha256")}
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert result.coverage.covered_entries == 10
    assert not result.coverage.atomic
    assert result.checkpoint is not None
    assert result.checkpoint.count == 10
    state = result.checkpoint.state(10, "sha256")
    assert state is not None
    assert bytes.fromhex(state.value) == pcr_after(ENTRIES[:10], "sha256")


@pytest.mark.parametrize("rule", ["own", "padded-sha1", "padded-sha1-wide-violations"])
def test_the_rule_of_the_kernel_is_found(rule):
    entries = [*ENTRIES, violation(), *files(3, prefix="/late")]
    pcrs = pcrs_after(entries, "sha1", "sha256", "sha512", rule=rule)
    pcrs["sha1"] = {10: pcr_after(entries, "sha1")}
    result = verify_list(binary_list(entries), pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert {b.bank: b.rule for b in result.banks} == {"sha1": "own", "sha256": rule, "sha512": rule}


def test_violations_are_said_to_be_unauthenticated_and_can_be_forbidden():
    entries = [*ENTRIES, violation()]
    pcrs = pcrs_after(entries)
    result = verify_list(binary_list(entries), pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert "no PCR authenticates" in detail(result, "ima.violations")
    forbidden = verify_list(binary_list(entries), pcrs=pcrs, forbid_violations=True)
    assert forbidden.verdict is Outcome.FAILED


def test_entries_of_another_pcr_have_their_own_chain():
    entries = [*ENTRIES, *files(4, prefix="/other", pcr=11), *files(3, prefix="/again")]
    pcrs = pcrs_after(entries)
    result = verify_list(binary_list(entries), pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert result.coverage.other_entries == {11: 4}
    assert outcomes(result)["ima.coverage"] is Outcome.NOT_COVERED

    pcrs["sha256"][11] = pcr_after(entries, "sha256", pcr=11)
    both = verify_list(binary_list(entries), pcrs=pcrs)
    assert outcomes(both)["ima.pcr.sha256.11"] is Outcome.PASSED
    assert both.coverage.complete

    pcrs["sha256"][11] = b"\7" * 32
    assert verify_list(binary_list(entries), pcrs=pcrs).verdict is Outcome.FAILED


def test_a_zero_register_is_named():
    result = verify_list(binary_list(ENTRIES), pcrs={"sha256": {10: bytes(32)}})
    assert result.verdict is Outcome.FAILED
    assert "reset-value" in [e.id for e in result.explanations if e.reaches]


def test_a_bank_that_cannot_be_replayed_fails():
    pcrs = {**pcrs_after(ENTRIES), "sha3_256": {10: bytes(32)}}
    result = verify_list(binary_list(ENTRIES), pcrs=pcrs)
    assert outcomes(result)["ima.pcr.sha3_256"] is Outcome.FAILED


def test_values_of_the_wrong_length_are_refused():
    with pytest.raises(UsageError, match="sha1 bank has 20"):
        verify_list(binary_list(ENTRIES), pcrs={"sha1": {10: bytes(32)}})
    with pytest.raises(FormatError, match="unknown PCR bank"):
        verify_list(binary_list(ENTRIES), pcrs={"md5": {10: bytes(16)}})


def test_a_missing_file_is_unreadable_input(tmp_path):
    with pytest.raises(FormatError, match="No such file"):
        verify_list(tmp_path / "absent", pcrs={})
    with pytest.raises(FormatError, match="Is a directory"):
        verify_list(tmp_path, pcrs={})


def test_rubbish_after_the_covered_part_fails_the_format():
    raw = binary_list(ENTRIES) + b"\xff" * 40
    result = verify_list(raw, pcrs=pcrs_after(ENTRIES))
    assert outcomes(result)["ima.format"] is Outcome.FAILED
    assert outcomes(result)["ima.pcr.sha256"] is Outcome.PASSED
    assert result.coverage.trailing_bytes == 40


def test_a_truncated_tail_is_reported_with_offset_and_field():
    raw = binary_list(ENTRIES)[:-7]
    result = verify_list(raw, pcrs=pcrs_after(ENTRIES[:-1]))
    assert result.verdict is Outcome.PASSED
    fault = result.replay.fault
    assert fault is not None
    assert (fault.field, fault.truncated) == ("template-data", True)
    assert fault.record_offset == len(binary_list(ENTRIES[:-1]))


def test_a_file_that_is_no_list_is_answered():
    result = verify_list(b"\x7fELF" + bytes(range(256)) * 40, pcrs=pcrs_after(ENTRIES))
    assert result.verdict is Outcome.FAILED
    assert "not an IMA measurement list" in detail(result, "ima.format")


def test_fields_that_contradict_their_template_are_named():
    odd = Entry(values={"d-ng": d_ng("sha256", bytes(20) + b"\1" * 5), "n-ng": b"/bin/x\0"})
    inner = Entry(values={"d-ng": d_ng("sha256", b"\1" * 32), "n-ng": b"/bin/x\0hidden\0"})
    for entry, field in ((odd, "d-ng"), (inner, "n-ng")):
        entries = [*ENTRIES, entry]
        result = verify_list(binary_list(entries), pcrs=pcrs_after(entries))
        assert outcomes(result)["ima.fields"] is Outcome.FAILED
        assert result.facts["malformed"]["places"][0]["field"] == field


# kexec ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["little", "big"])
def test_a_list_from_a_kexec_buffer_is_read_after_its_header(order):
    body = binary_list(ENTRIES, order=order)
    prefix = "<" if order == "little" else ">"
    header = struct.pack(prefix + "HHIQQ", 1, 0, 0, 24 + len(body), len(ENTRIES))
    result = verify_list(header + body + bytes(100), pcrs=pcrs_after(ENTRIES, order=order))
    assert result.verdict is Outcome.PASSED
    assert result.facts["kexec_header"] == (24 + len(body), 21)
    assert result.facts["byte_order"] == order
    assert result.replay.padding_bytes == 100

    wrong = struct.pack(prefix + "HHIQQ", 1, 0, 0, 24 + len(body), 99)
    lied = verify_list(wrong + body, pcrs=pcrs_after(ENTRIES, order=order))
    assert outcomes(lied)["ima.format"] is Outcome.FAILED


def test_a_second_boot_aggregate_is_a_kexec_and_both_are_checked():
    entries = [*ENTRIES, boot_aggregate(BOOT["sha256"]), *files(3, prefix="/second")]
    result = verify_list(binary_list(entries), pcrs={"sha256": {**BOOT["sha256"], **pcrs_after(
        entries)["sha256"]}})  # fmt: skip
    assert result.verdict is Outcome.PASSED
    assert result.facts["kexec_boots"] == 1
    assert outcomes(result)["ima.boot_aggregate"] is Outcome.PASSED


# boot_aggregate -------------------------------------------------------------------------------


def aggregate_check(entry: Entry, boot):
    pcrs = {bank: dict(values) for bank, values in boot.items()}
    entries = [entry, *files(3)]
    pcrs.setdefault("sha256", {})[10] = pcr_after(entries, "sha256")
    result = verify_list(binary_list(entries), pcrs=pcrs)
    return result, next(c for c in result.checks if c.id == "ima.boot_aggregate")


def test_the_sha1_aggregate_covers_pcrs_0_to_7():
    result, check = aggregate_check(boot_aggregate(BOOT["sha1"], "sha1"), BOOT)
    assert result.verdict is Outcome.PASSED
    assert "0 to 7 of the sha1 bank" in check.detail


def test_the_old_template_names_no_algorithm_and_means_sha1():
    value = digest("sha1", b"".join(BOOT["sha1"][i] for i in range(8)))
    old = Entry(template="ima", values={"d": value, "n": b"boot_aggregate"})
    assert aggregate_check(old, BOOT)[1].outcome is Outcome.PASSED


def test_first_5_8_kernels_leave_out_pcrs_8_and_9():
    value = digest("sha256", b"".join(BOOT["sha256"][i] for i in range(8)))
    entry = Entry(values={"d-ng": d_ng("sha256", value), "n-ng": b"boot_aggregate\0"})
    check = aggregate_check(entry, BOOT)[1]
    assert check.outcome is Outcome.PASSED
    assert "0 to 7 of the sha256 bank" in check.detail


@pytest.mark.parametrize("size", [20, 32])
def test_both_forms_of_a_zero_aggregate_name_the_absent_tpm(size):
    entry = Entry(values={"d-ng": d_ng("sha256", bytes(size)), "n-ng": b"boot_aggregate\0"})
    _, unknown = aggregate_check(entry, {})
    assert unknown.outcome is Outcome.NOT_COVERED
    assert "no TPM" in unknown.detail
    result, known = aggregate_check(entry, BOOT)
    assert known.outcome is Outcome.FAILED
    assert "no TPM" in known.detail
    assert outcomes(result)["ima.fields"] is Outcome.PASSED


def test_pcrs_of_a_boot_that_measured_nothing_cannot_confirm_an_aggregate():
    blank = {"sha256": dict.fromkeys(range(10), bytes(32))}
    _, other = aggregate_check(boot_aggregate(BOOT["sha256"]), blank)
    assert other.outcome is Outcome.NOT_COVERED
    assert "cannot confirm" in other.detail
    assert aggregate_check(boot_aggregate(blank["sha256"]), blank)[1].outcome is Outcome.PASSED
    partly = {"sha256": {**blank["sha256"], 7: b"\1" * 32}}
    assert aggregate_check(boot_aggregate(BOOT["sha256"]), partly)[1].outcome is Outcome.FAILED


def test_the_aggregate_of_another_bank_is_not_compared_across():
    boot = {"sha1": BOOT["sha1"]}
    _, check = aggregate_check(boot_aggregate(BOOT["sha256"]), boot)
    assert check.outcome is Outcome.NOT_COVERED
    assert "sha256 bank" in check.detail


# ascii ----------------------------------------------------------------------------------------


def test_an_ascii_list_of_one_bank_leads_to_every_bank():
    for bank in ("sha1", "sha256", "sha384", "sha512", "sm3_256"):
        result = verify_list(
            ascii_list(ENTRIES, bank), pcrs=pcrs_after(ENTRIES, "sha1", "sha256", "sha512")
        )
        assert result.verdict is Outcome.PASSED
        assert result.facts["header_bank"] == bank
        assert result.facts["names_ambiguous"]
        assert "ambiguous" in detail(result, "ima.format")


def test_an_ascii_list_of_a_big_endian_host_is_rebuilt_with_its_lengths():
    raw = ascii_list(ENTRIES, order="big")
    result = verify_list(raw, pcrs=pcrs_after(ENTRIES, order="big"))
    assert result.verdict is Outcome.PASSED
    assert result.facts["byte_order"] == "big"


def test_line_breaks_and_spaces_in_names_are_resolved_by_the_template_hash():
    odd = [ng(b"/tmp/a\nb"), ng(b"/tmp/a b\n\nc d"), ng(b"/tmp/\xff\xfe"), violation("/v\nw")]
    signed = Entry(template="ima-sig", values={**ng(b"/tmp/x y\nz").values, "sig": b"\3\2"})
    entries = [*ENTRIES, *odd, signed, *files(2, prefix="/end")]
    result = verify_list(ascii_list(entries), pcrs=pcrs_after(entries))
    assert result.verdict is Outcome.PASSED
    with read_list(ascii_list(entries)) as rows:
        listed = list(rows)
    assert [row.name for row in listed[21:25]] == [
        b"/tmp/a\nb", b"/tmp/a b\n\nc d", b"/tmp/\xff\xfe", b"/v\nw",
    ]  # fmt: skip
    assert listed[25].name == b"/tmp/x y\nz"
    assert [row.line for row in listed[21:27]] == [22, 24, 27, 28, 30, 32]


def test_a_line_that_is_no_entry_stops_the_reading_there():
    raw = ascii_list(ENTRIES) + b"not an entry\n" + ascii_list(files(2))
    result = verify_list(raw, pcrs=pcrs_after(ENTRIES))
    assert result.facts["entries"] == 21
    assert result.replay.fault is not None
    assert result.replay.fault.line == 22
    assert outcomes(result)["ima.format"] is Outcome.FAILED


def test_an_ascii_line_that_does_not_determine_its_data_fails_and_names_the_binary_list():
    unknown = Entry(template="ima-cgpath", raw=b"anything")
    entries = [*ENTRIES, unknown]
    result = verify_list(ascii_list(entries, "sha1"), pcrs=pcrs_after(entries, "sha1"))
    assert outcomes(result)["ima.pcr.sha1"] is Outcome.PASSED
    assert outcomes(result)["ima.template_hash"] is Outcome.FAILED
    assert "binary list" in detail(result, "ima.template_hash")
    other = verify_list(ascii_list(entries, "sha1"), pcrs=pcrs_after(entries, "sha256"))
    assert "entry 21" in detail(other, "ima.pcr.sha256")
    binary = verify_list(binary_list(entries), pcrs=pcrs_after(entries, "sha256"))
    assert binary.verdict is Outcome.PASSED


def test_a_last_line_without_its_end_counts_when_its_hash_is_right():
    raw = ascii_list(ENTRIES)
    whole = verify_list(raw[:-1], pcrs=pcrs_after(ENTRIES))
    assert whole.verdict is Outcome.PASSED
    cut = verify_list(raw[:-2], pcrs=pcrs_after(ENTRIES[:-1]))
    assert cut.verdict is Outcome.PASSED
    assert cut.facts["entries"] == 20
    assert cut.coverage.trailing_bytes > 0


def test_the_result_is_plain_values():
    import json

    result = verify_list(binary_list(ENTRIES), pcrs=pcrs_after(ENTRIES[:5]))
    again = json.loads(json.dumps(result.as_dict()))
    assert again["verdict"] == "PASSED"
    assert again["facts"]["match_index"] == 4


def test_a_long_stream_goes_through_a_file(monkeypatch):
    import io

    from excise.evidence.ima import source

    monkeypatch.setattr(source, "_IN_MEMORY_BYTES", 100)
    monkeypatch.setattr(source, "_PIECE_BYTES", 64)
    raw = binary_list(ENTRIES)
    result = verify_list(io.BytesIO(raw), pcrs=pcrs_after(ENTRIES, rule="padded-sha1"))
    assert result.verdict is Outcome.PASSED
    assert result.banks[0].rule == "padded-sha1"
    with read_list(io.BytesIO(raw)) as rows:
        assert len(list(rows)) == len(ENTRIES)


def test_verifying_loads_no_heavy_module():
    import subprocess
    import sys

    code = (
        "import sys\nfrom excise.evidence.ima import verify_list\n"
        "assert verify_list(b'', pcrs={}).verdict == 'NOT_COVERED'\n"
        "print(sorted({'polars', 'numpy', 'scipy', 'cryptography', 'altair', 'msgspec', 'rich'}"
        " & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("form", [binary_list, ascii_list])
def test_a_violation_is_named_with_its_file(form):
    entries = [*files(3), violation(), *files(3, prefix="/opt/b")]
    result = verify_list(form(entries), pcrs=pcrs_after(entries, "sha1", "sha256"))
    (place,) = result.facts["violations"]["places"]
    (line,) = [line for line in result.details() if line.startswith("Violation")]
    assert line.startswith("Violation: entry 3 at offset ")
    assert place["name"].startswith("/")
    assert line.endswith(f": '{place['name']}'.")


def test_a_changed_entry_is_named_as_the_list_has_it():
    entries = [*files(3), ng(b"/opt/a\xff\x1b\n", b"content"), *files(2)]
    raw = binary_list(entries).replace(b"/opt/a", b"/opt/c")
    result = verify_list(raw, pcrs=pcrs_after(entries, "sha1", "sha256"))
    (line,) = [line for line in result.details() if line.startswith("Wrong template hash")]
    assert line.startswith("Wrong template hash: entry 3 at offset ")
    assert line.endswith(r": '/opt/c\xff\x1b\n'.")
    assert result.facts["bad_template_hashes"]["places"][0]["name"] == "/opt/c\\xff\x1b\n"


def test_no_more_than_a_few_of_many_are_named():
    entries = [violation() for _ in range(40)]
    result = verify_list(binary_list(entries), pcrs=pcrs_after(entries, "sha1", "sha256"))
    assert sum(line.startswith("Violation") for line in result.details()) == 5
    assert sum("name" in place for place in result.facts["violations"]["places"]) == 5
