"""Every command line that README and documentation show is one the program understands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.main import get_command

from excise.cli.program import app

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
ENDS_A_COMMAND = {"|", "||", "&&", ";", "&"}


def _command_lines(text: str) -> Iterator[str]:
    """Yield what stands after each prompt, with the lines that it goes on in."""
    for found in re.finditer(r"^\$ ((?:.*\\\n)*.*)$", text, re.M):
        yield found[1].replace("\\\n", " ")


def _calls(line: str) -> Iterator[list[str]]:
    """Yield the words after `excise` of each call of it in a line of shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    call: list[str] | None = None
    for word in [*lexer, ";"]:
        if word in ENDS_A_COMMAND:
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif word == "excise":
            call = []


def _misunderstood(words: list[str]) -> str | None:
    """Return what the program would not understand, or None."""
    command = get_command(app)
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        inner = command.get_command(None, words[0])
        if inner is None:
            return f"there is no command {words[0]!r}"
        command, words = inner, words[1:]
    options = {o for parameter in command.params for o in parameter.opts}
    options |= {o for parameter in command.params for o in parameter.secondary_opts}
    own = words[: words.index("--")] if "--" in words else words
    for word in own:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if re.match(r"--?[a-zA-Z]", word) and name not in options | {"-h", "--help"}:
            return f"there is no option {name}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_understood(page: Path) -> None:
    calls = [call for line in _command_lines(page.read_text()) for call in _calls(line)]
    wrong = {" ".join(call): why for call in calls if (why := _misunderstood(call))}
    assert wrong == {}


def test_pages_show_commands_and_a_wrong_one_is_found() -> None:
    calls = [c for page in PAGES for line in _command_lines(page.read_text()) for c in _calls(line)]
    assert len(calls) > 100
    assert list(_calls("make && excise gate a.excise --baseline none | tail")) == [
        ["gate", "a.excise", "--baseline", "none"]
    ]
    assert _misunderstood(["verify", "imma"]) == "there is no command 'imma'"
    assert _misunderstood(["verify", "ima", "list", "--pcr", "x", "--pcrz"]) == (
        "there is no option --pcrz"
    )
    assert _misunderstood(["run", "--", "ls", "--nothing"]) is None
