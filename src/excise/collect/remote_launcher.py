"""The native launcher on another machine: one request at a time, its answer here before the next.

It writes a journal of its own there. When the connection breaks it finishes the run in progress and
ends; the last line of that journal is then the run that nobody here has seen.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from excise.capture.journal import Run, RunHead
from excise.collect.launcher import (
    Exec,
    ExecResult,
    Launch,
    exec_request,
    failed_step,
    refusal,
    run_request,
)
from excise.collect.remote import RemoteMachine, RemoteProgram
from excise.errors import HostError

PROBE_NAME: Final = "excise-probe"
# `sleep` of a small system may know whole seconds only.
_SETTLE: Final = """\
cd {folder} || exit 3
here=$(pwd -P)
old=$(cat launcher.pid 2>/dev/null)
runs() {{
    case $(readlink "/proc/$old/exe" 2>/dev/null) in "$here/{probe}"*) true;; *) false;; esac
}}
if [ -n "$old" ] && runs; then
    kill -TERM "$old"
    pause=0.1 left={seconds}0
    sleep 0.1 2>/dev/null || {{ pause=1; left={seconds}; }}
    while runs; do
        sleep $pause
        left=$((left - 1))
        [ "$left" -gt 0 ] || {{ kill -TERM "$old"; sleep 1; kill -KILL "$old"; }} 2>/dev/null
    done
fi
rm -f launcher.pid
tail -n 1 journal 2>/dev/null || true
"""
# The shell stays the launcher's parent: with the connection's end the launcher must not be alone.
_START: Final = """\
cd {folder} || exit 3
sh -c 'echo $$ >launcher.pid; exec ./{probe} launch --journal-fd 3 3>>journal'
exit $?
"""
_END: Final = """\
cd {folder} || exit 0
old=$(cat launcher.pid 2>/dev/null) || exit 0
kill -TERM "$old" && {{ sleep 0.1 2>/dev/null || sleep 1; }} && kill -TERM "$old"
exit 0
"""


class RemoteLauncher:
    """A launcher that runs on a machine now.

    Attributes:
        left: The last run in the journal there as it was at the start: its line, or b"".
    """

    def __init__(
        self,
        machine: RemoteMachine,
        *,
        folder: str,
        environment: Mapping[str, str],
        patience_s: float,
    ) -> None:
        """End the launcher that an earlier connection left, then start one.

        Args:
            machine: The machine, connected.
            folder: Folder there that holds the probe.
            environment: Base environment of all commands.
            patience_s: For how long the run in progress of an earlier launcher may go on.

        Raises:
            ConnectionLost: If the connection breaks.
            HostError: If the folder is not there.
        """
        self._machine = machine
        self._folder = folder
        values = {"folder": shlex.quote(folder), "probe": PROBE_NAME}
        settle = _SETTLE.format(seconds=int(patience_s) + 1, **values)
        done = machine.run(settle, timeout_s=patience_s + 60.0)
        if done.exit_code != 0:
            raise HostError(
                f"the folder {folder} is gone: {done.reason}",
                source=machine.name,
                hint="Complete runs are kept; run again to resume",
            )
        self.left = done.stdout if done.stdout.endswith(b"}\n") else b""
        self._program: RemoteProgram = machine.program(_START.format(**values))
        self._send({"op": "environment", "env": dict(environment)})

    def finished(self, head: RunHead) -> bytes | None:
        """Return the line of this run if an earlier launcher finished it unseen."""
        if not self.left:
            return None
        try:
            known = msgspec.json.decode(self.left, type=Run)
        except msgspec.MsgspecError:
            return None
        same = all(
            getattr(known, name) == getattr(head, name) for name in RunHead.__struct_fields__
        )
        return self.left if same else None

    def measure(self, launch: Launch) -> bytes:
        """Start and measure a run; return its journal line.

        Raises:
            ConnectionLost: If the connection breaks; the run goes on to its end.
            HostError: If the launcher ends.
        """
        self._send(run_request(launch))
        return self._line()

    def execute(self, step: Exec) -> ExecResult:
        """Run one unmeasured command and return how it ended."""
        self._send(exec_request(step))
        return msgspec.json.decode(self._line(), type=ExecResult)

    def require(self, steps: Sequence[Exec]) -> None:
        """Run unmeasured commands one after the other.

        Raises:
            HostError: If one fails; those after it were not run.
        """
        for step in steps:
            result = self.execute(step)
            if not result.ok:
                raise failed_step(step, result)

    def end(self) -> None:
        """End it by closing its input; it has nothing to do."""
        self._program.end_input()

    def kill(self) -> None:
        """End it and the run in progress, over a channel of its own."""
        self._machine.run(_END.format(folder=shlex.quote(self._folder)))

    def _send(self, request: dict[str, Any]) -> None:
        self._program.send(msgspec.json.encode(request) + b"\n")

    def _line(self) -> bytes:
        line = self._program.receive().result()
        if not line.endswith(b"\n"):
            said = self._program.said()
            raise HostError(
                "the launcher ended early" + (f": {said}" if said else ""),
                source=f"{self._machine.name}: {PROBE_NAME} launch",
                hint="Complete runs are kept; run again to resume",
            )
        if line.startswith(b'{"kind":"error"'):
            raise refusal(line, source=f"{self._machine.name}: {PROBE_NAME} launch")
        return line
