"""Measure what Linux security and attestation mechanisms cost, and prove they were on."""

from importlib.metadata import version

__version__ = version("excise")
