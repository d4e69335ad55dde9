"""One guest from power-on to its results, and one clear message when it does not get there."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NoReturn

from excise.errors import HostError
from excise.lab.cache import working_folder
from excise.lab.machine import Machine, qemu_command
from excise.lab.processes import child, software_tpm

NICE: Final = 5
_POLL_S: Final = 0.01
_PANIC = re.compile(r"Kernel panic - not syncing: (.*)")
_STAGE = re.compile(
    r"EXCISE stage (\w+)(?=\W)"
)  # a word at the end may be cut: it is still written
_FAULT = re.compile(r"EXCISE fault (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Boot:
    """What one boot left behind.

    Attributes:
        files: Results by path, as the guest packed them.
        console: Text of the serial console.
        wall_s: Seconds from QEMU's start to its end.
        stages_s: Host seconds after QEMU's start at which each stage was announced.
        accelerator: What the guest ran on.
    """

    files: dict[str, bytes]
    console: str
    wall_s: float
    stages_s: dict[str, float]
    accelerator: Literal["tcg", "kvm"]


def boot(
    machine: Machine,
    *,
    image: Path,
    initramfs: bytes,
    cmdline: str,
    accelerator: Literal["tcg", "kvm"] = "tcg",
    root_disk: Path | None = None,
    network: Sequence[str] = (),
    on_stage: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> Boot:
    """Boot a guest, wait for its end and return its results.

    QEMU and swtpm are ended before this returns or raises, and the working folder is removed.

    Args:
        machine: The machine.
        image: bzImage.
        initramfs: Root of the guest.
        cmdline: The kernel's command line.
        accelerator: What to run on.
        root_disk: Image of the disk that the guest has; it is not changed.
        network: QEMU's options of its network.
        on_stage: Called with the name of each stage the guest announces.
        stop: Ends the guest when it is set.

    Raises:
        HostError: If a program is missing, or the guest panics, hangs, or cannot save its results;
            the reason is the guest's own last word.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(working_folder())
        (folder / "initramfs").write_bytes(initramfs)
        with_tpm = machine.mode == "tpm"
        command = qemu_command(
            machine,
            image=image,
            initramfs=folder / "initramfs",
            cmdline=cmdline,
            folder=folder,
            tpm_socket=stack.enter_context(software_tpm(folder)) if with_tpm else None,
            accelerator=accelerator,
            root_disk=root_disk,
            network=network,
        )
        started = time.monotonic()
        process = stack.enter_context(
            child(
                command,
                log=folder / "qemu.log",
                nice=NICE,
                file_limit_bytes=None if root_disk else machine.results_mib << 20,
                temporary=folder,
            )
        )
        watch = _Watch(
            folder=folder, machine=machine, started=started, on_stage=on_stage, stop=stop
        )
        stages = watch.until_end(process)
        wall_s = time.monotonic() - started
        console = _console(folder)
        _refuse_failed(process, folder=folder, console=console, machine=machine)
        return Boot(
            files=read_results(folder / "results.tar"),
            console=console,
            wall_s=wall_s,
            stages_s=stages,
            accelerator=accelerator,
        )


def announced_stages(console: str) -> list[str]:
    """Return the stages that a guest announced on its console, as far as it wrote them whole."""
    return _STAGE.findall(console)


def _console(folder: Path) -> str:
    path = folder / "console.log"
    return path.read_bytes().decode("utf-8", "replace") if path.exists() else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """Waiting for the end of a guest, with an eye on its console."""

    folder: Path
    machine: Machine
    started: float
    on_stage: Callable[[str], None]
    stop: threading.Event | None

    def until_end(self, process: subprocess.Popen[bytes]) -> dict[str, float]:
        """Wait for QEMU's end and return when each stage was announced, in host seconds.

        Raises:
            HostError: If it takes too long, or was told to stop.
        """
        stages: dict[str, float] = {}
        path, size = self.folder / "console.log", 0
        while True:
            ended = process.poll() is not None
            now_size = path.stat().st_size if path.exists() else 0
            if now_size != size:
                size = now_size
                self._announce(stages)
            if ended:
                return stages
            if self.stop is not None and self.stop.is_set():
                raise HostError("the guest was ended because the work was interrupted")
            if self._is_late(process.pid):
                self._refuse_hung(stages)
            time.sleep(_POLL_S)

    def _is_late(self, pid: int) -> bool:
        """Tell whether the guest had its time; waiting in line for a busy host's processor is none.

        So a guest that counts instructions comes to its end under any load.
        """
        taken_s = time.monotonic() - self.started
        return taken_s > self.machine.timeout_s and (
            taken_s - _in_line_s(pid) > self.machine.timeout_s
        )

    def _announce(self, stages: dict[str, float]) -> None:
        for stage in announced_stages(_console(self.folder)):
            if stage not in stages:
                stages[stage] = time.monotonic() - self.started
                self.on_stage(stage)

    def _refuse_hung(self, stages: dict[str, float]) -> NoReturn:
        last = next(reversed(stages), "")
        where = f'after its stage "{last}"' if last else "before its init started"
        raise HostError(
            f"the guest hung {where}: ended after {self.machine.timeout_s:g} s",
            hint=_last_words(_console(self.folder)),
        )


def _in_line_s(pid: int) -> float:
    """Return the seconds that a process's threads were ready to run and did not.

    Of the thread that waited longest; 0 for a kernel without these statistics. Source:
    Documentation/scheduler/sched-stats.rst, /proc/PID/schedstat.
    """
    waited_ns = 0
    for entry in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            waited_ns = max(waited_ns, int(entry.read_text().split()[1]))
    return waited_ns / 1e9


def _refuse_failed(
    process: subprocess.Popen[bytes], *, folder: Path, console: str, machine: Machine
) -> None:
    panic = _PANIC.search(console)
    if panic:
        raise HostError(
            f"the guest's kernel panicked: {panic.group(1).strip()}", hint=_last_words(console)
        )
    fault = _FAULT.search(console)
    if fault:
        raise HostError(
            f"the guest could not save its results: {fault.group(1).strip()}",
            hint="Make memory_mib larger, or collect less",
        )
    if process.returncode == -signal.SIGXFSZ:
        raise HostError(
            f"the guest brought back or printed more than {machine.results_mib} MiB",
            hint="Make results_mib larger, or collect less",
        )
    if process.returncode:
        text = (folder / "qemu.log").read_text(errors="replace").strip()
        last = (text.splitlines() or ["no reason given"])[-1]
        raise HostError(f"QEMU ended with code {process.returncode}: {last}")
    if "EXCISE stage saved" not in console:
        raise HostError("the guest ended before it saved its results", hint=_last_words(console))


def _last_words(console: str) -> str:
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    ours = [line for line in lines if not line.startswith("EXCISE ")]
    return f"Last line of its console: {(ours or lines or ['(nothing)'])[-1][:200]}"


def read_results(path: Path) -> dict[str, bytes]:
    """Return the files of the tar that a guest sent.

    Raises:
        HostError: If it is no whole tar.
    """
    found = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    found[member.name.removeprefix("./")] = stream.read()
    except (tarfile.TarError, EOFError, OSError) as error:
        raise HostError(f"the guest's results cannot be read: {error}") from error
    return found
