"""`excise verifier`: a verifier as a service."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import JsonOption, parsed, print_json, read_input
from excise.cli.serving import (
    ListenOption,
    TlsCertificateOption,
    TlsKeyOption,
    listen_address,
    serve_app,
)
from excise.cli.verify_token import AllowOption, CorimKeyOption, CorimOption, PolicyOption
from excise.errors import UsageError
from excise.units import parse_seconds

if TYPE_CHECKING:
    from excise.evidence.corim import CorimOptions, ReferenceStore

app = typer.Typer(no_args_is_help=True, help="Verify attestation as a service.")

DatabaseOption = Annotated[
    str,
    typer.Option("--database", metavar="URL", help="A file for SQLite, or postgresql://HOST/NAME."),
]


def _session_s(text: str) -> float:
    session_s = parse_seconds(text)
    if session_s < 1:
        raise UsageError(f"{text!r} is below a second: no answer would come in time")
    return session_s


@app.command("serve")
def serve(
    database: DatabaseOption = "verifier.sqlite",
    corim: CorimOption = None,
    corim_key: CorimKeyOption = None,
    build: Annotated[
        list[str] | None,
        typer.Option(
            "--build",
            metavar="NAME",
            help="Appraise against this build alone; may be repeated. [default: all]",
            show_default=False,
        ),
    ] = None,
    policy: PolicyOption = "strict",
    allow: AllowOption = None,
    unsigned: Annotated[
        bool,
        typer.Option(
            "--allow-unsigned-corim",
            help="Take endorsements that anybody submits, unsigned.",
        ),
    ] = False,
    session_time: Annotated[
        float,
        typer.Option(
            "--session-time",
            metavar="TIME",
            parser=parsed(_session_s, "duration"),
            help="How long a challenge holds. [default: 150s]",
            show_default=False,
        ),
    ] = 150.0,
    client_nonces: Annotated[
        bool,
        typer.Option(
            "--client-nonces/--no-client-nonces", help="Let clients choose the challenge."
        ),
    ] = True,
    page: Annotated[
        bool | None,
        typer.Option(
            "--page/--no-page",
            help="Serve the web page, which shows every session to who can reach it. "
            "[default: on a loopback address]",
            show_default=False,
        ),
    ] = None,
    listen: ListenOption = "127.0.0.1:8080",
    tls_certificate: TlsCertificateOption = None,
    tls_key: TlsKeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve Veraison's challenge-response, provisioning and discovery interfaces.

    The URL is printed when it answers.

    Example: excise verifier serve --corim refs --database verifier.sqlite --listen 127.0.0.1:8080
    """
    from excise.attest.verifier import Database, VerifierSettings, verifier_app
    from excise.cli.verify_token import load_references
    from excise.evidence.appraisal import policy_of

    store = load_references(corim, corim_key, None) if corim else _nothing()
    settings = VerifierSettings(
        policy=policy_of(policy, allow or ()),
        builds=tuple(build or ()),
        corim=_corim_options(corim_key, unsigned=unsigned),
        session_s=session_time,
        client_nonces=client_nonces,
        page=_is_loopback(listen_address(listen)[0]) if page is None else page,
    )
    builds = ", ".join(store.builds) or "none yet"
    opened = Database(database)
    try:
        application = verifier_app(opened, store, settings=settings)

        def ready(url: str) -> None:
            if as_json:
                print_json({"url": url, "builds": list(store.builds)})
            else:
                typer.echo(url)
                typer.echo(f"Builds by the policy {settings.policy.name}: {builds}", err=True)
                if not (store.builds or corim_key or unsigned):
                    typer.echo(
                        "excise: only what this database has from before can be affirmed: there "
                        "is no --corim, and no --corim-key that submissions could be signed with",
                        err=True,
                    )
            sys.stdout.flush()

        serve_app(
            application,
            listen=listen,
            tls_certificate=tls_certificate,
            tls_key=tls_key,
            ready=ready,
        )
    finally:
        opened.close()


@app.command("rotate-key")
def rotate_key(
    database: DatabaseOption = "verifier.sqlite",
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help="Private key on P-256 in PEM. [default: a new one]",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new key the one that signs; a running service takes it up within seconds.

    Example: excise verifier rotate-key --database verifier.sqlite
    """
    from excise.attest.verifier import Records, open_database, require_keys, rotate
    from excise.evidence.cose_key import read_private_key

    given = None
    if key is not None:
        given = read_private_key(read_input(key), source=key, curve="P-256")
    require_keys(database)
    with open_database(database) as opened:
        kid = rotate(Records(opened), key=given)
    if as_json:
        print_json({"kid": kid})
    else:
        typer.echo(f"{kid} signs from now on; earlier keys stay known", err=True)


def _nothing() -> ReferenceStore:
    from excise.evidence.corim import ReferenceStore

    return ReferenceStore()


def _corim_options(keys: list[str] | None, *, unsigned: bool) -> CorimOptions:
    from excise.evidence.corim import KNOWN_PROFILES, CorimOptions
    from excise.evidence.cose_key import read_key

    trusted = tuple(read_key(read_input(name), source=name) for name in keys or ())
    return CorimOptions(keys=trusted, require_signed=not unsigned, profiles=("", *KNOWN_PROFILES))


def _is_loopback(host: str) -> bool:
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
