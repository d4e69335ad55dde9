"""`excise daa member`: join a group, and sign anonymously as one of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from excise.cli.daa_options import (
    BasenameOption,
    FolderArgument,
    MessageOption,
    NonceOption,
    TpmOption,
    basename_bytes,
    message_bytes,
    say_rule,
)
from excise.cli.options import (
    CaOption,
    JsonOption,
    checked,
    print_json,
    read_input,
    refuse_idle,
    written_later,
)
from excise.cli.verify import pcr_selection
from excise.errors import UsageError

if TYPE_CHECKING:
    from excise.attest.daa.joining import Joined
    from excise.attest.daa.keys import MemberKey
    from excise.attest.daa.tpm import EkType
    from excise.evidence.daa import Credential, GroupPublicKey, QuotedState, Signature

app = typer.Typer(no_args_is_help=True, help="Join a group, and sign as one of it.")


@app.command("join")
def join(
    context: typer.Context,
    folder: FolderArgument,
    issuer: Annotated[
        str | None,
        typer.Option("--issuer", metavar="URL", help="The issuer's service.", show_default=False),
    ] = None,
    tpm: TpmOption = None,
    handle: Annotated[
        str | None,
        typer.Option(
            "--handle",
            help="Persistent handle for the key. [default: 0x81008daa]",
            show_default=False,
        ),
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            "--bind",
            metavar="BANK:I,I",
            parser=checked(pcr_selection, "selection"),
            help="Bind the key to the present values of these PCRs.",
            show_default=False,
        ),
    ] = None,
    quoting: Annotated[
        bool, typer.Option("--quoting", help="Make the key restricted, so that it can quote PCRs.")
    ] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="Make a new key, also where there is one.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Clear the TPM before: all its owner's keys are lost.")
    ] = False,
    ek: Annotated[
        str, typer.Option("--ek", help="The TPM's EK to use: ecc, rsa or ecc384.")
    ] = "ecc",
    owner_auth: Annotated[
        str | None,
        typer.Option(
            "--owner-auth",
            metavar="FILE",
            help="Password of the TPM's owner hierarchy; - for standard input.",
            show_default=False,
        ),
    ] = None,
    endorsement_auth: Annotated[
        str | None,
        typer.Option(
            "--endorsement-auth",
            metavar="FILE",
            help="Password of the TPM's endorsement hierarchy.",
            show_default=False,
        ),
    ] = None,
    ek_certificate: Annotated[
        list[str] | None,
        typer.Option(
            "--ek-certificate",
            metavar="FILE",
            help="The EK's certificate, then those above it. [default: the TPM's own]",
            show_default=False,
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "--group",
            "-g",
            metavar="FILE",
            help="gpk.bin or ipk.bin of the group expected.",
            show_default=False,
        ),
    ] = None,
    ca: CaOption = None,
    nonce: Annotated[
        str | None,
        typer.Option(
            "--nonce", help="Without a service: the issuer's nonce, as text.", show_default=False
        ),
    ] = None,
    credential: Annotated[
        str | None,
        typer.Option(
            "--credential",
            metavar="FILE",
            help="Without a service: the credential it gave; with --group.",
            show_default=False,
        ),
    ] = None,
    credential_signature: Annotated[
        str | None,
        typer.Option(
            "--credential-signature", metavar="FILE", help="And its proof.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Join a group, with a new key or the one in the folder.

    By files it takes two steps: --nonce writes pk.bin for the issuer, and --credential takes what
    it gave.

    Example: excise daa member join member --issuer https://issuer:8443 --tpm device:/dev/tpmrm0
    """
    if [issuer, nonce, credential].count(None) != 2:
        raise UsageError("give one of --issuer, --nonce and --credential")
    _refuse_idle(context, issuer=issuer, credential=credential, tpm=tpm)
    expected = _group(group)
    from excise.attest.daa.folders import folder_lock
    from excise.attest.daa.joining import join as ask
    from excise.attest.service import ServiceClient

    with folder_lock(folder):  # of two joins at once, one would keep the credential of the other
        if credential is not None:
            _take_credential(folder, credential, credential_signature, group, tpm, as_json=as_json)
            return
        _make_key(
            folder,
            tpm,
            handle,
            bind,
            quoting=quoting,
            replace=replace,
            clear=clear,
            owner_auth=_password(owner_auth),
        )
        if nonce is not None:
            _offline_key(folder, nonce, tpm, as_json=as_json)
            return
        with ServiceClient(str(issuer), ca_file=ca) as client:
            joined = ask(
                client,
                folder,
                expected=expected,
                certificates=[_der(name) for name in ek_certificate or []],
                ek=_ek(ek),
                endorsement_auth=_password(endorsement_auth),
            )
        _say_joined(joined, as_json=as_json)


@app.command("sign")
def sign(
    folder: FolderArgument,
    message: MessageOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Signature to write.", callback=written_later
        ),
    ] = Path("sig.bin"),
    basename: BasenameOption = None,
    nonce: NonceOption = None,
    quote: Annotated[
        str | None,
        typer.Option(
            "--quote",
            metavar="BANK:I,I",
            parser=checked(pcr_selection, "selection"),
            help="Have the TPM quote these PCRs along, into OUTPUT.attest and OUTPUT.pcrs.",
            show_default=False,
        ),
    ] = None,
    tpm: TpmOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign a message as one of the group; nobody can tell which, nor that two are of the same.

    Example: excise daa member sign member --message report.json --nonce 0011 -o sig.bin
    """
    from excise.attest.daa.folders import member_key, pcr_text, read_credential
    from excise.attest.daa.keys import sign as make
    from excise.capture.store import write_durably

    credential = read_credential(folder)
    data = message_bytes(message, nonce)
    name = basename_bytes(basename)
    with member_key(folder, tcti=tpm) as key:
        if quote is None:
            signature = make(key, credential, message=data, basename=name)
        else:
            signature, state = _quote(key, credential, quote, data, name)
            write_durably(output.with_name(output.name + ".attest"), state.attest)
            write_durably(output.with_name(output.name + ".pcrs"), pcr_text(state.pcrs))
    written = signature.to_bytes()
    write_durably(output, written)
    if as_json:
        pseudonym = written[signature.SIZE_BYTES :].hex() or None
        print_json({"signature": str(output), "pseudonym": pseudonym})
    else:
        typer.echo(f"Wrote {output}.")


def _refuse_idle(
    context: typer.Context, *, issuer: str | None, credential: str | None, tpm: str | None
) -> None:
    """Refuse options of another way to join.

    Raises:
        UsageError: There is one.
    """
    if credential is None:
        refuse_idle(context, ["credential_signature"], "of a credential", hint="Give --credential")
    else:
        making = ("handle", "bind", "quoting", "replace", "clear", "owner_auth")
        refuse_idle(context, making, "for a new key, and --credential is for the one there is")
    if issuer is None:
        proving = ("ca", "ek", "endorsement_auth", "ek_certificate")
        refuse_idle(context, proving, "for joining over HTTP", hint="Give --issuer")
        if credential is None:
            refuse_idle(context, ["group"], "not looked at with --nonce")
    if tpm is None:
        refuse_idle(context, ["owner_auth"], "for a new key in a TPM", hint="Give --tpm")


def _quote(
    key: MemberKey, credential: Credential, selection: str, message: bytes, basename: bytes | None
) -> tuple[Signature, QuotedState]:
    from excise.attest.daa.tpm import TpmKey
    from excise.evidence.pcr import parse_selection

    if not isinstance(key, TpmKey):
        raise UsageError("a key in software quotes no PCRs")
    return key.quote(
        credential, selection=dict(parse_selection(selection)), message=message, basename=basename
    )


def _make_key(
    folder: Path,
    tpm: str | None,
    handle: str | None,
    bind: str | None,
    *,
    quoting: bool,
    replace: bool,
    clear: bool,
    owner_auth: bytes,
) -> None:
    """Make a key in the folder, unless it has one that is to be kept."""
    from excise.attest.daa.folders import write_software_key, write_tpm_key

    if tpm is None and (handle or bind or quoting or clear):
        raise UsageError(
            "--handle, --bind, --quoting and --clear are of a key in a TPM", hint="Give --tpm"
        )
    has_key = any((folder / name).exists() for name in ("member.json", "sk.bin", "handle.txt"))
    if has_key and not replace and not clear:
        if bind or quoting:
            raise UsageError(
                "the folder has a key already, and what it is bound to is set when it is made",
                source=str(folder),
                hint="Say --replace to make a new one",
            )
        return
    if tpm is None:
        from excise.attest.daa.keys import SoftwareKey

        write_software_key(folder, SoftwareKey.generate())
        return
    from excise.attest.daa.tpm_setup import DEFAULT_HANDLE, create_key
    from excise.evidence.pcr import parse_selection

    try:
        number = int(handle, 0) if handle is not None else DEFAULT_HANDLE
    except ValueError:
        raise UsageError(f"--handle {handle!r} is no number") from None
    bound = dict(parse_selection(bind)) if bind is not None else None
    place = create_key(
        tpm,
        handle=number,
        bound_to=bound,
        quoting=quoting,
        clear=clear,
        replace=replace,
        owner_auth=owner_auth,
    )
    write_tpm_key(folder, place)


def _offline_key(folder: Path, nonce: str, tpm: str | None, *, as_json: bool) -> None:
    from excise.attest.daa.folders import member_key
    from excise.attest.daa.keys import prove_member_key
    from excise.capture.store import write_durably

    with member_key(folder, tcti=tpm) as key:
        write_durably(folder / "pk.bin", prove_member_key(key, nonce=nonce.encode()).to_bytes())
    if as_json:
        print_json({"member_key": str(folder / "pk.bin")})
    else:
        typer.echo(f"Wrote {folder / 'pk.bin'}: give it to the issuer.")


def _take_credential(
    folder: Path,
    credential: str,
    signature: str | None,
    group: str | None,
    tpm: str | None,
    *,
    as_json: bool,
) -> None:
    from excise.attest.daa.folders import member_key, write_membership
    from excise.attest.daa.keys import accept_credential
    from excise.evidence.daa import (
        Credential,
        CredentialSignature,
        DaaVerifier,
        IssuerPublicKey,
        read_group_key,
    )

    if signature is None or group is None:
        raise UsageError("a credential comes with its --credential-signature and the --group")
    key = read_group_key(read_input(group), source=group)
    issuer = key if isinstance(key, IssuerPublicKey) else None
    group_key = key.group.to_bytes()
    given = Credential.from_bytes(read_input(credential), source=credential)
    proof = CredentialSignature.from_bytes(read_input(signature), source=signature)
    with member_key(folder, tcti=tpm) as held:
        accept_credential(DaaVerifier(key), given, proof, member=held.public)
    write_membership(folder, given, proof, issuer=issuer, group_key=group_key)
    if as_json:
        print_json({"folder": str(folder), "group_key": group_key.hex()})
    else:
        typer.echo(f"{folder}: joined the group.")


def _group(name: str | None) -> GroupPublicKey | None:
    if name is None:
        return None
    from excise.evidence.daa import read_group_key

    return read_group_key(read_input(name), source=name).group


def _der(name: str) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    from excise.attest.daa.admission import read_certificates

    return read_certificates(read_input(name), source=name)[0].public_bytes(Encoding.DER)


def _password(name: str | None) -> bytes:
    return read_input(name).rstrip(b"\r\n") if name is not None else b""


def _ek(name: str) -> EkType:
    from excise.attest.daa.tpm import EkType

    for kind in get_args(EkType):
        if name == kind:
            return cast("EkType", kind)
    raise UsageError(f"--ek {name!r} is unknown", hint=", ".join(get_args(EkType)))


def _say_joined(joined: Joined, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "folder": str(joined.folder),
                "group_key": joined.group_key.hex(),
                "key": joined.assurance.as_dict(),
                "rule": joined.rule.as_dict(),
                "proves": joined.rule.proves(),
                "leaves_open": joined.rule.leaves_open(),
            }
        )
        return
    typer.echo(
        f"{joined.folder}: joined the group with a key of the kind {joined.assurance.protection}"
    )
    typer.echo("A signature of this group proves:")
    say_rule(joined.rule)
