"""`excise verify`: does this evidence prove that state?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, print_json, read_input
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult
    from excise.evidence.ima import Checkpoint, ImaAppraisal
    from excise.evidence.policy import Policy, PolicyAppraisal
    from excise.evidence.quote import QuoteAppraisal

app = typer.Typer(no_args_is_help=True, help="Check evidence: logs, quotes, captures.")

PcrOption = Annotated[
    list[str] | None,
    typer.Option(
        "--pcr", metavar="BANK:INDEX=HEX", help="A PCR value; may be repeated.", show_default=False
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
        help="Which PCRs a file of bare values holds, as for tpm2_quote -l.",
        show_default=False,
    ),
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
ReportOption = Annotated[
    str | None,
    typer.Option("--report", metavar="FILE", help="Also write a report.", show_default=False),
]


@app.command("ima")
def ima(
    measurement_list: Annotated[
        str, typer.Argument(metavar="LIST", help="Binary or ascii list; - for standard input.")
    ],
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    selection: SelectionOption = None,
    quote_file: Annotated[
        str | None,
        typer.Option("--quote", metavar="FILE", help="A quote over the PCRs.", show_default=False),
    ] = None,
    signature: SignatureOption = None,
    key: KeyOption = None,
    nonce: NonceOption = None,
    allow_sha1: Sha1Option = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="FILE",
            help="Reference digests: sha256sum lists, keylime policies, or a compiled policy.",
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="FILE", help="Patterns of paths to leave out.", show_default=False
        ),
    ] = None,
    file_key: Annotated[
        list[str] | None,
        typer.Option(
            "--file-key",
            metavar="FILE",
            help="Key or certificate of file signatures.",
            show_default=False,
        ),
    ] = None,
    violations: Annotated[
        str, typer.Option("--violations", help="What a violation does: fail, report or ignore.")
    ] = "report",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Go on from this state, and keep the new one there when all passes.",
            show_default=False,
        ),
    ] = None,
    require_complete: Annotated[
        bool, typer.Option("--require-complete", help="Fail if a part of the list is not covered.")
    ] = False,
    list_format: Annotated[
        str | None,
        typer.Option(
            "--list-format", help="binary or ascii. [default: detected]", show_default=False
        ),
    ] = None,
    byte_order: Annotated[
        str | None,
        typer.Option("--byte-order", help="little or big. [default: detected]", show_default=False),
    ] = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check that an IMA measurement list leads to the PCR values, and what it says of files.

    The values are searched as a prefix: a list read after the quote may be longer. Exit 0 only
    when every value given is reached and no check failed.

    Example: excise verify ima binary_runtime_measurements --pcr sha256:10=5e3b...
    """
    from excise.evidence.ima import verify_list

    treatment = _treatment(violations)
    if quote_file is None and (signature or key or nonce or allow_sha1):
        raise UsageError(
            "--signature, --key, --nonce and --allow-sha1 are of a quote, and none was given",
            hint="Give --quote FILE too, or leave them out",
        )
    given = _pcr_values(pcr, pcrs, selection, quote_file)
    results: list[AppraisalResult] = []
    if quote_file is not None:
        quoted = _quote(quote_file, signature, key, nonce, given, allow_sha1=allow_sha1)
        results.append(quoted)
        given = quoted.pcrs
    compiled = _policy(policy, exclude, file_key)
    before = _read_checkpoint(checkpoint)
    data = _list_input(measurement_list)
    found = verify_list(
        data,
        pcrs=given,
        checkpoint=before,
        policy_digest=_settings(compiled, treatment),
        require_complete=require_complete,
        forbid_violations=treatment == "fail",
        list_format=list_format,
        byte_order=byte_order,
    )
    results.append(found)
    # A round with no new entries has nothing to judge, and is as good as the one before it.
    if compiled is not None and (found.replay.entries or not found.meeting.goes_on):
        results.append(_appraise(data, found, compiled, treatment, before=before))
    _keep_checkpoint(checkpoint, found, results)
    _conclude(results, report=report, as_json=as_json)


@app.command("quote")
def quote(
    attest: Annotated[
        str, typer.Argument(metavar="QUOTE", help="The quote, as tpm2_quote -m writes it.")
    ],
    signature: SignatureOption = None,
    key: KeyOption = None,
    nonce: NonceOption = None,
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    selection: SelectionOption = None,
    allow_sha1: Sha1Option = False,
    allow_empty_nonce: Annotated[
        bool, typer.Option("--allow-empty-nonce", help="Accept a quote that anybody could replay.")
    ] = False,
    previous: Annotated[
        str | None,
        typer.Option(
            "--previous",
            metavar="FILE",
            help="An earlier quote by the same key.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a TPM2 quote: signature, nonce, exactly these PCRs, and the clock.

    Example: excise verify quote q.msg --signature q.sig --key ak.pub --nonce 0011 --pcrs q.pcrs
    """
    given = _pcr_values(pcr, pcrs, selection, attest)
    found = _quote(
        attest,
        signature,
        key,
        nonce,
        given,
        allow_sha1=allow_sha1,
        allow_empty=allow_empty_nonce,
        previous=previous,
    )
    _conclude([found], report=report, as_json=as_json)


@app.command("capture")
def capture(
    path: Annotated[str, typer.Argument(metavar="CAPTURE", help="A capture folder or .tar.zst.")],
    key: KeyOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check a capture's seal, quote and measurement list, and say which claims they prove.

    Example: excise verify capture today.excise --key ak.pub
    """
    from excise.capture.archive import unpacked
    from excise.evidence.capture import verify_capture

    with unpacked(Path(path)) as folder:
        found = verify_capture(folder, public_key=read_input(key) if key else None)
    _conclude([found], report=report, as_json=as_json)


def _pcr_values(
    arguments: list[str] | None,
    files: list[str] | None,
    selection: str | None,
    quote_file: str | None,
) -> Mapping[str, Mapping[int, bytes]]:
    from excise.evidence.pcr import merge_pcrs, parse_pcr_argument, parse_selection, read_pcr_path

    chosen = parse_selection(selection) if selection is not None else None
    if chosen is None and quote_file not in (None, "-") and files:
        from excise.evidence.tpm_structures import parse_attest

        # Bare values stand in the order of the quote's own selection; its digest decides.
        chosen = parse_attest(read_input(str(quote_file))).pcr_select
    parts = [parse_pcr_argument(text) for text in arguments or []]
    parts += [read_pcr_path(Path(name), selection=chosen) for name in files or []]
    return merge_pcrs(parts)


def _quote(
    attest: str,
    signature: str | None,
    key: str | None,
    nonce: str | None,
    pcrs: Mapping[str, Mapping[int, bytes]],
    *,
    allow_sha1: bool,
    allow_empty: bool = False,
    previous: str | None = None,
) -> QuoteAppraisal:
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
    try:
        wanted = bytes.fromhex(nonce or "")
    except ValueError as error:
        raise UsageError(f"--nonce {nonce!r} is not hexadecimal") from error
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


def _policy(
    policies: list[str] | None, excludes: list[str] | None, keys: list[str] | None
) -> Policy | None:
    if not policies and not excludes and not keys:
        return None
    from excise.evidence.policy.files import read_policy_files

    return read_policy_files(
        [Path(name) for name in policies or []],
        excludes=[Path(name) for name in excludes or []],
        keys=[Path(name) for name in keys or []],
    )


def _appraise(
    data: Path | bytes,
    found: ImaAppraisal,
    policy: Policy,
    violations: str,
    *,
    before: Checkpoint | None,
) -> PolicyAppraisal:
    from excise.evidence.ima import read_list
    from excise.evidence.policy import AppraisalOptions, Treatment, appraise_entries

    options = AppraisalOptions(violations=Treatment(violations))
    new = found.replay.first
    if found.coverage.match is None or new is None:
        return appraise_entries((), policy, options=options)
    rows = read_list(
        data,
        start_offset=new[0],
        start_index=before.count if before and found.meeting.goes_on else 0,
        end_offset=found.coverage.match_end,
        layout=found.replay.layout,
    )
    # Entries of other PCRs stand in the same list, and no value of IMA's PCR covers them.
    return appraise_entries((row for row in rows if row.pcr == 10), policy, options=options)


def _treatment(violations: str) -> str:
    if violations not in ("fail", "report", "ignore"):
        raise UsageError(f"--violations {violations!r} is unknown", hint="fail, report or ignore")
    return violations


def _settings(policy: Policy | None, violations: str) -> str:
    """Return what a checkpoint was judged by: under other settings it is not gone on from."""
    return f"{policy.digest if policy is not None else 'none'} violations={violations}"


def _list_input(name: str) -> Path | bytes:
    """Return the list's path, or its bytes where it can be read only once."""
    if name == "-" or (Path(name).exists() and not Path(name).is_file()):
        return read_input(name)
    return Path(name)


def _read_checkpoint(path: str | None) -> Checkpoint | None:
    if path is None or not Path(path).exists():
        return None
    from excise.evidence.ima import Checkpoint

    return Checkpoint.from_json(read_input(path), source=path)


def _keep_checkpoint(path: str | None, found: ImaAppraisal, results: list[AppraisalResult]) -> None:
    """Keep the new state, but only if everything passed: a state moves only on success."""
    from excise.evidence.checks import Outcome

    if path is None or found.checkpoint is None:
        return
    if all(result.verdict is Outcome.PASSED for result in results):
        from excise.capture.store import write_durably

        try:
            write_durably(Path(path), found.checkpoint.to_json())
        except OSError as error:
            raise UsageError(f"cannot be written ({error.strerror})", source=path) from error


def _conclude(results: list[AppraisalResult], *, report: str | None, as_json: bool) -> None:
    """Print the results, write the report, and exit 1 unless all passed."""
    from excise.evidence.checks import Outcome

    passed = all(result.verdict is Outcome.PASSED for result in results)
    if report is not None:
        _write_report(results, report)
    if as_json:
        verdict = Outcome.PASSED if passed else _worst(results)
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


def _write_report(results: list[AppraisalResult], path: str) -> None:
    from excise.report.evidence import build_evidence
    from excise.report.write import format_of, open_output, render

    with open_output(path) as opened:
        opened.write(render(build_evidence(results), format=format_of(path)))


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
