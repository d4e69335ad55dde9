"""A power switch for a guest: QEMU's monitor is told to reset it, as a hand on the button would.

python qmp_reset.py SOCKET
"""

from __future__ import annotations

import json
import socket
import sys


def reset(path: str) -> None:
    """Have the guest behind a QMP socket reset; return once QEMU says that it was."""
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.settimeout(30.0)
        monitor.connect(path)
        with monitor.makefile("rw") as lines:
            assert "QMP" in json.loads(lines.readline())
            for command in ("qmp_capabilities", "system_reset"):
                lines.write(json.dumps({"execute": command}) + "\n")
                lines.flush()
                answer = json.loads(lines.readline())
                while "event" in answer:
                    answer = json.loads(lines.readline())
                assert answer == {"return": {}}, answer


if __name__ == "__main__":
    reset(sys.argv[1])
