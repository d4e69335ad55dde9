"""Column names, types and null rules of the tables that all analysis starts from.

Runs are kept wide (one row a run, one column a metric): a million runs with nine metrics are one
million rows, where the tidy form would be nine million. `tidy` gives the long form. Names repeat
in every row and are categories.
"""

from __future__ import annotations

from typing import Final

import polars as pl

Schema = dict[str, pl.DataType | type[pl.DataType]]

# One row a run. Null: the metric was not measured, or the kernel does not give it.
RUNS: Final[Schema] = {
    "sequence": pl.Int64,
    "block": pl.Int64,
    "task": pl.Categorical,
    "configuration": pl.Categorical,
    "run": pl.Int64,
    "phase": pl.Categorical,
    "start_ns": pl.Int64,
    "wall_ns": pl.Int64,
    "user_ns": pl.Int64,
    "system_ns": pl.Int64,
    "max_rss_bytes": pl.Int64,
    "minor_faults": pl.Int64,
    "major_faults": pl.Int64,
    "voluntary_switches": pl.Int64,
    "involuntary_switches": pl.Int64,
    "instructions": pl.Int64,
    "cycles": pl.Int64,
    "ima_entries": pl.Int64,
    "exit_code": pl.Int64,
    "signal": pl.Int64,
    "timed_out": pl.Boolean,
    "ok": pl.Boolean,
    "op_ns": pl.Float64,  # median over the probe's batches
    "first_op_ns": pl.Float64,
    "op_instructions": pl.Float64,  # least batch: no timer tick fell into it
    "first_op_instructions": pl.Float64,
    "operations": pl.Int64,
}

# One row a child event of a run.
EVENTS: Final[Schema] = {
    "sequence": pl.Int64,
    "layer": pl.Categorical,
    "event": pl.Categorical,
    "parent": pl.Categorical,  # `layer|event`, null: child of the run
    "labels": pl.Categorical,  # `name=value,...`, sorted; "" for none
    "start_ns": pl.Int64,
    "value": pl.Float64,
    "unit": pl.Categorical,
}

# One row a batch of a probe's run.
BATCHES: Final[Schema] = {"sequence": pl.Int64, "op_ns": pl.Float64}

# One row of a table that its source had already summarised.
AGGREGATES: Final[Schema] = {
    "task": pl.String,
    "configuration": pl.String,
    "layer": pl.String,
    "event": pl.String,
    "labels": pl.String,
    "metric": pl.String,
    "unit": pl.String,
    "count": pl.Float64,
    "sum": pl.Float64,
    "min": pl.Float64,
    "mean": pl.Float64,
    "median": pl.Float64,
    "max": pl.Float64,
    "sd": pl.Float64,
    "first": pl.Float64,
    "note": pl.String,
}

# Metrics of a run, with their units, in the order reports print them.
METRIC_UNITS: Final[dict[str, str]] = {
    "op_ns": "ns",
    "op_instructions": "instructions",
    "wall_ns": "ns",
    "user_ns": "ns",
    "system_ns": "ns",
    "max_rss_bytes": "B",
    "minor_faults": "1",
    "major_faults": "1",
    "voluntary_switches": "1",
    "involuntary_switches": "1",
    "instructions": "instructions",
    "cycles": "1",
    "ima_entries": "1",
}
