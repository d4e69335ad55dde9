"""valgrind's callgrind output: instructions (and other events) of each function.

Source: valgrind, callgrind/docs/cl-format.xml (format version 1).
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import FUNCTION, key_of

NAME: Final = "callgrind"
INCLUSIVE: Final = "inclusive"
_LONGEST: Final = 20_000
_EVENTS = re.compile(r"events:\s*(?P<names>[A-Za-z][\w ]{0,300})")
_NAME = re.compile(
    r"(?P<kind>fn|cfn|fl|fi|fe|cfi|cfl|ob|cob)=\s*(?:\((?P<id>\d{1,9})\))?\s*(?P<name>.*)"
)
_CALLS = re.compile(r"calls=\s*(?P<count>\d{1,19}|0x[0-9a-f]{1,16})(?:\s+\S+)*\s*")
_COST = re.compile(
    r"(?:(?:[+-]?\d{1,19}|[+-]?0x[0-9a-f]{1,16}|\*) ?){1,2}(?:\s+\d{1,19})*\s*|\*(?:\s+\d{1,19})*"
)
_TOTAL = re.compile(r"(?P<kind>summary|totals):\s*(?P<values>\d{1,19}(?:\s+\d{1,19})*)\s*")
_POSITIONS = re.compile(r"positions:\s*(?P<names>[\w ]+)")
_COMMAND = re.compile(r"cmd:\s*(?P<command>.{0,500})")
_HEADER = re.compile(
    r"(?:version|creator|pid|part|thread|desc|event|cmd|positions|#|jump|jcnd|rcalls|rec).*"
)
_UNITS: Final = {"Ir": "instructions"}


@dataclass(slots=True)
class _Found:
    """What is gathered of a file."""

    events: list[str] = field(default_factory=list)
    positions: int = 1
    names: dict[str, str] = field(default_factory=dict)
    own: dict[str, Counter[str]] = field(default_factory=dict)
    called: Counter[str] = field(default_factory=Counter)
    within: dict[str, Counter[str]] = field(default_factory=dict)
    totals: list[int] = field(default_factory=list)
    command: str = ""
    function: str = ""
    callee: str = ""
    call_follows: bool = False


def detect(head: bytes) -> float:
    """Return 0.95 for callgrind's first lines."""
    start = head[:4096]
    if b"# callgrind format" in start or b"creator: callgrind" in start:
        return 0.95
    return (
        0.7
        if re.search(rb"^events: [A-Z]", start, re.M) and re.search(rb"^fn=", start, re.M)
        else 0.0
    )


def read(data: bytes, options: Options) -> Reading:
    """Return the cost of each function, by itself and with what it calls, and its calls.

    Metric `self` is the function's own cost, `inclusive` that with the functions it calls (which
    for recursive ones counts the inner calls again), in `instructions` for the event `Ir`.

    Raises:
        FormatError: If `events:` or every cost is missing.
    """
    found = _Found()
    losses: list[Loss] = []
    for number, line in enumerate(lines(data), start=1):
        if len(line) > _LONGEST:
            losses.append(
                loss(options.source, number, "a line longer than 20,000 characters", line)
            )
        elif line.strip() and not _take(line, found):
            losses.append(loss(options.source, number, "not a line of callgrind", line))
    rows = _rows(found, options) if found.events else []
    if not rows:
        first = losses[0].line if losses else 1
        raise FormatError(
            "there is no cost of a function", source=options.source, line=first, field="events"
        )
    return Reading(
        format=NAME,
        aggregates=rows,
        losses=merged_losses(losses),
        clock=Clock(name="valgrind, counted"),
        notes=_notes(found),
    )


def _take(line: str, found: _Found) -> bool:
    """Take a line; return whether it is known."""
    if _COST.fullmatch(line):
        return _cost(line, found)
    if match := _NAME.fullmatch(line):
        _named(match, found)
    elif match := _CALLS.fullmatch(line):
        found.called[found.callee] += int(match["count"], 0)
        found.call_follows = True
    elif match := _EVENTS.fullmatch(line):
        found.events = match["names"].split()
    elif match := _TOTAL.fullmatch(line):
        if match["kind"] == "totals" or not found.totals:
            found.totals = [int(value) for value in match["values"].split()]
    elif match := _POSITIONS.fullmatch(line):
        found.positions = len(match["names"].split())
    elif match := _COMMAND.fullmatch(line):
        found.command = match["command"].strip()
    else:
        return bool(_HEADER.fullmatch(line))
    return True


def _named(match: re.Match[str], found: _Found) -> None:
    kind = match["kind"]
    if kind not in ("fn", "cfn"):
        return
    name = match["name"].strip()
    if match["id"]:
        key = match["id"]
        if name:
            found.names.setdefault(key, name)
        name = found.names.get(key, f"({key})")
    if kind == "fn":
        found.function = name or "?"
    else:
        found.callee = name or "?"


def _cost(line: str, found: _Found) -> bool:
    values = line.split()[found.positions :]
    if len(values) > len(found.events) or not found.function:
        return False
    into = found.within if found.call_follows else found.own
    counts = into.setdefault(found.function, Counter())
    for event, value in zip(found.events, values, strict=False):
        counts[event] += int(value)
    found.call_follows = False
    return True


def _rows(found: _Found, options: Options) -> list[Aggregate]:
    task = found.command.split(" ")[0].rsplit("/", 1)[-1] if found.command else ""
    rows = []
    first = found.events[0]
    names = sorted({*found.own, *found.within}, key=lambda name: (-_all(found, name, first), name))
    for name in names:
        for event in found.events:
            own = found.own.get(name, Counter())[event]
            inside = found.within.get(name, Counter())[event]
            if not own and not inside:
                continue
            key = {
                **key_of(options, task=task),
                "layer": FUNCTION,
                "event": name[:200],
                "labels": "" if len(found.events) == 1 else f"counter={event}",
                "unit": _UNITS.get(event, event),
                "count": float(found.called[name]) if found.called[name] else None,
            }
            rows.append(Aggregate(**key, metric=INCLUSIVE, sum=float(own + inside)))
            rows.append(Aggregate(**key, metric="self", sum=float(own)))
    return rows


def _all(found: _Found, name: str, event: str) -> int:
    return found.own.get(name, Counter())[event] + found.within.get(name, Counter())[event]


def _notes(found: _Found) -> list[str]:
    sums = [sum(own[event] for own in found.own.values()) for event in found.events]
    if not found.totals:
        return ["the file has no totals to check its sums with"]
    return [
        f"{event}: functions sum to {got:,}, the file says {wanted:,}"
        for event, got, wanted in zip(found.events, sums, found.totals, strict=False)
        if got != wanted
    ]


FORMAT: Final = Format(name=NAME, title="callgrind.out of valgrind", detect=detect, read=read)
