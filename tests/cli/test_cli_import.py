"""`excise import` of files that are one and the same, or that hold the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from excise.events.load import load_capture
from in_process import Program

TIMED = "real\t0m0.010s\nuser\t0m0.000s\nsys\t0m0.010s\n"


@pytest.mark.parametrize("other", ["./a.txt", "link.txt", "hard.txt"])
def test_a_file_named_twice_is_counted_once_and_told_so(
    tmp_path: Path, excise: Program, other: str
) -> None:
    (tmp_path / "a.txt").write_text(TIMED)
    (tmp_path / "link.txt").symlink_to("a.txt")
    (tmp_path / "hard.txt").hardlink_to(tmp_path / "a.txt")
    said = excise("import", "a.txt", other, "-o", "c.excise", "--task", "t")
    assert said.returncode == 0, said.stderr
    assert said.stdout == "a.txt: time-shell: 1 run, 0 events, 0 table rows, 0 lost\n"
    assert f"{other}: the same file as a.txt, read once" in said.stderr.splitlines()
    assert load_capture(tmp_path / "c.excise").runs.height == 1


def test_standard_input_is_read_once(tmp_path: Path, excise: Program) -> None:
    said = excise("import", "-", "-", "-o", "c.excise", "--json", stdin=TIMED.encode())
    assert said.returncode == 0, said.stderr
    assert json.loads(said.stdout)["read_once"] == {"-": "-"}


def test_a_file_is_not_taken_for_two_configurations(tmp_path: Path, excise: Program) -> None:
    (tmp_path / "a.txt").write_text(TIMED)
    words = ("--configuration", "off", "--configuration", "on")
    said = excise("import", "a.txt", "./a.txt", *words, "-o", "c.excise")
    assert (said.returncode, said.stdout) == (2, "")
    assert "./a.txt: is given as 'off' and as 'on'" in said.stderr
    assert not (tmp_path / "c.excise").exists()


def test_two_files_of_the_same_bytes_are_both_counted_and_the_copy_is_named(
    tmp_path: Path, excise: Program
) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(TIMED)
    said = excise("import", "a.txt", "b.txt", "-o", "c.excise", "--task", "t")
    assert said.returncode == 0, said.stderr
    assert "b.txt: holds the same bytes as a.txt; both are counted" in said.stderr
    assert load_capture(tmp_path / "c.excise").runs.height == 2
    as_json = excise("import", "a.txt", "b.txt", "-o", "d.excise", "--json")
    assert json.loads(as_json.stdout)["copies"] == {"b.txt": "a.txt"}
