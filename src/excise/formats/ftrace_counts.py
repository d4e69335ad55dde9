"""Small tables of the kernel's tracefs: function profiler, histogram triggers, probe hits, buffers.

Source: kernel/trace/ftrace.c, trace_events_hist.c, trace_kprobe.c, ring_buffer statistics, 6.1.
"""

from __future__ import annotations

import re
from typing import Any, Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import EVENT, key_of, label, layer_and_event, syscall_key

STAT: Final = "trace-stat"
HIST: Final = "ftrace-hist"
PROFILE: Final = "kprobe-profile"
BUFFERS: Final = "ftrace-buffers"
_LONGEST: Final = 2000
_NS_PER_US: Final = 1e3

# --- function profiler --------------------------------------------------------------------------

_STAT_HEAD = re.compile(r"\s*Function\s+Hit(?P<timed>\s+Time\s+Avg\s+s\^2)?\s*")
_STAT_RULE = re.compile(r"[\s-]+")
_STAT_ROW = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.]{0,127})\s+(?P<hit>\d{1,19})"
    r"(?:\s+(?P<time>\d{1,16}(?:\.\d{1,3})?) us\s+(?P<mean>\d{1,16}(?:\.\d{1,3})?) us"
    r"\s+(?P<square>\d{1,20}(?:\.\d{1,3})?) us)?\s*"
)


def detect_stat(head: bytes) -> float:
    """Return 0.95 if the heading of the function profiler stands in the first lines."""
    text = lines(head[:2000])[:8]
    return 0.95 if any(_STAT_HEAD.fullmatch(line[:_LONGEST]) for line in text) else 0.0


def read_stat(data: bytes, options: Options) -> Reading:
    """Return calls, total, mean and standard deviation of each function, CPUs added up.

    Raises:
        FormatError: If the heading is missing, or no function is under it.
    """
    sums: dict[str, tuple[int, float, float]] = {}
    losses: list[Loss] = []
    headings = 0
    for number, line in enumerate(lines(data), start=1):
        if len(line) > _LONGEST or not line.strip() or _STAT_RULE.fullmatch(line):
            continue
        if _STAT_HEAD.fullmatch(line):
            headings += 1
        elif headings and (row := _STAT_ROW.fullmatch(line)):
            hit, total, squares = sums.get(row["name"], (0, 0.0, 0.0))
            more = float(row["time"]) if row["time"] else 0.0
            mean = float(row["mean"]) if row["mean"] else 0.0
            # Variance is printed in us squared; pooled over CPUs by the sums of squares.
            square = float(row["square"]) if row["square"] else 0.0
            count = int(row["hit"])
            squares += square * max(0, count - 1) + count * mean * mean
            sums[row["name"]] = (hit + count, total + more, squares)
        else:
            losses.append(loss(options.source, number, "not a row of the function profiler", line))
    if not headings or not sums:
        raise FormatError(
            "the function profiler's heading and rows are missing", source=options.source, line=1
        )
    return Reading(
        format=STAT,
        aggregates=[_stat_row(name, *found, options) for name, found in sums.items()],
        losses=merged_losses(losses),
        clock=Clock(name="function profiler, printed in us", resolution_ns=1.0),
        notes=_stat_notes(sums, headings),
    )


def _stat_row(name: str, hit: int, total_us: float, squares: float, options: Options) -> Aggregate:
    layer, event = layer_and_event(name)
    place = {**key_of(options), "layer": layer, "event": event, "metric": "duration", "unit": "ns"}
    if not total_us:
        return Aggregate(**place, count=float(hit), note="counted, not timed")
    mean = total_us / hit if hit else 0.0
    variance = (squares - hit * mean * mean) / (hit - 1) if hit > 1 else 0.0
    return Aggregate(
        **place,
        count=float(hit),
        sum=total_us * _NS_PER_US,
        mean=mean * _NS_PER_US,
        sd=variance**0.5 * _NS_PER_US if variance > 0 else None,
    )


def _stat_notes(sums: dict[str, Any], headings: int) -> list[str]:
    notes = [f"{headings} CPUs are added up"] if headings > 1 else []
    if any(len(name) >= 30 for name in sums):
        notes.append("names are cut at 30 characters: functions that begin alike may be added up")
    return notes


# --- histogram triggers -------------------------------------------------------------------------

_HIST_HEAD: Final = "# event histogram"
_HIST_ROW = re.compile(r"\{ (?P<keys>.{1,1000}) \}(?P<values>(?:\s+[\w.]+:\s+-?\d{1,20})+)\s*")
_HIST_KEY = re.compile(r"(?P<name>[\w.]+): (?P<value>.*)")
_HIST_VALUE = re.compile(r"(?P<name>[\w.]+):\s+(?P<value>-?\d{1,20})")
_HIST_TOTAL = re.compile(r"\s+(?P<name>Hits|Entries|Dropped): (?P<count>\d{1,19})\s*")


def detect_hist(head: bytes) -> float:
    """Return 0.95 if the heading of a histogram trigger stands in the first lines."""
    return 0.95 if any(line == _HIST_HEAD for line in lines(head[:2000])[:5]) else 0.0


def read_hist(data: bytes, options: Options) -> Reading:
    """Return one row for each entry: its keys as labels, its hits as count.

    Raises:
        FormatError: If the heading is missing, or no entry is under it.
    """
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    headed = False
    for number, line in enumerate(lines(data), start=1):
        if not line.strip() or line.startswith("#") or line.strip() == "Totals:":
            headed |= line == _HIST_HEAD
        elif len(line) <= _LONGEST and (row := _HIST_ROW.fullmatch(line)):
            rows += _hist_rows(row, options)
        elif total := _HIST_TOTAL.fullmatch(line[:_LONGEST]):
            dropped = int(total["count"])
            if total["name"] == "Dropped" and dropped:
                reason = "events that the histogram had no room for"
                losses.append(loss(options.source, number, reason, line, count=dropped))
        else:
            losses.append(loss(options.source, number, "not an entry of a histogram", line))
    if not headed or not rows:
        raise FormatError(
            "a histogram trigger's heading and entries are missing", source=options.source, line=1
        )
    return Reading(format=HIST, aggregates=rows, losses=merged_losses(losses))


def _hist_rows(row: re.Match[str], options: Options) -> list[Aggregate]:
    labels, call = [], ""
    for part in re.split(r", (?=[\w.]+: )", row["keys"]):
        key = _HIST_KEY.fullmatch(part.strip())
        if key is None:
            continue
        value = re.sub(r"\s+", " ", key["value"]).strip()
        # `sys_openat [257]`: a system call.
        syscall = re.fullmatch(r"sys_(\w+) \[ ?\d+\]", value)
        call = syscall[1] if syscall else call
        labels.append(label(key["name"], value))
    values = {found["name"]: int(found["value"]) for found in _HIST_VALUE.finditer(row["values"])}
    hits = values.pop("hitcount", None)
    place = syscall_key(options, call) if call else {**key_of(options), "layer": EVENT}
    place |= {"labels": ",".join(sorted(labels)), "unit": "1"}
    found = [Aggregate(**place, metric="count", count=float(hits))] if hits is not None else []
    return found + [
        Aggregate(**place, metric=name, count=_hits(hits), sum=float(value))
        for name, value in values.items()
    ]


def _hits(hits: int | None) -> float | None:
    return None if hits is None else float(hits)


# --- hits of probes, statistics of buffers ------------------------------------------------------

_PROFILE_ROW = re.compile(
    r"\s*(?:(?P<file>/\S+)\s+)?(?P<name>[A-Za-z_][\w.]{0,100})\s+(?P<hits>\d{1,19})"
    r"(?:\s+(?P<missed>\d{1,19}))?\s*"
)
_BUFFER_ROW = re.compile(
    r"(?P<name>entries|overrun|commit overrun|bytes|oldest event ts|now ts|dropped events|"
    r"read events):\s*(?P<value>\d{1,19}(?:\.\d{1,9})?)\s*"
)
_BUFFER_HEAD = re.compile(r"\S*\bcpu(?P<cpu>\d{1,5})\S*\s*")
_BUFFER_LOSSES: Final = {
    "overrun": "events that were overwritten",
    "commit overrun": "events that nested too deep to be written",
    "dropped events": "events that the full buffer dropped",
}


def detect_profile(head: bytes) -> float:
    """Return 0.4 if every line is a name with hits and misses: nothing names the format."""
    text = [line for line in lines(head[:8192]) if line.strip()]
    found = [_PROFILE_ROW.fullmatch(line[:_LONGEST]) for line in text]
    return 0.4 if found and all(row and row["missed"] for row in found) else 0.0


def read_profile(data: bytes, options: Options) -> Reading:
    """Return the hits of each probe; missed ones are losses.

    Raises:
        FormatError: If a line is not a probe with its hits and misses.
    """
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    for number, line in enumerate(lines(data), start=1):
        if not line.strip():
            continue
        row = _PROFILE_ROW.fullmatch(line) if len(line) <= _LONGEST else None
        if row is None or row["missed"] is None:
            raise FormatError(
                "not a probe with its hits and misses", source=options.source, line=number
            )
        place = {**key_of(options), "layer": EVENT, "event": row["name"], "unit": "1"}
        rows.append(Aggregate(**place, metric="count", count=float(row["hits"])))
        if missed := int(row["missed"]):
            reason = f"hits that the probe {row['name']} missed"
            losses.append(loss(options.source, number, reason, line, count=missed))
    if not rows:
        raise FormatError("there is no probe", source=options.source, line=1)
    return Reading(format=PROFILE, aggregates=rows, losses=merged_losses(losses))


def detect_buffers(head: bytes) -> float:
    """Return 0.95 if the statistics of a ring buffer stand there."""
    text = lines(head[:8192])
    names = {row["name"] for line in text if (row := _BUFFER_ROW.fullmatch(line[:_LONGEST]))}
    return 0.95 if {"entries", "overrun", "dropped events"} <= names else 0.0


def read_buffers(data: bytes, options: Options) -> Reading:
    """Return the entries of each CPU's buffer; overwritten and dropped events are losses.

    Raises:
        FormatError: If no line is a statistic of a buffer.
    """
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    cpu, seen = "", set[str]()
    for number, line in enumerate(lines(data), start=1):
        row = _BUFFER_ROW.fullmatch(line) if len(line) <= _LONGEST else None
        if row is None:
            head = _BUFFER_HEAD.fullmatch(line[:_LONGEST])
            if head:
                cpu, seen = head["cpu"], set()
            elif line.strip():
                losses.append(loss(options.source, number, "not a statistic of a buffer", line))
            continue
        name = row["name"]
        if name in seen:
            cpu, seen = (str(int(cpu) + 1) if cpu else ""), set()
        seen.add(name)
        count = int(float(row["value"]))
        if name == "entries":
            labels = f"cpu={cpu}" if cpu else ""
            place = {**key_of(options), "layer": EVENT, "event": "entries", "labels": labels}
            rows.append(Aggregate(**place, metric="count", unit="1", count=float(count)))
        elif name in _BUFFER_LOSSES and count:
            where = f" on CPU {cpu}" if cpu else ""
            reason = f"{_BUFFER_LOSSES[name]}{where}"
            losses.append(loss(options.source, number, reason, line, count=count))
    if not rows:
        raise FormatError("no statistic of a buffer", source=options.source, line=1)
    return Reading(format=BUFFERS, aggregates=rows, losses=merged_losses(losses))


FORMAT: Final = Format(
    name=STAT,
    title="trace_stat of the kernel's function profiler",
    detect=detect_stat,
    read=read_stat,
)
FORMAT_HIST: Final = Format(
    name=HIST,
    title="histogram triggers of the kernel's tracer (hist)",
    detect=detect_hist,
    read=read_hist,
)
FORMAT_PROFILE: Final = Format(
    name=PROFILE, title="kprobe_profile: hits of probes", detect=detect_profile, read=read_profile
)
FORMAT_BUFFERS: Final = Format(
    name=BUFFERS,
    title="per_cpu/cpuN/stats: the tracer's buffers",
    detect=detect_buffers,
    read=read_buffers,
)
