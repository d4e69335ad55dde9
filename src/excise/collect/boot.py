"""What this host tells of its current boot: systemd's times, the kernel's log, IMA and the TPM.

Nothing is parsed here but single numbers and words; what could not be had is said, with the reason.
"""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.collect.host import SECURITYFS, read_word
from excise.collect.tpm.info import kernel_default

_STAMPS: Final = ",".join(
    f"{prefix}TimestampMonotonic"
    for prefix in (
        *("Firmware", "Loader", "Kernel", "InitRD", "Userspace", "Finish"),
        *("SecurityStart", "SecurityFinish", "GeneratorsStart", "GeneratorsFinish"),
        *("UnitsLoadStart", "UnitsLoadFinish"),
    )
)
COMMANDS: Final = {
    "systemd-show": ("systemctl", "show", f"--property={_STAMPS}"),
    "systemd-time": ("systemd-analyze", "time"),
    "systemd-blame": ("systemd-analyze", "--no-pager", "blame"),
    "systemd-chain": ("systemd-analyze", "--no-pager", "critical-chain"),
    "systemd-plot": ("systemd-analyze", "--no-pager", "plot", "--json=short"),
    "dmesg": ("dmesg",),
}
_TPM: Final = Path("/sys/class/tpm/tpm0")
_PATIENCE_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostBoot:
    """What was read of the current boot.

    Attributes:
        outputs: What each command of `COMMANDS` printed, by name.
        missing: Why a command gave nothing, by name.
        entries: Entries of the IMA list by now, None without one or without the right to read it.
        mode: How the kernel protects PCR extends, as `extend_mode`; None without a TPM, and where
            the kernel does not show it.
    """

    outputs: dict[str, bytes]
    missing: dict[str, str]
    entries: int | None
    mode: str | None


def current_boot() -> HostBoot:
    """Return what this host tells of its current boot."""
    outputs: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    for name, command in COMMANDS.items():
        text, reason = _output(command)
        if text:
            outputs[name] = text
        else:
            words = " ".join(word for word in command if not word.startswith("-"))
            missing[name] = f"{words}: {reason or 'it printed nothing'}"
    count = read_word(SECURITYFS / "ima" / "runtime_measurements_count")
    return HostBoot(
        outputs=outputs,
        missing=missing,
        entries=int(count) if count is not None and count.isdigit() else None,
        mode=kernel_default().mode if _TPM.is_dir() else None,
    )


def _output(command: tuple[str, ...]) -> tuple[bytes, str]:
    if shutil.which(command[0]) is None:
        return b"", "not installed"
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_PATIENCE_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return b"", str(error)
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        return b"", (lines or [f"exit code {done.returncode}"])[-1]
    return done.stdout, ""
