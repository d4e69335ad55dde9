"""Configurations to boot, and what tells a machine's boot loader of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from excise.errors import HostError

if TYPE_CHECKING:
    from excise.collect.remote import Output

MARK: Final = "excise.configuration="
KEPT: Final = "/var/lib/excise/boot"
"""Folder of the machine in which is kept what `undo` puts back."""


class Shell(Protocol):
    """Something that runs a script on the machine: over ssh, or here."""

    name: str

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        """Run it and wait for its end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BootEntry:
    """A configuration to boot.

    Attributes:
        number: Its number, which its entry is called by and `/proc/cmdline` tells.
        words: Words added to the kernel's command line.
    """

    number: int
    words: tuple[str, ...]

    @property
    def mark(self) -> str:
        """Return the word by which the running kernel says that it is this one."""
        return f"{MARK}{self.number}"


class BootLoader(Protocol):
    """A boot loader that can be told what to boot once."""

    name: str

    def require(self) -> None:
        """Refuse a machine whose boot loader cannot be told; nothing is changed on it."""
        ...

    def install(self, entries: Sequence[BootEntry]) -> None:
        """Add the entries. Doing it twice does no harm."""
        ...

    def choose(self, entry: BootEntry) -> None:
        """Have the next boot, and no other, use an entry."""
        ...

    def undo(self) -> None:
        """Remove what was added, and check that all is as it was."""
        ...


def require_done(
    shell: Shell, script: str, *, what: str, stdin: bytes = b"", timeout_s: float = 60.0
) -> Output:
    """Run a script that must succeed; `what` is what was to be done.

    Raises:
        HostError: If its exit code is not 0.
    """
    done = shell.run(script, stdin=stdin, timeout_s=timeout_s)
    if done.exit_code != 0:
        raise HostError(f"{what} failed: {done.reason}", source=shell.name)
    return done
