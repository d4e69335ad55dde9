"""Every option that names an output refuses, before any work, what cannot be written: code 2."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from captures import run, write
from excise.cli.main import main
from excise.cli.program import app

NAMES = {
    "--output",
    "--out",
    "--report",
    "--charts",
    "--tables",
    "--checkpoint",
    "--results",
    "--candidates",
}
NAMES |= {"--credential", "--credential-signature"}

# What each command is given beside the output, as little as it takes; `c.excise` and `host` exist.
BESIDE: dict[tuple[str, ...], tuple[str, ...]] = {
    ("run",): ("--", "true"),
    ("import",): ("c.excise",),
    ("trace",): ("--", "true"),
    ("demo",): (),
    ("report",): ("c.excise",),
    ("lint",): ("c.excise",),
    ("selftest", "bench"): (),
    ("selftest", "commands"): (),
    ("tpm", "bench"): (),
    ("tpm", "record"): ("c.excise",),
    ("tpm", "compare"): ("reference:tpm-hmac-2024",),
    ("predict",): ("c.excise",),
    ("verify", "ima"): ("list",),
    ("verify", "quote"): ("quote",),
    ("verify", "eventlog"): ("log",),
    ("verify", "daa"): ("sig", "--message", "m", "--group", "g"),
    ("verify", "capture"): ("c.excise",),
    ("verify", "token"): ("token",),
    ("verify", "ear"): ("ear", "--key", "key"),
    ("perf", "header"): (),
    ("fleet", "verify"): ("fleet",),
    ("fleet", "show"): ("state.sqlite",),
    ("daa", "issuer", "issue"): ("issuer", "--member-key", "pk.bin", "--nonce", "1"),
    ("daa", "member", "sign"): ("member", "--message", "m"),
    ("daa", "verify"): ("sig", "--message", "m", "--group", "g"),
    ("corim", "build"): ("templates",),
    ("corim", "check"): ("corim.cbor",),
    ("attester",): (),
    ("boot", "record"): (),
    ("boot", "import"): ("blame.txt",),
    ("sensor", "capture"): (),
    ("sensor", "embed"): ("image",),
    ("sensor", "collect"): ("face",),
    ("lab", "boot"): (),
    ("lab", "hmac"): (),
    ("lab", "demo"): (),
    ("lab", "trace"): (),
    ("lab", "compare"): (),
    ("lab", "run"): (),
}
# Options of these names that are read and not written.
READ = {(("daa", "member", "join"), each) for each in ("--credential", "--credential-signature")}
FURTHER = {("report", name): ("-o", "out.html") for name in ("--charts", "--tables")}


def _outputs(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the words of each command and each of its options that names an output."""
    if hasattr(command, "list_commands"):
        for name in command.list_commands(None):
            yield from _outputs(command.get_command(None, name), (*words, name))
        return
    for parameter in command.params:
        for option in NAMES & set(parameter.opts):
            if (words, option) not in READ:
                yield words, option


OUTPUTS = [
    pytest.param(words, option, id=f"{' '.join(words)} {option}")
    for words, option in sorted(_outputs(get_command(app)))
]


@pytest.mark.parametrize(("words", "option"), OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_with_code_2_before_any_work(
    words: tuple[str, ...],
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # a missing program is told of after that
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "fleet" / "host").mkdir(parents=True)
    write(tmp_path / "c.excise", [run(number) for number in range(3)])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as ended:
        main([*words, option, "file/out.html", *FURTHER.get((*words, option), ()), *BESIDE[words]])
    assert capsys.readouterr().err.startswith("excise: file/out.html: cannot be written (")
    assert ended.value.code == 2
    assert sorted(tmp_path.rglob("*")) == before
