"""`excise daa revoke`: add a key or a pseudonym to a list of what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from excise.cli.daa_options import BasenameOption, basename_bytes
from excise.cli.options import JsonOption, print_json, read_input, refuse_idle
from excise.errors import UsageError


def revoke(
    context: typer.Context,
    list_file: Annotated[
        Path, typer.Argument(metavar="LIST", help="The list; made when it is not there.")
    ],
    secret_key: Annotated[
        str | None,
        typer.Option(
            "--secret-key",
            metavar="FILE",
            help="A member's sk.bin that became known.",
            show_default=False,
        ),
    ] = None,
    signature: Annotated[
        str | None,
        typer.Option(
            "--signature",
            metavar="FILE",
            help="A verified signature whose pseudonym is to be refused.",
            show_default=False,
        ),
    ] = None,
    basename: BasenameOption = None,
    empty: Annotated[
        str | None,
        typer.Option(
            "--empty",
            help="Make an empty list: of keys, or of pseudonyms (with --basename).",
            show_default=False,
        ),
    ] = None,
    bare: Annotated[
        bool, typer.Option("--bare", help="A new list in the form that xaptum's tools read.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Add a secret key or a pseudonym to a revocation list, on the disk before this returns.

    A list stays in the form it has: JSON, or bare entries. Verify the signature before: a pseudonym
    in one that does not hold may be somebody else's.

    Example: excise daa revoke revoked-keys.json --secret-key sk.bin
    """
    if [secret_key, signature, empty].count(None) != 2:
        raise UsageError("give one of --secret-key, --signature and --empty")
    kind = empty or ("keys" if secret_key is not None else "pseudonyms")
    if kind not in ("keys", "pseudonyms"):
        raise UsageError(f"--empty {kind!r} is neither keys nor pseudonyms")
    if kind == "keys":
        refuse_idle(context, ["basename"], "of pseudonyms, and this is a list of keys")
    if empty is not None and list_file.exists():
        raise UsageError("exists already", source=str(list_file))
    from excise.attest.daa.folders import folder_lock

    with folder_lock(list_file.parent):  # of two at once, one would be lost
        if kind == "keys":
            count = _revoke_key(list_file, secret_key, bare=bare)
        else:
            count = _revoke_pseudonym(list_file, signature, basename_bytes(basename), bare=bare)
    if as_json:
        print_json({"list": str(list_file), "kind": kind, "entries": count})
    else:
        typer.echo(f"{list_file}: {count} revoked {kind}")


def _revoke_key(path: Path, secret_key: str | None, *, bare: bool) -> int:
    from excise.attest.daa.folders import SECRET
    from excise.attest.daa.keys import SoftwareKey
    from excise.capture.store import write_durably
    from excise.evidence.daa import RevokedKeys
    from excise.evidence.daa.curve import decode_scalar
    from excise.evidence.daa.revocation import LIST_BYTES, is_json_list

    found = RevokedKeys(keys=())
    if path.exists():
        data = read_input(str(path), limit_bytes=LIST_BYTES)
        found, bare = RevokedKeys.from_bytes(data, source=str(path)), not is_json_list(data)
    if secret_key is not None:
        key = SoftwareKey.from_bytes(read_input(secret_key), source=secret_key).to_bytes()
        found = found.with_key(decode_scalar(key, field="member secret key"))
    write_durably(path, found.to_bytes(bare=bare), mode=SECRET)
    return len(found.keys)


def _revoke_pseudonym(
    path: Path, signature: str | None, basename: bytes | None, *, bare: bool
) -> int:
    from excise.capture.store import write_durably
    from excise.evidence.daa import RevokedPseudonyms, Signature
    from excise.evidence.daa.revocation import LIST_BYTES, is_json_list

    found = RevokedPseudonyms(pseudonyms=frozenset(), basename=basename)
    if path.exists():
        data = read_input(str(path), limit_bytes=LIST_BYTES)
        found, bare = RevokedPseudonyms.from_bytes(data, source=str(path)), not is_json_list(data)
        if basename is not None and found.basename not in (None, basename):
            raise UsageError("the list is of another basename", source=str(path))
    if signature is not None:
        pseudonym = Signature.from_bytes(read_input(signature), source=signature).pseudonym
        if pseudonym is None:
            raise UsageError("the signature has no pseudonym", source=signature)
        found = found.with_pseudonym(pseudonym)
    write_durably(path, found.to_bytes(bare=bare))
    return len(found.pseudonyms)
