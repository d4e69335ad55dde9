"""Every command answers in JSON where that makes sense."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from every_command import COMMANDS
from in_process import Program

DOCUMENTS = {
    ("perf", "header"): "a C header",
    ("sensor", "capture"): "an image",
    ("sensor", "embed"): "an embedding",
    ("sensor", "collect"): "a message to be signed",
    ("lab", "shell"): "a terminal",
}


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_command_has_json_unless_its_output_is_a_document(words: tuple[str, ...]) -> None:
    options = {name for option in COMMANDS[words].params for name in option.opts}
    assert ("--json" in options) != (words in DOCUMENTS)


def test_a_report_in_json_is_printed_and_also_written_where_a_file_is_named(
    tmp_path: Path, excise: Program
) -> None:
    said = excise("report", "reference:lsmpmon-2008", "--json")
    assert (said.returncode, said.stderr, list(tmp_path.iterdir())) == (0, "", [])
    assert json.loads(said.stdout)["schema"] == "excise.report/1"
    both = excise("report", "reference:lsmpmon-2008", "--json", "-o", "r.html")
    assert (both.stdout, both.stderr) == (said.stdout, "Wrote r.html\n")
    assert (tmp_path / "r.html").read_bytes().startswith(b"<!DOCTYPE html>")


def test_a_report_is_not_asked_for_in_two_formats_at_once(excise: Program) -> None:
    said = excise("report", "reference:lsmpmon-2008", "--json", "--format", "csv")
    assert (said.returncode, said.stdout) == (2, "")
    assert "--json and --format csv ask for different things" in said.stderr


def test_errors_of_a_corim_that_is_shown_in_json_are_json(tmp_path: Path, excise: Program) -> None:
    (tmp_path / "none.cbor").write_bytes(b"x")
    said = excise("corim", "show", "none.cbor", "--json")
    assert (said.returncode, said.stdout) == (3, "")
    assert json.loads(said.stderr)["source"] == "none.cbor"
