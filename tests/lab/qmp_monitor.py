"""A hand at a guest's power switch: QEMU's monitor is told to reset it, stop it, or let it go on.

python qmp_monitor.py SOCKET COMMAND...
"""

from __future__ import annotations

import json
import socket
import sys

RESET = ("system_reset", "cont")  # one that was stopped goes on, as one does that hung


def tell(path: str, *commands: str) -> None:
    """Give commands to the guest behind a QMP socket; return once QEMU has done them."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(60.0)
        monitor.connect(path)
        with monitor.makefile("rw") as lines:
            assert "QMP" in json.loads(lines.readline())
            for command in ("qmp_capabilities", *commands):
                lines.write(json.dumps({"execute": command}) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
                while "event" in answer:
                    answer = json.loads(lines.readline())
                assert answer == {"return": {}}, answer


if __name__ == "__main__":
    tell(sys.argv[1], *sys.argv[2:])
