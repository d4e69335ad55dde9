"""bpftrace's output: maps, histograms and statistics, as text or as JSON lines (`-f json`).

Source: bpftrace, src/output.cpp, 0.17 to 0.23.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.json_text import parse_json
from excise.formats.model import Format, Options, Reading
from excise.formats.text import INT64_MAX, lines, loss, merged_losses
from excise.formats.trace_rows import PATH, histogram_rows, key_of, label
from excise.units import counted

TEXT: Final = "bpftrace"
JSON: Final = "bpftrace-json"
MAP: Final = "map"
_LONGEST: Final = 20_000
_MAP = re.compile(
    r"(?P<name>@\w{0,64})(?:\[(?P<key>.*)\])?: "
    r"(?:(?P<value>-?\d{1,20})|count (?P<count>\d{1,20}), average (?P<average>-?\d{1,20}), "
    r"total (?P<total>-?\d{1,20}))\s*"
)
_HISTOGRAM = re.compile(r"(?P<name>@\w{0,64})(?:\[(?P<key>.*)\])?: ?")
_STACK_START = re.compile(r"(?P<name>@\w{0,64})\[\s*")
_STACK_END = re.compile(r"(?P<rest>.*)\]: (?P<value>-?\d{1,20})\s*")
_BOUND: Final = r"-?\d{1,20}[KMGTPE]?"
_BUCKET = re.compile(
    rf"(?:\[(?P<only>{_BOUND})\]|(?:\[(?P<low>{_BOUND})|\(\.\.\.), (?:(?P<high>{_BOUND})|\.\.\.)\))"
    r"\s+(?P<count>\d{1,19}) \|[@ ]*\|\s*"
)
_LOST = re.compile(r"Lost (?P<count>\d{1,18}) events.*")
_ATTACHED = re.compile(r"Attach(?:ing|ed) (?P<count>\d+) probes?(?:\.\.\.)?\s*")
_SCALES: Final = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50, "E": 2**60}


@dataclass(slots=True)
class _Found:
    rows: list[Aggregate] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    printed: int = 0


def _key(options: Options, name: str, key: str | None) -> dict[str, Any]:
    return {
        **key_of(options),
        "layer": MAP,
        "event": name,
        "labels": label("key", key[:500]) if key else "",
        "unit": "1",
    }


def _value(text: str) -> float | None:
    value = int(text)
    return float(value) if abs(value) <= 2 * INT64_MAX + 1 else None


def _bound(text: str | None) -> float | None:
    if text is None:
        return None
    scale = _SCALES.get(text[-1], 1)
    return float(int(text.rstrip("KMGTPE")) * scale)


# --- text ---------------------------------------------------------------------------------------


def detect_text(head: bytes) -> float:
    """Return 0.9 for the heading with a map, 0.7 for maps alone."""
    text = [line for line in lines(head[:16_384]) if line.strip() and len(line) <= _LONGEST]
    maps = sum(bool(_MAP.fullmatch(line) or _HISTOGRAM.fullmatch(line)) for line in text)
    maps += sum(bool(_STACK_START.fullmatch(line)) for line in text)
    headed = any(_ATTACHED.fullmatch(line) for line in text[:20])
    if headed:
        return 0.9
    return 0.7 if maps else 0.0


def read_text(data: bytes, options: Options) -> Reading:
    """Return one row for each entry of a map, statistic, or bucket of a histogram.

    Raises:
        FormatError: If no map was printed.
    """
    found = _Found()
    text = lines(data)
    at = 0
    while at < len(text):
        at = _text_at(text, at, options, found)
    if not found.rows:
        first = next((row.line for row in found.losses if row.line), 1)
        raise FormatError("no entry of a map is printed", source=options.source, line=first)
    return _reading(TEXT, found)


def _text_at(text: list[str], at: int, options: Options, found: _Found) -> int:
    """Read what begins at a line; return where it ends."""
    line = text[at]
    if len(line) > _LONGEST:
        reason = "a line longer than 20,000 characters"
        found.losses.append(loss(options.source, at + 1, reason, line))
    elif match := _MAP.fullmatch(line):
        _map_row(match, options, found, number=at + 1, line=line)
    elif match := _HISTOGRAM.fullmatch(line):
        return _text_histogram(text, at, match, options, found)
    elif match := _STACK_START.fullmatch(line):
        return _stack(text, at, match["name"], options, found)
    elif lost := _LOST.fullmatch(line):
        count = max(1, int(lost["count"]))
        reason = "events that bpftrace lost"
        found.losses.append(loss(options.source, at + 1, reason, line, count=count))
    elif line.startswith("@"):
        found.losses.append(loss(options.source, at + 1, "not an entry of a map", line))
    elif line.strip() and not _ATTACHED.fullmatch(line):
        found.printed += 1
    return at + 1


def _map_row(
    match: re.Match[str], options: Options, found: _Found, *, number: int, line: str
) -> None:
    key = _key(options, match["name"], match["key"])
    values = [_value(match[name]) for name in ("value", "count", "average", "total") if match[name]]
    if any(value is None for value in values):
        reason = "a number does not fit in 64 bits"
        found.losses.append(loss(options.source, number, reason, line))
    elif match["value"]:
        found.rows.append(Aggregate(**key, metric="value", mean=values[0]))
    else:
        count, average, total = values
        found.rows.append(
            Aggregate(**key, metric="statistic", count=count, mean=average, sum=total)
        )


def _text_histogram(
    text: list[str], at: int, match: re.Match[str], options: Options, found: _Found
) -> int:
    buckets: list[tuple[float, float | None, float | None]] = []
    end = at + 1
    while end < len(text) and len(text[end]) <= _LONGEST:
        bucket = _BUCKET.fullmatch(text[end])
        if bucket is None:
            break
        low = _bound(bucket["only"] or bucket["low"])
        high = low + 1 if bucket["only"] and low is not None else _bound(bucket["high"])
        buckets.append((float(bucket["count"]), low, high))
        end += 1
    if not buckets:
        reason = "a histogram without buckets"
        found.losses.append(loss(options.source, at + 1, reason, text[at]))
        return end
    found.rows += histogram_rows(buckets, **_key(options, match["name"], match["key"]))
    return end


def _stack(text: list[str], at: int, name: str, options: Options, found: _Found) -> int:
    """Read a map whose key is a stack, one frame a line, innermost first."""
    frames: list[str] = []
    for end in range(at + 1, min(at + 400, len(text))):
        line = text[end]
        if len(line) > _LONGEST:
            break
        closed = _STACK_END.fullmatch(line)
        if closed is None:
            frames.append(line.strip())
            continue
        further = closed["rest"].strip(" ,")
        key = _key(options, name, further or None)
        functions = [_function(frame) for frame in reversed(frames) if frame]
        if not functions:
            break
        labels = [f"path={';'.join(functions)}", *filter(None, [key["labels"]])]
        place = key | {"layer": PATH, "event": functions[-1], "labels": ",".join(sorted(labels))}
        value = _value(closed["value"])
        found.rows.append(
            Aggregate(**place | {"unit": "samples"}, metric="self", count=value, sum=value)
        )
        return end + 1
    found.losses.append(loss(options.source, at + 1, "a stack without its count", text[at]))
    return at + 1


def _function(frame: str) -> str:
    """Return the function of `vfs_read+0` or `read+18 (/lib/libc.so.6)`."""
    name = re.sub(r"\+(?:0x)?[0-9a-f]+(?: \(.*\))?$", "", frame.strip(" ,"))
    return name.translate({ord(sign): " " for sign in ";,=|"})[:200] or "?"


def _reading(name: str, found: _Found) -> Reading:
    notes = []
    if found.printed:
        notes.append(f"the script's own output is left out: {counted(found.printed, 'line')}")
    return Reading(
        format=name,
        aggregates=found.rows,
        losses=merged_losses(found.losses),
        clock=Clock(name="bpftrace"),
        notes=notes,
    )


# --- JSON ---------------------------------------------------------------------------------------

_PRINTED: Final = frozenset({"printf", "time", "cat", "join", "syscall", "value"})
_KNOWN: Final = frozenset(
    {"map", "stats", "hist", "lhist", "attached_probes", "lost_events", "tseries"}
)


def detect_json(head: bytes) -> float:
    """Return 0.95 if the first line is an object with bpftrace's `type` and `data`."""
    for line in head[:65_536].splitlines():
        if line.strip():
            known = re.match(rb'\s*\{"type": ?"(\w{1,30})", ?"data": ?', line)
            names = {name.encode() for name in (*_KNOWN, *_PRINTED, "helper_error")}
            return 0.95 if known and known[1] in names else 0.0
    return 0.0


def read_json(data: bytes, options: Options) -> Reading:
    """Return what `read_text` returns, from JSON lines.

    Raises:
        FormatError: If no line is an object with a map.
    """
    found = _Found()
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, dict[str, Any], source=options.source)
        except FormatError as error:
            reason = f"not an object: {error.reason}"
            found.losses.append(loss(options.source, number, reason, line))
            continue
        reason = _json_record(record, options, found)
        if reason:
            found.losses.append(loss(options.source, number, reason, line))
    if not found.rows:
        first = next((row.line for row in found.losses if row.line), 1)
        raise FormatError(
            "no line is an entry of a map of bpftrace", source=options.source, line=first
        )
    return _reading(JSON, found)


def _json_record(record: dict[str, Any], options: Options, found: _Found) -> str:
    """Take one object; return why it gives no rows, or ""."""
    kind, data = str(record.get("type")), record.get("data")
    if kind in _PRINTED:
        found.printed += 1
        return ""
    if kind == "attached_probes":
        return ""
    if kind == "lost_events":
        count = data.get("events") if isinstance(data, dict) else None
        many = count if isinstance(count, int) and 0 < count < INT64_MAX else 1
        found.losses.append(
            Loss(source=options.source, reason="events that bpftrace lost", count=many)
        )
        return ""
    if kind not in _KNOWN or not isinstance(data, dict):
        return "an object of an unknown type"
    reasons = []
    for name, content in data.items():
        keyed = isinstance(content, dict) and "count" not in content
        entries = content.items() if keyed else [(None, content)]
        reasons += [
            _json_entry(kind, _key(options, name[:65], key), value, found) for key, value in entries
        ]
    return next(filter(None, reasons), "")


def _json_entry(kind: str, key: dict[str, Any], value: Any, found: _Found) -> str:
    if kind in ("hist", "lhist") and isinstance(value, list):
        buckets = []
        for bucket in value:
            if not isinstance(bucket, dict) or not _is_number(bucket.get("count")):
                return "a bucket of a histogram without its count"
            low, high = bucket.get("min"), bucket.get("max")
            above = float(high) + 1 if _is_number(high) else None
            below = float(low) if _is_number(low) else None
            # 0.17 prints the last bucket of a histogram with both bounds in 32 bits.
            if above is not None and below is not None and above <= below:
                above = None
            buckets.append((float(bucket["count"]), below, above))
        found.rows += histogram_rows(buckets, **key)
        return ""
    count, average = (
        (value.get("count"), value.get("average")) if isinstance(value, dict) else (None, None)
    )
    if isinstance(value, dict) and _is_number(count) and _is_number(average):
        total = value.get("total")
        found.rows.append(
            Aggregate(
                **key,
                metric="statistic",
                count=float(count),
                mean=float(average),
                sum=float(total) if _is_number(total) else None,
            )
        )
        return ""
    if not _is_number(value):
        return f"the value of {key['event']} is of an unknown form"
    found.rows.append(Aggregate(**key, metric="value", mean=float(value)))
    return ""


def _is_number(value: object) -> TypeGuard[float]:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) <= 2 * INT64_MAX + 1
    )


FORMAT: Final = Format(
    name=TEXT, title="bpftrace: maps and histograms as text", detect=detect_text, read=read_text
)
FORMAT_JSON: Final = Format(
    name=JSON, title="bpftrace -f json: JSON lines", detect=detect_json, read=read_json
)
