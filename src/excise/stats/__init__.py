"""Statistics of repeated measurements: arrays in, frozen results out; no other room is known here.

Everything takes values in the order in which they were measured, in any unit, and gives results in
the same unit, or ratios. Misuse raises `excise.errors.UsageError`.
"""

from excise.stats.autocorrelation import (
    LjungBox,
    autocorrelation,
    effective_sample_size,
    integrated_autocorrelation_time,
    ljung_box,
)
from excise.stats.compare import (
    AACheck,
    AAOutcome,
    Note,
    PairedComparison,
    Verdict,
    check_aa,
    compare_paired,
    decide,
    holm,
    wilcoxon_test_p,
)
from excise.stats.interval import (
    Interval,
    median_interval,
    pairs_for_interval,
    quantile_interval,
    quantile_ranks,
    sign_test_p,
)
from excise.stats.pairs import Pairs, block_medians, pair_blocks
from excise.stats.quantisation import Quantisation, find_quantisation
from excise.stats.summary import Summary, summarise

__all__ = [
    "AACheck",
    "AAOutcome",
    "Interval",
    "LjungBox",
    "Note",
    "PairedComparison",
    "Pairs",
    "Quantisation",
    "Summary",
    "Verdict",
    "autocorrelation",
    "block_medians",
    "check_aa",
    "compare_paired",
    "decide",
    "effective_sample_size",
    "find_quantisation",
    "holm",
    "integrated_autocorrelation_time",
    "ljung_box",
    "median_interval",
    "pair_blocks",
    "pairs_for_interval",
    "quantile_interval",
    "quantile_ranks",
    "sign_test_p",
    "summarise",
    "wilcoxon_test_p",
]
