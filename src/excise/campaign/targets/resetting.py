"""Machines that hang: switched off and on by the user's own command, and what is written of it."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.campaign.boot_state import BootState
from excise.campaign.target_spec import BootsSpec
from excise.capture.journal import Loss
from excise.capture.store import Capture
from excise.errors import HostError
from excise.lab.processes import child
from excise.units import parse_seconds

# What the machine boots by itself, as messages call it.
ORIGINAL: Final = "original configuration"


def run_reset(words: Sequence[str], *, timeout: str) -> None:
    """Run the command that resets a machine, here, and wait for its end.

    It has no part in Ctrl-C at the terminal: half of a power cycle leaves the machine off.

    Args:
        words: Program and arguments.
        timeout: Longest that it may take, such as `2min`; then it is ended.

    Raises:
        HostError: If it is not found, does not end in time, or fails; with its last words.
    """
    shown = shlex.join(words)
    with tempfile.TemporaryDirectory(prefix="excise-reset-") as folder:
        log = Path(folder) / "log"
        with child(words, log=log) as process:
            try:
                code: int | None = process.wait(parse_seconds(timeout))
            except subprocess.TimeoutExpired:
                code = None
        said = log.read_text(errors="replace").strip().splitlines()
    if code == 0:
        return
    reason = f"did not end in {timeout}" if code is None else f"failed with exit code {code}"
    raise HostError(
        f"the reset command {reason}{f': {said[-1]}' if said else ''}",
        source=shown,
        hint="Try it in a shell. Runs are kept: once it works, or the machine was switched off and "
        "on by hand, run again to resume",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """How a machine is switched off and on.

    Attributes:
        words: The user's command.
        timeout: Longest that it may take.
        wait: Waits until the machine is up after it; raises HostError if it never is.
    """

    words: Sequence[str]
    timeout: str
    wait: Callable[[], None]

    def cycle(self) -> None:
        """Switch it off and on.

        Raises:
            HostError: If the command fails; see `run_reset`.
        """
        run_reset(self.words, timeout=self.timeout)


class BootLost(HostError):  # noqa: N818  an event of a campaign, not a fault
    """The boot that runs were measured in is gone.

    Attributes:
        hung: Why the machine is taken for one that hangs, "" where it is up in another boot.
        power: What switches it off and on where it hangs.
    """

    def __init__(self, reason: str, *, source: str, power: Power | None = None) -> None:
        super().__init__(reason, source=source)
        self.hung = reason if power is not None else ""
        self.power = power


@dataclass(frozen=True, slots=True, kw_only=True)
class Reboot:
    """What became of a reboot that was asked for.

    Attributes:
        up: Whether the machine is up again; where not, and it does not hang, it goes down with us.
        hung: Why it is taken for one that hangs, "" where it came back.
        power: What switches it off and on where it hangs, if anything does.
    """

    up: bool
    hung: str = ""
    power: Power | None = None


def recover(
    capture: Capture,
    state: BootState,
    *,
    arm: str,
    block: int,
    spec: BootsSpec,
    name: str,
    power: Power | None,
    tell: Callable[[str, str], None],
) -> None:
    """Have a machine up again whose boot hangs; that boot is a failed one.

    That is counted before anything is done, so that three such boots are three whatever ends us.

    Args:
        capture: Open for appending.
        state: Its boots; `hung` says why it is taken for one that hangs.
        arm: Arm of the boot that hangs, "" for what the machine always booted.
        block: Block of that boot.
        spec: The target.
        name: How messages call the machine.
        power: What switches it off and on; None where that is done by hand.
        tell: Called with (arm, stage).

    Raises:
        HostError: If it stays down: nothing switches it off and on, or that failed.
    """
    state.asked = None
    count_failed(state)
    state.save(capture.path)

    def note(outcome: str) -> None:
        reason = f"hung: {state.hung}{outcome}"
        capture.append(failed_boot(state, spec, arm=arm, block=block, reason=reason))

    try:
        if power is None:
            note("")
            raise _stays_down(state, spec, name=name, arm=arm, capture=capture.path)
        tell(arm or ORIGINAL, "reset")
        try:
            power.cycle()
        except HostError as error:
            note(f", and not reset: {error.reason}")
            raise
        note(f", reset by {shlex.join(power.words)}")
        power.wait()
    except HostError as error:
        state.stopped = str(error)
        state.save(capture.path)
        raise
    state.hung = ""
    state.save(capture.path)


def _stays_down(
    state: BootState, spec: BootsSpec, *, name: str, arm: str, capture: Path
) -> HostError:
    """Return the error that pauses a campaign until somebody was at the switch."""
    what = f"the {ORIGINAL}"
    if arm:
        what = f"{arm!r} (attempt {state.attempts} of {spec.boot_attempts})"
    return HostError(
        f"does not answer: the boot of {what} hung ({state.hung}). The campaign is paused, and all "
        "runs are kept",
        source=name,
        hint="Switch the machine off and on (it then boots what it always did), and go on with "
        f"`excise campaign resume {shlex.quote(str(capture))}`. target.reset = [...] names a "
        "command that switches it without hands",
    )


def count_failed(state: BootState) -> None:
    """Count a boot that did not come up as it should."""
    state.failed += 1
    state.attempts += 1


def failed_boot(state: BootState, spec: BootsSpec, *, arm: str, block: int, reason: str) -> Loss:
    """Return what is written of a boot that was counted as failed."""
    what = f"attempt {state.attempts} of {spec.boot_attempts} to boot {arm!r} in block {block}"
    return Loss(
        source=f"boot {state.boots}",
        reason=f"{what if arm else f'boot of the {ORIGINAL}'}: {reason}",
    )
