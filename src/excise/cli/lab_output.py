"""The capture that a command of the lab writes its guests to, or goes on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from excise.lab import GuestFailure, GuestJob, GuestResult


@dataclass(frozen=True, slots=True, kw_only=True)
class GuestsOutput:
    """Where guests go.

    Attributes:
        add: Called with each guest's result or failure.
        kept: Guests that are there already.
    """

    add: Callable[[GuestResult | GuestFailure], None] = lambda _: None
    kept: Mapping[str, GuestResult] = field(default_factory=dict)


@contextmanager
def guests_output(
    output: str | None, *, jobs: Sequence[GuestJob], title: str
) -> Iterator[GuestsOutput]:
    """Give where guests go: a capture, new or one of the same guests, or nowhere.

    An interrupt is told with what is kept.

    Args:
        output: Path of the capture, None for none.
        jobs: All guests; the first is the baseline.
        title: Title of a new capture.

    Raises:
        OutputError: If the path is taken by something else.
        Refused: If the capture was begun under other conditions.
    """
    if output is None:
        yield GuestsOutput()
        return
    from excise import __version__
    from excise.lab.record import LabCapture

    with LabCapture(
        Path(output),
        jobs=jobs,
        title=title,
        baseline=jobs[0].configuration,
        version=__version__,
    ) as capture:
        if capture.kept:
            typer.echo(f"{output} has {len(capture.kept)} of {len(jobs)} guests", err=True)
        try:
            yield GuestsOutput(add=capture.add, kept=capture.kept)
        except KeyboardInterrupt:
            typer.echo(f"The same command goes on with {output}", err=True)
            raise
