"""`excise daa verify` and `excise verify daa`: is this a signature of the group?"""

from __future__ import annotations

from typing import Annotated

import typer

from excise.cli.daa_options import (
    PURPOSE,
    MessageOption,
    NonceOption,
    basename_bytes,
    group_verifier,
    message_bytes,
)
from excise.cli.options import JsonOption, read_input
from excise.cli.verify import PcrOption, PcrsOption, ReportOption, conclude, pcr_values


def daa(
    signature: Annotated[
        str, typer.Argument(metavar="SIGNATURE", help="The signature; - for standard input.")
    ],
    message: MessageOption,
    group: Annotated[
        str,
        typer.Option("--group", "-g", metavar="FILE", help="The group's gpk.bin, or ipk.bin."),
    ],
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            metavar="FILE",
            help="The group's group.json: what its members' keys had to prove.",
            show_default=False,
        ),
    ] = None,
    basename: Annotated[
        str | None,
        typer.Option(
            "--basename",
            "-b",
            metavar="TEXT",
            help="Basename it must be made under, with a pseudonym. [default: it must have none]",
            show_default=False,
        ),
    ] = None,
    nonce: NonceOption = None,
    purpose: Annotated[
        str | None,
        typer.Option(
            "--purpose",
            metavar="TEXT",
            help="What it was signed for, along with the nonce: a sensor's with "
            f"'excise sensor transaction'. [default: {PURPOSE}]",
            show_default=False,
        ),
    ] = None,
    revoked_keys: Annotated[
        str | None,
        typer.Option(
            "--revoked-keys", metavar="FILE", help="Revoked secret keys.", show_default=False
        ),
    ] = None,
    revoked_keys_count: Annotated[
        int | None,
        typer.Option("--revoked-keys-count", help="How many there must be.", show_default=False),
    ] = None,
    revoked_pseudonyms: Annotated[
        str | None,
        typer.Option(
            "--revoked-pseudonyms",
            metavar="FILE",
            help="Revoked pseudonyms of this basename.",
            show_default=False,
        ),
    ] = None,
    revoked_pseudonyms_count: Annotated[
        int | None,
        typer.Option(
            "--revoked-pseudonyms-count", help="How many there must be.", show_default=False
        ),
    ] = None,
    attest: Annotated[
        str | None,
        typer.Option(
            "--attest",
            metavar="FILE",
            help="The quote that was signed along; --pcr or --pcrs give the values quoted.",
            show_default=False,
        ),
    ] = None,
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    report: ReportOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check an ECDAA signature: proof, credential, basename, revocation, and what it proves.

    Exit 0 only when every check passed. Without --nonce an old signature passes as well as a new
    one. PCR values (--pcr, --pcrs) must be those of the quote (--attest), or else those that the
    members' keys are bound to.

    Example: excise daa verify sig.bin --message m --group ipk.bin --rule group.json
    """
    from excise.evidence.daa import QuotedState, Signature, policy_pcr_digest

    verifier = group_verifier(
        group,
        rule=rule,
        revoked_keys=revoked_keys,
        revoked_keys_count=revoked_keys_count,
        revoked_pseudonyms=revoked_pseudonyms,
        revoked_pseudonyms_count=revoked_pseudonyms_count,
    )
    values = pcr_values(pcr, pcrs, None, None) if pcr or pcrs else None
    quote, policy = None, None
    if attest is not None:
        quote = QuotedState(attest=read_input(attest), pcrs=values or {})
    elif values is not None:
        policy = policy_pcr_digest(values)
    found = verifier.verify(
        Signature.from_bytes(read_input(signature), source=signature),
        message=message_bytes(message, nonce, purpose=purpose),
        basename=basename_bytes(basename),
        pcr_policy=policy,
        quote=quote,
    )
    conclude([found], report=report, as_json=as_json)
