"""Debian 13's Go toolchain from a throw-away tree: a program with its module off and on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from excise.campaign.selftest_bench import run_bench
from excise.campaign.selftest_commands import OFF_ARM, ON_ARM, plan_commands
from excise.campaign.selftest_subjects import go_subject
from excise.collect.selftest.golang import INTEGRITY, GoProgram, find_go, go_tree, start_go
from excise.collect.selftest.openssl import OFF, ON
from excise.collect.selftest.tree import KEYRING, Tree, host_tree
from excise.collect.selftest.verdict import Answer, check_command, check_process
from excise.collect.selftest.wolfssl import look_for_wolfssl, wolfssl_tree
from excise.cost.selftest import start_costs, use_costs
from excise.events.load import load_capture
from skips import skip

pytestmark = pytest.mark.lab
WAITS = """package main

import (
	"crypto/sha256"
	"fmt"
	"os"
)

func main() {
	fmt.Println(len(sha256.Sum256(nil)))
	os.Stdin.Read(make([]byte, 1))
}
"""


@pytest.fixture(scope="module")
def tree() -> Tree:
    if shutil.which("apt-get") is None or not KEYRING.is_file():
        skip("no apt with the keys of Debian's archive")
    return go_tree("trixie")


@pytest.fixture(scope="module")
def program(tree: Tree) -> GoProgram:
    return find_go(tree)


@pytest.fixture(scope="module")
def default_on(tree: Tree, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a stripped program whose own default is the module on."""
    folder = tmp_path_factory.mktemp("go")
    (folder / "waits.go").write_text(WAITS)
    root = tree.root / "usr/lib/go"
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "GOROOT": str(root.resolve()),
        "CGO_ENABLED": "0",
        "GOFIPS140": "latest",
        "GOTOOLCHAIN": "local",
        "GO111MODULE": "off",
    }
    words = [str(root / "bin/go"), "build", "-ldflags=-s -w", "-o", "waits", "waits.go"]
    subprocess.run(words, cwd=folder, env=environment, check=True, timeout=600)
    return folder / "waits"


def test_the_integrity_check_and_the_first_tests_run_before_main(program: GoProgram) -> None:
    found = start_go(program, fips=True)
    tests = [name for each in found.inits for name in each.tests]
    assert INTEGRITY in tests
    assert "CAST SHA2-256" in tests
    assert "CAST ML-KEM-768" in tests
    assert not any("RSA" in name for name in tests)
    off = start_go(program, fips=False)
    assert not any(each.tests for each in off.inits)
    assert off.traced.tests == ()


def test_a_start_is_explained_and_lazy_tests_run_within_the_first_use(
    program: GoProgram, tmp_path: Path
) -> None:
    run_bench([go_subject(program)], tmp_path / "bench", blocks=8)
    dataset = load_capture(tmp_path / "bench")
    costs = {each.configuration: each for each in start_costs(dataset)}
    assert costs[OFF].tests == 0
    assert costs[ON].tests >= 10
    assert costs[ON].tests_ns > 100_000
    assert abs(costs[ON].remainder_share) < 0.15
    uses = {each.operation: each for each in use_costs(dataset) if each.configuration == ON}
    lazy = {name: each.tests for name, each in uses.items() if each.tests}
    assert set(lazy) == {"Go EC keygen", "Go ECDH", "Go Ed25519 keygen", "Go RSA-2048 sign"}
    assert all(each.again == () for each in uses.values())
    assert uses["Go RSA-2048 sign"].first_ns > 1.3 * uses["Go RSA-2048 sign"].second_ns


@pytest.mark.parametrize(
    ("value", "answer"),
    [("on", Answer.YES), ("only", Answer.YES), ("off", Answer.NO), ("on#1", Answer.NOT_COVERED)],
)
def test_a_program_is_judged_by_its_file_and_its_environment(
    default_on: Path, value: str, answer: Answer
) -> None:
    environment = {"PATH": os.defpath, "GODEBUG": f"fips140={value}"}
    command = ["sh", "-c", f"{default_on} </dev/null"]
    found = check_command(command, environment=environment, fips_on=False)
    assert found.answer is answer
    assert found.ended == "0"


def test_yes_for_a_stripped_program_whose_own_default_is_on(default_on: Path) -> None:
    environment = {"PATH": os.defpath}
    command = ["sh", "-c", f"{default_on} </dev/null"]
    found = check_command(command, environment=environment, fips_on=False)
    assert found.answer is Answer.YES
    assert any("by its own default" in each.found for each in found.evidence)
    assert check_command(command, environment=environment, fips_on=True).answer is Answer.NO


def test_a_running_program_is_judged_too(default_on: Path) -> None:
    for setting, answer in (("fips140=on", Answer.YES), ("fips140=off", Answer.NO)):
        with subprocess.Popen(
            [str(default_on)],
            env={"GODEBUG": setting},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"32\n"
            try:
                assert check_process(process.pid, fips_on=False).answer is answer
            finally:
                process.send_signal(signal.SIGKILL)


def test_a_whole_go_command_is_measured_off_and_on(program: GoProgram, tmp_path: Path) -> None:
    plan = plan_commands([str(program.path)], tree=host_tree(), blocks=1, cold=False)
    states = {each.name: each for each in plan.campaign.configurations}
    assert states[ON_ARM].environment["GODEBUG"] == "fips140=on"
    assert states[OFF_ARM].environment["GODEBUG"] == "fips140=off"
    assert plan.campaign.tasks[0].command == [str(program.path)]


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_wolfssl_of_debian_runs_but_the_test_of_its_random_generator(suite: str) -> None:
    if shutil.which("valgrind") is None:
        skip("no valgrind")
    found = look_for_wolfssl(wolfssl_tree(suite))
    assert found.state == "present"
    assert found.version.startswith("5.")
    assert "it runs no self-test at start but wc_RNG_HealthTest_ex," in found.note
    own = int(found.note.partition("executes ")[2].partition(" ")[0].replace(",", ""))
    test = int(found.note.rpartition("wc_RNG_HealthTest_ex ")[2].partition(" ")[0].replace(",", ""))
    assert 0.5 * own < test < own < 1_000_000
