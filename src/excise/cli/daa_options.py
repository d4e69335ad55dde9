"""Options that the commands of `excise daa` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli.options import read_input
from excise.errors import UsageError
from excise.files import LIMIT_BYTES

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


def message_bytes(name: str, nonce: str | None) -> bytes:
    """Return the bytes to sign or verify: a file's, or its framed form where there is a nonce.

    Raises:
        UsageError: A nonce that is not hexadecimal.
    """
    payload = read_input(name, limit_bytes=LIMIT_BYTES)
    if nonce is None:
        return payload
    from excise.evidence.daa import framed_message

    try:
        value = bytes.fromhex(nonce)
    except ValueError:
        raise UsageError(f"--nonce {nonce!r} is not hexadecimal") from None
    return framed_message(purpose=PURPOSE, nonce=value, payload=payload)


def basename_bytes(text: str | None) -> bytes | None:
    """Return a basename as it is hashed; None for none."""
    return text.encode() if text is not None else None
