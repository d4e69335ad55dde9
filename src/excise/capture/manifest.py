"""The manifest: what a capture is, where it was made, and what must agree to compare it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from excise.clock import Clock

SCHEMA_VERSION = 1


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One fact about the host or the mechanism under test.

    Attributes:
        name: Dotted name, such as `kernel.release` or `library.libgcrypt.version`.
        value: The value; None means it could not be read, with the reason in `note`.
        unit: Unit of a number, or "".
        must_agree: Whether two captures may be compared only if this is equal in both.
        private: Whether it names the host or its owner; left out of reports unless asked for.
    """

    name: str
    value: str | int | float | bool | None
    unit: str = ""
    must_agree: bool = False
    private: bool = False
    note: str = ""


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A foreign file that was imported: its copy in `raw/`, digest, and the format read.

    Attributes:
        path: Path below the capture, or a citation for reference data.
        sha256: Hex digest of the bytes read, or "".
    """

    path: str
    format: str
    sha256: str = ""
    title: str = ""
    url: str = ""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What `manifest.json` holds.

    Attributes:
        origin: `measured` here, `imported` from a file, or `reference` (published figures).
        baseline: Configuration that others are compared with.
        twin: Name of the A/A arm: the baseline a second time, or None where there is none.
        further_twins: Names of A/A arms beyond the first.
        paired: Whether runs were made in randomised blocks, so that they may be paired.
        campaign: The campaign as it was given, fully spelt out; {} for imported data.
        seed: Seed of the order of runs.
    """

    id: str
    created: str
    title: str
    origin: Literal["measured", "imported", "reference"]
    schema_version: int = SCHEMA_VERSION
    excise_version: str = ""
    baseline: str | None = None
    twin: str | None = None
    further_twins: list[str] = []
    paired: bool = False
    seed: int | None = None
    campaign: dict[str, Any] = {}
    host_facts: list[Fact] = []
    clocks: list[Clock] = []
    sources: list[Source] = []
    notes: list[str] = []

    @property
    def twins(self) -> list[str]:
        """Return the names of all A/A arms."""
        return [*([self.twin] if self.twin else []), *self.further_twins]
