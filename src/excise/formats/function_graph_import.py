"""Import of function graphs, traces of events, and `trace-cmd report`: the formats themselves."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from excise.capture.manifest import Fact
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats import function_graph_rows as rows
from excise.formats.function_graph import FunctionGraph, read_function_graph
from excise.formats.model import Format, Options, Reading

GRAPH: Final = "function-graph"
EVENTS: Final = "ftrace-events"
TRACE_CMD: Final = "trace-cmd"
_TRACER = re.compile(rb"^# tracer: (\S{1,64})", re.MULTILINE)
_CALL = rb"[a-zA-Z_][\w. \[\]]{0,100}\(.{0,200}[;{](?: /\*.{0,200}\*/)?|\}(?: /\*.{0,200}\*/)?"
_GRAPH_LINE = re.compile(
    rb"^ *(?:\d+\.\d{6} \| +)?\d+\) .{0,80}?(?:\|  | ) *(?:" + _CALL + rb")\r?$", re.MULTILINE
)
_BARE_LINE = re.compile(
    rb"^[ +!#*@$]{1,2} *\d+\.?\d* us +\|  *(?:[a-zA-Z_][\w.]{0,100}\(\)[;]|\})", re.MULTILINE
)
_EVENT_LINE = re.compile(
    rb"^ *\S.{0,40}?-\d+ +(?:\( *[\d-]+\) +)?\[\d{3,5}\] +(?:[.\w#]{4,6} +)?\d+(?:\.\d{6,9})?: \S",
    re.MULTILINE,
)
_TRACE_CMD = re.compile(
    rb"\A(?:\s*version = \d+\r?\n)?(?:.{0,80}CPU \d+ is empty\r?\n)*\s*cpus=\d+\r?$", re.M
)
_KERNEL = re.compile(rb"^# \S+ latency trace v\S+ on (\S{1,80})", re.MULTILINE)
_HEAD_BYTES: Final = 16_384
_SURE: Final = 3


def _detect_graph(head: bytes) -> float:
    """Return 0.95 for the header of the tracer, 0.8 for lines that only it prints."""
    head = head[:_HEAD_BYTES]
    tracer = _TRACER.search(head)
    if tracer:
        return 0.95 if tracer[1] == b"function_graph" else 0.0
    if _EVENT_LINE.search(head) or _TRACE_CMD.search(head):
        return 0.0
    found = len(_GRAPH_LINE.findall(head)) + len(_BARE_LINE.findall(head))
    return 0.8 if found >= _SURE else 0.6 if found else 0.0


def _detect_events(head: bytes) -> float:
    """Return 0.9 for the header of another tracer, 0.7 for lines of events without one."""
    head = head[:_HEAD_BYTES]
    tracer = _TRACER.search(head)
    if _TRACE_CMD.search(head) or not _EVENT_LINE.search(head):
        return 0.0
    if tracer:
        return 0.0 if tracer[1] == b"function_graph" else 0.9
    return 0.7


def _detect_trace_cmd(head: bytes) -> float:
    """Return 0.95 where trace-cmd's own first lines stand before lines of events."""
    head = head[:_HEAD_BYTES]
    return 0.95 if _TRACE_CMD.search(head) and _EVENT_LINE.search(head) else 0.0


def _read_graph(data: bytes | Path, options: Options) -> Reading:
    """Return sums by function, path and system call, and one run for each call at the top.

    Raises:
        FormatError: If no line is one of a function graph, or it is a trace of events.
    """
    graph = _graph(data, options)
    if graph.event_lines or not graph.graph_lines:
        raise FormatError(
            "a trace of events, not the text of the function_graph tracer",
            source=options.source,
            line=1,
            hint=f"Read it as {EVENTS} or {TRACE_CMD}",
        )
    return _reading(GRAPH, data, graph, options)


def _read_events(data: bytes | Path, options: Options) -> Reading:
    """Return counts of events, times of system calls and of probed functions.

    Raises:
        FormatError: If no line is one of an event, or it is what trace-cmd prints.
    """
    graph = _graph(data, options)
    if not graph.event_lines or _TRACE_CMD.search(_head(data)):
        raise FormatError("no trace of events of the kernel", source=options.source, line=1)
    return _reading(EVENTS, data, graph, options)


def _read_trace_cmd(data: bytes | Path, options: Options) -> Reading:
    """Return what a trace of events gives, and the functions of function_graph events.

    Raises:
        FormatError: If it does not begin as `trace-cmd report` does, or has no line of an event.
    """
    if not _TRACE_CMD.search(_head(data)):
        raise FormatError(
            "`cpus=`, the first line of trace-cmd report, is missing",
            source=options.source,
            line=1,
            hint=f"The kernel's own text is {EVENTS} or {GRAPH}",
        )
    graph = _graph(data, options)
    if not graph.event_lines:
        raise FormatError("no line of an event", source=options.source, line=1)
    return _reading(TRACE_CMD, data, graph, options)


def _head(data: bytes | Path) -> bytes:
    if isinstance(data, bytes):
        return data[:_HEAD_BYTES]
    with data.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _graph(data: bytes | Path, options: Options) -> FunctionGraph:
    return read_function_graph(data, name=options.source, calls=rows.KEPT_CALLS)


def _reading(name: str, data: bytes | Path, graph: FunctionGraph, options: Options) -> Reading:
    notes = list(graph.notes)
    runs, events, left_out = rows.runs_and_events(graph, options)
    found = rows.aggregates(graph, options, notes)
    if not runs and not found:
        raise FormatError("no function has an end", source=options.source, line=1)
    if left_out:
        notes.append(left_out)
    if graph.ticks:
        notes.append(
            "the trace's clock prints whole numbers (counter, uptime or x86-tsc): its times are "
            "ticks of unknown length"
        )
    kernel = _KERNEL.search(_head(data))
    facts = (
        [Fact(name="kernel.release", value=kernel[1].decode("ascii", "replace"))] if kernel else []
    )
    return Reading(
        format=name,
        runs=runs,
        events=events,
        aggregates=found,
        losses=graph.losses,
        clock=_clock(graph),
        facts=facts,
        notes=notes,
    )


def _clock(graph: FunctionGraph) -> Clock:
    if graph.graph_lines:
        return Clock(name="function_graph, printed in us", resolution_ns=1.0)
    if graph.ticks:
        return Clock(name="trace clock that counts ticks")
    return Clock(name="trace clock, printed in us", resolution_ns=1000.0)


FORMAT: Final = Format(
    name=GRAPH,
    title="function_graph text of the kernel's tracer, every layout",
    detect=_detect_graph,
    read=_read_graph,
    read_path=_read_graph,
)
FORMAT_EVENTS: Final = Format(
    name=EVENTS,
    title="events of the kernel's tracer (trace, trace_pipe), and its function tracer",
    detect=_detect_events,
    read=_read_events,
    read_path=_read_events,
)
FORMAT_TRACE_CMD: Final = Format(
    name=TRACE_CMD,
    title="trace-cmd report: events and functions",
    detect=_detect_trace_cmd,
    read=_read_trace_cmd,
    read_path=_read_trace_cmd,
)
