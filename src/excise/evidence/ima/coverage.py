"""Which part of a list the PCR values cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from excise.evidence.ima.attempt import Attempt, Targets
from excise.evidence.ima.checkpoint import Checkpoint
from excise.evidence.ima.replay import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How far the values reach into the list.

    Attributes:
        entries: Entries of the list that are known: those covered by the checkpoint, and those
            read now.
        covered_entries: Entries that every value given covers.
        match: The last entry that every value of IMA's PCR covers; `None` if there is none.
        match_end: Byte offset in the input after it.
        tail_entries: Entries of IMA's PCR after it.
        other_entries: Entries of other PCRs that no value covers, by index.
        trailing_bytes: Bytes at the end that are no whole entry.
        atomic: Whether all banks of IMA's PCR agree on the last covered entry.
    """

    entries: int
    covered_entries: int
    match: Place | None
    match_end: int | None
    tail_entries: int
    other_entries: Mapping[int, int]
    trailing_bytes: int
    atomic: bool

    @property
    def uncovered_entries(self) -> int:
        """Return how many entries no value covers."""
        return self.entries - self.covered_entries

    @property
    def complete(self) -> bool:
        """Return whether nothing is left uncovered."""
        return not self.uncovered_entries and not self.trailing_bytes


def coverage_of(tried: Attempt, targets: Targets, *, before: Checkpoint | None) -> Coverage:
    """Return what the values cover; the least that is true of all banks."""
    ours = [result for result in tried.results if result.pcr == targets.pcr]
    counted = before.count if before else 0
    reached = bool(ours) and all(result.reached for result in ours)
    new_covered = min((r.covered_entries for r in ours), default=0) if reached else 0
    register = tried.first.register(targets.pcr)
    ours_entries = register.entries if register else 0
    others: dict[int, int] = {}
    others_covered = 0
    for other in tried.first.registers:
        if other.pcr == targets.pcr or not other.entries:
            continue
        results = [r for r in tried.results if r.pcr == other.pcr]
        good = bool(results) and all(r.reached for r in results)
        covered = min((r.covered_entries for r in results), default=0) if good else 0
        others_covered += covered
        if covered < other.entries:
            others[other.pcr] = other.entries - covered
    hits = [r.hit for r in ours if r.hit]
    last = min(hits, key=lambda hit: hit.place.index) if len(hits) == len(ours) and hits else None
    return Coverage(
        entries=counted + tried.first.entries,
        covered_entries=(counted + new_covered + others_covered) if reached else 0,
        match=last.place if last and reached else None,
        match_end=last.end if last and reached else None,
        tail_entries=ours_entries - new_covered,
        other_entries=others,
        trailing_bytes=tried.first.trailing_bytes,
        atomic=len({r.hit.place.index if r.hit else -1 for r in ours}) <= 1,
    )
