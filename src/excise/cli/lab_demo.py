"""`excise lab demo`: security modules on a real kernel, and a guest whose evidence is verified."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, open_dataset, print_json, print_report

if TYPE_CHECKING:
    from excise.campaign.lab_demo import VerifiedGuest

REFERENCE = "lsmpmon-2008"
YEAR = 2008


def demo(
    output: Annotated[
        str, typer.Option("-o", "--output", help="Capture to write or resume.")
    ] = "demo.excise",
    report: Annotated[str, typer.Option("--report", help="Report to write.")] = "report.html",
    kernel: Annotated[
        str, typer.Option("--kernel", "-k", help="Kernel series or package.")
    ] = "6.12",
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", help="Guests at a time. [default: one a processor]", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Count what AppArmor, SELinux, TOMOYO, Landlock and IMA add, and verify a guest's evidence.

    Boots one guest for each in count mode and the IMA guest once more with a software TPM, prints
    the counts beside those published in 2008, and writes a report. The same command goes on
    where it stopped. Needs no root and no KVM.

    Example: excise lab demo -o demo.excise
    """
    from excise.campaign.lab_demo import (
        SAME_MECHANISM,
        SAME_TASK,
        demo_campaign,
        is_complete,
    )
    from excise.campaign.run import run_campaign
    from excise.capture.seal import seal
    from excise.cli.progress import run_progress
    from excise.cli.run import conclude_interrupted, tell_of_the_wait
    from excise.cost.comparison import compare_configurations
    from excise.report.build import build_report
    from excise.report.lab_demo import build_lab_demo, then_and_now, with_section
    from excise.report.write import format_of, open_output, render

    chosen = format_of(report, name=None)
    campaign, path = demo_campaign(kernel=kernel), Path(output)
    with open_output(report) as opened:
        if not is_complete(path, campaign):
            with run_progress(campaign.runs, shown=sys.stderr.isatty()) as shown:
                finished = run_campaign(
                    campaign,
                    path,
                    jobs=jobs or os.cpu_count() or 1,
                    on_progress=shown,
                    on_stage=shown.stage if shown else None,
                    on_interrupt=tell_of_the_wait,
                )
            conclude_interrupted(finished, as_json=as_json)
            seal(path)
        guest = _verified_guest(path, kernel=kernel)
        dataset, published = open_dataset(output), open_dataset(f"reference:{REFERENCE}")
        found = compare_configurations(dataset)
        beside = then_and_now(
            found,
            compare_configurations(published),
            mechanisms=SAME_MECHANISM,
            tasks=SAME_TASK,
            year=YEAR,
        )
        whole = build_report(dataset, beside=[published], appraisals=guest.appraisals)
        opened.write(render(with_section(whole, beside, heading="Then and now"), format=chosen))
    if as_json:
        print_json({**dict(whole.data or {}), "report": report, "passed": guest.passed})
    else:
        built = build_lab_demo(found, beside, guest.appraisals, title=dataset.manifest.title)
        print_report(built, format_name=None, as_json=False)
    typer.echo(f"Wrote {report}, {output} and {guest.capture}", err=True)
    if not guest.passed:
        raise typer.Exit(1)


def _verified_guest(path: Path, *, kernel: str) -> VerifiedGuest:
    from excise.campaign.lab_demo import verified_guest
    from excise.cli.steps import guests_bar

    with guests_bar() as show:
        beside = path.with_name(f"{path.stem}-tpm.excise")
        return verified_guest(beside, kernel=kernel, on_progress=show)
