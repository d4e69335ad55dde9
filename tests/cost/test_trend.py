"""Growth with the run number and stability, in summaries and reports."""

from __future__ import annotations

import numpy as np
import pytest

from captures import run
from cost_datasets import dataset, paired_dataset
from excise.cost.series import series_of
from excise.cost.summary import TaskSummary, summaries
from excise.cost.trend import stabilities
from excise.events.dataset import Dataset
from excise.report.build import build_report, build_show
from excise.report.model import Paragraph
from excise.report.write import render
from excise.stats import AdviceCode


def series(values: np.ndarray, *, first: float = 1e6) -> Dataset:
    records = [run(0, phase="first", wall_ns=round(first))]
    records += [
        run(number + 1, phase="measured", wall_ns=round(value))
        for number, value in enumerate(values)
    ]
    return dataset(records)


def noisy(shape: np.ndarray, *, sd: float = 0.01) -> np.ndarray:
    draw = np.random.default_rng(1)
    return np.asarray(1e6 * shape * np.exp(draw.normal(0, sd, shape.size)))


def only(data: Dataset) -> TaskSummary:
    (row,) = summaries(data)
    return row


def test_a_list_that_gets_longer_with_each_run_has_no_mean_but_a_slope() -> None:
    n = np.arange(1, 10_001)
    data = series(noisy(1 + n / 2000))
    row = only(data)
    assert row.growing
    assert row.growth is not None
    assert row.growth.slope == pytest.approx(500.0, rel=0.02)
    assert row.growth.exponent == pytest.approx(1.0, abs=0.1)
    report = build_show(data)
    table = report.table("growth")
    cells = dict(zip([column.name for column in table.columns], table.rows[0], strict=True))
    assert cells["slope"].text.startswith("500 ns") or cells["slope"].value == pytest.approx(
        500, rel=0.02
    )
    assert cells["model"].text == "n"
    runs_table = report.table("runs")
    mean = [column.name for column in runs_table.columns].index("mean")
    assert runs_table.rows[0][mean].text == "grows"
    assert runs_table.rows[0][mean].value is None
    assert "1 of 1 series grow" in report.paragraphs("warning")[0]


def test_growth_that_begins_late_says_from_which_run() -> None:
    n = np.arange(4000)
    row = only(series(noisy(1 + np.maximum(0, n - 3000) / 2000)))
    assert row.growth is not None
    assert row.growth.starts_at == pytest.approx(3000, abs=150)


@pytest.mark.parametrize(
    "shape", [np.ones(2000), np.linspace(2, 1, 2000), np.linspace(1, 1.02, 2000), np.ones(5)]
)
def test_what_does_not_grow_has_a_mean(shape: np.ndarray) -> None:
    row = only(series(noisy(shape)))
    assert not row.growing
    assert row.growth is None
    assert row.mean is not None


def test_growth_of_seven_percent_is_seen_and_of_three_is_not() -> None:
    for factor, grows in ((1.07, True), (1.03, False)):
        row = only(series(noisy(np.linspace(1, factor, 4000), sd=0.002)))
        assert row.growing == grows


def test_a_series_with_a_zero_has_no_verdict() -> None:
    assert list(stabilities(list(series_of(series(np.array([1e6] * 20 + [0.0])))))) == []


def codes(data: Dataset) -> set[AdviceCode]:
    (found,) = stabilities(list(series_of(data)))
    return {advice.code for advice in found.stability.advice}


def test_a_steady_series_needs_no_advice() -> None:
    assert codes(series(noisy(np.ones(500)))) == set()


def test_a_slow_first_run_is_told_though_it_is_kept_apart() -> None:
    assert codes(series(noisy(np.ones(500)), first=6.7e6)) == {AdviceCode.FIRST_RUN_OUTLIER}


def test_drift_few_effective_samples_and_a_coarse_clock_are_told() -> None:
    walk = np.exp(np.cumsum(np.random.default_rng(2).normal(0, 0.02, 800)))
    assert AdviceCode.FEW_EFFECTIVE_SAMPLES in codes(series(1e6 * walk))
    assert AdviceCode.DRIFT in codes(series(noisy(np.geomspace(1, 1.2, 500))))
    ticks = np.round(noisy(np.ones(300), sd=0.05) / 1e4) * 1e4
    assert codes(series(ticks)) == {AdviceCode.COARSE_RESOLUTION}


def test_every_advice_stands_in_the_report_with_what_to_do() -> None:
    report = build_report(series(noisy(np.ones(500)), first=6.7e6))
    table = report.table("stability")
    assert "0 of 1 series are stable" in table.caption
    (cells,) = table.rows
    assert "the first run took 6.7" in cells[0].text
    assert "keep the first run apart" in cells[1].text
    assert cells[2].text == "t: none"
    assert "What to do" in render(report, format="text")


def test_where_all_is_stable_the_report_says_so_without_a_table() -> None:
    report = build_report(paired_dataset({"b": 1.1}, first_times=1.0))
    (section,) = (each for each in report.sections if each.heading == "Stability")
    assert section.blocks == [Paragraph(text="3 of 3 series are stable.")]
    text = render(report, format="text")
    assert "3 of 3 series are stable.\n" in text
    assert "What to do" not in text
    assert "No rows." not in render(report, format="html")
