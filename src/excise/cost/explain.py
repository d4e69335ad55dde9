"""Everything that explains a total or a difference in one dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from excise.cost.attribution import Attribution, run_attributions
from excise.cost.call_tree import is_trace
from excise.cost.counted import is_counted
from excise.cost.difference import difference_attributions
from excise.cost.series import series_of
from excise.errors import UsageError
from excise.events.dataset import Dataset
from excise.formats.trace_rows import HOOK
from excise.formats.trace_syscalls import task_name


def attributions(
    *datasets: Dataset,
    task: str | None = None,
    baseline: str | None = None,
    configuration: str | None = None,
    calls: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Attribution]:
    """Return the attribution of every total, and of every difference, whose parts are known.

    Args:
        *datasets: Runs with child events, or tables with calls and unit costs. Several are taken
            together, and then only differences are attributed.
        task: Only this task.
        baseline: Configuration that others are compared with; the first dataset's by default.
        configuration: Only this one: its difference to the baseline, else its totals.
        calls: Calls per operation by task and part, for tables that do not give them.

    Raises:
        UsageError: If there is no such task or configuration, or nothing has parts.
    """
    known = list(dict.fromkeys(name for dataset in datasets for name in dataset.tasks))
    source = ", ".join(dataset.name for dataset in datasets)
    if task is not None and task not in {*known, *map(task_name, known)}:
        raise UsageError(
            f"there is no task {task!r}", source=source, hint=f"Tasks here: {', '.join(known)}"
        )
    arms = list(dict.fromkeys(name for dataset in datasets for name in dataset.configurations))
    if configuration is not None and configuration not in arms:
        raise UsageError(
            f"there is no configuration {configuration!r}",
            source=source,
            hint=f"Configurations here: {', '.join(arms)}",
        )
    differences = difference_attributions(
        *datasets, task=task, baseline=baseline, configuration=configuration, calls=calls
    )
    # Of one configuration its difference to the baseline; its totals, where there is none.
    totals = len(datasets) == 1 and baseline is None and not (configuration and differences)
    found = [
        *(
            each
            for each in (run_attributions(datasets[0], task=task) if totals else ())
            if configuration in (None, each.configuration)
        ),
        *differences,
    ]
    if not found:
        raise UsageError(
            "nothing has child events, or calls and unit costs, to attribute its time to",
            source=source,
            hint=_hint(datasets),
        )
    return found


def _hint(datasets: Sequence[Dataset]) -> str:
    """Return what to do where nothing has parts."""
    if any(
        is_counted(each, dataset.manifest) for dataset in datasets for each in series_of(dataset)
    ):
        return "`excise lab trace` counts system calls in guests and traces their hooks"
    ran = [list(dict.fromkeys(dataset.runs.get_column("task"))) for dataset in datasets]
    if len(ran) > 1 and all(ran) and not set.intersection(*map(set, ran)):
        return f"No task ran in all: {' against '.join(map(', '.join, ran))}"
    if any(map(is_trace, datasets)):
        return (
            "No task of these traces has a total: trace system calls too (their functions, or the "
            "events raw_syscalls:sys_enter and sys_exit), in each configuration"
        )
    if any(dataset.aggregates.filter(layer=HOOK, metric="duration").height for dataset in datasets):
        return (
            "These are costs of hooks: give totals of tasks beside them, as a capture or a table, "
            "and with --calls how often a task calls each hook"
        )
    return "Import a log that has them, such as RA_PERF, or trace the task"
