"""`excise daa link`: which signatures are by one key?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.daa_options import group_verifier
from excise.cli.options import JsonOption, print_json, read_input, refuse_idle
from excise.errors import UsageError
from excise.files import LIMIT_BYTES
from excise.units import counted

if TYPE_CHECKING:
    from excise.evidence.daa import Links, Signature


def link(
    context: typer.Context,
    signatures: Annotated[
        list[str], typer.Argument(metavar="SIGNATURE...", help="Signatures, two or more.")
    ],
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="FILE",
            help="Verify each first: the group's gpk.bin, or ipk.bin.",
            show_default=False,
        ),
    ] = None,
    message: Annotated[
        list[str] | None,
        typer.Option(
            "--message",
            "-m",
            metavar="FILE",
            help="What is signed; once for all signatures, or once for each.",
            show_default=False,
        ),
    ] = None,
    basename: Annotated[
        str | None,
        typer.Option(
            "--basename",
            "-b",
            metavar="TEXT",
            help="Basename they must be made under.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which signatures are by one key: it has one pseudonym under one basename.

    With --group, --message and --basename each is verified first, and one that does not hold is
    left out. Exit 0 if all hold and at least two belong together.

    Example: excise daa link a.bin b.bin c.bin --group ipk.bin --message m --basename door-7
    """
    from excise.evidence.daa import link as find_links

    if group is None:
        refuse_idle(
            context,
            ("message", "basename"),
            "for verifying, and no group was given",
            hint="Give --group",
        )
    elif not message or basename is None:
        raise UsageError("to verify takes --group, --message and --basename", hint="Give all three")
    if len(signatures) < 2:
        raise UsageError("one signature belongs together with none", hint="Name two or more")
    if again := [name for name in signatures if signatures.count(name) > 1]:
        raise UsageError("is named twice", source=again[0], hint="Name each signature once")
    read = {name: _signature(name) for name in signatures}
    refused: dict[str, list[str]] = {}
    if group is not None:
        refused = _failed(read, group, message or [], basename or "")
    links = find_links({name: one for name, one in read.items() if name not in refused})
    if as_json:
        print_json(
            {
                "linkable": bool(links.linked),
                "verified": group is not None,
                "groups": [
                    {"pseudonym": pseudonym.hex(), "signatures": names}
                    for pseudonym, names in links.by_pseudonym.items()
                ],
                "without_pseudonym": links.without_pseudonym,
                "copies": links.copies,
                "do_not_hold": refused,
            }
        )
    else:
        _tell(links, refused, verified=group is not None)
    if refused or not links.linked:
        raise typer.Exit(1)


def _signature(name: str) -> Signature:
    from excise.evidence.daa import Signature

    return Signature.from_bytes(read_input(name), source=name)


def _failed(
    signatures: Mapping[str, Signature], group: str, messages: list[str], basename: str
) -> dict[str, list[str]]:
    """Return the checks that failed of each signature that does not hold."""
    from excise.evidence.checks import Outcome
    from excise.evidence.daa import SignedMessage

    if len(messages) not in (1, len(signatures)):
        raise UsageError(
            f"{counted(len(messages), 'message was', 'messages were')} given for "
            f"{counted(len(signatures), 'signature')}",
            hint="Give --message once, or once for each",
        )
    if len(messages) == 1:
        messages = messages * len(signatures)
    found = group_verifier(group).verify_batch(
        [
            SignedMessage(
                signature=signature,
                message=read_input(message, limit_bytes=LIMIT_BYTES),
                basename=basename.encode(),
            )
            for signature, message in zip(signatures.values(), messages, strict=True)
        ]
    )
    failed = {
        name: [check.id for check in each.checks if check.outcome is Outcome.FAILED]
        for name, each in zip(signatures, found, strict=True)
    }
    return {name: checks for name, checks in failed.items() if checks}


def _tell(links: Links, refused: Mapping[str, list[str]], *, verified: bool) -> None:
    for names in links.linked:
        typer.echo(f"by one key: {', '.join(names)}")
    if not links.linked:
        typer.echo("no two belong together")
    for pseudonym, names in links.by_pseudonym.items():
        typer.echo(f"  pseudonym {pseudonym.hex()[2:18]}…  {', '.join(names)}")
    for name in links.without_pseudonym:
        typer.echo(f"  no pseudonym: {name}, which nothing links")
    for name, original in links.copies.items():
        typer.echo(f"  the same signature as {original}: {name}")
    for name, checks in refused.items():
        typer.echo(f"  does not hold: {name} ({', '.join(checks)})")
    if verified:
        return
    typer.echo(
        "Not verified: a signature that does not hold may bear anybody's pseudonym, and one key "
        "has another under each basename. Give --group, --message and --basename",
        err=True,
    )
