from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eventlog_builder import (
    EV_EFI_ACTION,
    EV_HCRTM,
    EV_IPL,
    EV_NO_ACTION,
    LogEvent,
    agile_event,
    agile_log,
    boot,
    locality,
    registers_after,
    sha1_log,
    spec_id,
)
from excise.errors import FormatError
from excise.evidence.checks import Outcome
from excise.evidence.eventlog import MAX_EVENTS, read_event_log, replay_event_log
from excise.evidence.eventlog_verify import EventLogAppraisal, verify_event_log

BANKS = ("sha1", "sha256", "sha384")


def outcome(found: EventLogAppraisal, check: str) -> Outcome:
    return next(each.outcome for each in found.checks if each.id == check)


def test_a_log_that_leads_to_every_register_passes_in_every_bank() -> None:
    found = verify_event_log(agile_log(boot(), *BANKS), pcrs=registers_after(boot(), *BANKS))
    assert found.verdict is Outcome.PASSED
    assert found.log.format == "crypto-agile"
    assert found.log.banks == BANKS
    assert [outcome(found, f"eventlog.pcr.{bank}") for bank in BANKS] == [Outcome.PASSED] * 3
    assert all(each.reached for each in found.registers)


def test_a_log_of_tpm_1_2_days_passes() -> None:
    found = verify_event_log(sha1_log(boot()), pcrs=registers_after(boot(), "sha1"))
    assert (found.verdict, found.log.format) == (Outcome.PASSED, "sha1")


def test_one_register_that_is_not_reached_fails_and_is_named_with_its_value() -> None:
    pcrs = registers_after(boot(), "sha256")
    pcrs["sha256"][4] = bytes(31) + b"\1"
    found = verify_event_log(agile_log(boot(), "sha256"), pcrs=pcrs)
    check = next(each for each in found.checks if each.id == "eventlog.pcr.sha256")
    assert found.verdict is Outcome.FAILED
    assert check.expected == f"4: {pcrs['sha256'][4].hex()}"
    assert "Register 4 has another value than its 1 events lead to" in check.detail


def test_reordered_events_of_one_register_do_not_lead_to_its_value() -> None:
    events = [LogEvent(8, EV_IPL, b"linux"), LogEvent(8, EV_IPL, b"initrd")]
    pcrs = registers_after(events, "sha256")
    assert verify_event_log(agile_log(events, "sha256"), pcrs=pcrs).verdict is Outcome.PASSED
    turned = agile_log(events[::-1], "sha256")
    assert verify_event_log(turned, pcrs=pcrs).verdict is Outcome.FAILED


def test_without_values_and_with_values_of_another_bank_nothing_passes() -> None:
    log = agile_log(boot(), "sha256")
    assert verify_event_log(log, pcrs={}).verdict is Outcome.NOT_COVERED
    other = verify_event_log(log, pcrs=registers_after(boot(), "sha1"))
    assert other.verdict is Outcome.NOT_COVERED
    assert "no digests of the sha1 bank" in next(
        each.detail for each in other.checks if each.id == "eventlog.pcr.sha1"
    )


def test_registers_that_the_log_never_extends_are_named_and_prove_nothing() -> None:
    log = agile_log(boot(), "sha256")
    found = verify_event_log(log, pcrs={"sha256": {10: b"\1" * 32, 16: bytes(32)}})
    check = next(each for each in found.checks if each.id == "eventlog.pcr.sha256")
    assert (found.verdict, check.detail) == (
        Outcome.NOT_COVERED,
        "Extended by what this log does not show: 10.",
    )


@pytest.mark.parametrize("register", range(8))
def test_a_log_without_the_events_of_one_of_firmwares_registers_was_cut(register: int) -> None:
    pcrs = registers_after(boot(), "sha256")
    kept = [event for event in boot() if event.pcr != register]
    found = verify_event_log(agile_log(kept, "sha256"), pcrs=pcrs)
    assert found.verdict is Outcome.FAILED
    # A register that is as it was after the start, or that nobody may extend, was not.
    for value in (bytes(32), b"\xff" * 32):
        untouched = {"sha256": {**pcrs["sha256"], register: value}}
        assert verify_event_log(agile_log(kept, "sha256"), pcrs=untouched).verdict is Outcome.PASSED


@pytest.mark.parametrize("start", [0, 3])
def test_pcr_0_starts_from_the_locality_that_the_log_tells(start: int) -> None:
    events = [locality(3), *boot()]
    pcrs = registers_after(events, "sha256", start=start)
    found = verify_event_log(agile_log(events, "sha256"), pcrs=pcrs)
    assert found.verdict is (Outcome.PASSED if start == 3 else Outcome.FAILED)


def test_a_hardware_crtm_starts_pcr_0_from_locality_4() -> None:
    events = [LogEvent(0, EV_HCRTM, b"HCRTM"), *boot()]
    pcrs = registers_after(events, "sha256", start=4)
    assert verify_event_log(agile_log(events, "sha256"), pcrs=pcrs).verdict is Outcome.PASSED


def test_events_without_action_extend_nothing_even_for_a_register_that_cannot_exist() -> None:
    events = [*boot(), LogEvent(-1, EV_NO_ACTION, b"WBCL"), LogEvent(4, EV_NO_ACTION, b"note")]
    pcrs = registers_after(events, "sha1")
    for log in (sha1_log(events), agile_log(events, "sha1")):
        assert verify_event_log(log, pcrs=pcrs).verdict is Outcome.PASSED


def test_the_events_of_leaving_boot_services_are_supplied_and_said() -> None:
    left_out = [
        LogEvent(5, EV_EFI_ACTION, b"Exit Boot Services Invocation"),
        LogEvent(5, EV_EFI_ACTION, b"Exit Boot Services Returned with Success"),
    ]
    log = agile_log(boot(), "sha256")
    found = verify_event_log(log, pcrs=registers_after([*boot(), *left_out], "sha256"))
    assert found.verdict is Outcome.PASSED
    (five,) = [each for each in found.registers if each.replayed.register == 5]
    assert five.supplied == tuple(event.data.decode() for event in left_out)
    half = verify_event_log(log, pcrs=registers_after([*boot(), left_out[0]], "sha256"))
    assert half.verdict is Outcome.FAILED


def test_events_are_not_supplied_to_a_register_whose_digests_have_a_gap() -> None:
    *kept, last = boot()
    left_out = [
        LogEvent(5, EV_EFI_ACTION, b"Exit Boot Services Invocation"),
        LogEvent(5, EV_EFI_ACTION, b"Exit Boot Services Returned with Success"),
    ]
    log = agile_log(kept, "sha1", "sha256") + agile_event(last, ["sha1"])
    # As if the event without a digest of this bank had not been.
    pcrs = registers_after([*kept, *left_out], "sha256")
    assert verify_event_log(log, pcrs=pcrs).verdict is Outcome.FAILED


@pytest.mark.parametrize("padding", [b"\xff" * 4096, b"\0" * 4096, b"\xff" * 3])
def test_padding_is_counted_and_not_read(padding: bytes) -> None:
    found = verify_event_log(
        agile_log(boot(), "sha256") + padding, pcrs=registers_after(boot(), "sha256")
    )
    assert (found.verdict, found.log.padding_bytes) == (Outcome.PASSED, len(padding))


def test_a_hostile_log_ends_at_the_limit_of_events() -> None:
    # Events of zeros look like padding, each of them, and one byte at the end says that none is.
    # A look at the whole rest at every event would take minutes here.
    quiet = struct.pack("<II20sI", 0, 0, bytes(20), 0)
    log = read_event_log(sha1_log(boot()) + quiet * (MAX_EVENTS + 9) + bytes(2 << 20) + b"\1")
    assert len(log.events) == MAX_EVENTS
    assert log.fault is not None
    assert "more than 65536 events" in log.fault.reason
    assert log.trailing_bytes == len(quiet) * (len(boot()) + 9) + (2 << 20) + 1


def test_a_log_cut_anywhere_keeps_what_came_before_and_fails() -> None:
    whole = agile_log(boot(), "sha256")
    pcrs = registers_after(boot(), "sha256")
    head = len(spec_id(["sha256"]))
    assert verify_event_log(whole, pcrs=pcrs).verdict is Outcome.PASSED
    ends = {len(agile_log(boot()[:n], "sha256")) for n in range(len(boot()) + 1)}
    for size in range(head, len(whole)):
        found = verify_event_log(whole[:size], pcrs=pcrs)
        assert found.verdict is Outcome.FAILED
        end = max(end for end in ends if end <= size)
        rest = whole[end:size]  # a few zeros cannot be told from padding; the registers can
        assert (outcome(found, "eventlog.whole") is Outcome.PASSED) is (not rest.strip(b"\0"))
        assert found.log.trailing_bytes + found.log.padding_bytes == size - end


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty: no log"),
        (b"CCEL" + bytes(52), "ACPI table CCEL"),
        (bytes(12), "cut inside event 0"),
        (struct.pack("<II20sI", 0, 1, bytes(20), 9999), "announces 9999 bytes, and 0 are left"),
        (spec_id(["sha256"])[:-1] + b"\7", "its own counts make"),
    ],
)
def test_what_is_no_log_at_all_is_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        read_event_log(data, source="log")


def test_a_digest_of_a_hash_that_was_not_announced_is_a_fault_with_its_place() -> None:
    log = agile_log([], "sha256") + agile_log(boot(), "sha1")[len(spec_id(["sha1"])) :]
    found = read_event_log(log)
    assert found.fault is not None
    assert "which the log does not announce" in found.fault.reason
    assert found.fault.offset == len(spec_id(["sha256"])) + 12


def test_an_event_without_a_digest_of_a_bank_breaks_that_bank_alone() -> None:
    log = spec_id(["sha1", "sha256"]) + agile_log(boot(), "sha1")[len(spec_id(["sha1"])) :]
    found = verify_event_log(log, pcrs=registers_after(boot(), "sha1", "sha256"))
    assert outcome(found, "eventlog.pcr.sha1") is Outcome.PASSED
    assert outcome(found, "eventlog.pcr.sha256") is Outcome.FAILED


def test_unknown_types_and_data_that_is_not_what_was_hashed_are_said_and_do_not_fail() -> None:
    events = [
        *boot(),
        LogEvent(4, 0x80001234, b"new"),
        LogEvent(7, 0x80000001, b"variable", {"sha256": bytes(32)}),
    ]
    found = verify_event_log(agile_log(events, "sha256"), pcrs=registers_after(events, "sha256"))
    assert found.verdict is Outcome.PASSED
    assert outcome(found, "eventlog.types") is Outcome.NOT_COVERED
    assert outcome(found, "eventlog.payloads") is Outcome.NOT_COVERED


def test_the_log_of_a_confidential_guest_leads_to_its_measurement_registers() -> None:
    events = [event for event in boot(first_pcr=1) if event.pcr in (1, 2, 3, 4)]
    log = agile_log([locality(3), *events], "sha384", register=1)
    found = verify_event_log(log, pcrs=registers_after(events, "sha384"))
    assert (found.verdict, found.log.format) == (Outcome.PASSED, "ccel")


@settings(max_examples=150)
@given(st.binary(max_size=600), st.booleans())
def test_any_bytes_give_events_or_a_format_error(data: bytes, with_head: bool) -> None:
    head = spec_id(["sha1", "sha256"]) if with_head else b""
    try:
        log = read_event_log(head + data)
    except FormatError:
        return
    last = log.events[-1]
    assert last.offset + log.padding_bytes + log.trailing_bytes <= len(head + data)
    assert (log.fault is None) == (log.trailing_bytes == 0)
    replay_event_log(log)


def _read(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


def test_public_sha1_and_agile_logs_are_read_to_their_end(shared_vectors: Path) -> None:
    attestation = shared_vectors / "eventlog" / "google__go-attestation"
    tss = shared_vectors / "eventlog" / "tpm2-software__tpm2-tss"
    paths = [*attestation.glob("*_eventlog"), *tss.glob("binary_measurements_*.bin")]
    assert len(paths) == 10
    for path in paths:
        log = read_event_log(path.read_bytes(), source=path.name)
        assert log.fault is None, path.name
        assert log.padding_bytes == 0, path.name
    short = read_event_log(_read(attestation, "short_no_action_eventlog"))
    assert (short.format, len(short.events), short.startup_locality) == ("sha1", 1, 3)
    option_rom = read_event_log(_read(attestation, "option_rom_eventlog"))
    assert any(event.register == 0xFFFFFFFF for event in option_rom.events)
    hcrtm = read_event_log(_read(tss, "binary_measurements_hcrtm.bin"))
    assert hcrtm.startup_locality == 4
    assert hcrtm.banks == ("sha1", "sha256", "sm3_256")


def test_a_windows_log_leads_to_the_pcrs_that_its_machine_quoted(shared_vectors: Path) -> None:
    path = shared_vectors / "eventlog" / "google__go-attestation" / "windows_gcp_shielded_vm.json"
    dump = json.loads(path.read_text())
    pcrs = {p["Index"]: base64.b64decode(p["Digest"]) for p in dump["Log"]["PCRs"]}
    log = base64.b64decode(dump["Log"]["Raw"])
    found = verify_event_log(log, pcrs={"sha1": pcrs})
    assert found.verdict is Outcome.PASSED
    reached = [each.replayed.register for each in found.registers if each.reached]
    assert reached == [0, 4, 5, 7, 11, 12, 13, 14]
    for register in reached:
        wrong = {**pcrs, register: bytes(20)}
        assert verify_event_log(log, pcrs={"sha1": wrong}).verdict is Outcome.FAILED


def test_a_log_without_its_last_events_leads_to_pcr_5_of_its_machine(shared_vectors: Path) -> None:
    folder = shared_vectors / "eventlog" / "google__go-attestation"
    # The value is that of the test which ships with the log (go-attestation, eventlog_test.go).
    value = bytes.fromhex("31245808d6d35849bc394f6343f2b3ff908ed5e3")
    log = _read(folder, "ebs_event_missing_eventlog")
    found = verify_event_log(log, pcrs={"sha1": {5: value}})
    assert found.verdict is Outcome.PASSED
    assert [each.supplied for each in found.registers if each.reached] == [
        ("Exit Boot Services Invocation", "Exit Boot Services Returned with Success")
    ]


@pytest.mark.parametrize("padded", ["-unpadded", ""])
def test_logs_of_confidential_guests_lead_to_the_known_rtmrs(
    shared_vectors: Path, padded: str
) -> None:
    folder = shared_vectors / "ccel" / "google__go-eventlog"
    stem = "testdata__eventlogs__ccel__cos-113-intel-tdx-dupe-separator"
    log = read_event_log(_read(folder, f"{stem}{padded}.bin"))
    values = {each.register: each.value.hex()[:8] for each in replay_event_log(log)}
    assert values == {1: "a4de2df2", 2: "0ee9366c", 3: "4969684d"}
    assert (log.padding_bytes > 0) is (padded == "")
    with pytest.raises(FormatError, match="ACPI table CCEL"):
        read_event_log(_read(folder, "testdata__eventlogs__ccel__CCEL.bin"))
