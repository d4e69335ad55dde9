"""Which events lie inside which: a whole is comparable with another only if its parts are alike.

A build that verifies its own signature, and one that does not, differ in `cose_sign1` and in all
around it by something that is no cost of what is compared.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import polars as pl

from excise.events.dataset import Dataset
from excise.stats import Verdict

if TYPE_CHECKING:
    from excise.cost.compared import Comparison

RUN: Final = ""
Parts = Mapping[tuple[str, str, str], frozenset[str]]


def parts_of(dataset: Dataset) -> Parts:
    """Return all events that lie inside each whole, at any depth, in the measured runs.

    Returns:
        Names (`layer|event`) by task, configuration and whole; `RUN` is the run itself.
    """
    runs = dataset.runs.filter(pl.col("phase") == "measured").select(
        "sequence", "task", "configuration"
    )
    columns = ("task", "configuration", "parent", "layer", "event")
    rows = (
        dataset.events.join(runs, on="sequence")
        .select(pl.col(columns).cast(pl.String))
        .unique()
        .iter_rows()
    )
    children: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for task, configuration, parent, layer, event in rows:
        name = f"{layer}|{event}" if layer else event
        children[task, configuration, parent or RUN].add(name)
    return {key: _inside(key, children) for key in children}


def _inside(
    key: tuple[str, str, str], children: Mapping[tuple[str, str, str], set[str]]
) -> frozenset[str]:
    task, configuration, whole = key
    found: set[str] = set()
    waiting = [whole]
    while waiting:
        for name in children.get((task, configuration, waiting.pop()), ()):
            if name not in found:
                found.add(name)
                waiting.append(name)
    return frozenset(found)


def only_like_wholes(rows: Sequence[Comparison], *, ours: Parts, theirs: Parts) -> list[Comparison]:
    """Return the comparisons, with those of wholes whose parts differ marked as not comparable.

    A run's own total stays compared, with a note: it is what a user waits for.

    Args:
        rows: Comparisons.
        ours: Parts of the baseline's wholes.
        theirs: Parts of the others'.
    """
    found = []
    for row in rows:
        whole = row.part or RUN
        before = ours.get((row.task, row.baseline, whole), frozenset())
        after = theirs.get((row.task, row.configuration, whole), frozenset())
        reason = _difference(before, after, row)
        if reason is None:
            found.append(row)
        elif whole == RUN:
            found.append(replace(row, notes=(*row.notes, reason)))
        else:
            found.append(_refused(row, reason))
    return found


def _difference(before: frozenset[str], after: frozenset[str], row: Comparison) -> str | None:
    if before == after:
        return None
    words = []
    for names, where in ((before - after, "the baseline"), (after - before, row.configuration)):
        if names:
            words.append(f"{', '.join(sorted(names))} only in {where}")
    return f"its parts differ: {'; '.join(words)}"


def _refused(row: Comparison, reason: str) -> Comparison:
    return replace(
        row,
        ratio=math.nan,
        low=None,
        high=None,
        p=None,
        p_holm=None,
        p_check=None,
        verdict=Verdict.NOT_COMPARABLE,
        runs_needed=None,
        notes=(reason,),
    )
