"""What explains a published difference: calls per operation × (cost here − cost in the baseline).

Source: the method of LSMPMON (Matsuda, Tabata and Munetoh). Its hook costs are means over a mixed
workload, so that a share can be far from the truth, and above 100 %; both are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from excise.cost.attribution import Attribution, Part
from excise.cost.summary import TaskSummary, published_summaries
from excise.events.dataset import Dataset

PER_CALL = "per_call"
_Key = tuple[str, str, str]  # task, configuration, event


def difference_attributions(dataset: Dataset, *, task: str | None = None) -> list[Attribution]:
    """Return what explains each configuration's difference to the baseline, task by task.

    Only tasks whose table gives a total, calls per operation and unit costs; others are left out.

    Args:
        dataset: Published rows: a total per task, and per part its `duration` and `per_call`.
        task: Only this task.
    """
    baseline = dataset.manifest.baseline
    if baseline is None:
        return []
    rows = list(published_summaries(dataset))
    totals = {
        (row.task, row.configuration): row
        for row in rows
        if row.layer == "task" and not row.event and row.metric == "duration" and row.typical
    }
    costs = {_key(row): row for row in rows if row.event and row.metric == "duration"}
    calls = {_key(row): row.typical for row in rows if row.metric == PER_CALL and row.typical}
    return [
        _attribution(total, totals[name, baseline], costs, calls)
        for (name, arm), total in totals.items()
        if arm != baseline
        and (name, baseline) in totals
        and task in (None, name)
        and any(key[:2] == (name, arm) for key in calls)
    ]


def _key(row: TaskSummary) -> _Key:
    return (row.task, row.configuration, row.event)


def _attribution(
    total: TaskSummary,
    base: TaskSummary,
    costs: Mapping[_Key, TaskSummary],
    calls: Mapping[_Key, float],
) -> Attribution:
    difference = (total.typical or 0.0) - (base.typical or 0.0)
    missing: list[str] = []
    parts = sorted(
        _parts(total, base, costs, calls, difference, missing), key=lambda part: -part.value
    )
    top = sum(part.value for part in parts)
    explained = top / difference if difference else 0.0
    flags = (
        [f"no unit cost is given for {', '.join(missing)}: its part is in the remainder"]
        if missing
        else []
    )
    if explained > 1.0:
        flags.append(
            "children explain more than 100 %: a mean over a mixed workload is not the cost in "
            "this task"
        )
    remainder = Part(
        layer="",
        event="remainder",
        labels="",
        role="remainder",
        value=difference - top,
        share=1.0 - explained,
        runs=1,
    )
    return Attribution(
        task=total.task,
        configuration=f"{total.configuration} − {base.configuration}",
        metric="difference",
        unit=total.unit,
        total=difference,
        n=1,
        parts=(*parts, remainder),
        explained=explained,
        flags=tuple(flags),
    )


def _parts(
    total: TaskSummary,
    base: TaskSummary,
    costs: Mapping[_Key, TaskSummary],
    calls: Mapping[_Key, float],
    difference: float,
    missing: list[str],
) -> Iterator[Part]:
    for (task, arm, event), count in calls.items():
        if (task, arm) != (total.task, total.configuration):
            continue
        here, before = costs.get((task, arm, event)), costs.get((task, base.configuration, event))
        if here is None or before is None or here.typical is None or before.typical is None:
            missing.append(event)
            continue
        value = count * (here.typical - before.typical)
        yield Part(
            layer=here.layer,
            event=event,
            labels=f"{count:g} calls",
            role="child",
            value=value,
            share=value / difference if difference else 0.0,
            runs=1,
        )
