"""A verifier that answers over a real socket, in a thread of the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from ended import PATIENCE_S, wait_until
from excise.attest.verifier import Database, VerifierSettings, verifier_app
from excise.evidence.corim import ReferenceStore
from token_builders import store


@contextmanager
def running(
    where: Path | str, *, known: ReferenceStore | None = None, **settings: Any
) -> Iterator[httpx.Client]:
    """Run a verifier on a database (a folder for SQLite, or a URL) and give a client of it."""
    url = str(where / "verifier.sqlite") if isinstance(where, Path) else where
    chosen = known if known is not None else store()
    app = verifier_app(Database(url), chosen, settings=VerifierSettings(**settings))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), what="the verifier")
        assert server.started
        port = listening.getsockname()[1]
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S, verify=False
        ) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
        listening.close()
