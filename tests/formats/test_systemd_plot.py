"""`systemd-analyze plot --json`: units with their beginnings."""

from __future__ import annotations

import json

import pytest

from boot_inputs import plot_json
from excise.errors import FormatError
from excise.formats import systemd_plot
from excise.formats.model import Options


def test_units_have_their_beginning_and_their_time() -> None:
    data = plot_json({"-.mount": (2_290_000, 500), "dev-sda.device": (3_000_000, 0)})
    assert systemd_plot.detect(data) == 1.0
    reading = systemd_plot.read(data, Options(source="plot"))
    (run,) = reading.runs
    assert (run.task, run.wall_ns) == ("boot-units", None)
    assert [(e.event, e.start_ns, e.value) for e in reading.events] == [
        ("-.mount", 2_290_000_000, 500_000.0)  # what took no time is no row, as in blame
    ]


def test_never_is_null() -> None:
    rows = json.loads(plot_json({"a.service": (5, 7)}))
    rows[0]["deactivated"] = None
    reading = systemd_plot.read(json.dumps(rows).encode(), Options())
    assert reading.events[0].value == 7000.0


def test_a_time_that_does_not_fit_is_declared() -> None:
    data = plot_json({"a.service": (5, 7), "b.service": (1, 2**63)})
    reading = systemd_plot.read(data, Options(source="plot"))
    assert [event.event for event in reading.events] == ["a.service"]
    assert [loss.reason for loss in reading.losses] == [
        "the times of b.service do not fit in 64 bits"
    ]


def test_no_unit_at_all_is_refused() -> None:
    with pytest.raises(FormatError, match="no unit was activated"):
        systemd_plot.read(b"[]", Options(source="plot"))
