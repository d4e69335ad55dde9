"""One input for each format of traces and profiles, as its program prints it."""

from __future__ import annotations

FUNCTION_GRAPH = (
    "# tracer: function_graph\n#\n# CPU  DURATION                  FUNCTION CALLS\n"
    "# |     |   |                     |   |   |   |\n"
    " 0)               |  /* sys_enter: NR 257 (ffffff9c, 13bd0950, 241, 1b6, 0, 0) */\n"
    " 0)               |  do_sys_openat2() {\n"
    " 0)               |    security_inode_permission() {\n"
    " 0)   0.500 us    |      selinux_inode_permission();\n"
    " 0)   0.900 us    |    }\n"
    " 0)               |    security_file_open() {\n"
    " 0)   1.000 us    |      selinux_file_open();\n"
    " 0)   1.700 us    |    }\n"
    " 0) + 12.000 us   |  }\n"
    " 0)               |  /* sys_exit: NR 257 = 3 */\n"
)
FTRACE_EVENTS = (
    "# tracer: nop\n#\n# entries-in-buffer/entries-written: 4/6   #P:2\n#\n"
    "#           TASK-PID     CPU#  |||||  TIMESTAMP  FUNCTION\n"
    "            init-1       [001] .....    52.533875: sys_enter: NR 33 (b, 1, 13, 9, 7, 1)\n"
    "            init-1       [001] .....    52.533911: sys_exit: NR 33 = 1\n"
    "            init-1       [001] .....    85.432467: k_open: (security_file_open+0x0/0x50)\n"
    "            init-1       [001] .....    85.432517: k_openr: (do_dentry_open+0xf8/0x410 <- "
    "security_file_open) ret=0\n"
)
TRACE_CMD = (
    "version = 6\nCPU 3 is empty\ncpus=6\n"
    "           cat-77    [001]  6550.018805: funcgraph_entry:                   |  vfs_open() {\n"
    "           cat-77    [001]  6550.018807: funcgraph_entry:        1.250 us   |    "
    "security_file_open();\n"
    "           cat-77    [001]  6550.018809: funcgraph_exit:         4.000 us   |  }\n"
    "CPU:0 [123 EVENTS DROPPED]\n"
    "           cat-77    [001]  6550.018811: sys_enter:            NR 3 (1, 0, 0, 0, 0, 0)\n"
    "           cat-77    [001]  6550.018815: sys_exit:             NR 3 = 0\n"
    "           cat-77    [001]  6550.018816: odd:                  [FAILED TO PARSE] a=ARRAY[0f]\n"
)
TRACE_STAT = (
    "  Function                               Hit    Time            Avg             s^2\n"
    "  --------                               ---    ----            ---             ---\n"
    "  __schedule                            7113    968683296 us     136184.9 us  "
    "   2108946573 us\n"
    "  security_file_permission             20000    182650.3 us     9.133 us        0.004 us    \n"
    "  rcu_preempt_deferred_qs_handle      838746    182650.3 us     0.217 us        0.004 us    \n"
)
FTRACE_HIST = (
    "# event histogram\n#\n"
    "# trigger info: hist:keys=common_pid.execname,id.syscall:vals=hitcount [active]\n#\n\n"
    "{ common_pid: ls              [       254], id: sys_newfstatat                [262] } "
    "hitcount:        272\n"
    "{ common_pid: exe             [       255], id: sys_openat                    [257] } "
    "hitcount:          5\n"
    "\nTotals:\n    Hits: 277\n    Entries: 2\n    Dropped: 3\n"
)
KPROBE_PROFILE = (
    "  k_open                                                    13               0\n"
    "  k_openr                                                   12               1\n"
)
FTRACE_BUFFERS = (
    "entries: 149\noverrun: 5025\ncommit overrun: 0\nbytes: 7232\n"
    "oldest event ts:    54.727782\nnow ts:    54.798761\ndropped events: 0\nread events: 0\n"
)
PERF_TRACE = (
    "         ? (         ): true/11026  ... [continued]: execve())                    = 0\n"
    "     0.064 ( 0.023 ms): true/11026 brk()                                          = 0x56353b\n"
    "     1.785 ( 0.035 ms): true/11026 access(filename: 0xe2e442a0, mode: R)          = -1 ENOENT "
    "(No such file or directory)\n"
    "     1.974 ( 0.019 ms): true/11026 close(fd: 3)                                   = 0\n"
    "     2.509 ( 0.021 ms): true/11026 close(fd: 3)                                   = 0\n"
    "LOST 7 events!\n"
    "     3.154 (         ): true/11026 exit_group()                                   = ?\n"
)
PERF_STAT = (
    "\n Performance counter stats for 'true' (5 runs):\n\n"
    "              0.74 msec task-clock                       #    0.691 CPUs utilized            "
    "( +-  3.34% )\n"
    "             1,048      page-faults                      #   60.284 K/sec                    "
    "( +-  1.21% )\n"
    "   <not supported>      cycles                                                      \n\n"
    "          0.001076 +- 0.000272 seconds time elapsed  ( +- 25.32% )\n"
)
PERF_STAT_CSV = (
    "0.55;msec;task-clock;2.35%;553895;100.00;0.485;CPUs utilized\n"
    "47;;page-faults;1.56%;553895;90.00;87.426;K/sec\n"
    "<not supported>;;cycles;0;100.00;;\n"
)
PERF_STAT_JSON = (
    '{"counter-value" : "0.765691", "unit" : "msec", "event" : "task-clock", "variance" : 6.67, '
    '"event-runtime" : 765691, "pcnt-running" : 100.00, "metric-value" : 0.610141}\n'
    '{"cpu" : "1", "counter-value" : "49.000000", "unit" : "", "event" : "page-faults", '
    '"event-runtime" : 765691, "pcnt-running" : 100.00}\n'
    '{"counter-value" : "<not counted>", "unit" : "", "event" : "cycles", "event-runtime" : 0}\n'
)
PERF_SCRIPT = (
    "ls 14036 13845.268297:     250000 cpu-clock: \n"
    "\tffffffff815ea310 do_anonymous_page+0x780 ([kernel.kallsyms])\n"
    "\tffffffff815ec9d0 handle_mm_fault+0xd0 ([kernel.kallsyms])\n"
    "\t           21737 memmove+0x17 (/usr/lib/ld-linux-x86-64.so.2)\n\n"
    "ls 14036 [001] 13845.268793:     250000 cpu-clock: \n"
    "\tffffffff82201703 handle_mm_fault+0x23 ([kernel.kallsyms])\n"
    "\t           21737 memmove+0x17 (/usr/lib/ld-linux-x86-64.so.2)\n\n"
    "a b 14036/14037 [001] 13845.300000: raw_syscalls:sys_enter: NR 257 (ffffff9c, 0, 0)\n"
    "a b 14036/14037 [001] 13845.300025: raw_syscalls:sys_exit: NR 257 = 3\n"
)
BPFTRACE = (
    "Attaching 3 probes...\nhello\n\n\n@[gcc, 4142]: 2\n@: 7\n"
    "@s: count 2, average 6, total 12\n\n"
    "@h[cat]: \n"
    "(..., 0)               2 |@@@@@                                               |\n"
    "[1]                    3 |@@@@@@@                                             |\n"
    "[4, 8)                12 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n"
    "[1K, 2K)               1 |@@@@                                                |\n"
    "[100, ...)             4 |@@@@                                                |\n\n"
    "@stacks[\n    security_file_open+0\n    do_dentry_open+248\n    vfs_open+45\n]: 5\n"
    "Lost 12 events\n"
)
BPFTRACE_JSON = (
    '{"type": "attached_probes", "data": {"probes": 3}}\n'
    '{"type": "printf", "data": "hi 1\\n"}\n\n'
    '{"type": "map", "data": {"@": {"touch": 39, "cc1": 2650}, "@n": 4}}\n'
    '{"type": "hist", "data": {"@h": [{"max": -1, "count": 2}, {"min": 4, "max": 7, "count": 9}, '
    '{"min": 100, "count": 3}]}}\n'
    '{"type": "stats", "data": {"@s": {"count": 2, "average": 6, "total": 12}, "@a": 8818}}\n'
    '{"type": "lost_events", "data": {"events": 12}}\n'
)
BCC = (
    'Tracing 2 functions for "security_file_*"... Hit Ctrl-C to end.\n^C\n'
    "Function = b'security_file_open' [6556]\n"
    "     nsecs               : count     distribution\n"
    "         0 -> 1          : 0        |                                        |\n"
    "       512 -> 1023       : 20       |****************************************|\n"
    "      1024 -> 2047       : 4        |********                                |\n\n"
    "avg = 913 nsecs, total: 21912 nsecs, count: 24\n\n"
    "Function = b'vfs_read' [6556]\n"
    "     usecs               : count     distribution\n"
    "         2 -> 3          : 7        |****************************************|\n"
)
CALLGRIND = (
    "# callgrind format\nversion: 1\ncreator: callgrind-3.19.0\ncmd:  /bin/true --all\npart: 1\n\n"
    "positions: line\nevents: Ir Dr\nsummary: 130 12\n\n"
    "fl=(1) main.c\nfn=(1) main\n10 20 4\n+2 10\n"
    "cfn=(2) work\ncalls=3 30\n* 100 8\n\n"
    "fn=(2)\n30 60 8\n-1 40\n\ntotals: 130 12\n"
)

TRACE_EXAMPLES: dict[str, bytes] = {
    name: text.encode()
    for name, text in {
        "function-graph": FUNCTION_GRAPH,
        "ftrace-events": FTRACE_EVENTS,
        "trace-cmd": TRACE_CMD,
        "trace-stat": TRACE_STAT,
        "ftrace-hist": FTRACE_HIST,
        "kprobe-profile": KPROBE_PROFILE,
        "ftrace-buffers": FTRACE_BUFFERS,
        "perf-trace": PERF_TRACE,
        "perf-stat": PERF_STAT,
        "perf-stat-csv": PERF_STAT_CSV,
        "perf-stat-json": PERF_STAT_JSON,
        "perf-script": PERF_SCRIPT,
        "bpftrace": BPFTRACE,
        "bpftrace-json": BPFTRACE_JSON,
        "bcc-histogram": BCC,
        "callgrind": CALLGRIND,
    }.items()
}
