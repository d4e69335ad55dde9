"""`excise daa verify` and `excise verify daa`: is this a signature of the group?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.daa_options import (
    MessageOption,
    NonceOption,
    basename_bytes,
    message_bytes,
)
from excise.cli.options import JsonOption, read_input
from excise.cli.verify import PcrOption, PcrsOption, ReportOption, conclude, pcr_values

if TYPE_CHECKING:
    from excise.evidence.daa import RevokedKeys, RevokedPseudonyms


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
    from excise.evidence.daa import (
        DaaVerifier,
        QuotedState,
        Signature,
        policy_pcr_digest,
        read_group_key,
    )

    key = read_group_key(read_input(group), source=group)
    assurance = None
    if rule is not None:
        from excise.attest.daa.folders import read_group_rule
        from excise.evidence.daa import IssuerPublicKey

        plain = key.group if isinstance(key, IssuerPublicKey) else key
        assurance = read_group_rule(Path(rule), group_key=plain.to_bytes())
    values = pcr_values(pcr, pcrs, None, None) if pcr or pcrs else None
    quote, policy = None, None
    if attest is not None:
        quote = QuotedState(attest=read_input(attest), pcrs=values or {})
    elif values is not None:
        policy = policy_pcr_digest(values)
    verifier = DaaVerifier(
        key,
        revoked_keys=_revoked_keys(revoked_keys, revoked_keys_count),
        revoked_pseudonyms=_revoked_pseudonyms(revoked_pseudonyms, revoked_pseudonyms_count),
        assurance=assurance,
    )
    found = verifier.verify(
        Signature.from_bytes(read_input(signature), source=signature),
        message=message_bytes(message, nonce),
        basename=basename_bytes(basename),
        pcr_policy=policy,
        quote=quote,
    )
    conclude([found], report=report, as_json=as_json)


def _revoked_keys(name: str | None, count: int | None) -> RevokedKeys | None:
    from excise.evidence.daa import RevokedKeys
    from excise.evidence.daa.revocation import LIST_BYTES

    _need_list(name, count, option="--revoked-keys")
    if name is None:
        return None
    return RevokedKeys.from_bytes(
        read_input(name, limit_bytes=LIST_BYTES), count=count, source=name
    )


def _revoked_pseudonyms(name: str | None, count: int | None) -> RevokedPseudonyms | None:
    from excise.evidence.daa import RevokedPseudonyms
    from excise.evidence.daa.revocation import LIST_BYTES

    _need_list(name, count, option="--revoked-pseudonyms")
    if name is None:
        return None
    return RevokedPseudonyms.from_bytes(
        read_input(name, limit_bytes=LIST_BYTES), count=count, source=name
    )


def _need_list(name: str | None, count: int | None, *, option: str) -> None:
    if name is None and count is not None:
        from excise.errors import UsageError

        raise UsageError(f"{option}-count is of a list, and {option} was not given")
