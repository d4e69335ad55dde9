"""Options that the commands of `excise daa` share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from excise.cli.options import read_input
from excise.errors import UsageError
from excise.files import LIMIT_BYTES
from excise.units import parse_hex

if TYPE_CHECKING:
    from excise.evidence.daa import DaaVerifier, KeyAssurance

_T = TypeVar("_T")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where its keys are kept.", show_default=False)
]
MessageOption = Annotated[
    str,
    typer.Option("--message", "-m", metavar="FILE", help="What is signed; - for standard input."),
]
BasenameOption = Annotated[
    str | None,
    typer.Option(
        "--basename",
        "-b",
        metavar="TEXT",
        help="Sign with a pseudonym: signatures by one key under one basename can be linked.",
        show_default=False,
    ),
]
NonceOption = Annotated[
    str | None,
    typer.Option(
        "--nonce",
        metavar="HEX",
        help="The verifier's nonce: it is signed along, in a form that nothing else has.",
        show_default=False,
    ),
]
TpmOption = Annotated[
    str | None,
    typer.Option(
        "--tpm",
        metavar="TCTI",
        help="The TPM, as for tpm2-tools: device:/dev/tpmrm0, swtpm:path=...",
        show_default=False,
    ),
]

PURPOSE = "excise daa member sign"


def message_bytes(name: str, nonce: str | None, *, purpose: str | None = None) -> bytes:
    """Return the bytes to sign or verify: a file's, or its framed form where there is a nonce.

    Args:
        name: The file.
        nonce: The verifier's nonce, in hexadecimal.
        purpose: What is signed along with the nonce; `PURPOSE` where it is not given.

    Raises:
        UsageError: A nonce that is not hexadecimal, or a purpose without a nonce.
    """
    if purpose is not None and nonce is None:
        raise UsageError("--purpose is signed along with a nonce: give --nonce too")
    payload = read_input(name, limit_bytes=LIMIT_BYTES)
    if nonce is None:
        return payload
    from excise.evidence.daa import framed_message

    value = parse_hex(nonce, option="--nonce")
    return framed_message(
        purpose=PURPOSE if purpose is None else purpose, nonce=value, payload=payload
    )


def basename_bytes(text: str | None) -> bytes | None:
    """Return a basename as it is hashed; None for none."""
    return text.encode() if text is not None else None


def say_rule(rule: KeyAssurance) -> None:
    """Print what a signature of a group proves, and what it leaves open."""
    for line in rule.proves():
        typer.echo(f"  + {line}")
    for line in rule.leaves_open():
        typer.echo(f"  - {line}")


def group_verifier(
    group: str,
    *,
    rule: str | None = None,
    revoked_keys: str | None = None,
    revoked_keys_count: int | None = None,
    revoked_pseudonyms: str | None = None,
    revoked_pseudonyms_count: int | None = None,
) -> DaaVerifier:
    """Return the verifier of a group's signatures from the files a user named.

    Args:
        group: gpk.bin or ipk.bin.
        rule: The group's group.json.
        revoked_keys: List of secret keys.
        revoked_keys_count: How many it must have.
        revoked_pseudonyms: List of pseudonyms.
        revoked_pseudonyms_count: How many it must have.

    Raises:
        FormatError: One cannot be read, or the rule is another group's.
        UsageError: A count without its list.
    """
    from excise.evidence.daa import DaaVerifier, RevokedKeys, RevokedPseudonyms, read_group_key
    from excise.evidence.daa.revocation import LIST_BYTES

    def listed(
        kind: Callable[..., _T], option: str, name: str | None, count: int | None
    ) -> _T | None:
        if name is not None:
            return kind(read_input(name, limit_bytes=LIST_BYTES), count=count, source=name)
        if count is not None:
            raise UsageError(f"{option}-count is of a list, and {option} was not given")
        return None

    key = read_group_key(read_input(group), source=group)
    assurance = None
    if rule is not None:
        from excise.attest.daa.folders import read_group_rule

        assurance = read_group_rule(Path(rule), group_key=key.group.to_bytes())
    return DaaVerifier(
        key,
        revoked_keys=listed(
            RevokedKeys.from_bytes, "--revoked-keys", revoked_keys, revoked_keys_count
        ),
        revoked_pseudonyms=listed(
            RevokedPseudonyms.from_bytes,
            "--revoked-pseudonyms",
            revoked_pseudonyms,
            revoked_pseudonyms_count,
        ),
        assurance=assurance,
    )
