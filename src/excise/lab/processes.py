"""Child processes that never outlive excise, even when it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from excise.errors import HostError

_PACKAGES: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "swtpm": "swtpm",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
}
_END_GRACE_S: Final = 2.0
_TPM_PATIENCE_S: Final = 60.0
_SOCKET_FOLDER_BYTES: Final = 80  # a socket's path holds 107 bytes (unix(7))
_ACCEPTS: Final = 0x10000  # __SO_ACCEPTCON of linux/net.h, as /proc/net/unix shows it
_FAMILY_SHELL: Final = """\
exec 3<&0
"$@" </dev/null 3<&- &
program=$!
{ read -r _ <&3; kill -TERM 0; } &
wait $program
code=$?
kill $!
exit $code
"""


def require(program: str) -> str:
    """Return the path of a program.

    Raises:
        HostError: If it is not installed; the hint names its package.
    """
    found = shutil.which(program)
    if found is None:
        raise HostError(
            f"{program} is not installed",
            hint=f"Install the package {_PACKAGES.get(program, program)}",
        )
    return found


def program_version(program: str) -> str | None:
    """Return the first line that a program prints about its version, or None if it is missing."""
    path = shutil.which(program)
    if path is None:
        return None
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    return (done.stdout.splitlines() or [""])[0].strip() or None


@contextmanager
def child(
    command: Sequence[str],
    *,
    log: Path,
    nice: int = 0,
    file_limit_bytes: int | None = None,
    temporary: Path | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program, yield it, and end it on the way out.

    `setpriv` asks the kernel to kill the program when the thread that started it dies, so that it
    ends also when excise is killed with SIGKILL. It runs in a session of its own, so that Ctrl-C at
    the terminal reaches excise first.

    Args:
        command: Program and arguments.
        log: File that takes its standard output and error.
        nice: Niceness to run it with.
        file_limit_bytes: Largest file it may write; it is killed by SIGXFSZ when it tries more.
        temporary: Folder for its temporary files.
    """
    wrapper = [require("setpriv"), "--pdeathsig", "KILL", "--"]
    if nice:
        wrapper += ["nice", "-n", str(nice)]
    if file_limit_bytes is not None:
        wrapper += [require("prlimit"), f"--fsize={file_limit_bytes}:{file_limit_bytes}", "--"]
    require(command[0])
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*wrapper, *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, "TMPDIR": str(temporary)} if temporary else None,
        )
        try:
            yield process
        finally:
            _end(process)


@contextmanager
def family(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str], nice: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that starts others, yield it, and end them all on the way out.

    A signal for the death of excise would reach the first of them only. So a shell leads their
    process group and holds the end of a pipe to excise: when that closes, it ends the group.

    Args:
        command: Program and arguments.
        log: File that takes what they print.
        environment: Their environment.
        nice: Niceness to run them with.
    """
    wrapper = ["nice", "-n", str(nice), "sh", "-c", _FAMILY_SHELL, "sh"]
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [*wrapper, *command],
            stdin=subprocess.PIPE,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment,
        )
    try:
        yield process
    finally:
        _end(process)
        if process.stdin is not None:
            process.stdin.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a program and what it started: it leads a session, and so a process group, of its own."""
    if process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_GRACE_S)
        _signal_group(process, signal.SIGKILL)
        process.wait()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


@contextmanager
def software_tpm(folder: Path) -> Iterator[Path]:
    """Run swtpm with a fresh TPM 2.0; yield its control socket.

    The socket is in the folder, or in one with a shorter path where that does not fit.

    Raises:
        HostError: If swtpm is missing or does not start.
    """
    state = folder / "tpm"
    state.mkdir(exist_ok=True)
    with _socket_folder(folder) as place:
        socket = place / "tpm.sock"
        command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}"]
        command += ["--ctrl", f"type=unixio,path={socket}", "--terminate"]
        with child(command, log=folder / "swtpm.log") as process:
            _await_socket(process, socket, log=folder / "swtpm.log")
            yield socket


@contextmanager
def _socket_folder(folder: Path) -> Iterator[Path]:
    """Yield the folder, or one made for the while whose path leaves room for a socket's name."""
    if len(os.fsencode(folder)) <= _SOCKET_FOLDER_BYTES:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="excise-tpm-") as short:
        yield Path(short)


def _await_socket(process: subprocess.Popen[bytes], socket: Path, *, log: Path) -> None:
    deadline = time.monotonic() + _TPM_PATIENCE_S
    while not listens(socket):
        if process.poll() is not None:
            text = log.read_text(errors="replace").strip()
            raise HostError(f"swtpm ended at its start: {text}")
        if time.monotonic() > deadline:
            raise HostError(f"swtpm made no control socket in {_TPM_PATIENCE_S:.0f} seconds")
        time.sleep(0.01)


def listens(socket: Path) -> bool:
    """Tell whether a Unix socket takes connections: its file is there a moment before it does.

    Args:
        socket: Its path as it was bound.
    """
    rows = Path("/proc/net/unix").read_text(errors="surrogateescape").splitlines()[1:]
    fields = (row.split(maxsplit=7) for row in rows)
    return any(
        each[7] == os.fspath(socket) and int(each[3], 16) & _ACCEPTS
        for each in fields
        if len(each) == 8
    )
