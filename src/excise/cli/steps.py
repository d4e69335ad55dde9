"""A bar of steps with names, for long work that is no campaign."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def steps_bar(progress: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Give the function to call with what is done: a bar on a terminal, else nothing."""
    if not (progress and sys.stderr.isatty()):
        yield lambda _text, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), refresh_per_second=4) as bar:
        task = bar.add_task("preparing", total=None)

        def update(text: str, done: int, total: int) -> None:
            bar.update(task, description=text, completed=done, total=total)

        yield update
