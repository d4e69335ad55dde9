"""Measure what Linux security and attestation mechanisms cost, and prove they were on."""

# Not importlib.metadata: it would take a third of the start-up of a short command.
from excise._core import __version__

__all__ = ["__version__"]
