"""`excise verify` through the real program: exit codes, JSON, checkpoints, attested captures."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from captures import run, write
from ima_builder import binary_list, d_ng, files, ng, pcr_after, violation
from software_tpm import SoftwareTpm, new_tpm, require

Program = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def excise() -> Program:
    def call(*words: str | Path, stdin: bytes | None = None) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", "from excise.cli.main import main; main()", *map(str, words)],
            input=stdin,
            capture_output=True,
            check=False,
        )
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    return call


def value(entries: list, bank: str = "sha256") -> str:
    return f"{bank}:10={pcr_after(entries, bank).hex()}"


def test_a_list_that_leads_to_the_value_exits_0(tmp_path: Path, excise: Program) -> None:
    entries = files(20)
    (tmp_path / "list").write_bytes(binary_list(entries))
    done = excise("verify", "ima", tmp_path / "list", "--pcr", value(entries))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("ima: PASSED")


def test_standard_input_is_read_for_a_dash(excise: Program) -> None:
    entries = files(3)
    done = excise("verify", "ima", "-", "--pcr", value(entries), stdin=binary_list(entries))
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_wrong_bank_beside_a_right_one_exits_1_in_either_order(
    tmp_path: Path, excise: Program
) -> None:
    entries = files(20)
    (tmp_path / "list").write_bytes(binary_list(entries))
    right, wrong = ("--pcr", value(entries)), ("--pcr", value(files(21), "sha1"))
    assert excise("verify", "ima", tmp_path / "list", *right).returncode == 0
    assert excise("verify", "ima", tmp_path / "list", *right, *wrong).returncode == 1
    assert excise("verify", "ima", tmp_path / "list", *wrong, *right).returncode == 1


def test_without_a_value_nothing_is_proven(tmp_path: Path, excise: Program) -> None:
    (tmp_path / "list").write_bytes(binary_list(files(3)))
    done = excise("verify", "ima", tmp_path / "list", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "NOT_COVERED"


def test_an_uncovered_tail_fails_only_on_request(tmp_path: Path, excise: Program) -> None:
    entries = files(10)
    (tmp_path / "list").write_bytes(binary_list([*entries, ng("/usr/bin/later")]))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    assert excise(*words).returncode == 0
    assert excise(*words, "--require-complete").returncode == 1


def test_unreadable_input_exits_3_and_says_where(tmp_path: Path, excise: Program) -> None:
    done = excise("verify", "ima", tmp_path / "none", "--pcr", value(files(1)), "--json")
    assert done.returncode == 3
    error = json.loads(done.stderr)
    assert error["source"] == str(tmp_path / "none")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--pcr", "sha256:10"], "sha256:10"),
        (["--pcr", "sha256:10=00"], "sha256"),
        (["--quote", "q"], "signature and its key"),
        (["--nonce", "00"], "none was given"),
        (["--violations", "FAIL"], "FAIL"),
        (["--violations", "maybe", "--policy", "sums"], "maybe"),
    ],
)
def test_wrong_usage_exits_2_or_3_and_says_what(
    tmp_path: Path, excise: Program, words: list[str], reason: str
) -> None:
    entries = files(2)
    (tmp_path / "list").write_bytes(binary_list(entries))
    (tmp_path / "sums").write_text(f"{hashlib.sha256(b'content').hexdigest()}  /x\n")
    words = [str(tmp_path / word) if word == "sums" else word for word in words]
    if "--pcr" not in words:
        words += ["--pcr", value(entries)]
    done = excise("verify", "ima", tmp_path / "list", *words)
    assert done.returncode in (2, 3)
    assert reason in done.stderr


def checksums(entries: list) -> str:
    lines = []
    for entry in entries:
        name = entry.values["n-ng"].rstrip(b"\0").decode()
        lines.append(f"{entry.values['d-ng'].split(bytes(1), 1)[1].hex()}  {name}\n")
    return "".join(lines)


def test_a_policy_decides_over_files(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "list").write_bytes(binary_list(entries))
    (tmp_path / "sums").write_text(checksums(entries))
    words = [
        "verify",
        "ima",
        tmp_path / "list",
        "--pcr",
        value(entries),
        "--policy",
        tmp_path / "sums",
    ]
    assert excise(*words).returncode == 0
    (tmp_path / "sums").write_text(checksums(entries[1:]))
    done = excise(*words)
    assert done.returncode == 1
    assert "policy.digests" in done.stdout


def test_relative_names_of_a_policy_are_put_under_a_root(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "list").write_bytes(binary_list(entries))
    (tmp_path / "sums").write_text(checksums(entries).replace("  /", "  "))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    assert excise(*words, "--policy", tmp_path / "sums").returncode == 1
    assert excise(*words, "--policy", tmp_path / "sums", "--policy-root", "/").returncode == 0
    for rest in (["--policy-root", "/"], ["--policy", tmp_path / "sums", "--policy-root", "x"]):
        refused = excise(*words, *rest)
        assert refused.returncode == 2
        assert "--policy-root" in refused.stderr


def test_violations_fail_report_or_are_ignored(tmp_path: Path, excise: Program) -> None:
    entries = [*files(3), violation(), *files(2, prefix="/bin/b")]
    (tmp_path / "list").write_bytes(binary_list(entries))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    assert excise(*words).returncode == 0
    assert excise(*words, "--violations", "fail").returncode == 1


def test_a_file_called_a_buffer_is_still_a_file(tmp_path: Path, excise: Program) -> None:
    """The PCR does not cover the template's name."""
    entries = files(5)
    renamed = binary_list(entries).replace(b"\x06\0\0\0ima-ng", b"\x08\0\0\0d-ng|buf")
    (tmp_path / "list").write_bytes(renamed)
    (tmp_path / "sums").write_text(checksums(files(1, prefix="/somebody/else")))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    assert excise(*words).returncode == 0
    assert excise(*words, "--policy", tmp_path / "sums").returncode == 1


def test_excluding_everything_judges_nothing(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "list").write_bytes(binary_list(entries))
    (tmp_path / "sums").write_text(checksums(entries))
    (tmp_path / "excludes").write_text(".*\n")
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    words += ["--policy", tmp_path / "sums", "--exclude", tmp_path / "excludes"]
    done = excise(*words, "--json")
    # What the policy allows is allowed also where it is excluded.
    assert done.returncode == 0
    (tmp_path / "sums").write_text(checksums(files(1, prefix="/somebody/else")))
    done = excise(*words, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["verdict"] == "NOT_COVERED"


def test_a_checkpoint_hides_no_stricter_setting(tmp_path: Path, excise: Program) -> None:
    entries = [*files(3), violation(), *files(2, prefix="/bin/b")]
    (tmp_path / "list").write_bytes(binary_list(entries))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    words += ["--checkpoint", tmp_path / "state"]
    assert excise(*words, "--violations", "ignore").returncode == 0
    assert excise(*words, "--violations", "fail").returncode == 1


def test_a_pipe_is_read_once_for_list_and_policy(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "sums").write_text(checksums(entries))
    words = ["verify", "ima", "/dev/stdin", "--pcr", value(entries)]
    words += ["--policy", tmp_path / "sums"]
    assert excise(*words, stdin=binary_list(entries)).returncode == 0


def test_a_checkpoint_moves_only_on_success(tmp_path: Path, excise: Program) -> None:
    first, all_ = files(50), [*files(50), *files(6, prefix="/opt/new")]
    listed, state = tmp_path / "list", tmp_path / "state.json"
    listed.write_bytes(binary_list(first))
    words = ["verify", "ima", listed, "--checkpoint", state, "--json"]
    assert excise(*words, "--pcr", value(first)).returncode == 0
    kept = state.read_bytes()
    listed.write_bytes(binary_list(all_))
    wrong = value(files(7, prefix="/other"))
    assert excise(*words, "--pcr", wrong).returncode == 1
    assert state.read_bytes() == kept
    done = excise(*words, "--pcr", value(all_))
    assert done.returncode == 0, done.stdout
    assert json.loads(done.stdout)["results"][0]["facts"]["new_entries"] == 6
    assert state.read_bytes() != kept


def test_a_round_with_nothing_new_and_a_policy_passes(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "list").write_bytes(binary_list(entries))
    (tmp_path / "sums").write_text(checksums(entries))
    words = ["verify", "ima", tmp_path / "list", "--pcr", value(entries)]
    words += ["--policy", tmp_path / "sums", "--checkpoint", tmp_path / "state"]
    assert excise(*words).returncode == 0
    done = excise(*words)
    assert done.returncode == 0, done.stdout


def test_the_report_lists_every_check(tmp_path: Path, excise: Program) -> None:
    entries = files(5)
    (tmp_path / "list").write_bytes(binary_list(entries))
    report = tmp_path / "r.html"
    done = excise("verify", "ima", tmp_path / "list", "--pcr", value(entries), "--report", report)
    assert done.returncode == 0
    page = report.read_text()
    for name in ("ima.pcr.sha256", "ima.template_hash", "ima.coverage"):
        assert name in page


def attested(folder: Path, tpm: SoftwareTpm, *, measured: bool) -> tuple[Path, bytes]:
    """Write a capture, extend a list into the TPM's PCR 10, and attest it."""
    from excise.campaign.attest import attest_capture
    from excise.capture.manifest import Fact

    program = hashlib.sha256(b"the program under test").digest()
    facts = [
        Fact(name="program.prog.sha256", value=program.hex(), must_agree=True),
        Fact(name="cpu.model", value="some CPU", must_agree=True),
    ]
    capture = write(folder / "c", [run(0), run(1)], host_facts=facts)
    entry = ng("/usr/bin/prog")
    entry.values["d-ng"] = d_ng("sha256", program)  # type: ignore[index]
    entries = [*files(3), entry]
    start = {
        bank: bytes.fromhex(line.split("0x")[1])
        for bank in ("sha1", "sha256", "sha384", "sha512")
        for line in tpm.tool("tpm2_pcrread", f"{bank}:10").splitlines()
        if "0x" in line
    }
    assert not any(start["sha256"]), "each test needs a TPM of its own"
    listed = folder / "list"
    listed.write_bytes(binary_list(entries))
    for each in entries if measured else entries[:-1]:
        data = each.data()
        digests = ",".join(
            f"{bank}={hashlib.new(bank, data).hexdigest()}" for bank in start if any(start)
        )
        tpm.tool("tpm2_pcrextend", f"10:{digests}")
    attest_capture(capture, tcti=tpm.tcti, ima_list=listed)
    return capture, (capture / "evidence" / "quote.public").read_bytes()


@pytest.fixture
def own_tpm() -> Iterator[SoftwareTpm]:
    with new_tpm() as tpm:
        yield tpm


def test_an_attested_capture_proves_numbers_and_program(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    require("tpm2_pytss")
    capture, key = attested(tmp_path, own_tpm, measured=True)
    (tmp_path / "ak.pub").write_bytes(key)
    done = excise("verify", "capture", capture, "--key", tmp_path / "ak.pub", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["results"][0]
    proven = {claim["name"]: claim["proven"] for claim in result["claims"]}
    page = tmp_path / "report.html"
    assert excise("report", capture, "-o", page).returncode == 0
    assert "capture.seal" in page.read_text()
    assert proven == {
        "the numbers are those that were sealed": True,
        "IMA measured": True,
        "program.prog.sha256": True,
        "cpu.model": False,
    }


def test_a_program_outside_the_covered_list_is_only_stated(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    require("tpm2_pytss")
    capture, key = attested(tmp_path, own_tpm, measured=False)
    (tmp_path / "ak.pub").write_bytes(key)
    done = excise("verify", "capture", capture, "--key", tmp_path / "ak.pub", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)["results"][0]
    proven = {claim["name"]: claim["proven"] for claim in result["claims"]}
    assert proven["IMA measured"] is True
    assert proven["program.prog.sha256"] is False


def test_tampering_with_an_attested_capture_is_found(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    """Each case differs from the passing one in one thing."""
    require("tpm2_pytss")
    capture, key = attested(tmp_path, own_tpm, measured=True)
    (tmp_path / "ak.pub").write_bytes(key)
    words = ["verify", "capture", capture, "--key", tmp_path / "ak.pub"]
    assert excise(*words).returncode == 0
    for name in (
        "journal.jsonl",
        "manifest.json",
        "evidence/quote.attest",
        "evidence/quote.signature",
        "evidence/quote.pcrs",
        "evidence/ima_binary_runtime_measurements",
    ):
        path = capture / name
        content = path.read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 0x01
        path.write_bytes(changed)
        done = excise(*words)
        assert done.returncode in (1, 3), f"{name}: {done.stdout}{done.stderr}"
        path.write_bytes(content)
    (capture / "evidence/quote.signature").unlink()
    assert excise(*words).returncode == 1


def test_a_capture_without_a_known_key_proves_nothing(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    """Anybody can make a key, seal a capture anew, or take its evidence away."""
    require("tpm2_pytss")
    from excise.capture.seal import seal

    capture, key = attested(tmp_path, own_tpm, measured=True)
    (tmp_path / "ak.pub").write_bytes(key)
    done = excise("verify", "capture", capture, "--json")
    assert done.returncode == 1
    result = json.loads(done.stdout)["results"][0]
    assert result["verdict"] == "NOT_COVERED"
    assert not any(claim["proven"] for claim in result["claims"])
    shutil.rmtree(capture / "evidence")
    (capture / "seal.json").unlink()
    seal(capture)
    assert excise("verify", "capture", capture).returncode == 1
    done = excise("verify", "capture", capture, "--key", tmp_path / "ak.pub", "--json")
    assert json.loads(done.stdout)["verdict"] == "FAILED"


def test_entries_of_another_pcr_prove_nothing(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    require("tpm2_pytss")
    capture, key = attested(tmp_path, own_tpm, measured=False)
    (tmp_path / "ak.pub").write_bytes(key)
    listed = capture / "evidence" / "ima_binary_runtime_measurements"
    forged = ng("/usr/bin/prog", b"the program under test", pcr=30)
    listed.write_bytes(binary_list([forged]) + listed.read_bytes())
    done = excise("verify", "capture", capture, "--key", tmp_path / "ak.pub", "--json")
    claims = json.loads(done.stdout)["results"][0]["claims"]
    assert not next(c for c in claims if c["name"] == "program.prog.sha256")["proven"]


def test_another_tpms_key_does_not_verify(
    tmp_path: Path, excise: Program, own_tpm: SoftwareTpm
) -> None:
    require("tpm2_pytss")
    from excise.collect.tpm import quote

    capture, _ = attested(tmp_path, own_tpm, measured=True)
    other = quote(
        own_tpm.tcti, qualifying_data=b"x" * 32, selection={"sha256": (10,)}, hierarchy="null"
    )
    (tmp_path / "other.pub").write_bytes(other.public)
    done = excise("verify", "capture", capture, "--key", tmp_path / "other.pub")
    assert done.returncode == 1
