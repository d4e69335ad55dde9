"""Every known foreign format."""

from __future__ import annotations

from typing import Final

from excise.formats import (
    dmesg,
    hyperfine,
    lsmpmon,
    pyperf,
    ra_perf,
    systemd_analyze,
    systemd_plot,
    systemd_show,
    time_gnu,
    time_shell,
)
from excise.formats.registry import Format

FORMATS: Final[tuple[Format, ...]] = (
    ra_perf.FORMAT,
    lsmpmon.FORMAT,
    time_gnu.FORMAT_V,
    time_gnu.FORMAT,
    time_shell.FORMAT,
    hyperfine.FORMAT,
    pyperf.FORMAT,
    systemd_analyze.FORMAT,
    systemd_show.FORMAT,
    systemd_plot.FORMAT,
    dmesg.FORMAT,
)
