"""Child events in what measured commands printed: read after the runs, never beside them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from excise.campaign.spec import Campaign, Task
from excise.capture.journal import Event, Loss, Record, Run
from excise.capture.store import RAW, Capture, journal_chunks
from excise.errors import FormatError, SpecError, UsageError
from excise.formats.model import Options

_RUN_LINE: Final = b'{"kind":"run",'
_EVENT_LINE: Final = b'{"kind":"event",'


def raw_name(sequence: int) -> str:
    """Return the name below `raw/` under which a run's standard output is kept."""
    return f"{sequence}.stdout"


def require_formats(campaign: Campaign) -> None:
    """Refuse a campaign whose tasks name a format that nobody reads.

    Raises:
        SpecError: Naming the key.
    """
    for index, task in enumerate(campaign.tasks):
        if task.events is not None:
            from excise.formats.registry import by_name  # all readers: most campaigns need none

            try:
                by_name(task.events)
            except UsageError as error:
                raise SpecError(
                    error.reason, key=f"tasks[{index}].events", hint=error.hint
                ) from error


def collect_events(capture: Capture, campaign: Campaign) -> None:
    """Append the events in the kept outputs of all runs that have none in the journal yet.

    What cannot be read is declared as a loss of that run. One write holds all of a run, so that
    collecting goes on where it was cut short.

    Raises:
        CaptureError: If the journal cannot be read or written.
    """
    tasks = {task.name: task for task in campaign.tasks if task.events is not None}
    if not tasks:
        return
    for run in list(_without_events(capture, tasks)):
        capture.extend(_records(capture, run, tasks[run.task]))


def _without_events(capture: Capture, tasks: dict[str, Task]) -> Iterator[Run]:
    """Yield the runs of these tasks that come after the last one with events."""
    waiting: list[Run] = []
    done = -1
    for _, chunk in journal_chunks(capture.path):
        for line in chunk.splitlines():
            if line.startswith(_RUN_LINE):
                run = msgspec.json.decode(line, type=Run)
                if run.task in tasks:
                    waiting.append(run)
            elif line.startswith(_EVENT_LINE):
                done = max(done, msgspec.json.decode(line, type=Event).sequence)
    yield from (run for run in waiting if run.sequence > done)


def _records(capture: Capture, run: Run, task: Task) -> list[Record]:
    from excise.formats.registry import read

    source = f"{RAW}/{raw_name(run.sequence)}"
    try:
        data = (capture.path / source).read_bytes()
        options = Options(source=source, task=task.name, inner_total=True)
        found = read(data, options=options, format_name=task.events)
    except OSError as error:
        return [Loss(source=source, reason=f"cannot be read ({error.strerror})")]
    except FormatError as error:
        return [Loss(source=source, line=error.line, offset=error.offset, reason=error.reason)]
    events = [msgspec.structs.replace(event, sequence=run.sequence) for event in found.events]
    losses = [msgspec.structs.replace(loss, source=source) for loss in found.losses]
    if not events:
        losses.append(Loss(source=source, reason=f"holds no {task.events} event"))
    return [*events, *losses]
