"""What the `excise verify` commands share: their options, their inputs, and how they conclude."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from excise.cli.options import (
    checked,
    print_json,
    read_input,
    refuse_idle,
    report_written_later,
    write_report,
)
from excise.errors import UsageError
from excise.units import parse_hex

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult
    from excise.evidence.pcr import PcrSelection
    from excise.evidence.policy import Policy
    from excise.evidence.quote import QuoteAppraisal

PcrValues = Mapping[str, Mapping[int, bytes]]


def _pcr_value(text: str) -> object:
    from excise.evidence.pcr import parse_pcr_argument

    return parse_pcr_argument(text)


def pcr_selection(text: str) -> PcrSelection:
    """Return a selection of PCRs.

    Raises:
        UsageError: If it is none.
    """
    from excise.evidence.pcr import parse_selection

    return parse_selection(text)


PcrOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pcr",
        metavar="BANK:INDEX=HEX",
        parser=checked(_pcr_value, "pcr"),
        help="A PCR value; may be repeated.",
        show_default=False,
    ),
]
PcrsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pcrs",
        metavar="FILE",
        help="PCR values as tpm2_pcrread, tpm2_quote -o, evmctl or sysfs give them.",
        show_default=False,
    ),
]
SelectionOption = Annotated[
    str | None,
    typer.Option(
        "--selection",
        metavar="BANK:I,I+BANK:...",
        parser=checked(pcr_selection, "selection"),
        help="Which PCRs a file of bare values holds, as for tpm2_quote -l.",
        show_default=False,
    ),
]
QuoteOption = Annotated[
    str | None,
    typer.Option("--quote", metavar="FILE", help="A quote over the PCRs.", show_default=False),
]
SignatureOption = Annotated[
    str | None,
    typer.Option("--signature", metavar="FILE", help="Signature of the quote.", show_default=False),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="Attestation key: TPM2B_PUBLIC, PEM or DER.",
        show_default=False,
    ),
]
NonceOption = Annotated[
    str | None,
    typer.Option(
        "--nonce", metavar="HEX", help="Qualifying data the quote must hold.", show_default=False
    ),
]
Sha1Option = Annotated[bool, typer.Option("--allow-sha1", help="Accept a SHA-1 signature.")]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="FILE",
        help="Reference digests: sha256sum lists, rpm -qa --dump, keylime policies, or a compiled "
        "policy.",
        show_default=False,
    ),
]
PolicyRootOption = Annotated[
    str | None,
    typer.Option(
        "--policy-root",
        metavar="DIR",
        help="Where relative names of checksum lists are put, such as /.",
        show_default=False,
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--exclude", metavar="FILE", help="Patterns of paths to leave out.", show_default=False
    ),
]
FileKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file-key",
        metavar="FILE",
        help="Key or certificate of file signatures.",
        show_default=False,
    ),
]
Violations = Literal["fail", "report", "ignore"]
ViolationsOption = Annotated[
    Violations, typer.Option("--violations", help="What a violation does.")
]
ReportOption = Annotated[
    str | None,
    typer.Option(
        "--report",
        metavar="FILE",
        help="Also write a report.",
        show_default=False,
        callback=report_written_later,
    ),
]


def pcr_values(
    arguments: list[str] | None,
    files: list[str] | None,
    selection: str | None,
    quote_file: str | None,
) -> PcrValues:
    """Return the PCR values a user gave as arguments and files.

    Raises:
        ExciseError: If one cannot be read, or two contradict each other.
    """
    from excise.evidence.pcr import merge_pcrs, parse_pcr_argument, parse_selection, read_pcr_path

    chosen = parse_selection(selection) if selection is not None else None
    if chosen is None and quote_file not in (None, "-") and files:
        from excise.evidence.tpm_structures import parse_attest

        # Bare values stand in the order of the quote's own selection; its digest decides.
        chosen = parse_attest(read_input(str(quote_file))).pcr_select
    parts = [parse_pcr_argument(text) for text in arguments or []]
    parts += [read_pcr_path(Path(name), selection=chosen) for name in files or []]
    return merge_pcrs(parts)


def refuse_selection_alone(context: typer.Context, files: list[str] | None) -> None:
    """Refuse a selection where no file is there whose bare values it could tell apart.

    Raises:
        UsageError: It stands alone.
    """
    if not files:
        refuse_idle(
            context,
            ["selection"],
            "of a file of PCR values, and none was given",
            hint="Give --pcrs",
        )


def appraise_quote(
    attest: str,
    signature: str | None,
    key: str | None,
    nonce: str | None,
    pcrs: PcrValues,
    *,
    allow_sha1: bool,
    allow_empty: bool = False,
    previous: str | None = None,
) -> QuoteAppraisal:
    """Appraise the quote in the named files.

    Raises:
        UsageError: If what the verdict needs was not given.
        FormatError: If a file cannot be read.
    """
    from excise.evidence.quote import verify_quote

    if signature is None or key is None:
        raise UsageError(
            "a quote needs its signature and its key", hint="Give --signature and --key"
        )
    if nonce is None and not allow_empty:
        raise UsageError(
            "no qualifying data was given, so that any old quote would do",
            hint="Give --nonce HEX, the value the TPM was asked to sign",
        )
    wanted = parse_hex(nonce or "", option="--nonce")
    return verify_quote(
        read_input(attest),
        read_input(signature),
        read_input(key),
        qualifying_data=wanted,
        pcrs=pcrs or None,
        allow_sha1=allow_sha1,
        allow_empty_qualifying_data=allow_empty,
        previous=read_input(previous) if previous is not None else None,
    )


def proven_values(
    given: PcrValues,
    quote_file: str | None,
    signature: str | None,
    key: str | None,
    nonce: str | None,
    *,
    allow_sha1: bool,
) -> tuple[PcrValues, list[AppraisalResult]]:
    """Return the values that a log is held to, and what was appraised to get them.

    They are those that the quote proves where one was given, else those given.

    Raises:
        UsageError: If something of a quote was given without one, or a quote lacks something.
        FormatError: If a file cannot be read.
    """
    if quote_file is not None:
        quoted = appraise_quote(quote_file, signature, key, nonce, given, allow_sha1=allow_sha1)
        return quoted.pcrs, [quoted]
    if signature or key or nonce or allow_sha1:
        raise UsageError(
            "--signature, --key, --nonce and --allow-sha1 are of a quote, and none was given",
            hint="Give --quote FILE too, or leave them out",
        )
    return given, []


def read_policy(
    policies: list[str] | None,
    excludes: list[str] | None,
    keys: list[str] | None,
    root: str | None = None,
) -> Policy | None:
    """Return the policy of the named files, None where none is named.

    Raises:
        ExciseError: If one cannot be read, or they do not go together.
    """
    if root is not None and not policies:
        raise UsageError("--policy-root is of a policy, and none was given", hint="Give --policy")
    if not policies and not excludes and not keys:
        return None
    from excise.evidence.policy.files import read_policy_files

    return read_policy_files(
        [Path(name) for name in policies or []],
        excludes=[Path(name) for name in excludes or []],
        keys=[Path(name) for name in keys or []],
        root=os.fsencode(root) if root is not None else None,
    )


def conclude(results: list[AppraisalResult], *, report: str | None, as_json: bool) -> None:
    """Print the results, write the report, and exit 1 unless all passed; none pass no verdict."""
    from excise.evidence.checks import Outcome

    passed = all(result.verdict is Outcome.PASSED for result in results)
    if report is not None:
        from excise.report.evidence import build_evidence

        write_report(build_evidence(results), report)
    if as_json:
        verdict = Outcome.PASSED if passed and results else _worst(results)
        print_json({"verdict": verdict, "results": [result.as_dict() for result in results]})
    else:
        from excise.report.plain import visible

        for line in _lines(results):
            typer.echo(visible(line))
    if not passed:
        raise typer.Exit(1)


def _worst(results: list[AppraisalResult]) -> str:
    from excise.evidence.checks import Outcome

    verdicts = [result.verdict for result in results]
    return Outcome.FAILED if Outcome.FAILED in verdicts else Outcome.NOT_COVERED


def _lines(results: list[AppraisalResult]) -> Iterator[str]:
    from excise.evidence.checks import Outcome

    for result in results:
        yield f"{result.subject}: {result.verdict}"
        width = max((len(check.id) for check in result.checks), default=0)
        for check in result.checks:
            yield f"  {check.outcome:<11} {check.id:<{width}}  {check.got}".rstrip()
            if check.outcome is not Outcome.PASSED:
                if check.expected:
                    yield f"  {'':<11} {'':<{width}}  expected: {check.expected}"
                if check.clause:
                    yield f"  {'':<11} {'':<{width}}  clause: {check.clause}"
            if check.detail:
                yield f"  {'':<11} {'':<{width}}  {check.detail}"
        yield from (f"  {line}" for line in result.details())
