"""What the commands share that serve over HTTP: where to listen, TLS, and telling the URL."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from excise.cli.options import print_json
from excise.errors import UsageError

if TYPE_CHECKING:
    from starlette.applications import Starlette

ListenOption = Annotated[
    str, typer.Option("--listen", metavar="HOST:PORT", help="Port 0: any that is free.")
]
TlsCertificateOption = Annotated[
    Path | None,
    typer.Option(
        "--tls-certificate", metavar="FILE", help="Chain in PEM: TLS.", show_default=False
    ),
]
TlsKeyOption = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="Its key in PEM.", show_default=False),
]


def serve_app(
    app: Starlette,
    *,
    listen: str,
    tls_certificate: Path | None,
    tls_key: Path | None,
    ready: Callable[[str], None] | None = None,
    as_json: bool = False,
) -> None:
    """Serve until interrupted; the URL is printed on standard output when it answers.

    Args:
        app: The application.
        listen: HOST:PORT.
        tls_certificate: Chain in PEM; plain HTTP when None.
        tls_key: Its key.
        ready: Called with the URL in place of printing it.
        as_json: Whether to print the URL in JSON.

    Raises:
        UsageError: An address that is none, or one of the two TLS files without the other.
        HostError: The address cannot be listened on.
        FormatError: The TLS files cannot be used.
    """
    from excise.attest.service import Tls, serve

    if (tls_certificate is None) != (tls_key is None):
        raise UsageError("--tls-certificate and --tls-key go together")
    tls = None
    if tls_certificate is not None and tls_key is not None:
        tls = Tls(certificate=tls_certificate, key=tls_key)
    host, port = listen_address(listen)
    serve(app, host=host, port=port, tls=tls, ready=ready or (_tell_json if as_json else _tell))


def _tell(url: str) -> None:
    typer.echo(url)
    sys.stdout.flush()


def _tell_json(url: str) -> None:
    print_json({"url": url})
    sys.stdout.flush()


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of HOST:PORT.

    Raises:
        UsageError: If it is none.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65_535:
        raise UsageError(f"--listen {text!r} is not HOST:PORT", hint="Say 127.0.0.1:8086")
    return host.strip("[]") or "0.0.0.0", int(port)
