"""Every known foreign format."""

from __future__ import annotations

from typing import Final

from excise.formats import (
    bcc_histogram,
    bpftrace,
    callgrind,
    dmesg,
    ftrace_counts,
    function_graph_import,
    hyperfine,
    lsmpmon,
    perf_script,
    perf_stat,
    perf_trace,
    pyperf,
    ra_perf,
    systemd_analyze,
    systemd_plot,
    systemd_show,
    time_gnu,
    time_shell,
)
from excise.formats.registry import Format

FORMATS: Final[tuple[Format, ...]] = (
    ra_perf.FORMAT,
    lsmpmon.FORMAT,
    time_gnu.FORMAT_V,
    time_gnu.FORMAT,
    time_shell.FORMAT,
    hyperfine.FORMAT,
    pyperf.FORMAT,
    systemd_analyze.FORMAT,
    systemd_show.FORMAT,
    systemd_plot.FORMAT,
    dmesg.FORMAT,
    function_graph_import.FORMAT,
    function_graph_import.FORMAT_EVENTS,
    function_graph_import.FORMAT_TRACE_CMD,
    ftrace_counts.FORMAT,
    ftrace_counts.FORMAT_HIST,
    ftrace_counts.FORMAT_PROFILE,
    ftrace_counts.FORMAT_BUFFERS,
    perf_trace.FORMAT,
    perf_stat.FORMAT,
    perf_stat.FORMAT_CSV,
    perf_stat.FORMAT_JSON,
    perf_script.FORMAT,
    bpftrace.FORMAT,
    bpftrace.FORMAT_JSON,
    bcc_histogram.FORMAT,
    callgrind.FORMAT,
)
