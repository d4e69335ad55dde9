"""Lines that `initcall_debug` adds to the kernel's log: initcalls and probes of devices.

Initcalls of the kernel itself run one after the other in its first task, so their times add up.
Those of modules run in whatever task loads them, and overlap.

Source: init/main.c (trace_initcall_start_cb, trace_initcall_finish_cb, initcall_blacklisted),
drivers/base/dd.c (really_probe_debug).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

INITCALL: Final = "initcall"
MODULE: Final = "module-init"
PROBE: Final = "device-probe"
_FUNCTION: Final = (
    r"(?P<name>[^\s+\[]{1,200})(?:\+0x[0-9a-f]+/0x[0-9a-f]+)?(?: \[(?P<module>[^\]]{1,64})\])?"
)
_CALLING = re.compile(rf"calling\s+{_FUNCTION} @ (?P<task>\d{{1,10}})")
_RETURNED = re.compile(
    rf"initcall {_FUNCTION} returned (?P<code>-?\d{{1,10}}) after (?P<us>\d{{1,15}}) usecs.*"
)
_PROBED = re.compile(
    r"probe of (?P<name>\S{1,200}) returned (?P<code>-?\d{1,10}) after (?P<us>\d{1,15}) usecs"
)
_STARTS: Final = ("calling ", "initcall ", "probe of ")
_KERNEL_TASKS: Final = ("0", "1")  # the boot task, for consoles, and the one that becomes init


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An initcall, or the probe of a device.

    Attributes:
        layer: `INITCALL`, `MODULE` or `PROBE`.
        name: Function, or device.
        start_ns: When it was called, as the log says; None if that line is missing.
        duration_ns: As the kernel measured it, in microseconds.
        code: What it returned.
        module: Module it is part of, or "".
        inside: Name of the initcall that it ran in, for a probe; "" where that is not sure.
    """

    layer: str
    name: str
    start_ns: int | None
    duration_ns: int
    code: int
    module: str = ""
    inside: str = ""


@dataclass(slots=True)
class Calls:
    """Initcalls of one boot, read line by line.

    Attributes:
        finished: Calls in the order in which they returned.
    """

    finished: list[Call] = field(default_factory=list)
    _open: dict[str, tuple[int, str]] = field(default_factory=dict)

    def take(self, text: str, *, at_ns: int) -> bool:
        """Take a line; return whether it is one of these.

        Args:
            text: The message, without its time.
            at_ns: Its time, nanoseconds since the start of the kernel's clock.
        """
        if not text.startswith(_STARTS):
            return False
        if match := _CALLING.fullmatch(text):
            self._open[match["name"]] = (at_ns, match["task"])
            return True
        if match := _RETURNED.fullmatch(text):
            started = self._open.pop(match["name"], None)
            task = started[1] if started else _KERNEL_TASKS[0]
            layer = INITCALL if task in _KERNEL_TASKS and not match["module"] else MODULE
            self.finished.append(
                Call(
                    layer=layer,
                    name=match["name"],
                    start_ns=started[0] if started else None,
                    duration_ns=int(match["us"]) * 1000,
                    code=int(match["code"]),
                    module=match["module"] or "",
                )
            )
            return True
        if match := _PROBED.fullmatch(text):
            duration_ns = int(match["us"]) * 1000
            self.finished.append(
                Call(
                    layer=PROBE,
                    name=match["name"],
                    start_ns=max(0, at_ns - duration_ns),
                    duration_ns=duration_ns,
                    code=int(match["code"]),
                    inside=self._around(at_ns - duration_ns),
                )
            )
            return True
        return False

    @property
    def unfinished(self) -> list[str]:
        """Return the names of initcalls that were called and did not return."""
        return list(self._open)

    def _around(self, start_ns: int) -> str:
        """Return the only kernel initcall that was running then; a worker's probe may have none."""
        running = [
            name
            for name, (called_ns, task) in self._open.items()
            if task in _KERNEL_TASKS and called_ns <= start_ns + 1000  # stamps are cut to 1 us
        ]
        return running[0] if len(running) == 1 else ""
