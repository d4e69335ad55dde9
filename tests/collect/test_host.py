"""Host facts: what they must hold, and what they do where something is missing."""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from excise.collect import host
from excise.collect.host import (
    board_fact,
    cpu_model,
    file_system_fact,
    host_facts,
    mitigations,
    program_facts,
    read_word,
)
from skips import skip

MUST_AGREE = {
    "kernel.release",
    "kernel.cmdline",
    "machine",
    "virtualisation",
    "cpu.model",
    "cpu.count",
    "cpu.governor",
    "cpu.smt",
    "cpu.mitigations",
    "clocksource",
    "security.lsm",
    "fips.enabled",
    "ima.present",
    "ima.policy_present",
    "tpm.present",
    "libc",
}


def test_every_fact_that_must_agree_is_there_and_unknown_ones_say_why() -> None:
    facts = {fact.name: fact for fact in host_facts()}
    assert {name for name, fact in facts.items() if fact.must_agree} == MUST_AGREE
    assert len(facts) == len(host_facts())
    assert facts["kernel.release"].value == os.uname().release
    assert facts["kernel.cmdline"].value == Path("/proc/cmdline").read_text().strip()
    assert facts["machine"].value == platform.machine()
    assert facts["cpu.count"].value == os.cpu_count()
    for name in ("cpu.governor", "cpu.smt", "clocksource", "kernel.cmdline"):
        assert (facts[name].value is None) == bool(facts[name].note)


ARM = """processor\t: {number}
BogoMIPS\t: 125.00
Features\t: fp asimd
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x{variant}
CPU part\t: {part}
CPU revision\t: {revision}
"""


def test_the_model_of_a_processor_is_what_the_kernel_says_of_it() -> None:
    x86 = "processor\t: 0\nmodel\t\t: 1\nmodel name\t: AMD EPYC 7B13\n\nprocessor\t: 1\n"
    assert cpu_model(x86) == "AMD EPYC 7B13"
    assert cpu_model("system type\t: MT7621\ncpu model\t\t: MIPS 1004Kc V2.15\n") == (
        "MIPS 1004Kc V2.15"
    )
    assert cpu_model("") is None
    assert cpu_model("CPU implementer\t: 0x41\n") is None


def test_arm_cores_are_told_by_their_registers_and_counted_where_they_differ() -> None:
    big = [ARM.format(number=n, variant=1, part="0xd07", revision=0) for n in (4, 5)]
    little = [ARM.format(number=n, variant=0, part="0xd03", revision=4) for n in range(4)]
    assert cpu_model(big[0]) == "implementer 0x41 part 0xd07 r1p0"
    assert cpu_model("\n".join(big) + "\n") == "implementer 0x41 part 0xd07 r1p0"
    assert cpu_model("\n".join([*little, *big])) == (
        "4 × implementer 0x41 part 0xd03 r0p4, 2 × implementer 0x41 part 0xd07 r1p0"
    )


def test_a_board_is_named_as_its_device_tree_names_it() -> None:
    assert board_fact("") == []
    (fact,) = board_fact("Raspberry Pi 4 Model B Rev 1.4\0")
    assert (fact.value, fact.must_agree) == ("Raspberry Pi 4 Model B Rev 1.4", False)


def test_what_names_the_host_is_private() -> None:
    private = {fact.name for fact in host_facts() if fact.private}
    assert private == {"host.name", "kernel.cmdline", "boot.id"}
    open_values = [str(fact.value) for fact in host_facts() if not fact.private]
    assert platform.node() not in open_values


def test_facts_are_the_same_twice_where_they_must_agree() -> None:
    first, second = (
        {fact.name: fact.value for fact in host_facts() if fact.must_agree} for _ in range(2)
    )
    assert first == second


def test_a_program_is_known_by_its_digest_and_its_mechanism_libraries() -> None:
    path = shutil.which("gpg")
    if path is None:
        skip("gpg is not installed: it links libgcrypt")
    facts = {fact.name: fact.value for fact in program_facts([["gpg", "--version"], ["gpg"]])}
    assert facts["program.gpg.sha256"] == hashlib.sha256(Path(path).read_bytes()).hexdigest()
    linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    line = next(line for line in linked.splitlines() if "libgcrypt" in line)
    real = Path(line.split("=>")[1].split()[0]).resolve().name
    assert real.endswith(str(facts["library.libgcrypt.version"]).split(",")[0])


def test_a_library_is_that_which_the_programs_environment_loads(tmp_path: Path) -> None:
    path = shutil.which("gpg")
    if path is None:
        skip("gpg is not installed: it links libgcrypt")
    linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    line = next(line for line in linked.splitlines() if "libgcrypt" in line)
    soname, _, found = line.partition(" => ")
    copy = tmp_path / soname.strip()
    shutil.copy(found.split()[0], copy)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    facts = {fact.name: fact.value for fact in program_facts([[path]], environment=environment)}
    # A file that is called by the interface's name alone is known by what is in it.
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    assert str(facts["library.libgcrypt.version"]).endswith(f", {digest[:16]}")


def test_programs_that_are_not_there_or_not_linked_have_no_library_facts(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    assert program_facts([["no-such-program-xyz"]]) == []
    names = [fact.name for fact in program_facts([[str(script)]])]
    assert names == ["program.script.sha256"]


def test_the_file_system_of_the_work_directory_is_told() -> None:
    assert file_system_fact("/proc").value == "proc"
    assert file_system_fact("/proc/self").value == "proc"
    expected = subprocess.run(
        ["stat", "-f", "-c", "%T", "/dev/shm"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert file_system_fact("/dev/shm").value == expected
    assert file_system_fact("/procedure-that-is-not-there").value != "proc"


def test_mitigations_name_what_affects_this_host_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "CPU", tmp_path)
    assert mitigations() is None
    folder = tmp_path / "vulnerabilities"
    folder.mkdir()
    (folder / "meltdown").write_text("Not affected\n")
    assert mitigations() == "not affected by any known vulnerability"
    (folder / "spectre_v2").write_text("Mitigation: Retpolines; IBPB: conditional\n")
    (folder / "mds").write_text("Vulnerable\n")
    assert mitigations() == "mds: Vulnerable, spectre_v2: Mitigation: Retpolines"


@pytest.mark.parametrize(
    ("count", "present"), [("1\n", False), ("2\n", True), ("nonsense", None), (None, None)]
)
def test_an_ima_policy_shows_by_more_than_the_boot_aggregate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: str | None, present: bool | None
) -> None:
    monkeypatch.setattr(host, "SECURITYFS", tmp_path)
    (tmp_path / "ima").mkdir()
    if count is not None:
        (tmp_path / "ima" / "runtime_measurements_count").write_text(count)
    facts = {fact.name: fact.value for fact in host_facts()}
    assert facts["ima.present"] is True
    assert facts["ima.policy_present"] is present


def test_files_that_cannot_be_read_give_none(tmp_path: Path) -> None:
    assert read_word(tmp_path / "none") is None
    assert read_word(tmp_path) is None
    (tmp_path / "odd").write_bytes(b" \xff\n")
    assert read_word(tmp_path / "odd") == "\N{REPLACEMENT CHARACTER}"
