"""Reports of predictions: what entries would cost, how sure that is, and how known cases fared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from excise.cost.predict import BootModel, Prediction, UnitCosts
from excise.cost.predict_doubts import beyond, overlap_text
from excise.cost.predict_known import KnownCases
from excise.report.model import Block, Cell, Chart, Column, Paragraph, Report, Section, Table
from excise.report.tables import DASH, value_cell
from excise.units import counted, format_fraction, format_ns


def build_prediction(
    predictions: Sequence[Prediction],
    *,
    model: BootModel | None = None,
    units: Sequence[UnitCosts] = (),
    known: KnownCases | None = None,
    assumptions: Sequence[str] = (),
) -> Report:
    """Return predictions as a report.

    Args:
        predictions: What was predicted, in order.
        model: The fit they were made with, where boots were fitted.
        units: Unit costs they were made with.
        known: Published cases that the same model predicted.
        assumptions: What was assumed, one sentence each.
    """
    sections = []
    if predictions:
        blocks: list[Block] = _doubts(model)
        blocks += [
            Paragraph(text=sentence(each), kind="plain" if each.doubtful else "result")
            for each in predictions
        ]
        if model and (reach := beyond([p.entries for p in predictions], most=model.most_entries)):
            blocks.append(Paragraph(text=reach, kind="warning"))
        blocks += [Paragraph(text=text) for text in assumptions]
        blocks += [Paragraph(text=text) for each in units for text in each.notes]
        blocks.append(predictions_table(predictions))
        blocks.append(predictions_chart(predictions))
        sections.append(Section(heading="Prediction", blocks=blocks))
    if model is not None:
        sections.append(_model_section(model, doubts_said=bool(predictions)))
    if units:
        sections.append(Section(heading="Cost of one extend", blocks=[_units_table(units)]))
    if known is not None:
        sections.append(known_section(known))
    return Report(
        title="Predicted cost of PCR extends",
        sections=sections,
        data={
            "predictions": [_plain(each) for each in predictions],
            "model": None if model is None else _model_data(model),
            "units": [
                {"name": u.name, "costs": {m: dataclasses.asdict(c) for m, c in u.costs.items()}}
                for u in units
            ],
            "known": None if known is None else _known_data(known),
            "assumptions": list(assumptions),
        },
    )


def sentence(found: Prediction) -> str:
    """Return a prediction as a sentence that can stand alone."""
    what = "adds" if found.base_ns is None else "takes"
    text = f"{found.name}: {what} {format_ns(found.predicted_ns)}"
    if found.low_ns is not None and found.high_ns is not None:
        text += f" [{format_ns(found.low_ns)}, {format_ns(found.high_ns)}: {found.interval}]"
    else:
        why = "the fit cannot be" if found.doubtful else "nothing tells the spread"
        text += f" (no interval: {why})"
    text += f", {format_ns(found.unit_ns)} an entry; from {found.basis}"
    if found.measured_ns is not None and found.error_ratio is not None:
        text += (
            f"; measured {format_ns(found.measured_ns)}, error {signed_error(found.error_ratio)}"
        )
    return text + "."


def predictions_table(found: Sequence[Prediction], *, name: str = "predictions") -> Table:
    """Return predicted, interval, measured and error of each prediction."""
    measured = any(each.measured_ns is not None for each in found)
    columns = [
        Column(name="name", heading="What", align="left"),
        Column(name="mode", heading="Mode", align="left"),
        Column(name="entries", heading="Entries"),
        Column(name="unit_ns", heading="An entry", value_unit="ns", optional=measured),
        Column(name="predicted_ns", heading="Predicted", value_unit="ns"),
    ]
    if kinds := list(dict.fromkeys(each.interval for each in found if each.interval)):
        columns.append(Column(name="interval", heading="Interval", value_unit="ns", bounded=True))
    if measured:
        columns.append(Column(name="measured_ns", heading="Measured", value_unit="ns"))
        columns.append(Column(name="error_ns", heading="Error", value_unit="ns"))
        columns.append(Column(name="error_ratio", heading="Error %"))
    return Table(
        name=name,
        columns=columns,
        rows=[[_cell(each, column.name) for column in columns] for each in found],
        caption="Predicted durations" + (" beside measured ones" if measured else ""),
        notes=[f"Interval: {' or '.join(kinds)}."] if kinds else [_no_interval(found)],
    )


def _no_interval(found: Sequence[Prediction]) -> str:
    if any(each.doubtful for each in found):
        return "No interval: these come from a fit that cannot be."
    return "Nothing tells the spread."


def _doubts(model: BootModel | None) -> list[Block]:
    """Return why a fit cannot be, which stands before anything that comes from it."""
    return [Paragraph(text=text, kind="warning") for text in (model.doubts if model else ())]


def _cell(found: Prediction, column: str) -> Cell:
    match column:
        case "name" | "mode":
            text = str(getattr(found, column))
            return Cell(text=text, value=text)
        case "entries":
            return Cell(text=f"{found.entries:,}", value=found.entries)
        case "interval":
            if found.low_ns is None or found.high_ns is None:
                return DASH
            text = f"[{format_ns(found.low_ns)}, {format_ns(found.high_ns)}]"
            return Cell(text=text, bounds=(found.low_ns, found.high_ns))
        case "error_ratio":
            ratio = found.error_ratio
            return DASH if ratio is None else Cell(text=signed_error(ratio), value=ratio)
        case "error_ns":
            value = found.error_ns
            if value is None:
                return DASH
            return Cell(text=format_ns(round(value), signed=True), value=value)
        case _:
            return value_cell(getattr(found, column), "ns")


def predictions_chart(found: Sequence[Prediction], *, name: str = "predictions") -> Chart:
    """Return predictions with their intervals, and what was measured."""
    rows: list[dict[str, Any]] = []
    for each in found:
        rows.append(
            {
                "label": each.name,
                "value": each.predicted_ns,
                "low": each.low_ns,
                "high": each.high_ns,
                "series": "predicted",
                "text": format_ns(each.predicted_ns),
            }
        )
        if each.measured_ns is not None:
            rows.append({"label": each.name, "value": each.measured_ns, "series": "measured"})
    return Chart(
        name=name,
        kind="range",
        title="Predicted durations",
        rows=rows,
        unit="ns",
        caption="Each prediction with its 95 % interval where one is known, and what was measured",
        axis="duration",
    )


def known_section(known: KnownCases) -> Section:
    """Return how the model fares on published cases of one TPM."""
    overlap = known.model.overlap
    share = "" if overlap is None else f", {format_fraction(overlap)} of an extend lengthens a boot"
    cases = [*known.boots, *known.long_runs]
    worst = max(cases, key=lambda each: abs(each.error_ratio or 0.0))
    text = (
        f"Fitted to the two published boots with 444 entries (base {format_ns(known.model.base_ns)}"
        f"{share}), the two with 218 entries are predicted; the runs of 12,313 entries are "
        f"predicted from the traced cost of one extend. Largest error "
        f"{signed_error(worst.error_ratio)} ({worst.name})."
    )
    more = (
        f"The long runs again, with {format_ns(known.entry_work_ns)} for each entry besides its "
        "extend, as the run without HMAC shows: reading and hashing the file."
    )
    return Section(
        heading="How known cases are predicted",
        blocks=[
            Paragraph(text=text),
            predictions_table(cases, name="known"),
            Paragraph(text=more),
            predictions_table(known.with_work, name="known-with-work"),
            predictions_chart(cases, name="known"),
        ],
    )


def _model_section(model: BootModel, *, doubts_said: bool) -> Section:
    said = f"Base of {model.stage}: {format_ns(model.base_ns)}"
    if share := model.share:
        verb = "would lengthen" if model.doubts else "lengthens"
        said += f"; {overlap_text(share)} of an extend's cost {verb} it"
    if model.residual_sd_ns is not None:
        said += f"; residual standard deviation {format_ns(model.residual_sd_ns)}"
    said += f"; {counted(model.boots, 'boot')}, {counted(model.degrees, 'degree')} of freedom."
    blocks: list[Block] = [Paragraph(text=said)]
    blocks += [] if doubts_said else _doubts(model)
    blocks += [Paragraph(text=note, kind="warning") for note in model.notes]
    blocks.append(predictions_table(model.known, name="fitted"))
    return Section(heading="The fit", blocks=blocks)


def _units_table(units: Sequence[UnitCosts]) -> Table:
    rows = [
        [
            Cell(text=each.name, value=each.name),
            Cell(text=mode, value=mode),
            value_cell(cost.mean_ns, "ns"),
            value_cell(cost.sd_ns, "ns"),
            Cell(text=cost.basis, value=cost.basis),
        ]
        for each in units
        for mode, cost in each.costs.items()
    ]
    return Table(
        name="unit-costs",
        columns=[
            Column(name="tpm", heading="TPM", align="left"),
            Column(name="mode", heading="Mode", align="left"),
            Column(name="mean", heading="Mean", value_unit="ns"),
            Column(name="sd", heading="sd", value_unit="ns"),
            Column(name="basis", heading="From", align="left"),
        ],
        rows=rows,
        caption="What one PCR extend costs, by mode",
    )


def signed_error(ratio: float | None) -> str:
    """Return a relative error as a percentage with its sign."""
    return "n/a" if ratio is None else f"{round(ratio * 100, 1) + 0.0:+.1f} %"


def _plain(found: Prediction) -> dict[str, Any]:
    data = dataclasses.asdict(found)
    return {**data, "error_ns": found.error_ns, "error_ratio": found.error_ratio}


def _model_data(model: BootModel) -> dict[str, Any]:
    units: Mapping[str, float] = model.unit_ns
    return {
        "stage": model.stage,
        "base_ns": model.base_ns,
        "unit_ns": dict(units),
        "overlap": model.overlap,
        "overlap_interval": None
        if model.share is None or not model.degrees
        else [model.share.low, model.share.high],
        "boots": model.boots,
        "degrees": model.degrees,
        "residual_sd_ns": model.residual_sd_ns,
        "notes": list(model.notes),
        "doubts": list(model.doubts),
        "known": [_plain(each) for each in model.known],
    }


def _known_data(known: KnownCases) -> dict[str, Any]:
    return {
        "model": _model_data(known.model),
        "boots": [_plain(each) for each in known.boots],
        "long_runs": [_plain(each) for each in known.long_runs],
        "with_work": [_plain(each) for each in known.with_work],
        "entry_work_ns": known.entry_work_ns,
    }
