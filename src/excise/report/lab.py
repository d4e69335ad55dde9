"""Reports of the lab: instructions per system call, the noise found, and what was proven."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from excise.lab.comparison import Comparison
from excise.lab.count import Difference
from excise.report.model import (
    NOTHING,
    Block,
    Brief,
    Cell,
    Column,
    Emphasis,
    Paragraph,
    Report,
    Section,
    Table,
)
from excise.report.tables import change_text
from excise.units import counted

_NOTES: Final = (
    "Instructions of the guest, user and kernel, per operation: the least batch (steady state).",
    "Below the noise floor a difference is muted. The floor is what A/A guests showed.",
)


def build_lab_comparison(found: Comparison, *, title: str) -> Report:
    """Return a comparison of lab guests as a report."""
    blocks: list[Block] = [*_failures(found)]
    names = list(found.differences)
    blocks += [Paragraph(text=_sentence(found, name), kind="result") for name in names]
    if len(names) == 1:
        blocks.append(_pair_table(found, names[0]))
    elif names:
        blocks.append(_matrix_table(found, names))
    else:
        blocks.append(Paragraph(text="Only the baseline was measured.", kind="warning"))
    sections = [
        Section(heading="Instructions per operation", blocks=blocks),
        Section(heading="First operation", blocks=[_first_table(found)]),
        Section(
            heading="Proof that each configuration took effect",
            blocks=[_proof_table(found)],
            in_short=_proof_in_short(found),
        ),
    ]
    facts = _facts(found)
    return Report(
        title=title,
        sections=sections,
        facts=facts,
        facts_in_short="; ".join(f"{name}: {value}" for name, value in facts) + ".",
        brief=Brief(head=title, lines=_brief_lines(found)),
        data=_data(found),
    )


def _sentence(found: Comparison, name: str) -> str:
    """Return how many system calls a guest makes dearer, and the one it makes dearest."""
    rows = found.differences[name]
    seen = [row for row in rows if row.visible]
    text = f"{_short(name)}: {len(seen)} of {counted(len(rows), 'system call')} differ from "
    text += _short(found.baseline)
    if not seen:
        return f"{text} by more than A/A guests do."
    most = max(seen, key=lambda row: abs(row.ratio))
    change = f"{change_text(most.ratio)} ({most.difference:+,.0f} instructions)"
    return f"{text}; most: {most.task} {change}."


def _brief_lines(found: Comparison) -> list[list[str]]:
    return [
        [
            row.task,
            f"{_short(name)} against {_short(found.baseline)}",
            change_text(row.ratio),
            f"{row.difference:+,.1f} instructions",
            "" if row.visible else "within the noise floor",
        ]
        for name, rows in found.differences.items()
        for row in rows
    ]


def _proof_in_short(found: Comparison) -> str:
    """Return in one sentence that every check passed; "" where one did not."""
    effects = [effect for result in found.results for effect in result.effects]
    if not effects or any(effect.outcome != "PASSED" for effect in effects):
        return ""
    names = ", ".join(dict.fromkeys(_short(effect.configuration) for effect in effects))
    return f"In effect: {names} ({counted(len(effects), 'check')}, all passed)."


def _failures(found: Comparison) -> list[Paragraph]:
    return [
        Paragraph(text=f"{failure.configuration}: {failure.error}", kind="warning")
        for failure in found.failures
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _difference_cell(difference: Difference) -> Cell:
    emphasis: Emphasis = "none" if difference.visible else "muted"
    return Cell(text=change_text(difference.ratio), value=difference.ratio, emphasis=emphasis)


def _noise_cell(found: Comparison, task: str) -> Cell:
    return Cell(text=f"{100 * found.noise[task]:.3f} %", value=found.noise[task])


def _pair_table(found: Comparison, name: str) -> Table:
    rows = [
        (
            Cell(text=difference.task),
            Cell(text=_number(difference.baseline), value=difference.baseline),
            Cell(text=_number(difference.value), value=difference.value),
            Cell(text=f"{difference.difference:+,.1f}", value=difference.difference),
            _difference_cell(difference),
            _noise_cell(found, difference.task),
        )
        for difference in found.differences[name]
    ]
    columns = (
        Column(name="task", heading="System call", align="left"),
        Column(name="baseline", heading=_short(found.baseline), value_unit="instructions"),
        Column(name="value", heading=_short(name), value_unit="instructions"),
        Column(name="difference", heading="Difference", value_unit="instructions"),
        Column(name="ratio", heading="Per cent"),
        Column(name="noise", heading="Noise floor"),
    )
    return Table(name="instructions", columns=columns, rows=rows, notes=_NOTES)


def _short(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _matrix_table(found: Comparison, names: Sequence[str]) -> Table:
    by_task = {name: {d.task: d for d in found.differences[name]} for name in names}
    rows = []
    for task in found.tasks:
        base = found.counts[found.baseline][task].steady
        cells = [Cell(text=task), Cell(text=_number(base), value=base), _noise_cell(found, task)]
        cells += [
            _difference_cell(by_task[name][task]) if task in by_task[name] else Cell(text=NOTHING)
            for name in names
        ]
        rows.append(cells)
    columns = [
        Column(name="task", heading="System call", align="left"),
        Column(name="baseline", heading=_short(found.baseline), value_unit="instructions"),
        Column(name="noise", heading="Noise"),
        *(Column(name=f"ratio_{name}", heading=_short(name)) for name in names),
    ]
    return Table(name="instructions", columns=columns, rows=rows, notes=_NOTES)


def _first_table(found: Comparison) -> Table:
    names = list(found.counts)
    rows = [
        [
            Cell(text=task),
            *(
                Cell(text=_number(counted[task].first), value=counted[task].first)
                if task in counted
                else Cell(text=NOTHING)
                for counted in found.counts.values()
            ),
        ]
        for task in found.tasks
    ]
    columns = [
        Column(name="task", heading="System call", align="left"),
        *(
            Column(name=f"first_{name}", heading=_short(name), value_unit="instructions")
            for name in names
        ),
    ]
    note = "One operation, with the cost of whatever is done once: labels, new measurements, slabs."
    return Table(name="first-operation", columns=columns, rows=rows, notes=(note,))


def _proof_table(found: Comparison) -> Table:
    rows = [
        [
            Cell(text=_short(effect.configuration)),
            Cell(text=effect.check.removeprefix("guest ")),
            _outcome(effect.outcome),
            Cell(text=_cut(effect.expected)),
            Cell(text=_cut(effect.got)),
        ]
        for result in found.results
        for effect in result.effects
    ]
    headings = ("Configuration", "Check", "Outcome", "Expected", "Got")
    columns = [
        Column(name=h.lower(), heading=h, align="left", optional=h in ("Expected", "Got"))
        for h in headings
    ]
    return Table(name="proof", columns=columns, rows=rows, keys=2)


def _outcome(outcome: str) -> Cell:
    return Cell(text=outcome, emphasis="good" if outcome == "PASSED" else "bad")


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."


def _facts(found: Comparison) -> list[tuple[str, str]]:
    first = found.results[0]
    kernels = dict.fromkeys(result.kernel.release for result in found.results)
    return [
        ("Kernels", ", ".join(kernels)),
        ("Clock", first.clock),
        ("A/A guests", str(len(found.twins))),
        ("Memory", f"{first.machine.memory_mib} MiB"),
    ]


def _data(found: Comparison) -> dict[str, Any]:
    return {
        "baseline": found.baseline,
        "unit": "instructions per operation",
        "noise_ratio": found.noise,
        "kernels": {r.configuration: r.kernel.release for r in found.results},
        "counts": {
            name: {
                task: {"first": c.first, "steady": c.steady, "median": c.median}
                for task, c in counted.items()
            }
            for name, counted in found.counts.items()
        },
        "differences": {
            name: [
                {
                    "task": d.task,
                    "difference": d.difference,
                    "ratio": d.ratio,
                    "visible": d.visible,
                }
                for d in listed
            ]
            for name, listed in found.differences.items()
        },
        "failures": [
            {"configuration": f.configuration, **f.error.as_dict()} for f in found.failures
        ],
    }
