"""`excise verify eventlog`: does this boot log lead to these register values?"""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import JsonOption, read_input
from excise.cli.verify import (
    KeyOption,
    NonceOption,
    PcrOption,
    PcrsOption,
    QuoteOption,
    ReportOption,
    SelectionOption,
    Sha1Option,
    SignatureOption,
    conclude,
    pcr_values,
    proven_values,
    refuse_selection_alone,
)
from excise.errors import UsageError


def eventlog(
    context: typer.Context,
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG", help="binary_bios_measurements, or CCEL data; - for standard input."
        ),
    ],
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    selection: SelectionOption = None,
    rtmr: Annotated[
        list[str] | None,
        typer.Option(
            "--rtmr",
            metavar="INDEX=HEX",
            help="Value of an RTMR (SHA-384), for the log of a confidential guest.",
            show_default=False,
        ),
    ] = None,
    quote_file: QuoteOption = None,
    signature: SignatureOption = None,
    key: KeyOption = None,
    nonce: NonceOption = None,
    allow_sha1: Sha1Option = False,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that a boot log leads to the PCR values, or to the RTMRs of a confidential guest.

    Every register that the log extends and that a value was given of must be reached. Exit 0 only
    when at least one was, and no check failed.

    Example: excise verify eventlog /sys/kernel/security/tpm0/binary_bios_measurements --pcrs p.txt
    """
    from excise.evidence.eventlog_verify import verify_event_log

    refuse_selection_alone(context, pcrs)
    values = pcr_values(pcr, pcrs, selection, quote_file)
    given, results = proven_values(values, quote_file, signature, key, nonce, allow_sha1=allow_sha1)
    if rtmr:
        if given:
            raise UsageError("--rtmr is for the log of a confidential guest, and PCRs for a TPM's")
        given = {"sha384": dict(_rtmr(text) for text in rtmr)}
    results.append(verify_event_log(read_input(log), pcrs=given, source=log))
    conclude(results, report=report, as_json=as_json)


def _rtmr(text: str) -> tuple[int, bytes]:
    """Return the measurement register's index of a log, which is one higher, and the value."""
    index, _, value = text.partition("=")
    try:
        register, digest = int(index), bytes.fromhex(value)
    except ValueError:
        raise UsageError(f"--rtmr {text!r} is not INDEX=HEX") from None
    if not 0 <= register <= 3 or len(digest) != 48:
        raise UsageError(f"--rtmr {text!r}: RTMRs are 0 to 3, of 48 bytes")
    return register + 1, digest
