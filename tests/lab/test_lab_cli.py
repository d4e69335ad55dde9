from __future__ import annotations

import json

import pytest

from excise.cli.main import main


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(["lab", *words])
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def test_list_names_every_preset_with_its_command_line(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("EXCISE_LAB_CACHE", str(tmp_path))
    code, out, _ = _run(capsys, "list", "--json")
    found = {each["name"]: each for each in json.loads(out)["presets"]}
    assert code == 0
    assert found["ima-enforce"]["cmdline"][-1] == "ima_appraise=enforce"
    assert len(found) == 17


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "--preset", "none,slelinux"], "no preset slelinux"),
        (["compare", "--preset", "none,none"], "a preset is given twice"),
        (["compare", "--preset", "a,b", "-k", "6.1", "-k", "6.12"], "under one preset"),
        (["compare", "--workload", "opne"], "no system call workload opne"),
        (["run", "--workload", "files:x"], "needs a number"),
        (["run", "--quote", "zz"], "not hexadecimal"),
        (["run", "--mode", "fast"], "'fast' is unknown. Known: count, tpm"),
        (["run", "--modules", "m"], "--modules belongs to a --kernel"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_boots(capsys, words, message):
    code, out, err = _run(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
