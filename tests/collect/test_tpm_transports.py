"""The same TPM over every kind of transport: a device file, a simulator's protocol, a program."""

from __future__ import annotations

import os
import pty
import shlex
import socket
import sys
import tempfile
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from excise.campaign.tpm_bench import run_tpm_bench
from excise.cost.tpm_record import record_of
from excise.events.load import load_capture
from software_tpm import SoftwareTpm, require
from tpm_proxy import exactly, message

require("tpm2_pytss")

Exchange = Callable[[bytes], bytes]
RELAY = """
import socket, sys
with socket.socket(socket.AF_UNIX) as tpm:
    tpm.connect(sys.argv[1])
    while header := sys.stdin.buffer.read(10):
        tpm.sendall(header + sys.stdin.buffer.read(int.from_bytes(header[2:6], "big") - 10))
        sys.stdout.buffer.write(tpm.recv(4096))
        sys.stdout.buffer.flush()
"""


@contextmanager
def exchange_with(tpm: SoftwareTpm) -> Iterator[Exchange]:
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(str(tpm.folder / "s"))

        def exchange(command: bytes) -> bytes:
            server.sendall(command)
            return message(server) or b""

        yield exchange


@contextmanager
def as_device(tpm: SoftwareTpm) -> Iterator[str]:
    """Give a terminal in raw mode that answers as a TPM's device file does."""
    master, slave = pty.openpty()
    for end in (master, slave):
        tty.setraw(end)

    def serve() -> None:
        with exchange_with(tpm) as exchange:
            while True:
                try:
                    command = os.read(master, 4096)
                except OSError:
                    return
                if command == b"end":
                    return
                os.write(master, exchange(command))

    server = threading.Thread(target=serve)
    server.start()
    try:
        yield f"device:{os.ttyname(slave)}"
    finally:
        os.write(slave, b"end")
        server.join(timeout=10)
        os.close(slave)
        os.close(master)


@contextmanager
def as_simulator(tpm: SoftwareTpm) -> Iterator[str]:
    """Give the two TCP ports of a simulator: commands, and next to it the platform."""
    commands, platform = socket.socket(), socket.socket()
    while True:
        commands.bind(("127.0.0.1", 0))
        port = commands.getsockname()[1]
        try:
            platform.bind(("127.0.0.1", port + 1))
            break
        except (OSError, OverflowError):
            commands.close()
            commands = socket.socket()

    def serve_commands() -> None:
        client, _ = commands.accept()
        with client, exchange_with(tpm) as exchange:
            while (header := exactly(client, 4)) and int.from_bytes(header, "big") == 8:
                size = int.from_bytes((exactly(client, 5) or b"")[1:], "big")
                response = exchange(exactly(client, size) or b"")
                client.sendall(len(response).to_bytes(4, "big") + response + bytes(4))

    def serve_platform() -> None:
        client, _ = platform.accept()
        with client:
            while exactly(client, 4):
                client.sendall(bytes(4))

    for listener, serve in ((commands, serve_commands), (platform, serve_platform)):
        listener.listen()
        threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"mssim:host=127.0.0.1,port={port}"
    finally:
        commands.close()
        platform.close()


@contextmanager
def as_program(tpm: SoftwareTpm) -> Iterator[str]:
    """Give a program that passes commands from its input to the TPM."""
    with tempfile.TemporaryDirectory() as folder:
        relay = Path(folder) / "relay.py"
        relay.write_text(RELAY)
        yield f"cmd:{shlex.join([sys.executable, str(relay), str(tpm.folder / 's')])}"


@pytest.mark.parametrize("transport", [as_device, as_simulator, as_program])
def test_a_tpm_is_measured_over_every_transport(
    swtpm: SoftwareTpm, tmp_path: Path, transport: Callable[[SoftwareTpm], Iterator[str]]
) -> None:
    with transport(swtpm) as tcti:  # type: ignore[attr-defined]
        done = run_tpm_bench(tcti, tmp_path / "t", blocks=3, only=["PCR_Extend", "Get"])
    assert done.left == ()
    assert done.verified == 3 + 3 * 4
    record = record_of(load_capture(tmp_path / "t"))
    assert record.tpm.vendor_string == "SW TPM"
    hmac, plain = record.command("PCR_Extend", mode="hmac"), record.command("PCR_Extend")
    assert hmac is not None
    assert plain is not None
    assert hmac.min_ns > plain.min_ns
