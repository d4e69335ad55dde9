"""`excise tpm`: what a TPM is, what its commands cost, and where it stands among others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import (
    CaptureOutputOption,
    ChartsOption,
    FormatOption,
    JsonOption,
    ProgressOption,
    ReplaceOption,
    ReportOutputOption,
    SeedOption,
    open_dataset,
    parsed,
    print_json,
    print_report,
    read_input,
    refuse_idle,
    write_report,
)
from excise.cli.steps import steps_bar
from excise.errors import UsageError
from excise.units import NS_PER_S, counted, parse_duration

if TYPE_CHECKING:
    from excise.cost.tpm_catalogue import CatalogueTpm
    from excise.cost.tpm_record import TpmRecord

OWN = "own:"

app = typer.Typer(
    name="tpm",
    help="What a TPM is, what each of its commands costs, and where it stands among others.",
    no_args_is_help=True,
)

TctiOption = Annotated[
    str | None,
    typer.Option(
        "--tcti",
        "-T",
        metavar="TCTI",
        help="Where the TPM is, as for tpm2-tools: device:/dev/tpmrm0, swtpm:path=…, mssim:… "
        "[default: $TPM2TOOLS_TCTI, else device:/dev/tpmrm0]",
        show_default=False,
    ),
]


@app.command("info")
def info(
    tcti: TctiOption = None,
    kernel_config: Annotated[
        str | None,
        typer.Option(
            "--kernel-config",
            metavar="FILE",
            help="Judge this kernel configuration instead of the running kernel.",
            show_default=False,
        ),
    ] = None,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which TPM this is, what it has, and whether this kernel protects PCR extends.

    Example: excise tpm info -T device:/dev/tpmrm0
    """
    from excise.collect.tpm.info import read_info
    from excise.collect.tpm.wire import open_link
    from excise.report.tpm_info import build_info

    config = Path(kernel_config) if kernel_config else None
    if config is not None and not config.is_file():
        raise UsageError("is no file", source=str(config))
    with open_link(_tcti(tcti)) as link:
        found = read_info(link, config=config)
    print_report(build_info(found), format_name=format_name, as_json=as_json)


@app.command("bench")
def bench(
    tcti: TctiOption = None,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Measured runs of each.")] = 30,
    budget: Annotated[
        int,
        typer.Option(
            "--budget",
            parser=parsed(parse_duration, "duration"),
            help="TPM time after which a command with three runs is not repeated. [default: 5s]",
            show_default=False,
        ),
    ] = 5 * NS_PER_S,
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only",
            metavar="WORD",
            help="Only commands whose names contain this: Extend, Quote, RSA. Several times.",
            show_default=False,
        ),
    ] = None,
    pcr: Annotated[
        int | None,
        typer.Option(
            "--pcr",
            help="PCR to extend, 16 or 23. [default: the first that is zero; it is reset then]",
            show_default=False,
        ),
    ] = None,
    allow_persistent: Annotated[
        bool,
        typer.Option(
            "--allow-persistent",
            help="Define an NV index of the owner's for NV_Read, and remove it afterwards.",
        ),
    ] = False,
    seed: SeedOption = 1,
    output: CaptureOutputOption = "tpm.excise",
    force: ReplaceOption = False,
    progress: ProgressOption = True,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time each command of a TPM, and PCR extends in the kernel's protected modes.

    Nothing is left in the TPM: only PCR 16 or 23 is extended, and reset. The HMAC of every answer
    to a protected extend is checked. Ctrl-C keeps what was measured.

    Example: excise tpm bench -T swtpm:path=/run/swtpm.sock -o tpm.excise
    """
    from excise.campaign.tpm_bench import run_tpm_bench
    from excise.capture.store import remove_capture
    from excise.report.tpm import build_bench

    path = Path(output)
    if force:
        remove_capture(path)
    with steps_bar(progress) as on_step:
        done = run_tpm_bench(
            _tcti(tcti),
            path,
            blocks=blocks,
            budget_ns=budget,
            only=only or [],
            pcr=pcr,
            allow_persistent=allow_persistent,
            seed=seed,
            on_step=on_step,
        )
    if done.runs:
        report = build_bench(open_dataset(str(path)))
        print_report(report, format_name=format_name, as_json=as_json)
    state = "stopped, what was measured is kept" if done.interrupted else "complete"
    typer.echo(f"Wrote {path} ({counted(done.runs, 'run')}, {state})", err=True)
    if done.left:
        typer.echo(f"The TPM is not as it was: {'; '.join(done.left)}", err=True)
    if done.interrupted:
        raise typer.Exit(130)
    if done.left:
        raise typer.Exit(1)


@app.command("record")
def record(
    capture: Annotated[
        str, typer.Argument(metavar="CAPTURE", help="A capture of `excise tpm bench`.")
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write; - for standard output."
        ),
    ] = "-",
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            metavar="NAME",
            help="Also keep it as own:NAME among your own records, which `compare` looks at.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write one small JSON file of a TPM's costs, fit for a mailing list or a pull request.

    It has no serial number, key, certificate or host name.

    Example: excise tpm record tpm.excise -o slb9672.json
    """
    from excise.cost.tpm_record import decode_record, encode_record, record_of
    from excise.report.write import open_output

    with open_output(output) as opened:
        text = encode_record(record_of(open_dataset(capture)))
        decode_record(text.encode(), source=capture)  # what is shared can be read back
        opened.write(text)
    written = [] if output == "-" else [output]
    if keep is not None:
        written.append(str(_keep(keep, text)))
    if as_json and output != "-":  # else the record has been printed, which is JSON
        print_json({"files": written, "bytes": len(text.encode())})
    elif written:
        typer.echo(f"Wrote {', '.join(written)} ({len(text.encode()):,} bytes)", err=True)


@app.command("compare")
def compare(
    context: typer.Context,
    tpm: Annotated[
        str | None,
        typer.Argument(
            metavar="TPM",
            help="A capture of `excise tpm bench`, a record (- for standard input), or "
            "reference:NAME.",
            show_default=False,
        ),
    ] = None,
    others: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="TPM",
            help="Compare with this one alone: a capture, a record, reference:NAME. Several times. "
            "[default: the whole catalogue]",
            show_default=False,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--list", help="Print the TPMs of the catalogue and end.")
    ] = False,
    charts: ChartsOption = None,
    output: ReportOutputOption = None,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say where a TPM stands among those of the catalogue, command by command.

    Example: excise tpm compare tpm.excise --with reference:tpm-hmac-2024
    """
    from excise.cost.tpm_catalogue import catalogue, place
    from excise.report.tpm import build_catalogue, build_comparison
    from excise.report.write import export_charts

    if everything:
        refuse_idle(
            context, ("tpm", "others", "charts", "output"), "not for --list, which ends then"
        )
        known = [*catalogue(), *own_tpms()]
        print_report(build_catalogue(known), format_name=format_name, as_json=as_json)
        return
    if tpm is None:
        raise UsageError("a TPM is missing", hint="Name a capture or record, or give --list")
    subject = open_tpm(tpm)
    among = [open_tpm(name) for name in others] if others else [*catalogue(), *own_tpms()]
    among = [other for other in among if other.medians_ns != subject.medians_ns]
    report = build_comparison(subject, place(subject, among), others=among)
    write_report(report, output)
    if charts is not None:
        written = export_charts(report, charts, formats=["svg"])
        typer.echo(f"Wrote {', '.join(map(str, written))}", err=True)
    print_report(report, format_name=format_name, as_json=as_json)


def open_tpm(name: str) -> CatalogueTpm:
    """Return the TPM a user named: a capture, a record, own:NAME, or one of the catalogue."""
    from excise.cost.tpm_catalogue import find_tpm, of_record

    if name.startswith("reference:"):
        return find_tpm(name)
    if name.startswith(OWN):
        path = _own_path(name.removeprefix(OWN))
        return of_record(open_record(str(path)), source=name)
    return of_record(open_record(name), source=Path(name).name)


def open_record(name: str) -> TpmRecord:
    """Return the record of a TPM that a user named: a capture, or a file of a record."""
    from excise.cost.tpm_record import decode_record, record_of

    path = Path(name)
    if path.is_dir() or name.endswith((".tar.zst", ".excise")):
        return record_of(open_dataset(name))
    return decode_record(read_input(name), source=name)


def own_tpms() -> list[CatalogueTpm]:
    """Return the TPMs of the user's own records, by name; one that cannot be read is an error."""
    folder = _own_folder()
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [open_tpm(f"{OWN}{file.stem}") for file in files]


def _own_folder() -> Path:
    home = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(home) / "excise" / "tpm-records"


def _own_path(name: str) -> Path:
    if not name or name != Path(name).name or name.startswith("."):
        raise UsageError(f"{name!r} is no name of a record", hint="Such as laptop-slb9672")
    return _own_folder() / f"{name}.json"


def _keep(name: str, text: str) -> Path:
    """Write a record among the user's own."""
    from excise.report.write import open_folder, open_output

    path = _own_path(name)
    open_folder(path.parent)
    with open_output(path) as opened:
        opened.write(text)
    return path


def _tcti(given: str | None) -> str:
    return given or os.environ.get("TPM2TOOLS_TCTI") or "device:/dev/tpmrm0"
