"""What a boot, or any row of PCR extends, would take: base + entries × unit cost(mode) × overlap.

Unit costs come from a TPM's bench or a catalogue, base and overlap from boots. Where boots of one
mode differ in their entries, the unit costs themselves are found by regression over the boots.
Nothing here knows a TPM: `excise.cost.tpm_catalogue` has unit costs, `excise.cost.predict_boots`
finds boots in captures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from excise.cost.predict_doubts import Fitted, doubts, overlap_text
from excise.errors import UsageError
from excise.units import counted

Mode = Literal["none", "hmac", "saved", "lazy"]
MODES: Final[tuple[Mode, ...]] = ("none", "lazy", "saved", "hmac")
LEVEL: Final = 0.95
TOTAL: Final = "total"

_Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """One boot, or any other run that extends a PCR for each of its entries.

    Attributes:
        name: What reports call it.
        mode: How PCR extends are protected: `none`, `hmac` (a session per extend), `saved` (its
            context saved and loaded again), `lazy` (one session kept).
        entries: Measurements, each one PCR extend.
        total_ns: The whole of it.
        stages_ns: Its stages by name, such as `kernel`, `initrd`, `userspace`.
        banks: PCR banks that each extend writes, where that is known.
        configuration: Configuration it ran under; "" where there is none.
    """

    name: str
    mode: str
    entries: int
    total_ns: float
    stages_ns: Mapping[str, float] = field(default_factory=dict)
    banks: int | None = None
    configuration: str = ""

    def duration_ns(self, stage: str = TOTAL) -> float:
        """Return the duration of one stage, or of the whole.

        Raises:
            UsageError: If the boot has no such stage.
        """
        if stage == TOTAL:
            return self.total_ns
        if stage not in self.stages_ns:
            known = ", ".join([TOTAL, *self.stages_ns])
            raise UsageError(
                f"has no stage {stage!r}", source=f"boot {self.name!r}", hint=f"Stages: {known}"
            )
        return self.stages_ns[stage]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """What one PCR extend takes in one mode.

    Attributes:
        mean_ns: Mean, which sums add up to; the only value where a source gives one.
        sd_ns: Standard deviation of single extends, None where the source gives no spread.
        n: Extends it was measured on.
        error_ratio: Largest relative error of this kind of value where it could be checked, as a
            share of the value; None for a value that was measured with its spread.
        basis: `measured`, `published`, or how a proxy was formed.
    """

    mode: str
    mean_ns: float
    sd_ns: float | None = None
    n: int | None = None
    error_ratio: float | None = None
    basis: str = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """What one PCR extend takes on one TPM, by mode.

    Attributes:
        name: Which TPM.
        costs: Unit cost by mode; modes that are not known are not there.
        bank_ns: What one more PCR bank adds to each extend, None where it is not known.
        banks: Banks that the unit costs extend, None where it is not known.
        notes: What must be known to read the figures right.
    """

    name: str
    costs: Mapping[str, UnitCost]
    bank_ns: float | None = None
    banks: int | None = None
    notes: Sequence[str] = ()

    def of(self, mode: str) -> UnitCost:
        """Return the unit cost of one mode.

        Raises:
            UsageError: If it is not known.
        """
        if mode not in self.costs:
            known = ", ".join(self.costs) or "none"
            raise UsageError(
                f"the cost of an extend in mode {mode!r} is not known",
                source=self.name,
                hint=f"Known modes: {known}. Measure the TPM with `excise tpm bench`",
            )
        return self.costs[mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted duration, beside the measured one where there is one.

    Attributes:
        low_ns: Lower end of the interval, None where nothing tells the spread.
        high_ns: Upper end.
        interval: What the interval is: `95 %`, `95 % of the fit`, `largest known error`, or the
            last two together; "" without one.
        doubtful: Whether it comes from a fit that cannot be, which leaves no interval either.
        unit_ns: Cost of one entry that it was made with, overlap included.
        base_ns: What is there without any entry, None where only the added time is predicted.
    """

    name: str
    mode: str
    entries: int
    predicted_ns: float
    unit_ns: float
    low_ns: float | None = None
    high_ns: float | None = None
    interval: str = ""
    base_ns: float | None = None
    measured_ns: float | None = None
    basis: str = ""
    doubtful: bool = False

    @property
    def error_ratio(self) -> float | None:
        """Return (predicted - measured) / measured, None where nothing was measured."""
        if not self.measured_ns:
            return None
        return (self.predicted_ns - self.measured_ns) / self.measured_ns

    @property
    def error_ns(self) -> float | None:
        """Return predicted - measured, None where nothing was measured."""
        return None if self.measured_ns is None else self.predicted_ns - self.measured_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class BootModel:
    """A fit of base + entries × unit cost(mode) × overlap to boots.

    Attributes:
        stage: Which stage was fitted, `total` for the whole boot.
        base_ns: Duration without any entry.
        unit_ns: Cost of one entry by mode, overlap included.
        share: Share of the unit costs that lengthens the boot; None where the unit costs
            themselves were fitted.
        boots: How many boots were fitted.
        degrees: Boots less fitted numbers; 0 leaves no interval.
        residual_sd_ns: Standard deviation of the residuals, None for `degrees` 0.
        known: Each fitted boot: fitted beside measured.
        most_entries: Most entries of one of these boots.
        notes: What must be known to read the fit right.
        doubts: Why the fit cannot be, such as for a TPM that the boots did not have: nothing that
            is predicted by it has an interval then.
    """

    stage: str
    base_ns: float
    unit_ns: Mapping[str, float]
    share: Fitted | None
    boots: int
    degrees: int
    residual_sd_ns: float | None
    known: Sequence[Prediction]
    most_entries: int
    notes: Sequence[str] = ()
    doubts: Sequence[str] = ()
    _columns: Sequence[str] = ()
    _inverse: _Matrix = field(repr=False, default_factory=lambda: np.zeros((0, 0)))
    _units: UnitCosts | None = None

    @property
    def overlap(self) -> float | None:
        """Return the share of the unit costs that lengthens the boot, where it was fitted."""
        return None if self.share is None else self.share.value

    @property
    def _units_ns(self) -> Mapping[str, float] | None:
        if self._units is None:
            return None
        return {mode: cost.mean_ns for mode, cost in self._units.costs.items()}

    def predict(
        self,
        *,
        entries: int,
        mode: str,
        name: str = "",
        measured_ns: float | None = None,
        units: UnitCosts | None = None,
        banks: int | None = None,
    ) -> Prediction:
        """Return what a boot with so many entries would take, with its 95 % interval.

        The interval is that of one new boot: of the fitted line and of a boot's own spread, and,
        for another TPM, of how well the cost of its extend is known. How well that of further
        banks is known is not in it.

        Args:
            entries: Measurements.
            mode: How PCR extends are protected.
            name: What reports call it.
            measured_ns: What was measured, for the error.
            units: Costs of the TPM to predict for; those that the fit was made with when None.
            banks: PCR banks to extend, where it differs from those that the costs are of.

        Raises:
            UsageError: If a mode has no unit cost, or another TPM or number of banks is asked for
                and the fit was made without the costs of its own.
        """
        _check_entries(entries)
        if units is not None or banks is not None:
            return self._elsewhere(
                units or self._own_units(), entries=entries, mode=mode, banks=banks, name=name
            )
        if mode not in self.unit_ns:
            known = ", ".join(self.unit_ns)
            raise UsageError(
                f"the boots tell nothing of mode {mode!r}", hint=f"Modes in the fit: {known}"
            )
        predicted = self.base_ns + entries * self.unit_ns[mode]
        half = self._half_width(_row(entries, mode, self._columns, self._units_ns))
        return Prediction(
            name=name or f"{entries} entries, {mode}",
            mode=mode,
            entries=entries,
            predicted_ns=predicted,
            unit_ns=self.unit_ns[mode],
            low_ns=None if half is None else predicted - half,
            high_ns=None if half is None else predicted + half,
            interval="" if half is None else "95 %",
            base_ns=self.base_ns,
            measured_ns=measured_ns,
            basis=counted(self.boots, "boot"),
            doubtful=bool(self.doubts),
        )

    def predict_boot(self, boot: Boot) -> Prediction:
        """Return the prediction of a boot that was measured, beside its measured duration."""
        return self.predict(
            entries=boot.entries,
            mode=boot.mode,
            name=boot.name,
            measured_ns=boot.duration_ns(self.stage),
        )

    def _own_units(self) -> UnitCosts:
        if self._units is None:
            raise UsageError(
                "a fit without the costs of a TPM tells nothing of another, or of other banks",
                hint="Give the TPM that the boots ran with: --tpm",
            )
        return self._units

    def _elsewhere(
        self, units: UnitCosts, *, entries: int, mode: str, banks: int | None, name: str
    ) -> Prediction:
        """Return a boot of the same base and overlap, with a TPM or banks of other costs."""
        self._own_units()
        assert self.overlap is not None, "a fit with the costs of a TPM has an overlap"
        cost = units.of(mode)
        extend_ns = _extend_ns(units, cost, banks)
        predicted = self.base_ns + entries * extend_ns * self.overlap
        half = self._half_width(np.array([1.0, entries * extend_ns]))
        interval = "" if half is None else "95 % of the fit"
        if half is not None and units is not self._units:
            known = _half_width_added(cost, entries, abs(self.overlap))
            half, interval = _together(half, known, cost)
        return Prediction(
            name=name or f"{entries} entries, {mode}",
            mode=mode,
            entries=entries,
            predicted_ns=predicted,
            unit_ns=extend_ns * self.overlap,
            low_ns=None if half is None else predicted - half,
            high_ns=None if half is None else predicted + half,
            interval=interval,
            base_ns=self.base_ns,
            basis=f"{counted(self.boots, 'boot')}, with the extends of {units.name}",
            doubtful=bool(self.doubts),
        )

    def _half_width(self, row: _Matrix) -> float | None:
        if self.residual_sd_ns is None or self.doubts:
            return None
        spread = self.residual_sd_ns * math.sqrt(1.0 + float(row @ self._inverse @ row))
        return _reach(self.degrees) * spread


def fit_boots(
    boots: Sequence[Boot], *, units: UnitCosts | None = None, stage: str = TOTAL
) -> BootModel:
    """Return the fit of base and unit costs to boots.

    With unit costs of the TPM, base and overlap are fitted: two numbers. Without them base and one
    unit cost a mode are: the boots must then differ in their entries within at least one mode.

    Args:
        boots: At least as many as there are numbers to fit.
        units: Unit costs of the TPM that the boots ran with.
        stage: Which stage of the boots to fit, by default the whole.

    Raises:
        UsageError: If the boots do not determine the numbers, or a mode has no unit cost.
    """
    if not boots:
        raise UsageError("there are no boots to fit", hint="Give at least two")
    units_ns = None
    if units is not None:
        units_ns = {boot.mode: units.of(boot.mode).mean_ns for boot in boots}
    columns = ["base", *(["overlap"] if units_ns else dict.fromkeys(b.mode for b in boots))]
    matrix = np.array([_row(b.entries, b.mode, columns, units_ns) for b in boots])
    measured = np.array([boot.duration_ns(stage) for boot in boots], dtype=np.float64)
    # Scaled to comparable columns, so that the rank does not depend on the unit of time.
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    if np.linalg.matrix_rank(matrix / scale) < len(columns):
        raise UsageError(
            f"{counted(len(boots), 'boot does', 'boots do')} not determine base and "
            f"{', '.join(columns[1:])}",
            hint="Add boots with another number of entries, or give the TPM's unit costs",
        )
    inverse = np.linalg.inv((matrix / scale).T @ (matrix / scale)) / np.outer(scale, scale)
    found = inverse @ matrix.T @ measured
    degrees = len(boots) - len(columns)
    residuals = measured - matrix @ found
    residual_sd_ns = math.sqrt(float(residuals @ residuals) / degrees) if degrees else None
    halves = _reach(degrees) * (residual_sd_ns or 0.0) * np.sqrt(np.diag(inverse))
    base, *rest = (
        Fitted(value=float(v), low=float(v - h), high=float(v + h), degrees=degrees)
        for v, h in zip(found, halves, strict=True)
    )
    share = rest[0] if units is not None else None
    costs = {} if share else dict(zip(columns[1:], rest, strict=True))
    unit_ns = {mode: cost.value for mode, cost in costs.items()}
    if units is not None and share is not None:
        unit_ns = {mode: cost.mean_ns * share.value for mode, cost in units.costs.items()}
    most, mean_ns = max(boot.entries for boot in boots), float(measured.mean())
    doubted = doubts(base=base, overlap=share, costs=costs, boot_ns=mean_ns, entries=most)
    model = BootModel(
        stage=stage,
        base_ns=base.value,
        unit_ns=MappingProxyType(unit_ns),
        share=share,
        boots=len(boots),
        degrees=degrees,
        residual_sd_ns=residual_sd_ns,
        known=(),
        most_entries=most,
        notes=tuple(_fit_notes(len(boots), columns, share, costs, doubtful=bool(doubted))),
        doubts=doubted,
        _columns=tuple(columns),
        _inverse=inverse,
        _units=units,
    )
    return _with_known(model, boots)


def predict_added(
    units: UnitCosts,
    *,
    entries: int,
    mode: str,
    overlap: float = 1.0,
    entry_work_ns: float = 0.0,
    banks: int | None = None,
    base_ns: float | None = None,
    name: str = "",
    measured_ns: float | None = None,
) -> Prediction:
    """Return what entries add, from the unit cost of one TPM: entries × unit cost × overlap.

    Args:
        units: Unit costs of the TPM.
        entries: Measurements.
        mode: How PCR extends are protected.
        overlap: Share of the cost that lengthens the whole; 1 where nothing else runs meanwhile.
        entry_work_ns: What an entry takes besides its extend: reading and hashing the file.
        banks: PCR banks to extend, where it differs from those the unit costs were measured on.
        base_ns: What is there without any entry, added to the prediction.
        name: What reports call it.
        measured_ns: What was measured, for the error.

    Raises:
        UsageError: If a number makes no sense or the mode has no unit cost.
    """
    _check_entries(entries)
    if not 0 <= overlap <= 1:
        raise UsageError(f"an overlap of {overlap:g} is not within 0 and 1")
    cost = units.of(mode)
    unit_ns = _extend_ns(units, cost, banks) * overlap + entry_work_ns
    half = _half_width_added(cost, entries, overlap)
    predicted = entries * unit_ns + (base_ns or 0.0)
    return Prediction(
        name=name or f"{entries} entries, {mode}",
        mode=mode,
        entries=entries,
        predicted_ns=predicted,
        unit_ns=unit_ns,
        low_ns=None if half is None else max(0.0, predicted - half),
        high_ns=None if half is None else predicted + half,
        interval="" if half is None else _interval_name(cost),
        base_ns=base_ns,
        measured_ns=measured_ns,
        basis=f"{units.name}: {cost.basis}",
    )


def entries_left(entries: int, *, kept_ratio: float) -> int:
    """Return the entries that remain when one measurement stands for a digest list.

    Args:
        entries: Entries without the Integrity Digest Cache.
        kept_ratio: Share that is left, within 0 and 1.

    Raises:
        UsageError: If the share is not within 0 and 1.
    """
    _check_entries(entries)
    if not 0 <= kept_ratio <= 1:
        raise UsageError(f"{kept_ratio:.3g} of the entries cannot be left: give 0% to 100%")
    return round(entries * kept_ratio)


def require_mode(mode: str, *, source: str | None = None) -> str:
    """Return a mode that there is.

    Args:
        mode: Its name.
        source: What names it, for the error.

    Raises:
        UsageError: If there is none of that name.
    """
    if mode not in MODES:
        raise UsageError(
            f"the mode {mode!r} is not known", source=source, hint=f"Modes: {', '.join(MODES)}"
        )
    return mode


def _check_entries(entries: int) -> None:
    if entries < 0:
        raise UsageError(f"{entries} entries are fewer than none")


def _extend_ns(units: UnitCosts, cost: UnitCost, banks: int | None) -> float:
    """Return what an extend of so many banks takes.

    Each bank takes the same, and the rest is not below zero: of n banks, k take k/n of the whole at
    least, whatever a bank was found to take on a loaded host.
    """
    if banks is None or banks == units.banks:
        return cost.mean_ns
    if banks < 1:
        raise UsageError(f"{banks} PCR banks make no extend")
    if units.bank_ns is None or units.banks is None:
        raise UsageError(
            "what a PCR bank costs is not known",
            source=units.name,
            hint="Measure a TPM that has several banks with `excise tpm bench`",
        )
    least_ns = cost.mean_ns * min(1.0, banks / units.banks)
    return max(least_ns, cost.mean_ns + (banks - units.banks) * units.bank_ns)


def _interval_name(cost: UnitCost) -> str:
    return "95 %" if cost.error_ratio is None else "largest known error"


def _together(fit: float, known: float | None, cost: UnitCost) -> tuple[float, str]:
    """Return half of the interval of a fit with another TPM's cost, and what it is.

    The spread of a bench does not depend on that of the boots; a known error is no spread, and is
    added whole.
    """
    if known is None:
        return fit, "95 % of the fit"
    if cost.error_ratio is None:
        return math.hypot(fit, known), "95 %"
    return fit + known, "95 % of the fit and largest known error"


def _half_width_added(cost: UnitCost, entries: int, overlap: float) -> float | None:
    """Return half of the interval: of a sum of extends and of their mean, or of a known error."""
    if cost.error_ratio is not None:
        return cost.error_ratio * cost.mean_ns * entries * overlap
    if cost.sd_ns is None or not cost.n or cost.n < 2:
        return None
    return _reach(cost.n - 1) * cost.sd_ns * math.sqrt(entries + entries**2 / cost.n) * overlap


def _reach(degrees: int) -> float:
    """Return half of a 95 % interval in standard deviations; 0 for no degree of freedom."""
    if not degrees:
        return 0.0
    from scipy import stats as scipy_stats

    return float(scipy_stats.t.ppf((1.0 + LEVEL) / 2.0, degrees))


def _row(
    entries: int, mode: str, columns: Sequence[str], units_ns: Mapping[str, float] | None
) -> _Matrix:
    if units_ns is not None:
        return np.array([1.0, entries * units_ns[mode]])
    return np.array([1.0, *(float(entries) if mode == column else 0.0 for column in columns[1:])])


def _fit_notes(
    boots: int,
    columns: Sequence[str],
    overlap: Fitted | None,
    costs: Mapping[str, Fitted],
    *,
    doubtful: bool,
) -> list[str]:
    """Return what to know of a fit; what its doubts say already is not said again."""
    notes = []
    if boots == len(columns):
        notes.append(f"{boots} boots fix {boots} numbers: they leave no residual and no interval.")
    if doubtful:
        return notes
    if overlap is not None and overlap.degrees and overlap.low < 0 and overlap.high > 1:
        notes.append(
            f"The boots leave open what share of an extend lengthens them: {overlap_text(overlap)} "
            "holds all that is possible. Add boots that differ more in their entries."
        )
    elif overlap is not None and not 0 <= overlap.value <= 1:
        notes.append(
            f"An overlap of {overlap.value:.2f} is not within 0 and 1: an entry costs more, or "
            "less, than its extend alone."
        )
    notes += [
        f"Mode {mode}: an entry costs less than nothing in this fit, but no more so than the boots "
        "differ by among themselves."
        for mode, cost in costs.items()
        if cost.value < 0
    ]
    return notes


def _with_known(model: BootModel, boots: Sequence[Boot]) -> BootModel:
    return replace(model, known=tuple(model.predict_boot(boot) for boot in boots))
