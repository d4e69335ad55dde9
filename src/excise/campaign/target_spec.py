"""`[target]` of a campaign file: where it runs; one struct a kind, told apart by `kind`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from excise.lab.machine import Machine

# How often a configuration is entered. `run`: whenever the order of runs says so, which is cheap on
# a running machine. `block`: once in each block, for what a boot or a reboot enters. `once`: one
# visit holds all blocks, for machines that repeat exactly.
Entry = Literal["run", "block", "once"]


class LocalTarget(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="local",
):
    """This machine."""

    @property
    def entry(self) -> Entry:
        """Return how often a configuration is entered."""
        return "run"

    @property
    def twins(self) -> int:
        """Return how many A/A arms there are."""
        return 1


class LabTarget(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="lab",
):
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


TargetSpec = LocalTarget | LabTarget
