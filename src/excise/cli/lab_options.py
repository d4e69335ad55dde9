"""Options that the commands of `excise lab` share."""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import capture_written_later

PresetsOption = Annotated[
    str,
    typer.Option(
        "--preset",
        "-p",
        help="Presets, joined by commas; the first is the baseline. apparmor:FILE has further "
        "rules, so have landlock, tomoyo-… and selinux-…; landlock:256 has 256 rules.",
    ),
]
KernelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--kernel",
        "-k",
        help="Kernel: a series such as 6.12, a package, own, or a bzImage. [default: 6.12]",
        show_default=False,
    ),
]
MachineOption = Annotated[
    str | None,
    typer.Option("--machine", help="TOML file with a [machine] table.", show_default=False),
]
JobsOption = Annotated[int, typer.Option("--jobs", "-j", help="Guests at a time.", min=1)]
GoOnOutputOption = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="Capture to write, or to go on with.",
        callback=capture_written_later,
    ),
]
