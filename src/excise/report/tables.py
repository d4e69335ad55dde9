"""From results to tables: what each cell says, and which value stands behind it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Final

from excise.capture.journal import Effect, Loss
from excise.cost.attribution import Attribution, Part
from excise.cost.compared import Comparison, Comparisons
from excise.cost.counted import INSTRUCTIONS
from excise.cost.difference_rows import FUNCTION_LAYER
from excise.cost.summary import TaskSummary
from excise.report.model import NOTHING, Cell, Column, Emphasis, Table, file_safe
from excise.stats import AAOutcome, Verdict
from excise.units import (
    counted,
    format_bytes,
    format_count,
    format_ns,
    format_ratio_beside,
    format_ratio_interval,
)

_EMPHASIS: Final[dict[Verdict, Emphasis]] = {
    Verdict.COSTS: "bad",
    Verdict.SAVES: "good",
    Verdict.EQUIVALENT: "none",
    Verdict.INCONCLUSIVE: "muted",
    Verdict.NOT_COMPARABLE: "warn",
}
_NS_PER: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "ms": 1e6, "s": 1e9}
DASH: Final = Cell(text=NOTHING)


def shown(value: float | None, unit: str) -> str:
    """Return a value with its unit, rounded for reading; a dash for None."""
    if value is None or math.isnan(value):
        return NOTHING
    if unit in _NS_PER:
        return format_ns(value * _NS_PER[unit])
    if unit == "B":
        return format_bytes(value)
    return format_count(value) if unit in ("1", "") else f"{format_count(value)} {unit}"


def value_cell(value: float | None, unit: str) -> Cell:
    """Return the cell of a value; a dash where there is none."""
    return (
        DASH if value is None or math.isnan(value) else Cell(text=shown(value, unit), value=value)
    )


def interval_cell(low: float | None, high: float | None, *, emphasis: Emphasis = "none") -> Cell:
    """Return the cell of a ratio's interval; a dash where there is none."""
    bounds = None if low is None or high is None else (low, high)
    return Cell(text=interval_text(low, high), emphasis=emphasis, bounds=bounds)


def ratio_cell(ratio: float, low: float | None, high: float | None) -> Cell:
    """Return a ratio as a change, in the form of the interval that stands beside it."""
    return Cell(text=format_ratio_beside(ratio, low, high), value=ratio)


def interval_text(low: float | None, high: float | None) -> str:
    """Return an interval of a ratio as changes in per cent, or a dash."""
    if low is None or high is None:
        return NOTHING
    return format_ratio_interval(low, high)


def summary_table(rows: Sequence[TaskSummary], *, name: str = "runs", caption: str = "") -> Table:
    """Return first, minimum, mean, quantiles and maximum of each task and configuration."""
    parts = any(row.event for row in rows)
    places = {(row.task, row.configuration, row.layer, row.event) for row in rows}
    # A time of the user's and one of the system's would else stand in rows that look alike.
    metrics = len({(row.metric, row.task, row.configuration, row.layer, row.event) for row in rows})
    several = metrics > len(places)
    columns = [
        Column(name="task", heading="Task", align="left"),
        Column(name="configuration", heading="Configuration", align="left"),
    ]
    if parts or several:
        columns.append(Column(name="event", heading="Part", align="left"))
    unit = _common_unit(rows)
    statistics = [
        each for each in _STATISTICS if any(getattr(row, each) is not None for row in rows)
    ]
    if unit == INSTRUCTIONS:  # said once: the word in each cell would hide the numbers
        caption += f"; in {unit}"
    columns += [
        Column(name=each, heading=each, value_unit=unit, optional=each in _OPTIONAL)
        for each in statistics
    ]
    columns.append(Column(name="n", heading="n", optional=all(row.n is None for row in rows)))
    measured = any(row.effective_n is not None for row in rows)
    if measured:
        columns.append(Column(name="effective_n", heading="ESS", optional=True))
        columns.append(Column(name="failed", heading="failed", optional=True))
    noted = any(row.note for row in rows)
    if noted:
        columns.append(Column(name="note", heading="note", align="left"))
    if several:  # the part tells it where there is no room
        columns.append(Column(name="metric", heading="Metric", align="left", optional=True))
    cells = []
    for row in rows:
        line = [_word(row.task), _word(row.configuration)]
        if parts or several:
            line.append(_word(_part_name(row, several=several)))
        line += [_statistic(row, each, bare=unit == INSTRUCTIONS) for each in statistics]
        line.append(_count(row.n))
        if measured:
            line.append(_count(row.effective_n))
            line.append(Cell(text=str(row.failed), value=row.failed, emphasis=_failed(row.failed)))
        if noted:
            line.append(_word(row.note))
        if several:
            line.append(_word(row.metric))
        cells.append(line)
    return Table(name=name, columns=columns, rows=cells, caption=caption)


_OPTIONAL: Final = ("sd", "p99", "max", "min")
_STATISTICS: Final = ("first", "min", "mean", "median", "p95", "p99", "max", "sd")


def _statistic(row: TaskSummary, name: str, *, bare: bool) -> Cell:
    if name == "mean" and row.growing:
        return Cell(text="grows", emphasis="warn")
    return value_cell(getattr(row, name), "1" if bare else row.unit)


def entries_table(rows: Sequence[TaskSummary]) -> Table:
    """Return how many entries each task added to the IMA list, the first run apart."""
    return Table(
        name="ima-entries",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="first", heading="First run", value_unit="1"),
            Column(name="median", heading="Each later run", value_unit="1"),
            Column(name="n", heading="n"),
        ],
        rows=[
            [
                _word(row.task),
                _word(row.configuration),
                value_cell(row.first, "1"),
                value_cell(row.median, "1"),
                _count(row.n),
            ]
            for row in rows
            if (row.first or 0) > 0 or (row.max or 0) > 0
        ],
        caption="Entries added to the kernel's IMA list; tasks that added none are left out",
    )


def _common_unit(rows: Sequence[TaskSummary]) -> str:
    units = {row.unit for row in rows}
    return units.pop() if len(units) == 1 else ""


def _part_name(row: TaskSummary, *, several: bool) -> str:
    """Return what of a task a row is about; with its metric, if there are several, for a task's."""
    name = f"{row.layer}|{row.event}" if row.event and row.layer != "task" else row.event
    if row.metric != "duration" and (several or row.layer != "task"):
        name = f"{name} ({row.metric})"
    return f"{name} {row.labels}".strip()


def comparison_table(found: Comparisons) -> Table:
    """Return each configuration against the baseline: change, interval, verdict."""
    arms = list(dict.fromkeys(row.configuration for row in found.rows))
    unit = _unit_of(found.rows)
    configuration = Column(name="configuration", heading="Config", align="left")
    columns = [
        Column(name="task", heading="Task", align="left"),
        configuration,
        Column(name="ratio", heading="Change"),
        Column(name="interval", heading="95 % interval", bounded=True),
        Column(name="verdict", heading="Verdict", align="left"),
        Column(name="value", heading="Value", value_unit=unit, optional=True),
        Column(name="baseline_value", heading=found.baseline, value_unit=unit, optional=True),
        Column(name="n", heading="n", optional=True),
        Column(name="effective_n", heading="ESS", optional=True),
        Column(name="p_holm", heading="p (Holm)", optional=True),
    ]
    if any(row.order == "exact counts" for row in found.rows):
        columns[3] = Column(name="interval", heading="To within the floor", bounded=True)
        columns.insert(4, Column(name="noise_ratio", heading="Noise floor"))
    if any(row.event for row in found.rows):
        columns.insert(1, Column(name="event", heading="Part", align="left"))
        if len(arms) == 1:  # the caption names it: its column makes room for the parts
            columns.remove(configuration)
            columns.append(dataclasses.replace(configuration, optional=True))
    return Table(
        name="comparison",
        columns=columns,
        rows=[[_comparison_cell(row, column.name) for column in columns] for row in found.rows],
        caption=f"{', '.join(arms)} against {found.baseline}, "
        f"margin {per_cent(found.margin_ratio)}",
        notes=[
            *_orders(found.rows),
            *_obstacles(found.rows),
            *_more_runs(found.rows),
            *_holm(found.rows),
        ],
    )


def counts_table(found: Comparisons) -> Table:
    """Return counts side by side: a row a task, the baseline's count, each configuration's change.

    A change that is not above the noise floor is muted.
    """
    arms = list(dict.fromkeys(row.configuration for row in found.rows))
    tasks: dict[tuple[str, str], dict[str, Comparison]] = {}
    for row in found.rows:
        tasks.setdefault((row.task, row.event), {})[row.configuration] = row
    rows = []
    for (task, event), by_arm in tasks.items():
        one = next(iter(by_arm.values()))
        base = "" if math.isnan(one.baseline_value) else format_count(one.baseline_value)
        cells = [_word(f"{task} {event}".strip()), Cell(text=base, value=one.baseline_value)]
        cells.append(_floor(one.noise_ratio))
        cells += [_change(by_arm[arm]) if arm in by_arm else DASH for arm in arms]
        rows.append(cells)
    return Table(
        name="counts",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="baseline_value", heading=found.baseline, value_unit=_unit_of(found.rows)),
            Column(name="noise_ratio", heading="Noise"),
            *(Column(name=f"ratio_{arm}", heading=arm) for arm in arms),
        ],
        rows=rows,
        caption=f"{_unit_of(found.rows).capitalize()} under {found.baseline}, and what each "
        "configuration adds",
        notes=_orders(found.rows),
    )


def _floor(noise_ratio: float | None) -> Cell:
    if noise_ratio is None:
        return DASH
    return Cell(text=f"{100 * noise_ratio:.3f} %", value=noise_ratio)


def _change(row: Comparison) -> Cell:
    if math.isnan(row.ratio):
        return DASH
    hidden = row.noise_ratio is not None and abs(row.ratio - 1.0) <= row.noise_ratio
    return Cell(
        text=change_text(row.ratio - 1.0), value=row.ratio, emphasis="muted" if hidden else "none"
    )


def change_text(change_ratio: float) -> str:
    """Return an exact change as per cent with two decimals; what rounds to zero has no sign."""
    per_cent_text = f"{100 * change_ratio:+.2f}"
    return f"{'0.00' if float(per_cent_text) == 0.0 else per_cent_text} %"


def _comparison_cell(row: Comparison, column: str) -> Cell:
    match column:
        case "task" | "configuration":
            return _word(getattr(row, column))
        case "event":
            return _word(row.part)
        case "ratio":
            return _ratio(row)
        case "interval":
            return interval_cell(row.low, row.high)
        case "verdict":
            plain = row.order == "published values"
            emphasis = "none" if plain else _EMPHASIS[row.verdict]
            return Cell(text=short_verdict(row), value=str(row.verdict), emphasis=emphasis)
        case "value" | "baseline_value":
            return value_cell(getattr(row, column), row.unit)
        case "noise_ratio":
            return _floor(row.noise_ratio)
        case "p_holm":
            p = row.p_holm
            return DASH if p is None else Cell(text=f"{p:.2g}", value=p)
        case _:
            return _count(getattr(row, column))


def verdict_text(row: Comparison, *, with_reason: bool = False) -> str:
    """Return the verdict in words, with how many more blocks would decide.

    Args:
        row: The comparison.
        with_reason: Whether to say what is too few, where that is why it is inconclusive.
    """
    if row.order == "published values":
        return "published, no interval"
    if with_reason and row.obstacle:
        return f"{row.verdict} ({row.obstacle})"
    if with_reason and row.too_few:
        return f"{row.verdict}, {row.too_few}"
    if row.verdict is Verdict.INCONCLUSIVE and row.runs_needed:
        return f"{row.verdict}, run {row.runs_needed:,} more"
    return str(row.verdict)


def short_verdict(row: Comparison) -> str:
    """Return the verdict in few words: `inconclusive, +12` lacks some 12 blocks."""
    if row.order == "published values":
        return "published"
    if row.verdict is Verdict.EQUIVALENT:
        return f"equivalent ±{per_cent(row.margin_ratio)}"
    if row.verdict is Verdict.INCONCLUSIVE and row.runs_needed:
        return f"inconclusive, +{row.runs_needed:,}"
    return str(row.verdict)


def _obstacles(rows: Sequence[Comparison]) -> list[str]:
    """Return why rows are not comparable, each reason once with the rows that it is of."""
    found: dict[str, list[str]] = {}
    several = len({row.configuration for row in rows}) > 1  # else the caption names it
    for row in rows:
        if row.obstacle:
            name = f"{row.name} under {row.configuration}" if several else row.name
            found.setdefault(row.obstacle, []).append(name)
    notes = [f"Not comparable: {'; '.join(names)} ({reason})." for reason, names in found.items()]
    unlike = [
        f"Compared as a whole: {row.name} under {row.configuration} ({note})."
        for row in rows
        for note in row.notes
        if not row.obstacle and note.startswith("its parts differ")
    ]
    return [*notes, *unlike]


def _holm(rows: Sequence[Comparison]) -> list[str]:
    lost = [row for row in rows if any("does not survive Holm" in note for note in row.notes)]
    if any(not row.too_few for row in lost):  # else a note says that there are too few pairs
        text = "inconclusive although the interval leaves 0 out: with so many comparisons one such "
        return [text + "interval is expected by chance (p after Holm above 0.05)."]
    return []


def _more_runs(rows: Sequence[Comparison]) -> list[str]:
    undecided = [row for row in rows if row.verdict is Verdict.INCONCLUSIVE]
    notes = [f"{text}." for text in dict.fromkeys(row.too_few for row in undecided) if text]
    if any(row.runs_needed and row.too_few for row in undecided):
        notes.append("inconclusive, +N: with fewer than N more no difference could be told.")
    if any(row.runs_needed and not row.too_few for row in undecided):
        notes.append("inconclusive, +N: about N more blocks would decide, as noisy as these were.")
    return notes


def per_cent(ratio: float) -> str:
    """Return a ratio such as a margin as per cent, as short as it was given: 0.01 is `1 %`."""
    return f"{ratio * 100:g} %"


def _orders(rows: Iterable[Comparison]) -> list[str]:
    orders = sorted({row.order for row in rows})
    words = {
        "paired blocks": "Ratio: median of ln ratios over randomised blocks; interval: sign test.",
        "order unknown": "Order unknown: ratio of medians; test: Brunner-Munzel. Drift may look "
        "like a cost.",
        "exact counts": "Instructions of the guest, user and kernel: least batch of a round, "
        "middle one of the rounds. Noise: what A/A guests differed by; smaller changes are muted.",
        "published values": "Published values: ratio of the printed figures; no interval exists.",
    }
    return [words[order] for order in orders]


def _unit_of(rows: Sequence[Comparison]) -> str:
    units = {row.unit for row in rows}
    return units.pop() if len(units) == 1 else ""


def _ratio(row: Comparison) -> Cell:
    if math.isnan(row.ratio):
        return DASH
    return ratio_cell(row.ratio, row.low, row.high)


def aa_table(found: Comparisons) -> Table | None:
    """Return the A/A arm of each task, or None where there is no such arm."""
    if not found.aa:
        return None
    rows = []
    for task, check in found.aa.items():
        ends = (check.interval.low, check.interval.high) if check.interval else (None, None)
        failed = check.outcome is AAOutcome.FAILED
        rows.append(
            [
                _word(task),
                ratio_cell(check.comparison.ratio, *ends),
                interval_cell(*ends),
                Cell(text=str(check.outcome), emphasis="bad" if failed else "none"),
                _count(check.comparison.n),
            ]
        )
    return Table(
        name="aa",
        columns=[
            Column(name="task", heading="Task", align="left"),
            Column(name="ratio", heading="A/A change"),
            Column(name="interval", heading="Interval", bounded=True),
            Column(name="outcome", heading="Outcome", align="left"),
            Column(name="n", heading="n"),
        ],
        rows=rows,
        caption="The baseline against itself: what this machine calls a difference without one",
        notes=["The intervals hold at 95 % together."]
        if any(check.interval for check in found.aa.values())
        else ["No interval: so few blocks have none that would hold at 95 % for all tasks."],
    )


def attribution_table(found: Attribution) -> Table:
    """Return the parts of one total, its remainder and the probe's own cost."""
    uncertain = any(part.margin is not None for part in found.parts)
    nested = any(part.unattributed is not None for part in found.parts)
    unit = "" if _has_own_scale(found.unit) else found.unit
    remainder = next((part.value for part in found.parts if part.role == "remainder"), None)

    def line(
        words: Sequence[str], value: float, margin: float | None, left: float | None
    ) -> list[Cell]:
        cells = [*map(_word, words), _figure(value, found.unit)]
        if uncertain:
            cells.append(DASH if margin is None else _plus_minus(margin, found.unit))
        if nested:
            cells.append(_figure(left, found.unit))
        return cells

    rows = [
        [
            *line(
                (f"{'  ' * part.depth}{part_label(part)}", part.role),
                part.value,
                part.margin,
                part.unattributed,
            ),
            Cell(text=_per_cent_of(part.share), value=part.share, emphasis=_share(part)),
            _count(part.runs),
        ]
        for part in found.parts
    ]
    total = [
        *line(("total", "total"), found.total, None, remainder),
        Cell(text="100.0%", value=1.0),
        _count(found.n),
    ]
    columns = [
        Column(name="part", heading="Part", align="left"),
        Column(name="role", heading="Role", align="left"),
        Column(name="value", heading="Mean", unit=unit, value_unit=found.unit),
    ]
    if uncertain:
        columns.append(Column(name="margin", heading="±", value_unit=found.unit, optional=True))
    if nested:
        columns.append(Column(name="unattributed", heading="Unattributed", value_unit=found.unit))
    columns += [
        Column(name="share", heading="Share"),
        Column(name="runs", heading="runs", optional=True),
    ]
    between = ""
    if found.explained_interval is not None:
        low, high = found.explained_interval
        between = f" ({low:.1%} to {high:.1%})"
    return Table(
        name=file_safe(f"attribution-{found.task}-{found.configuration}"),
        columns=columns,
        rows=[*rows, total],
        caption=f"{found.task} under {found.configuration}: "
        f"{found.explained:.1%}{between} of {shown(found.total, found.unit)} explained",
        notes=[*found.flags, *found.notes],
    )


def _per_cent_of(share: float) -> str:
    return f"{0.0 if abs(share) < 0.0005 else share:.1%}"


def _has_own_scale(unit: str) -> bool:
    """Return whether a figure's unit depends on its size (ns, µs; KiB, MiB), or is none."""
    return unit in _NS_PER or unit in ("B", "1", "")


def _figure(value: float | None, unit: str) -> Cell:
    """Return the cell of a value whose unit stands in the heading where it is always the same."""
    if value is None or _has_own_scale(unit):
        return value_cell(value, unit)
    return Cell(text=_count_text(value), value=value)


def _count_text(value: float) -> str:
    return format_count(value if abs(value) >= 0.05 else 0.0)


def _plus_minus(margin: float, unit: str) -> Cell:
    words = shown(margin, unit) if _has_own_scale(unit) else _count_text(margin)
    return Cell(text=f"± {words}", value=margin)


def part_label(part: Part) -> str:
    """Return how a part is called: layer, event and labels."""
    inner = part.depth > 0 and part.layer == FUNCTION_LAYER  # it stands under what calls it
    name = f"{part.layer}|{part.event}" if part.layer and not inner else part.event
    return f"{name} ({part.labels})" if part.labels else name


def _share(part: Part) -> Emphasis:
    return "bad" if part.share > 1.0 or part.share < 0.0 else "none"


def effects_table(effects: Sequence[Effect]) -> Table:
    """Return how each configuration was seen to have taken effect."""
    return Table(
        name="effects",
        columns=[
            Column(name="configuration", heading="Configuration", align="left"),
            Column(name="check", heading="Asked", align="left"),
            Column(name="outcome", heading="Outcome", align="left"),
            Column(name="expected", heading="Expected", align="left", optional=True),
            Column(name="got", heading="Got", align="left", optional=True),
        ],
        rows=[
            [
                _word(each.configuration),
                _word(each.check),
                Cell(text=each.outcome, emphasis="good" if each.outcome == "PASSED" else "bad"),
                _word(each.expected),
                _word(each.got),
            ]
            for each in effects
        ],
        caption="Did each configuration take effect? Asked before anything was measured",
        keys=2,
    )


def effects_in_short(effects: Sequence[Effect]) -> str:
    """Return in one sentence that every configuration took effect; "" where one did not."""
    if any(each.outcome != "PASSED" for each in effects):
        return ""
    names = ", ".join(dict.fromkeys(each.configuration for each in effects))
    checks = counted(len(effects), "check")
    return f"In effect: {names} ({checks} before anything was measured, all passed)."


def losses_table(losses: Sequence[Loss]) -> Table:
    """Return what was lost on reading, and why; the first hundred places."""
    rows = [
        [
            _word(each.source),
            _count(each.line if each.line is not None else each.offset),
            _count(each.count),
            _word(each.reason),
        ]
        for each in losses[:100]
    ]
    more = len(losses) - 100
    return Table(
        name="losses",
        columns=[
            Column(name="source", heading="Source", align="left"),
            Column(name="place", heading="Line or offset"),
            Column(name="count", heading="Lost"),
            Column(name="reason", heading="Reason", align="left"),
        ],
        rows=rows,
        caption="What could not be used",
        notes=[f"and {counted(more, 'more place')}"] if more > 0 else [],
    )


def _word(text: str) -> Cell:
    return Cell(text=text, value=text)


def _count(value: float | None) -> Cell:
    return DASH if value is None else Cell(text=format_count(round(value)), value=value)


def _failed(failed: int) -> Emphasis:
    return "bad" if failed else "none"
