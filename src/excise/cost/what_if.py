"""What-if knobs of a prediction: entries, modes, the digest cache, banks, another TPM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from excise.cost.predict import (
    Boot,
    BootModel,
    Prediction,
    UnitCosts,
    entries_left,
    predict_added,
    require_mode,
)
from excise.errors import UsageError
from excise.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """What to predict.

    Attributes:
        entries: Numbers of measurements.
        modes: How PCR extends are protected; all that are known if empty.
        digest_cache_ratio: Share of the entries that the Integrity Digest Cache leaves; each number
            is then predicted with it too. None without it.
        overlap: Share of an extend that lengthens the whole.
        entry_work_ns: What an entry takes besides its extend.
        banks: PCR banks, None for those that unit costs were measured on.
        base_ns: What is there without any entry, None to predict the added time alone.
    """

    entries: Sequence[int] = ()
    modes: Sequence[str] = ()
    digest_cache_ratio: float | None = None
    overlap: float = 1.0
    entry_work_ns: float = 0.0
    banks: int | None = None
    base_ns: float | None = None

    def __post_init__(self) -> None:
        for mode in self.modes:
            require_mode(mode)

    def from_boots(self, model: BootModel, *, others: Sequence[UnitCosts] = ()) -> list[Prediction]:
        """Return what a fit to boots predicts.

        Args:
            model: The fit.
            others: Further TPMs to predict the same boots with, after their own.

        Raises:
            UsageError: If the fit has no such mode, a knob is set whose value the boots tell, or
                one that needs entries stands without.
        """
        told = {
            "overlap": self.overlap != 1.0,
            "entry work": self.entry_work_ns != 0.0,
            "base": self.base_ns is not None,
        }
        if given := [name for name, is_set in told.items() if is_set]:
            raise UsageError(
                f"boots tell the {' and the '.join(given)} themselves",
                hint="Leave it out, or predict from --tpm without boots",
            )
        needing = {
            "another TPM": bool(others),
            "a number of banks": self.banks is not None,
            "a mode": bool(self.modes),
            "the digest cache": self.digest_cache_ratio is not None,
        }
        if (asked := [name for name, is_set in needing.items() if is_set]) and not self.entries:
            raise UsageError(
                f"{' and '.join(asked)}, and no boot to predict with it",
                hint="Give the number of measurements: --entries 444",
            )
        return [
            model.predict(
                entries=count,
                mode=mode,
                name=f"{words}, {mode}" + (f", {units.name}" if units is not None else ""),
                units=units,
                banks=self.banks,
            )
            for units in (None, *others)
            for count, words in self._variants()
            for mode in (self.modes or (model.unit_ns if units is None else units.costs))
        ]

    def from_units(self, units: Sequence[UnitCosts]) -> list[Prediction]:
        """Return what the entries add on each of several TPMs.

        Raises:
            UsageError: If a number makes no sense, or a TPM has no such mode.
        """
        return [
            predict_added(
                each,
                entries=count,
                mode=mode,
                overlap=self.overlap,
                entry_work_ns=self.entry_work_ns,
                banks=self.banks,
                base_ns=self.base_ns,
                name=f"{words}, {mode}" + (f", {each.name}" if len(units) > 1 else ""),
            )
            for each in units
            for count, words in self._variants()
            for mode in (self.modes or each.costs)
        ]

    def assumptions(self) -> list[str]:
        """Return what `from_units` takes for granted, one sentence each."""
        found = []
        if self.overlap == 1.0:
            found.append("Nothing runs beside an extend: an upper bound where boot is parallel.")
        if not self.entry_work_ns:
            found.append("An entry's own work, reading and hashing the file, is not counted.")
        return found

    def _variants(self) -> Iterator[tuple[int, str]]:
        """Yield numbers of entries with what to call them, those of the digest cache at the end."""
        for count in self.entries:
            yield count, counted(count, "entry", "entries")
        if self.digest_cache_ratio is not None:
            for count in self.entries:
                left = entries_left(count, kept_ratio=self.digest_cache_ratio)
                yield left, f"{counted(count, 'entry', 'entries')}, digest cache"


def require_configurations(boots: Sequence[Boot], names: Iterable[str]) -> None:
    """Check that each configuration that a user named is one of these boots'.

    Raises:
        UsageError: If no boot has one of them.
    """
    known = {boot.configuration for boot in boots}
    for name in names:
        if name not in known:
            raise UsageError(
                f"no boot has the configuration {name!r}",
                hint=f"There are: {', '.join(sorted(known))}",
            )


def split_boots(boots: Sequence[Boot], *, fitted: Sequence[str]) -> tuple[list[Boot], list[Boot]]:
    """Return the boots to fit, and those to predict by that fit.

    Args:
        boots: Boots that were measured.
        fitted: Configurations to fit; all if empty, and none is left to predict.

    Raises:
        UsageError: If no boot has one of the configurations.
    """
    require_configurations(boots, fitted)
    chosen = fitted or {boot.configuration for boot in boots}
    return (
        [boot for boot in boots if boot.configuration in chosen],
        [boot for boot in boots if boot.configuration not in chosen],
    )
