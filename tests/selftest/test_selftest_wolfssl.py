"""wolfSSL: a FIPS build is told by what it exports, another by what it does not execute."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.campaign.selftest_bench import run_bench
from excise.campaign.selftest_subjects import wolfssl_subject
from excise.collect.selftest.callgrind import present
from excise.collect.selftest.tree import Tree
from excise.collect.selftest.wolfssl import look_for_wolfssl
from excise.cost.selftest import start_costs
from excise.events.load import load_capture
from skips import skip

pytest_plugins = ("selftest_programs",)
PLAIN = """
const char *wolfSSL_lib_version(void) { return "5.0.0"; }
int wolfCrypt_Init(void) { return 0; }
"""
WITH_TLS = PLAIN + "int wolfSSL_Init(void) { return 1; }\n"
# The functions of a FIPS build in the shape of fips.h; the validated module is not free to ship.
FIPS = (
    PLAIN
    + """
static volatile unsigned sum;
static int tested(void) { for (unsigned i = 0; i < 100000; i++) sum += i; return 0; }
__attribute__((constructor)) static void at_load(void) { tested(); }
int wolfCrypt_GetStatus_fips(void) { return 0; }
int wolfCrypt_IntegrityTest_fips(void) { return tested(); }
int wc_RunAllCast_fips(void) { return tested(); }
"""
)
LOADERS = ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1")


@pytest.fixture
def place(compiled, tmp_path: Path):
    """Return what makes a tree whose only library of its own is a wolfSSL of that source."""
    loader = next((Path(name) for name in LOADERS if Path(name).is_file()), None)
    if loader is None:
        skip("no loader of a known name")

    def make(source: str) -> Tree:
        built = compiled("libwolfssl-made.so", source, "-shared", "-fPIC")
        (tmp_path / "libwolfssl.so").unlink(missing_ok=True)
        (tmp_path / "libwolfssl.so").symlink_to(built)
        libraries = (tmp_path, loader.resolve().parent)
        return Tree(suite="made", root=tmp_path, versions={}, loader=loader, libraries=libraries)

    return make


def test_a_build_without_fips_says_so_with_what_shows_it(place) -> None:
    found = look_for_wolfssl(place(PLAIN), count=present())
    assert found.state == "present"
    ending = ". It exports none" if present() else " that belongs to FIPS"
    assert f"built without FIPS: it runs no self-test at start{ending}" in found.note
    assert "exports none of wolfCrypt_GetStatus_fips, wolfCrypt_IntegrityTest_fips" in found.note
    assert "(medians of 9)" in found.note
    assert "wolfSSL_Init" not in found.note
    assert "wolfSSL_Init takes" in look_for_wolfssl(place(WITH_TLS), count=False).note
    assert ("instructions in all of them (callgrind)" in found.note) == present()


def test_a_test_that_runs_without_fips_is_named_with_its_instructions(place) -> None:
    if not present():
        skip("no valgrind")
    source = PLAIN.replace("{ return 0; }", "{ return wc_RNG_HealthTest_ex(); }")
    test = "__attribute__((noinline)) int wc_RNG_HealthTest_ex(void)"
    loop = "{ for (volatile unsigned i = 0; i < 5000; i++); return 0; }\n"
    found = look_for_wolfssl(place(f"{test} {loop}" + source))
    assert "runs no self-test at start but wc_RNG_HealthTest_ex," in found.note
    count = found.note.rpartition("wc_RNG_HealthTest_ex ")[2].partition(" ")[0]
    assert 10_000 < int(count.replace(",", "")) < 100_000


def test_a_build_that_exports_but_part_of_them_is_not_judged(place) -> None:
    odd = place(PLAIN + "int wolfCrypt_SetCb_fips(void) { return 0; }\n")
    assert "what it runs is not known" in look_for_wolfssl(odd, count=False).note


def test_a_fips_build_is_measured_with_its_tests_again(place, tmp_path: Path) -> None:
    tree = place(FIPS)
    found = look_for_wolfssl(tree, count=False)
    assert (found.state, found.version) == ("measured", "5.0.0")
    run_bench([wolfssl_subject(found, tree=tree)], tmp_path / "bench", blocks=3)
    runs = load_capture(tmp_path / "bench").runs
    assert runs.get_column("ok").all()
    tasks = set(runs.get_column("task").cast(str).to_list())
    assert {name for name in tasks if name.startswith("run self-tests again")} == {
        "run self-tests again: wolfCrypt_IntegrityTest_fips, wolfssl 5.0.0",
        "run self-tests again: wc_RunAllCast_fips, wolfssl 5.0.0",
    }
    assert (runs.get_column("wall_ns") > 10_000).all()


def test_a_build_without_fips_has_starts_to_measure_but_no_tests(place, tmp_path: Path) -> None:
    tree = place(WITH_TLS)
    subject = wolfssl_subject(look_for_wolfssl(tree, count=False), tree=tree)
    run_bench([subject], tmp_path / "bench", blocks=3)
    (plain, twin) = start_costs(load_capture(tmp_path / "bench"))
    assert (plain.tests, twin.tests) == (0, 0)
    assert 0 < plain.steps_ns < plain.total_ns
