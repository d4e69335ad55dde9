"""How far a campaign with reboots has come, kept in the capture: to be seen, and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from excise.capture.store import write_durably
from excise.errors import CaptureError

STATE: Final = "boots.json"
PAUSE: Final = "pause"


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A boot that was asked for, until it is known what came up.

    Attributes:
        arm: Arm that is to come up, "" for what the machine always booted.
        block: Block of that boot.
        boot_id: The kernel's identifier of the boot that was left.
        at_s: The machine's wall clock when it was asked, in seconds.
        mark: The word of its command line by which it is known, "" for what it always booted.
    """

    arm: str
    block: int
    boot_id: str
    at_s: float
    mark: str = ""


class BootState(msgspec.Struct, kw_only=True):
    """What is known of the machine and its boots.

    Attributes:
        boots: Boots that were asked for.
        failed: Boots that did not come up as they should.
        skipped: Arms that failed so often that they are not booted again.
        attempts: Failed boots in a row for the arm that is to come up.
        asked: The boot that was asked for and not yet looked at.
        arm: Arm that the machine was booted for, "" for none.
        block: Block of that boot.
        boot_id: The kernel's identifier of that boot.
        asked_at_s: When that boot was asked for, by the machine's wall clock, in seconds.
        measuring: Whether runs are measured in that boot at this moment.
        loader: Boot loader that entries were added to, "" while there are none.
        entries: Words of the command line of each of those entries.
        hung: Why the machine is taken for one that hangs, "" while it answers.
        stopped: Why the campaign stopped before its end, "" unless an error stopped it.
    """

    boots: int = 0
    failed: int = 0
    skipped: list[str] = []
    attempts: int = 0
    asked: Asked | None = None
    arm: str = ""
    block: int = -1
    boot_id: str = ""
    asked_at_s: float = 0.0
    measuring: bool = False
    loader: str = ""
    entries: list[str] = []
    hung: str = ""
    stopped: str = ""

    def is_up(self, arm: str, block: int, *, boot_id: str) -> bool:
        """Tell whether the machine is up in the boot that was made for these runs."""
        return (self.arm, self.block, self.boot_id) == (arm, block, boot_id)

    def restored(self) -> BootState:
        """Return the state once the machine boots what it always did: only the counts are left."""
        return BootState(boots=self.boots, failed=self.failed, skipped=self.skipped)

    def save(self, capture: Path) -> None:
        """Write it into a capture, on disk when this returns."""
        write_durably(capture / STATE, msgspec.json.format(msgspec.json.encode(self), indent=1))


def read_state(capture: Path) -> BootState:
    """Return the state in a capture; that of a campaign not begun if there is none.

    Raises:
        CaptureError: If it cannot be read.
    """
    try:
        return msgspec.json.decode((capture / STATE).read_bytes(), type=BootState)
    except FileNotFoundError:
        return BootState()
    except (OSError, msgspec.MsgspecError) as error:
        raise CaptureError(f"cannot be read: {error}", source=str(capture / STATE)) from error


def has_changed_the_machine(capture: Path) -> bool:
    """Tell whether a campaign's boots are not yet undone, whatever runs it has."""
    state = read_state(capture)
    return bool(state.loader) or state.asked is not None or bool(state.hung)


def is_on_its_way(capture: Path) -> bool:
    """Tell whether the machine was last asked to boot, and not seen up since."""
    if not (capture / STATE).exists():
        return False
    state = read_state(capture)
    return state.asked is not None or bool(state.hung)


def note_stop(capture: Path, reason: str) -> None:
    """Write down why a campaign with reboots stopped; nothing for a campaign without any."""
    if (capture / STATE).exists():
        state = read_state(capture)
        state.stopped = reason
        state.save(capture)


def ask_to_pause(capture: Path) -> None:
    """Have the campaign that writes this capture stop before its next boot."""
    write_durably(capture / PAUSE, b"")


def wants_pause(capture: Path) -> bool:
    """Tell whether somebody asked for a pause."""
    return (capture / PAUSE).exists()


def end_pause(capture: Path) -> None:
    """Forget that a pause was asked for."""
    (capture / PAUSE).unlink(missing_ok=True)
