"""The gate's answer as text: what it says, what failed and why, then what passed."""

from __future__ import annotations

from excise.cost.gate import GateResult
from excise.report import tables
from excise.report.brief import brief_lines
from excise.report.verdicts import gate_brief


def render_gate(found: GateResult, *, brief: bool = False) -> str:
    """Return the answer, then each comparison in a line, those that fail first.

    Args:
        found: What the gate decided.
        brief: Only the answer and what fails.
    """
    said = gate_brief(found, failures_only=brief)
    lines = brief_lines(said)
    if not brief and any(each.is_open for each in found.judged):
        limit = tables.per_cent(found.max_regression_ratio)
        lines.append(f"open: passes, though more than {limit} is not ruled out; --strict fails it")
    return "\n".join(lines) + "\n"
