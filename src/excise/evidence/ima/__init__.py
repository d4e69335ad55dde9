"""IMA measurement lists: read them, and verify them against PCR values.

`read_list` gives the entries as rows; `verify_list` answers whether a list leads to the values of
PCR 10, which part of it they cover, and why not when they are not reached.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from excise.evidence.ima.attempt import BankResult
from excise.evidence.ima.checkpoint import Checkpoint
from excise.evidence.ima.coverage import Coverage
from excise.evidence.ima.replay import Layout, Place
from excise.evidence.ima.resume import Meeting
from excise.evidence.ima.verify import ImaAppraisal, verify_list

if TYPE_CHECKING:
    from excise.evidence.ima.explain import Explanation
    from excise.evidence.ima.rows import ImaBatch, ImaList, ImaRow, read_list

__all__ = [
    "BankResult",
    "Checkpoint",
    "Coverage",
    "Explanation",
    "ImaAppraisal",
    "ImaBatch",
    "ImaList",
    "ImaRow",
    "Layout",
    "Meeting",
    "Place",
    "read_list",
    "verify_list",
]


def __getattr__(name: str) -> Any:
    """Load what a verification does not need when it is first asked for."""
    if name == "Explanation":
        from excise.evidence.ima import explain

        return explain.Explanation
    if name in ("ImaBatch", "ImaList", "ImaRow", "read_list"):
        from excise.evidence.ima import rows

        return getattr(rows, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
