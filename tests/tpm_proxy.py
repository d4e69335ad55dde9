"""A proxy between a TCTI and a software TPM, which can alter, delay or refuse what passes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from software_tpm import SoftwareTpm

Before = Callable[[bytes], bytes | None]
After = Callable[[bytes, bytes], bytes]


def error(code: int) -> bytes:
    """Return a TPM's answer that is a response code alone."""
    return struct.pack(">HII", 0x8001, 10, code)


def code_of(command: bytes) -> int:
    return int.from_bytes(command[6:10], "big")


@dataclass
class Proxy:
    """A proxy that listens.

    Attributes:
        before: Sees each command; what it returns, if anything, is the answer.
        after: Sees each command and its answer; what it returns is passed on.
        seen: Codes of the commands that passed.
        exchange: Sends a command of another program to the TPM, which serves one client at a time.
    """

    path: Path
    before: Before = lambda _command: None
    after: After = lambda _command, response: response
    seen: list[int] = field(default_factory=list)
    exchange: Callable[[bytes], bytes] = bytes

    @property
    def tcti(self) -> str:
        return f"swtpm:path={self.path}"


@contextmanager
def tpm_proxy(tpm: SoftwareTpm) -> Iterator[Proxy]:
    """Run a proxy in front of a software TPM, in its folder, while the block runs."""
    proxy = Proxy(path=tpm.folder / "p")
    listeners = [
        _listen(tpm.folder / "p", lambda client: _commands(client, tpm.folder / "s", proxy)),
        _listen(tpm.folder / "p.ctrl", lambda client: _control(client, tpm.folder / "s.ctrl")),
    ]
    try:
        yield proxy
    finally:
        for listener in listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for name in ("p", "p.ctrl"):
            (tpm.folder / name).unlink(missing_ok=True)


def _listen(path: Path, serve: Callable[[socket.socket], None]) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener


def _commands(client: socket.socket, path: Path, proxy: Proxy) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))

        def exchange(command: bytes) -> bytes:
            server.sendall(command)
            return message(server) or b""

        proxy.exchange = exchange
        while True:
            command = message(client)
            if command is None:
                return
            proxy.seen.append(code_of(command))
            response = proxy.before(command)
            if response is None:
                response = proxy.after(command, exchange(command))
            client.sendall(response)


def message(source: socket.socket) -> bytes | None:
    header = exactly(source, 10)
    if header is None:
        return None
    rest = exactly(source, int.from_bytes(header[2:6], "big") - 10)
    return None if rest is None else header + rest


def exactly(source: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        try:
            part = source.recv(size - len(data))
        except OSError:
            return None
        if not part:
            return None
        data += part
    return data


def _control(client: socket.socket, path: Path) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        server.connect(str(path))
        while True:
            try:
                request = client.recv(4096)
                if not request:
                    return
                server.sendall(request)
                client.sendall(server.recv(4096))
            except OSError:
                return
