"""What is heard on a console is acted on when it has come whole, however it comes in pieces."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from ended import PATIENCE_S, wait_until
from excise.collect import remote_console
from excise.collect.remote_console import Console, Heard, ProgramLine

PROMPT = re.compile(rb"# ")


class Pieces:
    """A line on which bytes come when the test says so."""

    name = "pieces"

    def __init__(self) -> None:
        self.coming: SimpleQueue[bytes | None] = SimpleQueue()

    def read(self) -> bytes | None:
        return self.coming.get()

    def write(self, data: bytes) -> None:
        """Take it."""

    def close(self, patience_s: float) -> None:
        self.coming.put(None)

    def release(self) -> None:
        """Hold nothing."""


@pytest.fixture
def line() -> Pieces:
    return Pieces()


@pytest.fixture
def console(line: Pieces) -> Iterator[Console]:
    with Console(line) as opened:  # type: ignore[arg-type]
        yield opened


def heard_in_pieces(
    console: Console, line: Pieces, pieces: list[bytes], *, sent: str, whole_lines: bool
) -> Heard:
    """Return what is taken for the answer where each piece is looked at before the next comes."""
    looks = [0]

    def look() -> bool:
        looks[0] += 1
        return False

    found: list[Heard] = []

    def listen() -> None:
        found.append(
            console.wait_for(
                PROMPT, timeout_s=PATIENCE_S, whole_lines=whole_lines, skip=sent.encode(), stop=look
            )
        )

    waiting = threading.Thread(target=listen)
    waiting.start()
    for piece in pieces:
        line.coming.put(piece)
        before = looks[0]
        # The first look may have been at what was there before.
        wait_until(lambda: looks[0] >= before + 2 or not waiting.is_alive())  # noqa: B023
    waiting.join()
    return found[0]


SENT = "say # two"
WHOLE = b"say # two\r\ntwo\r\n# "


@pytest.mark.parametrize("cut", range(1, len(WHOLE)))
def test_an_echo_that_comes_in_pieces_is_not_taken_for_the_prompt(
    console: Console, line: Pieces, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(remote_console, "_QUIET_S", PATIENCE_S)
    monkeypatch.setattr(remote_console, "_LOOK_S", 0.005)
    pieces = [WHOLE[:cut], WHOLE[cut:]]
    heard = heard_in_pieces(console, line, pieces, sent=SENT, whole_lines=False)
    assert (heard.data, heard.match is not None) == (b"two\r\n# ", True)


def test_a_line_counts_when_it_has_ended(
    console: Console, line: Pieces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_console, "_LOOK_S", 0.005)
    pieces = [b"# 1", b"7\n"]
    heard = heard_in_pieces(console, line, pieces, sent="", whole_lines=True)
    assert heard.data == b"# 17\n"


def test_a_prompt_without_an_echo_is_heard_after_a_moment(console: Console, line: Pieces) -> None:
    line.coming.put(b"# ")
    heard = console.wait_for(
        PROMPT, timeout_s=PATIENCE_S, whole_lines=False, skip=b"# of what was sent"
    )
    assert heard.data == b"# "


def test_a_program_that_ends_slowly_is_not_ended() -> None:
    console = Console(ProgramLine(["sh", "-c", "exec >&- 2>&-; sleep 3; exit 7"]))
    wait_until(lambda: console.wait_for(None, timeout_s=1).ended)
    assert console.close(patience_s=PATIENCE_S) == 7
