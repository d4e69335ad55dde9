"""systemd-analyze: `time`, `blame` and `critical-chain`, alone or one after the other.

`time` and `critical-chain` describe a boot: one run of task `boot`, its stages as children, the
target below `userspace`, and the chain below the target. `blame` lists units that start in
parallel, so that their sum means nothing: it is a run of its own, `boot-units`, without a total.

Source: systemd, src/analyze/analyze-time-data.c, analyze-blame.c, analyze-critical-chain.c and
src/basic/time-util.c (format_timespan), releases 215 to 257.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

from excise.capture.journal import Event, Loss
from excise.clock import Clock
from excise.errors import FormatError, UsageError
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses, number_runs
from excise.units import parse_duration

NAME: Final = "systemd-analyze"
BOOT: Final = "boot"
UNITS: Final = "boot-units"
USERSPACE: Final = "stage|userspace"
_SPAN: Final = r"(?:\d{1,12}(?:\.\d{1,9})?(?:month|min|ms|us|[ywdhs]) ?){1,10}|0"
_UNIT: Final = (
    r"[A-Za-z0-9:_.\\@-]{1,255}\."
    r"(?:service|socket|device|mount|automount|swap|target|path|timer|slice|scope|snapshot)"
)
_FINISHED = re.compile(r"Startup finished in (?P<stages>.{1,1000})")
_STAGE = re.compile(rf"(?P<span>{_SPAN}) ?\((?P<name>[a-z][a-z ]{{0,30}})\)")
_TOTAL = re.compile(rf"\s*=\s*(?P<span>{_SPAN})\s*")
_REACHED = re.compile(
    rf"(?P<unit>{_UNIT}) reached after (?P<span>{_SPAN}) ?(?:in userspace\.?)?\s*\.?"
)
_NOT_REACHED = re.compile(
    r".{0,300}(?:was never reached|Could not get time to reach|Bootup is not yet finished).*"
)
_BLAME = re.compile(rf"(?:|.*?\s)(?P<span>(?:{_SPAN}))\s?(?P<unit>{_UNIT})\s*")
_CHAIN = re.compile(
    rf"(?:[ │]|\|(?!-))*+(?:[└├]─|[`|]-)?+(?P<unit>{_UNIT})(?:\s+@(?P<at>{_SPAN}))?"
    rf"(?:\s+\+(?P<took>{_SPAN}))?(?P<loop>\s*\.\.\.)?\s*"
)
_PROSE = re.compile(r"The time (?:when unit became|the unit took|after the unit|since).*")
_LONGEST_LINE: Final = 2000
_HEAD = re.compile(
    rf"Startup finished in .{{0,300}}\((?:userspace|kernel)\)"
    rf"|^The time when unit became active|^(?:[ └─│|`-]*){_UNIT} @\d.{{0,40}}$",
    re.MULTILINE,
)
_HEAD_BLAME = re.compile(rf"^ *(?:{_SPAN})\s?{_UNIT}\s*$", re.MULTILINE)


def detect(head: bytes) -> float:
    """Return 0.9 for `time` or `critical-chain`, 0.8 for two lines of `blame`, else 0.0.

    A log of something else may hold systemd's one line too, so it is never quite sure.
    """
    if head.lstrip().startswith((b"<?xml", b"<svg")):
        return 0.0  # `plot` repeats the line of `time`, but its units are not read
    text = "\n".join(line for line in lines(head) if len(line) <= _LONGEST_LINE)
    if _HEAD.search(text):
        return 0.9
    return 0.8 if len(_HEAD_BLAME.findall(text)) >= 2 else 0.0


@dataclass(slots=True)
class _Boot:
    """The runs of one boot."""

    total_ns: int | None = None
    stages: list[Event] = field(default_factory=list)
    targets: list[Event] = field(default_factory=list)
    chain: list[tuple[str, int, int | None]] = field(default_factory=list)
    units: list[tuple[str, int]] = field(default_factory=list)


@dataclass(slots=True)
class _State:
    """What has been read so far."""

    source: str
    boots: list[_Boot] = field(default_factory=lambda: [_Boot()])
    losses: list[Loss] = field(default_factory=list)
    other: int = 0
    in_chain: bool = False

    @property
    def boot(self) -> _Boot:
        """Return the boot being read."""
        return self.boots[-1]

    def lose(self, line: int, reason: str, text: str) -> None:
        """Declare a line that could not be used."""
        self.losses.append(loss(self.source, line, reason, text))


def _ns(text: str) -> int | None:
    """Return the nanoseconds of a span, or None if it is none or too long."""
    try:
        return parse_duration(text)
    except UsageError:
        return None


def read(data: bytes, options: Options) -> Reading:
    """Return the runs of each boot.

    Raises:
        FormatError: If nothing of the three outputs is found.
    """
    state = _State(options.source)
    rows = lines(data)
    for number, line in enumerate(rows, start=1):
        if len(line) > _LONGEST_LINE:
            state.lose(number, "a line of more than 2000 characters", line)
        elif line.strip():
            _line(state, number, line)
    drafts: list[dict[str, Any]] = []
    events: list[Event] = []
    for boot in state.boots:
        _emit(boot, options, drafts, events)
    if not drafts:
        first = state.losses[0] if state.losses else None
        raise FormatError(
            first.reason if first else "there is no output of systemd-analyze",
            source=options.source,
            line=first.line if first else 1,
        )
    return Reading(
        format=NAME,
        runs=number_runs(drafts),
        events=events,
        losses=merged_losses(state.losses),
        clock=Clock(name="CLOCK_MONOTONIC (systemd)", resolution_ns=1e6),
        notes=_notes(state),
    )


def _notes(state: _State) -> list[str]:
    notes = []
    if any(boot.chain for boot in state.boots):
        notes.append("critical chain: start_ns counts from the start of userspace")
    if any(boot.units for boot in state.boots):
        notes.append("blame: units start in parallel, so their times do not add up to the boot")
    if state.other:
        notes.append(f"{state.other} other lines")
    return notes


def _line(state: _State, number: int, line: str) -> None:
    finished = _FINISHED.search(line)
    reached = _REACHED.search(line)
    if finished is not None:
        _finished(state, number, line, finished["stages"])
    elif reached is not None:
        span = _ns(reached["span"])
        if span is None:
            state.lose(number, "no duration", line)
        else:
            state.boot.targets.append(_target(reached["unit"], span))
    elif _NOT_REACHED.fullmatch(line):
        state.lose(number, "systemd gives no time", line)
    elif _PROSE.fullmatch(line):
        state.in_chain = True
    elif not _chain(state, number, line) and not _blame(state, number, line):
        state.other += 1


def _target(unit: str, span: int) -> Event:
    return Event(sequence=0, layer="target", event=unit, value=float(span), parent=USERSPACE)


def _finished(state: _State, number: int, line: str, text: str) -> None:
    """Take `Startup finished in ...`, which begins a new boot if the open one has its times."""
    if state.boot.total_ns is not None or state.boot.stages:
        state.boots.append(_Boot())
    state.in_chain = False
    stages: list[Event] = []
    position = 0
    while (match := _STAGE.match(text, position)) is not None:
        span = _ns(match["span"])
        if span is None:
            state.lose(number, f"the time of {match['name']} is no duration", line)
            return
        name = match["name"].replace(" ", "_")
        stages.append(Event(sequence=0, layer="stage", event=name, value=float(span)))
        position = match.end()
        plus = re.compile(r"\s*\+\s*").match(text, position)
        if plus is None:
            break
        position = plus.end()
    total = _TOTAL.match(text, position)
    if not stages or (total is None and text[position:].strip(" .")):
        state.lose(number, "the stages of the boot are damaged", line)
        return
    if total is None and len(stages) > 1:
        state.lose(number, "the total is missing", line)
    state.boot.stages = stages
    if total is not None and "userspace" in {stage.event for stage in stages}:
        state.boot.total_ns = _ns(total["span"])
    elif stages[0].event == "userspace":
        state.boot.total_ns = round(stages[0].value)  # all that a container prints, and no `=`


def _chain(state: _State, number: int, line: str) -> bool:
    """Take a line of `critical-chain`; return whether it was one."""
    match = _CHAIN.fullmatch(line)
    if match is None or (match["at"] is None and not state.in_chain):
        return False
    if match["loop"]:
        state.lose(number, "a loop in the chain", line)
        return True
    at = _ns(match["at"]) if match["at"] else None
    took = _ns(match["took"]) if match["took"] else None
    if at is None:
        state.lose(number, "a unit of the chain without a time", line)
        return True
    state.boot.chain.append((match["unit"], at, took))
    return True


def _blame(state: _State, number: int, line: str) -> bool:
    """Take a line of `blame`, also after a login prompt; return whether it was one."""
    match = _BLAME.fullmatch(line)
    if match is None:
        return False
    state.in_chain = False
    span = _ns(match["span"])
    if span is None:
        state.lose(number, "no duration", line)
    else:
        state.boot.units.append((match["unit"], span))
    return True


def _emit(boot: _Boot, options: Options, drafts: list[dict[str, Any]], events: list[Event]) -> None:
    configuration = options.configuration or DEFAULT_CONFIGURATION
    children = [*boot.stages, *boot.targets, *_chain_events(boot)]
    if children:
        names = {f"{event.layer}|{event.event}" for event in children}
        events.extend(_placed(event, len(drafts), names) for event in children)
        drafts.append(
            {
                "task": options.task or BOOT,
                "configuration": configuration,
                "wall_ns": boot.total_ns,
            }
        )
    if boot.units:
        events.extend(
            Event(sequence=len(drafts), layer="unit", event=unit, value=float(span))
            for unit, span in boot.units
        )
        drafts.append({"task": UNITS, "configuration": configuration})


def _placed(event: Event, sequence: int, names: set[str]) -> Event:
    parent = event.parent if event.parent in names else None
    return Event(
        sequence=sequence,
        layer=event.layer,
        event=event.event,
        value=event.value,
        parent=parent,
        start_ns=event.start_ns,
    )


def _chain_events(boot: _Boot) -> list[Event]:
    """Return the chain below its first unit, which is the target that the chain leads to."""
    if not boot.chain:
        return []
    root, at, took = boot.chain[0]
    known = {event.event for event in boot.targets}
    head = [] if root in known else [_target(root, at + (took or 0))]
    return head + [
        Event(
            sequence=0,
            layer="critical-chain",
            event=unit,
            value=float(span or 0),
            parent=f"target|{root}",
            start_ns=start,
        )
        for unit, start, span in boot.chain[1:]
    ]


FORMAT: Final = Format(
    name=NAME,
    title="systemd-analyze time, blame and critical-chain",
    detect=detect,
    read=read,
)
