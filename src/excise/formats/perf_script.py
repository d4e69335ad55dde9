"""perf script: samples with their stacks, and trace points.

Source: tools/perf/builtin-script.c, 6.1; fields that `-F` may leave out are optional here.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import EVENT, FUNCTION, PATH, Values, key_of, syscall_key
from excise.formats.trace_syscalls import MACHINES, syscall_name

NAME: Final = "perf-script"
MAX_PATH_ROWS: Final = 5_000
_LONGEST: Final = 20_000
_HEADER = re.compile(
    r"(?P<comm>\S.{0,63}?)\s+(?P<pid>-?\d+)(?:/(?P<tid>-?\d+))?\s+(?:\[(?P<cpu>\d{3,5})\]\s+)?"
    r"(?:[.\w]{4,6}\s+)?(?P<time>\d{1,15}\.\d{6,9}):\s+(?:(?P<period>\d{1,19})\s+)?"
    r"(?P<event>[A-Za-z_][\w./@=,\-]*(?::[\w./\-]+)*):(?P<fields>.*)"
)
_FRAME = re.compile(
    r"\s+(?P<address>[0-9a-f]{1,16}) (?P<symbol>.+?)(?:\+0x[0-9a-f]+)? \((?P<object>.*)\)\s*"
)
_ENTER = re.compile(r"\s*NR (?P<number>\d{1,9})\b.*")


@dataclass(slots=True)
class _Found:
    samples: Counter[str] = field(default_factory=Counter)
    periods: Counter[str] = field(default_factory=Counter)
    leaves: Counter[tuple[str, str]] = field(default_factory=Counter)
    within: Counter[tuple[str, str]] = field(default_factory=Counter)
    paths: Counter[tuple[str, tuple[str, ...]]] = field(default_factory=Counter)
    entered: dict[str, tuple[int, float]] = field(default_factory=dict)
    calls: dict[int, Values] = field(default_factory=dict)
    losses: list[Loss] = field(default_factory=list)


def detect(head: bytes) -> float:
    """Return 0.85 if the first line begins a sample and most others are its frames or samples."""
    text = [line for line in lines(head[:8192])[:-1] or lines(head) if line.strip()][:100]
    text = [line for line in text if not line.startswith("#")]
    if not text or not _HEADER.fullmatch(text[0][:_LONGEST]):
        return 0.0
    found = sum(bool(_HEADER.fullmatch(line) or _FRAME.fullmatch(line)) for line in text)
    return 0.85 if found * 10 >= len(text) * 8 else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return how often each function was found running, by itself and along each path.

    Samples are counts, not times: `samples` of a function are those it was found in (once each),
    `self` those in which it was the innermost. System calls are timed where their
    `raw_syscalls` trace points are there.

    Raises:
        FormatError: If no line begins a sample.
    """
    found = _Found()
    event, frames = "", list[str]()
    for number, line in enumerate(lines(data), start=1):
        if not line.strip() or line.startswith("#") or len(line) > _LONGEST:
            if len(line) > _LONGEST:
                reason = "a line longer than 20,000 characters"
                found.losses.append(loss(options.source, number, reason, line))
            continue
        frame = _FRAME.fullmatch(line) if line[0] in " \t" and event else None
        if frame:
            frames.append(_symbol(frame))
            continue
        head = _HEADER.fullmatch(line.strip())
        if head is None:
            found.losses.append(loss(options.source, number, "not a sample or a frame", line))
            continue
        _close(found, event, frames)
        event, frames = head["event"], []
        _open(found, head)
    _close(found, event, frames)
    if not found.samples:
        first = found.losses[0].line if found.losses else 1
        raise FormatError("no line begins a sample", source=options.source, line=first)
    notes: list[str] = []
    return Reading(
        format=NAME,
        aggregates=_rows(found, options, notes),
        losses=merged_losses(found.losses),
        clock=Clock(name="perf record"),
        notes=notes,
    )


def _symbol(frame: re.Match[str]) -> str:
    symbol = frame["symbol"].strip()
    if symbol == "[unknown]":
        symbol = f"[unknown] in {frame['object'].rsplit('/', 1)[-1]}" if frame["object"] else symbol
    return symbol.translate({ord(sign): " " for sign in ";,=|"})[:200]


def _open(found: _Found, head: re.Match[str]) -> None:
    event = head["event"]
    found.samples[event] += 1
    found.periods[event] += int(head["period"] or 0)
    call = _ENTER.fullmatch(head["fields"])
    who = head["tid"] or head["pid"]
    if call is None or not event.startswith("raw_syscalls:"):
        return
    number, time = int(call["number"]), float(head["time"])
    if event == "raw_syscalls:sys_enter":
        found.entered[who] = (number, time)
        return
    began = found.entered.pop(who, None)
    if began is not None and began[0] == number:
        found.calls.setdefault(number, Values()).add(round((time - began[1]) * 1e9))


def _close(found: _Found, event: str, frames: list[str]) -> None:
    if not frames:
        return
    found.leaves[event, frames[0]] += 1
    for name in set(frames):
        found.within[event, name] += 1
    found.paths[event, tuple(reversed(frames))] += 1


def _rows(found: _Found, options: Options, notes: list[str]) -> list[Aggregate]:
    key = key_of(options)
    rows = [
        Aggregate(
            **key,
            layer=EVENT,
            event=event,
            metric="count",
            unit="1",
            count=float(count),
            sum=float(found.periods[event]) if found.periods[event] else None,
        )
        for event, count in sorted(found.samples.items())
    ]
    several = len({event for event, _ in found.within}) > 1
    for (event, name), count in found.within.most_common():
        labels = f"event={event.replace('=', ' ').replace(',', ' ')}" if several else ""
        own = {**key, "layer": FUNCTION, "event": name, "labels": labels, "unit": "samples"}
        rows.append(Aggregate(**own, metric="samples", count=float(count)))
        if leaf := found.leaves[event, name]:
            rows.append(Aggregate(**own, metric="self", count=float(leaf), sum=float(leaf)))
    rows += _path_rows(found, key, notes)
    for number, values in sorted(found.calls.items()):
        name = syscall_name(number, machine=MACHINES[0])
        rows.append(
            Aggregate(**syscall_key(options, name), metric="duration", unit="ns", **values.fields())
        )
    return rows


def _path_rows(found: _Found, key: dict[str, Any], notes: list[str]) -> list[Aggregate]:
    """Return the call tree: samples in each path and, as `self`, those that end there."""
    totals: Counter[tuple[str, ...]] = Counter()
    own: Counter[tuple[str, ...]] = Counter()
    for (_, path), count in found.paths.items():
        own[path] += count
        for length in range(1, len(path) + 1):
            totals[path[:length]] += count
    kept = sorted(totals, key=lambda path: (-totals[path], len(path), path))[:MAX_PATH_ROWS]
    if len(totals) > len(kept):
        notes.append(f"{len(totals) - len(kept):,} rare paths of the call tree are left out")
    rows = []
    for path in sorted(kept):
        place = {
            **key,
            "layer": PATH,
            "event": path[-1],
            "labels": f"path={';'.join(path)}",
            "unit": "samples",
        }
        total = float(totals[path])
        rows.append(Aggregate(**place, metric="samples", count=total, sum=total))
        rows.append(Aggregate(**place, metric="self", count=total, sum=float(own[path])))
    return rows


FORMAT: Final = Format(
    name=NAME, title="perf script: samples with stacks, trace points", detect=detect, read=read
)
