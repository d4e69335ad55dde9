"""Call trees and costs of functions, from the rows that traces and profiles give.

A node's *self* is what no traced function inside explains. Nodes of one tree sum up: a node's
total is its self and its children's totals, but for what a trace lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import polars as pl

from excise.events.dataset import Dataset
from excise.formats.trace_rows import (
    DETAIL_METRICS,
    EVENT,
    FUNCTION,
    HISTOGRAM,
    HOOK,
    LSM,
    PATH,
    SYSCALL,
    is_security,
    labels_of,
)

TRACE_LAYERS: Final = frozenset({HOOK, LSM, FUNCTION, SYSCALL, EVENT, PATH})
TRACED_BY: Final = "trace.backend"
"""Fact of a capture that `excise trace` made."""
_TOTALS: Final = ("duration", "samples", "inclusive")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallNode:
    """A function called along one path.

    Attributes:
        function: Its name.
        depth: Callers in the tree.
        calls: How often it was called, or found.
        total: With everything inside, in the tree's unit.
        own: Of it, what no child explains (self time, unattributed).
        children: Largest first.
        security: Whether it is an LSM hook or a function of a security module.
    """

    function: str
    depth: int
    calls: float
    total: float
    own: float
    children: tuple[CallNode, ...] = ()
    security: bool = False

    def walk(self) -> Iterator[CallNode]:
        """Yield the node and all below it, each before its children."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTree:
    """Everything that was called in one task under one configuration.

    Attributes:
        roots: Functions that no traced one called, largest first.
        unit: Unit of totals: `ns`, `samples`, ...
    """

    task: str
    configuration: str
    unit: str
    roots: tuple[CallNode, ...]

    @property
    def total(self) -> float:
        """Return the sum of the roots."""
        return sum(root.total for root in self.roots)


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionCost:
    """What one function took in one task: sums in `unit`, None where the source has none.

    Attributes:
        own: Self time; a row of durations without one is of a function that called none.
        min: Smallest net duration; median and max likewise.
    """

    task: str
    configuration: str
    layer: str
    function: str
    unit: str
    calls: float | None
    total: float | None
    own: float | None
    mean: float | None = None
    min: float | None = None
    median: float | None = None
    max: float | None = None
    interrupt: float | None = None
    off_cpu: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Calls whose net duration lay between two bounds; None: no bound."""

    low: float | None
    high: float | None
    count: float


def is_trace(dataset: Dataset) -> bool:
    """Return whether the dataset holds rows of a trace or profile, not only of a table of costs."""
    if any(fact.name == TRACED_BY for fact in dataset.manifest.host_facts):
        return True
    rows = dataset.aggregates
    return bool(
        rows.filter(
            pl.col("metric").is_in(list(DETAIL_METRICS)) | pl.col("layer").is_in([PATH, SYSCALL])
        ).height
    )


def call_trees(dataset: Dataset) -> list[CallTree]:
    """Return the trees of a dataset's paths, largest first; none where it has no paths."""
    rows = dataset.aggregates.filter(pl.col("layer") == PATH)
    grouped: dict[tuple[str, str, str], dict[tuple[str, ...], _Draft]] = {}
    for row in rows.iter_rows(named=True):
        labels = labels_of(row["labels"])
        path = tuple(labels.get("path", row["event"]).split(";"))
        key = (row["task"], row["configuration"], row["unit"])
        nodes = grouped.setdefault(key, {})
        for length in range(1, len(path)):
            nodes.setdefault(path[:length], _Draft())
        draft = nodes.setdefault(path, _Draft())
        if row["metric"] == "self":
            draft.own = (draft.own or 0.0) + (row["sum"] or 0.0)
            draft.calls = max(draft.calls, row["count"] or 0.0)
        elif row["metric"] in _TOTALS:
            draft.total = (draft.total or 0.0) + (row["sum"] or row["count"] or 0.0)
            draft.calls = row["count"] or 0.0
    trees = [
        CallTree(
            task=task,
            configuration=configuration,
            unit=unit,
            roots=_nodes(nodes),
        )
        for (task, configuration, unit), nodes in grouped.items()
    ]
    return sorted(trees, key=lambda tree: -tree.total)


def flat_trees(dataset: Dataset) -> list[CallTree]:
    """Return trees of a trace in which no function was seen inside another, rooted at their tasks.

    Functions stand in their task, hooks in the system call that they were called in where the trace
    tells. None where the trace has no durations.
    """
    trees = [_rooted(tree) for tree in call_trees(dataset)] or _hook_trees(dataset)
    return sorted((tree for tree in trees if tree.total), key=lambda tree: -tree.total)


def _rooted(tree: CallTree) -> CallTree:
    return replace(tree, roots=(_parent(tree.task, tree.roots),))


def _parent(name: str, inside: Iterable[CallNode]) -> CallNode:
    """Return a node that took what is inside it, and nothing of its own."""
    children = tuple(sorted((_deeper(node) for node in inside), key=_order))
    return CallNode(
        function=name,
        depth=0,
        calls=1.0,
        total=sum(node.total for node in children),
        own=0.0,
        children=children,
    )


def _deeper(node: CallNode) -> CallNode:
    return replace(
        node, depth=node.depth + 1, children=tuple(_deeper(each) for each in node.children)
    )


def _hook_trees(dataset: Dataset) -> list[CallTree]:
    """Return trees of hooks from their sums, where the trace kept no paths."""
    rows = dataset.aggregates.filter(pl.col("metric") == "duration", pl.col("layer") == HOOK)
    found: dict[tuple[str, str, str], dict[str | None, list[CallNode]]] = {}
    for row in rows.iter_rows(named=True):
        calls = row["count"] or 0.0
        total = row["sum"] if row["sum"] is not None else calls * (row["mean"] or 0.0)
        node = CallNode(
            function=row["event"], depth=0, calls=calls, total=total, own=total, security=True
        )
        key = (row["task"], row["configuration"], row["unit"])
        syscall = labels_of(row["labels"]).get(SYSCALL)
        found.setdefault(key, {}).setdefault(syscall, []).append(node)
    return [
        CallTree(task=task, configuration=configuration, unit=unit, roots=(_task_of(task, calls),))
        for (task, configuration, unit), calls in found.items()
    ]


def _task_of(task: str, calls: Mapping[str | None, list[CallNode]]) -> CallNode:
    inside = [
        node
        for syscall, hooks in calls.items()
        for node in (hooks if syscall is None else [_parent(syscall, hooks)])
    ]
    return _parent(task, inside)


@dataclass(slots=True)
class _Draft:
    calls: float = 0.0
    total: float | None = None
    own: float | None = None
    children: list[tuple[str, ...]] = field(default_factory=list)


def _nodes(drafts: dict[tuple[str, ...], _Draft]) -> tuple[CallNode, ...]:
    roots = []
    for path in drafts:
        if len(path) > 1:
            drafts[path[:-1]].children.append(path)
        else:
            roots.append(path)
    built: dict[tuple[str, ...], CallNode] = {}
    for path in sorted(drafts, key=lambda path: -len(path)):
        draft = drafts[path]
        children = sorted((built[child] for child in draft.children), key=_order)
        inside = sum(child.total for child in children)
        total = draft.total if draft.total is not None else inside + (draft.own or 0.0)
        built[path] = CallNode(
            function=path[-1],
            depth=len(path) - 1,
            calls=draft.calls or sum(child.calls for child in children),
            total=total,
            own=draft.own if draft.own is not None else max(0.0, total - inside),
            children=tuple(children),
            security=is_security(path[-1]),
        )
    return tuple(sorted((built[path] for path in roots), key=_order))


def _order(node: CallNode) -> tuple[float, str]:
    return -node.total, node.function


def function_costs(dataset: Dataset) -> list[FunctionCost]:
    """Return what each function took, by task and configuration, largest total first."""
    found: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {}
    rows = dataset.aggregates.filter(pl.col("layer").is_in([HOOK, LSM, FUNCTION]))
    for row in rows.iter_rows(named=True):
        if row["metric"] == HISTOGRAM:
            continue
        key = (row["task"], row["configuration"], row["layer"], row["event"], row["labels"])
        found.setdefault(key, {})[row["metric"]] = row
    costs = [_cost(key, metrics) for key, metrics in found.items()]
    return sorted(
        costs, key=lambda cost: (-(cost.total or 0.0), -(cost.calls or 0.0), cost.function)
    )


def _cost(key: tuple[str, ...], metrics: dict[str, dict[str, Any]]) -> FunctionCost:
    main = next((metrics[name] for name in _TOTALS if name in metrics), None)
    first = main or next(iter(metrics.values()))
    own = metrics.get("self")
    total = None
    if main is not None:
        total = (
            main["sum"] if main["sum"] is not None or main["metric"] != "samples" else main["count"]
        )

    def sum_of(name: str) -> float | None:
        return metrics[name]["sum"] if name in metrics else None

    return FunctionCost(
        task=key[0],
        configuration=key[1],
        layer=key[2],
        function=f"{key[3]} ({key[4]})" if key[4] else key[3],
        unit=first["unit"],
        calls=first["count"],
        total=total,
        own=own["sum"] if own else (0.0 if "samples" in metrics else total),
        mean=first["mean"],
        min=first["min"],
        median=first["median"],
        max=first["max"],
        interrupt=sum_of("interrupt"),
        off_cpu=sum_of("off_cpu"),
        note=first["note"],
    )


def histograms(dataset: Dataset) -> dict[tuple[str, str, str], list[Bucket]]:
    """Return the histograms of a dataset by configuration, layer with name, and unit.

    Buckets of all tasks are added up, and sorted by their bounds.
    """
    found: dict[tuple[str, str, str], dict[tuple[float | None, float | None], float]] = {}
    rows = dataset.aggregates.filter(pl.col("metric") == HISTOGRAM)
    for row in rows.iter_rows(named=True):
        labels = labels_of(row["labels"])
        bounds = (_number(labels.get("from")), _number(labels.get("to")))
        further = labels.get("key")
        name = f"{row['layer']}|{row['event']}" + (f"[{further}]" if further else "")
        buckets = found.setdefault((row["configuration"], name, row["unit"]), {})
        buckets[bounds] = buckets.get(bounds, 0.0) + (row["count"] or 0.0)
    return {
        key: [
            Bucket(low=low, high=high, count=count)
            for (low, high), count in sorted(
                buckets.items(), key=lambda item: (item[0][0] is not None, item[0][0] or 0.0)
            )
        ]
        for key, buckets in found.items()
    }


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
