from __future__ import annotations

import pytest

from excise.errors import HostError
from excise.lab import Comparison, GuestFailure
from excise.lab.count import counts, differences
from excise.report.lab import build_lab_comparison
from excise.report.markdown import render_markdown
from excise.report.text import render_text
from test_lab_count import _guest


def _comparison(**others: dict[str, list[float]]) -> Comparison:
    import dataclasses

    base = dataclasses.replace(_guest({"null": [100.0], "stat": [2000.0]}), effects=(), clock="c")
    found = [
        dataclasses.replace(_guest(values, name=name), effects=(), clock="c")
        for name, values in others.items()
    ]
    noise = {"null": 0.0, "stat": 0.001}
    return Comparison(
        baseline="none",
        counts={result.configuration: counts(result) for result in (base, *found)},
        differences={r.configuration: differences(base, r, noise=noise) for r in found},
        noise=noise,
        results=(base, *found),
        twins=(base,),
        failures=(GuestFailure(configuration="broken", error=HostError("the guest hung")),),
    )


def test_two_configurations_give_counts_difference_and_per_cent():
    found = _comparison(yama={"null": [100.0], "stat": [2500.0]})
    table = build_lab_comparison(found, title="t").tables()[0]
    assert [cell.text for cell in table.rows[1]] == [
        "stat",
        "2,000",
        "2,500",
        "+500.0",
        "+25.00 %",
        "0.100 %",
    ]
    assert table.rows[1][4].value == pytest.approx(0.25)


def test_several_configurations_stand_side_by_side():
    found = _comparison(
        a={"null": [110.0], "stat": [2001.0]}, b={"null": [100.0], "stat": [3000.0]}
    )
    table = build_lab_comparison(found, title="t").tables()[0]
    assert [column.heading for column in table.columns] == [
        "System call",
        "none",
        "Noise",
        "a",
        "b",
    ]
    names = [column.name for column in table.columns]
    assert names == ["task", "baseline", "noise", "ratio_a", "ratio_b"]
    assert [cell.text for cell in table.rows[0]][3:] == ["+10.00 %", "0.00 %"]
    assert table.rows[1][3].emphasis == "muted"
    assert table.rows[1][4].emphasis == "none"


def test_a_guest_that_failed_is_a_warning_in_every_form():
    report = build_lab_comparison(_comparison(a={"null": [1.0], "stat": [1.0]}), title="t")
    assert report.paragraphs("warning") == ["broken: the guest hung"]
    for text in (render_markdown(report), render_text(report)):
        assert "broken: the guest hung" in text
    assert report.data is not None
    assert report.data["failures"][0]["configuration"] == "broken"
