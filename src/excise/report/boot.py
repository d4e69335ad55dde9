"""Reports of boots: stages beside the published table's, entries, TPM traffic, what is inside."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from excise.cost.boot import GROUPS, STAGES, BootPart, BootRow, boot_parts, boot_rows
from excise.cost.boot_prediction import HeldOut, predict_held_out
from excise.events.dataset import Dataset
from excise.report import tables
from excise.report.facts import facts_of
from excise.report.model import Block, Cell, Column, Paragraph, Report, Section, Table, file_safe
from excise.report.predict import signed_error
from excise.units import counted

_LAYERS: Final = {
    "unit": ("Units", "as `systemd-analyze blame`: units start in parallel, so they do not add up"),
    "critical-chain": ("Critical chain", "what the target waited for"),
    "manager": ("systemd itself", "before it starts units"),
    "initcall": ("Initcalls", "as the kernel ran them with initcall_debug"),
    "device-probe": ("Drivers", "probes of devices, inside initcalls"),
    "quiet": ("Longest quiet times", "between two lines of the kernel's log, named by the first"),
}


def build_boots(datasets: Sequence[Dataset], *, limit: int = 10, private: bool = False) -> Report:
    """Return the boots of captures and references as a report.

    Args:
        datasets: Captures and references, the one that the title is of first.
        limit: Rows of each table of what is inside; 0 for all.
        private: Whether to print facts that name the host.

    Raises:
        UsageError: If one holds no boot.
    """
    rows = [row for dataset in datasets for row in boot_rows(dataset)]
    staged = [row for row in rows if not row.stages.keys() <= set(GROUPS)]
    blocks: list[Block] = [_stage_table(staged)] if staged else []
    sections = [Section(heading="Boots", blocks=blocks)]
    if any("shutdown" in row.stages or row.published for row in rows):
        sections.append(Section(heading="As a table of a reboot", blocks=[_group_table(rows)]))
    if traffic := _traffic_table(rows):
        sections.append(Section(heading="Commands to the TPM", blocks=[traffic]))
    predictions = [each for dataset in datasets for each in predict_held_out(dataset)]
    if predictions:
        sections.append(
            Section(heading="Prediction against measurement", blocks=[_held_out(predictions, rows)])
        )
    parts = [part for dataset in datasets for part in boot_parts(dataset)]
    sections += _inside(parts, limit=limit)
    sections += proof_sections(datasets)
    return Report(
        title=" and ".join(dataset.manifest.title for dataset in datasets),
        sections=[section for section in sections if section.blocks],
        facts=facts_of(datasets, private=private),
        data={
            "boots": [_plain(row) for row in rows],
            "predictions": [dataclasses.asdict(each) for each in predictions],
            "parts": [_part(part) for part in parts],
        },
    )


def _stage_table(rows: Sequence[BootRow]) -> Table:
    names = [stage.name for stage in STAGES if any(stage.name in row.stages for row in rows)]
    names += sorted({name for row in rows for name in row.stages} - set(names))
    several = len({row.source for row in rows}) > 1 or len({row.task for row in rows}) > 1
    columns = [Column(name="configuration", heading="Boot", align="left")]
    if several:
        columns.insert(0, Column(name="source", heading="Of", align="left"))
    columns += [Column(name="n", heading="n"), Column(name="entries", heading="IMA entries")]
    columns += [
        Column(name=file_safe(name), heading=name, value_unit="ns")
        for name in names
        if name != "shutdown"
    ]
    columns += [
        Column(name="total", heading="whole boot", value_unit="ns"),
        Column(name="spread", heading="min to max", optional=True),
        Column(name="shutdown", heading="shutdown", value_unit="ns"),
    ]
    body = []
    for row in rows:
        cells = [Cell(text=row.configuration)]
        if several:
            where = row.source if row.task == "boot" else f"{row.source}: {row.task}"
            cells.insert(0, Cell(text=where))
        cells += [Cell(text=str(row.n), value=row.n), _count(row)]
        cells += [_median(row, name) for name in names if name != "shutdown"]
        cells += [
            tables.value_cell(row.total.median if row.total else None, "ns"),
            _spread(row),
            _median(row, "shutdown"),
        ]
        body.append(cells)
    notes = ["Medians over n boots. A stage that a source does not tell has a dash."]
    notes += [
        f"{row.configuration}: {row.incomplete} of {counted(row.n, 'boot is', 'boots are')} "
        "incomplete: "
        "nothing tells "
        "when they were ready. They have no total, and no prediction is made from them."
        for row in rows
        if row.incomplete
    ]
    return Table(name="boots", columns=columns, rows=body, notes=notes)


def _count(row: BootRow) -> Cell:
    if row.entries is None:
        return tables.DASH
    return Cell(text=f"{row.entries.median:,.0f}", value=row.entries.median)


def _median(row: BootRow, name: str) -> Cell:
    found = row.stages.get(name)
    return tables.value_cell(found.median if found else None, "ns")


def _spread(row: BootRow) -> Cell:
    if row.total is None or row.total.n < 2:
        return tables.DASH
    return Cell(
        text=f"{tables.shown(row.total.min, 'ns')} to {tables.shown(row.total.max, 'ns')}",
        value=row.total.max - row.total.min,
    )


def _group_table(rows: Sequence[BootRow]) -> Table:
    """Return the thesis's table: stages down, configurations across."""
    columns = [Column(name="stage", heading="Stage", align="left")]
    columns += [
        Column(name=f"boot_{number}", heading=_heading(row, rows), value_unit="ns")
        for number, row in enumerate(rows)
    ]
    groups = [group for group in GROUPS if any(group in row.groups for row in rows)]
    body = [
        [Cell(text=group), *(tables.value_cell(row.groups.get(group), "ns") for row in rows)]
        for group in groups
    ]
    whole = [tables.value_cell(row.complete_ns, "ns") for row in rows]
    body.append([Cell(text="complete"), *whole])
    note = (
        "Stages as in the published reboot measurements: firmware, loader, kernel and initrd lie "
        "before the decryption of the disk, user space after it."
    )
    return Table(name="reboot", columns=columns, rows=body, notes=[note])


def _heading(row: BootRow, rows: Sequence[BootRow]) -> str:
    same = sum(each.configuration == row.configuration for each in rows)
    if same == 1:
        return row.configuration
    return f"{row.task if row.published else row.source}: {row.configuration}"


def _traffic_table(rows: Sequence[BootRow]) -> Table | None:
    counted = [row for row in rows if row.commands]
    if not counted:
        return None
    names = list(dict.fromkeys(name for row in counted for name in row.commands or ()))
    columns = [
        Column(name="configuration", heading="Boot", align="left"),
        Column(name="mode", heading="Extends", align="left"),
        *(Column(name=file_safe(name), heading=name) for name in names),
        Column(name="sent", heading="sent", value_unit="B"),
    ]
    body = []
    for row in counted:
        commands = row.commands or {}
        cells = [
            Cell(text=row.configuration),
            Cell(text=_MODES.get(row.mode or "", row.mode or "not known")),
        ]
        cells += [
            Cell(text=f"{commands[name].median:,.0f}", value=commands[name].median)
            if name in commands
            else tables.DASH
            for name in names
        ]
        body.append([*cells, tables.value_cell(row.sent_bytes, "B")])
    note = "From init on: what is sent before it (start-up, the boot aggregate) is not counted."
    return Table(name="tpm-commands", columns=columns, rows=body, notes=[note])


_MODES: Final = {
    "none": "plain",
    "hmac": "HMAC, a session each",
    "saved": "HMAC, session saved and loaded",
    "lazy": "HMAC, session kept",
}


def _held_out(predictions: Sequence[HeldOut], rows: Sequence[BootRow]) -> Table:
    columns = [
        Column(name="configuration", heading="Boot", align="left"),
        Column(name="mode", heading="Mode", align="left"),
        Column(name="entries", heading="IMA entries"),
        Column(name="unit", heading="an entry", value_unit="ns"),
        Column(name="predicted", heading="predicted", value_unit="ns"),
        Column(
            name="interval", heading="95 % interval", value_unit="ns", optional=True, bounded=True
        ),
        Column(name="measured", heading="measured", value_unit="ns"),
        Column(name="error", heading="error"),
    ]
    several = len({row.source for row in rows}) > 1
    sources = list(dict.fromkeys(each.source for each in predictions))
    if len(sources) > 1:
        columns.insert(0, Column(name="source", heading="Of", align="left"))
    body = [
        [
            *([Cell(text=each.source)] if len(sources) > 1 else []),
            Cell(text=each.configuration),
            Cell(text=each.mode),
            Cell(text=f"{each.entries:,}", value=each.entries),
            tables.value_cell(each.unit_ns, "ns"),
            tables.value_cell(each.predicted_ns, "ns"),
            _interval(each),
            tables.value_cell(each.measured_ns, "ns"),
            Cell(text=signed_error(each.error_ratio), value=each.error_ratio),
        ]
        for each in predictions
    ]
    notes = ["Each configuration is predicted by a fit to the boots of all others, not its own."]
    predicted = {(each.source, each.configuration) for each in predictions}
    if open_ := [
        f"{row.source}: {row.configuration}" if several else row.configuration
        for row in rows
        if row.total and row.entries and (row.source, row.configuration) not in predicted
    ]:
        notes.append(
            "Not predicted, as the other boots of its capture do not tell what an entry costs in "
            f"its mode: {'; '.join(open_)}."
        )
    if doubtful := ", ".join(each.configuration for each in predictions if each.doubtful):
        notes.append(
            f"{doubtful}: by a fit in which an entry, or a boot without any, takes less than "
            "nothing; the boots differ in something else, and no interval holds."
        )
    caption = f"Boots of {sources[0]}" if several and len(sources) == 1 else ""
    return Table(name="prediction", columns=columns, rows=body, notes=notes, caption=caption)


def _interval(each: HeldOut) -> Cell:
    if each.low_ns is None or each.high_ns is None:
        return tables.DASH
    text = f"{tables.shown(each.low_ns, 'ns')} to {tables.shown(each.high_ns, 'ns')}"
    return Cell(text=text, bounds=(each.low_ns, each.high_ns))


def _inside(parts: Sequence[BootPart], *, limit: int) -> list[Section]:
    sections = []
    for layer in dict.fromkeys([*_LAYERS, *(part.layer for part in parts)]):
        own = [part for part in parts if part.layer == layer]
        if not own or layer == "target":
            continue
        heading, caption = _LAYERS.get(layer, (layer, ""))
        arms = list(dict.fromkeys(part.configuration for part in own))
        blocks: list[Block] = [
            _part_table(
                [part for part in own if part.configuration == arm],
                name=f"{layer}-{number}",
                caption=f"{arm}: {caption}" if caption else arm,
                limit=limit,
            )
            for number, arm in enumerate(arms)
        ]
        sections.append(Section(heading=heading, blocks=blocks))
    return sections


def _part_table(parts: Sequence[BootPart], *, name: str, caption: str, limit: int) -> Table:
    shown = parts[:limit] if limit else parts
    columns = [
        Column(name="name", heading="Name", align="left"),
        Column(name="start", heading="Start", value_unit="ns", optional=True),
        Column(name="duration", heading="Time", value_unit="ns"),
        Column(name="n", heading="n"),
    ]
    body = [
        [
            Cell(text=part.name),
            tables.value_cell(part.start_ns, "ns"),
            tables.value_cell(part.duration.median, "ns"),
            Cell(text=str(part.duration.n), value=part.duration.n),
        ]
        for part in shown
    ]
    left = len(parts) - len(shown)
    notes = [f"{left} more are not printed; --all prints them."] if left else []
    return Table(name=file_safe(name), columns=columns, rows=body, caption=caption, notes=notes)


def proof_sections(datasets: Sequence[Dataset]) -> list[Section]:
    """Return how configurations were proven, and what was lost, where there is either."""
    sections = []
    if effects := [effect for dataset in datasets for effect in dataset.effects]:
        table = tables.effects_table(list(dict.fromkeys(effects)))
        sections.append(Section(heading="Configurations in effect", blocks=[table]))
    if losses := [loss for dataset in datasets for loss in dataset.losses]:
        warning = Paragraph(
            text=f"{sum(loss.count for loss in losses):,} lines or events could not be used.",
            kind="warning",
        )
        blocks: list[Block] = [warning, tables.losses_table(losses)]
        sections.append(Section(heading="Lost data", blocks=blocks))
    return sections


def _plain(row: BootRow) -> dict[str, Any]:
    return {
        "source": row.source,
        "task": row.task,
        "configuration": row.configuration,
        "n": row.n,
        "incomplete": row.incomplete,
        "published": row.published,
        "mode": row.mode,
        "entries": row.entries.median if row.entries else None,
        "stages_ns": {
            name: {"median": each.median, "min": each.min, "max": each.max, "n": each.n}
            for name, each in row.stages.items()
        },
        "reboot_ns": dict(row.groups),
        "boot_ns": None
        if row.total is None
        else {"median": row.total.median, "min": row.total.min, "max": row.total.max},
        "complete_ns": row.complete_ns,
        "tpm_commands": None
        if row.commands is None
        else {name: each.median for name, each in row.commands.items()},
        "tpm_sent_bytes": row.sent_bytes,
    }


def _part(part: BootPart) -> dict[str, Any]:
    return {
        "configuration": part.configuration,
        "layer": part.layer,
        "name": part.name,
        "start_ns": part.start_ns,
        "duration_ns": part.duration.median,
        "n": part.duration.n,
    }
