"""Costs: what each task takes under each configuration, what differs, and what explains it."""
