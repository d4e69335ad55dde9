"""What the doctor says of this host is what this host does."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from excise.collect import doctor, probe
from excise.collect.doctor import Ability, examine
from excise.collect.probe import ask_probe, probe_info, probe_path
from excise.errors import HostError, UsageError


def by_name() -> dict[str, Ability]:
    return {ability.name: ability for ability in examine()}


def test_every_ability_that_lacks_something_says_what_to_do() -> None:
    for ability in examine():
        assert ability.found
        assert (ability.state == "yes") == (ability.enable == ""), ability


def test_what_is_said_to_work_works() -> None:
    found = by_name()
    words = ["run", "--workload", "null", "--operations", "1000", "--batches", "1"]
    for name, options in (
        ("Landlock per process", ["--landlock", "--directory", "/tmp"]),
        ("seccomp filters", ["--seccomp", "3"]),
    ):
        if found[name].state == "yes":
            assert ask_probe(*words, *options)["mechanism"]
        else:
            with pytest.raises(HostError, match=r"."):
                ask_probe(*words, *options)
    info = probe_info()
    counts = bool(info.counters.instructions_scope or info.counters.cycles_scope)
    assert (found["instruction counts"].state == "yes") == counts
    qemu = shutil.which("qemu-system-x86_64") and shutil.which("swtpm")
    assert (found["kernels in QEMU with a software TPM"].state == "yes") == bool(qemu)
    tpm = os.access("/dev/tpmrm0", os.R_OK | os.W_OK)
    assert (found["TPM commands and quotes"].state == "yes") == tpm


def test_tracing_is_there_where_its_list_of_functions_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "TRACEFS", (tmp_path / "none", tmp_path / "tracing"))
    assert by_name()["kernel tracing"].enable.startswith("mount -t tracefs")
    functions = tmp_path / "tracing" / doctor.FUNCTIONS
    functions.mkdir(parents=True)  # is listed, and refuses to be read, as under lockdown
    found = by_name()["kernel tracing"]
    assert (found.state, found.found) == ("no", f"{functions}: Is a directory")
    functions.rmdir()
    functions.write_text("security_file_open\n")
    assert by_name()["kernel tracing"].state == "yes"


def test_without_the_probe_the_rest_is_still_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "PROBE", tmp_path / "none")
    found = by_name()
    assert found["run campaigns"].state == "no"
    assert found["run campaigns"].enable == "Build it with `make build`"
    assert "Landlock per process" not in found
    assert "list of active LSMs" in found
    with pytest.raises(HostError, match="the native probe is missing"):
        probe_path()


def test_a_readable_ima_list_and_an_unreadable_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SECURITYFS", tmp_path)
    assert by_name()["IMA measurement list"].state == "no"
    (tmp_path / "ima").mkdir()
    (tmp_path / "ima" / "binary_runtime_measurements").write_bytes(b"x")
    (tmp_path / "ima" / "runtime_measurements_count").write_text("12\n")
    (tmp_path / "lsm").write_text("landlock,selinux")
    found = by_name()
    assert (found["IMA measurement list"].state, found["IMA measurement list"].found) == (
        "yes",
        "12 entries",
    )
    assert found["list of active LSMs"].found == "landlock,selinux"


def test_questions_the_probe_does_not_know_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="dance") as caught:
        ask_probe("dance")
    assert caught.value.source == "excise-probe dance"
    with pytest.raises(UsageError, match="nonsense"):
        ask_probe("run", "--workload", "nonsense")
