"""Builders of kernel logs and of systemd's JSON, as the kernel and systemd would print them."""

from __future__ import annotations

import json
from collections.abc import Iterable

VERSION = "Linux version 6.12.1-test (builder@host) (gcc 12) #1 SMP"


def stamped(messages: Iterable[tuple[float, str]]) -> str:
    """Return messages as `dmesg` prints them; times in seconds."""
    return "".join(f"[{at_s:12.6f}] {text}\n" for at_s, text in messages)


def kernel_log(*, init_s: float = 2.5, init: str = "/init") -> list[tuple[float, str]]:
    """Return a log from the first line to the start of init, with two quiet times."""
    return [
        (0.0, VERSION),
        (0.0, "Command line: console=ttyS0 quiet"),
        (0.1, "Memory: 400000K/500000K available"),
        (0.4, "ACPI: Core revision 20240827"),
        (1.9, "evm: HMAC attrs: 0x1"),
        (init_s - 0.001, "Freeing unused kernel image (initmem) memory: 2048K"),
        (init_s, f"Run {init} as init process"),
    ]


def initcall_log() -> list[tuple[float, str]]:
    """Return a log with initcalls of the kernel, a probe inside one, and one of a module."""
    return [
        (0.0, VERSION),
        (0.0, "calling  con_init+0x0/0x22c @ 0"),
        (0.0, "initcall con_init+0x0/0x22c returned 0 after 0 usecs"),
        (0.1, "calling  acpi_init+0x0/0x4a0 @ 1"),
        (0.25, "probe of PNP0103:00 returned 0 after 50000 usecs"),
        (0.3, "initcall acpi_init+0x0/0x4a0 returned 0 after 200000 usecs"),
        (0.35, "calling  pcspkr_init+0x0/0x10 @ 1"),
        (0.36, "initcall pcspkr_init+0x0/0x10 returned -19 after 10000 usecs"),
        (0.37, "initcall lost_start+0x0/0x10 returned 0 after 5000 usecs"),
        (0.5, "Run /sbin/init as init process"),
        (0.9, "calling  crc32c_mod_init+0x0/0x1000 [crc32c_generic] @ 77"),
        (0.95, "initcall crc32c_mod_init+0x0/0x1000 [crc32c_generic] returned 0 after 49000 usecs"),
    ]


def kmsg(messages: Iterable[tuple[float, str]]) -> str:
    """Return messages as a reader of /dev/kmsg gets them."""
    return "".join(
        f"6,{number},{round(at_s * 1e6)},-;{text}\n" for number, (at_s, text) in enumerate(messages)
    )


def dmesg_json(messages: Iterable[tuple[float, str]]) -> str:
    """Return messages as `dmesg --json` prints them."""
    rows = [{"pri": 6, "time": round(at_s, 6), "msg": text} for at_s, text in messages]
    return json.dumps({"dmesg": rows}, indent=3)


def plot_json(units: dict[str, tuple[int, int]]) -> bytes:
    """Return `systemd-analyze plot --json=short`: begin and duration of each unit in us."""
    rows = [
        {
            "name": name,
            "activated": begin + took,
            "activating": begin,
            "time": took,
            "deactivated": 0,
            "deactivating": 0,
        }
        for name, (begin, took) in units.items()
    ]
    return json.dumps(rows, separators=(",", ":")).encode() + b"\n"


BOOT_EXAMPLES: dict[str, bytes] = {
    "dmesg": stamped(initcall_log()).encode(),
    "systemd-plot": plot_json({"-.mount": (2_290_000, 500), "apparmor.service": (6_897_000, 99)}),
}
