"""Whatever numbers come in: a result or a UsageError, never a warning or another exception."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from excise.errors import UsageError
from excise.stats import (
    analyse_series,
    check_aa,
    compare_paired,
    compare_unpaired,
    find_quantisation,
    growth,
    hierarchical_ratio,
    judge_stability,
    ljung_box,
    summarise,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)
TINY_TO_HUGE = st.floats(1e-49, 1e49)
FEW = st.sampled_from([0.01, 0.02, 1.0, 1e9])
VALUES = st.one_of(
    st.lists(ANY, max_size=20),
    st.lists(TINY_TO_HUGE, min_size=1, max_size=40),
    st.lists(FEW, min_size=1, max_size=40),
)
QUESTIONS = {
    "summarise": lambda a, _: summarise(a),
    "ljung_box": lambda a, _: ljung_box(a),
    "compare_paired": compare_paired,
    "check_aa": check_aa,
    "compare_unpaired": lambda a, b: compare_unpaired(a, b, resamples=200),
    "analyse_series": lambda a, _: analyse_series(a),
    "growth over runs": lambda a, _: growth(np.arange(len(a)), a),
    "growth over anything": growth,
    "find_quantisation": lambda a, _: find_quantisation(a),
    "judge_stability": lambda a, _: judge_stability(a),
    "hierarchical_ratio": lambda a, b: hierarchical_ratio(
        [[[x]] for x in a], [[[x]] for x in b], seed=1, resamples=200, method="bca"
    ),
}


@pytest.mark.parametrize("question", list(QUESTIONS))
@settings(max_examples=60)
@given(a=VALUES, b=VALUES)
def test_any_numbers_give_a_result_or_one_usage_error(question, a, b):
    size = min(len(a), len(b))
    try:
        result = QUESTIONS[question](a[:size], b[:size])
    except UsageError:
        return
    for name in getattr(type(result), "__dataclass_fields__", ()):
        value = getattr(result, name)
        assert not (isinstance(value, float) and np.isnan(value)), name


@pytest.mark.parametrize("value", [1e51, -1e51, 1e-51])
def test_values_that_no_unit_explains_are_refused(value):
    with pytest.raises(UsageError, match=r"a value (above 1e\+50|below 1e-50)|not above zero"):
        compare_paired([1.0, value], [1.0, 1.0])


@pytest.mark.parametrize("result", [summarise([1.0, 2.0]), compare_paired([1.0], [2.0])])
def test_results_are_frozen_and_slotted(result):
    with pytest.raises((AttributeError, TypeError), match=r"cannot assign|no attribute|frozen"):
        result.n = 3
    assert not hasattr(result, "__dict__")
