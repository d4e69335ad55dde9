"""`excise boot`: boots by stage, from captures, from this host, from files of one boot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import (
    FormatOption,
    JsonOption,
    PrivateOption,
    capture_written_later,
    open_dataset,
    print_json,
    print_report,
    read_input,
)
from excise.errors import FormatError, UsageError

if TYPE_CHECKING:
    from excise.formats.model import Reading

ConfigurationOption = Annotated[
    str, typer.Option("--configuration", help="Name of the configuration.")
]
OutputOption = Annotated[
    str,
    typer.Option(
        "-o",
        "--output",
        help="Capture to write, or to add this boot to.",
        callback=capture_written_later,
    ),
]


def show(
    captures: Annotated[
        list[str],
        typer.Argument(
            metavar="CAPTURE...", help="Captures with boots, or reference:NAME, side by side."
        ),
    ],
    all_parts: Annotated[
        bool, typer.Option("--all", help="Print every unit, initcall and quiet time.")
    ] = False,
    private: PrivateOption = False,
    format_name: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show boots: stages, IMA entries, commands to the TPM, units, chain, initcalls.

    Example: excise boot show boots.excise reference:thesis-reboot
    """
    from excise.report.boot import build_boots

    datasets = [open_dataset(name) for name in captures]
    report = build_boots(datasets, limit=0 if all_parts else 10, private=private)
    print_report(report, format_name=format_name, as_json=as_json)


def import_(
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="Files of one boot: systemd-analyze, systemctl show, dmesg; - for standard input.",
        ),
    ],
    entries: Annotated[
        str | None,
        typer.Option(
            "--entries",
            help="Entries of the IMA list at the end of this boot: a number, or the list itself.",
            show_default=False,
        ),
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode",
            help="How PCR extends were protected: none, hmac, lazy, saved.",
            show_default=False,
        ),
    ] = None,
    another_boot: Annotated[
        bool,
        typer.Option(
            "--another-boot",
            help="Add it although a file, or every stage, equals that of a boot in the capture.",
        ),
    ] = False,
    configuration: ConfigurationOption = "boot",
    output: OutputOption = "boots.excise",
    as_json: JsonOption = False,
) -> None:
    """Read the files of one boot into one run: stages, units, initcalls, IMA entries.

    Files that contradict each other are refused, and so is a boot that the capture holds.

    Example: excise boot import blame.txt time.txt dmesg.txt --entries 444 -o boots.excise
    """
    from excise.cost.predict import require_mode
    from excise.events.one_boot import merge_boot
    from excise.formats.model import Options
    from excise.formats.registry import read

    inputs = _once([(name, read_input(name)) for name in files])
    readings = [read(data, options=Options(source=name)) for name, data in inputs]
    reading = merge_boot(
        readings,
        configuration=configuration,
        entries=_entries(entries),
        mode=None if mode is None else require_mode(mode, source="--mode"),
        names=[name for name, _ in inputs],
        source=", ".join(files),
    )
    _write(output, inputs=inputs, reading=reading, as_json=as_json, another=another_boot)


def record(
    configuration: ConfigurationOption = "boot",
    output: OutputOption = "boots.excise",
    as_json: JsonOption = False,
) -> None:
    """Record this host's current boot, once it has finished; each boot adds one to the capture.

    A boot that systemd has not finished, or did not make, is not recorded.
    Reading the IMA list's length and, on some hosts, the kernel's log needs root.

    Example: excise boot record --configuration "HMAC" -o boots.excise
    """
    from excise.collect.boot import current_boot
    from excise.errors import ExciseError, HostError
    from excise.events.one_boot import merge_boot
    from excise.formats.model import Options
    from excise.formats.registry import read

    found = current_boot()
    readings, missing = [], dict(found.missing)
    for name, data in found.outputs.items():
        try:
            readings.append(read(data, options=Options(source=name)))
        except ExciseError as error:
            missing[name] = f"{name}: {error.reason}"
    if not readings:
        raise HostError("this host tells nothing of its boot", hint="; ".join(missing.values()))
    for reason in missing.values():
        typer.echo(f"not recorded: {reason}", err=True)
    if found.entries is None:
        typer.echo("not recorded: IMA entries (no list, or no right to read it)", err=True)
    reading = merge_boot(
        readings,
        configuration=configuration,
        entries=found.entries,
        mode=found.mode,
        source="this host",
    )
    if reading.runs[0].wall_ns is None:
        raise HostError(
            "nothing tells when this boot was ready, so that it is not recorded",
            hint="Record it when `systemctl is-system-running --wait` has returned. Without "
            "systemd the kernel's part alone can be imported: dmesg | excise boot import -",
        )
    _write(output, inputs=list(found.outputs.items()), reading=reading, as_json=as_json, live=True)


def _write(
    output: str,
    *,
    inputs: list[tuple[str, bytes]],
    reading: Reading,
    as_json: bool,
    live: bool = False,
    another: bool = False,
) -> None:
    from pathlib import Path

    from excise.collect.host import boot_id, host_facts
    from excise.events.boot_capture import add_boot

    boots = add_boot(
        Path(output),
        inputs=inputs,
        reading=reading,
        facts=host_facts() if live else (),
        boot_id=boot_id() if live else "",
        another=another,
    )
    total_ns = reading.runs[0].wall_ns
    stages = {e.event: e.value for e in reading.events if e.layer == "stage"}
    if as_json:
        shown = {"stages_ns": stages, "total_ns": total_ns}
        print_json({"capture": output, "boots": boots, **shown})
        return
    from excise.units import format_ns

    typer.echo(", ".join(f"{name} {format_ns(value)}" for name, value in stages.items()))
    typer.echo(f"Wrote {output}, boot {boots} of its configuration", err=True)
    if total_ns is None:
        typer.echo(
            "incomplete: no file tells when user space was ready, so that this boot has no total",
            err=True,
        )


def _once(inputs: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """Return the inputs without those that hold what another one holds, which are named."""
    found: dict[bytes, str] = {}
    for name, data in inputs:
        if data in found:
            typer.echo(f"{name}: the same as {found[data]}, read once", err=True)
        else:
            found[data] = name
    return [(name, data) for data, name in found.items()]


def _entries(text: str | None) -> int | None:
    """Return a number, or the number of entries in a list."""
    from excise.evidence.ima import read_list
    from excise.units import parse_count

    if text is None:
        return None
    if text.isdigit():
        return parse_count(text)
    if text != "-" and not Path(text).exists():
        raise UsageError(
            f"{text!r} is neither a whole number nor a file",
            source="--entries",
            hint="Give the number of entries, or the IMA list",
        )
    data = read_input(text)
    if data.strip().isdigit():
        return parse_count(data.decode())
    with read_list(data) as found:
        count = sum(len(batch) for batch in found.batches())
        if found.fault is not None or not count:
            reason = found.fault.reason if found.fault is not None else "holds no entry"
            raise FormatError(f"is no whole IMA list: {reason}", source=text)
    return count
