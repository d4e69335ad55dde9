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
from excise.stats.bootstrap import bootstrap_interval, median_replicates
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
from excise.stats.growth import Growth, ModelFit, growth
from excise.stats.hierarchy import HierarchicalRatio, hierarchical_ratio
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
from excise.stats.sequential import Decision, Look, LookPlan, plan_looks, take_look
from excise.stats.series import (
    Segment,
    SeriesAnalysis,
    SeriesKind,
    analyse_series,
    change_points,
    reduce_series,
)
from excise.stats.stability import Advice, AdviceCode, Stability, count_outliers, judge_stability
from excise.stats.summary import Summary, summarise
from excise.stats.unpaired import UnpairedComparison, compare_unpaired, runs_for_difference

__all__ = [
    "AACheck",
    "AAOutcome",
    "Advice",
    "AdviceCode",
    "Decision",
    "Growth",
    "HierarchicalRatio",
    "Interval",
    "LjungBox",
    "Look",
    "LookPlan",
    "ModelFit",
    "Note",
    "PairedComparison",
    "Pairs",
    "Quantisation",
    "Segment",
    "SeriesAnalysis",
    "SeriesKind",
    "Stability",
    "Summary",
    "UnpairedComparison",
    "Verdict",
    "analyse_series",
    "autocorrelation",
    "block_medians",
    "bootstrap_interval",
    "change_points",
    "check_aa",
    "compare_paired",
    "compare_unpaired",
    "count_outliers",
    "decide",
    "effective_sample_size",
    "find_quantisation",
    "growth",
    "hierarchical_ratio",
    "holm",
    "integrated_autocorrelation_time",
    "judge_stability",
    "ljung_box",
    "median_interval",
    "median_replicates",
    "pair_blocks",
    "pairs_for_interval",
    "plan_looks",
    "quantile_interval",
    "quantile_ranks",
    "reduce_series",
    "runs_for_difference",
    "sign_test_p",
    "summarise",
    "take_look",
    "wilcoxon_test_p",
]
