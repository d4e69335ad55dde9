"""Builders of foreign inputs: what a tool would have written for given values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from boot_inputs import BOOT_EXAMPLES
from trace_inputs import TRACE_EXAMPLES

# One attestation in microseconds, in the order in which a board prints its lines.
ATTESTATION: dict[str, int] = {
    "host|veraison_new_session": 9_412,
    "pta|ocotp_srk": 31,
    "pta|ocotp_lifecycle": 33,
    "pta|instance_id": 120,
    "pta|hash_ta": 1_204,
    "pta|hash_tee": 3_911,
    "pta|cbor_encode": 57,
    "pta|sign_key_setup": 210,
    "pta|sign_tbs_hash": 18,
    "pta|sign_ecdsa": 4_552,
    "pta|sign_verify": 6_021,
    "pta|cose_sign1": 10_850,
    "pta|cmd_total": 16_320,
    "pta|perf_flush": 41_877,
    "ta|pta_invoke": 59_000,
    "ta|cmd_total": 59_000,
    "host|evidence_get": 59_411,
    "host|print_evidence": 12_044,
    "host|veraison_post_evidence": 22_310,
    "host|total": 104_220,
}
_PREFIX = {"host": "", "ta": "I/TA: ", "pta": "I/TC: "}
_NO_KEY = ("perf_flush",)


def ra_perf_line(name: str, value_us: int | str, key: str = "embedded", more: str = "") -> str:
    """One line as the attester prints it, with the console's prefix."""
    layer, _, event = name.partition("|")
    mode = "-" if event in _NO_KEY else key
    return f"{_PREFIX.get(layer, '')}RA_PERF|{layer}|{event}|{value_us}|key={mode}{more}"


def ra_perf_iteration(
    key: str = "embedded",
    *,
    times: dict[str, int] | None = None,
    hz: int | None = 8_000_000,
    server: bool = True,
) -> list[str]:
    """The lines of one attestation."""
    lines = []
    for name, value in (times or ATTESTATION).items():
        if name.startswith("host|veraison") and not server:
            continue
        if name == "pta|ocotp_srk" and hz is not None:
            lines.append(f"I/TC: RA_PERF|pta|cntfrq|{hz}|key=-")
        lines.append(ra_perf_line(name, value, key))
    return lines


def ra_perf_start(key: str = "embedded") -> list[str]:
    """What the client prints before its loop."""
    return [
        ra_perf_line("host|teec_init", 812, key),
        ra_perf_line("host|teec_open_session", 40_211, key),
    ]


def text(lines: Sequence[str], newline: str = "\n") -> bytes:
    """Lines as bytes."""
    return "".join(line + newline for line in lines).encode()


def hyperfine_json(results: dict[str, Sequence[float]], **more: Any) -> bytes:
    """hyperfine's export of commands and their times in seconds."""
    rows = []
    for command, times in results.items():
        ordered = sorted(times)
        rows.append(
            {
                "command": command,
                "mean": sum(times) / len(times),
                "stddev": None if len(times) < 2 else 0.001,
                "median": ordered[len(ordered) // 2],
                "user": 0.0005,
                "system": 0.0007,
                "min": ordered[0],
                "max": ordered[-1],
                "times": list(times),
                "exit_codes": [0] * len(times),
                **more,
            }
        )
    return json.dumps({"results": rows}, indent=2).encode()


def pyperf_json(
    benchmarks: dict[str, Sequence[Sequence[float]]],
    *,
    loops: int = 4,
    inner_loops: int = 1,
    unit: str = "second",
    version: str = "1.0",
) -> bytes:
    """pyperf's file: for each benchmark the values of each worker process, one warm-up each."""
    rows = []
    for name, processes in benchmarks.items():
        metadata = {"name": name, "loops": loops, "inner_loops": inner_loops}
        runs: list[dict[str, Any]] = [
            {"metadata": {"calibrate_loops": loops}, "warmups": [[1, 0.002], [loops, 0.001]]}
        ]
        runs += [{"values": list(v), "warmups": [[loops, 0.0015]]} for v in processes]
        rows.append({"metadata": metadata, "runs": runs})
    common = {"unit": unit, "cpu_model_name": "A CPU", "hostname": "a-host"}
    return json.dumps(
        {"benchmarks": rows, "metadata": common, "version": version}, separators=(",", ":")
    ).encode()


def time_v(
    command: str = "sleep 0.1",
    *,
    elapsed: str = "0:00.11",
    user: str = "0.02",
    system: str = "0.01",
    rss: int = 1_564,
    status: int = 0,
    head: str = "",
) -> str:
    """The list of GNU `time -v`."""
    return head + (
        f'\tCommand being timed: "{command}"\n'
        f"\tUser time (seconds): {user}\n"
        f"\tSystem time (seconds): {system}\n"
        "\tPercent of CPU this job got: 12%\n"
        f"\tElapsed (wall clock) time (h:mm:ss or m:ss): {elapsed}\n"
        "\tAverage shared text size (kbytes): 0\n"
        "\tAverage unshared data size (kbytes): 0\n"
        "\tAverage stack size (kbytes): 0\n"
        "\tAverage total size (kbytes): 0\n"
        f"\tMaximum resident set size (kbytes): {rss}\n"
        "\tAverage resident set size (kbytes): 0\n"
        "\tMajor (requiring I/O) page faults: 1\n"
        "\tMinor (reclaiming a frame) page faults: 95\n"
        "\tVoluntary context switches: 2\n"
        "\tInvoluntary context switches: 3\n"
        "\tSwaps: 0\n"
        "\tFile system inputs: 0\n"
        "\tFile system outputs: 0\n"
        "\tSocket messages sent: 0\n"
        "\tSocket messages received: 0\n"
        "\tSignals delivered: 0\n"
        "\tPage size (bytes): 4096\n"
        f"\tExit status: {status}\n"
    )


GNU_TWO_LINES = (
    "0.02user 0.01system 0:00.11elapsed 27%CPU (0avgtext+0avgdata 1520maxresident)k\n"
    "8inputs+16outputs (1major+98minor)pagefaults 0swaps\n"
)
BASH = "\nreal\t0m0.112s\nuser\t0m0.021s\nsys\t0m0.013s\n"
LSMPMON = (
    "hook            min     max        ave   count\n"
    "inode_create    97      1818075    105   3035605\n"
    "inode_unlink    97      80903      114   3035600\n"
)
SYSTEMD_TIME = (
    "Startup finished in 3.210s (firmware) + 1.404s (loader) + 7.395s (kernel) + 2.500s (initrd)"
    " + 1min 5.754s (userspace) = 1min 20.264s \n"
    "graphical.target reached after 1min 5.476s in userspace.\n"
)
SYSTEMD_CHAIN = (
    'The time when unit became active or started is printed after the "@" character.\n'
    'The time the unit took to start is printed after the "+" character.\n\n'
    "graphical.target @15.476s\n"
    "└─multi-user.target @15.466s\n"
    "  └─apparmor.service @6.897s +6.852s\n"
    "    └─run-credentials-systemd\\x2dtmpfiles\\x2dsetup.service.mount @8.272s\n"
)
SYSTEMD_BLAME = (
    "2month 1w 3d 5h 2min 40.101s fwupd-refresh.service\n"
    "             1min 5.754s apparmor.service\n"
    "                   999ms modprobe@loop.service\n"
    "                    41us dev-hugepages.mount\n"
)

SYSTEMD_SHOW = (
    "FirmwareTimestampMonotonic=4614000\nLoaderTimestampMonotonic=1404000\n"
    "KernelTimestampMonotonic=0\nInitRDTimestampMonotonic=7395000\n"
    "UserspaceTimestampMonotonic=9895000\nFinishTimestampMonotonic=25655000\n"
    "FinishTimestamp=Mon 2026-11-30 13:52:03 UTC\n"
    "SecurityStartTimestampMonotonic=9919974\nSecurityFinishTimestampMonotonic=9961363\n"
    "InitRDSecurityStartTimestampMonotonic=7400000\n"
    "InitRDSecurityFinishTimestampMonotonic=7410000\n"
    "GeneratorsStartTimestampMonotonic=0\nGeneratorsFinishTimestampMonotonic=0\n"
    "WatchdogLastPingTimestampMonotonic=18446744073709551615\n"
)

# One input a format, as its builder makes it.
EXAMPLES: dict[str, bytes] = {
    "ra-perf": text([*ra_perf_start(), *ra_perf_iteration(), *ra_perf_iteration()]),
    "lsmpmon": LSMPMON.encode(),
    "time-gnu-v": time_v().encode(),
    "time-gnu": GNU_TWO_LINES.encode(),
    "time-shell": BASH.encode(),
    "hyperfine": hyperfine_json({"sleep 0.01": [0.012, 0.011, 0.013], "true": [0.001, 0.002]}),
    "pyperf": pyperf_json({"hash": [[0.001, 0.0011], [0.0012, 0.0013]]}),
    "systemd-show": SYSTEMD_SHOW.encode(),
    "systemd-analyze": (SYSTEMD_TIME + SYSTEMD_CHAIN + SYSTEMD_BLAME).encode(),
    **BOOT_EXAMPLES,
    **TRACE_EXAMPLES,
}
