"""Child processes that never outlive excise, even when it is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from excise.errors import HostError

_PACKAGES: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "swtpm": "swtpm",
    "setpriv": "util-linux",
    "prlimit": "util-linux",
}
_END_GRACE_S: Final = 2.0


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
    environment: Mapping[str, str] | None = None,
    death_signal: Literal["KILL", "TERM"] = "KILL",
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
        environment: Its environment; excise's own by default.
        death_signal: What it gets when excise is killed; TERM for a program that ends its own
            children then.
    """
    wrapper = [require("setpriv"), "--pdeathsig", death_signal, "--"]
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
            env={**(environment or os.environ), "TMPDIR": str(temporary)}
            if temporary
            else environment,
        )
        try:
            yield process
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


@contextmanager
def software_tpm(folder: Path) -> Iterator[None]:
    """Run swtpm with a fresh TPM 2.0 whose control socket is `folder/tpm.sock`.

    Raises:
        HostError: If swtpm is missing or does not start.
    """
    state, socket = folder / "tpm", folder / "tpm.sock"
    state.mkdir(exist_ok=True)
    command = ["swtpm", "socket", "--tpm2", "--tpmstate", f"dir={state}"]
    command += ["--ctrl", f"type=unixio,path={socket}", "--terminate"]
    with child(command, log=folder / "swtpm.log") as process:
        for _ in range(500):
            if socket.exists():
                break
            if process.poll() is not None:
                text = (folder / "swtpm.log").read_text(errors="replace").strip()
                raise HostError(f"swtpm ended at its start: {text}")
            time.sleep(0.01)
        else:
            raise HostError("swtpm made no control socket in five seconds")
        yield
