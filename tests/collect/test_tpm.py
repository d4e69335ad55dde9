from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from excise.collect import tpm as collector
from excise.collect.tpm import allocated_pcrs, quote, read_pcrs
from excise.errors import HostError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.pcr import parse_selection, read_pcr_bytes, read_pcr_path
from excise.evidence.quote import verify_quote
from software_tpm import SoftwareTpm, require, software_tpm

require("tpm2_pytss")

NONCE = bytes(range(32))
TWO_BANKS = {"sha256": [0, 7, 10], "sha1": [10, 16]}


def test_pcrs_equal_those_that_tpm2_tools_read(swtpm: SoftwareTpm) -> None:
    swtpm.tool("tpm2_pcrextend", f"16:sha1={'ab' * 20},sha256={'cd' * 32}")
    values = read_pcrs(swtpm.tcti, selection={"sha256": range(24), "sha1": range(24)})
    expected = read_pcr_bytes(swtpm.tool("tpm2_pcrread", "sha256:all+sha1:all").encode())
    assert values == expected
    assert any(values["sha1"][16])


@pytest.mark.parametrize("key", ["ecdsa", "rsassa", "rsapss"])
@pytest.mark.parametrize("hierarchy", ["endorsement", "null", "owner"])
def test_quote_verifies_and_leaves_no_object_behind(
    swtpm: SoftwareTpm, key: collector.KeyScheme, hierarchy: collector.Hierarchy
) -> None:
    made = quote(
        swtpm.tcti, qualifying_data=NONCE, selection=TWO_BANKS, key=key, hierarchy=hierarchy
    )
    result = verify_quote(
        made.attest, made.signature, made.public, qualifying_data=NONCE, pcrs=made.pcrs
    )
    assert result.verdict is Outcome.PASSED
    assert result.facts["scheme"] == key.upper()
    assert result.facts["hierarchy"] == hierarchy
    assert result.pcrs == read_pcrs(swtpm.tcti, selection=TWO_BANKS)
    for kind in ("transient", "loaded-session", "saved-session"):
        assert swtpm.tool("tpm2_getcap", f"handles-{kind}") == ""


def test_files_of_a_quote_are_all_that_its_verification_needs(
    swtpm: SoftwareTpm, tmp_path: Path
) -> None:
    made = quote(swtpm.tcti, qualifying_data=NONCE, selection=TWO_BANKS)
    for name, data in made.files().items():
        (tmp_path / name).write_bytes(data)
    result = verify_quote(
        (tmp_path / "quote.attest").read_bytes(),
        (tmp_path / "quote.signature").read_bytes(),
        (tmp_path / "quote.public").read_bytes(),
        qualifying_data=NONCE,
        pcrs=read_pcr_path(tmp_path / "quote.pcrs"),
    )
    assert result.verdict is Outcome.PASSED


def test_allocated_pcrs_are_those_of_the_tpm(swtpm: SoftwareTpm) -> None:
    banks = allocated_pcrs(swtpm.tcti)
    printed = swtpm.tool("tpm2_getcap", "pcrs")
    expected = {
        bank: tuple(range(24))
        for bank in ("sha1", "sha256", "sha384", "sha512")
        if f"- {bank}: [ 0," in printed
    }
    assert expected
    assert banks == expected


def test_endorsement_key_is_the_same_each_time_and_its_quotes_advance(swtpm: SoftwareTpm) -> None:
    first, second = (
        quote(swtpm.tcti, qualifying_data=NONCE, selection={"sha256": [0]}) for _ in range(2)
    )
    assert first.public == second.public
    result = verify_quote(
        second.attest,
        second.signature,
        second.public,
        qualifying_data=NONCE,
        pcrs=second.pcrs,
        previous=first.attest,
    )
    assert result.verdict is Outcome.PASSED
    passed = {check.id for check in result.checks if check.outcome is Outcome.PASSED}
    assert passed >= {"quote.clock", "quote.reset_count", "quote.firmware"}
    swapped = verify_quote(
        first.attest,
        first.signature,
        first.public,
        qualifying_data=NONCE,
        pcrs=first.pcrs,
        previous=second.attest,
    )
    failed = {check.id for check in swapped.checks if check.outcome is Outcome.FAILED}
    assert failed <= {"quote.clock"}  # both may fall into one millisecond


def test_five_hundred_ecdsa_quotes_verify_whatever_zeros_their_numbers_begin_with(
    swtpm: SoftwareTpm,
) -> None:
    """About four in 500 have an r or an s with a leading zero byte."""
    with (
        collector.open_tpm(swtpm.tcti) as tpm,
        collector.attestation_key(tpm, "ecdsa", "null") as ak,
    ):
        handle, public = ak
        wanted = {"sha256": (0, 10)}
        pcrs = collector.read_consistently(tpm, wanted)
        for number in range(500):
            nonce = number.to_bytes(32, "big")
            attest, signature, _ = collector.sign_quote(tpm, handle, wanted, nonce)
            result = verify_quote(attest, signature, public, qualifying_data=nonce, pcrs=pcrs)
            assert result.verdict is Outcome.PASSED, (number, signature.hex())


def extend_pcr_16(tpm: object) -> None:
    from tpm2_pytss import ESYS_TR, TPM2_ALG, TPML_DIGEST_VALUES, TPMT_HA, TPMU_HA

    digest = TPMT_HA(hashAlg=TPM2_ALG.SHA256, digest=TPMU_HA(sha256=b"\1" * 32))
    tpm.pcr_extend(ESYS_TR.PCR16, TPML_DIGEST_VALUES([digest]))  # type: ignore[attr-defined]


def test_quote_is_repeated_while_a_pcr_moves_before_and_after_it(
    swtpm: SoftwareTpm, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves_left = 2
    original = collector.sign_quote

    def sign(tpm: object, *arguments: object) -> object:
        nonlocal moves_left
        if moves_left == 0:
            return original(tpm, *arguments)  # type: ignore[arg-type]
        moves_left -= 1
        extend_pcr_16(tpm)
        signed = original(tpm, *arguments)  # type: ignore[arg-type]
        extend_pcr_16(tpm)
        return signed

    monkeypatch.setattr(collector, "sign_quote", sign)
    made = quote(swtpm.tcti, qualifying_data=NONCE, selection={"sha256": [0, 16]})
    assert made.attempts == 3
    result = verify_quote(
        made.attest, made.signature, made.public, qualifying_data=NONCE, pcrs=made.pcrs
    )
    assert result.verdict is Outcome.PASSED
    moves_left = 10**6
    with pytest.raises(HostError, match="a PCR moved during each of 16 quotes"):
        quote(swtpm.tcti, qualifying_data=NONCE, selection={"sha256": [0, 16]})
    assert swtpm.tool("tpm2_getcap", "handles-transient") == ""


def test_values_read_after_the_quote_are_taken_when_the_pcr_moved_before_it(
    swtpm: SoftwareTpm, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = collector.sign_quote

    def sign(tpm: object, *arguments: object) -> object:
        extend_pcr_16(tpm)
        return original(tpm, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(collector, "sign_quote", sign)
    made = quote(swtpm.tcti, qualifying_data=NONCE, selection={"sha256": [16]})
    assert made.attempts == 1
    assert made.pcrs == read_pcrs(swtpm.tcti, selection={"sha256": [16]})


def test_bank_the_tpm_does_not_have_is_a_host_error(swtpm: SoftwareTpm) -> None:
    with pytest.raises(HostError, match=r"the TPM refuses: .*hash algorithm not supported"):
        read_pcrs(swtpm.tcti, selection={"sm3_256": [0]})
    assert swtpm.tool("tpm2_getcap", "handles-transient") == ""


def test_bank_that_is_switched_off_is_a_host_error_and_no_shorter_quote() -> None:
    with tempfile.TemporaryDirectory(prefix="swtpm") as name:
        folder = Path(name)
        with software_tpm(folder) as tpm:
            tpm.tool("tpm2_pcrallocate", "sha1:none+sha256:all")
            tpm.tool("tpm2_shutdown", "--clear")
        with software_tpm(folder) as tpm:
            assert "sha1" not in allocated_pcrs(tpm.tcti)
            assert read_pcrs(tpm.tcti, selection={"sha256": [0]})
            with pytest.raises(HostError, match="no such PCRs in its banks: sha1"):
                read_pcrs(tpm.tcti, selection=TWO_BANKS)
            with pytest.raises(HostError, match="no such PCRs in its banks: sha1"):
                quote(tpm.tcti, qualifying_data=NONCE, selection=TWO_BANKS)
            assert tpm.tool("tpm2_getcap", "handles-transient") == ""


@pytest.mark.parametrize(
    ("tcti", "reason"),
    [("swtpm:path=/nonexistent/s", "no TPM answers"), ("nosuchtcti:", "no TPM answers")],
)
def test_absent_tpm_is_a_host_error_that_says_how_to_name_one(tcti: str, reason: str) -> None:
    with pytest.raises(HostError, match=f"{reason}.*device:/dev/tpmrm0"):
        read_pcrs(tcti, selection={"sha256": [0]})


@pytest.mark.parametrize(
    ("selection", "data", "reason"),
    [
        ({}, NONCE, "selection is empty"),
        ({"sha256": []}, NONCE, "selection is empty"),
        ({"sha257": [1]}, NONCE, "unknown PCR bank 'sha257'"),
        ({"sha256": [24]}, NONCE, "PCR 24 is not within"),
        ({"sha256": [-1]}, NONCE, "PCR -1 is not within"),
        ({"sha256": [1]}, b"", "qualifying data of 0 bytes"),
        ({"sha256": [1]}, bytes(65), "qualifying data of 65 bytes"),
    ],
)
def test_senseless_request_is_a_usage_error_before_any_tpm_is_asked(
    selection: dict[str, list[int]], data: bytes, reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        quote("device:/dev/null", qualifying_data=data, selection=selection)


def test_unknown_key_scheme_is_a_usage_error(swtpm: SoftwareTpm) -> None:
    with pytest.raises(UsageError, match="unknown key scheme 'dsa'"):
        quote(
            swtpm.tcti,
            qualifying_data=NONCE,
            selection={"sha256": [0]},
            key="dsa",  # type: ignore[arg-type]
        )


def test_command_is_repeated_while_the_tpm_asks_for_it_and_no_longer() -> None:
    from tpm2_pytss import TSS2_Exception

    answers = [0x922, 0x90A, 0x908, 0x920]

    def command() -> str:
        if answers:
            raise TSS2_Exception(answers.pop())
        return "done"

    assert collector.patiently(command) == "done"

    def refused() -> str:
        raise TSS2_Exception(0x922)

    with pytest.raises(TSS2_Exception, match=r"retry|not able to start"):
        collector.patiently(refused, deadline_s=0.0)

    calls = 0

    def wrong() -> str:
        nonlocal calls
        calls += 1
        raise TSS2_Exception(0x101)

    with pytest.raises(TSS2_Exception, match="failure"):
        collector.patiently(wrong)
    assert calls == 1


def test_python_without_pytss_gets_a_host_error_that_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['tpm2_pytss'] = None\n"
        "from excise.collect.tpm import read_pcrs\n"
        "from excise.errors import HostError\n"
        "try: read_pcrs('device:/dev/null', selection={'sha256': [0]})\n"
        "except HostError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "tpm2-pytss cannot be loaded" in done.stdout
    assert "excise[tpm]" in done.stdout


def test_errors_of_the_tss_do_not_reach_stderr_and_its_variable_is_taken_back() -> None:
    program = (
        "import os; from excise.collect.tpm import read_pcrs\n"
        "from excise.errors import HostError\n"
        "try: read_pcrs('swtpm:path=/nonexistent', selection={'sha256': [0]})\n"
        "except HostError: print('TSS2_LOG' in os.environ)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.parametrize(
    ("kind", "scheme"), [("ecc", "ecdsa"), ("rsa", "rsassa"), ("rsa", "rsapss")]
)
@pytest.mark.parametrize("pcr_form", ["values", "serialized"])
@pytest.mark.parametrize("signature_form", ["tss", "plain"])
def test_quotes_of_tpm2_tools_verify_in_all_their_forms(
    swtpm: SoftwareTpm, kind: str, scheme: str, pcr_form: str, signature_form: str
) -> None:
    order = "sha256:0,10,16+sha1:1,2,3,4,5,6,7,8,9,10"
    swtpm.flush()
    swtpm.tool("tpm2_pcrextend", f"16:sha256={'5a' * 32}")
    swtpm.tool("tpm2_createek", "-G", kind, "-c", "ek.ctx", "-u", "ek.pub")
    swtpm.flush()
    swtpm.tool(
        *("tpm2_createak", "-C", "ek.ctx", "-c", "ak.ctx", "-G", kind, "-g", "sha256"),
        *("-s", scheme, "-u", "ak.tss", "-n", "ak.name"),
    )
    swtpm.flush()
    swtpm.tool("tpm2_readpublic", "-c", "ak.ctx", "-f", "pem", "-o", "ak.pem")
    swtpm.tool("tpm2_readpublic", "-c", "ak.ctx", "-f", "tpmt", "-o", "ak.tpmt")
    swtpm.flush()
    chosen = ("--scheme", scheme) if kind == "rsa" else ()
    printed = swtpm.tool(
        *("tpm2_quote", *chosen, "-c", "ak.ctx", "-l", order, "-q", NONCE.hex(), "-m", "quote.msg"),
        *("-s", "quote.sig", "-f", signature_form, "-o", "quote.pcrs", "-F", pcr_form),
    )
    swtpm.flush()
    read = {name: (swtpm.folder / name).read_bytes() for name in FILES}
    pcrs = read_pcr_bytes(read["quote.pcrs"], selection=parse_selection(order))
    assert pcrs == read_pcr_bytes(printed.encode())
    for public in ("ak.tss", "ak.tpmt", "ak.pem"):
        result = verify_quote(
            read["quote.msg"],
            read["quote.sig"],
            read[public],
            qualifying_data=NONCE,
            pcrs=pcrs,
            expected_name=read["ak.name"],
            parents=[read["ek.pub"]],
        )
        assert result.verdict is Outcome.PASSED
        hierarchy = None if public == "ak.pem" else "endorsement"
        assert result.facts["hierarchy"] == hierarchy


FILES = ("quote.msg", "quote.sig", "quote.pcrs", "ak.tss", "ak.tpmt", "ak.pem", "ak.name", "ek.pub")


def test_certification_by_the_same_key_is_no_quote(swtpm: SoftwareTpm) -> None:
    swtpm.flush()
    swtpm.tool("tpm2_createprimary", "-C", "e", "-c", "primary.ctx", "-G", "ecc")
    swtpm.flush()
    swtpm.tool(
        *("tpm2_create", "-C", "primary.ctx", "-G", "ecc:ecdsa-sha256:null", "-u", "s.pub"),
        *("-r", "s.priv", "-c", "s.ctx", "-a"),
        "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|restricted|sign",
    )
    swtpm.flush()
    swtpm.tool(
        *("tpm2_certify", "-C", "s.ctx", "-c", "primary.ctx", "-g", "sha256"),
        *("-o", "certify.msg", "-s", "certify.sig"),
    )
    swtpm.flush()
    read = [(swtpm.folder / name).read_bytes() for name in ("certify.msg", "certify.sig", "s.pub")]
    pcrs = read_pcrs(swtpm.tcti, selection={"sha256": [0]})
    extra = parse_extra_data(read[0])
    result = verify_quote(
        *read, qualifying_data=extra, pcrs=pcrs, allow_empty_qualifying_data=not extra
    )
    failed = {check.id for check in result.checks if check.outcome is Outcome.FAILED}
    assert failed == {"quote.type", "quote.pcr_selection", "quote.pcr_digest"}


def parse_extra_data(attest: bytes) -> bytes:
    from excise.evidence.tpm_structures import parse_attest

    return parse_attest(attest).extra_data
