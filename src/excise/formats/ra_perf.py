"""RA_PERF lines of an OP-TEE remote attestation, wherever they stand in a noisy UART log.

A measurement is `RA_PERF|<layer>|<event>|<duration_us>|key=<mode>`. This module finds the lines
and declares what it could not use; `ra_perf_tree` groups them into iterations.

Source: iisec-suzaki/optee-ra, docs/performance-measurement.md and the log points it names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from excise.capture.journal import Loss
from excise.capture.manifest import Fact
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.ra_perf_tree import Mark, build
from excise.formats.text import LOSS_TEXT_CHARS, clip, merged_losses
from excise.units import counted

NAME: Final = "ra-perf"
LOG_HEAD_BYTES: Final = 32 << 20  # boot loader and kernel may print a lot before the first line
_MARKER: Final = b"RA_PERF|"
_KEY_MODES: Final = ("embedded", "plain", "black", "-")
_LAYERS: Final = ("host", "ta", "pta", "verifier")
# Durations are whole microseconds; fifteen digits are 31 years.
_LINE = re.compile(
    rb"RA_PERF\|(?P<layer>[a-z][a-z0-9_]{0,31})\|(?P<event>[a-z][a-z0-9_]{0,63})"
    rb"\|(?P<value>[0-9]{1,15}(?:\.[0-9]{1,6})?)\|key=(?P<key>[a-z]{1,31}|-)(?![a-z0-9_])"
    rb"(?P<labels>(?:[|,][a-z][a-z0-9_]{0,31}=[A-Za-z0-9_.:/+-]{0,64}){0,16})"
)
# Either the start of a measurement, or the tail of one whose start is lost.
_TRACE = re.compile(rb"RA_PERF\|?|\|key=")
_CUT_NAME: Final = (b"", b"\r", b"\n", b"I")  # `I` starts the next `I/TC:` prefix
_WHOLE_START = re.compile(rb"RA_PERF\|[a-z0-9_]+\|[a-z0-9_]+\|[0-9.]+\|key=[a-z-]*[|,]?")


def detect(head: bytes) -> float:
    """Return 1.0 for a whole RA_PERF line, 0.5 for a damaged one, else 0.0."""
    if _LINE.search(head):
        return 1.0
    return 0.5 if _MARKER in head else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return one run per attestation, its events nested by layer, and every damaged line.

    Raises:
        FormatError: If no line can be used; it names the first damaged line, if any.
    """
    losses: list[Loss] = []
    marks = list(_without_overflow(_marks(data, options.source, losses), options.source, losses))
    if all((mark.layer, mark.event) == ("pta", "cntfrq") for mark in marks):
        first = losses[0] if losses else None
        raise FormatError(
            f"no RA_PERF line can be used: {first.reason}"
            if first
            else "there is no RA_PERF line of a measurement",
            source=options.source,
            line=first.line if first else 1,
            hint="A line is RA_PERF|layer|event|microseconds|key=mode",
        )
    frequencies = sorted({m.value_us for m in marks if (m.layer, m.event) == ("pta", "cntfrq")})
    tree = build(marks, options, losses)
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    other = lines - len({mark.line for mark in marks}) - len({item.line for item in losses})
    return Reading(
        format=NAME,
        runs=tree.runs,
        events=tree.events,
        losses=merged_losses(losses),
        clock=Clock(name="CLOCK_MONOTONIC (host)", resolution_ns=1000.0),
        clocks=_layer_clocks(marks, frequencies),
        facts=[
            Fact(name="cntfrq", value=round(hz), unit="Hz", must_agree=True)
            for hz in frequencies[:1]
        ],
        notes=[*tree.notes, *_notes(frequencies, other)],
    )


def _without_overflow(marks: Iterable[Mark], source: str, losses: list[Loss]) -> Iterator[Mark]:
    """Yield the measurements; a count of marks that found no room in a buffer becomes a loss."""
    for mark in marks:
        if mark.event != "perf_overflow":
            yield mark
        elif mark.value_us:
            lost = round(mark.value_us)
            losses.append(
                Loss(
                    source=source,
                    line=mark.line,
                    count=lost,
                    reason=f"the buffer of the {mark.layer} layer was full",
                    text=f"{counted(lost, 'mark was', 'marks were')} not kept",
                )
            )


def _layer_clocks(marks: list[Mark], frequencies: list[float]) -> list[Clock]:
    """Return the clock of each layer that has lines; all print whole microseconds."""
    present = {mark.layer for mark in marks}
    clocks = []
    if "ta" in present:
        clocks.append(Clock(name="TEE_GetSystemTime (ta)", resolution_ns=1e6))
    if "pta" in present:
        rate = f" at {frequencies[0]:.0f} Hz" if frequencies else ", CNTFRQ not in the log"
        tick_ns = 1e9 / frequencies[0] if frequencies else 0.0
        clocks.append(Clock(name=f"CNTPCT{rate} (pta)", resolution_ns=max(1000.0, tick_ns)))
    if "verifier" in present:
        clocks.append(Clock(name="CLOCK_MONOTONIC (verifier)", resolution_ns=1000.0))
    return clocks


def _notes(frequencies: list[float], other: int) -> list[str]:
    notes = []
    if len(frequencies) > 1:
        rates = ", ".join(f"{hz:.0f}" for hz in frequencies)
        notes.append(f"the log has {len(frequencies)} counter frequencies ({rates} Hz)")
    if other > 0:
        notes.append(f"{other} other lines of the log are not RA_PERF lines")
    return notes


def _marks(data: bytes, source: str, losses: list[Loss]) -> Iterator[Mark]:
    """Yield every whole line in order; append a loss for each trace of a damaged one."""
    position, line, counted, line_end = 0, 1, 0, -1
    while (trace := _TRACE.search(data, position)) is not None:
        start = trace.start()
        line += data.count(b"\n", counted, start)
        counted = start
        if start > line_end:
            line_end = data.find(b"\n", start)
            line_end = len(data) if line_end < 0 else line_end
        match = _LINE.match(data, start) if trace[0] == _MARKER else None
        if match is not None:
            position, reason, shown = match.end(), _unusable(match), match[0]
        else:
            reason, position = _damage(data, start, trace[0], line_end)
            shown = data[start : min(line_end, start + LOSS_TEXT_CHARS)]
        if reason:
            losses.append(Loss(source=source, line=line, reason=reason, text=clip(shown)))
        elif match is not None:
            yield _mark(match, line)


def _mark(match: re.Match[bytes], line: int) -> Mark:
    layer, event, key = match["layer"].decode(), match["event"].decode(), match["key"].decode()
    labels = match["labels"].decode()
    if labels:
        labels = ",".join(sorted(re.split(r"[|,]", labels)[1:]))
    return Mark(
        name=f"{layer}|{event}",
        line=line,
        layer=layer,
        event=event,
        value_us=float(match["value"]),
        key=key,
        labels=labels,
    )


def _unusable(match: re.Match[bytes]) -> str:
    """Return why a line of the right form is not one of the grammar, or ""."""
    layer, key = match["layer"].decode(), match["key"].decode()
    if layer == "pta" and match["event"] == b"cntfrq" and float(match["value"]) <= 0.0:
        return "a counter frequency of 0 Hz"
    if layer not in _LAYERS:
        return f"unknown layer {layer!r}"
    if key not in _KEY_MODES:
        cut = any(mode.startswith(key) for mode in _KEY_MODES)
        return f"the key mode {key!r} is cut" if cut else f"unknown key mode {key!r}"
    return ""


def _damage(data: bytes, start: int, trace: bytes, line_end: int) -> tuple[str, int]:
    """Return why a trace is no whole line ("" if it is none at all), and where to go on.

    The rest of the line is searched again from its next `RA_PERF`, for a line cut by another.
    """
    after = start + len(trace)
    if trace == b"|key=":
        return "the end of a line whose start is lost", after
    if trace != _MARKER and data[after : after + 1] not in _CUT_NAME:
        return "", after  # the variable RA_PERF=1 in a command, or a word of prose
    following = data.find(b"RA_PERF", after, line_end)
    if following >= 0:
        return "cut by another line", following
    whole = _WHOLE_START.match(data, start)
    if whole is not None:
        return "the key mode is damaged", whole.end()
    if data.find(b"|key=", after, line_end) >= 0:
        return "bytes of something else are mixed into the line", line_end
    return "the line is cut short", line_end


FORMAT: Final = Format(
    name=NAME,
    title="RA_PERF lines of an OP-TEE/Veraison attestation, in UART logs",
    detect=detect,
    read=read,
    head_bytes=LOG_HEAD_BYTES,
)
