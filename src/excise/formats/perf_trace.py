"""perf trace: one line a system call, and its summary by thread (`-s`).

Source: tools/perf/builtin-trace.c, 6.1.
"""

from __future__ import annotations

import re
from typing import Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import EVENT, Values, label, syscall_key

NAME: Final = "perf-trace"
_LONGEST: Final = 20_000
_CALL = re.compile(
    r"\s*(?:\?|(?P<time>\d{1,15}\.\d{3}))\s*\(\s*(?:(?P<ms>\d{1,12}\.\d{3}) ms)?\s*\): "
    r"(?:(?P<comm>[^/]{1,64})/(?P<tid>\d+) )?\s*(?P<rest>.*)"
)
_NAMED = re.compile(
    r"(?P<more>\.\.\. \[continued\]: )?(?P<name>[a-z_][a-z0-9_]{0,40})\((?P<arguments>.*?)\)?\)\s*"
    r"(?:= (?P<result>.*))?"
)
_STARTED = re.compile(r"(?P<name>[a-z_][a-z0-9_]{0,40})\(.*\s\.\.\.\s*")
_EVENT = re.compile(r"(?P<name>[a-z_][\w]*:[\w]+)\(.*\)")
_LOST = re.compile(r"\s*LOST (?P<count>\d{1,18}) events!?\s*")
_THREAD = re.compile(r"\s(?P<comm>.{1,64}) \((?P<tid>\d+)\), (?P<events>\d+) events, [\d.]+%.*")
_SUMMARY = re.compile(
    r"\s{2,}(?P<name>[a-z_][a-z0-9_]{0,40})\s+(?P<calls>\d+)\s+(?:(?P<errors>\d+)\s+)?"
    r"(?P<total>\d+\.\d+)\s+(?P<min>\d+\.\d+)\s+(?P<mean>\d+\.\d+)\s+(?P<max>\d+\.\d+)\s+"
    r"(?P<spread>\d+\.\d+)%\s*"
)
_HEADINGS = re.compile(
    r"\s*(?:Summary of events:.*|syscall\s+calls.*|\(msec\).*|[\s-]+|\(msec\)\s+.*|)\s*"
)
_NS_PER_MS: Final = 1e6


def detect(head: bytes) -> float:
    """Return 0.9 if most lines are calls, or a summary's heading stands there."""
    if b"Summary of events:" in head:
        return 0.9
    text = [line for line in lines(head[:8192]) if line.strip()][:50]
    found = sum(bool(_CALL.fullmatch(line[:_LONGEST])) for line in text)
    return 0.9 if found * 2 > len(text) else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return, for each system call, how often it was made and failed, and how long it took.

    Raises:
        FormatError: If no line is a call or a row of a summary.
    """
    calls: dict[str, Values] = {}
    made: dict[str, int] = {}
    failed: dict[str, int] = {}
    events: dict[str, int] = {}
    summary: list[Aggregate] = []
    losses: list[Loss] = []
    thread = ""
    for number, line in enumerate(lines(data), start=1):
        if len(line) > _LONGEST:
            losses.append(
                loss(options.source, number, "a line longer than 20,000 characters", line)
            )
        elif lost := _LOST.fullmatch(line):
            count = int(lost["count"])
            losses.append(loss(options.source, number, "events that perf lost", line, count=count))
        elif head := _THREAD.fullmatch(line):
            thread = f"{head['comm'].strip()} {head['tid']}"
        elif row := _SUMMARY.fullmatch(line):
            summary += _summary_rows(row, thread, options)
        elif call := _CALL.fullmatch(line):
            reason = _take(call, calls, made, failed, events)
            if reason:
                losses.append(loss(options.source, number, reason, line))
        elif not _HEADINGS.fullmatch(line):
            losses.append(loss(options.source, number, "not a line of perf trace", line))
    rows = [*summary, *_rows(calls, made, failed, options), *_event_rows(events, options)]
    if not rows:
        first = losses[0].line if losses else 1
        raise FormatError("no line is a system call", source=options.source, line=first)
    return Reading(
        format=NAME,
        aggregates=rows,
        losses=merged_losses(losses),
        clock=Clock(name="perf trace, printed in ms", resolution_ns=1000.0),
    )


def _take(
    call: re.Match[str],
    calls: dict[str, Values],
    made: dict[str, int],
    failed: dict[str, int],
    events: dict[str, int],
) -> str:
    """Count a call; return why it cannot be counted, or ""."""
    rest = call["rest"].rstrip()
    if _STARTED.fullmatch(rest):
        return ""  # its end is printed as `... [continued]`
    if event := _EVENT.fullmatch(rest):
        events[event["name"]] = events.get(event["name"], 0) + 1
        return ""
    named = _NAMED.fullmatch(rest)
    if named is None:
        return "not a system call"
    name = named["name"]
    made[name] = made.get(name, 0) + 1
    if (named["result"] or "").startswith("-"):
        failed[name] = failed.get(name, 0) + 1
    if call["ms"]:
        calls.setdefault(name, Values()).add(round(float(call["ms"]) * _NS_PER_MS))
    return ""


def _rows(
    calls: dict[str, Values], made: dict[str, int], failed: dict[str, int], options: Options
) -> list[Aggregate]:
    rows = []
    for name in sorted(made):
        key = syscall_key(options, name)
        rows.append(Aggregate(**key, metric="count", unit="1", count=float(made[name])))
        if name in calls:
            rows.append(Aggregate(**key, metric="duration", unit="ns", **calls[name].fields()))
        if name in failed:
            rows.append(Aggregate(**key, metric="errors", unit="1", count=float(failed[name])))
    return rows


def _event_rows(events: dict[str, int], options: Options) -> list[Aggregate]:
    return [
        Aggregate(
            **{**syscall_key(options, name), "layer": EVENT, "event": name},
            metric="count",
            unit="1",
            count=float(count),
        )
        for name, count in sorted(events.items())
    ]


def _summary_rows(row: re.Match[str], thread: str, options: Options) -> list[Aggregate]:
    key = {
        **syscall_key(options, row["name"]),
        "labels": label("thread", thread) if thread else "",
    }
    count = float(row["calls"])
    rows = [
        Aggregate(
            **key,
            metric="duration",
            unit="ns",
            count=count,
            sum=float(row["total"]) * _NS_PER_MS,
            min=float(row["min"]) * _NS_PER_MS,
            mean=float(row["mean"]) * _NS_PER_MS,
            max=float(row["max"]) * _NS_PER_MS,
            note=f"relative standard error {float(row['spread']):g} %",
        )
    ]
    if row["errors"] and int(row["errors"]):
        rows.append(Aggregate(**key, metric="errors", unit="1", count=float(row["errors"])))
    return rows


FORMAT: Final = Format(
    name=NAME, title="perf trace: system calls, and its summary", detect=detect, read=read
)
