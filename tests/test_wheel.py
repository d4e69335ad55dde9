"""The built wheel, installed outside of the tree: all that a user has is in it, and works."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel, built as `pip install .` builds it."""
    maturin = Path(sys.executable).with_name("maturin")
    folder = tmp_path_factory.mktemp("wheel")
    words = [maturin, "build", "--release", "--quiet", "--out", folder]
    subprocess.run(words, cwd=ROOT, check=True)
    (found,) = folder.glob("excise-*.whl")
    return found


def test_the_wheel_has_programs_data_and_licence_and_nothing_of_the_tree(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("excise/")}
    assert {"excise/_bin/excise-probe", "excise/_bin/excise-guest"} <= package
    assert {"excise/_core.abi3.so", "excise/py.typed", "excise/data/demo.tar.zst"} <= package
    assert "abi3" in wheel.name
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert all(name.startswith("excise/") or ".dist-info/" in name for name in names)
    assert not [name for name in names if "__pycache__" in name]
    assert _shipped() <= package


def _shipped() -> set[str]:
    """Return the modules, scripts and data of the package, as the tree has them."""
    kinds = {".py", ".pyi", ".sh", ".toml", ".json", ".c", ".h", ".js", ".css", ".config"}
    source = ROOT / "src"
    files = (path for path in (source / "excise").rglob("*") if path.suffix in kinds)
    return {path.relative_to(source).as_posix() for path in files}


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the wheel is installed in; what it needs is this environment's."""
    folder = tmp_path_factory.mktemp("installed")
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*words, "--target", folder, wheel], check=True)
    where = [sys.executable, "-c", "import excise; print(excise.__file__)"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    found = subprocess.run(where, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.startswith(str(folder))
    return folder


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--version",), "excise "),
        (("demo", "-o", "demo.html"), "Cost against none"),
        (("run", "-n", "3", "-o", "t.excise", "--", "true"), "Summary"),
        (("show", "reference:lsmpmon-2008"), "TOMOYO"),
        (("perf", "header"), "RA_PERF"),
        (("doctor",), "yes    run campaigns"),
        ((), "_excise_completion"),
    ],
    ids=lambda part: (part or ("completion",))[0] if isinstance(part, tuple) else None,
)
def test_commands_of_the_installed_wheel_work(
    installed: Path, tmp_path: Path, words: tuple[str, ...], said: str
) -> None:
    program = installed / "bin" / "excise"
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    if not words:  # whichever shell runs this
        environment["_EXCISE_COMPLETE"] = "source_bash"
    done = subprocess.run(
        [sys.executable, "-W", "error", program, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert str(ROOT) not in done.stdout + done.stderr
