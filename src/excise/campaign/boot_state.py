"""How far a campaign with reboots has come, kept in the capture: to be seen, and undone."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from excise.capture.store import write_durably
from excise.errors import CaptureError

STATE: Final = "boots.json"
PAUSE: Final = "pause"


class BootState(msgspec.Struct, kw_only=True):
    """What is known of the machine and its boots.

    Attributes:
        boots: Boots that were asked for.
        failed: Boots that did not come up as they should.
        skipped: Arms that failed so often that they are not booted again.
        arm: Arm that the machine was booted for, "" for none.
        block: Block of that boot.
        boot_id: The kernel's identifier of that boot.
        loader: Boot loader that entries were added to, "" while there are none.
    """

    boots: int = 0
    failed: int = 0
    skipped: list[str] = []
    arm: str = ""
    block: int = -1
    boot_id: str = ""
    loader: str = ""

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


def ask_to_pause(capture: Path) -> None:
    """Have the campaign that writes this capture stop before its next boot."""
    write_durably(capture / PAUSE, b"")


def wants_pause(capture: Path) -> bool:
    """Tell whether somebody asked for a pause."""
    return (capture / PAUSE).exists()


def end_pause(capture: Path) -> None:
    """Forget that a pause was asked for."""
    (capture / PAUSE).unlink(missing_ok=True)
