"""Public and own lists give the answers that are known of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.evidence.checks import Outcome
from excise.evidence.ima import read_list, verify_list
from excise.evidence.pcr import read_pcr_path

LAB = {
    "appr-enforce": 1,
    "k61cloud-ng": 59,
    "off": 1,
    "tcb-ima-sha1": 55,
    "tcb-ng": 55,
    "tcb-ng-violations": 59,
    "tcb-ngv2": 55,
    "tcb-sig-default": 55,
}
BANKS = ("sha1", "sha256", "sha384", "sha512")


def check(result, check_id):
    return next(c for c in result.checks if c.id == check_id)


@pytest.mark.parametrize("guest", LAB)
def test_lists_of_real_kernels_lead_to_the_pcrs_of_their_tpm(shared_vectors: Path, guest: str):
    folder = shared_vectors / "ima" / "lab" / guest
    pcrs = read_pcr_path(folder / "pcrs.txt")
    lists = sorted(folder.glob("*_runtime_measurements*"))
    assert len(lists) == (2 if guest.startswith("k61") else 5)
    for path in lists:
        result = verify_list(path, pcrs=pcrs)
        assert result.verdict is Outcome.PASSED, path.name
        assert {b.bank for b in result.banks if b.reached} == set(BANKS), path.name
        assert result.coverage.covered_entries == result.coverage.entries == LAB[guest]
        assert check(result, "ima.boot_aggregate").outcome is Outcome.PASSED
        assert check(result, "ima.template_hash").outcome is Outcome.PASSED
        assert result.coverage.complete
        violations = int((folder / "violations").read_text())
        assert result.facts["violations"]["count"] == violations


def test_an_old_kernel_pads_sha1_in_the_banks_it_cannot_compute(shared_vectors: Path):
    folder = shared_vectors / "ima" / "lab" / "k61cloud-ng"
    pcrs = read_pcr_path(folder / "pcrs.txt")
    result = verify_list(folder / "binary_runtime_measurements", pcrs=pcrs)
    rules = {bank.bank: bank.rule for bank in result.banks}
    assert rules == {
        "sha1": "own",
        "sha256": "own",
        "sha384": "padded-sha1-wide-violations",
        "sha512": "padded-sha1-wide-violations",
    }


def test_a_guest_without_a_tpm_proves_nothing_and_says_so(shared_vectors: Path):
    folder = shared_vectors / "ima" / "lab" / "notpm"
    for name in ("binary_runtime_measurements", "ascii_runtime_measurements"):
        result = verify_list(folder / name, pcrs={})
        assert result.verdict is Outcome.NOT_COVERED
        assert "no TPM" in check(result, "ima.boot_aggregate").detail
        assert result.checkpoint is None


def kgoldman_pcrs(folder: Path) -> dict[str, dict[int, bytes]]:
    lines = (folder / "imakvtpcr10.txt").read_text().splitlines()
    values = [bytes.fromhex(line.split(":")[1]) for line in lines if ":" in line]
    return {bank: {10: v} for bank, v in zip(BANKS, values, strict=True)}


@pytest.mark.parametrize("bank", BANKS)
def test_each_per_bank_list_of_one_boot_leads_to_all_four_pcrs(shared_vectors: Path, bank: str):
    folder = shared_vectors / "ima" / "kgoldman__ibmtss"
    path = folder / f"binary_runtime_measurements_{bank}.log"
    result = verify_list(path, pcrs=kgoldman_pcrs(folder))
    assert result.verdict is Outcome.PASSED
    assert result.facts["header_bank"] == bank
    assert result.coverage.covered_entries == 362
    assert check(result, "ima.template_hash").got.startswith("362 entries")


def test_every_template_of_one_list_is_replayed(shared_vectors: Path):
    path = shared_vectors / "ima" / "kgoldman__ibmtss" / "imatest.log"
    result = verify_list(path, pcrs={})
    assert len(result.facts["templates"]) == 14
    assert result.facts["replayed"]["sha1:10"].startswith("0ff68e1da514770e")
    assert result.facts["replayed"]["sha256:10"].startswith("af02ae09413721fd")
    assert result.facts["violations"]["places"] == [
        {"index": 6, "offset": 416, "line": 0, "name": "boot_aggregate"}
    ]
    assert check(result, "ima.template_hash").outcome is Outcome.PASSED
    assert check(result, "ima.fields").outcome is Outcome.PASSED


@pytest.mark.parametrize(
    ("name", "entries", "trailing", "violations", "fault"),
    [
        ("sml-ima-sha1", 12, 1, 0, ("pcr", 916)),
        ("sml-ima-ng-sha1", 6, 1, 0, ("pcr", 558)),
        ("sml-ima-sig-sha256", 9, 6, 0, ("template-hash", 991)),
        ("sml-ima-sha1-invalidated", 1, 0, 1, None),
        ("sml-ima-ng-sha1-invalidated", 0, 86, 0, ("template-data", 38)),
        ("sml-ima-sig-sha256-invalidated", 2, 0, 1, None),
    ],
)
def test_stray_and_missing_bytes_are_counted(
    shared_vectors: Path, name: str, entries: int, trailing: int, violations: int, fault
):
    path = shared_vectors / "ima" / "tpm2-software__tpm2-tss" / f"{name}.bin"
    result = verify_list(path, pcrs={})
    assert check(result, "ima.format").got == f"{entries} entries, {trailing} trailing bytes"
    assert result.facts["violations"]["count"] == violations
    found = result.replay.fault
    assert (found and (found.field, found.offset)) == fault
    assert result.verdict is not Outcome.PASSED


def test_a_list_with_a_stray_byte_leads_to_its_pcr(shared_vectors: Path):
    path = shared_vectors / "ima" / "tpm2-software__tpm2-tss" / "sml-ima-ng-sha1.bin"
    assert verify_list(path, pcrs={}).facts["replayed"]["sha1:10"].startswith("ef2a20de")


MADE_GOOD = [
    *("01-good", "09-ima-ngv2", "10-ima-sigv2", "11-ima-sig", "12-ima-buf", "13-ima-modsig"),
    *("14-evm-sig", "15-custom-fmt", "19-sha512-file-digest", "21-space-in-path"),
    *("24-ima-sig-evm-portable", "25-sigv3-verity", "02-violation"),
]


def made(shared_vectors: Path, name: str, form: str):
    folder = shared_vectors / "ima" / "made"
    pcrs = {
        bank: {10: bytes.fromhex((folder / f"{name}.pcr10-{bank}").read_text())}
        for bank in ("sha1", "sha256")
    }
    return verify_list(folder / f"{name}.{form}", pcrs=pcrs)


@pytest.mark.parametrize("form", ["bin", "asc"])
@pytest.mark.parametrize("name", MADE_GOOD)
def test_made_lists_lead_to_their_pcrs_in_both_forms(shared_vectors: Path, name: str, form: str):
    result = made(shared_vectors, name, form)
    assert result.verdict is Outcome.PASSED
    assert result.coverage.complete
    assert result.facts["violations"]["count"] == (1 if name == "02-violation" else 0)


@pytest.mark.parametrize("name", MADE_GOOD)
def test_made_lists_pass_with_their_files_of_24_pcrs(shared_vectors: Path, name: str):
    folder = shared_vectors / "ima" / "made"
    pcrs = {
        bank: read_pcr_path(folder / f"{name}.pcrs-{bank}", bank=bank)[bank]
        for bank in ("sha1", "sha256")
    }
    result = verify_list(folder / f"{name}.bin", pcrs=pcrs)
    assert result.verdict is Outcome.PASSED
    assert check(result, "ima.boot_aggregate").outcome is Outcome.NOT_COVERED


@pytest.mark.parametrize("form", ["bin", "asc"])
def test_made_lists_with_faults_are_answered(shared_vectors: Path, form: str):
    cut_header = made(shared_vectors, "04-trunc-mid-header", form)
    assert cut_header.verdict is Outcome.PASSED
    assert check(cut_header, "ima.format").outcome is Outcome.NOT_COVERED
    assert cut_header.coverage.trailing_bytes == (6 if form == "bin" else 7)

    cut_data = made(shared_vectors, "05-trunc-mid-data", form)
    assert cut_data.verdict is Outcome.FAILED
    assert cut_data.facts["entries"] == 49

    bad_hash = made(shared_vectors, "06-bad-template-hash-only", form)
    assert bad_hash.verdict is Outcome.FAILED
    assert all(bank.reached for bank in bad_hash.banks)
    assert check(bad_hash, "ima.template_hash").outcome is Outcome.FAILED

    tampered = made(shared_vectors, "07-path-tampered", form)
    assert tampered.verdict is Outcome.FAILED
    assert not any(bank.reached for bank in tampered.banks)
    assert [e.id for e in tampered.explanations if e.reaches] == ["recorded"]
    assert tampered.facts["bad_template_hashes"]["places"][0]["index"] == 30

    empty = made(shared_vectors, "20-empty", form)
    assert empty.verdict is Outcome.NOT_COVERED


def test_rows_of_both_forms_agree(shared_vectors: Path):
    folder = shared_vectors / "ima" / "lab" / "tcb-ng-violations"
    with (
        read_list(folder / "binary_runtime_measurements") as binary,
        read_list(folder / "ascii_runtime_measurements") as ascii_list,
    ):
        left = [(r.pcr, r.template, r.template_hash, r.algorithm, r.name) for r in binary]
        right = [(r.pcr, r.template, r.template_hash, r.algorithm, r.name) for r in ascii_list]
        assert len(left) == 59
        assert left == right
        assert ascii_list.names_ambiguous
        assert not binary.names_ambiguous
