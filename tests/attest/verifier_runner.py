"""A verifier that answers over a real socket, in a thread of the test."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

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
        end = time.monotonic() + 30
        while not server.started and thread.is_alive() and time.monotonic() < end:
            time.sleep(0.005)
        assert server.started
        port = listening.getsockname()[1]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, verify=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
