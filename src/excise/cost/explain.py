"""Everything that explains a total or a difference in one dataset."""

from __future__ import annotations

from excise.cost.attribution import Attribution, run_attributions
from excise.cost.difference import difference_attributions
from excise.errors import UsageError
from excise.events.dataset import Dataset


def attributions(dataset: Dataset, *, task: str | None = None) -> list[Attribution]:
    """Return the attribution of every total whose parts are known.

    Args:
        dataset: Runs with child events, or a published table with calls and unit costs.
        task: Only this task.

    Raises:
        UsageError: If there is no such task, or nothing has parts.
    """
    if task is not None and task not in dataset.tasks:
        raise UsageError(
            f"there is no task {task!r}",
            source=dataset.name,
            hint=f"Tasks here: {', '.join(dataset.tasks)}",
        )
    found = [
        *run_attributions(dataset, task=task),
        *difference_attributions(dataset, task=task),
    ]
    if not found:
        raise UsageError(
            "nothing has child events, or calls and unit costs, to attribute its time to",
            source=dataset.name,
            hint="Import a log that has them, such as RA_PERF, or trace the task",
        )
    return found
