"""Published figures as datasets, so that they can be shown and compared like any capture."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from excise.capture.journal import Aggregate, Event, Record, Run
from excise.capture.manifest import Manifest, Source
from excise.clock import Clock
from excise.reference.published import (
    UNITS,
    Published,
    Row,
    Series,
    Table,
    Trace,
    Value,
    names,
    published,
)

if TYPE_CHECKING:
    from excise.events.dataset import Dataset

PREFIX: Final = "reference:"
__all__ = ["PREFIX", "load", "names"]

_Key = tuple[str, str, str, str, str]


def load(name: str) -> Dataset:
    """Return a data set by name, with or without the prefix `reference:`.

    Raises:
        UsageError: If there is no such data set; the names that exist are in the hint.
    """
    from excise.events.load import from_records

    name = name.removeprefix(PREFIX)
    figures = published(name)
    return from_records(records(figures), name=f"{PREFIX}{name}", manifest=_manifest(name, figures))


def records(figures: Published) -> list[Record]:
    """Return runs, events and aggregates of published figures, in nanoseconds and bytes."""
    return [*_runs(figures), *_aggregates(figures)]


def _manifest(name: str, figures: Published) -> Manifest:
    citations = [
        Source(
            path=f"{item.authors}: {item.title}. {item.where}, {item.year or 'year not known'}",
            format="published figures",
            title=item.title,
            url=item.url,
        )
        for item in figures.source
    ]
    licences = [
        f"Licence of {item.title!r}: {item.licence}" for item in figures.source if item.licence
    ]
    observed: list[Trace | Series] = [*figures.trace, *figures.series]
    said = [f"{o.task}, {o.configuration}: {o.note}" for o in observed if o.note]
    return Manifest(
        id=f"{PREFIX}{name}",
        created="",
        title=figures.title,
        origin="reference",
        baseline=figures.baseline or None,
        clocks=[Clock(name=figures.clock.name, resolution_ns=figures.clock.resolution_ns)],
        sources=citations,
        notes=[*figures.notes, *said, *licences],
    )


def _runs(figures: Published) -> Iterator[Record]:
    """Yield single values and traces as runs; events follow their run."""
    sequence, seen = 0, Counter[tuple[str, str]]()
    for trace in figures.trace:
        factor, _ = UNITS[trace.unit]
        yield _run(sequence, seen, trace.task, trace.configuration, trace.total * factor)
        for child in trace.children:
            yield Event(
                sequence=sequence,
                layer=child.layer or trace.layer,
                event=child.event,
                value=child.value * factor,
                parent=child.parent or None,
            )
        sequence += 1
    for series in figures.series:
        factor, _ = UNITS[series.unit]
        for value in series.values:
            yield _run(sequence, seen, series.task, series.configuration, value * factor)
            sequence += 1


def _run(
    sequence: int, seen: Counter[tuple[str, str]], task: str, configuration: str, value_ns: float
) -> Run:
    number = seen[task, configuration]
    seen[task, configuration] += 1
    return Run(
        sequence=sequence,
        block=number,
        task=task,
        configuration=configuration,
        run=number,
        phase="measured",
        wall_ns=round(value_ns),
    )


def _aggregates(figures: Published) -> Iterator[Aggregate]:
    """Yield one aggregate a cell, rows of one key (min, mean, max, ...) joined."""
    joined: dict[_Key, dict[str, Any]] = {}
    for table in figures.table:
        for row in table.row:
            for task in _tasks(figures, table, row):
                _add_row(joined, table, row, task)
    for fields in joined.values():
        yield Aggregate(**fields)
    for task, parts in figures.calls.items():
        for configuration in _configurations(figures, task):
            for part, calls in parts.items():
                layer, _, event = part.partition("|")
                yield Aggregate(
                    task=task,
                    configuration=configuration,
                    layer=layer,
                    event=event,
                    metric="per_call",
                    unit="1",
                    count=calls,
                    mean=calls,
                )


def _tasks(figures: Published, table: Table, row: Row) -> list[str]:
    """Return the tasks that a row speaks of: its own, or all that call the part."""
    if not table.unit_costs:
        return [row.task or table.task]
    part = f"{table.layer}|{row.event}"
    return [task for task, parts in figures.calls.items() if part in parts]


def _configurations(figures: Published, task: str) -> list[str]:
    """Return the configurations under which a task has a value, in the source's order."""
    found = [
        name
        for table in figures.table
        if any((row.task or table.task) == task for row in table.row)
        for name in table.configurations
    ]
    found += [item.configuration for item in figures.series if item.task == task]
    return list(dict.fromkeys(found))


def _add_row(joined: dict[_Key, dict[str, Any]], table: Table, row: Row, task: str) -> None:
    factor, unit = UNITS[table.unit]
    statistic = row.statistic or table.statistic
    for index, (configuration, value) in enumerate(
        zip(table.configurations, row.values, strict=True)
    ):
        key = (task, configuration, table.layer, row.event, table.metric)
        fields = joined.setdefault(
            key,
            {
                "task": task,
                "configuration": configuration,
                "layer": table.layer,
                "event": row.event,
                "metric": table.metric,
                "unit": unit,
                "count": _count(table, row, index),
                "note": "",
            },
        )
        if value != "n/a":
            fields[statistic] = value * (1.0 if statistic == "count" else factor)
        _add_note(fields, table, row, statistic, value)


def _count(table: Table, row: Row, index: int) -> float | None:
    if isinstance(row.count, list):
        return row.count[index]
    return table.count if row.count is None else row.count


def _add_note(fields: dict[str, Any], table: Table, row: Row, statistic: str, value: Value) -> None:
    """Join what is to be said of a value to the notes of its aggregate, once each."""
    said = [f"{statistic}: n/a in the source"] if value == "n/a" else []
    said += [table.note, row.note, "" if table.printed else "computed, not printed"]
    for text in said:
        if text and text not in fields["note"]:
            fields["note"] = f"{fields['note']}; {text}" if fields["note"] else text
