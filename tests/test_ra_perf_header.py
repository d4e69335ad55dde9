"""`ra_perf.h`: it compiles without a warning, is compiled out without its flag, is read back."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from excise.collect.perf_cost import c_cost, header
from excise.errors import HostError
from excise.formats.model import Options
from excise.formats.registry import read
from skips import skip

WARNINGS = ["-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-O2"]
PROGRAM = r"""
#define _POSIX_C_SOURCE 199309L
#include "ra_perf.h"
RA_PERF_BUFFER(perf);
int main(void)
{
	int i;

	for (i = 0; i < 3; i++) {
		RA_PERF_BEGIN(whole);
		RA_PERF_BEGIN(step);
		RA_PERF_END(perf, step, "pta", "hash_ta", "plain");
		RA_PERF_END(perf, whole, "pta", "cmd_total", "plain|build=qemu");
		RA_PERF_FLUSH(perf, "pta", "plain");
	}
	return 0;
}
"""
# A TEE without stdio or POSIX clocks: its own counter, its own console.
FREESTANDING = r"""
#include <stdint.h>
#include <stdio.h>
static uint64_t ticks;
#define RA_PERF_NOW() (ticks += 4)
#define RA_PERF_HZ 8000000u
#define RA_PERF_PUTS(text) printf("I/TC: %s", text)
#define RA_PERF_CAPACITY 2
#include "ra_perf.h"
RA_PERF_BUFFER(perf);
int main(void)
{
	int i;

	for (i = 0; i < 5; i++) {
		RA_PERF_BEGIN(step);
		RA_PERF_END(perf, step, "pta", "sign_ecdsa", "black");
	}
	RA_PERF_FLUSH(perf, "pta", "black");
	return 0;
}
"""


def _built(folder: Path, source: str, *options: str, compiler: str = "gcc") -> Path:
    if shutil.which(compiler) is None:
        skip(f"{compiler} is not installed")
    (folder / "ra_perf.h").write_text(header())
    (folder / "main.c").write_text(source)
    words = [compiler, *WARNINGS, *options, "-o", str(folder / "main"), str(folder / "main.c")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "main"


def _output(*words: str | Path) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def test_its_lines_are_read_back(tmp_path: Path) -> None:
    text = _output(_built(tmp_path, PROGRAM, "-DRA_PERF_ENABLED"))
    reading = read(text.encode(), options=Options(source="log"), format_name="ra-perf")
    assert [run.task for run in reading.runs].count("evidence") == 3
    assert reading.losses == []
    assert "|key=plain|build=qemu\n" in text


def test_without_its_flag_nothing_of_it_is_left(tmp_path: Path) -> None:
    program = _built(tmp_path, PROGRAM)
    assert _output(program) == ""
    assert b"RA_PERF" not in program.read_bytes()


def test_another_clock_and_console_need_no_posix(tmp_path: Path) -> None:
    text = _output(_built(tmp_path, FREESTANDING, "-DRA_PERF_ENABLED"))
    lines = text.splitlines()
    assert lines[0] == "I/TC: RA_PERF|pta|cntfrq|8000000|key=-"
    # Two readings are four ticks of 125 ns apart: half a microsecond, of which none is whole.
    assert lines[1:3] == ["I/TC: RA_PERF|pta|sign_ecdsa|0|key=black"] * 2
    assert lines[-1] == "I/TC: RA_PERF|pta|perf_overflow|3|key=black"
    reading = read(text.encode(), options=Options(source="log"), format_name="ra-perf")
    assert [loss.count for loss in reading.losses if "was full" in loss.reason] == [3]


def test_the_example_of_its_first_comment_compiles_as_it_stands(tmp_path: Path) -> None:
    comment = header().partition("*/")[0]
    lines = [line[7:] for line in comment.splitlines() if line.startswith(" *     ")]
    start, end = lines.index("#define _POSIX_C_SOURCE 199309L"), lines.index("}")
    example = "\n".join(lines[start : end + 1]) + "\nvoid sign_ecdsa(void)\n{\n}\n"
    text = _output(_built(tmp_path, example, "-std=c99"))
    steps = [line.split("|")[2] for line in text.splitlines()]
    assert steps == ["sign_ecdsa", "cmd_total", "perf_flush"]
    reading = read(text.encode(), options=Options(source="log"), format_name="ra-perf")
    assert reading.losses == []


def test_a_posix_clock_that_is_hidden_is_named(tmp_path: Path) -> None:
    (tmp_path / "ra_perf.h").write_text(header())
    (tmp_path / "main.c").write_text('#include "ra_perf.h"\nint main(void) { return 0; }\n')
    words = ["gcc", "-std=c99", "-DRA_PERF_ENABLED", "-c", "main.c", "-o", "main.o"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode != 0
    assert "define _POSIX_C_SOURCE" in done.stderr


def test_its_cost_is_measured_and_a_missing_compiler_named() -> None:
    cost = c_cost()
    assert cost.clock_ns > 0
    assert cost.rounds == 200
    with pytest.raises(HostError, match="no C compiler"):
        c_cost("no-such-cc")


@pytest.mark.lab
@pytest.mark.parametrize("enabled", [[], ["-DRA_PERF_ENABLED"]])
@pytest.mark.parametrize(
    ("compiler", "options"),
    [
        ("clang", ["-m64"]),
        ("clang", ["--target=arm-linux-gnueabihf", "-fuse-ld=bfd", "-static"]),
        ("arm-linux-gnueabihf-gcc", ["-static"]),
        ("aarch64-linux-gnu-gcc", ["-static"]),
    ],
)
def test_it_compiles_with_gcc_and_clang_for_32_and_64_bits(
    tmp_path: Path, compiler: str, options: list[str], enabled: list[str]
) -> None:
    program = _built(tmp_path, PROGRAM, *options, *enabled, compiler=compiler)
    machine = {"arm": ["qemu-arm"], "aarch64": ["qemu-aarch64"]}
    words = next(
        (found for name, found in machine.items() if name in " ".join([compiler, *options])), []
    )
    printed = _output(*words, program)
    assert printed.count("RA_PERF|pta|cmd_total|") == (3 if enabled else 0)
