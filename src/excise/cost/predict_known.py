"""Predictions of published cases, so that nobody needs to trust a model that was never checked.

The thread on TPM HMAC sessions has four boots, three runs of 12,313 entries, and the trace of one
extend in each mode, all of one TPM.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from excise.cost.predict import Boot, BootModel, Prediction, UnitCosts, fit_boots, predict_added
from excise.cost.predict_boots import boots_of
from excise.cost.tpm_catalogue import TRACE, find_tpm
from excise.reference import load

FITTED_ENTRIES: Final = 444
LONG_RUNS: Final = "12313 measurements"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCases:
    """What the model makes of cases whose answer is known.

    Attributes:
        model: The fit to the boots with 444 entries.
        boots: The boots with 218 entries: predicted by that fit, and measured.
        long_runs: The runs of 12,313 entries: predicted from the cost of an extend alone.
        with_work: The same with the time that an entry took besides its extend in the run without
            HMAC, which is thereby no prediction and left out.
        entry_work_ns: That time.
    """

    model: BootModel
    boots: tuple[Prediction, ...]
    long_runs: tuple[Prediction, ...]
    with_work: tuple[Prediction, ...]
    entry_work_ns: float


def known_cases() -> KnownCases:
    """Return the published cases, each predicted from others of the same TPM."""
    published, units = load(TRACE), _without_errors(find_tpm(f"reference:{TRACE}").units)
    boots = [boot for boot in boots_of(published) if boot.entries <= FITTED_ENTRIES]
    same = [boot for boot in boots if boot.entries == FITTED_ENTRIES and _is_of_the_tpm(boot)]
    others = [boot for boot in boots if boot.entries != FITTED_ENTRIES and _is_of_the_tpm(boot)]
    model = fit_boots(same, units=units)
    long_runs = boots_of(published, task=LONG_RUNS)
    plain = next(run for run in long_runs if run.mode == "none")
    work_ns = plain.total_ns / plain.entries - units.of("none").mean_ns
    return KnownCases(
        model=model,
        boots=tuple(model.predict_boot(boot) for boot in others),
        long_runs=tuple(_added(units, run, 0.0) for run in long_runs),
        with_work=tuple(_added(units, run, work_ns) for run in long_runs if run.mode != "none"),
        entry_work_ns=work_ns,
    )


def _added(units: UnitCosts, run: Boot, work_ns: float) -> Prediction:
    return predict_added(
        units,
        entries=run.entries,
        mode=run.mode,
        entry_work_ns=work_ns,
        name=run.name,
        measured_ns=run.total_ns,
    )


def _without_errors(units: UnitCosts) -> UnitCosts:
    """Return unit costs without the errors that come from the very cases to be predicted."""
    return replace(
        units, costs={mode: replace(c, error_ratio=None) for mode, c in units.costs.items()}
    )


def _is_of_the_tpm(boot: Boot) -> bool:
    return bool(boot.stages_ns)
