"""function_graph text and traces of events: what each function took, by task and system call.

The text is read natively in one pass; memory follows the number of functions and tasks, not the
length of the trace. `function_graph_import` makes a capture's rows of it.

Durations hold the tracer's own cost for each traced function that was called inside. Three parts
of a call are told apart where the trace shows them:

- *self*: its duration less those of the traced functions it called (what stays unattributed);
- *interrupt*: hardware interrupts that were served meanwhile;
- *off CPU*: time in the scheduler, or after a change of task, while others ran.

A *net* duration has neither interrupts nor other tasks: minimum, maximum and histogram are net.

Source: kernel/trace/trace_functions_graph.c, Documentation/trace/ftrace.rst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from excise import _core
from excise.capture.journal import Loss
from excise.errors import FormatError
from excise.formats.text import clip, merged_losses
from excise.formats.trace_syscalls import MACHINES, syscall_name
from excise.units import counted

if TYPE_CHECKING:
    import polars as pl

NO_SYSCALL: Final = ""
"""Outside of every system call that the trace shows."""
IN_INTERRUPT: Final = "(interrupt)"
"""In a hardware interrupt: of no system call, whatever it interrupted."""
_NO_SYSCALL, _IN_INTERRUPT = -1, -2
_SEEN: Final = ("whole", "beginning", "end")
_SUMS: Final = (
    *("calls", "timed", "total_ns", "self_ns", "interrupt_ns", "off_cpu_ns", "disturbed"),
    *("lossy", "min_ns", "max_ns"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionGraph:
    """What a function graph holds. Every table can be merged by summing over its keys.

    Attributes:
        source: Name of the input.
        functions: One row for each `task`, `cpu`, `syscall` and `function`: `calls` that ended,
            `timed` of them with a duration, `total_ns`, `self_ns`, `interrupt_ns`, `off_cpu_ns`,
            `disturbed` (calls with an interrupt or another task inside), `lossy` (whose self time
            may hold lost functions), `min_ns` and `max_ns` (net; null without a duration), and
            `ends`, `ends_total_ns`, `ends_self_ns` for calls of which only the end was seen.
            `task` is `comm-pid`, null where the trace does not tell; so is `cpu`.
        histogram: Net durations: `row` of `functions`, `from_ns` to below `to_ns`, `count`. A
            bucket is at most 3.2 % wide; buckets are the same in every trace.
        syscalls: One row for each `task`, `cpu` and `syscall`: `entered`, and `timed`, `total_ns`,
            `min_ns`, `max_ns` where both times are known.
        paths: The call tree, summed up: `parent` row (null at the top), `depth`, `syscall`,
            `function`, and the same sums as `functions`. A parent stands before its children.
        calls: Single calls in the order they began, at most as many as asked for: `parent` row,
            `depth`, `function`, `task`, `cpu`, `syscall`, `line`, `time_ns` (of that line),
            `duration_ns`, `self_ns`, `interrupt_ns`, `off_cpu_ns`, `switched` (another task ran, or
            an interrupt for a time that is not known), `lossy`, `seen`
            (`whole`, `beginning` or `end`), `extra` (arguments, return value, call site).
        callers: `function`, `caller` and `calls`, by where probes return to and what the function
            tracer says.
        events: Events printed among the functions, by name.
        lost: CPU, events lost and gaps, as the ring buffer declares them.
        losses: Everything that could not be used, as rows of a report.
        lines: Lines of the input.
        bytes: Bytes of the input.
        begun: Calls whose beginning was seen.
        called: Calls that the function tracer told of, which have no duration.
        graph_lines: Lines with a function of a graph.
        event_lines: Lines of a trace of events.
        ticks: Whether times are ticks of a clock that prints whole numbers: everything called
            `_ns` is in these ticks then, but durations that function_graph printed.
        start_ns: First time in the trace, or None without times.
        end_ns: Last.
        calls_left_out: Calls that `calls` has no row for.
        raw_syscalls: Whether `raw_syscalls` events tell which system call a task is in.
        machine: Whose numbers of system calls were used.
        notes: What a reader must know.
    """

    source: str
    functions: pl.DataFrame
    histogram: pl.DataFrame
    syscalls: pl.DataFrame
    paths: pl.DataFrame
    calls: pl.DataFrame
    callers: pl.DataFrame
    events: Mapping[str, int]
    lost: tuple[tuple[int, int, int], ...]
    losses: tuple[Loss, ...]
    lines: int
    bytes: int
    begun: int
    called: int
    graph_lines: int
    event_lines: int
    ticks: bool
    start_ns: int | None
    end_ns: int | None
    calls_left_out: int
    raw_syscalls: bool
    machine: str
    notes: tuple[str, ...] = ()

    def by(self, *keys: str) -> pl.DataFrame:
        """Return the functions merged over all keys but these, with quantiles.

        Args:
            *keys: Of `task`, `cpu`, `syscall`, `function`; `function` alone by default.

        Returns:
            The keys, the sums, `mean_ns` (of durations), and of net durations `min_ns`,
            `median_ns`, `p99_ns`, `max_ns`; largest `total_ns` first. Quantiles are right to half
            a bucket (1.6 %), and exact where a bucket's values are all the least or largest.
        """
        from excise.formats import function_graph_tables as tables

        return tables.merged(self.functions, self.histogram, keys or ("function",))

    def buckets(self, *keys: str) -> pl.DataFrame:
        """Return the histogram merged by these keys: the keys, `from_ns`, `to_ns`, `count`."""
        from excise.formats import function_graph_tables as tables

        return tables.merged_buckets(self.functions, self.histogram, keys or ("function",))


def read_function_graph(
    source: bytes | Path | BinaryIO,
    *,
    name: str | None = None,
    calls: int = 0,
    paths: bool = True,
    machine: str | None = None,
) -> FunctionGraph:
    """Return what a function graph holds, in any layout that a kernel prints.

    Traces of events (`trace`, `trace_pipe`, `trace-cmd report`) are read by the same rules: events
    are counted, system calls timed, probes of a function's beginning and end make calls of it.

    `raw_syscalls` and `syscalls` events among the functions, and functions such as
    `__x64_sys_openat`, tell which system call each function belongs to.

    Args:
        source: The text: bytes, a file's path, or an open binary file. A path is read in pieces.
        name: Name for errors and losses; the path by default.
        calls: How many single calls to keep.
        paths: Whether to sum up by path (the call tree).
        machine: Whose system call numbers it has, such as `x86_64` or `aarch64`; by default what
            its functions tell, else x86_64.

    Raises:
        FormatError: If no line is one of a function graph, or the file cannot be read.
    """
    shown = name or (str(source) if isinstance(source, Path) else "-")
    given: bytes | str
    if isinstance(source, Path):
        given = str(source)
    else:
        given = source if isinstance(source, bytes) else source.read()
    try:
        found = _core.function_graph_read(given, calls=calls, paths=paths)
    except OSError as error:
        raise FormatError(error.strerror or str(error), source=shown) from error
    seen = found["begun"] or found["called"] or found["functions"]["name"]
    if not (seen or found["events"]):
        first = found["shown"][0][0] if found["shown"] else None
        raise FormatError(
            "no line is one of a function graph, or of a trace of events",
            source=shown,
            line=first or 1,
            hint="It is the text that a tracer of the kernel prints to `trace` or `trace_pipe`",
        )
    return _graph(found, source=shown, machine=machine)


def _graph(found: dict[str, Any], *, source: str, machine: str | None) -> FunctionGraph:
    from excise.formats import function_graph_tables as tables

    names: list[str] = found["names"]
    machine = machine or _machine(names)
    named: int = found["named_syscall"]

    def syscall(number: int) -> str:
        if number <= named:
            return names[named - number]
        if number == _IN_INTERRUPT:
            return IN_INTERRUPT
        return NO_SYSCALL if number == _NO_SYSCALL else syscall_name(number, machine=machine)

    built = tables.build(found, names=names, syscall=syscall, seen=_SEEN, sums=_SUMS)
    times = found["times"]
    return FunctionGraph(
        source=source,
        functions=built["functions"],
        histogram=built["histogram"],
        syscalls=built["syscalls"],
        paths=built["paths"],
        calls=built["calls"],
        callers=built["callers"],
        events=found["events"],
        lost=tuple(found["lost"]),
        losses=tuple(_losses(found, source)),
        lines=found["lines"],
        bytes=found["bytes"],
        begun=found["begun"],
        called=found["called"],
        graph_lines=found["function_lines"],
        event_lines=found["event_lines"],
        ticks=found["ticks"],
        start_ns=times[0] if times else None,
        end_ns=times[1] if times else None,
        calls_left_out=found["calls_left_out"],
        raw_syscalls=found["raw_syscalls"],
        machine=machine,
        notes=tuple(_notes(found)),
    )


def _machine(names: list[str]) -> str:
    """Return whose system call numbers a trace has, by the functions in it."""
    for name in names:
        if name.startswith(("__arm64_", "gic_", "el0_", "el1_")):
            return "aarch64"
        if name.startswith("__riscv_"):
            return "riscv64"
    return MACHINES[0]


def _notes(found: dict[str, Any]) -> list[str]:
    notes = []
    if not found["with_cpu"] and not found["with_task"] and found["function_lines"]:
        notes.append(
            "the lines name neither CPU nor task: functions of several CPUs would be taken for one"
        )
    if found["negative"]:
        notes.append(
            f"{counted(found['negative'], 'call')} took less than the functions they called: "
            "something "
            "between was lost, and their self time counts as 0"
        )
    return notes


def _losses(found: dict[str, Any], source: str) -> list[Loss]:
    shown: dict[str, int] = {}
    losses = []
    for line, reason, text in found["shown"]:
        losses.append(Loss(source=source, line=line, reason=reason, text=clip(text)))
        shown[reason] = shown.get(reason, 0) + 1
    for reason, count in found["faults"]:
        if count > shown.get(reason, 0):
            more = count - shown.get(reason, 0)
            losses.append(Loss(source=source, reason=reason, count=more))
    losses = merged_losses(losses)
    for cpu, events, gaps in found["lost"]:
        reason = (
            f"events of CPU {cpu} that the ring buffer could not keep, in {counted(gaps, 'gap')}"
        )
        losses.append(Loss(source=source, reason=reason, count=events))
    for key, reason in (
        ("overwritten", "events that were overwritten before the trace was read"),
        ("overruns", "functions that the return stack had no room for"),
        ("unclosed", "functions whose end is not in the trace"),
        ("lone_returns", "ends of probed functions whose beginning is not in the trace"),
        ("unparsed", "events that trace-cmd could not parse"),
        ("no_room", "calls, paths or events beyond the room of a table"),
    ):
        if found[key]:
            losses.append(Loss(source=source, reason=reason, count=found[key]))
    return losses
