"""`excise verify ima`: does this measurement list lead to that PCR value?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, read_input, written_later
from excise.cli.verify import (
    ExcludeOption,
    FileKeyOption,
    KeyOption,
    NonceOption,
    PcrOption,
    PcrsOption,
    PolicyOption,
    PolicyRootOption,
    QuoteOption,
    ReportOption,
    SelectionOption,
    Sha1Option,
    SignatureOption,
    ViolationsOption,
    conclude,
    pcr_values,
    proven_values,
    read_policy,
    refuse_selection_alone,
)
from excise.files import LIMIT_BYTES

if TYPE_CHECKING:
    from excise.evidence.checks import AppraisalResult
    from excise.evidence.ima import Checkpoint, ImaAppraisal
    from excise.evidence.policy import Policy, PolicyAppraisal


def ima(
    context: typer.Context,
    measurement_list: Annotated[
        str, typer.Argument(metavar="LIST", help="Binary or ascii list; - for standard input.")
    ],
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    selection: SelectionOption = None,
    quote_file: QuoteOption = None,
    signature: SignatureOption = None,
    key: KeyOption = None,
    nonce: NonceOption = None,
    allow_sha1: Sha1Option = False,
    policy: PolicyOption = None,
    policy_root: PolicyRootOption = None,
    exclude: ExcludeOption = None,
    file_key: FileKeyOption = None,
    violations: ViolationsOption = "report",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="FILE",
            help="Go on from this state, and keep the new one there when all passes.",
            show_default=False,
            callback=written_later,
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

    refuse_selection_alone(context, pcrs)
    values = pcr_values(pcr, pcrs, selection, quote_file)
    given, results = proven_values(values, quote_file, signature, key, nonce, allow_sha1=allow_sha1)
    compiled = read_policy(policy, exclude, file_key, policy_root)
    before = _read_checkpoint(checkpoint)
    data = _list_input(measurement_list)
    found = verify_list(
        data,
        pcrs=given,
        checkpoint=before,
        policy_digest=_settings(compiled, violations),
        require_complete=require_complete,
        forbid_violations=violations == "fail",
        list_format=list_format,
        byte_order=byte_order,
    )
    results.append(found)
    # A round with no new entries has nothing to judge, and is as good as the one before it.
    if compiled is not None and (found.replay.entries or not found.meeting.goes_on):
        results.append(_appraise(data, found, compiled, violations, before=before))
    _keep_checkpoint(checkpoint, found, results)
    conclude(results, report=report, as_json=as_json)


def _appraise(
    data: Path | bytes,
    found: ImaAppraisal,
    policy: Policy,
    violations: str,
    *,
    before: Checkpoint | None,
) -> PolicyAppraisal:
    from excise.evidence.policy import AppraisalOptions, Treatment, appraise_covered

    options = AppraisalOptions(violations=Treatment(violations))
    return appraise_covered(data, found, policy, before=before, options=options)


def _settings(policy: Policy | None, violations: str) -> str:
    """Return what a checkpoint was judged by: under other settings it is not gone on from."""
    return f"{policy.digest if policy is not None else 'none'} violations={violations}"


def _list_input(name: str) -> Path | bytes:
    """Return the list's path, or its bytes where it can be read only once."""
    if name == "-" or (Path(name).exists() and not Path(name).is_file()):
        return read_input(name, limit_bytes=LIMIT_BYTES)
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

        write_durably(Path(path), found.checkpoint.to_json())
