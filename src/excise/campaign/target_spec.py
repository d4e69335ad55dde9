"""`[target]` of a campaign file: where it runs; one struct a kind, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Final, Literal, Self

import msgspec

from excise.lab.machine import Machine

# How often a configuration is entered. `run`: whenever the order of runs says so, which is cheap on
# a running machine. `block`: once in each block, for what a boot or a reboot enters. `once`: one
# visit holds all blocks, for machines that repeat exactly. `boot`: once in each block, by a reboot;
# the first run of each task after it is kept apart.
Entry = Literal["run", "block", "once", "boot"]
# Keys that are in no figure, so that a campaign goes on with others.
_PATIENCE: Final = (
    "boot_attempts",
    "boot_timeout",
    "max_boots",
    "connect_timeout",
    "keepalive",
    "give_up",
    "reset",
    "reset_timeout",
)


class _AnyTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What holds for a target unless it says otherwise."""

    @property
    def entry(self) -> Entry:
        """Return how often a configuration is entered."""
        return "run"

    @property
    def twins(self) -> int:
        """Return how many A/A arms there are."""
        return 1

    @property
    def measured(self) -> Self:
        """Return it without what is in no figure: two whose rest is equal measure the same."""
        return self


class BootsSpec(_AnyTarget, frozen=True, kw_only=True):
    """A machine that may enter each configuration by a reboot.

    Attributes:
        reboot: Whether each configuration is entered by a reboot, with the words of its `cmdline`.
        machine: With `reboot`: host name or machine id of the machine; no other is touched.
        runs_per_boot: With `reboot`: runs of each task in a boot, beyond the first one after it.
        boot_attempts: With `reboot`: how often a boot is tried before it is skipped.
        boot_timeout: With `reboot`: longest wait for the machine to be up.
        max_boots: With `reboot`: most boots of the whole campaign; twice as many as it needs when
            None.
    """

    reboot: bool = False
    machine: str | None = None
    runs_per_boot: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    boot_attempts: Annotated[int, msgspec.Meta(ge=1, le=10)] = 3
    boot_timeout: str = "5min"
    max_boots: Annotated[int, msgspec.Meta(ge=1)] | None = None

    @property
    def measured(self) -> Self:
        """Return it without how long one waits, how often one tries, and what is then done."""
        kept = [name for name in _PATIENCE if hasattr(self, name)]
        return msgspec.structs.replace(self, **dict.fromkeys(kept))

    @property
    def entry(self) -> Entry:
        """Return how often a configuration is entered."""
        return "boot" if self.reboot else "run"


class LocalTarget(BootsSpec, frozen=True, kw_only=True, tag_field="kind", tag="local"):
    """This machine."""


class LabTarget(_AnyTarget, frozen=True, kw_only=True, tag_field="kind", tag="lab"):
    """Guests of the lab: one boot a visit.

    In count mode a guest repeats exactly, so that each arm is booted once and all blocks are rounds
    in that guest; in TPM mode, which measures time, each arm is booted once in every block.

    Attributes:
        machine: The machine; `mode` in it chooses between `count` and `tpm`.
        aa_guests: A/A guests: the baseline with a word on its command line that nothing reads, with
            a file that nothing opens, with both. [default: 2 in count mode, 1 in TPM mode]
        quote: Whether each guest's TPM signs its PCRs, in TPM mode.
    """

    machine: Machine = msgspec.field(default_factory=Machine)
    aa_guests: Annotated[int, msgspec.Meta(ge=1, le=3)] | None = None
    quote: bool = False

    @property
    def entry(self) -> Entry:
        """Return how often a configuration is entered."""
        return "once" if self.machine.mode == "count" else "block"

    @property
    def twins(self) -> int:
        """Return how many A/A arms there are."""
        if self.aa_guests is not None:
            return self.aa_guests
        return 2 if self.machine.mode == "count" else 1


class SshTarget(BootsSpec, frozen=True, kw_only=True, tag_field="kind", tag="ssh"):
    """A machine reached by ssh; what is not given is as the user's ssh configuration has it.

    Attributes:
        host: Its name, its address, or an alias of the ssh configuration.
        user: Who to log in as.
        port: TCP port.
        identities: Files of private keys.
        known_hosts: File of known host keys.
        check_host_key: Whether an unknown or changed host key is refused.
        config: ssh configuration file.
        probe: File of the probe for that machine, where it is not found by itself.
        connect_timeout: Longest that making a connection may take.
        keepalive: Silence after which the other side is asked for a sign of life; the connection
            is given up at the third question without an answer.
        give_up: For how long a lost connection is tried again.
        reset: With `reboot`: command run here that switches the machine off and on where it does
            not answer `boot_timeout` after a reboot.
        reset_timeout: Longest that it may take.
    """

    host: Annotated[str, msgspec.Meta(min_length=1)]
    user: str | None = None
    port: Annotated[int, msgspec.Meta(ge=1, le=65_535)] | None = None
    identities: list[str] = []
    known_hosts: str | None = None
    check_host_key: bool = True
    config: str | None = None
    probe: str | None = None
    connect_timeout: str = "15s"
    keepalive: str = "5s"
    give_up: str = "10min"
    reset: list[str] = []
    reset_timeout: str = "2min"


class ConsoleSpec(_AnyTarget, frozen=True, kw_only=True):
    """What is the same for every console: how one talks with what is behind it.

    Attributes:
        ready: Regular expression that says that the other side is ready, at the start and after a
            reset; without a reset a board on a serial line is sent an empty line to say it.
        ready_timeout: Longest wait for it.
        start: Lines sent once it is ready, such as a user's name; each is answered by the prompt.
        prompt: Regular expression of the prompt, which tells that a sent line is done.
        shell: Whether a POSIX shell listens: exit codes are asked for, and commands can be run.
        newline: What ends a line that is sent.
        reset: Command run here that resets the board: at the start, and after a run that hung.
        reset_timeout: Longest that it may take.
    """

    ready: str | None = None
    ready_timeout: str = "120s"
    start: list[str] = []
    prompt: str | None = None
    shell: bool = False
    newline: str = "\n"
    reset: list[str] = []
    reset_timeout: str = "2min"


class CommandTarget(ConsoleSpec, frozen=True, kw_only=True, tag_field="kind", tag="command"):
    """A program that yields lines: a console that stays open, or each task's own command.

    Attributes:
        command: The program that stays, such as `labgrid-client console`; without it each run
            starts its task's `command` here and ends with it.
    """

    command: list[str] | None = None


class SerialTarget(ConsoleSpec, frozen=True, kw_only=True, tag_field="kind", tag="serial"):
    """A board behind a serial port.

    Attributes:
        port: Device, or a URL that pyserial opens: `socket://host:port`, `rfc2217://host:port`.
        baud: Bits per second.
    """

    port: Annotated[str, msgspec.Meta(min_length=1)]
    baud: Annotated[int, msgspec.Meta(ge=50)] = 115_200


TargetSpec = LocalTarget | LabTarget | SshTarget | CommandTarget | SerialTarget
