"""Boots predicted by a fit to other boots: what the model is worth, on boots it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from excise.cost.predict import Boot, fit_boots
from excise.cost.predict_boots import boots_of
from excise.errors import UsageError
from excise.events.dataset import Dataset


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """A configuration's boots, predicted by a fit to the boots of all others.

    Attributes:
        source: Name of the capture or reference.
        mode: How its PCR extends were protected.
        entries: Median of its entries.
        unit_ns: What an entry takes in the fit.
        predicted_ns: Predicted duration of one boot.
        low_ns: Lower end of the 95 % interval of one boot, None where the fit leaves none.
        high_ns: Upper end.
        measured_ns: Median of its boots.
        boots: Boots that the fit is made of.
        doubtful: Whether the fit cannot be, such as one in which an entry costs less than nothing.
    """

    source: str
    configuration: str
    mode: str
    entries: int
    unit_ns: float
    predicted_ns: float
    low_ns: float | None
    high_ns: float | None
    measured_ns: float
    boots: int
    doubtful: bool = False

    @property
    def error_ratio(self) -> float:
        """Return (predicted - measured) / measured."""
        return (self.predicted_ns - self.measured_ns) / self.measured_ns


def predict_held_out(dataset: Dataset) -> list[HeldOut]:
    """Return the prediction of each configuration whose mode the others' boots tell.

    Args:
        dataset: Boots with their entries; one without gives no prediction.
    """
    try:
        boots = boots_of(dataset)
    except UsageError:
        return []
    return list(_each(boots, source=dataset.name))


def _each(boots: list[Boot], *, source: str) -> Iterator[HeldOut]:
    for configuration in dict.fromkeys(boot.configuration for boot in boots):
        own = [boot for boot in boots if boot.configuration == configuration]
        rest = [boot for boot in boots if boot.configuration != configuration]
        mode = own[0].mode
        entries = round(float(np.median([boot.entries for boot in own])))
        try:
            made = fit_boots(rest).predict(entries=entries, mode=mode)
        except UsageError:
            continue  # the others do not differ in their entries, or have another mode
        yield HeldOut(
            source=source,
            configuration=configuration,
            mode=mode,
            entries=entries,
            unit_ns=made.unit_ns,
            predicted_ns=made.predicted_ns,
            low_ns=made.low_ns,
            high_ns=made.high_ns,
            measured_ns=float(np.median([boot.total_ns for boot in own])),
            boots=len(rest),
            doubtful=made.doubtful,
        )
