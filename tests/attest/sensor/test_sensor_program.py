"""The sensor as a program: its steps by file and in memory, with a software TPM."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from daa_group import Group, new_group
from excise.collect.tpm import allocated_pcrs, open_tpm
from excise.formats.model import Options
from excise.formats.registry import read
from ima_builder import boot_aggregate, digest, files
from sensor_service import Machine, excise, running, running_verifier, write_group, write_member
from skips import skip
from software_tpm import SoftwareTpm, new_tpm, require

require("tpm2_pytss")
pytest.importorskip("dlib", reason="dlib is not installed (extra face)")

ZEROS = {index: bytes(32) for index in range(10)}


@pytest.fixture(scope="module")
def group() -> Group:
    return new_group()


@pytest.fixture(scope="module")
def verifier(tmp_path_factory: pytest.TempPathFactory, group: Group) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("verifier")
    options: list[str | Path] = ["--group", write_group(group, folder), "--basename", "door-7"]
    with running_verifier(*options, "--database", folder / "db") as (url, _):
        yield url


@pytest.fixture(scope="module")
def face() -> Path:
    try:
        import skimage
    except ImportError:
        skip("scikit-image, whose package has a photograph of a face, is not installed")
    return Path(skimage.__file__).parent / "data" / "astronaut.png"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    found = Machine(tmp_path)
    found.write()
    rows = [f"sha256:{index}={value.hex()}" for index, value in found.pcrs["sha256"].items()]
    (tmp_path / "pcrs.txt").write_text("\n".join(rows) + "\n")
    return found


def _options(machine: Machine, verifier: str, member: Path, face: Path) -> list[str | Path]:
    return [
        *("--source", face, "--list", machine.list_path, "--pcrs", machine.folder / "pcrs.txt"),
        *("--verifier", verifier, "--member", member),
    ]


def test_a_loop_of_transactions_prints_a_line_for_each_step(
    verifier: str, machine: Machine, group: Group, face: Path, tmp_path: Path
) -> None:
    options = _options(machine, verifier, write_member(group, tmp_path / "member"), face)
    done = excise("sensor", "transaction", *options, "--loop", "3", "--perf")
    assert (done.returncode, done.stderr) == (0, "")
    reading = read(done.stdout.encode(), options=Options(source="perf"), format_name="ra-perf")
    transactions = [run for run in reading.runs if run.task == "transaction"]
    assert len(transactions) == 3
    steps = [event.event for event in reading.events if event.sequence == transactions[0].sequence]
    assert steps == ["capture", "embed", "collect", "send"]
    total = transactions[1].wall_ns
    assert total is not None
    parts = [e.value for e in reading.events if e.sequence == transactions[1].sequence]
    assert 0 < sum(parts) <= total + 4000


@pytest.mark.lab
def test_steps_by_file_come_to_the_same_answer(
    verifier: str, machine: Machine, group: Group, face: Path, tmp_path: Path
) -> None:
    options = _options(machine, verifier, write_member(group, tmp_path / "member"), face)
    done = excise("sensor", "transaction", *options, "--hand-over", "files", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "PASSED"


def test_a_refusal_is_told_with_its_reasons_and_exit_code_1(
    verifier: str, machine: Machine, group: Group, face: Path, tmp_path: Path
) -> None:
    text = (tmp_path / "pcrs.txt").read_text().splitlines()
    wrong = [f"sha256:10={'00' * 32}" if line.startswith("sha256:10=") else line for line in text]
    (tmp_path / "pcrs.txt").write_text("\n".join(wrong) + "\n")
    options = _options(machine, verifier, write_member(group, tmp_path / "member"), face)
    reason = re.compile(r"ima\.pcr\.sha256: [0-9a-f]{64}, expected ([0-9a-f]{64})")
    done = excise("sensor", "transaction", *options)
    assert done.returncode == 1, done.stderr
    assert reason.findall(done.stdout) == ["00" * 32]
    assert done.stderr == "excise: 1 of 1 transaction not accepted\n"
    done = excise("sensor", "transaction", *options, "--perf")
    assert (done.returncode, reason.findall(done.stdout)) == (1, [])
    assert reason.findall(done.stderr) == ["00" * 32]


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        (("--source", "/nowhere"), 2, "no such device, file or folder"),
        (("--list", "/nowhere"), 4, "the measurement list cannot be opened"),
        (("--member", "/nowhere"), 3, "/nowhere"),
        (("--verifier", "ftp://x"), 2, "no http or https URL"),
        (("--verifier", "http://127.0.0.1:9"), 4, "does not answer"),
        (("--hand-over", "pigeon"), 2, "not one of 'memory', 'files'"),
    ],
)
def test_what_is_missing_is_named(
    verifier: str,
    machine: Machine,
    group: Group,
    face: Path,
    tmp_path: Path,
    change: tuple[str, str],
    code: int,
    reason: str,
) -> None:
    options = _options(machine, verifier, write_member(group, tmp_path / "member"), face)
    if change[0] in options:
        options[options.index(change[0]) + 1] = change[1]
    else:
        options += change
    done = excise("sensor", "transaction", *options)
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


def _extend(tcti: str, machine: Machine) -> None:
    """Let a software TPM see what the list says."""
    banks = [bank for bank in allocated_pcrs(tcti) if bank.startswith("sha")]
    with open_tpm(tcti) as tpm:
        from tpm2_pytss import ESYS_TR, TPM2_ALG, TPML_DIGEST_VALUES, TPMT_HA, TPMU_HA

        names = {"sha1": TPM2_ALG.SHA1, "sha256": TPM2_ALG.SHA256}
        names |= {"sha384": TPM2_ALG.SHA384, "sha512": TPM2_ALG.SHA512}
        for entry in machine.entries:
            values = [
                TPMT_HA(hashAlg=names[bank], digest=TPMU_HA(**{bank: digest(bank, entry.data())}))
                for bank in banks
            ]
            tpm.pcr_extend(ESYS_TR.PCR10, TPML_DIGEST_VALUES(values))


@pytest.mark.lab
def test_a_quoting_key_proves_the_pcrs_it_sends_and_no_others(tmp_path: Path, face: Path) -> None:
    machine = Machine(tmp_path, entries=[boot_aggregate(ZEROS), *files(12)])
    machine.write()
    issuer, member = tmp_path / "issuer", tmp_path / "member"
    made = excise("daa", "issuer", "init", issuer, "--admit", "tpm", "--quoting")
    assert made.returncode == 0, made.stderr
    options: list[str | Path] = ["--group", issuer / "ipk.bin", "--database", tmp_path / "db"]
    options += ["--group-rule", issuer / "group.json", "--basename", "b"]
    with (
        new_tpm() as tpm,
        running("daa", "issuer", "serve", issuer, "--listen", "127.0.0.1:0") as (join_url, _),
        running_verifier(*options, stated=False) as (url, _),
    ):
        _extend(tpm.tcti, machine)
        joined = excise(
            *("daa", "member", "join", member, "--issuer", join_url, "--tpm", tpm.tcti),
            "--quoting",
        )
        assert joined.returncode == 0, joined.stderr
        words: list[str | Path] = ["sensor", "transaction", "--source", face, "--verifier", url]
        words += ["--list", machine.list_path, "--member", member, "--tpm", tpm.tcti, "--json"]
        done = excise(*words)
        assert done.returncode == 0, done.stderr
        name = json.loads(done.stdout)["transaction"]
        found = httpx.get(f"{url}/sensor/v1/transactions/{name}")
        outcomes = {check["id"]: check["outcome"] for check in found.json()["checks"]}
        assert outcomes["daa.quote_pcrs"] == outcomes["sensor.state"] == "PASSED"
        with closing(sqlite3.connect(tmp_path / "db")) as database:
            kept = database.execute("SELECT attest FROM sensor_transactions").fetchone()[0]
        assert kept.startswith(bytes.fromhex("ff5443478018"))
        # Other values than the TPM's: the sensor itself sees that the quote is not of them.
        machine.grow(1)
        rows = [f"sha256:{index}={value.hex()}" for index, value in machine.pcrs["sha256"].items()]
        (tmp_path / "pcrs.txt").write_text("\n".join(rows) + "\n")
        other = excise(*words, "--pcrs", tmp_path / "pcrs.txt")
        assert other.returncode == 4
        assert "a PCR has moved" in other.stderr


@pytest.mark.lab
def test_a_key_in_a_tpm_bound_to_its_state_signs_for_the_state_that_tpm_is_in(
    swtpm: SoftwareTpm, tmp_path: Path, face: Path
) -> None:
    machine = Machine(tmp_path, entries=[boot_aggregate(ZEROS), *files(12)])
    machine.write()
    _extend(swtpm.tcti, machine)
    issuer, member = tmp_path / "issuer", tmp_path / "member"
    made = excise(
        *("daa", "issuer", "init", issuer, "--admit", "tpm"),
        *("--pcr", f"sha256:10={machine.pcrs['sha256'][10].hex()}"),
    )
    assert made.returncode == 0, made.stderr
    with running("daa", "issuer", "serve", issuer, "--listen", "127.0.0.1:0") as (url, _):
        joined = excise(
            *("daa", "member", "join", member, "--issuer", url, "--tpm", swtpm.tcti),
            *("--bind", "sha256:10"),
        )
        assert joined.returncode == 0, joined.stderr
    options: list[str | Path] = [
        "--group",
        issuer / "ipk.bin",
        "--group-rule",
        issuer / "group.json",
    ]
    options += ["--database", tmp_path / "db", "--basename", "b"]
    with running_verifier(*options, stated=False) as (url, _):
        words: list[str | Path] = ["sensor", "transaction", "--source", face, "--verifier", url]
        words += ["--list", machine.list_path, "--member", member, "--tpm", swtpm.tcti, "--json"]
        done = excise(*words, "--loop", "2")
        assert done.returncode == 0, done.stderr
        assert [answer["outcome"] for answer in json.loads(done.stdout)] == ["PASSED"] * 2
        found = httpx.get(
            f"{url}/sensor/v1/transactions/{json.loads(done.stdout)[0]['transaction']}"
        )
        outcomes = {check["id"]: check["outcome"] for check in found.json()["checks"]}
        assert outcomes["daa.pcr_state"] == outcomes["sensor.state"] == "PASSED"
        # Another state: the key no longer signs.
        swtpm.tool("tpm2_pcrextend", f"10:sha256={'11' * 32}")
        other = excise(*words)
        assert other.returncode == 4
        assert "which have other values now" in other.stderr
