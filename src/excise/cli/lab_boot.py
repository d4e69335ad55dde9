"""`excise lab boot`: the same guest booted under several IMA policies and kernels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from excise.cli.lab_options import GoOnOutputOption, JobsOption, KernelOption, MachineOption
from excise.cli.options import (
    FormatOption,
    JsonOption,
    open_dataset,
    parse_counts,
    parsed,
    print_report,
    split_words,
)
from excise.errors import UsageError

_MOST_FILES: Final = 20_000


def _counts(text: str) -> list[int]:
    counts = parse_counts(text)
    if not counts or max(counts) > _MOST_FILES:
        raise UsageError(f"{text!r} is not numbers up to {_MOST_FILES}, joined by commas")
    return counts


def boot(
    ima: Annotated[
        str,
        typer.Option(
            "--ima",
            help="IMA policies, joined by commas: off, few (programs that root starts), tcb, or "
            "files with rules.",
        ),
    ] = "off,few,tcb",
    kernel: KernelOption = None,
    cmdline: Annotated[
        str, typer.Option("--cmdline", help="Words for the kernel's command line.")
    ] = "",
    files: Annotated[
        Sequence[int],
        typer.Option(
            "--files",
            metavar="N,…",
            parser=parsed(_counts, "counts"),
            help="New files that init reads, one IMA entry each under tcb: numbers joined by "
            "commas, each a configuration; with --root initramfs. [default: 0]",
            show_default=False,
        ),
    ] = (0,),
    boots: Annotated[int, typer.Option("--boots", "-n", help="Boots of each.", min=1)] = 3,
    root: Annotated[
        str,
        typer.Option("--root", help="debian (systemd) or initramfs (nothing but the lab's init)."),
    ] = "debian",
    machine: MachineOption = None,
    jobs: JobsOption = 1,
    output: GoOnOutputOption = "boots.excise",
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Boot a guest under IMA policies: stages, entries, commands to the TPM, prediction.

    Interrupted, the same command goes on with the boots that are missing.

    Example: excise lab boot --ima off,few,tcb --boots 5 -o boots.excise

    Example: excise lab boot --root initramfs --ima tcb --files 0,500,1000,2000

    Example: excise lab boot --kernel own --cmdline initcall_debug --ima off -n 1
    """
    from excise.cli.steps import guests_bar
    from excise.lab.boots import boot_arms, boot_machine, run_boots
    from excise.lab.machine import read_machine
    from excise.report.boot import build_boots

    base = read_machine(Path(machine)) if machine else None
    kernels = kernel or [base.kernel if base else "6.12"]
    policies = split_words(ima)
    if any(files) and root != "initramfs":
        raise UsageError("needs --root initramfs: there init reads them", source="--files")
    guest = boot_machine(base, root=root)
    arms = boot_arms(kernels=kernels, policies=policies, words=cmdline.split(), files=files)
    with guests_bar() as show:
        failures = run_boots(
            arms,
            machine=guest,
            boots=boots,
            output=Path(output),
            title=f"Boots under IMA policies {', '.join(policies)}",
            parallel=jobs,
            on_progress=show,
        )
    if len(failures) < boots * len(arms):
        print_report(build_boots([open_dataset(output)]), format_name=format_name, as_json=as_json)
        typer.echo(f"Wrote {output}", err=True)
    for failure in failures:
        raise failure.error
