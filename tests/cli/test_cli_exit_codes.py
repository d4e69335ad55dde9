"""The table of exit codes in `docs/getting-started.md`, code by code."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ended import PATIENCE_S, ended, wait_until
from excise.capture.store import JOURNAL
from in_process import Program

PROGRAM = str(Path(sys.executable).with_name("excise"))
PAGE = Path(__file__).parents[2] / "docs" / "getting-started.md"


def _interrupted(folder: Path, number: signal.Signals) -> int:
    words = [PROGRAM, "run", "-c", "a", "-n", "100000", "-o", "c", "--", "sleep", "0.01"]
    process = subprocess.Popen(words, cwd=folder, stderr=subprocess.DEVNULL)
    journal = folder / "c" / JOURNAL
    with ended(process):
        wait_until(
            lambda: journal.exists() and b'"kind":"run"' in journal.read_bytes(), beside=process
        )
        process.send_signal(number)
        return process.wait(PATIENCE_S)


def _read_by_nobody(folder: Path) -> int:
    process = subprocess.Popen(
        [PROGRAM, "show", "reference:lsmpmon-2008"], cwd=folder, stdout=subprocess.PIPE
    )
    with ended(process):
        assert process.stdout is not None
        process.stdout.close()
        return process.wait(PATIENCE_S)


IN_PROCESS = {
    0: ("show", "--list"),
    1: ("run", "-c", "a", "-n", "1", "-o", "c", "--", "false"),
    2: ("show", "--no-such-option"),
    3: ("show", "no-such-file"),
    4: ("run", "-c", "a", "-n", "1", "-o", "c", "--", "no-such-program"),
}
AS_PROCESS: dict[int, Callable[[Path], int]] = {
    130: lambda folder: _interrupted(folder, signal.SIGINT),
    141: _read_by_nobody,
}


def test_the_table_lists_every_code_once() -> None:
    _, _, after = PAGE.read_text().partition("## Exit codes")
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", after.partition("\n## ")[0], re.M)]
    assert codes == [*IN_PROCESS, *AS_PROCESS]


@pytest.mark.parametrize(("code", "words"), IN_PROCESS.items(), ids=map(str, IN_PROCESS))
def test_a_code_is_what_the_program_ends_with(
    excise: Program, code: int, words: tuple[str, ...]
) -> None:
    assert excise(*words).returncode == code


@pytest.mark.parametrize(("code", "end"), AS_PROCESS.items(), ids=map(str, AS_PROCESS))
def test_a_program_that_is_ended_has_the_code_of_how(
    tmp_path: Path, code: int, end: Callable[[Path], int]
) -> None:
    assert end(tmp_path) == code


def test_sigterm_is_an_interrupt(tmp_path: Path) -> None:
    assert _interrupted(tmp_path, signal.SIGTERM) == 130
