"""Go's module: what a program's file says, what its GODEBUG decides, and the runtime's trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from excise.collect.selftest.gobuild import GoBuild, fips_setting, judge, read_build
from excise.collect.selftest.golang import INTEGRITY, read_init_trace
from excise.collect.selftest.observe import Observation, read_observation
from excise.errors import FormatError

TRACE = """init errors @0.26 ms, 0.002 ms clock, 0 bytes, 1 allocs
FIPS 140-3 self-test passed: SHA2-256
init crypto/internal/fips140/sha256 @0.53 ms, 0.003 ms clock, 176 bytes, 3 allocs
fips140: verified code+data
init crypto/internal/fips140/check @0.57 ms, 0.29 ms clock, 856 bytes, 12 allocs
init main @12 ms, 11 ms clock, 0 bytes, 0 allocs
"""
PATH_LINES = "path\tthing\nmod\tthing\t(devel)\t\nbuild\t-buildmode=exe\n"


def blob(settings: str, *, version: str = "go1.24.4", names: bytes = b"", shift: int = 0) -> bytes:
    """Return bytes in the shape of a Go program: its build information, and function names."""
    module = b"<" * 16 + (PATH_LINES + settings).encode() + b">" * 16
    number = bytes([len(module) & 0x7F | 0x80, len(module) >> 7])
    text = bytes([len(version)]) + version.encode() + number + module
    header = b"\xff Go buildinf:" + b"\x08\x02" + bytes(16)
    # A program that reads build information has the mark as a constant, too.
    decoy = b"\xff Go buildinf:" + bytes(2)
    return b"\x7fELF" + bytes(12) + decoy + bytes(shift) + header + text + names


CHECK = b"\0crypto/internal/fips140/check.init.0\0"
STATIC = "build\tCGO_ENABLED=0\n"
DEFAULT_ON = "build\tDefaultGODEBUG=asynctimerchan=1,fips140=on,panicnil=1\n"


def write(folder: Path, data: bytes) -> Path:
    path = folder / "program"
    path.write_bytes(data)
    return path


def build(**settings: str) -> GoBuild:
    return GoBuild(version="go1.24.4", settings=settings, module=True, check=True)


def seen(program: Path, *lines: str, godebug: str = "") -> Observation:
    file = program.stat()
    start = f"exec\t7\t{program}\nenvironment\t7\t{file.st_dev}\t{file.st_ino}\t{godebug}\n"
    return read_observation(start + "".join(f"{line}\n" for line in lines) + "exit\t0\n")


def test_a_trace_gives_each_package_its_time_and_its_tests() -> None:
    found = read_init_trace(TRACE)
    assert [each.package.rpartition("/")[2] for each in found] == [
        "errors",
        "sha256",
        "check",
        "main",
    ]
    assert [each.duration_ns for each in found] == [2_000, 3_000, 290_000, 11_000_000]
    assert [each.tests for each in found] == [(), ("CAST SHA2-256",), (INTEGRITY,), ()]


def test_a_trace_that_holds_anything_else_or_ends_early_is_refused() -> None:
    with pytest.raises(FormatError, match="line 2"):
        read_init_trace(TRACE.replace("FIPS 140-3", "FIPS 140-4"))
    with pytest.raises(FormatError, match="ends early"):
        read_init_trace(TRACE + "FIPS 140-3 self-test passed: PBKDF2\n")
    with pytest.raises(FormatError, match="ends early"):
        read_init_trace("")


def test_build_information_is_read_from_the_file(tmp_path: Path) -> None:
    found = read_build(write(tmp_path, blob(STATIC + DEFAULT_ON, names=CHECK)))
    assert found is not None
    assert found.version == "go1.24.4"
    assert found.settings["CGO_ENABLED"] == "0"
    assert found.own_code_only
    assert found.plain
    assert found.module
    assert found.check


def test_a_file_without_it_or_cut_off_is_no_go_program(tmp_path: Path) -> None:
    data = blob(STATIC)
    assert read_build(write(tmp_path, data.replace(b" Go buildinf:", b" go buildinf:"))) is None
    assert read_build(write(tmp_path, blob(STATIC, shift=8))) is None  # not at its alignment
    assert read_build(write(tmp_path, data[:64])) is None
    assert read_build(write(tmp_path, b"")) is None
    assert read_build(tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("default", "godebug", "expected"),
    [
        ("", "", ("", "no setting")),
        ("fips140=on", "", ("on", "its own default")),
        ("fips140=on", "fips140=off", ("off", "GODEBUG")),
        ("", "fips140=off,http2client=0,fips140=only", ("only", "GODEBUG")),
        ("", "xfips140=on,fips140", ("", "no setting")),
    ],
)
def test_the_last_setting_of_the_environment_counts_then_the_default(
    default: str, godebug: str, expected: tuple[str, str]
) -> None:
    assert fips_setting(build(DefaultGODEBUG=default), godebug) == expected


@pytest.mark.parametrize("value", ["on", "only", "debug"])
def test_a_start_with_the_module_on_runs_tests(value: str) -> None:
    assert judge(build(), f"fips140={value}").tests is True


@pytest.mark.parametrize("godebug", ["", "fips140=off", "fips140="])
def test_a_start_with_the_module_off_runs_none(godebug: str) -> None:
    assert judge(build(), godebug).tests is False


@pytest.mark.parametrize("godebug", [None, "fips140=maybe", "fips140=on#123"])
def test_what_is_not_known_is_not_decided(godebug: str | None) -> None:
    assert judge(build(), godebug).tests is None


def test_another_toolchain_or_an_experiment_is_not_decided() -> None:
    assert judge(build(GOEXPERIMENT="boringcrypto"), "").tests is None
    other = GoBuild(version="go1.24.4 (Red Hat 1.24.4-1)", settings={}, module=True, check=True)
    assert judge(other, "").tests is None


def test_a_program_without_the_module_runs_no_test_whatever_the_switch() -> None:
    old = GoBuild(version="go1.19.8", settings={}, module=False, check=False)
    assert judge(old, "fips140=on").tests is False


def test_a_static_go_program_is_seen_into_by_its_file_and_its_environment(tmp_path: Path) -> None:
    program = write(tmp_path, blob(STATIC, names=CHECK))
    on = seen(program, godebug="fips140=on")
    assert on.modes == ("Go's module in program (fips140=on by GODEBUG)",)
    assert on.switches == ("GODEBUG=fips140=on",)
    off = seen(program)
    assert (off.modes, off.unseen) == ((), ())
    assert off.libraries == ("Go's module in program (go1.24.4, fips140 is off by no setting)",)


def test_a_static_go_program_with_c_in_it_stays_unseen(tmp_path: Path) -> None:
    program = write(tmp_path, blob("build\tCGO_ENABLED=1\n", names=CHECK))
    assert seen(program).unseen
    assert seen(program, "hello\t7").unseen == ()  # its libraries were watched


def test_a_go_program_whose_environment_or_file_is_not_known_stays_unseen(tmp_path: Path) -> None:
    program = write(tmp_path, blob(STATIC, names=CHECK))
    assert read_observation(f"exec\t7\t{program}\nexit\t0\n").unseen
    # The path is another file where it is read: a program in a root of its own.
    other = f"exec\t7\t{program}\nenvironment\t7\t1\t1\t\nexit\t0\n"
    assert read_observation(other).unseen


def test_a_go_program_that_becomes_another_program_is_still_judged(tmp_path: Path) -> None:
    program = write(tmp_path, blob(STATIC + DEFAULT_ON, names=CHECK))
    found = seen(program, "exec\t7\t/bin/true", "hello\t7")
    assert found.modes == ("Go's module in program (fips140=on by its own default)",)
    assert found.unseen == ()
