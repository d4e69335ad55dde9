"""`excise lab shell` on a terminal: a guest's shell, from its first prompt to its end."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
PATIENCE_S = 300.0
WORDS = ["lab", "shell", "--preset", "yama", "--machine"]
MACHINE = '[machine]\nkernel = "6.1"\nmode = "tpm"\naccelerator = "tcg"\n'


class Terminal:
    """The program on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        machine = folder / "machine.toml"
        machine.write_text(MACHINE)
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            program = "from excise.cli.main import main; main()"
            os.execv(sys.executable, [sys.executable, "-c", program, *WORDS, str(machine)])
        self.seen = ""
        self.is_over = False

    def expect(self, text: str) -> None:
        """Read until a text has come since the last one."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen[-2000:]!r}"
            if select.select([self.fd], [], [], 0.5)[0]:
                try:
                    self.seen += os.read(self.fd, 65_536).decode(errors="replace")
                except OSError:  # the other end of the terminal is closed
                    pytest.fail(f"ended without {text!r}: {self.seen[-2000:]!r}")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def ended(self) -> int:
        """Return the exit code, reading what is still said."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if select.select([self.fd], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.fd, 65_536).decode(errors="replace")
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.is_over = True
                return os.waitstatus_to_exitcode(status)
        pytest.fail(f"did not end: {self.seen[-2000:]!r}")

    def close(self) -> None:
        if not self.is_over:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.fixture
def terminal(lab_cache: Path, tmp_path: Path) -> Iterator[Terminal]:
    """Start the program; it and its guest are gone after the test, however it ended."""
    opened = Terminal(tmp_path)
    yield opened
    opened.close()


def test_a_shell_answers_in_a_guest_that_is_set_up_and_leaves_nothing(
    lab_cache: Path, terminal: Terminal
):
    terminal.expect("# ")
    terminal.type("cat /proc/sys/kernel/yama/ptrace_scope && echo sum $((6 * 7))\r")
    terminal.expect("sum 42")
    terminal.type("tty && ls /excise/ext4/proof && head -c 8 /dev/tpm0 >/dev/null; echo end $?\r")
    terminal.expect("labelled")
    terminal.expect("end ")
    terminal.type("exit\r")
    assert terminal.ended() == 0
    assert list((lab_cache / "run").iterdir()) == []


def test_a_shell_has_its_tpm_where_the_cache_has_a_long_path(
    lab_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The path of a Unix socket holds 107 bytes."""
    long = tmp_path / ("folder-" * 12)
    long.symlink_to(lab_cache)
    monkeypatch.setenv("EXCISE_LAB_CACHE", str(long))
    terminal = Terminal(tmp_path)
    try:
        terminal.expect("# ")
        terminal.type("[ -c /dev/tpm0 ] && echo there $((6 * 7)); exit\r")
        terminal.expect("there 42")
        assert terminal.ended() == 0
    finally:
        terminal.close()


def test_ctrl_c_goes_to_the_guest_and_not_to_excise(lab_cache: Path, terminal: Terminal):
    terminal.expect("# ")
    # A child says so: it has the terminal by then, which the shell gives to it before.
    terminal.type("sh -c 'echo begun $((1 + 1)); exec sleep 1000'\r")
    terminal.expect("begun 2")
    terminal.type("\x03")
    terminal.expect("# ")
    terminal.type("echo still $((2 + 2))\r")
    terminal.expect("still 4")
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.ended() == 130
    assert list((lab_cache / "run").iterdir()) == []
