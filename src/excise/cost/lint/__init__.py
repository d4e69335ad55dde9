"""The lint: do published or measured figures agree with themselves?

Parts against totals, printed percentages, min ≤ mean ≤ max, counts that must agree across tables,
and identities over the events of a run, each with the tolerance that printing and clocks allow.
"""

from __future__ import annotations

from excise.cost.lint.identities import lint_dataset
from excise.cost.lint.published import lint_published
from excise.cost.lint.rules import Rules, read_rules
from excise.cost.lint.tables import lint_tables
from excise.cost.lint.text_table import TextTable, read_table

__all__ = [
    "Rules",
    "TextTable",
    "lint_dataset",
    "lint_published",
    "lint_tables",
    "read_rules",
    "read_table",
]
