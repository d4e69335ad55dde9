"""What a guest does between its set-up and its end, and the files it finds."""

from __future__ import annotations

import shlex
from typing import Final

import msgspec

from excise.lab.disk import WorkFile

# The probe names its folder by its process number, which must not depend on the set-up before it.
_STEP_SHELL: Final = """\
entries() {
    listed=
    read -r listed 2>/dev/null </sys/kernel/security/ima/runtime_measurements_count
}
step() {
    n=$1
    shift
    echo 2000 >/proc/sys/kernel/ns_last_pid
    entries
    listed_before=$listed
    now before
    "$@" >$O/steps/$n.out 2>$O/steps/$n.err
    echo $? >$O/steps/$n.rc
    now after
    echo $((after - before)) >$O/steps/$n.ns
    entries
    [ -z "$listed" ] || echo $((listed - listed_before)) >$O/steps/$n.ima
}
"""

# Each round works with other kernel objects on top of the allocator's lists than the one before: a
# reader that waits on a fifo holds those its open took. Differences of a few instructions that come
# and go with irrelevant changes are gone in the middle of three rounds; why was not established.
_ROUND_SHELL: Final = """\
mkfifo /run/hold{number}
cat /run/hold{number} >/dev/null &
sleep 0.1
"""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command of a plan; its output, error output and exit code come back.

    Attributes:
        task: Name in tables, such as `open_close`.
        command: Program and arguments, as the guest finds them.
        round: Number of the repetition it belongs to, from 0.
        probe: Whether the output is the probe's JSON line.
        must_work: Whether an exit code other than 0 fails the guest.
    """

    task: str
    command: tuple[str, ...]
    round: int = 0
    probe: bool = False
    must_work: bool = True


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in order, and the work disk's files.

    Attributes:
        steps: What to run.
        files: Files of the ext4 work disk by path.
        root_files: Files added to the initramfs by path, executable.
        shell: A line of shell run after the steps, or "".
    """

    steps: tuple[Step, ...]
    files: dict[str, WorkFile] = {}
    root_files: dict[str, bytes] = {}
    shell: str = ""

    def render(self) -> str:
        """Return the plan as the shell fragment that PID 1 sources."""
        lines = []
        current = 0
        for number, step in enumerate(self.steps):
            if step.round > current and step.probe:
                lines.append(_ROUND_SHELL.format(number=step.round))
            current = max(current, step.round)
            lines.append(f"step {number:04d} {shlex.join(step.command)}")
        return _STEP_SHELL + "\n".join([*lines, self.shell]) + "\n"
