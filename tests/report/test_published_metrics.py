"""Published rows of several metrics in one table."""

from __future__ import annotations

import json
from pathlib import Path

from excise.events.imports import Imported, import_readings
from excise.events.load import load_capture
from excise.formats.model import Options
from excise.formats.registry import read
from excise.report.build import build_show


def test_user_and_system_time_of_a_hyperfine_export_are_told_apart(tmp_path: Path) -> None:
    result = {"command": "true", "times": [0.1, 0.2], "user": 0.03, "system": 0.01}
    data = json.dumps({"results": [result]}).encode()
    reading = read(data, options=Options(source="h.json"))
    imported = Imported(name="h", data=data, reading=reading)
    report = build_show(load_capture(import_readings(tmp_path / "h.excise", [imported])))
    (table,) = [each for each in report.tables() if each.caption == "As published"]
    metric, mean = ([column.name for column in table.columns].index(n) for n in ("metric", "mean"))
    assert {(row[metric].text, row[mean].text) for row in table.rows} == {
        ("user", "30.0 ms"),
        ("system", "10.0 ms"),
    }
