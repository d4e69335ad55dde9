"""The kernel's function_graph tracer around a workload in a guest: how a TPM command is spent.

The tracer is set up through tracefs by the guest's shell, so that nothing but busybox is needed.
What was traced comes back as the kernel printed it, with the ring buffer's own counts of what was
lost.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

from excise.errors import EffectError
from excise.lab.plan import Step
from excise.lab.result import GuestResult

SET_UP: Final = "trace set-up"
TRACED: Final = "traced"
TRACE: Final = "trace"
STATISTICS: Final = "trace statistics"
_TRACEFS: Final = "/sys/kernel/tracing"
_LOST = re.compile(r"^(overrun|dropped events): (\d+)$", re.MULTILINE)
# `trace_options` of function_graph that take one line's columns apart; absent in older kernels.
_SET_UP_SHELL: Final = """\
set -e
cd {tracefs} 2>/dev/null && [ -e trace ] || mount -t tracefs tracefs {tracefs}
cd {tracefs}
echo 0 >tracing_on
echo nop >current_tracer
echo {buffer_kib} >buffer_size_kb
echo {clock} >trace_clock
echo >set_ftrace_filter
for function in {filters}; do echo "$function" >>set_ftrace_filter; done
echo >set_graph_function
for function in {roots}; do
    # A name that cannot be traced leaves the list empty, and then everything is traced.
    grep -qwF "$function" available_filter_functions || {{
        echo "the kernel cannot trace $function" >&2
        exit 1
    }}
    echo "$function" >>set_graph_function
done
echo {depth} >max_graph_depth
echo function_graph >current_tracer
for option in {options}; do
    echo "$option" >trace_options || {{
        echo "the kernel has no option $option" >&2
        exit 1
    }}
done
cat current_tracer
tr ' ' '\\n' <trace_clock | grep '^[[]'
grep -h . set_graph_function
"""
_TRACED_SHELL: Final = """\
echo >{tracefs}/trace
echo 1 >{tracefs}/tracing_on
{command}
code=$?
echo 0 >{tracefs}/tracing_on
exit $code
"""
_STATISTICS_SHELL: Final = 'for f in {tracefs}/per_cpu/cpu*/stats; do echo "$f"; cat "$f"; done'


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTrace:
    """What to trace.

    Attributes:
        roots: Functions whose calls are traced with everything below them.
        functions: Patterns of the functions that are recorded; all if empty.
        options: Words for `trace_options`, such as `funcgraph-abstime`.
        depth: Levels below a root; 0 for all.
        buffer_kib: Size of each processor's ring buffer, in KiB.
        clock: Name in `trace_clock`.
    """

    roots: tuple[str, ...] = ("tpm2_pcr_extend",)
    functions: tuple[str, ...] = ("tpm*", "crb_*")
    options: tuple[str, ...] = ()
    depth: int = 0
    buffer_kib: int = 8192
    clock: str = "mono"

    def around(self, command: str) -> tuple[Step, ...]:
        """Return the steps that trace a shell command and bring back the trace."""
        set_up = _SET_UP_SHELL.format(
            tracefs=_TRACEFS,
            buffer_kib=self.buffer_kib,
            clock=shlex.quote(self.clock),
            filters=shlex.join(self.functions),
            roots=shlex.join(self.roots),
            options=shlex.join(self.options),
            depth=self.depth,
        )
        shells = {
            SET_UP: set_up,
            TRACED: _TRACED_SHELL.format(tracefs=_TRACEFS, command=command),
            TRACE: f"cat {_TRACEFS}/trace",
            STATISTICS: _STATISTICS_SHELL.format(tracefs=_TRACEFS),
        }
        return tuple(Step(task=name, command=("sh", "-c", text)) for name, text in shells.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceText:
    """A trace as the kernel printed it.

    Attributes:
        text: The content of tracefs' `trace`.
        set_up: Tracer, clocks and roots as the kernel listed them afterwards.
        lost: Events that the ring buffers overwrote or dropped.
    """

    text: bytes
    set_up: str
    lost: int


def trace_of(result: GuestResult) -> TraceText:
    """Return the trace that a guest with a tracing plan brought back.

    Raises:
        EffectError: If nothing was traced: the result would look like a workload without calls.
    """
    outputs = {step.step.task: step.stdout for step in result.steps}
    text = outputs.get(TRACE, b"")
    if not any(line and not line.startswith(b"#") for line in text.splitlines()):
        raise EffectError(
            "the trace is empty: none of its functions was called, or the tracer was not set up",
            source=result.configuration,
        )
    statistics = outputs.get(STATISTICS, b"").decode("utf-8", "replace")
    return TraceText(
        text=text,
        set_up=outputs.get(SET_UP, b"").decode("utf-8", "replace"),
        lost=sum(int(number) for _, number in _LOST.findall(statistics)),
    )
