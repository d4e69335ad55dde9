"""TCP ports for servers that must be told one before they start."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack
from pathlib import Path

_LOWEST = 15_000
_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, and that the kernel gives no connection of its own.

    From the kernel's own range, one would be taken now and then by a client that connects
    meanwhile, or that connects to itself while the server is away.
    """
    above = int(_RANGE.read_text().split()[0])
    draw = random.SystemRandom()
    found: list[int] = []
    with ExitStack() as stack:
        while len(found) < count:
            opened = stack.enter_context(socket.socket())
            try:
                opened.bind(("127.0.0.1", draw.randrange(_LOWEST, max(above, 2 * _LOWEST))))
            except OSError:
                continue
            found.append(int(opened.getsockname()[1]))
    return found


def free_port() -> int:
    return free_ports(1)[0]
