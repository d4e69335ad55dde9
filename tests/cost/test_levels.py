"""The cross-check by bootstrap over blocks and batches."""

from __future__ import annotations

import dataclasses

import msgspec
import numpy as np
import polars as pl
import pytest

from cost_datasets import TWIN, dataset, paired_runs
from excise.capture.journal import Probe, Run
from excise.cost.comparison import compare_configurations
from excise.cost.levels import compare_levels
from excise.events.dataset import Dataset
from excise.report.build import build_comparison
from excise.stats import Verdict


def probed(ratio: float, *, batch_noise: float, blocks: int = 40) -> Dataset:
    """Return workload runs: levels of blocks as in `paired_runs`, batches scattered round them."""
    draw = np.random.default_rng(5)

    def with_probe(run: Run) -> Run:
        assert run.wall_ns is not None
        values = run.wall_ns / 1e4 * np.exp(draw.normal(0.0, batch_noise, 11))
        probe = Probe(workload="stat", operations=100, op_ns=values.tolist())
        return msgspec.structs.replace(run, probe=probe)

    runs = paired_runs({"none": 1.0, TWIN: 1.0, "b": ratio}, blocks=blocks)
    return dataset(
        [with_probe(run) for run in runs], baseline="none", twin=TWIN, paired=True, seed=3
    )


def test_bootstrap_and_sign_test_agree_on_a_clear_cost() -> None:
    data = probed(1.05, batch_noise=0.01)
    found = compare_configurations(data)
    (check,) = compare_levels(data, found)
    assert check.row.verdict is check.levels.verdict is Verdict.COSTS
    assert check.levels.ratio == pytest.approx(check.row.ratio, rel=1e-9)
    assert check.levels.blocks == (40, 40)
    assert check.levels.values == (440, 440)
    assert check.levels.interval is not None
    assert check.levels.interval.holds(1.05)


def test_few_noisy_batches_widen_the_bootstrap_only() -> None:
    data = probed(1.05, batch_noise=0.3)
    (check,) = compare_levels(data, compare_configurations(data))
    assert check.levels.interval is not None
    assert check.row.low is not None
    assert check.row.high is not None
    bootstrap = check.levels.interval.high - check.levels.interval.low
    assert bootstrap > 1.2 * (check.row.high - check.row.low)


def test_batches_that_the_clock_saw_as_nothing_are_left_out() -> None:
    data = probed(1.05, batch_noise=0.01)
    zero = data.op_ns_batches.with_columns(
        op_ns=pl.col("op_ns") * (pl.int_range(pl.len()) % 11 > 0)
    )
    data = dataclasses.replace(data, op_ns_batches=zero)
    (check,) = compare_levels(data, compare_configurations(data))
    assert check.levels.values == (400, 400)
    assert check.levels.interval is not None


def test_commands_have_no_batches_to_check_by() -> None:
    data = dataset(paired_runs({"none": 1.0, "b": 1.1}), baseline="none", paired=True)
    assert compare_levels(data, compare_configurations(data)) == []


def test_the_check_stands_in_the_report_and_its_json() -> None:
    data = probed(1.05, batch_noise=0.01)
    found = compare_configurations(data)
    report = build_comparison(found, data, levels=compare_levels(data, found))
    (row,) = report.table("bootstrap").rows
    assert row[-1].text == "costs"
    assert report.data is not None
    (plain,) = report.data["bootstrap"]
    assert (plain["blocks"], plain["values"], plain["seed"]) == (40, [440, 440], 3)
    assert plain["low"] < 1.05 < plain["high"]
    assert "bootstrap" not in (build_comparison(found, data).data or {})
