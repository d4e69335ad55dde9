"""The program, called in the test's own process, which starts it forty times faster."""

from __future__ import annotations

import io
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from excise.cli.main import main


class Done(NamedTuple):
    """How a call ended, and what it printed."""

    returncode: int
    stdout: str
    stderr: str


Program = Callable[..., Done]


@pytest.fixture
def excise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Program]:
    """Return the program, which works in the test's folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RA_PERF", raising=False)
    before = signal.getsignal(signal.SIGTERM)

    def call(*words: str | Path, stdin: bytes = b"") -> Done:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as info:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Done(int(info.value.code or 0), out, err)

    yield call
    signal.signal(signal.SIGTERM, before)
