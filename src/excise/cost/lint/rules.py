"""Rules that figures must keep: those that ship with excise, and a user's own, from TOML."""

from __future__ import annotations

import math
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Literal

import msgspec

from excise.errors import FormatError, SpecError, UsageError
from excise.files import read_whole
from excise.units import parse_percentage
from excise.validation import spec_error


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sum over the events of one run.

    Attributes:
        id: Name of the rule; its check is `lint.identity.<id>`.
        total: `layer|event`, or `run` for the run's own total.
        parts: Events that must be there, else the rule says nothing of that run.
        optional: Events that count where they are there.
        relation: `equal`: total = parts within the tolerance. `covers`: total ≥ parts.
        tolerance: Share of the total that may be missing beside what the clocks' steps allow.
        floor_us: Microseconds that may be missing where that share is less.
        remainder: What the difference is called, such as `dispatch`.
        tasks: Only runs of these tasks; all when empty.
        because: Why it must hold, in one sentence.
        source: Who says so.
    """

    id: str
    total: str
    parts: list[str]
    optional: list[str] = []
    relation: Literal["equal", "covers"] = "equal"
    tolerance: str = "1%"
    floor_us: float = 0.0
    remainder: str = "remainder"
    tasks: list[str] = []
    because: str = ""
    source: str = ""

    @property
    def tolerance_ratio(self) -> float:
        """Return the tolerance as a ratio."""
        return parse_percentage(self.tolerance)


class Order(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Columns, or rows told by a column's words, that must ascend: min ≤ mean ≤ max.

    Attributes:
        names: Column headings; with `by`, words of that column.
        by: Column whose words tell the statistic of a row; columns are compared when None.
        table: Name of the table; any when None.
    """

    names: list[str]
    by: str | None = None
    table: str | None = None


class Parts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows or columns that must sum to a total.

    Attributes:
        total: Label of the row, or heading of the column.
        parts: Labels or headings; all the others of the table when empty.
        axis: Whether rows or columns are summed.
        tolerance: Share of the total that may be missing beside what printing allows.
        table: Name of the table; any when None.
    """

    total: str
    parts: list[str] = []
    axis: Literal["rows", "columns"] = "rows"
    tolerance: str = "0%"
    table: str | None = None


class Percent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of printed percentages, which must be what its values give.

    Attributes:
        column: Heading of the percentages; or of the values that carry them in parentheses.
        value: Heading of the values; the same column when None.
        base: Heading of what they are percentages of.
        kind: `change`: (value - base) / base. `share`: value / base.
        table: Name of the table; any when None.
    """

    column: str
    base: str
    value: str | None = None
    kind: Literal["change", "share"] = "change"
    table: str | None = None


class Agree(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column that must hold the same number for the same row of every table that has it."""

    column: str


class Rules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All rules of one or several files."""

    identity: list[Identity] = []
    order: list[Order] = []
    parts: list[Parts] = []
    percent: list[Percent] = []
    agree: list[Agree] = []


def read_rules(paths: Iterable[Path] = (), *, shipped: bool = True) -> Rules:
    """Return the rules of files, after those that ship with excise.

    A rule of a file replaces the shipped identity of the same id.

    Args:
        paths: Files of a user's own.
        shipped: Whether to take the shipped rules too.

    Raises:
        SpecError: If a file is no such rules; the field is named.
        FormatError: If a file cannot be read.
    """
    found = [_shipped()] if shipped else []
    found += [_read(path) for path in paths]
    by_id = {rule.id: rule for rules in found for rule in rules.identity}
    return Rules(
        identity=list(by_id.values()),
        order=[rule for rules in found for rule in rules.order],
        parts=[rule for rules in found for rule in rules.parts],
        percent=[rule for rules in found for rule in rules.percent],
        agree=[rule for rules in found for rule in rules.agree],
    )


def _shipped() -> Rules:
    folder = resources.files("excise").joinpath("data", "lint")
    files = sorted((each for each in folder.iterdir()), key=lambda each: each.name)
    identities = [rule for file in files for rule in _parse(file.read_bytes(), file.name).identity]
    return Rules(identity=identities)


def _read(path: Path) -> Rules:
    try:
        data = read_whole(path)
    except OSError as error:
        raise FormatError(f"cannot be read ({error.strerror})", source=str(path)) from error
    return _parse(data, str(path))


def _parse(data: bytes, source: str) -> Rules:
    try:
        rules = msgspec.toml.decode(data, type=Rules)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise spec_error(error, model=Rules, source=source, hint="See docs/lint.md") from error
    for index, parts in enumerate(rules.parts):
        _require_tolerance(parts.tolerance, source=source, key=f"parts[{index}].tolerance")
    for index, identity in enumerate(rules.identity):
        _require_tolerance(identity.tolerance, source=source, key=f"identity[{index}].tolerance")
        if not identity.parts:
            raise SpecError(
                "is empty, so that the rule would say nothing",
                source=source,
                key=f"identity[{index}].parts",
                hint="Name the events that make up the total; see docs/lint.md",
            )
        if not (math.isfinite(identity.floor_us) and identity.floor_us >= 0):
            raise SpecError(
                f"{identity.floor_us} is no time from zero up",
                source=source,
                key=f"identity[{index}].floor_us",
            )
    return rules


def _require_tolerance(text: str, *, source: str, key: str) -> None:
    try:
        ratio = parse_percentage(text)
    except UsageError as error:
        raise SpecError(error.reason, source=source, key=key, hint=error.hint) from error
    if not (math.isfinite(ratio) and ratio >= 0):
        raise SpecError(f"{text!r} is no share from zero up", source=source, key=key)
