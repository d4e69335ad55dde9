"""A PostgreSQL server of Debian's package for tests: own folder, own socket, always ended."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ended import ended, wait_until
from skips import skip


def _program(name: str) -> str:
    """Return a program of the newest PostgreSQL that is installed, or skip."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda p: p.parts[-3])
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        skip("PostgreSQL is not installed (Debian's package postgresql)")
    return str(path)


def _somebody() -> dict[str, Any]:
    """Return how to run as somebody who is not root, whom PostgreSQL refuses."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("nobody")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


@contextmanager
def postgres_server() -> Iterator[str]:
    """Run a server and give the URL of its database."""
    initdb, postgres = _program("initdb"), _program("postgres")
    who = _somebody()
    with tempfile.TemporaryDirectory(prefix="pg") as name:
        folder = Path(name)
        if who:
            os.chown(folder, who["user"], who["group"])
        data = folder / "data"
        environment = {"PATH": os.environ["PATH"], "HOME": name, "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [initdb, "-D", str(data), "-A", "trust", "-U", "excise", "-E", "UTF8", "--no-sync"],
            capture_output=True, text=True, cwd=name, env=environment, check=False, **who,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with (folder / "log").open("w") as log:
            server = subprocess.Popen(
                [postgres, "-D", str(data), "-k", name, "-c", "listen_addresses="],
                stdout=log, stderr=log, cwd=name, env=environment, **who,
            )  # fmt: skip
        with ended(server, by=signal.SIGINT):  # its fast shutdown: it does not wait for clients

            def is_ready() -> bool:
                return "ready to accept connections" in (folder / "log").read_text()

            wait_until(is_ready, beside=server, what="PostgreSQL")
            yield f"postgresql:///postgres?host={name}&user=excise"
