"""Values of options that cannot be read are refused by the option's name, before any work."""

from __future__ import annotations

import re

import pytest
from typer._click.types import FuncParamType

from every_command import COMMANDS
from in_process import Program

READ_AT_ONCE = [
    (*words, option.opts[0])
    for words, command in COMMANDS.items()
    for option in command.params
    if isinstance(option.type, FuncParamType)
]
UNITS = {
    "--base", "--bind", "--budget", "--chart-format", "--digest-cache", "--entries", "--entry-work",
    "--files", "--format", "--margin", "--max-age", "--max-list-bytes", "--max-regression",
    "--memory-limit", "--mode", "--mode-of", "--not-verified-since", "--overlap", "--pcr",
    "--quote", "--require", "--selection", "--session-time", "--share", "--sync-interval",
    "--target", "--timeout",
}  # fmt: skip


def test_the_options_with_units_and_forms_are_those_read_at_once() -> None:
    assert {words[-1] for words in READ_AT_ONCE} == UNITS


@pytest.mark.parametrize("words", READ_AT_ONCE, ids=" ".join)
def test_a_value_that_cannot_be_read_is_refused_by_its_option(
    excise: Program, words: tuple[str, ...]
) -> None:
    said = excise(*words, "@")
    assert (said.returncode, said.stdout) == (2, "")
    assert re.match(rf"excise: Invalid value for .*'{words[-1]}'.*: .*'@'", said.stderr)
    as_json = excise(*words, "@", "--json")
    assert (as_json.returncode, words[-1] in as_json.stderr) == (2, True)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("compare", "reference:lsmpmon-2008", "--margin", "5"), "such as 2%"),
        (("compare", "reference:lsmpmon-2008", "--margin", "-1%"), "not below zero"),
        (("predict", "--base", "5"), "a number and a unit"),
        (("verifier", "serve", "--session-time", "1ms"), "below a second"),
        (("lab", "boot", "--files", "1,20001"), "numbers up to 20000"),
    ],
)
def test_the_reason_and_what_to_write_are_told(
    excise: Program, words: tuple[str, ...], hint: str
) -> None:
    said = excise(*words)
    assert said.returncode == 2
    assert f"'{words[-2]}'" in said.stderr
    assert hint in said.stderr


def test_a_budget_without_a_unit_is_refused_before_the_tpm_is_opened(excise: Program) -> None:
    said = excise("tpm", "bench", "-T", "no-such-tpm", "--budget", "3")
    assert said.returncode == 2
    assert "'--budget': '3' is not a duration" in said.stderr
    assert "no-such-tpm" not in said.stderr


def test_values_that_can_be_read_are_taken_and_defaults_hold(excise: Program) -> None:
    words = ("predict", "--entries", "10,20", "--tpm", "reference:tpm-hmac-2024", "--json")
    plain = excise(*words)
    assert plain.returncode == 0
    assert plain.stdout == excise(*words, "--overlap", "100%", "--entry-work", "0").stdout
    assert plain.stdout != excise(*words, "--overlap", "50%", "--base", "8s").stdout
