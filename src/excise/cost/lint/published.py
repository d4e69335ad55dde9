"""Published data sets as the printed tables they are, held to the same rules as anyone's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby

from msgspec.structs import replace

from excise.cost.lint.rules import Percent, Rules
from excise.cost.lint.tables import lint_tables, row_check
from excise.cost.lint.text_table import Printed, TableRow, TextTable, printed
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.reference.published import Published, Row, Table, Trace


def lint_published(name: str, data: Published, rules: Rules) -> Iterator[AppraisalResult]:
    """Yield what the tables and traces of a published data set keep.

    Args:
        name: Name of the data set.
        data: Its figures as printed.
        rules: Further rules of a user's own.
    """
    tables = [_text_table(name, table) for table in data.table if table.printed]
    checked = [table for table in tables if table.columns]
    percents = [
        Percent(column=column, base=table.configurations[0], table=_name(name, table))
        for table in data.table
        if table.printed
        for column in table.configurations[1:]
        if any(row.percent for row in table.row)
    ]
    rules = replace(rules, percent=[*rules.percent, *percents])
    for result in lint_tables(checked, rules) if checked else ():
        kept = tuple(check for check in result.checks if check.id != "lint.rules")
        if kept:
            yield AppraisalResult(subject=result.subject, checks=kept, facts=result.facts)
    if sums := tuple(_stages(data)):
        yield AppraisalResult(subject=f"{name}: totals and parts", checks=sums, facts={})
    if traces := tuple(_trace(trace) for trace in data.trace):
        yield AppraisalResult(subject=f"{name}: traces", checks=traces, facts={})


def _text_table(name: str, table: Table) -> TextTable:
    rows = [_table_row(table, row, line) for line, row in enumerate(table.row, start=1)]
    has = [c for c in table.configurations if any(c in row.numbers for row in rows)]
    return TextTable(name=_name(name, table), columns=tuple(has), rows=tuple(rows))


def _name(name: str, table: Table) -> str:
    return f"{name}: {table.name}"


def _table_row(table: Table, row: Row, line: int) -> TableRow:
    percents = dict(zip(table.configurations[1:], row.percent, strict=False))
    words = {"what": " ".join(filter(None, (row.task or table.task, row.event)))}
    if row.statistic is not None:
        words["statistic"] = row.statistic
    return TableRow(
        label=" ".join(words.values()),
        words=words,
        numbers=_numbers(dict(zip(table.configurations, row.values, strict=False)), table.decimals),
        percents=_numbers(percents, None),
        line=line,
    )


def _numbers(values: Mapping[str, float | str], decimals: int | None) -> dict[str, Printed]:
    found = {}
    for heading, value in values.items():
        if isinstance(value, str):
            continue
        text = f"{value:.{decimals}f}" if decimals is not None else f"{value:.12g}"
        found[heading] = printed(text)
    return found


def _stages(data: Published) -> Iterator[Check]:
    """Yield a check of each task whose total and parts are both printed."""
    totals = {
        (row.task, configuration): printed(f"{value:.{table.decimals or 0}f}")
        for table in data.table
        if table.layer == "task" and table.unit in ("s", "ms", "us", "ns") and table.printed
        for row in table.row
        if row.task and not row.event and row.statistic is None
        for configuration, value in zip(table.configurations, row.values, strict=False)
        if not isinstance(value, str)
    }
    for table in data.table:
        if table.layer == "task" or table.unit_costs or not table.printed:
            continue
        by_task = sorted((r for r in table.row if r.task and r.event), key=lambda row: row.task)
        for task, grouped in groupby(by_task, key=lambda row: row.task):
            rows = list(grouped)
            if len(rows) > 1:  # one part alone is a detail, not what the total is made of
                yield from _stage_sums(task, rows, table, totals)


def _stage_sums(
    task: str, rows: list[Row], table: Table, totals: dict[tuple[str, str], Printed]
) -> Iterator[Check]:
    wrong, fine = [], 0
    for number, configuration in enumerate(table.configurations):
        total = totals.get((task, configuration))
        values = [row.values[number] for row in rows]
        if total is None or any(isinstance(value, str) for value in values):
            continue
        parts = [printed(f"{value:.{table.decimals or 0}f}") for value in values]
        off = total.value - sum(part.value for part in parts)
        allowed = total.half_step + sum(part.half_step for part in parts)
        if abs(off) > allowed * (1 + 1e-9):
            wrong.append(f"{configuration}: {off:+.4g} {table.unit}, {allowed:.3g} allowed")
        else:
            fine += 1
    if fine or wrong:
        yield row_check("parts", f"{task} = {' + '.join(row.event for row in rows)}", fine, wrong)


def _trace(trace: Trace) -> Check:
    """Return whether no node of a trace is shorter than its children together."""
    by_parent: dict[str, float] = {}
    own = {f"{child.layer or trace.layer}|{child.event}": child.value for child in trace.children}
    for child in trace.children:
        by_parent[child.parent] = by_parent.get(child.parent, 0.0) + child.value
    wrong = []
    for parent, children in by_parent.items():
        total = trace.total if parent == "" else own.get(parent)
        if total is not None and children > total + printed(f"{total:.12g}").half_step:
            wrong.append(f"{parent or trace.task}: {total:g} with children of {children:g}")
    remainder = trace.total - by_parent.get("", 0.0)
    return Check(
        id="lint.covers",
        outcome=Outcome.FAILED if wrong else Outcome.PASSED,
        expected=f"{trace.task}, {trace.configuration}: no node shorter than its children",
        got=f"{len(by_parent) - len(wrong)} of {len(by_parent)}; {remainder:g} {trace.unit} left",
        detail="; ".join(wrong),
    )
