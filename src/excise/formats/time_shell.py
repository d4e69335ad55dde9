"""The `time` of shells: bash, POSIX `-p` (dash, GNU, multitime), ksh, mksh, zsh, BusyBox, BSD.

Source: POSIX.1-2017 time(1); the shells' own output.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from excise.capture.journal import Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.text import decode, lines, loss, merged_losses, number_runs

NAME: Final = "time-shell"
DEFAULT_TASK: Final = "command"

_VALUE: Final = r"(?:\d{1,7}h ?)?(?:\d{1,7}m ?)?\d{1,9}[.,]\d{1,9}s?"
_ONE = re.compile(rf"(real|user|sys)[ \t]+({_VALUE})[ \t]*")
_THREE = re.compile(
    rf"[ \t]*({_VALUE})[ \t]+real[ \t]+({_VALUE})[ \t]+user[ \t]+({_VALUE})[ \t]+sys(?:tem)?[ \t]*"
)
_ZSH = re.compile(
    r"(?P<command>.{0,4000}?) {1,2}(?P<user>\d{1,9}\.\d{1,9})s user (?P<system>\d{1,9}\.\d{1,9})s "
    r"system (?:\d{1,9})% cpu (?P<total>(?:\d{1,7}:){0,2}\d{1,9}\.\d{1,9}) total(?P<rest>.*)"
)
_PARTS = re.compile(r"(?:(\d{1,7})[h:] ?)?(?:(\d{1,7})[m:] ?)?(\d{1,9})[.,](\d{1,9})s?")
_HEAD = re.compile(
    rf"^(?:(?:real|user|sys)[ \t]+{_VALUE}[ \t]*\r?\n){{2}}"
    rf"|^[ \t]*{_VALUE}[ \t]+real[ \t]+{_VALUE}[ \t]+user[ \t]"
    r"|\ds user \d{1,9}\.\d{1,9}s system \d{1,9}% cpu ",
    re.MULTILINE,
)
_LONGEST_LINE: Final = 8192


def detect(head: bytes) -> float:
    """Return 0.9 if two lines, or one of a known shape, stand there; else 0.0."""
    return 0.9 if _HEAD.search(decode(head)) else 0.0


def value_ns(text: str) -> int | None:
    """Return nanoseconds of `0m0.112s`, `1m 1.2s`, `0,10` or `1:02.3`, or None."""
    match = _PARTS.fullmatch(text)
    if match is None:
        return None
    first, second = match[1], match[2]
    if first is not None and second is None and text[len(first)] == ":":
        first, second = None, first  # m:ss has no hours
    whole = (int(first or 0) * 60 + int(second or 0)) * 60 + int(match[3])
    value = whole * 10**9 + int(match[4].ljust(9, "0")[:9])
    return value if value < 2**63 else None


@dataclass(slots=True)
class _State:
    """What has been read so far."""

    source: str
    drafts: list[dict[str, Any]] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    other: list[int] = field(default_factory=list)
    open: dict[str, int] = field(default_factory=dict)
    open_line: int = 0
    decimals: int = 9
    zsh: bool = False

    def seen(self, text: str) -> None:
        """Remember the coarsest print of a value."""
        tail = re.split(r"[.,]", text)[-1].rstrip("s")
        self.decimals = min(self.decimals, len(tail))

    def add(self, task: str, values: tuple[int | None, int | None, int | None]) -> None:
        """Take a whole measurement: real, user and system nanoseconds."""
        wall, user, system = values
        if wall is not None:
            self.drafts.append(
                {"task": task, "wall_ns": wall, "user_ns": user, "system_ns": system}
            )

    def flush(self) -> None:
        """End the measurement of three lines that is open; a partial one is a loss."""
        if set(self.open) == {"real", "user", "sys"}:
            self.add("", (self.open["real"], self.open["user"], self.open["sys"]))
        elif self.open:
            missing = " and ".join(n for n in ("real", "user", "sys") if n not in self.open)
            self.losses.append(loss(self.source, self.open_line, f"{missing} is missing"))
        self.open = {}


def read(data: bytes, options: Options) -> Reading:
    """Return one run for each measurement; zsh prints one for each part of a pipeline.

    Raises:
        FormatError: If there is no whole measurement.
    """
    state = _State(options.source)
    for number, line in enumerate(lines(data), start=1):
        _line(state, number, line)
    state.flush()
    if not state.drafts:
        first = state.losses[0] if state.losses else None
        raise FormatError(
            first.reason if first else "there is no measurement of a shell's `time`",
            source=options.source,
            line=(first.line if first else None) or (state.other[0] if state.other else 1),
        )
    for draft in state.drafts:
        draft["configuration"] = options.configuration or DEFAULT_CONFIGURATION
        draft["task"] = options.task or draft["task"] or DEFAULT_TASK
    return Reading(
        format=NAME,
        runs=number_runs(state.drafts),
        losses=merged_losses(state.losses),
        clock=Clock(name="time of a shell", resolution_ns=10.0 ** (9 - state.decimals)),
        notes=_notes(state),
    )


def _line(state: _State, number: int, line: str) -> None:
    one = _ONE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if one is not None:
        _take_one(state, number, one[1], one[2])
        return
    if not line.strip():
        return
    state.flush()
    three = _THREE.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    zsh = _ZSH.fullmatch(line) if three is None and len(line) <= _LONGEST_LINE else None
    if three is not None:
        state.seen(three[1])
        state.add("", (value_ns(three[1]), value_ns(three[2]), value_ns(three[3])))
    elif zsh is not None:
        state.zsh = True
        state.seen(zsh["user"])
        task = zsh["command"].strip()
        state.add(task, (value_ns(zsh["total"]), value_ns(zsh["user"]), value_ns(zsh["system"])))
        if zsh["rest"].strip():
            reason = "more than the default TIMEFMT: its unit is not known"
            state.losses.append(loss(state.source, number, reason, zsh["rest"].strip()))
    else:
        state.other.append(number)


def _take_one(state: _State, number: int, name: str, text: str) -> None:
    value = value_ns(text)
    if value is None:
        state.losses.append(loss(state.source, number, f"{name} is no duration", text))
        return
    if name in state.open:
        state.flush()
    if not state.open:
        state.open_line = number
    state.seen(text)
    state.open[name] = value
    if len(state.open) == 3:
        state.flush()


def _notes(state: _State) -> list[str]:
    notes = ["exit status not printed by this format"]
    if state.zsh:
        notes.append("zsh prints one line for each part of a pipeline: each is a run")
    if state.other:
        notes.append(
            f"{len(state.other)} other lines, the first is line {state.other[0]} "
            "(output of the command?)"
        )
    return notes


FORMAT: Final = Format(
    name=NAME, title="time of bash, zsh, ksh, POSIX -p, BusyBox", detect=detect, read=read
)
