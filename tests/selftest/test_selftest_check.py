"""`selftest check` on real programs of this host: yes, no, and where it cannot see."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from excise.collect.selftest.observe import observe
from excise.collect.selftest.verdict import Answer, check_command, check_process, check_system
from excise.errors import HostError

pytest_plugins = ("selftest_programs",)
FORCED = {"LIBGCRYPT_FORCE_FIPS_MODE": "1"}


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "FIPS" not in name}


def test_yes_for_libgcrypt_forced_by_environment(gcrypt_program: Path) -> None:
    found = check_command([str(gcrypt_program)], environment={**clean(), **FORCED}, fips_on=False)
    assert found.answer is Answer.YES
    assert found.exit_code == 1
    assert {test.library for test in found.tests} == {"libgcrypt"}
    assert len(found.tests) > 5
    assert all(test.phase == "Pass" for test in found.tests)
    assert found.tests_ns > 0
    causes = [each for each in found.evidence if "LIBGCRYPT_FORCE_FIPS_MODE" in each.source]
    assert [each.points for each in causes] == ["yes"]


def test_no_for_the_same_program_without_the_switch(gcrypt_program: Path) -> None:
    found = check_command([str(gcrypt_program)], environment=clean(), fips_on=False)
    assert found.answer is Answer.NO
    assert found.exit_code == 0
    assert found.tests == ()
    assert any("libgcrypt" in each.found and each.points == "no" for each in found.evidence)


def test_no_for_self_tests_that_fips_asked_for(gcrypt_program: Path) -> None:
    found = check_command([str(gcrypt_program)], environment={**clean(), **FORCED}, fips_on=True)
    assert found.answer is Answer.NO
    assert found.tests


def test_not_covered_for_a_static_program(static_program: Path) -> None:
    found = check_command([str(static_program)], environment=clean(), fips_on=False)
    assert found.answer is Answer.NOT_COVERED
    assert found.exit_code == 4
    assert any(
        str(static_program) in each.found and each.points == "unseen" for each in found.evidence
    )


def test_a_static_child_of_a_visible_program_is_noticed(static_program: Path) -> None:
    found = check_command(["sh", "-c", f"{static_program}; true"], environment=clean())
    assert found.answer is Answer.NOT_COVERED


def test_a_static_program_that_replaces_itself_by_a_visible_one_is_noticed(
    compiled, static_program: Path
) -> None:
    source = '#include <unistd.h>\nint main(void) { return execlp("true", "true", (char *)0); }\n'
    program = compiled("static-exec", source, "-static")
    assert observe([str(program)], environment=clean()).unseen


def test_yes_wins_over_what_cannot_be_seen(gcrypt_program: Path, static_program: Path) -> None:
    command = ["sh", "-c", f"{static_program}; {gcrypt_program}"]
    found = check_command(command, environment={**clean(), **FORCED}, fips_on=False)
    assert found.answer is Answer.YES


@pytest.mark.parametrize("value", ["1", "0", ""])  # libgcrypt looks only whether it is set
def test_a_switch_that_only_a_child_gets_is_named_as_cause(
    gcrypt_program: Path, value: str
) -> None:
    command = ["env", f"LIBGCRYPT_FORCE_FIPS_MODE={value}", str(gcrypt_program)]
    found = check_command(command, environment=clean(), fips_on=False)
    assert found.answer is Answer.YES
    assert any("LIBGCRYPT_FORCE_FIPS_MODE" in each.source for each in found.evidence)


def test_yes_for_a_provider_that_is_loaded_unconditionally(
    provider_loader: Path, announcing_provider: Path
) -> None:
    environment = {**clean(), "OPENSSL_MODULES": str(announcing_provider.parent)}
    command = [str(provider_loader), announcing_provider.stem]
    found = check_command(command, environment=environment, fips_on=False)
    assert found.answer is Answer.YES
    assert found.ended == "0"
    test = found.tests[0]
    assert (test.library, test.type, test.description) == ("openssl", "KAT_Digest", "SHA2")
    assert test.duration_ns is not None
    assert any("the program itself does" in each.found for each in found.evidence)


def test_no_for_the_same_loader_with_the_default_provider(provider_loader: Path) -> None:
    found = check_command([str(provider_loader), "no"], environment=clean(), fips_on=False)
    assert found.answer is Answer.NO
    assert found.ended == "0"


def test_a_library_opened_later_is_seen_too() -> None:
    script = (
        "import ctypes\n"
        "g = ctypes.CDLL('libgcrypt.so.20')\n"
        "g.gcry_check_version.restype = ctypes.c_char_p\n"
        "g.gcry_check_version(None)\n"
        "g.gcry_control(38, 0)\n"
    )
    environment = {**clean(), **FORCED}
    found = check_command([os.path.realpath(sys.executable), "-c", script], environment=environment)
    assert found.answer is Answer.YES


def test_the_end_of_the_command_is_told_and_does_not_decide() -> None:
    found = check_command(["sh", "-c", "exit 7"], environment=clean())
    assert found.ended == "7"
    assert found.answer is Answer.NO
    assert check_command(["sh", "-c", "kill -9 $$"], environment=clean()).ended == "signal 9"


def test_a_command_that_crashes_is_not_covered() -> None:
    found = check_command(["sh", "-c", "kill -SEGV $$"], environment=clean())
    assert found.answer is Answer.NOT_COVERED


def test_a_command_that_is_not_there_is_an_error() -> None:
    with pytest.raises(HostError, match="not found"):
        check_command(["/no/such/program"])


def test_a_running_process_is_judged_by_what_it_has_loaded(gcrypt_program: Path) -> None:
    with subprocess.Popen(["sleep", "60"], env=clean()) as process:
        try:
            assert check_process(process.pid, fips_on=False).answer is Answer.NO
        finally:
            process.kill()
    with pytest.raises(HostError, match="process"):
        check_process(process.pid)


def test_a_static_process_is_not_covered(compiled) -> None:
    source = "#include <unistd.h>\nint main(void) { return pause(); }\n"
    program = compiled("static-pause", source, "-static")
    with subprocess.Popen([str(program)]) as process:
        try:
            assert check_process(process.pid, fips_on=False).answer is Answer.NOT_COVERED
        finally:
            process.kill()


def test_the_system_pays_where_a_switch_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIBGCRYPT_FORCE_FIPS_MODE", raising=False)
    monkeypatch.setenv("OPENSSL_CONF", os.devnull)
    assert check_system(fips_on=False).answer is Answer.NO
    monkeypatch.setenv("LIBGCRYPT_FORCE_FIPS_MODE", "1")
    assert check_system(fips_on=False).answer is Answer.YES
    assert check_system(fips_on=True).answer is Answer.NO


def run_excise(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("excise")
    return subprocess.run(
        [str(program), "selftest", "check", *words],
        env={**clean(), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_exit_codes_of_the_program(gcrypt_program: Path, static_program: Path) -> None:
    yes = run_excise("--json", "--", str(gcrypt_program), **FORCED)
    assert yes.returncode == 1
    assert json.loads(yes.stdout)["data"]["answer"] == "yes"
    assert run_excise("--", str(gcrypt_program)).returncode == 0
    assert run_excise("--", str(static_program)).returncode == 4
    assert run_excise("--pid", "1", "--", "true").returncode == 2


def test_the_output_of_the_command_stays_off_standard_output() -> None:
    done = run_excise("--json", "--", "echo", "said by the command")
    assert json.loads(done.stdout)["data"]["answer"] == "no"
    assert "said by the command" in done.stderr
