"""Clocks: every time in excise is int64 nanoseconds of a named clock of known resolution."""

from __future__ import annotations

import msgspec


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """A clock that values were read from.

    Attributes:
        name: Its name, such as `CLOCK_MONOTONIC`, `TSC at 3 GHz` or `as published`.
        resolution_ns: Smallest step in nanoseconds that two readings can differ by; None when
            the source does not tell.
    """

    name: str
    resolution_ns: float | None = None


def rusage_clock() -> Clock:
    """Return the clock of user and system time (`getrusage`), which counts in microseconds."""
    return Clock(name="getrusage", resolution_ns=1000.0)
