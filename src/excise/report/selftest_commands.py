"""Reports on whole commands: what self-tests cost per start, per day, and when it is paid back."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from excise.cost.selftest_commands import CommandCost
from excise.events.dataset import Dataset
from excise.report import tables
from excise.report.facts import facts_of
from excise.report.model import Block, Cell, Column, Paragraph, Report, Section, Table
from excise.units import counted, format_ns, format_ratio_beside


def build_commands(
    dataset: Dataset,
    costs: Sequence[CommandCost],
    *,
    starts_per_day: int,
    share: float,
    target: float,
    notes: Sequence[str] = (),
) -> Report:
    """Return what self-tests cost commands.

    Args:
        dataset: The campaign's capture.
        costs: Its costs.
        starts_per_day: Starts in a day that the costs per day are for.
        share: Share of a process's life that the lifetime is for.
        target: Half-width of the ratio's interval that was asked for.
        notes: What a reader should know.
    """
    blocks: list[Block] = [Paragraph(text=_sentence(each), kind="result") for each in costs]
    if wide := [each for each in costs if each.more_blocks]:
        most = max(each.more_blocks for each in wide)
        text = (
            f"{len(wide)} of {counted(len(costs), 'interval is', 'intervals are')} wider than "
            f"±{tables.per_cent(target)}: "
        )
        text += (
            f"about {counted(most, 'more block')} would bring all of them there, as noisy "
            "as these were."
        )
        blocks.append(Paragraph(text=text, kind="warning"))
    blocks += [Paragraph(text=note) for note in notes]
    blocks.append(_table(costs, starts_per_day=starts_per_day, share=share))
    sections = [Section(heading="Commands with self-tests off and on", blocks=blocks)]
    if dataset.effects:
        table = tables.effects_table(list(dict.fromkeys(dataset.effects)))
        sections.append(Section(heading="States in effect", blocks=[table]))
    return Report(
        title=dataset.manifest.title,
        sections=sections,
        facts=facts_of([dataset], private=False),
        data={
            "starts_per_day": starts_per_day,
            "share": share,
            "target_half_width": target,
            "costs": [_plain(each) for each in costs],
        },
    )


def _sentence(cost: CommandCost) -> str:
    row = cost.comparison
    if math.isnan(row.ratio):
        return f"{row.task}, {row.configuration}: not comparable ({row.obstacle})."
    change = format_ratio_beside(row.ratio, row.low, row.high)
    interval = tables.interval_text(row.low, row.high)
    text = f"{row.task}, {row.configuration} against {row.baseline}: "
    text += (
        f"{format_ns(cost.extra_ns, signed=True)} a start, {change} {interval}, "
        f"{counted(row.n, 'pair')}"
    )
    if cost.more_blocks:
        return f"{text}; {counted(cost.more_blocks, 'more block')} for the interval asked for."
    return f"{text}."


def _table(costs: Sequence[CommandCost], *, starts_per_day: int, share: float) -> Table:
    return Table(
        name="commands",
        columns=[
            Column(name="command", heading="Command", align="left"),
            Column(name="state", heading="State", align="left"),
            Column(name="baseline", heading="Off", value_unit="ns"),
            Column(name="value", heading="On", value_unit="ns"),
            Column(name="extra", heading="Extra a start", value_unit="ns"),
            Column(name="ratio", heading="Change"),
            Column(name="interval", heading="95 % interval", bounded=True),
            Column(name="per_day", heading="Per day", value_unit="ns"),
            Column(name="lifetime", heading="Break-even life", value_unit="ns"),
            Column(name="faults", heading="Disk faults", optional=True),
            Column(name="more", heading="More blocks", optional=True),
        ],
        rows=[_row(each) for each in costs],
        caption="Each command against itself with self-tests off; medians over paired blocks",
        notes=[
            f"Per day: {starts_per_day:,} starts.",
            "Break-even life: that of a process of which the extra is "
            + tables.per_cent(share)
            + ".",
        ],
    )


def _row(cost: CommandCost) -> list[Cell]:
    row = cost.comparison
    nan = math.isnan(row.ratio)
    return [
        Cell(text=row.task, value=row.task),
        Cell(text=row.configuration, value=row.configuration),
        tables.value_cell(row.baseline_value, "ns"),
        tables.value_cell(row.value, "ns"),
        tables.value_cell(cost.extra_ns, "ns"),
        Cell(text="–") if nan else tables.ratio_cell(row.ratio, row.low, row.high),
        tables.interval_cell(row.low, row.high, emphasis="warn" if cost.more_blocks else "none"),
        tables.value_cell(cost.per_day_ns, "ns"),
        tables.value_cell(cost.lifetime_ns, "ns"),
        tables.value_cell(cost.major_faults, "1"),
        Cell(text=str(cost.more_blocks), value=cost.more_blocks),
    ]


def _plain(cost: CommandCost) -> dict[str, Any]:
    row = cost.comparison
    plain = {
        field.name: getattr(cost, field.name)
        for field in dataclasses.fields(cost)
        if field.name != "comparison"
    }
    names = ("task", "configuration", "baseline", "baseline_value", "value", "low", "high", "n")
    plain |= {name: getattr(row, name) for name in names}
    return {**plain, "ratio": row.ratio, "verdict": str(row.verdict), "notes": list(row.notes)}
