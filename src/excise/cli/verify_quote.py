"""`excise verify quote`: is this TPM quote sound?"""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.options import JsonOption
from excise.cli.verify import (
    KeyOption,
    NonceOption,
    PcrOption,
    PcrsOption,
    ReportOption,
    SelectionOption,
    Sha1Option,
    SignatureOption,
    appraise_quote,
    conclude,
    pcr_values,
    refuse_selection_alone,
)
from excise.errors import UsageError


def quote(
    context: typer.Context,
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
    if nonce and allow_empty_nonce:
        raise UsageError("--nonce and --allow-empty-nonce are both given", hint="Leave one out")
    refuse_selection_alone(context, pcrs)
    given = pcr_values(pcr, pcrs, selection, attest)
    found = appraise_quote(
        attest,
        signature,
        key,
        nonce,
        given,
        allow_sha1=allow_sha1,
        allow_empty=allow_empty_nonce,
        previous=previous,
    )
    conclude([found], report=report, as_json=as_json)
