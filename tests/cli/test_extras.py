"""What users read who installed excise without its optional parts."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from excise.cli.extras import EXTRA_OF_MODULE, missing_extra

ROOT = Path(__file__).resolve().parents[2]

# Runs before the program, as if only what excise itself requires were installed.
BLOCKER = f"""
import sys
ABSENT = {sorted(EXTRA_OF_MODULE)!r}
class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent)
"""

EXCISE = [sys.executable, "-c", "from excise.cli.main import main; main()"]

ALL_COMMANDS = """
import importlib
from excise.cli.commands import COMMANDS, Group
def places(commands):
    for place in commands.values():
        if isinstance(place, Group):
            yield from places(place.commands)
        else:
            yield place
for place in places(COMMANDS):
    module, _, attribute = place.partition(":")
    getattr(importlib.import_module(module), attribute)
    print(place)
"""


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that has none of the optional packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKER)
    return {**os.environ, "PYTHONPATH": str(folder)}


def run(words: list[str], environment: dict[str, str], folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        words, env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout + done.stderr


def test_every_optional_package_has_its_extra_in_the_table() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules_of = {"dlib-bin": ["dlib"], "pillow": ["PIL"], "pyserial": ["serial"],
                  "distributed": ["distributed", "dask"]}  # fmt: skip
    expected = {}
    for extra, requirements in declared["optional-dependencies"].items():
        for requirement in requirements:
            name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
            for module in modules_of.get(name, [name.replace("-", "_")]):
                expected[module] = extra
    assert expected == EXTRA_OF_MODULE


def test_every_command_can_be_loaded_without_optional_packages(
    bare: dict[str, str], tmp_path: Path
) -> None:
    code, output = run([sys.executable, "-c", ALL_COMMANDS], bare, tmp_path)
    assert code == 0, output
    assert "excise.cli.sensor:app" in output


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("tpm bench -T swtpm -o tpm.excise", "tpm"),
        ("attester --url http://127.0.0.1:1", "attest"),
        ("sensor embed face.png", "face"),
        ("daa issuer serve .", "attest"),
        ("fleet verify memory://hosts --workers 0 --results results", "fleet"),
        ("fleet verify . --results results --scheduler tcp://127.0.0.1:1", "fleet"),
    ],
)
def test_a_command_without_its_optional_part_names_what_to_install(
    words: str, extra: str, bare: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "host").mkdir()
    (tmp_path / "face.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, output = run([*EXCISE, *words.split()], bare, tmp_path)
    assert code == 4, output
    assert f"pip install 'excise[{extra}]'" in output
    assert "Traceback" not in output


def test_a_missing_package_is_an_error_in_json_too(bare: dict[str, str], tmp_path: Path) -> None:
    words = [*EXCISE, "attester", "--url", "http://127.0.0.1:1", "--json"]
    code, output = run(words, bare, tmp_path)
    assert code == 4, output
    assert json.loads(output.splitlines()[-1])["hint"] == "pip install 'excise[attest]'"


def test_a_module_of_no_optional_part_stays_a_bug() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'polars'", name="polars")) is None
