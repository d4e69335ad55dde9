"""Every check, explanation and meeting has its line in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from excise.evidence.ima import Meeting, verify_list
from ima_builder import binary_list, boot_aggregate, files, pcr_after, violation

ROOT = Path(__file__).resolve().parents[3]
DOCUMENT = (ROOT / "docs" / "ima.md").read_text()


def test_every_check_and_explanation_is_documented():
    boot = {i: bytes(32) for i in range(10)}
    entries = [boot_aggregate(boot), *files(30), violation(), *files(2, pcr=11)]
    pcrs = {
        "sha256": {**dict.fromkeys(range(10), b"\1" * 32), 10: b"\2" * 32, 11: b"\3" * 32},
        "sha1": {10: pcr_after(entries[1:], "sha1")},
        "sha384": {10: bytes(48)},
    }
    raw = binary_list(entries) + b"\1"
    results = [
        verify_list(raw, pcrs=pcrs, start_offset=5),
        verify_list(raw, pcrs={}),
    ]
    ids = {check.id for result in results for check in result.checks}
    assert {"ima.pcr", "ima.checkpoint", "ima.pcr.sha256.11"} <= ids
    for check_id in ids:
        generic = re.sub(r"^ima\.pcr\.\w+", "ima.pcr.BANK", check_id)
        generic = re.sub(r"BANK\.\d+$", "BANK.INDEX", generic)
        assert f"`{generic}`" in DOCUMENT, check_id
    explained = {e.id for result in results for e in result.explanations}
    assert {"cut-list", "other-boot", "dropped-entry", "reset-value"} <= explained
    for name in explained | {"capped-bank", "swapped-entry", "dropped-or-swapped-entry"}:
        assert f"`{name}`" in DOCUMENT, name
    for meeting in set(Meeting) - {Meeting.FULL}:
        assert f"| `{meeting.value}` |" in DOCUMENT


def test_the_limits_in_the_documentation_are_those_of_the_reader():
    limits = (ROOT / "rust" / "formats" / "src" / "ima" / "limits.rs").read_text()
    for constant, shown in (
        ("MAX_PCR_INDEX: u32 = 63", "PCR index 63"),
        ("MAX_TEMPLATE_DATA_BYTES: usize = 16 << 20", "template data 16 MiB"),
        ("MAX_NAME_LINES: usize = 64", "64 line breaks"),
        ("MAX_LISTED: usize = 1000", "first 1,000"),
        ("DETECT_RECORDS: usize = 16", "first 16 entries"),
    ):
        assert constant in limits
        assert shown in DOCUMENT
