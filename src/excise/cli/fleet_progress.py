"""Progress of a fleet's round: on standard error, and only on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from excise.fleet.rounds import Progress as FleetProgress


@contextmanager
def fleet_progress(total: int, *, shown: bool) -> Iterator[Callable[[FleetProgress], None] | None]:
    """Give the function to call after each batch of hosts, or None when nothing is shown.

    The bar tells hosts done and failed, hosts and entries a second, and the time still needed.
    """
    if not shown:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    bar = Progress(
        TextColumn("verifying"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        refresh_per_second=4,
    )
    with bar:
        task = bar.add_task("starting", total=total)

        def update(progress: FleetProgress) -> None:
            left = "" if progress.left_s is None else f", {progress.left_s:,.0f} s left"
            failed = f", [red]{progress.failed} failed[/red]" if progress.failed else ""
            text = f"{progress.rate:,.1f} hosts/s, {progress.entries:,} entries{left}{failed}"
            bar.update(task, completed=progress.done, description=text)

        yield update
