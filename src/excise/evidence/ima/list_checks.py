"""The checks of a measurement list, each with its stable id; docs/ima.md lists them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from excise.evidence.checks import Check, Outcome
from excise.evidence.ima.attempt import Attempt, BankResult, Targets
from excise.evidence.ima.coverage import Coverage
from excise.evidence.ima.replay import PADDED, PADDED_WIDE, Replay
from excise.units import counted

SHOW: Final = "Linux security/integrity/ima/ima_fs.c, ima_measurements_show"
TEMPLATES: Final = "Linux security/integrity/ima/ima_template.c, ima_template_lib.c"
HASH: Final = "Linux security/integrity/ima/ima_crypto.c, ima_calc_field_array_hash"
VIOLATION: Final = "Linux security/integrity/ima/ima_main.c, ima_rdwr_violation_check"
EXTEND: Final = (
    "TCG TPM 2.0 Library Part 1, Extend of a PCR; Linux security/integrity/ima/ima_queue.c"
)

_RULE_TEXTS: Final = {
    PADDED: "zero-padded SHA-1 template digests",
    PADDED_WIDE: "zero-padded SHA-1 template digests, violations as wide as the bank",
}


def list_checks(
    found: Replay,
    *,
    coverage: Coverage,
    require_complete: bool,
    forbid_violations: bool,
) -> Iterator[Check]:
    """Give the checks that need no PCR value, and the check of coverage."""
    yield _format(found, require_complete=require_complete)
    yield _fields(found)
    yield _template_hash(found)
    yield _violations(found, forbid=forbid_violations)
    yield _coverage(coverage, require_complete=require_complete)


def _format(found: Replay, *, require_complete: bool) -> Check:
    layout, fault = found.layout, found.fault
    got = f"{found.entries} entries, {found.trailing_bytes} trailing bytes"
    outcome, detail = Outcome.PASSED, []
    if layout.format is None:
        outcome = Outcome.NOT_COVERED
        detail.append("The list is empty." if fault is None else "")
    else:
        detail.append(
            f"{layout.format}, {layout.byte_order}-endian, template hashes of {layout.header_bank}"
            + (
                f" ({found.detect_verified} of the first {found.detect_records} entries fit)."
                if found.detect_records
                else " (as given)."
            )
        )
    if layout.format == "ascii":
        detail.append(
            "Names are ambiguous: the kernel neither escapes them nor keeps their spaces."
        )
    if fault is not None:
        where = f"line {fault.line}, " if fault.line else ""
        detail.append(f"{where}offset {fault.offset}, field {fault.field}: {fault.reason}.")
        lenient = fault.truncated and not require_complete
        outcome = Outcome.NOT_COVERED if lenient else Outcome.FAILED
    elif found.trailing_bytes:
        outcome = Outcome.FAILED
        detail.append("Bytes stand after the end that the kexec header announces.")
    expected = "whole entries up to the end"
    if found.kexec is not None:
        size_bytes, count = found.kexec
        expected = f"{count} entries in {size_bytes} bytes (kexec header)"
        if count != found.entries:
            outcome = Outcome.FAILED
    text = " ".join(part for part in detail if part)
    return _check("ima.format", outcome, SHOW, expected, got, text)


def _fields(found: Replay) -> Check:
    bad = found.malformed
    outcome = Outcome.FAILED if bad.count else Outcome.PASSED
    if not found.entries or found.opaque.count == found.entries:
        outcome = Outcome.NOT_COVERED
    detail = ""
    if bad.items:
        first = bad.items[0]
        detail = f"First: {first.place}, field {first.field}: {first.reason}."
    unknown = sum(found.templates.values()) - _known(found)
    if unknown:
        detail = (
            f"{detail} {counted(unknown, 'entry', 'entries')} of unknown templates not "
            "looked into.".strip()
        )
    return _check(
        "ima.fields", outcome, TEMPLATES, "0 malformed entries", f"{bad.count} malformed", detail
    )


TEMPLATE_NAMES: Final = frozenset(
    ("ima", "ima-ng", "ima-sig", "ima-buf", "ima-modsig", "evm-sig", "ima-ngv2", "ima-sigv2")
)
_FIELD_IDS: Final = frozenset(
    (
        *("d", "n", "d-ng", "d-ngv2", "n-ng", "sig", "buf", "d-modsig", "modsig", "evmsig"),
        *("iuid", "igid", "imode", "xattrnames", "xattrlengths", "xattrvalues"),
    )
)


def _known(found: Replay) -> int:
    return sum(
        count
        for name, count in found.templates.items()
        if name in TEMPLATE_NAMES or all(field in _FIELD_IDS for field in name.split("|"))
    )


def _template_hash(found: Replay) -> Check:
    bad, opaque = found.bad_hashes, found.opaque
    checked = found.entries - found.violations.count - opaque.count
    outcome = Outcome.PASSED if checked else Outcome.NOT_COVERED
    expected = got = detail = ""
    if bad.count:
        first = bad.items[0]
        outcome, expected, got = Outcome.FAILED, first.expected.hex(), first.got.hex()
        detail = (
            f"{bad.count} of {counted(checked, 'entry', 'entries')} differ; first: {first.place}."
        )
    elif checked:
        expected = got = f"{checked} entries with the {found.layout.header_bank} hash of their data"
    if opaque.count:
        outcome = Outcome.FAILED
        detail = (
            f"{detail} {counted(opaque.count, 'entry', 'entries')}, first {opaque.items[0]}: "
            "template data that "
            "their line does not determine; the binary list has it."
        ).strip()
    return _check("ima.template_hash", outcome, HASH, expected, got, detail)


def _violations(found: Replay, *, forbid: bool) -> Check:
    count = found.violations.count
    outcome = Outcome.PASSED if found.entries else Outcome.NOT_COVERED
    detail = ""
    if count:
        outcome = Outcome.FAILED if forbid else Outcome.NOT_COVERED
        detail = (
            f"First: {found.violations.items[0]}. A violation extends 0xff, so no PCR "
            "authenticates what its entry says."
        )
    got = counted(count, "violation")
    return _check("ima.violations", outcome, VIOLATION, "0 violations", got, detail)


def _coverage(coverage: Coverage, *, require_complete: bool) -> Check:
    outcome = Outcome.PASSED if coverage.complete and coverage.entries else Outcome.NOT_COVERED
    if require_complete and not coverage.complete:
        outcome = Outcome.FAILED
    detail = []
    if coverage.match is not None:
        detail.append(f"Covered up to {coverage.match}.")
    if coverage.tail_entries and coverage.covered_entries:
        detail.append(
            f"{counted(coverage.tail_entries, 'entry follows', 'entries follow')} "
            "that no value covers."
        )
    for pcr, entries in coverage.other_entries.items():
        detail.append(f"{counted(entries, 'entry', 'entries')} of PCR {pcr} not covered.")
    if coverage.trailing_bytes:
        detail.append(f"{coverage.trailing_bytes} bytes at the end are no whole entry.")
    if not coverage.atomic:
        detail.append("The banks were read at different times: the least is counted.")
    return _check(
        "ima.coverage",
        outcome,
        EXTEND,
        f"{coverage.entries} entries",
        f"{coverage.covered_entries} entries",
        " ".join(detail),
    )


def pcr_checks(tried: Attempt, targets: Targets, coverage: Coverage) -> Iterator[Check]:
    """Give one check for each PCR value given."""
    if not targets.banks and not targets.unreplayable:
        detail = f"No value of PCR {targets.pcr} was given."
        yield _check("ima.pcr", Outcome.NOT_COVERED, EXTEND, "", "", detail)
    for bank in targets.unreplayable:
        detail = "Lists cannot be replayed in this bank."
        expected = targets.boot[bank][targets.pcr].hex()
        yield _check(f"ima.pcr.{bank}", Outcome.FAILED, EXTEND, expected, "", detail)
    for result in tried.results:
        name = f"ima.pcr.{result.bank}"
        if result.pcr != targets.pcr:
            name = f"{name}.{result.pcr}"
        yield _pcr(name, result, coverage)


def _pcr(name: str, result: BankResult, coverage: Coverage) -> Check:
    expected = result.expected.hex()
    if result.reached:
        detail = []
        if result.hit:
            detail.append(f"Reached at {result.hit.place}.")
        else:
            detail.append("It is the checkpoint's own value: no new entry is covered.")
        if result.rule in _RULE_TEXTS:
            detail.append(f"Rule: {_RULE_TEXTS[result.rule]}.")
        return _check(name, Outcome.PASSED, EXTEND, expected, expected, " ".join(detail))
    if not result.entries and not coverage.entries and not any(result.expected):
        detail_text = "The list is empty, and so is the register: nothing is proven."
        return _check(name, Outcome.NOT_COVERED, EXTEND, expected, result.value.hex(), detail_text)
    if result.broken_at is not None:
        detail_text = (
            f"The data of entry {result.broken_at} is not known, and its digest in this bank with "
            "it; the binary list has it."
        )
    elif not result.entries:
        detail_text = "The list has no entry of this PCR."
    else:
        detail_text = f"None of its {result.entries} entries leads there; got is the last value."
    return _check(name, Outcome.FAILED, EXTEND, expected, result.value.hex(), detail_text)


def _check(name: str, outcome: Outcome, clause: str, expected: str, got: str, detail: str) -> Check:
    return Check(id=name, outcome=outcome, expected=expected, got=got, clause=clause, detail=detail)
