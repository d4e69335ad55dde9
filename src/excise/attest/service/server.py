"""Run an application until it is asked to stop: TLS, slow clients, an orderly end."""

from __future__ import annotations

import resource
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from excise.errors import FormatError, HostError, UsageError

if TYPE_CHECKING:
    import asyncio

    from starlette.applications import Starlette

HEADER_S: Final = 15.0
"""How long a client may take from connecting to the end of its request's head."""
GRACE_S: Final = 10.0
"""How long requests under way may go on after the service was asked to stop."""
_OPEN_FILES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """A server's certificate chain and key, in PEM."""

    certificate: Path
    key: Path

    def check(self) -> None:
        """Raise unless the files fit each other.

        Raises:
            FormatError: They cannot be read, or the key is not the certificate's.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certificate, self.key)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "reason", None) or error.strerror or str(error)
            raise FormatError(
                f"no certificate and key that fit each other ({reason})",
                source=f"{self.certificate}, {self.key}",
            ) from None


class _ImpatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose first request does not come."""

    _impatience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._impatience = self.loop.call_later(HEADER_S, self._give_up)

    def _give_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._impatience is not None:
            self._impatience.cancel()
        super().connection_lost(exc)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Callable[[str], None] | None) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            self.config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
        await super().startup(sockets=sockets)
        if self.started and self._ready is not None and sockets:
            scheme = "https" if self.config.is_ssl else "http"
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            self._ready(f"{scheme}://{shown}:{port}")


def serve(
    app: Starlette,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    tls: Tls | None = None,
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM; requests under way are answered before it returns.

    Args:
        app: The application.
        host: Address to listen on.
        port: Port to listen on; 0 for any that is free.
        tls: Certificate and key; plain HTTP when None.
        ready: Called with the service's URL once it answers.

    Raises:
        HostError: The address cannot be listened on.
        FormatError: The TLS files cannot be used.
    """
    if tls is not None:
        tls.check()
    _allow_many_connections()
    config = uvicorn.Config(
        app,
        http=_ImpatientProtocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=int(GRACE_S),
        h11_max_incomplete_event_size=16 << 10,
        ssl_certfile=str(tls.certificate) if tls is not None else None,
        ssl_keyfile=str(tls.key) if tls is not None else None,
    )
    listening = _listen(host, port)
    # The server raises the signal that stopped it once more when it has stopped.
    with listening, _sigterm_as_interrupt(), suppress(KeyboardInterrupt):
        _Server(config, ready).run(sockets=[listening])


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise UsageError(f"{port} is no port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise HostError(
            f"cannot be listened on ({error.strerror or error})", source=f"{host}:{port}"
        ) from None
    return listening


def _allow_many_connections() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
