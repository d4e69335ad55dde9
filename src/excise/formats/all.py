"""Every known foreign format."""

from __future__ import annotations

from typing import Final

from excise.formats import hyperfine, ra_perf
from excise.formats.registry import Format

FORMATS: Final[tuple[Format, ...]] = (
    ra_perf.FORMAT,
    hyperfine.FORMAT,
)
