"""`excise tpm` and `excise predict` as their users meet them, on a software TPM."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from excise.cost.tpm_record import decode_record
from in_process import Program
from software_tpm import SoftwareTpm, require

require("tpm2_pytss")


@pytest.fixture(scope="module")
def capture(swtpm: SoftwareTpm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from excise.campaign.tpm_bench import run_tpm_bench

    path = tmp_path_factory.mktemp("cli") / "tpm.excise"
    run_tpm_bench(swtpm.tcti, path, blocks=5, only=["Extend", "Get", "ECDSA", "Hash (", "HMAC"])
    return path


def test_info_tells_the_tpm_and_the_kernels_default(excise: Program, swtpm: SoftwareTpm) -> None:
    code, out, err = excise("tpm", "info", "-T", swtpm.tcti)
    assert (code, err) == (0, "")
    for words in (
        "SW TPM",
        "BN_P256",
        "null primary's name",
        "PCR extends protected",
        "SHA256: 0-23",
    ):
        assert words in out
    code, out, _ = excise("tpm", "info", "-T", swtpm.tcti, "--json")
    data = json.loads(out)["data"]
    assert data["manufacturer"] == "IBM"
    assert len(data["null_name"]) == 68


def test_the_tcti_comes_from_the_environment_of_tpm2_tools(
    excise: Program, swtpm: SoftwareTpm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPM2TOOLS_TCTI", swtpm.tcti)
    assert excise("tpm", "info")[0] == 0


def test_a_bench_prints_its_table_and_writes_a_capture(
    excise: Program, swtpm: SoftwareTpm, tmp_path: Path
) -> None:
    path = tmp_path / "t.excise"
    words = ("tpm", "bench", "-T", swtpm.tcti, "--blocks", "3", "--only", "Extend", "--only", "Get")
    code, out, err = excise(*words, "-o", path)
    assert code == 0
    assert "Transport floor:" in out
    assert "in a session of its own (×" in " ".join(out.split())
    assert "The HMACs of all" in out
    assert f"Wrote {path} (" in err
    assert "complete" in err
    code, _, err = excise(*words, "-o", path)
    assert code == 2
    assert "already exists" in err
    assert excise(*words, "-o", path, "--force")[0] == 0


def test_a_capture_of_a_tpm_is_shown_compared_and_reported(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    assert "PCR_Extend" in excise("show", capture)[1]
    code, out, _ = excise("compare", capture)
    assert code == 0
    assert re.search(r"^PCR_Extend +hmac +[+×]", out, re.M)
    out = excise("gate", capture, "--baseline", "none", "--max-regression", "100000%")[1]
    assert "PCR_Extend" in out
    assert "not measured" not in out  # a command has the modes it has
    page = tmp_path / "r.html"
    code, _, _ = excise("report", capture, "-o", page, "--charts", tmp_path / "c")
    assert code == 0
    html = page.read_text()
    assert "Commands of the TPM" in html
    assert "floor" in html
    svg = (tmp_path / "c" / "tpm-commands.svg").read_text()
    assert "PCR_Extend, hmac" in svg
    assert "floor +" in svg


def test_a_record_is_written_and_read_back(excise: Program, capture: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    code, _, err = excise("tpm", "record", capture, "-o", path)
    assert code == 0
    assert "Wrote" in err
    record = decode_record(path.read_bytes(), source="r.json")
    assert record.command("PCR_Extend", mode="lazy") is not None
    code, out, _ = excise("tpm", "record", capture)
    assert (code, out) == (0, path.read_text())


def test_compare_places_a_record_among_the_catalogue(
    excise: Program, capture: Path, tmp_path: Path
) -> None:
    path = tmp_path / "r.json"
    excise("tpm", "record", capture, "-o", path)
    code, out, _ = excise("tpm", "compare", path, "--charts", tmp_path)
    assert code == 0
    assert "from the fastest" in " ".join(out.split())
    assert "Sign ECDSA" in out
    assert "other TPMs" in (tmp_path / "placings.svg").read_text()
    code, out, _ = excise("tpm", "compare", path, "--with", "reference:tpm-hmac-2024", "--json")
    data = json.loads(out)["data"]
    assert {each["command"] for each in data["placings"]} == {
        "PCR_Extend", "PCR_Extend, lazy", "PCR_Extend, saved", "PCR_Extend, hmac",
    }  # fmt: skip
    code, out, _ = excise("tpm", "compare", "--list")
    assert "tpmscan-firmware" in out


def test_own_records_are_part_of_the_catalogue(
    excise: Program, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    code, _, err = excise("tpm", "record", capture, "-o", tmp_path / "r.json", "--keep", "mine")
    assert code == 0
    assert "mine.json" in err
    data = json.loads(excise("tpm", "compare", "--list", "--json")[1])["data"]
    own = [each for each in data["tpms"] if each["identifier"].startswith("own:mine/")]
    assert set(own[0]["extend"]) == {"none", "lazy", "saved", "hmac"}
    code, out, _ = excise(
        "tpm", "compare", "reference:tpm-hmac-2024", "--with", "own:mine", "--json"
    )
    assert json.loads(out)["data"]["placings"][0]["rank"] == 2
    code, _, err = excise("tpm", "record", capture, "-o", tmp_path / "r.json", "--keep", "../x")
    assert (code, "is no name of a record" in err) == (2, True)
    assert excise("tpm", "compare", "own:none")[0] == 3


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["tpm", "compare"], 2, "a TPM is missing"),
        (["tpm", "compare", "none.json"], 3, "none.json: cannot be read"),
        (["tpm", "compare", "reference:none"], 2, "no TPM of the catalogue"),
        (["tpm", "info", "-T", "device:/dev/none"], 4, "no such device"),
        (["tpm", "bench", "-T", "swtpm:path=/none"], 4, "no TPM answers"),
        (["tpm", "record", "reference:tpmscan"], 2, "is no capture of a TPM"),
        (["predict"], 2, "neither boots nor a TPM"),
        (["predict", "--tpm", "reference:tpm-hmac-2024"], 2, "number of measurements is missing"),
        (
            ["predict", "--entries", "x", "--tpm", "reference:tpm-hmac-2024"],
            2,
            "not a whole number",
        ),
        (
            ["predict", "--entries", "²", "--tpm", "reference:tpm-hmac-2024"],
            2,
            "not a whole number",
        ),
        (["predict", "reference:tpm-hmac-2024", "--banks", "3"], 2, "Give the number of measure"),
        (
            ["predict", "reference:tpm-hmac-2024", "--banks", "3", "--entries", "9"],
            2,
            "without the costs of a TPM",
        ),
        (["predict", "reference:tpm-hmac-2024", "--overlap", "50%"], 2, "told by the boots"),
        (
            ["predict", "--entries", "1", "--tpm", "reference:tpm-hmac-2024", "--mode", "fast"],
            2,
            "mode 'fast' is not known",
        ),
        (["predict", "reference:tpm-hmac-2024", "--fit", "none"], 2, "no boot has the config"),
        (["predict", "reference:tpm-hmac-2024", "--mode-of", "x"], 2, "not CONFIGURATION=MODE"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else None,
)
def test_what_cannot_be_done_is_said_with_its_code(
    excise: Program, words: list[str], code: int, message: str
) -> None:
    found, out, err = excise(*words)
    assert (found, out) == (code, "")
    assert message in err
    found, _, err = excise(*words, *([] if words[:2] == ["tpm", "record"] else ["--json"]))
    assert found == code


def test_the_long_runs_are_predicted_from_a_reference(excise: Program, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    code, out, _ = excise(
        *("predict", "--entries", "12313", "--tpm", "reference:tpm-hmac-2024"),
        *("--mode", "hmac,lazy,none", "-o", page),
    )
    assert code == 0
    for words in ("1,861 s", "300 s", "79.0 s", "-6.7 %", "-0.7 %", "-25.8 %", "An entry"):
        assert words in out
    assert "How known cases are predicted" in page.read_text()


def test_boots_are_fitted_and_others_predicted(excise: Program) -> None:
    reference = "reference:tpm-hmac-2024"
    code, out, _ = excise(
        *("predict", reference, "--tpm", reference, "--fit", "no HMAC", "--fit", "HMAC"),
        *("--task", "boot", "--entries", "444", "--digest-cache", "49.1%", "--json", "--no-known"),
    )
    assert code == 0
    data = json.loads(out)["data"]
    by_name = {each["name"]: each for each in data["predictions"]}
    assert by_name["HMAC + IDC"]["predicted_ns"] == pytest.approx(43.19e9, rel=1e-3)
    cached = by_name["444 entries, digest cache, hmac"]
    assert cached["entries"] == 218
    assert data["model"]["overlap"] == pytest.approx(0.847, abs=1e-3)


def test_a_prediction_is_made_from_a_bench(excise: Program, capture: Path) -> None:
    code, out, _ = excise(
        "predict", "--entries", "1000", "--tpm", capture, "--banks", "2", "--json", "--no-known"
    )
    assert code == 0
    found = {each["mode"]: each for each in json.loads(out)["data"]["predictions"]}
    assert set(found) == {"none", "lazy", "saved", "hmac"}
    assert found["hmac"]["low_ns"] < found["hmac"]["predicted_ns"] < found["hmac"]["high_ns"]
    assert found["hmac"]["interval"] == "95 %"
