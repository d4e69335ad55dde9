"""Lines of function_graph text, and a calibration with known answers: floor 740, nested 1440."""

from __future__ import annotations

TASK = " 0)  probe-42      |"


def leaf(name: str, nanoseconds: int, *, depth: int = 0) -> str:
    return f"{TASK} {nanoseconds / 1000:7.3f} us    |  {'  ' * depth}{name}();"


def begin(name: str, *, depth: int = 0) -> str:
    return f"{TASK}               |  {'  ' * depth}{name}() {{"


def end(name: str, nanoseconds: int, *, depth: int = 0) -> str:
    return f"{TASK} {nanoseconds / 1000:7.3f} us    |  {'  ' * depth}}} /* {name} */"


def note(text: str) -> str:
    return f"{TASK}               |  /* {text} */"


def text(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


CALIBRATION = text(
    note("excise: calibration alone"),
    *(leaf("vfs_read", 900) for _ in range(5)),
    note("excise: calibration nested"),
    *(
        line
        for _ in range(5)
        for line in (
            begin("vfs_read"),
            leaf("read_null", 740, depth=1),
            end("vfs_read", 2340),
        )
    ),
)
