"""Pictures of traces and profiles: flame graph, icicle, heat map, histograms; as rows to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from excise.cost.call_tree import Bucket, CallNode, CallTree, FunctionCost
from excise.report.model import MAX_POINTS, Chart, Kind, file_safe
from excise.report.tables import shown

_LEAST: Final = 0.0005
"""A function that took less of its tree is no visible box."""
_FLAT: Final = "side by side in the task: the trace has no function inside another"
HEAT_HOOKS: Final = 24
HEAT_TASKS: Final = 16
HISTOGRAMS: Final = 10
_BOXES: Final = 1500
_SECURITY_LAYERS: Final = ("hook", "lsm")


def tree_charts(tree: CallTree, *, flat: bool = False) -> list[Chart]:
    """Return the flame graph and the icicle of a tree; none where it took nothing.

    Args:
        tree: The tree.
        flat: Whether its functions stand in their task as the trace has no callers of them.
    """
    rows = _boxes(tree)
    if not rows:
        return []
    name = file_safe(f"{tree.task}-{tree.configuration}")
    security = sum(row["end"] - row["start"] for row in rows if row["outermost"])
    share = security / tree.total if tree.total else 0.0
    words = f"security functions, highlighted, take {share:.1%}"
    kinds: tuple[tuple[Kind, str, str], ...] = (
        ("flame", "Flame graph", "below what they call"),
        ("icicle", "Icicle", "above what they call"),
    )
    return [
        Chart(
            name=f"{kind}-{name}",
            kind=kind,
            title=f"{title} of {tree.task}",
            rows=rows,
            unit=tree.unit,
            caption=f"Functions called in {tree.task}, each as wide as it took, "
            + (_FLAT if flat else f"callers {where}; {words}"),
            axis="total" if tree.unit != "samples" else "samples",
        )
        for kind, title, where in kinds
    ]


def _boxes(tree: CallTree) -> list[dict[str, Any]]:
    """Return one row a box: from where to where it reaches, and at which depth."""
    total = tree.total
    rows: list[dict[str, Any]] = []

    def place(node: CallNode, start: float, *, inside: bool) -> None:
        if not total or node.total < _LEAST * total or len(rows) >= min(_BOXES, MAX_POINTS):
            return
        rows.append(
            {
                "function": node.function,
                "depth": node.depth,
                "start": start,
                "end": start + node.total,
                "role": "security" if node.security else "other",
                "outermost": node.security and not inside,
                "calls": node.calls,
                "share": node.total / total,
                "text": f"{shown(node.total, tree.unit)}, self {shown(node.own, tree.unit)}",
            }
        )
        at = start
        for child in node.children:
            place(child, at, inside=inside or node.security)
            at += child.total

    at = 0.0
    for root in tree.roots:
        place(root, at, inside=False)
        at += root.total
    return rows


def heat_chart(costs: Sequence[FunctionCost]) -> Chart | None:
    """Return hooks by system call, coloured by their time; None for fewer than two of either."""
    hooks = [cost for cost in costs if cost.layer in _SECURITY_LAYERS and cost.total]
    if any(cost.layer == "hook" for cost in hooks):
        hooks = [cost for cost in hooks if cost.layer == "hook"]
    names = _largest(hooks, "function", HEAT_HOOKS)
    tasks = _largest(hooks, "task", HEAT_TASKS)
    if len(names) < 2 or len(tasks) < 2 or len({cost.unit for cost in hooks}) != 1:
        return None
    cells: dict[tuple[str, str], list[float]] = {}
    for cost in hooks:
        if cost.function in names and cost.task in tasks:
            cell = cells.setdefault((cost.task, cost.function), [0.0, 0.0])
            cell[0] += cost.total or 0.0
            cell[1] += cost.calls or 0.0
    unit = hooks[0].unit
    rows = [
        {
            "task": task,
            "hook": hook,
            "value": total,
            "calls": calls,
            "text": shown(total / calls if calls else None, unit),
        }
        for (task, hook), (total, calls) in sorted(
            cells.items(), key=lambda item: (names.index(item[0][1]), tasks.index(item[0][0]))
        )
    ]
    return Chart(
        name="heat-hooks",
        kind="heat",
        title="Hooks by system call",
        rows=rows,
        unit=unit,
        caption="Time of each hook in each system call; a darker field took more, an empty one was "
        "never called",
        axis="total",
    )


def _largest(costs: Sequence[FunctionCost], field: str, limit: int) -> list[str]:
    sums: dict[str, float] = {}
    for cost in costs:
        name = str(getattr(cost, field))
        sums[name] = sums.get(name, 0.0) + (cost.total or 0.0)
    return sorted(sums, key=lambda name: (-sums[name], name))[:limit]


def histogram_chart(found: Mapping[tuple[str, str, str], Sequence[Bucket]]) -> Chart | None:
    """Return the histograms with most calls, one row each; None where there is none.

    Only those of the most frequent unit are drawn, as they share an axis; buckets without a lower
    bound, or that begin at 0, reach to the axis' end.
    """
    if not found:
        return None
    counts = {key: sum(bucket.count for bucket in buckets) for key, buckets in found.items()}
    units = [key[2] for key in found]
    unit = max(set(units), key=lambda name: (units.count(name), name))
    arms = {key[0] for key in found}
    keys = [key for key in sorted(found, key=lambda key: -counts[key]) if key[2] == unit]
    rows: list[dict[str, Any]] = []
    for place, key in enumerate(keys[:HISTOGRAMS]):
        hook = key[1] if len(arms) == 1 else f"{key[1]} {key[0]}"
        rows += _bars(place, hook.removeprefix("hook|"), found[key], counts[key])
    if not rows:
        return None
    return Chart(
        name="histograms",
        kind="histogram",
        title="Histogram of each hook",
        rows=rows[:MAX_POINTS],
        unit=unit,
        caption="Net durations of the hooks called most: the height is the share of a bucket in "
        "the hook's calls, the tallest one full",
        axis="net duration",
    )


def _bars(place: int, hook: str, buckets: Sequence[Bucket], calls: float) -> list[dict[str, Any]]:
    tallest = max((bucket.count for bucket in buckets), default=0.0)
    return [
        {
            "hook": hook,
            "place": place,
            "low": bucket.low,
            "high": bucket.high,
            "height": 0.85 * bucket.count / tallest,
            "count": bucket.count,
            "share": bucket.count / calls,
        }
        for bucket in buckets
        if bucket.low is not None and bucket.high is not None and bucket.low > 0 and tallest
    ]
