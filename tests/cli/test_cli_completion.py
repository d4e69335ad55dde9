"""Completion for the shells, in the shells."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from in_process import Program
from skips import skip
from test_program import PROGRAM, program

SHELLS = ("bash", "zsh", "fish")
COMPLETE = {
    "bash": "source ./script; COMP_WORDS=(excise comp); COMP_CWORD=1; _excise_completion excise; "
    'echo "${COMPREPLY[@]}"',
    # What the function hands to zsh's own completion is shown, as there is no line to complete.
    "zsh": "compdef() { found=$1; }; _arguments() { print -r -- $*; }; source ./script; "
    "words=(excise comp); CURRENT=2; $found",
    "fish": 'source ./script; complete -C "excise comp"',
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_is_printed_for_the_shell_that_is_named(excise: Program, shell: str) -> None:
    code, out, err = excise("--show-completion", shell)
    assert (code, err) == (0, "")
    assert excise("--show-completion=" + shell)[1] == out
    others = {excise("--show-completion", other)[1] for other in SHELLS if other != shell}
    assert len({out, *others}) == len(SHELLS)
    assert f"complete_{shell}" in out


@pytest.mark.parametrize("shell", SHELLS)
def test_the_printed_completion_completes_in_its_shell(tmp_path: Path, shell: str) -> None:
    interpreter = shutil.which(shell)
    if interpreter is None:
        skip(f"{shell} is not installed")
    (tmp_path / "script").write_bytes(program("--show-completion", shell).stdout)
    path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [interpreter, "-c", COMPLETE[shell]],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert re.findall(r"\bcom\w+", done.stdout.partition("Compare")[0]) == ["compare"]
    assert done.stderr == ""


def test_zsh_completes_at_the_first_tab_where_it_loads_the_script_itself(tmp_path: Path) -> None:
    zsh = shutil.which("zsh")
    if zsh is None:
        skip("zsh is not installed")
    (tmp_path / "_excise").write_bytes(program("--show-completion", "zsh").stdout)
    words = "compdef() {}; _arguments() { print -r -- $*; }; fpath=(. $fpath); words=(excise comp)"
    done = subprocess.run(
        [zsh, "-c", f"{words}; CURRENT=2; autoload -Uz _excise; _excise"],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(PROGRAM).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert '"compare"' in done.stdout


def test_a_shell_without_completion_is_refused(excise: Program) -> None:
    code, out, err = excise("--show-completion", "dash")
    assert (code, out) == (2, "")
    assert "--show-completion bash|zsh|fish" in err


def test_completion_is_installed_for_the_shell_that_is_named(tmp_path: Path) -> None:
    done = program("--install-completion", "fish", environment={"HOME": str(tmp_path)})
    assert done.returncode == 0
    script = tmp_path / ".config/fish/completions/excise.fish"
    assert script.read_bytes() == program("--show-completion", "fish").stdout
    assert str(script).encode() in done.stderr
