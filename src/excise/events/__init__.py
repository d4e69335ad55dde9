"""Events: captures and readers' rows as typed Polars tables."""
