"""Progress of long work: on standard error, and only on a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from excise.campaign.run import Progress as RunProgress


class RunsBar:
    """A bar of a campaign's runs: done and left, failed ones, what is being worked on."""

    def __init__(self, bar: Any, *, total: int) -> None:
        self._bar = bar
        self._task = bar.add_task("measuring", total=total)
        self._failed = ""
        self._stages: dict[str, str] = {}

    def __call__(self, progress: RunProgress) -> None:
        """Take notice of a run that ended."""
        self._stages.pop(progress.run.configuration, None)
        if progress.failed:
            self._failed = f", [red]{progress.failed} failed[/red]"
        self._bar.update(self._task, completed=progress.done, description=self._text())

    def stage(self, configuration: str, stage: str) -> None:
        """Take notice of how far a guest has come."""
        self._stages[configuration] = stage
        if stage == "done":
            del self._stages[configuration]
        self._bar.update(self._task, description=self._text())

    def _text(self) -> str:
        working = ", ".join(f"{name}: {stage}" for name, stage in list(self._stages.items()))
        return (working or "measuring") + self._failed


def tell_waits(configuration: str, stage: str) -> None:
    """Say what is waited for, minutes perhaps, where no bar shows it."""
    if stage.startswith(("wait", "reset")):
        typer.echo(f"{configuration}: {stage}", err=True)


@contextmanager
def run_progress(total: int, *, shown: bool) -> Iterator[RunsBar | None]:
    """Give the bar to call after each run, or None when nothing is shown.

    The bar tells runs done and left, failed runs, and the time still needed; it is redrawn four
    times a second at most, and never by the thread that waits for runs.
    """
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    bar = Progress(
        TextColumn("{task.description}", table_column=words),
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        expand=True,
        refresh_per_second=4,
    )
    with bar:
        yield RunsBar(bar, total=total)
