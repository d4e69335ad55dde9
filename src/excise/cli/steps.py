"""A bar of steps with names, for long work that is no campaign."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from excise.lab import Progress


@contextmanager
def steps_bar(progress: bool) -> Iterator[Callable[[str, int, int | None], None]]:
    """Give the function to call with what is done, and of how much: a bar on a terminal only."""
    if not (progress and sys.stderr.isatty()):
        yield lambda _text, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("preparing", total=None)

        def update(text: str, done: int, total: int | None) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield update


@contextmanager
def guests_bar() -> Iterator[Callable[[Progress], None]]:
    """Give the function to call at each stage of each guest: a bar on a terminal only."""
    with steps_bar(progress=True) as show:
        yield lambda at: show(f"{at.configuration}: {at.stage}", at.done, at.total)
