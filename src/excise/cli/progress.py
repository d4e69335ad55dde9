"""Progress of long work: on standard error, and only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from excise.campaign.run import Progress as RunProgress


@contextmanager
def run_progress(total: int, *, shown: bool) -> Iterator[Callable[[RunProgress], None] | None]:
    """Give the function to call after each run, or None when nothing is shown.

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
        TimeRemainingColumn,
    )

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    with bar:
        task = bar.add_task("measuring", total=total)

        def update(progress: RunProgress) -> None:
            failed = f", [red]{progress.failed} failed[/red]" if progress.failed else ""
            bar.update(task, completed=progress.done, description=f"measuring{failed}")

        yield update
