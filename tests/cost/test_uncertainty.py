"""How errors add up, and between what a share of uncertain figures lies."""

from __future__ import annotations

import math

import numpy as np
import pytest

from excise.cost.uncertainty import EXACT, Uncertainty, share_interval, summed


def test_independent_errors_add_in_quadrature_and_limits_as_they_are() -> None:
    found = summed([Uncertainty(1.0, 3.0), Uncertainty(0.5, 4.0), EXACT])
    assert (found.limit, found.spread, found.margin) == (1.5, 5.0, 6.5)
    assert summed([]) == EXACT
    assert Uncertainty(1.0, 3.0).times(-2) == Uncertainty(2.0, 6.0)


def test_a_share_of_figures_with_limits_lies_between_its_ends() -> None:
    limits = {"part_error": Uncertainty(limit=3.0), "whole_error": Uncertainty(limit=10.0)}
    assert share_interval(325.0, 980.0, **limits) == pytest.approx((322 / 990, 328 / 970))


def test_a_share_of_nothing_certain_has_no_interval() -> None:
    assert share_interval(5.0, 10.0, part_error=EXACT, whole_error=EXACT) is None
    unsure = Uncertainty(limit=6.0, spread=5.0)
    assert share_interval(5.0, 10.0, part_error=EXACT, whole_error=unsure) is None


@pytest.mark.parametrize("rest_sd", [0.5, 4.0])
def test_the_interval_of_a_share_holds_the_truth_as_often_as_it_says(rest_sd: float) -> None:
    rng = np.random.default_rng(7)
    n, rounds, held, alone = 40, 400, 0, 0
    for _ in range(rounds):
        part = rng.normal(60.0, 9.0, n)
        whole = part + rng.normal(40.0, rest_sd, n)
        part_error, whole_error, rest_error = (
            Uncertainty(spread=1.96 * float(np.std(values, ddof=1)) / math.sqrt(n))
            for values in (part, whole, whole - part)
        )
        means = float(part.mean()), float(whole.mean())
        errors = {"part_error": part_error, "whole_error": whole_error}
        together = share_interval(*means, **errors, rest_spread=rest_error.spread)
        apart = share_interval(*means, **errors)
        assert together is not None
        assert apart is not None
        assert together[1] - together[0] < apart[1] - apart[0]
        held += together[0] <= 0.6 <= together[1]
        alone += apart[0] <= 0.6 <= apart[1]
    assert 0.92 < held / rounds < 0.98
    assert alone == rounds  # taken for independent, it says too little
