"""perf stat's three outputs: fields (`-x`), JSON lines (`-j`) and text.

The order of fields is that of the program, not of its manual page:
[time][aggregate][cpus]value,unit,event[,variance],run time,per cent running[,metric,unit].

Source: tools/perf/util/stat-display.c, 6.1 to 6.12.
"""

from __future__ import annotations

import re
from typing import Any, Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.json_text import parse_json
from excise.formats.model import Format, Options, Reading
from excise.formats.text import lines, loss, merged_losses
from excise.formats.trace_rows import key_of, label

CSV: Final = "perf-stat-csv"
JSON: Final = "perf-stat-json"
TEXT: Final = "perf-stat"
COUNTER: Final = "counter"
_LONGEST: Final = 2000
_NUMBER: Final = r"\d{1,20}(?:[.,]\d{1,9})?"
_NS_PER: Final = {"msec": 1e6, "ns": 1.0, "usec": 1e3, "s": 1e9, "sec": 1e9, "seconds": 1e9}
_ABSENT: Final = ("<not counted>", "<not supported>")
_AGGREGATE: Final = r"CPU\d+|S\d+(?:-D\d+)?(?:-(?:C|L\d+-ID)\d+)?|D\d+|N\d+|[^;,|\t]{1,40}-\d+"
_KINDS: Final = ("cpu", "socket", "die", "core", "cluster", "cache", "node", "thread", "cgroup")


def _csv_line(separator: str) -> re.Pattern[str]:
    sep = re.escape(separator)
    number = _NUMBER if separator != "," else r"\d{1,20}(?:\.\d{1,9})?"
    return re.compile(
        rf"(?:\s*(?P<time>{number}){sep})?"
        rf"(?:(?P<aggregate>{_AGGREGATE}){sep}(?:(?P<cpus>\d+){sep})?)?"
        rf"\s*(?P<value>{number}|<not counted>|<not supported>){sep}"
        rf"(?P<unit>[A-Za-z%/]{{0,20}}){sep}"
        rf"(?P<event>[^\s\d{sep}].{{0,300}}?)(?:{sep}(?P<variance>{number})%)?"
        rf"{sep}(?P<runtime>\d+){sep}(?P<percent>{number})(?:{sep}.{{0,200}})?"
    )


_SEPARATORS: Final = {sep: _csv_line(sep) for sep in (",", ";", "|", "\t", ":")}
_METRIC_ONLY = re.compile(r"[\s;,|\t:]{2,}(?P<value>[\d.]+)?[;,|\t:](?P<unit>.{1,100})")
_TEXT_VALUE = re.compile(
    r"\s*(?P<value>[\d.,  ]{1,30}|<not counted>|<not supported>)\s+"
    r"(?:(?P<unit>msec|ns|Bytes|Joules|MiB)\s+)?"
    r"(?P<event>[A-Za-z_][^\s#]{0,100}(?: [^\s#]+)?)\s*(?:#\s*(?P<metric>.{0,100}?))?"
    rf"(?:\(\s*\+-\s*(?P<variance>{_NUMBER})%\s*\))?\s*(?:\((?P<percent>{_NUMBER})%\))?\s*"
)
_TEXT_TIME = re.compile(
    rf"\s*(?P<value>[\d.,]{{1,30}})\s+(?:\+-\s+(?P<spread>{_NUMBER})\s+)?"
    rf"seconds (?P<what>time elapsed|user|sys)\s*(?:\(\s*\+-\s*(?P<variance>{_NUMBER})%\s*\))?\s*"
)
_TEXT_HEAD = re.compile(r"\s*Performance counter stats for (?P<what>.{1,300}):\s*")
_RUNS = re.compile(r"'(?P<command>.*)'\s*\((?P<runs>\d+) runs\)")


def _row(
    options: Options,
    *,
    event: str,
    value: float,
    unit: str,
    labels: list[str],
    notes: list[str],
    count: float | None = None,
    task: str = "",
) -> Aggregate:
    """Return the row of a counter; times become nanoseconds."""
    factor = _NS_PER.get(unit)
    return Aggregate(
        **key_of(options, task=task or "command"),
        layer=COUNTER,
        event=event,
        metric="duration" if factor else "count",
        unit="ns" if factor else (unit or "1"),
        labels=",".join(sorted(labels)),
        count=count,
        mean=value * (factor or 1.0),
        note="; ".join(notes),
    )


def _notes(variance: str | None, percent: str | None) -> list[str]:
    notes = []
    if variance:
        notes.append(f"standard error of the mean {_float(variance):g} %")
    if percent and _float(percent) < 100.0:
        notes.append(f"counted {_float(percent):g} % of the time and scaled up")
    return notes


def _float(text: str) -> float:
    return float(text.replace(",", "."))


def _absent(what: str) -> str:
    return "was not counted" if "counted" in what else "is not supported here"


# --- fields -------------------------------------------------------------------------------------


def _separator(text: list[str]) -> str | None:
    """Return the sign that parts the fields of most lines, or None."""
    best, most = None, 0
    for sep, pattern in _SEPARATORS.items():
        found = sum(bool(pattern.fullmatch(line)) for line in text[:200] if len(line) <= _LONGEST)
        if found > most:
            best, most = sep, found
    return best


def detect_csv(head: bytes) -> float:
    """Return 0.9 if most lines have the fields of `perf stat -x`, else 0.0."""
    text = [line for line in lines(head[:8192]) if line.strip() and not line.startswith("#")]
    separator = _separator(text)
    if separator is None:
        return 0.0
    found = sum(bool(_SEPARATORS[separator].fullmatch(line[:_LONGEST])) for line in text)
    return 0.9 if found * 2 > len(text) else 0.0


def read_csv(data: bytes, options: Options) -> Reading:
    """Return one row for each line with a count.

    Raises:
        FormatError: If no line has the fields.
    """
    text = lines(data)
    separator = _separator([line for line in text if line.strip()])
    if separator is None:
        raise FormatError("no line has the fields of perf stat -x", source=options.source, line=1)
    pattern = _SEPARATORS[separator]
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    for number, line in enumerate(text, start=1):
        match = pattern.fullmatch(line) if len(line) <= _LONGEST else None
        if match is None:
            if line.strip() and not line.startswith("#") and not _METRIC_ONLY.fullmatch(line[:300]):
                losses.append(loss(options.source, number, "not a line of fields", line))
            continue
        event = match["event"]
        if match["value"] in _ABSENT:
            reason = f"{event} {_absent(match['value'])}"
            losses.append(loss(options.source, number, reason, line))
            continue
        labels = [label("aggregate", match["aggregate"])] if match["aggregate"] else []
        if match["cpus"]:
            labels.append(f"cpus={match['cpus']}")
        if match["time"]:
            labels.append(f"time_s={_float(match['time']):.9g}")
        rows.append(
            _row(
                options,
                event=event,
                value=_float(match["value"]),
                unit=match["unit"],
                labels=labels,
                notes=_notes(match["variance"], match["percent"]),
            )
        )
    return _reading(CSV, rows, losses, options)


def _reading(name: str, rows: list[Aggregate], losses: list[Loss], options: Options) -> Reading:
    if not rows:
        first = losses[0].line if losses else 1
        raise FormatError("no counter has a value", source=options.source, line=first)
    return Reading(
        format=name,
        aggregates=rows,
        losses=merged_losses(losses),
        clock=Clock(name="perf stat"),
    )


# --- JSON ---------------------------------------------------------------------------------------


def detect_json(head: bytes) -> float:
    """Return 0.95 if the first line that is no comment is an object with a counter."""
    for line in head[:8192].splitlines():
        if line.strip() and not line.startswith(b"#"):
            known = line.lstrip().startswith(b"{") and b'"event"' in line
            return (
                0.95
                if known and (b'"counter-value"' in line or b'"event-runtime"' in line)
                else 0.0
            )
    return 0.0


def read_json(data: bytes, options: Options) -> Reading:
    """Return one row for each object with a count.

    Raises:
        FormatError: If no line is an object with a counter's value.
    """
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            found = parse_json(line, dict[str, Any], source=options.source)
        except FormatError as error:
            losses.append(loss(options.source, number, f"not an object: {error.reason}", line))
            continue
        reason = _json_row(found, options, rows)
        if reason:
            losses.append(loss(options.source, number, reason, line))
    return _reading(JSON, rows, losses, options)


def _json_row(found: dict[str, Any], options: Options, rows: list[Aggregate]) -> str:
    """Append the row of an object; return why it has none, or ""."""
    event, value = found.get("event"), str(found.get("counter-value", ""))
    if not isinstance(event, str) or not event or len(event) > 300:
        return "an object without the name of an event"
    if value in _ABSENT:
        return f"{event} {_absent(value)}"
    if not re.fullmatch(_NUMBER, value):
        return f"the value of {event} is no number"
    labels = [label(kind, str(found[kind])[:60]) for kind in _KINDS if kind in found]
    time = found.get("interval", found.get("timestamp"))
    if isinstance(time, int | float):
        labels.append(f"time_s={time:.9g}")
    percent, variance = found.get("pcnt-running"), found.get("variance")
    rows.append(
        _row(
            options,
            event=event,
            value=_float(value),
            unit=str(found.get("unit", ""))[:20],
            labels=labels,
            notes=_notes(
                str(variance) if isinstance(variance, int | float) else None,
                str(percent) if isinstance(percent, int | float) else None,
            ),
        )
    )
    return ""


# --- text ---------------------------------------------------------------------------------------


def detect_text(head: bytes) -> float:
    """Return 0.95 for perf stat's heading, which may follow the program's own output."""
    return 0.95 if b"Performance counter stats for " in head else 0.0


def read_text(data: bytes, options: Options) -> Reading:
    """Return one row for each counter and for elapsed, user and system time.

    Raises:
        FormatError: If the heading is missing, or nothing is counted under it.
    """
    rows: list[Aggregate] = []
    losses: list[Loss] = []
    task, runs = "", None
    headed = False
    for number, line in enumerate(lines(data), start=1):
        if len(line) > _LONGEST or not line.strip():
            continue
        if head := _TEXT_HEAD.fullmatch(line):
            headed = True
            with_runs = _RUNS.fullmatch(head["what"])
            runs = float(with_runs["runs"]) if with_runs else None
            task = with_runs["command"] if with_runs else head["what"].strip("'")
            continue
        if headed:
            reason = _text_row(line, options, rows, task=task, runs=runs)
            if reason:
                losses.append(loss(options.source, number, reason, line))
    if not headed:
        raise FormatError("perf stat's heading is missing", source=options.source, line=1)
    return _reading(TEXT, rows, losses, options)


def _text_row(
    line: str, options: Options, rows: list[Aggregate], *, task: str, runs: float | None
) -> str:
    """Append the row of a line; return why it has none, or ""."""
    time = _TEXT_TIME.fullmatch(line)
    match = time or _TEXT_VALUE.fullmatch(line)
    if match is None:
        return "not a line of perf stat"
    event = match["what"] if time else match["event"].strip()
    if match["value"] in _ABSENT:
        return f"{event} {_absent(match['value'])}"
    value = _text_number(match["value"], fraction=bool(time) or match["unit"] is not None)
    if value is None:
        return "not a line of perf stat"
    spread = time["spread"] if time else None
    notes = _notes(match["variance"], None if time else match["percent"])
    if spread:
        notes.append(f"standard error {_float(spread):g} s")
    unit = "seconds" if time else (match["unit"] or "")
    rows.append(
        _row(
            options,
            event=event,
            value=value,
            unit=unit,
            labels=[],
            notes=notes,
            count=runs,
            task=task,
        )
    )
    return ""


def _text_number(text: str, *, fraction: bool) -> float | None:
    """Return a number with thousands parted in any way; the last sign parts a fraction."""
    digits = re.sub(r"[  ]", "", text.strip())
    if fraction:
        whole, sign, part = digits.rpartition("." if "." in digits else ",")
        digits = re.sub(r"[.,]", "", whole) + ("." if sign else "") + part
    else:
        digits = re.sub(r"[.,]", "", digits)
    return float(digits) if re.fullmatch(r"\d{1,20}(?:\.\d{1,9})?", digits) else None


FORMAT_CSV: Final = Format(name=CSV, title="perf stat -x: fields", detect=detect_csv, read=read_csv)
FORMAT_JSON: Final = Format(
    name=JSON, title="perf stat -j: JSON lines", detect=detect_json, read=read_json
)
FORMAT: Final = Format(name=TEXT, title="perf stat: text", detect=detect_text, read=read_text)
