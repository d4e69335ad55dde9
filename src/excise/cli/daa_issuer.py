"""`excise daa issuer`: a group's keys, and the credentials of its members."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.daa_options import FolderArgument, say_rule
from excise.cli.options import JsonOption, print_json, read_input, written_later
from excise.cli.serving import ListenOption, TlsCertificateOption, TlsKeyOption, serve_app
from excise.cli.verify import PcrOption, PcrsOption
from excise.errors import Refused, UsageError

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

    from excise.evidence.daa import KeyAssurance

app = typer.Typer(no_args_is_help=True, help="A group's keys, and the credentials it gives.")


@app.command("init")
def init(
    folder: FolderArgument,
    admit: Annotated[
        str,
        typer.Option(
            "--admit",
            help="Weakest key to admit: software, tpm (it lives in a TPM), certified-tpm (its "
            "maker vouches for the TPM).",
        ),
    ] = "software",
    pcr: PcrOption = None,
    pcrs: PcrsOption = None,
    quoting: Annotated[
        bool,
        typer.Option(
            "--quoting", help="Ask for restricted keys: PCR values in their quotes are the TPM's."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Make a new group, and set what it asks of its members' keys.

    With --pcr or --pcrs, keys must be bound to these values: signing stops when one changes.

    Example: excise daa issuer init issuer --admit tpm --pcr sha256:7=65ca...
    """
    from excise.attest.daa.folders import init_issuer

    found = init_issuer(folder, rule=_rule(admit, pcr, pcrs, quoting=quoting))
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "group_key": found.public.group.to_bytes().hex(),
                "rule": found.rule.as_dict(),
            }
        )
        return
    typer.echo(f"{folder}: a new group, admitting keys of the kind {found.rule.protection}")
    typer.echo("A signature of this group will prove:")
    say_rule(found.rule)
    typer.echo(f"Give verifiers {folder}/ipk.bin and {folder}/group.json.")


@app.command("issue")
def issue(
    folder: FolderArgument,
    member_key: Annotated[
        str, typer.Option("--member-key", metavar="FILE", help="The member's pk.bin.")
    ],
    nonce: Annotated[str, typer.Option("--nonce", help="The nonce that was given to this member.")],
    credential: Annotated[
        Path,
        typer.Option(
            "--credential", metavar="FILE", help="Credential to write.", callback=written_later
        ),
    ] = Path("cred.bin"),
    credential_signature: Annotated[
        Path,
        typer.Option(
            "--credential-signature",
            metavar="FILE",
            help="Its proof to write.",
            callback=written_later,
        ),
    ] = Path("cred_sig.bin"),
    as_json: JsonOption = False,
) -> None:
    """Give a member a credential, by files; the nonce is text, as with xaptum's tools.

    By files nothing can be proven of where a key lives: that takes `excise daa issuer serve`.

    Example: excise daa issuer issue issuer --member-key pk.bin --nonce 4711
    """
    from excise.attest.daa.folders import open_issuer
    from excise.capture.store import write_durably
    from excise.evidence.daa import KeyAssurance, KeyProtection, MemberPublicKey

    issuer = open_issuer(folder)
    if issuer.rule.protection is not KeyProtection.SOFTWARE:
        raise Refused(
            f"this group admits keys of the kind {issuer.rule.protection} only, and files cannot "
            "prove that",
            source=str(folder),
            hint="Let the member join over HTTP: excise daa issuer serve",
        )
    key = MemberPublicKey.from_bytes(read_input(member_key), source=member_key)
    given, proof = issuer.secret.admit(key, nonce=nonce.encode())
    issuer.record(key.q, KeyAssurance(protection=KeyProtection.SOFTWARE))
    write_durably(credential_signature, proof.to_bytes())
    write_durably(credential, given.to_bytes())
    if as_json:
        print_json(
            {"credential": str(credential), "credential_signature": str(credential_signature)}
        )
    else:
        typer.echo(f"Wrote {credential} and {credential_signature}.")


@app.command("serve")
def serve(
    folder: FolderArgument,
    listen: ListenOption = "127.0.0.1:8086",
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    ek_ca: Annotated[
        list[str] | None,
        typer.Option(
            "--ek-ca",
            metavar="FILE",
            help="Roots under which EK certificates are trusted; may be repeated.",
            show_default=False,
        ),
    ] = None,
    ek_intermediate: Annotated[
        list[str] | None,
        typer.Option(
            "--ek-intermediate",
            metavar="FILE",
            help="Certificates between EKs and roots; may be repeated.",
            show_default=False,
        ),
    ] = None,
    session_s: Annotated[
        float, typer.Option("--session-s", help="Seconds a join may take.", min=1)
    ] = 120.0,
    as_json: JsonOption = False,
) -> None:
    """Let members join over HTTP until interrupted.

    The URL is printed when it answers. Every credential given is noted in issued.jsonl before it is
    sent. Without TLS certificates, only listen where nobody can come between.

    Example: excise daa issuer serve issuer --listen :8443 --tls-certificate c.pem --tls-key k.pem
    """
    from excise.attest.daa.folders import open_issuer
    from excise.attest.daa.issuer_service import issuer_app
    from excise.attest.daa.join import JoinDesk
    from excise.attest.service import SessionStore

    issuer = open_issuer(folder)
    desk = JoinDesk(
        issuer,
        roots=_certificates(ek_ca),
        intermediates=_certificates(ek_intermediate),
        sessions=SessionStore(lifetime_s=session_s),
    )
    serve_app(
        issuer_app(issuer, desk),
        listen=listen,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        as_json=as_json,
    )


def _certificates(names: list[str] | None) -> list[Certificate]:
    from excise.attest.daa.admission import read_certificates

    return [
        certificate
        for name in names or []
        for certificate in read_certificates(read_input(name), source=name)
    ]


def _rule(
    admit: str, pcr: list[str] | None, pcrs: list[str] | None, *, quoting: bool
) -> KeyAssurance:
    from excise.attest.daa.tpm_setup import selection_text
    from excise.evidence.daa import KeyAssurance, KeyProtection, policy_pcr_digest

    if admit not in list(KeyProtection):
        raise UsageError(f"--admit {admit!r} is unknown", hint=", ".join(KeyProtection))
    if not pcr and not pcrs:
        return KeyAssurance(protection=KeyProtection(admit), quoting=quoting)
    from excise.cli.verify import pcr_values

    values = pcr_values(pcr, pcrs, None, None)
    return KeyAssurance(
        protection=KeyProtection(admit),
        pcr_policy=policy_pcr_digest(values),
        quoting=quoting,
        selection=selection_text({bank: sorted(held) for bank, held in values.items()}),
    )
