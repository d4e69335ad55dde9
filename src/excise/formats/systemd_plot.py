"""`systemd-analyze plot --json`: every unit's times, in microseconds since the kernel's start.

What `blame` prints in milliseconds, with the moment each unit began. Units start in parallel, so
their sum means nothing: the run `boot-units` has no total.

Source: systemd 253 and later, src/analyze/analyze-plot.c (produce_plot_as_text) and
src/shared/format-table.c (a time span is a whole number of microseconds, or null for never).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from excise.capture.journal import Event, Loss
from excise.clock import Clock
from excise.errors import FormatError
from excise.formats.json_text import parse_json
from excise.formats.model import DEFAULT_CONFIGURATION, Format, Options, Reading
from excise.formats.systemd_analyze import UNITS
from excise.formats.text import loss, merged_losses, number_runs

NAME: Final = "systemd-plot"
_MAX_US: Final = 2**63 // 1000
_HEAD = re.compile(
    rb'\A\s*\[\s*\{\s*"name"\s*:\s*"[^"]{1,300}"\s*,\s*"activated"\s*:\s*(?:\d+|null)\s*,'
    rb'\s*"activating"'
)


class _Unit(msgspec.Struct):
    name: str
    activating: int | None = None
    activated: int | None = None
    time: int | None = None
    deactivating: int | None = None
    deactivated: int | None = None


def detect(head: bytes) -> float:
    """Return 1.0 for an array whose first object has a unit's name and times."""
    return 1.0 if _HEAD.match(head) else 0.0


def read(data: bytes, options: Options) -> Reading:
    """Return one run of task `boot-units`.

    Raises:
        FormatError: If it is no such JSON, or no unit in it was activated.
    """
    losses: list[Loss] = []
    events: list[Event] = []
    for unit in parse_json(data, list[_Unit], source=options.source):
        start_us, took_us = unit.activating, unit.time
        if not 0 <= (start_us or 0) < _MAX_US or not 0 <= (took_us or 0) < _MAX_US:
            losses.append(
                loss(options.source, 1, f"the times of {unit.name} do not fit in 64 bits")
            )
        elif took_us:
            events.append(
                Event(
                    sequence=0,
                    layer="unit",
                    event=unit.name,
                    start_ns=start_us * 1000 if start_us else None,
                    value=float(took_us * 1000),
                )
            )
    if not events:
        raise FormatError("no unit was activated", source=options.source, line=1)
    configuration = options.configuration or DEFAULT_CONFIGURATION
    draft: dict[str, Any] = {"task": options.task or UNITS, "configuration": configuration}
    return Reading(
        format=NAME,
        runs=number_runs([draft]),
        events=events,
        losses=merged_losses(losses),
        clock=Clock(name="CLOCK_MONOTONIC (systemd)", resolution_ns=1000.0),
        notes=["units start in parallel, so their times do not add up to the boot"],
    )


FORMAT: Final = Format(
    name=NAME,
    title="systemd-analyze plot --json: units with their beginnings",
    detect=detect,
    read=read,
)
