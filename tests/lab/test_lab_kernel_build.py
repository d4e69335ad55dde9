"""Building the lab's own kernel: options that must take effect, tools, and what is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ended import ended, wait_until
from excise.errors import HostError, UsageError
from excise.lab import kernel_build, kernels
from excise.lab.kernel_config import VARIANTS, own_fragment, read_config, require_options
from excise.lab.processes import family


def _config(**changes: str | None) -> dict[str, str]:
    wanted = {**own_fragment().options, **changes}
    return {name: value for name, value in wanted.items() if value is not None}


def test_the_fragment_asks_for_what_distributions_leave_out() -> None:
    options = own_fragment().options
    for name in ("TCG_TPM2_HMAC", "SECURITY_SMACK", "FUNCTION_PROFILER", "IMA_WRITE_POLICY"):
        assert options[f"CONFIG_{name}"] == "y"
    assert options["CONFIG_MODULES"] is None


def test_a_variant_differs_in_its_own_option_alone() -> None:
    own, without = (own_fragment(name).options for name in VARIANTS)
    different = {name for name in own if own[name] != without[name]}
    assert own.keys() == without.keys()
    assert different == {"CONFIG_TCG_TPM2_HMAC"}


def test_an_option_that_did_not_take_effect_is_named() -> None:
    config = _config(CONFIG_SECURITY_SMACK=None, CONFIG_MODULES="y")
    with pytest.raises(HostError, match="2 build options did not take effect") as caught:
        require_options(own_fragment(), config=config, source="linux-source-6.12")
    assert "SECURITY_SMACK is not set" in caught.value.reason
    assert "MODULES is y" in caught.value.reason


def test_what_only_newer_kernels_offer_is_told_apart() -> None:
    config = _config(CONFIG_FUNCTION_GRAPH_RETADDR=None)
    assert require_options(own_fragment(), config=config, source="s") == ["FUNCTION_GRAPH_RETADDR"]


def test_further_options_win_over_the_labs() -> None:
    fragment = own_fragment(more="# CONFIG_SECURITY_SMACK is not set\nCONFIG_PANIC_TIMEOUT=5\n")
    assert fragment.options["CONFIG_SECURITY_SMACK"] is None
    assert fragment.options["CONFIG_PANIC_TIMEOUT"] == "5"
    with pytest.raises(UsageError, match="line 1 is no build option: SMACK=y"):
        own_fragment(more="SMACK=y\n", source="mine")


def test_a_config_is_read_as_the_kernel_writes_it() -> None:
    text = '# comment\nCONFIG_A=y\n# CONFIG_B is not set\nCONFIG_LSM="a,b"\n'
    assert read_config(text) == {"CONFIG_A": "y", "CONFIG_LSM": '"a,b"'}


def test_missing_tools_are_named_with_their_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("make", "gcc", "ld", "bc", "perl", "lz4", "tar", "xz", "patch"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")  # a compiler that finds no header
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HostError, match="flex, bison, libelf-dev, libssl-dev missing") as caught:
        kernel_build.require_tools()
    assert caught.value.hint == "apt-get install flex bison libelf-dev libssl-dev"


def test_a_kernel_that_was_not_built_says_how(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EXCISE_LAB_CACHE", str(tmp_path))
    with pytest.raises(HostError, match=r"kernel own has not been built.*excise lab kernel build"):
        kernels.resolve("own")
    with pytest.raises(HostError, match="excise lab kernel build --name own:patched"):
        kernels.resolve("own:patched")
    with pytest.raises(UsageError, match="cannot be called 'own:'"):
        kernels.resolve("own:")
    assert kernel_build.built_kernels() == []


def test_no_compiler_is_left_when_the_work_is_interrupted(tmp_path: Path) -> None:
    command = ["sh", "-c", "sleep 987 & sleep 988 & wait"]
    with family(command, log=tmp_path / "log", environment=dict(os.environ)) as process:
        group = process.pid
        wait_until(lambda: len(_members(group)) >= 4)
    assert _members(group) == []


def test_no_compiler_is_left_when_excise_is_killed(tmp_path: Path) -> None:
    program = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from excise.lab.processes import family\n"
        "command = ['sh', '-c', 'sleep 987 & sleep 988 & wait']\n"
        "with family(command, log=Path(sys.argv[1]), environment=dict(os.environ)) as process:\n"
        "    print(process.pid, flush=True)\n"
        "    time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "log")], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    with ended(parent):
        group = int(parent.stdout.readline())
        wait_until(lambda: len(_members(group)) >= 4)
        parent.kill()
        parent.wait()
        wait_until(lambda: not _members(group))


def _members(group: int) -> list[int]:
    """Return the processes of a group that are no zombies."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(int(path.name))
    return found
