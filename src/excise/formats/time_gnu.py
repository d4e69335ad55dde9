"""GNU time: its default two lines, and the list of `-v` (also BusyBox's).

Source: GNU time 1.9, src/time.c; BusyBox 1.35, miscutils/time.c.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from excise.capture.journal import Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.text import decode, lines, loss, merged_losses, number_runs

NAME_V: Final = "time-gnu-v"
NAME: Final = "time-gnu"
DEFAULT_TASK: Final = "command"
RESOLUTION_NS: Final = 1e7  # hundredths of a second

_STATUS = re.compile(
    r"Command (?:exited with non-zero status (?P<code>\d{1,9})"
    r"|(?:terminated|stopped) by signal (?P<signal>\d{1,4}))"
)
_COMMAND = re.compile(r'\s*Command being timed: "(?P<command>.*)')
_ELAPSED_NAME: Final = "Elapsed (wall clock) time (h:mm:ss or m:ss)"
_ELAPSED = re.compile(
    r"(?:(?P<h>\d{1,7}):)?(?P<m>\d{1,7}):(?P<s>\d{1,2})(?:[.,](?P<f>\d{1,9}))?"
    r"|(?:(?P<bh>\d{1,7})h )?(?P<bm>\d{1,7})m (?P<bs>\d{1,2})(?:\.(?P<bf>\d{1,9}))?s"
)
_SECONDS = re.compile(r"(\d{1,9})(?:[.,](\d{1,9}))?")
_INTEGERS: Final = {
    "Maximum resident set size (kbytes)": "max_rss_bytes",
    "Major (requiring I/O) page faults": "major_faults",
    "Minor (reclaiming a frame) page faults": "minor_faults",
    "Voluntary context switches": "voluntary_switches",
    "Involuntary context switches": "involuntary_switches",
}
_NAMES: Final = frozenset(
    {
        *_INTEGERS,
        _ELAPSED_NAME,
        *("User time (seconds)", "System time (seconds)", "Percent of CPU this job got"),
        *("Average shared text size (kbytes)", "Average unshared data size (kbytes)"),
        *("Average stack size (kbytes)", "Average total size (kbytes)"),
        *("Average resident set size (kbytes)", "Swaps", "File system inputs"),
        *("File system outputs", "Socket messages sent", "Socket messages received"),
        *("Signals delivered", "Page size (bytes)", "Exit status"),
    }
)
_TWO_LINES = re.compile(
    r"(?P<user>\d{1,9}[.,]\d{1,9})user (?P<system>\d{1,9}[.,]\d{1,9})system "
    r"(?P<elapsed>[\d:.,]{4,20})elapsed (?:\d{1,9}|\?)%CPU "
    r"\(\d{1,15}avgtext\+\d{1,15}avgdata (?P<rss>\d{1,15})maxresident\)k"
)
_SECOND = re.compile(
    r"\d{1,15}inputs\+\d{1,15}outputs "
    r"\((?P<major>\d{1,15})major\+(?P<minor>\d{1,15})minor\)pagefaults \d{1,15}swaps"
)
_BUSYBOX_NOTE: Final = (
    "BusyBox takes ru_maxrss for pages and prints it pagesize/1024 times too high (4 times where "
    "a page is 4096 bytes): divided again"
)
_NOT_KEPT: Final = "not kept: averages of sizes, swaps, file system and socket counts, signals"


def seconds_ns(text: str) -> int | None:
    """Return nanoseconds of `12.34`, or None if it is none."""
    match = _SECONDS.fullmatch(text)
    return None if match is None else _joined(0, 0, match[1], match[2])


def elapsed_ns(text: str) -> int | None:
    """Return nanoseconds of `1:02:03`, `0:00.11` or BusyBox's `0m 0.10s`, or None."""
    match = _ELAPSED.fullmatch(text)
    if match is None:
        return None
    if match["m"] is not None:
        return _joined(int(match["h"] or 0), int(match["m"]), match["s"], match["f"])
    return _joined(int(match["bh"] or 0), int(match["bm"]), match["bs"], match["bf"])


def _joined(hours: int, minutes: int, seconds: str, fraction: str | None) -> int:
    whole = (hours * 60 + minutes) * 60 + int(seconds)
    return whole * 10**9 + int((fraction or "").ljust(9, "0")[:9])


@dataclass(slots=True)
class _Open:
    """A `-v` list that is being read."""

    line: int
    command: str
    fields: dict[str, str]
    code: int | None = None
    signal: int | None = None


def detect_v(head: bytes) -> float:
    """Return 1.0 if a `-v` list begins, else 0.0."""
    return 1.0 if b'Command being timed: "' in head and b"Elapsed (wall clock)" in head else 0.0


def detect(head: bytes) -> float:
    """Return 1.0 for the default two lines, else 0.0."""
    return 1.0 if _TWO_LINES.search(decode(head)) else 0.0


def _status(line: str) -> tuple[int | None, int | None] | None:
    """Return (exit code, signal) of a status line, or None if it is none."""
    match = _STATUS.fullmatch(line)
    if match is None:
        return None
    code, signal = match["code"], match["signal"]
    return (int(code) if code else None, int(signal) if signal else None)


def read_v(data: bytes, options: Options) -> Reading:
    """Return one run for each list of `time -v`.

    Raises:
        FormatError: If there is no complete list.
    """
    losses: list[Loss] = []
    drafts: list[dict[str, Any]] = []
    notes = [_NOT_KEPT]
    other: list[int] = []
    first_fault: tuple[int, str] | None = None
    for opened in _lists(lines(data), other):
        draft, reason = _draft(opened, options)
        if draft is None:
            first_fault = first_fault or (opened.line, reason)
            losses.append(loss(options.source, opened.line, reason, opened.command))
            continue
        if opened.fields.get(_ELAPSED_NAME, "").endswith("s") and _BUSYBOX_NOTE not in notes:
            notes.append(_BUSYBOX_NOTE)
        drafts.append(draft)
    if not drafts:
        line, reason = first_fault or (1, "there is no list of `time -v`")
        raise FormatError(reason, source=options.source, line=line)
    notes += _other_note(other)
    return Reading(
        format=NAME_V,
        runs=number_runs(drafts),
        losses=merged_losses(losses),
        clock=Clock(name="time(1), hundredths of a second", resolution_ns=RESOLUTION_NS),
        notes=notes,
    )


def _other_note(other: list[int]) -> list[str]:
    if not other:
        return []
    return [f"{len(other)} other lines, the first is line {other[0]} (output of the command?)"]


def _lists(text: list[str], other: list[int]) -> Iterator[_Open]:
    """Yield each list, whole or cut; collect the numbers of lines that belong to none."""
    opened: _Open | None = None
    status: tuple[int | None, int | None] = (None, None)
    for number, line in enumerate(text, start=1):
        found = _status(line)
        begins = _COMMAND.fullmatch(line)
        if found is not None or begins is not None:
            if opened is not None:
                yield opened
                opened = None
            if found is not None:
                status = found
                continue
        if begins is not None:
            opened = _Open(number, begins["command"], {}, *status)
            status = (None, None)
            continue
        name, _, value = line.strip().partition(": ")
        if opened is None or name not in _NAMES:
            if opened is not None and not opened.fields:
                opened.command += f"\n{line}"  # a command with line breaks
            elif line.strip():
                other.append(number)
            continue
        opened.fields.setdefault(name, value)
        if name == "Exit status":
            yield opened
            opened = None
    if opened is not None:
        yield opened


def _draft(opened: _Open, options: Options) -> tuple[dict[str, Any] | None, str]:
    """Return the fields of a run, or None and why there is none."""
    fields = opened.fields
    elapsed = fields.get(_ELAPSED_NAME, "")
    wall = elapsed_ns(elapsed)
    user = seconds_ns(fields.get("User time (seconds)", ""))
    system = seconds_ns(fields.get("System time (seconds)", ""))
    exit_text = fields.get("Exit status", "")
    if wall is None or user is None or system is None or not exit_text.isascii():
        return None, "the list of `time -v` is cut short or damaged"
    if not exit_text.isdigit() or len(exit_text) > 9:
        return None, "the list of `time -v` has no exit status"
    counts: dict[str, int] = {}
    for name, column in _INTEGERS.items():
        value = fields.get(name, "")
        if value.isascii() and value.isdigit() and len(value) <= 15:
            counts[column] = int(value)
    if "max_rss_bytes" in counts:
        counts["max_rss_bytes"] *= 1024
        if elapsed.endswith("s"):
            counts["max_rss_bytes"] //= max(1, _page_size(fields) // 1024)
    code = None if opened.signal is not None else int(exit_text)
    return {
        "task": options.task or opened.command.removesuffix('"'),
        "configuration": options.configuration or DEFAULT_CONFIGURATION,
        "wall_ns": wall,
        "user_ns": user,
        "system_ns": system,
        "exit_code": code,
        "signal": opened.signal,
        "ok": code == 0,
        **counts,
    }, ""


def _page_size(fields: dict[str, str]) -> int:
    text = fields.get("Page size (bytes)", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 4096


def read(data: bytes, options: Options) -> Reading:
    """Return one run for each pair of lines that GNU time prints by default.

    Raises:
        FormatError: If there is no such pair.
    """
    losses: list[Loss] = []
    drafts: list[dict[str, Any]] = []
    other: list[int] = []
    status: tuple[int | None, int | None] = (None, None)
    rows = lines(data)
    number = 0
    while number < len(rows):
        line = rows[number]
        number += 1
        found = _status(line)
        match = _TWO_LINES.search(line)
        if found is not None:
            status = found
        elif match is not None:
            second = _SECOND.fullmatch(rows[number]) if number < len(rows) else None
            if second is None:
                losses.append(loss(options.source, number, "its second line is missing", line))
            else:
                number += 1
            draft = _two_line_draft(match, second, status, options)
            status = (None, None)
            if draft is None:
                losses.append(loss(options.source, number, "the elapsed time is damaged", line))
            else:
                drafts.append(draft)
        elif line.strip():
            other.append(number)
    if not drafts:
        raise FormatError(
            "there are no lines of GNU time", source=options.source, line=other[0] if other else 1
        )
    return Reading(
        format=NAME,
        runs=number_runs(drafts),
        losses=merged_losses(losses),
        clock=Clock(name="time(1), hundredths of a second", resolution_ns=RESOLUTION_NS),
        notes=["not kept: file system inputs and outputs, swaps", *_other_note(other)],
    )


def _two_line_draft(
    match: re.Match[str],
    second: re.Match[str] | None,
    status: tuple[int | None, int | None],
    options: Options,
) -> dict[str, Any] | None:
    wall = elapsed_ns(match["elapsed"])
    if wall is None:
        return None
    code, signal = status
    return {
        "task": options.task or DEFAULT_TASK,
        "configuration": options.configuration or DEFAULT_CONFIGURATION,
        "wall_ns": wall,
        "user_ns": seconds_ns(match["user"]),
        "system_ns": seconds_ns(match["system"]),
        "max_rss_bytes": int(match["rss"]) * 1024,
        "major_faults": int(second["major"]) if second else None,
        "minor_faults": int(second["minor"]) if second else None,
        "exit_code": code,
        "signal": signal,
        "ok": not code and signal is None,
    }


FORMAT_V: Final = Format(
    name=NAME_V, title="/usr/bin/time -v (GNU and BusyBox)", detect=detect_v, read=read_v
)
FORMAT: Final = Format(name=NAME, title="GNU time, default format", detect=detect, read=read)
