"""Reports on TPMs: what each command takes as floor + compute, and where a TPM stands."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

from excise.cost.tpm_catalogue import CatalogueTpm, Placing, label
from excise.cost.tpm_record import EXTEND, Command, TpmRecord, record_of
from excise.events.dataset import Dataset
from excise.report.facts import facts_of
from excise.report.model import Block, Cell, Chart, Column, Paragraph, Report, Section, Table
from excise.report.tables import DASH, value_cell
from excise.units import format_ns, format_ratio

MODE_WORDS: Final = {
    "none": "plain",
    "lazy": "in one kept session",
    "saved": "in a session saved and loaded each time",
    "hmac": "in a session of its own",
}


def build_bench(dataset: Dataset) -> Report:
    """Return what `excise tpm bench` measured.

    Args:
        dataset: Its capture.

    Raises:
        UsageError: If it is none, or nothing was measured.
    """
    import msgspec

    record = record_of(dataset)
    return Report(
        title=dataset.manifest.title,
        sections=bench_sections(dataset, record=record, alone=True),
        facts=facts_of([dataset], private=False),
        data={"record": msgspec.to_builtins(record)},
    )


def bench_sections(
    dataset: Dataset, *, record: TpmRecord | None = None, alone: bool = False
) -> list[Section]:
    """Return the sections of a TPM's bench.

    Args:
        dataset: Its capture.
        record: Its record, where it is at hand.
        alone: Whether nothing else of the report tells the capture's notes and warnings.
    """
    found = record or record_of(dataset)
    blocks: list[Block] = [Paragraph(text=text, kind="result") for text in sentences(found)]
    if alone and dataset.sessions and dataset.sessions[-1].state != "finished":
        text = f"{dataset.name} is not complete: run the same command again to go on."
        blocks.append(Paragraph(text=text, kind="warning"))
    blocks += [
        Paragraph(text=f"{each.check}: {each.got}, not {each.expected}", kind="warning")
        for each in dataset.effects
        if each.outcome == "FAILED"
    ]
    blocks += [Paragraph(text=note) for note in dataset.manifest.notes if alone]
    blocks.append(commands_table(found))
    if (table := modes_table(found)) is not None:
        blocks.append(table)
    blocks.append(commands_chart(found))
    return [Section(heading="Commands of the TPM", blocks=blocks)]


def sentences(record: TpmRecord) -> list[str]:
    """Return what a bench found in sentences: floor, polling, and what protection costs."""
    floor = record.floor
    text = f"Transport floor: {format_ns(floor.median_ns)}, the median of {floor.command} (fastest "
    text += f"answer {format_ns(floor.min_ns)}). Every command costs it; compute comes on top."
    found = [text]
    if record.polling_step_ns is not None:
        found.append(
            f"The driver polls every {format_ns(record.polling_step_ns)}: "
            f"{record.polling_evidence}. Smaller differences between commands cannot be seen."
        )
    else:
        found.append(f"No polling is seen ({record.polling_evidence}).")
    plain = record.command(EXTEND)
    if plain is None:
        return found
    said = [f"{format_ns(plain.median_ns)} plain"]
    for mode, words in MODE_WORDS.items():
        other = record.command(EXTEND, mode=mode)
        if mode != "none" and other is not None:
            ratio = other.median_ns / plain.median_ns
            said.append(f"{format_ns(other.median_ns)} {words} (×{ratio:.3g})")
    found.append(f"A PCR extend takes {', '.join(said)}: the TPM's time, medians.")
    return found


def commands_table(record: TpmRecord) -> Table:
    """Return first, minimum, median, p95 and maximum of each command, as floor + compute."""
    return Table(
        name="tpm-commands",
        columns=[
            Column(name="command", heading="Command", align="left"),
            Column(name="mode", heading="Mode", align="left"),
            Column(name="first_ns", heading="first", value_unit="ns"),
            Column(name="min_ns", heading="min", value_unit="ns"),
            Column(name="median_ns", heading="median", value_unit="ns"),
            Column(name="p95_ns", heading="p95", value_unit="ns"),
            Column(name="max_ns", heading="max", value_unit="ns"),
            Column(name="n", heading="n"),
            Column(name="floor_ns", heading="floor", value_unit="ns", optional=True),
            Column(name="compute_ns", heading="compute", value_unit="ns", optional=True),
            Column(name="client_ns", heading="client's CPU", value_unit="ns", optional=True),
        ],
        rows=[_command_row(command, record) for command in record.commands],
        caption="The TPM's time for each command, from sending it to its answer",
        notes=[
            f"Clock: {record.clock}.",
            "floor: the transport's, for every command sent; compute: the median less that.",
        ],
    )


def _command_row(command: Command, record: TpmRecord) -> list[Cell]:
    times = (command.first_ns, command.min_ns, command.median_ns, command.p95_ns, command.max_ns)
    floor_ns = command.sends * record.floor.median_ns
    return [
        _word(command.name),
        _word(command.mode),
        *(value_cell(value, "ns") for value in times),
        Cell(text=f"{command.n:,}", value=command.n),
        value_cell(floor_ns, "ns"),
        value_cell(command.compute_ns(record.floor), "ns"),
        value_cell(command.client_ns, "ns"),
    ]


def modes_table(record: TpmRecord) -> Table | None:
    """Return what a PCR extend consists of in each mode, or None where none was measured."""
    modes = [command for command in record.commands if command.name == EXTEND]
    if len(modes) < 2:
        return None
    events = list(
        dict.fromkeys(
            [*(event for command in modes for event in command.parts_ns if event != EXTEND), EXTEND]
        )
    )
    plain = next((command for command in modes if command.mode == "none"), None)
    rows = []
    for command in modes:
        parts = command.parts_ns or {EXTEND: command.median_ns}
        ratio = command.median_ns / plain.median_ns if plain else None
        rows.append(
            [
                _word(command.mode),
                *(value_cell(parts.get(event), "ns") for event in events),
                value_cell(command.median_ns, "ns"),
                DASH if ratio is None else Cell(text=format_ratio(ratio), value=ratio),
                value_cell(command.client_ns, "ns"),
            ]
        )
    return Table(
        name="tpm-modes",
        columns=[
            Column(name="mode", heading="Mode", align="left"),
            *(Column(name=event, heading=event, value_unit="ns") for event in events),
            Column(name="whole", heading="Whole", value_unit="ns"),
            Column(name="ratio", heading="Against plain"),
            Column(name="client", heading="Client's CPU", value_unit="ns"),
        ],
        rows=rows,
        caption="One PCR extend in each mode: medians of the commands it sends",
        notes=[f"{mode}: {words}." for mode, words in MODE_WORDS.items()],
    )


def commands_chart(record: TpmRecord) -> Chart:
    """Return the picture of floor and compute: a bar from the floor to the median."""
    rows: list[dict[str, Any]] = []
    for command in record.commands:
        name = label(command.name, command.mode)
        floor_ns = command.sends * record.floor.median_ns
        compute_ns = command.compute_ns(record.floor)
        says = f"{format_ns(floor_ns)} floor + {format_ns(compute_ns)} compute"
        rows.append({"label": name, "value": floor_ns, "series": "floor of what it sends"})
        rows.append(
            {
                "label": name,
                "value": command.median_ns,
                "low": floor_ns,
                "high": max(floor_ns, command.median_ns),
                "series": "median",
                "text": says,
            }
        )
    return Chart(
        name="tpm-commands",
        kind="range",
        title="Commands of the TPM: floor and compute",
        rows=rows,
        unit="ns",
        caption="For each command the transport's floor and the median; the bar between them is "
        "what the TPM computes",
        axis="TPM's time",
    )


def build_comparison(
    tpm: CatalogueTpm, placings: Sequence[Placing], *, others: Sequence[CatalogueTpm]
) -> Report:
    """Return where a TPM stands among others.

    Args:
        tpm: The TPM.
        placings: Where each of its commands stands.
        others: The TPMs it was placed among.
    """
    sources = sorted({other.source for other in others})
    blocks: list[Block] = []
    if not placings:
        text = "No TPM of the catalogue has a value for any of its commands."
        blocks.append(Paragraph(text=text, kind="warning"))
    else:
        blocks += [
            Paragraph(text=text, kind="result") for text in _placing_sentences(tpm, placings)
        ]
        blocks.append(_placings_table(placings))
        blocks.append(_placings_chart(tpm, placings, others))
    return Report(
        title=f"{tpm.name} among {len(others)} TPMs",
        sections=[Section(heading="Where it stands", blocks=blocks)],
        facts=[("source", source) for source in (tpm.source, *sources)],
        data={
            "tpm": tpm.name,
            "source": tpm.source,
            "placings": [{**dataclasses.asdict(each), "ratio": each.ratio} for each in placings],
            "others": [
                {"name": o.name, "source": o.source, "medians_ns": dict(o.medians_ns)}
                for o in others
            ],
        },
    )


def build_catalogue(tpms: Sequence[CatalogueTpm]) -> Report:
    """Return every TPM of the catalogue with what is known of it."""
    rows = [
        [
            _word(tpm.identifier),
            Cell(text=str(len(tpm.medians_ns)), value=len(tpm.medians_ns)),
            _word(", ".join(tpm.units.costs) or "–"),
        ]
        for tpm in tpms
    ]
    table = Table(
        name="catalogue",
        columns=[
            Column(name="identifier", heading="TPM", align="left"),
            Column(name="commands", heading="Commands"),
            Column(name="modes", heading="Modes of an extend", align="left"),
        ],
        rows=rows,
        caption="TPMs whose costs are known; any part of a name that fits one TPM names it",
    )
    return Report(
        title=f"{len(tpms)} TPMs",
        sections=[Section(heading="Catalogue", blocks=[table])],
        data={
            "tpms": [
                {
                    "identifier": tpm.identifier,
                    "medians_ns": dict(tpm.medians_ns),
                    "extend": {m: dataclasses.asdict(c) for m, c in tpm.units.costs.items()},
                }
                for tpm in tpms
            ]
        },
    )


def _placing_sentences(tpm: CatalogueTpm, placings: Sequence[Placing]) -> list[str]:
    slow = max(placings, key=lambda each: each.ratio)
    quick = min(placings, key=lambda each: each.ratio)
    return [
        f"{tpm.name}, {each.command}: {format_ns(each.value_ns)}, {_ordinal(each.rank)} of "
        f"{each.of} from the fastest; the others' median is {format_ns(each.typical_ns)}."
        for each in dict.fromkeys((quick, slow))
    ]


def _ordinal(rank: int) -> str:
    ending = (
        "th" if rank % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(rank % 10, "th")
    )
    return f"{rank}{ending}"


def _placings_table(placings: Sequence[Placing]) -> Table:
    return Table(
        name="placings",
        columns=[
            Column(name="command", heading="Command", align="left"),
            Column(name="value", heading="This TPM", value_unit="ns"),
            Column(name="rank", heading="Rank"),
            Column(name="typical", heading="Others' median", value_unit="ns"),
            Column(name="ratio", heading="Against it"),
            Column(name="fastest", heading="Fastest other", align="left", optional=True),
            Column(name="slowest", heading="Slowest other", align="left", optional=True),
        ],
        rows=[
            [
                _word(each.command),
                value_cell(each.value_ns, "ns"),
                Cell(text=f"{each.rank} of {each.of}", value=each.rank),
                value_cell(each.typical_ns, "ns"),
                Cell(text=format_ratio(each.ratio), value=each.ratio),
                _end(each.fastest),
                _end(each.slowest),
            ]
            for each in placings
        ],
        caption="Medians of each command among the TPMs that have a value for it",
        notes=["Rank 1 is the fastest. Figures of others are as their sources give them."],
    )


def _placings_chart(
    tpm: CatalogueTpm, placings: Sequence[Placing], others: Sequence[CatalogueTpm]
) -> Chart:
    rows: list[dict[str, Any]] = []
    for each in placings:
        rows += [
            {
                "label": each.command,
                "value": other.medians_ns[each.command],
                "series": "other TPMs",
                "name": other.name,
            }
            for other in others
            if each.command in other.medians_ns
        ]
        rows.append(
            {
                "label": each.command,
                "value": each.value_ns,
                "series": tpm.name,
                "text": f"{format_ns(each.value_ns)}, {each.rank} of {each.of}",
            }
        )
    return Chart(
        name="placings",
        kind="range",
        title=f"{tpm.name} among other TPMs",
        rows=rows,
        unit="ns",
        caption="Median of each command: this TPM, and every other that has a value",
        axis="median of a command",
    )


def _end(pair: tuple[str, float]) -> Cell:
    return Cell(text=f"{format_ns(pair[1])}, {pair[0]}", value=pair[0])


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)
