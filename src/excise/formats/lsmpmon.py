"""LSMPMON's result file: for each LSM hook its minimum, maximum and mean time, and its calls.

The columns are hook, min, max, ave, count, in cycles of the time stamp counter. The file names
neither configuration nor task nor clock: options give them, or lines such as
`# configuration: SELinux`, `# task: stat` and `# clock_hz: 3e9`, which also begin a new table; a
line such as `# lost: events of CPU 1` says what whoever made it has lost.

Source: the sample output of the LSMPMON paper (Matsuda, Tabata, Munetoh).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from excise.capture.journal import Aggregate, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.text import INT64_MAX, lines, loss, merged_losses

NAME: Final = "lsmpmon"
DEFAULT_TASK: Final = "workload"
_ROW = re.compile(
    r"\s*(?P<hook>[a-z][a-z0-9_]{1,63})[\s|,]+(?P<min>\d{1,20})[\s|,]+(?P<max>\d{1,20})[\s|,]+"
    r"(?P<mean>\d{1,20}(?:\.\d{1,9})?)[\s|,]+(?P<count>\d{1,20})\s*"
)
_HEADER = re.compile(r"\s*(?:hook|name)\w*[\s|,]+min\w*[\s|,]+max\w*[\s|,]+(?:ave|mean).*", re.I)
_SETTING = re.compile(r"#\s*(configuration|task|clock_hz)\s*[:=]\s*(.{1,200}?)\s*")
_LOST = re.compile(r"#\s*lost\s*[:=]\s*(.{1,300}?)\s*")
_LONGEST_LINE: Final = 1000
_ROWS_FOR_CERTAINTY: Final = 2


@dataclass(slots=True)
class _Table:
    """What the rows that follow belong to."""

    configuration: str
    task: str
    clock_hz: float | None


def detect(head: bytes) -> float:
    """Return 0.9 for two rows with min <= ave <= max and a header or LSM hook, less for one."""
    text = [line for line in lines(head) if len(line) <= _LONGEST_LINE]
    rows = [row for line in text if (row := _ROW.fullmatch(line))]
    if not rows or not all(_ordered(row) or row["count"] == "0" for row in rows):
        return 0.0
    others = [
        line
        for line in text
        if line.strip() and not _ROW.fullmatch(line) and not line.startswith("#")
    ]
    headed = any(_HEADER.fullmatch(line) for line in others)
    if len(others) - headed > len(rows):
        return 0.0
    return 0.9 if headed or len(rows) >= _ROWS_FOR_CERTAINTY else 0.5


def _ordered(row: re.Match[str]) -> bool:
    # The mean is printed rounded down, so it may be just below the minimum.
    return int(row["min"]) <= float(row["mean"]) + 1 and float(row["mean"]) <= int(row["max"])


def read(data: bytes, options: Options) -> Reading:
    """Return one aggregate for each hook, in nanoseconds where the clock is known, else cycles.

    Raises:
        FormatError: If there is no row.
    """
    table = _Table(
        options.configuration or DEFAULT_CONFIGURATION, options.task or DEFAULT_TASK, None
    )
    rows: dict[tuple[str, str, str], Aggregate] = {}
    losses: list[Loss] = []
    clocks: dict[float | None, Clock] = {}
    for number, line in enumerate(lines(data), start=1):
        row = _ROW.fullmatch(line) if len(line) <= _LONGEST_LINE else None
        if row is not None:
            hz = options.clock_hz or table.clock_hz
            clocks.setdefault(hz, _clock(hz))
            reason = _take(rows, row, table, hz)
        else:
            reason = _not_a_row(line, table, options)
        if reason:
            losses.append(loss(options.source, number, reason, line))
    if not rows:
        first = losses[0].line if losses else 1
        raise FormatError(
            "there is no row of hook, min, max, ave and count", source=options.source, line=first
        )
    notes = [] if None not in clocks else ["values are cycles: give the clock to get nanoseconds"]
    found = list(clocks.values())
    return Reading(
        format=NAME,
        aggregates=list(rows.values()),
        losses=merged_losses(losses),
        clock=found[0],
        clocks=found[1:],
        notes=notes,
    )


def _clock(hz: float | None) -> Clock:
    if hz is None:
        return Clock(name="TSC of unknown frequency")
    return Clock(name=f"TSC at {hz:g} Hz", resolution_ns=1e9 / hz)


def _take(
    rows: dict[tuple[str, str, str], Aggregate],
    row: re.Match[str],
    table: _Table,
    hz: float | None,
) -> str:
    """Add a row; return why it cannot be used, or ""."""
    key = (table.task, table.configuration, row["hook"])
    if key in rows:
        return f"a second row for {row['hook']} in one table"
    numbers = [int(row["min"]), int(row["max"]), int(row["count"])]
    if max(numbers) > INT64_MAX or float(row["mean"]) > INT64_MAX:
        return "a number does not fit in 64 bits"
    factor = 1.0 if hz is None else 1e9 / hz
    called = numbers[2] > 0
    note = "" if called else "never called"
    if called and not _ordered(row):
        note = "min, ave and max are not in order in the source"
    rows[key] = Aggregate(
        task=table.task,
        configuration=table.configuration,
        layer="hook",
        event=row["hook"],
        metric="duration",
        unit="cycles" if hz is None else "ns",
        count=float(numbers[2]),
        min=numbers[0] * factor if called else None,
        mean=float(row["mean"]) * factor if called else None,
        max=numbers[1] * factor if called else None,
        note=note,
    )
    return ""


def _not_a_row(line: str, table: _Table, options: Options) -> str:
    """Take a setting or header line; return why any other line is lost, or ""."""
    if not line.strip() or _HEADER.fullmatch(line[:_LONGEST_LINE]):
        return ""
    lost = _LOST.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if lost is not None:
        return f"lost before: {lost[1]}"
    setting = _SETTING.fullmatch(line) if len(line) <= _LONGEST_LINE else None
    if setting is None:
        return "" if line.startswith("#") else "not a row of hook, min, max, ave and count"
    name, text = setting[1], setting[2]
    if name == "clock_hz":
        try:
            hz = float(text)
        except ValueError:
            hz = math.nan
        if not (math.isfinite(hz) and 1.0 <= hz <= 1e12):
            return "clock_hz is no frequency between 1 Hz and 1 THz"
        table.clock_hz = hz
    elif name == "task":
        table.task = options.task or text
    else:
        table.configuration = options.configuration or text
    return ""


FORMAT: Final = Format(
    name=NAME, title="LSMPMON result table (hook, min, max, ave, count)", detect=detect, read=read
)
