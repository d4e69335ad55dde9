"""What a printed table must keep: order of statistics, sums, percentages, counts that agree.

Rules are a user's, or found: a column of percentages is held against the pair of columns that
explains most of it, a row or column called total against the others. Rounding is allowed for, by
the half step of every number's last digit; a rule that was found and explains too little is no
rule, and is told as not covered.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from itertools import pairwise
from typing import Final, Literal, TypeVar

from excise.cost.lint.rules import Order, Parts, Percent, Rules
from excise.cost.lint.text_table import Printed, TableRow, TextTable
from excise.errors import UsageError
from excise.evidence.checks import AppraisalResult, Check, Outcome
from excise.units import parse_percentage

R = TypeVar("R", Order, Parts, Percent)

ASCENDING: Final = (
    ("min", "minimum", "least", "best"),
    ("p25", "25%"),
    ("median", "med", "p50", "50%"),
    ("p75", "75%"),
    ("p90", "90%"),
    ("p95", "95%"),
    ("p99", "99%"),
    ("max", "maximum", "worst"),
)
MEANS: Final = ("mean", "avg", "average", "ave")
TOTALS: Final = ("total", "sum", "all", "overall", "complete", "together")
KINDS: Final[tuple[Literal["change"], Literal["share"]]] = ("change", "share")
COUNTS: Final = ("n", "count", "runs", "calls", "samples", "number")
_SHOWN: Final = 3
_EXPLAINED: Final = 0.6


def lint_tables(tables: Sequence[TextTable], rules: Rules) -> Iterator[AppraisalResult]:
    """Yield what each table keeps of the rules, then what must agree across several.

    Args:
        tables: The tables.
        rules: A user's rules for tables; others are found by the headings.

    Raises:
        UsageError: If a rule of a user names a heading or row that no table has.
    """
    _require_known(tables, rules)
    for table in tables:
        checks = [
            *(_order(table, rule) for rule in (*_of(rules.order, table), *_found_orders(table))),
            *(_parts(table, rule) for rule in (*_of(rules.parts, table), *_found_parts(table))),
            *(_percent(table, rule) for rule in _of(rules.percent, table)),
            *_found_percents(table, rules),
        ]
        yield AppraisalResult(
            subject=table.name,
            checks=tuple(checks) or (_nothing(table),),
            facts={"rows": len(table.rows), "columns": ", ".join(table.columns)},
        )
    if len(tables) > 1 and (agreements := tuple(_agreements(tables, rules))):
        yield AppraisalResult(subject="all tables", checks=agreements, facts={})


def _nothing(table: TextTable) -> Check:
    return Check(
        id="lint.rules",
        outcome=Outcome.NOT_COVERED,
        expected="a rule that fits the table",
        got=", ".join(table.columns),
        detail="No heading or label tells a total, a percentage or a statistic: give --rules.",
    )


def _of(rules: Sequence[R], table: TextTable) -> Iterator[R]:
    return (rule for rule in rules if rule.table is None or fnmatch(table.name, rule.table))


def _require_known(tables: Sequence[TextTable], rules: Rules) -> None:
    headings = {heading for table in tables for heading in _headings(table)}
    labels = {row.label for table in tables for row in table.rows}
    named = [(rule.column, headings) for rule in rules.percent]
    named += [(rule.column, headings) for rule in rules.agree]
    named += [
        (name, headings) for rule in rules.percent for name in (rule.base, rule.value) if name
    ]
    for parts in rules.parts:
        known = labels if parts.axis == "rows" else headings
        named += [(name, known) for name in (parts.total, *parts.parts)]
    named += [(name, headings) for rule in rules.order if rule.by is None for name in rule.names]
    named += [(rule.by, headings) for rule in rules.order if rule.by is not None]
    for name, known in named:
        if name not in known:
            raise UsageError(
                f"no table has {name!r}", hint=f"There are: {', '.join(sorted(known)[:20])}"
            )


def _headings(table: TextTable) -> list[str]:
    return list(dict.fromkeys([*table.columns, *_word_columns(table)]))


def _word_columns(table: TextTable) -> list[str]:
    return list(dict.fromkeys(heading for row in table.rows for heading in row.words))


def row_check(kind: str, expected: str, fine: int, wrong: Sequence[str]) -> Check:
    """Return the check of one rule over the rows of a table."""
    asked = fine + len(wrong)
    detail = ""
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        detail = "; ".join(wrong[:_SHOWN]) + more
    outcome = Outcome.FAILED if wrong else Outcome.PASSED if asked else Outcome.NOT_COVERED
    return Check(
        id=f"lint.{kind}",
        outcome=outcome,
        expected=expected,
        got=f"{fine} of {asked}",
        detail=detail,
    )


# Order ------------------------------------------------------------------------------------------


def _found_orders(table: TextTable) -> Iterator[Order]:
    headings = {heading.lower(): heading for heading in _headings(table)}
    yield from _orders(headings, by=None)
    for column in _word_columns(table):
        words = {
            row.words[column].lower(): row.words[column]
            for row in table.rows
            if column in row.words
        }
        yield from _orders(words, by=column)


def _orders(names: dict[str, str], *, by: str | None) -> Iterator[Order]:
    quantiles = [names[word] for rank in ASCENDING for word in rank if word in names]
    if len(quantiles) > 1:
        yield Order(names=quantiles, by=by)
    means = [names[word] for word in MEANS if word in names]
    ends = [names[word] for rank in (ASCENDING[0], ASCENDING[-1]) for word in rank if word in names]
    if means and ends:
        low = [e for e in ends if e.lower() in ASCENDING[0]]
        high = [e for e in ends if e.lower() in ASCENDING[-1]]
        yield Order(names=[*low[:1], means[0], *high[:1]], by=by)


def _order(table: TextTable, rule: Order) -> Check:
    fine, wrong = 0, []
    for where, numbers in _series(table, rule):
        falls = [
            f"{a} {one.value:g} > {b} {other.value:g}"
            for (a, one), (b, other) in pairwise(numbers)
            if one.low > other.high
        ]
        if falls:
            wrong.append(f"{where}: {', '.join(falls)}")
        elif len(numbers) > 1:
            fine += 1
    return row_check("order", " ≤ ".join(rule.names), fine, wrong)


def _series(table: TextTable, rule: Order) -> Iterator[tuple[str, list[tuple[str, Printed]]]]:
    """Yield the numbers that must ascend, with what they are of."""
    if rule.by is None:
        for row in table.rows:
            yield row.label, [(n, row.numbers[n]) for n in rule.names if n in row.numbers]
        return
    groups: dict[str, dict[str, TableRow]] = {}
    label = ""
    for row in table.rows:
        others = " ".join(
            text for heading, text in row.words.items() if heading != rule.by and text
        )
        label = others or label  # a label is often printed in a group's first row only
        groups.setdefault(label, {})[row.words.get(rule.by, "")] = row
    for label, rows in groups.items():
        for column in table.columns:
            found = [(n, rows[n].numbers.get(column)) for n in rule.names if n in rows]
            yield f"{label}, {column}", [(n, number) for n, number in found if number is not None]


# Parts ------------------------------------------------------------------------------------------


def _found_parts(table: TextTable) -> Iterator[Parts]:
    for row in table.rows:
        if _is_total(row.label):
            yield Parts(total=row.label)
    for column in table.columns:
        if _is_total(column) and len(table.columns) > 2:
            yield Parts(total=column, axis="columns")


def _is_total(label: str) -> bool:
    return any(word in TOTALS for word in label.lower().replace("(", " ").split())


def _parts(table: TextTable, rule: Parts) -> Check:
    fine, wrong = 0, []
    for where, total, parts in _sums(table, rule):
        allowed = total.half_step + sum(part.half_step for part in parts)
        allowed += abs(total.value) * parse_percentage(rule.tolerance)
        off = total.value - sum(part.value for part in parts)
        if abs(off) > allowed * (1 + 1e-9):
            wrong.append(
                f"{where}: {total.value:g} printed, the parts give {total.value - off:g} "
                f"({off:+.6g}, {allowed:.3g} allowed)"
            )
        else:
            fine += 1
    named = " + ".join(rule.parts) or "the others"
    return row_check("parts", f"{rule.total} = {named}", fine, wrong)


def _sums(table: TextTable, rule: Parts) -> Iterator[tuple[str, Printed, list[Printed]]]:
    if rule.axis == "columns":
        for row in table.rows:
            names = rule.parts or [c for c in table.columns if not _is_total(c) and "%" not in c]
            parts = [row.numbers[name] for name in names if name in row.numbers]
            if rule.total in row.numbers and parts:
                yield row.label, row.numbers[rule.total], parts
        return
    total = next((row for row in table.rows if row.label == rule.total), None)
    if total is None:
        return
    others = [
        row
        for row in table.rows
        if row is not total
        and (row.label in rule.parts if rule.parts else not _is_total(row.label))
    ]
    for column in table.columns:
        parts = [row.numbers[column] for row in others if column in row.numbers]
        if column in total.numbers and parts and len(parts) == len(others):
            yield column, total.numbers[column], parts


# Percentages ------------------------------------------------------------------------------------


def _found_percents(table: TextTable, rules: Rules) -> Iterator[Check]:
    """Yield a check of each column of percentages that no rule is about."""
    ruled = {rule.column for rule in _of(rules.percent, table)}
    inline = [
        column for column in table.columns if any(column in row.percents for row in table.rows)
    ]
    own = [c for c in table.columns if "%" in c or "percent" in c.lower() or _is_signed(table, c)]
    values = [column for column in table.columns if column not in own]
    for column in [*inline, *own]:
        if column in ruled:
            continue
        candidates = [
            Percent(column=column, value=value, base=base, kind=kind)
            for base in values
            for value in ([column] if column in inline else values)
            if value != base
            for kind in KINDS
        ]
        yield _best_percent(table, column, candidates)


def _is_signed(table: TextTable, column: str) -> bool:
    """Return whether every number of a column has a percent sign."""
    rows = [row for row in table.rows if column in row.numbers]
    return bool(rows) and all(column in row.signed for row in rows)


def _best_percent(table: TextTable, column: str, candidates: list[Percent]) -> Check:
    """Return the check of the rule that explains most; NOT_COVERED if none explains enough."""
    scored = [(*_percent_rows(table, rule), rule) for rule in candidates]
    asked = sum(_percent_of(row, column) is not None for row in table.rows)
    best = max(scored, key=lambda each: each[0], default=None)
    if best is None or best[0] < max(2, _EXPLAINED * asked):
        return Check(
            id="lint.percent",
            outcome=Outcome.NOT_COVERED,
            expected=f"{column}: a pair of columns that gives the percentages",
            got="none",
            detail="Give a rule by --rules.",
        )
    fine, wrong, rule = best
    return row_check("percent", _percent_text(rule), fine, wrong)


def _percent(table: TextTable, rule: Percent) -> Check:
    fine, wrong = _percent_rows(table, rule)
    return row_check("percent", _percent_text(rule), fine, wrong)


def _percent_text(rule: Percent) -> str:
    value = rule.value or rule.column
    given = (
        f"({value} - {rule.base}) / {rule.base}"
        if rule.kind == "change"
        else f"{value} / {rule.base}"
    )
    return f"% of {rule.column} = {given}"


def _percent_rows(table: TextTable, rule: Percent) -> tuple[int, list[str]]:
    fine, wrong = 0, []
    for row in table.rows:
        value = row.numbers.get(rule.value or rule.column)
        base = row.numbers.get(rule.base)
        percent = _percent_of(row, rule.column)
        if value is None or base is None or percent is None or base.low <= 0:
            continue
        less = 1.0 if rule.kind == "change" else 0.0
        ends = [
            100.0 * (v / b - less) for v in (value.low, value.high) for b in (base.low, base.high)
        ]
        if percent.high < min(ends) or percent.low > max(ends):
            computed = 100.0 * (value.value / base.value - less)
            wrong.append(f"{row.label}: {percent.value:g} % printed, {computed:.4g} % computed")
        else:
            fine += 1
    return fine, wrong


def _percent_of(row: TableRow, column: str) -> Printed | None:
    return row.percents.get(column) or (None if row.percents else row.numbers.get(column))


# Agreement across tables ------------------------------------------------------------------------


def _agreements(tables: Sequence[TextTable], rules: Rules) -> Iterator[Check]:
    columns = {rule.column for rule in rules.agree}
    found = {c for table in tables for c in table.columns if c.lower() in COUNTS}
    for column in sorted(columns | found):
        fine, wrong = 0, []
        seen: dict[str, tuple[str, Printed]] = {}
        for table in tables:
            for row in table.rows:
                number = row.numbers.get(column)
                if number is None:
                    continue
                before = seen.setdefault(row.label, (table.name, number))
                if before[0] == table.name:
                    continue
                if not _same(number, before[1]):
                    wrong.append(
                        f"{row.label}: {before[1].value:g} in {before[0]}, "
                        f"{number.value:g} in {table.name}"
                    )
                else:
                    fine += 1
        yield row_check("agree", f"{column} is the same in every table", fine, wrong)


def _same(one: Printed, other: Printed) -> bool:
    """Whether two printed numbers can be one; whole numbers are counts, and exact."""
    if one.half_step == other.half_step == 0.5:
        return one.value == other.value
    return one.low <= other.high and other.low <= one.high
