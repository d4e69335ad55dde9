from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ended import PATIENCE_S, ended
from excise.attest.attester import Attester, Measured, generate_key, open_signer, parse_key
from excise.errors import ExciseError, UsageError
from excise.evidence.checks import Outcome
from excise.evidence.corim import load_store
from excise.evidence.psa import PROFILE_1, PROFILE_2, PROFILE_TFM, Profile, verify_token
from excise.perf import Recorder
from in_process import Program
from software_tpm import SoftwareTpm
from token_builders import NONCE, public_key
from verifier_runner import running


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "ta.bin").write_bytes(b"application" * 100)
    (tmp_path / "ta2.bin").write_bytes(b"more")
    (tmp_path / "tee.bin").write_bytes(b"system" * 1000)
    return ("--ta", "ta.bin", "--ta", "ta2.bin", "--tee", "tee.bin")


def _marks(text: str) -> list[tuple[str, str, int, str]]:
    """Return layer, event, microseconds and what follows of each line."""
    lines = [line.split("|") for line in text.splitlines() if line.startswith("RA_PERF|")]
    return [(line[1], line[2], int(line[3]), "|".join(line[4:])) for line in lines]


@pytest.mark.parametrize("profile", [PROFILE_1, PROFILE_2, PROFILE_TFM], ids=["1", "2", "tfm"])
def test_a_token_of_each_profile_verifies(tmp_path: Path, profile: Profile) -> None:
    (tmp_path / "a").write_bytes(b"a")
    off = Recorder(enabled=False)
    with open_signer("software") as signer:
        made = Attester(
            signer,
            application=Measured(kind="ARoT", files=(tmp_path / "a",), version="1"),
            system=Measured(kind="PRoT", files=(tmp_path / "a",)),
            profile=profile,
            perf=off,
            pta_perf=off,
            boot_seed=b"\1" * 32,
        ).token(NONCE)
        result = verify_token(made, signer.public, nonce=NONCE)
    assert result.verdict is Outcome.PASSED
    assert {c.id: c.outcome for c in result.checks}["token.instance_key"] == "PASSED"
    assert result.claims is not None
    assert [one.measurement_type for one in result.claims.components] == ["ARoT", "PRoT"]


def test_regions_are_hashed_by_size_and_content_whatever_their_order(tmp_path: Path) -> None:
    for name, content in (("a", b"xx"), ("b", b"x"), ("c", b"yy")):
        (tmp_path / name).write_bytes(content)
    orders = (("a", "b", "c"), ("c", "a", "b"))
    digests = {
        Measured(kind="ARoT", files=tuple(tmp_path / name for name in order)).digest()
        for order in orders
    }
    assert len(digests) == 1
    (tmp_path / "c").write_bytes(b"yz")
    changed = Measured(kind="ARoT", files=tuple(tmp_path / name for name in "abc"))
    assert changed.digest() not in digests


def test_a_challenge_is_answered_measured_and_affirmed(
    tmp_path: Path, excise: Program, files: tuple[str, ...]
) -> None:
    assert excise("attester", *files, "--write-references", "refs").returncode == 0
    with running(tmp_path, known=load_store([tmp_path / "refs"])) as client:
        url = str(client.base_url)
        done = excise("attester", *files, "--url", url, "--loop", 4, "--perf", "-o", "token.cbor")
        assert done.returncode == 0, done.stderr
        assert "4 attestations: 4 affirming" in done.stderr
        assert "the embedded key is the same in every copy" in done.stderr
        assert len(done.stdout.splitlines()) == 4
        assert (tmp_path / "token.cbor").read_bytes().hex() == done.stdout.splitlines()[-1]
        # What is not the reference is only a warning, and not good enough.
        (tmp_path / "tee.bin").write_bytes(b"tampered")
        done = excise("attester", *files, "--url", url)
        assert done.returncode == 1
        assert "1 attestation: 1 warning" in done.stderr
        assert "FAILED ear.status  PSA_IOT is warning" in done.stderr
        assert "executables is 33, some software is not recognised (PRoT measures " in done.stderr
        # What another key signed is nobody's result, whatever it says.
        (tmp_path / "other.pem").write_text(public_key("other").pem())
        done = excise("attester", *files, "--url", url, "--verifier-key", "other.pem", "--loop", 2)
        assert done.returncode == 1
        assert "2 attestations: 2 not to be believed" in done.stderr
        assert "FAILED ear.signature  does not verify" in done.stderr
        # A device whose key is not registered is contraindicated.
        other = generate_key("software")
        done = excise("attester", *files, "--url", url, "--key-hex", other.hex(), "--json")
        assert done.returncode == 1
        assert json.loads(done.stdout)["statuses"] == {"contraindicated": 1}


def test_it_states_the_versions_that_it_is_given_as_its_references_do(
    tmp_path: Path, excise: Program, files: tuple[str, ...]
) -> None:
    words = ("attester", *files, "--ta-version", "1.2", "--tee-version", "4.6.0")
    assert excise(*words, "--write-references", "refs").returncode == 0
    done = excise(*words, "--no-server", "-o", "token.cbor", "--json")
    nonce = json.loads(done.stdout)["nonce"]
    done = excise("verify", "token", "token.cbor", "--corim", "refs", "--nonce", nonce)
    assert done.returncode == 0, done.stdout
    assert "ARoT 1.2" in done.stdout
    assert "PRoT 4.6.0" in done.stdout
    done = excise(*words, "--tee-version", "4.7.0", "--no-server", "-o", "token.cbor", "--json")
    nonce = json.loads(done.stdout)["nonce"]
    done = excise("verify", "token", "token.cbor", "--corim", "refs", "--nonce", nonce)
    assert done.returncode == 1
    assert "4.7.0" in done.stdout


def test_its_result_is_kept_and_verified_with_what_the_verifier_tells(
    tmp_path: Path, excise: Program, files: tuple[str, ...]
) -> None:
    assert excise("attester", *files, "--write-references", "refs").returncode == 0
    with running(tmp_path, known=load_store([tmp_path / "refs"])) as client:
        found = client.get("/.well-known/veraison/verification").content
        (tmp_path / "discovery.json").write_bytes(found)
        url = str(client.base_url)
        done = excise("attester", *files, "--url", url, "--result", "ear.jwt", "--json")
        assert done.returncode == 0, done.stderr
    nonce = json.loads(done.stdout)["nonce"]
    done = excise("verify", "ear", "ear.jwt", "--key", "discovery.json", "--nonce", nonce)
    assert done.returncode == 0, done.stdout
    done = excise("attester", *files, "--no-server", "--result", "ear.jwt")
    assert done.returncode == 2
    assert "without a verifier there is no result" in done.stderr


def test_its_lines_are_those_of_the_grammar_and_its_parts_add_up(
    tmp_path: Path, excise: Program, files: tuple[str, ...]
) -> None:
    assert excise("attester", *files, "--write-references", "refs").returncode == 0
    with running(tmp_path, known=load_store([tmp_path / "refs"])) as client:
        done = excise("attester", *files, "--url", client.base_url, "--loop", 6, "--perf")
    marks = _marks(done.stderr)
    assert {rest for *_, rest in marks} == {"key=embedded"}
    events = [f"{layer}|{event}" for layer, event, *_ in marks]
    assert events.count("host|teec_open_session") == 1
    assert events.count("host|total") == 6
    for name in ("host|veraison_new_session", "host|veraison_post_evidence", "pta|perf_flush"):
        assert events.count(name) == 6
    rounds: list[dict[str, int]] = [{}]
    for layer, event, value, _ in marks:
        rounds[-1][f"{layer}|{event}"] = value
        if event == "total":
            rounds.append({})
    for one in rounds[1:6]:  # the first loads modules between its steps
        parts = ("sign_key_setup", "sign_tbs_hash", "sign_ecdsa")
        assert sum(one[f"pta|{part}"] for part in parts) <= one["pta|cose_sign1"] + 3
        parts = ("instance_id", "hash_ta", "hash_tee", "cbor_encode", "cose_sign1")
        assert sum(one[f"pta|{part}"] for part in parts) <= one["pta|cmd_total"] + 5
        assert one["pta|cmd_total"] <= one["ta|pta_invoke"] <= one["ta|cmd_total"] + 1
        assert one["ta|cmd_total"] <= one["host|evidence_get"] + 1 <= one["host|total"] + 2


def test_its_lines_are_read_back(tmp_path: Path, excise: Program, files: tuple[str, ...]) -> None:
    done = excise("attester", *files, "--no-server", "--loop", 3, "--perf")
    assert done.returncode == 0
    log = tmp_path / "perf.log"
    log.write_text(done.stderr)
    assert excise("import", log, "-o", "perf.excise").returncode == 0
    shown = excise("attribute", "perf.excise").stdout
    assert "cose_sign1" in shown
    assert "Lost data" not in shown


def test_without_perf_nothing_is_measured(
    excise: Program, files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "RA_PERF" not in excise("attester", *files, "--no-server").stderr
    monkeypatch.setenv("RA_PERF", "0")
    assert "RA_PERF" not in excise("attester", *files, "--no-server").stderr
    monkeypatch.setenv("RA_PERF", "1")
    assert "RA_PERF|host|total|" in excise("attester", *files, "--no-server").stderr


def test_an_interrupt_tells_what_was_done(tmp_path: Path, files: tuple[str, ...]) -> None:
    code = "from excise.cli.main import main; main()"
    words = ["attester", *files, "--no-server", "--loop", "1000000", "--perf"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with ended(process):
        assert process.stdout is not None
        for _ in range(3):
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert re.search(r"^\d+ attestations: \d+ not verified$", err, re.MULTILINE)
    assert "RA_PERF|host|total|" in err


def test_without_a_verifier_it_says_what_to_do(excise: Program, files: tuple[str, ...]) -> None:
    done = excise("attester", *files, "--url", "http://127.0.0.1:9")
    assert done.returncode == 4
    assert "http://127.0.0.1:9/.well-known/veraison/verification" in done.stderr
    assert "the service does not answer" in done.stderr
    assert "Is it running" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--url", "foo"), "'foo' is no http or https URL"),
        (("--url", "http://[::1"), "'http://[::1' is no http or https URL"),
        (("--url", "https://127.0.0.1:9", "--ca", "none.pem"), "none.pem: no certificates"),
        (("--url", "https://127.0.0.1:9", "--ca", "ta.bin"), "ta.bin: no certificates"),
    ],
)
def test_what_leads_to_no_verifier_is_named(
    excise: Program, files: tuple[str, ...], words: tuple[str, ...], reason: str
) -> None:
    done = excise("attester", *files, *words)
    assert done.returncode in (2, 3)
    assert reason in done.stderr


def test_a_generated_key_is_given_back(excise: Program, files: tuple[str, ...]) -> None:
    told = dict(
        line.split(": ") for line in excise("attester", "--generate-key").stdout.splitlines()
    )
    assert told["mode"] == "plain"
    scalar = told["key-hex"][128:]
    halves = ("--pubx-hex", told["pubx-hex"], "--puby-hex", told["puby-hex"])
    for words in (("--key-hex", told["key-hex"]), ("--key-hex", scalar, *halves)):
        done = excise("attester", *files, "--no-server", "--perf", *words)
        assert done.returncode == 0, done.stderr
        assert "|key=plain\n" in done.stderr
        assert "embedded" not in done.stderr


GENERATED = generate_key("software")
X, Y = GENERATED.point[:32].hex(), GENERATED.point[32:].hex()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--pubx-hex", X, "--puby-hex", Y), "Give --key-hex too"),
        (("--key-hex", "zz"), "--key-hex is not hexadecimal"),
        (("--key-hex", "00" * 31), "--key-hex has 31 bytes. 32 bytes of a plain key, or PubX"),
        (("--key-hex", "00" * 32), "not between 1 and the order of P-256"),
        (("--key-hex", "11" * 32, "--pubx-hex", X), "belong together"),
        (("--key-hex", "11" * 32, "--pubx-hex", X, "--puby-hex", Y), "not those of the key"),
        (("--key-hex", "11" * 32, "--pubx-hex", X, "--puby-hex", X), "not on P-256"),
        (("--key-hex", GENERATED.hex() + "00"), "Give --key tpm-wrapped"),
        (("--key", "caam"), "not one of 'software', 'tpm', 'tpm-wrapped'"),
        (("--key", "tpm"), "Give --tcti"),
        (("--key", "tpm", "--key-hex", GENERATED.hex()), "a plain key is not for a TPM"),
        (("--loop", "0"), "--loop"),
        (("--profile", "4"), "Known: 1 (PSA_IOT_PROFILE_1)"),
    ],
)
def test_what_makes_no_sense_is_refused(
    excise: Program, files: tuple[str, ...], words: tuple[str, ...], reason: str
) -> None:
    done = excise("attester", *files, "--no-server", *words)
    assert done.returncode in (2, 3)
    assert reason in done.stderr
    assert done.stdout == ""


def test_a_key_that_stays_in_the_tpm_is_not_printed() -> None:
    with pytest.raises(UsageError, match=r"not printed. Try tpm-wrapped"):
        generate_key("tpm", tcti="none")


def test_key_material_is_plain_up_to_96_bytes() -> None:
    plain = parse_key(GENERATED.hex(), pubx_hex=None, puby_hex=None)
    assert not plain.wrapped
    assert len(plain.point + plain.blob) == 96
    wrapped = parse_key(GENERATED.hex() + "00", pubx_hex=None, puby_hex=None)
    assert wrapped.wrapped


def _transient(tpm: SoftwareTpm) -> str:
    return tpm.tool("tpm2_getcap", "handles-transient").strip()


@pytest.mark.parametrize("kind", ["tpm", "tpm-wrapped"])
def test_a_key_in_a_tpm_signs_and_nothing_is_left_behind(
    swtpm: SoftwareTpm, excise: Program, files: tuple[str, ...], kind: str
) -> None:
    words = ("--key", kind, "--tcti", swtpm.tcti, "--no-server", "--perf", "--json")
    done = excise("attester", *files, *words, "--loop", 2)
    assert done.returncode == 0, done.stderr
    mode = "black" if kind == "tpm-wrapped" else "embedded"
    assert "|sign_ecdsa|" in done.stderr
    label = "" if kind == "tpm-wrapped" else "|signer=tpm"
    assert {rest for *_, rest in _marks(done.stderr) if _[1] != "perf_flush"} == {
        f"key={mode}{label}"
    }
    assert _transient(swtpm) == ""


def test_a_wrapped_key_is_loaded_for_each_signature_and_given_back(
    swtpm: SoftwareTpm, excise: Program, files: tuple[str, ...]
) -> None:
    made = json.loads(
        excise("attester", "--generate-key", "--key", "tpm-wrapped", "--tcti", swtpm.tcti,
               "--json").stdout
    )  # fmt: skip
    assert made["mode"] == "black"
    packed = parse_key(made["key-hex"], pubx_hex=None, puby_hex=None)
    loads = 0
    with open_signer("tpm-wrapped", packed=packed, tcti=swtpm.tcti) as signer:
        assert signer.public.point()[1:] == packed.point
        original: Any = signer._load  # type: ignore[attr-defined]

        def counted() -> None:
            nonlocal loads
            loads += 1
            original()

        signer._load = counted  # type: ignore[attr-defined]
        for number in range(3):
            signer.set_up()
            assert len(signer.sign(bytes([number]) * 32)) == 64
    assert loads == 3
    words = ("--key", "tpm-wrapped", "--tcti", swtpm.tcti, "--key-hex", made["key-hex"])
    done = excise("attester", *files, *words, "--no-server", "-o", "token.cbor")
    assert done.returncode == 0, done.stderr
    result = verify_token(Path("token.cbor").read_bytes(), signer.public, nonce=None)
    assert [c.id for c in result.checks if c.outcome is Outcome.FAILED] == ["token.freshness"]
    # One bit of the wrapped private part, behind the public halves and two sizes.
    damaged = bytearray.fromhex(made["key-hex"])
    damaged[64 + 40] ^= 1
    with (
        pytest.raises(ExciseError, match="the TPM refuses"),
        open_signer(
            "tpm-wrapped",
            packed=parse_key(damaged.hex(), pubx_hex=None, puby_hex=None),
            tcti=swtpm.tcti,
        ) as broken,
    ):
        broken.set_up()
    assert _transient(swtpm) == ""
