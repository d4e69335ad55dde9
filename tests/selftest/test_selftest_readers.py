"""Readers of what helpers, watched processes, kernels and configurations write."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from excise.collect.selftest.kernel import kernel_tests, read_kernel_log, read_proc_crypto
from excise.collect.selftest.measured import read_measured
from excise.collect.selftest.observe import read_observation
from excise.collect.selftest.system import (
    activated_fips,
    configuration_sections,
    environment_evidence,
    explain_keys,
    openssl_evidence,
)
from excise.errors import FormatError

PRINTED = (
    "version\tOpenSSL 3.5.9\n"
    "clock\tCLOCK_MONOTONIC_RAW\t1\n"
    "step\tprovider\t100\t900\tok\n"
    "use\tEC keygen\t1\t1000\t1100\tok\n"
    "test\tload\tKAT_Digest\tSHA1\t200\t250\tPass\n"
    "test\tload\tDRBG\tCTR\t300\t0\tUnfinished\n"
    "probe\tload\t4\t17\n"
    "lost\t0\n"
)


def test_a_helper_is_read_whole() -> None:
    found = read_measured(PRINTED)
    assert found.version == "OpenSSL 3.5.9"
    assert found.step("provider").end_ns == 900
    assert [test.name for test in found.tests] == ["KAT_Digest SHA1", "DRBG CTR"]
    assert found.tests[1].end_ns == found.tests[1].start_ns
    assert found.uses[0].round == 1
    assert found.own_ns == {"load": 17}
    with pytest.raises(FormatError, match="no step 'dlopen'"):
        found.step("dlopen")


def test_a_cut_helper_is_refused() -> None:
    with pytest.raises(FormatError, match="ends before its last line"):
        read_measured(PRINTED.removesuffix("lost\t0\n"))


@pytest.mark.parametrize("line", ["step\tprovider\tx\t900\tok", "what", "fips\tmaybe", "lost\t-"])
def test_a_wrong_line_is_named(line: str) -> None:
    with pytest.raises(FormatError, match="line 9"):
        read_measured(PRINTED + line + "\n")


@given(st.text(alphabet=st.sampled_from("steplonu\t\n0129-verif"), max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(FormatError):
        assert read_measured(text).lost is not None


def test_self_tests_are_paired_in_each_process() -> None:
    seen = read_observation(
        "exec\t7\t/usr/bin/a\nhello\t7\narmed\t7\topenssl\n"
        "test\t7\topenssl\tKAT_Digest\tSHA1\tStart\t100\n"
        "test\t8\topenssl\tKAT_Digest\tSHA1\tStart\t150\n"
        "test\t7\topenssl\tKAT_Digest\tSHA1\tPass\t400\n"
        "exit\t0\n"
    )
    assert [(test.pid, test.phase, test.duration_ns) for test in seen.tests] == [
        (7, "Pass", 300),
        (8, "Unfinished", None),
    ]
    assert seen.unseen == ()
    assert seen.ended == "0"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("object\t7\tlibgcrypt.so.20", "its log was not reached"),
        ("object\t7\tfips.so", "entered unseen"),
        ("object\t7\tlibfreeblpriv3.so", "NSS announces no self-test"),
        ("object\t7\tlibgnutls.so.30", "did not end by exit"),
        ("state\t7\twolfssl\tunseen", "announces no self-test"),
    ],
)
def test_what_cannot_be_seen_is_named(lines: str, reason: str) -> None:
    seen = read_observation(f"exec\t7\t/usr/bin/a\nhello\t7\n{lines}\nexit\t0\n")
    assert len(seen.unseen) == 1
    assert reason in seen.unseen[0]


def test_a_torn_line_makes_the_observation_incomplete() -> None:
    seen = read_observation("exec\t7\t/usr/bin/a\nhello\t7\ntest\t7\topenssl\tKAT\nexit\t0\n")
    assert seen.unseen == ("1 line of the observation itself cannot be read",)


@given(st.text(alphabet=st.sampled_from("exechlotsPa\t\n07/"), max_size=200))
def test_any_observation_is_read_and_counts_what_it_cannot_read(text: str) -> None:
    seen = read_observation(text)
    lines = [line for line in text.split("\n") if line]
    if lines and not any(line.startswith(("exec", "test", "hello", "exit")) for line in lines):
        assert seen.unseen


def test_a_library_in_fips_mode_counts_though_it_announces_nothing() -> None:
    log = "exec\t7\t/usr/bin/a\nhello\t7\nobject\t7\tlibgnutls.so.30\nstate\t7\tgnutls\tfips\n"
    seen = read_observation(log)
    assert seen.modes == ("gnutls in a",)
    assert seen.unseen == ()


PROC_CRYPTO = """name         : sha256
driver       : sha256-ni
module       : kernel
selftest     : passed
internal     : no
fips         : yes

name         : ecb(cipher_null)
driver       : ecb-cipher_null
selftest     : unknown
"""


def test_algorithms_and_logged_tests_of_a_kernel_are_read() -> None:
    algorithms = read_proc_crypto(PROC_CRYPTO)
    assert [each.driver for each in algorithms] == ["sha256-ni", "ecb-cipher_null"]
    assert [each.fips for each in algorithms] == [True, None]
    log = (
        "[    0.412345] alg: self-tests for sha256-ni (sha256) passed\n"
        "<6>[    1.000001] alg: self-tests for rsa using rsa-generic failed (rc=-22)\n"
        "[    1.100000] something else\n"
    )
    tests = list(read_kernel_log(log))
    assert [(each.driver, each.algorithm, each.result, each.time_ns) for each in tests] == [
        ("sha256-ni", "sha256", "passed", 412_345_000),
        ("rsa-generic", "rsa", "failed", 1_000_001_000),
    ]
    found = kernel_tests(crypto=PROC_CRYPTO, log=log, fips="1\n")
    assert found.fips_enabled is True
    assert found.selftests == {"passed": 1, "unknown": 1}
    assert kernel_tests(crypto="", log="", fips=None).fips_enabled is None


ACTIVE = """openssl_conf = start
.include {include}
[start]
providers = chosen
[chosen]
fips = fips_sect
"""
MODULE = "[fips_sect]\nactivate = 1\nmodule-mac = AA:BB\ninstall-status = X\nnew-key = 2\n"


def write_configuration(folder: Path, module: str) -> Path:
    (folder / "fipsmodule.cnf").write_text(module)
    path = folder / "openssl.cnf"
    path.write_text(ACTIVE.format(include="fipsmodule.cnf"))
    return path


def test_an_included_section_activates_the_provider(tmp_path: Path) -> None:
    path = write_configuration(tmp_path, MODULE)
    keys = activated_fips(configuration_sections(path))
    assert keys is not None
    assert keys["module-mac"] == "AA:BB"
    rows = openssl_evidence({"OPENSSL_CONF": str(path)})
    assert rows[0].points == "yes"
    assert any("module-mac" in each.source for each in rows)


def test_a_provider_that_is_configured_but_not_activated_is_not_loaded(tmp_path: Path) -> None:
    path = write_configuration(tmp_path, MODULE.replace("activate = 1", "activate = 0"))
    assert activated_fips(configuration_sections(path)) is None
    assert openssl_evidence({"OPENSSL_CONF": str(path)})[0].points == "context"


def test_a_configuration_that_includes_itself_ends(tmp_path: Path) -> None:
    path = tmp_path / "openssl.cnf"
    path.write_text(".include openssl.cnf\n[a]\nb = 1\n")
    assert configuration_sections(path)["a"] == {"b": "1"}


def test_the_cached_status_means_something_on_3_0_only() -> None:
    old = {each.key: each.meaning for each in explain_keys(MODULE, version="3.0.19")}
    new = {each.key: each.meaning for each in explain_keys(MODULE, version="3.5.9")}
    assert "skipped at a load" in old["install-status"]
    assert "no effect" in new["install-status"]
    assert "not known" in new["new-key"]


def test_variables_switch_on_only_with_their_own_values() -> None:
    given_ = {
        "LIBGCRYPT_FORCE_FIPS_MODE": "0",
        "GNUTLS_FORCE_FIPS_MODE": "0",
        "NSS_FIPS": "1",
        "GODEBUG": "x=1,fips140=only",
    }
    points = {each.source.split()[1]: each.points for each in environment_evidence(given_)}
    assert points == {
        "LIBGCRYPT_FORCE_FIPS_MODE": "yes",  # libgcrypt looks at its presence alone
        "GNUTLS_FORCE_FIPS_MODE": "context",
        "NSS_FIPS": "yes",
        "GODEBUG": "yes",
    }
