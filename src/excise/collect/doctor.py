"""What this host can measure, what it cannot, and how to enable the rest."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from excise.collect.host import SECURITYFS, read_word, virtualisation
from excise.collect.probe import ProbeInfo, probe_info
from excise.errors import ExciseError
from excise.units import counted

State = Literal["yes", "partly", "no"]
TRACEFS: Final = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
FUNCTIONS: Final = "available_filter_functions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ability:
    """One thing excise can do on some hosts.

    Attributes:
        name: What it is.
        state: Whether this host can do it, as found by trying where that is harmless.
        found: What was found.
        enable: What to do to get it, or "".
    """

    name: str
    state: State
    found: str
    enable: str = ""


def examine() -> list[Ability]:
    """Return every ability of this host, in the order of the commands that need them."""
    try:
        info = probe_info()
    except ExciseError as error:
        launcher = Ability(
            name="run campaigns",
            state="no",
            found=error.reason,
            enable=error.hint or "",
        )
        return [launcher, *_noise(), *_security(), *_tools()]
    return [*_probe(info), *_noise(), *_security(), *_tools()]


def _probe(info: ProbeInfo) -> Iterator[Ability]:
    yield Ability(name="run campaigns", state="yes", found=f"kernel {info.kernel_release}")
    abi = info.landlock_abi
    yield Ability(
        name="Landlock per process",
        state="yes" if abi else "no",
        found=f"ABI {abi}" if abi else "the kernel refuses a ruleset",
        enable=""
        if abi
        else "Boot with lsm=landlock,... on a kernel with CONFIG_SECURITY_LANDLOCK",
    )
    seccomp = info.seccomp_filter
    yield Ability(
        name="seccomp filters",
        state="yes" if seccomp else "no",
        found="filter mode works" if seccomp else "not available",
        enable="" if seccomp else "Needs CONFIG_SECCOMP_FILTER",
    )
    yield _counters(info)


def _counters(info: ProbeInfo) -> Ability:
    scopes = {
        "instructions": info.counters.instructions_scope,
        "cycles": info.counters.cycles_scope,
    }
    working = [f"{name} ({scope})" for name, scope in scopes.items() if scope]
    if working:
        return Ability(name="instruction counts", state="yes", found=", ".join(working))
    reasons = sorted({each.errno or "unknown" for each in info.counters.attempts})
    if {"EACCES", "EPERM"} & set(reasons):
        enable = "sysctl kernel.perf_event_paranoid=1 (as root)"
    else:
        enable = "This (virtual) machine has no hardware counters; use bare metal or the lab"
    return Ability(
        name="instruction counts", state="no", found=", ".join(reasons) or "unknown", enable=enable
    )


def _noise() -> Iterator[Ability]:
    governor = read_word(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))
    kind = virtualisation()
    cores, load = os.cpu_count() or 1, os.getloadavg()[0]
    quiet = load < 0.5 * cores and kind == "none" and governor in (None, "performance")
    found = f"load {load:.2f} on {counted(cores, 'core')}, governor {governor or 'unknown'}, {kind}"
    yield Ability(
        name="quiet machine",
        state="yes" if quiet else "partly",
        found=found,
        enable=""
        if quiet
        else "Paired blocks cope with noise; fewer are needed with governor "
        "performance and an idle host",
    )


def _security() -> Iterator[Ability]:
    lsm = read_word(SECURITYFS / "lsm")
    mount = "mount -t securityfs none /sys/kernel/security (as root)"
    yield Ability(
        name="list of active LSMs",
        state="yes" if lsm else "no",
        found=lsm or "securityfs is not mounted",
        enable="" if lsm else mount,
    )
    yield _ima()
    yield _file(
        "TPM commands and quotes", "/dev/tpmrm0", "Enable the TPM in firmware, or use swtpm"
    )
    yield _tracing()
    fips = read_word(Path("/proc/sys/crypto/fips_enabled"))
    yield Ability(
        name="kernel FIPS mode",
        state="yes" if fips is not None else "no",
        found={None: "the kernel has no FIPS switch", "1": "on", "0": "off"}.get(fips, fips or ""),
        enable=""
        if fips is not None
        else "Needs CONFIG_CRYPTO_FIPS; libraries can still be switched",
    )


def _tracing() -> Ability:
    name = "kernel tracing"
    tracefs = next((folder for folder in TRACEFS if _lists(folder)), None)
    if tracefs is None:
        mount = "mount -t tracefs nodev /sys/kernel/tracing (as root)"
        return Ability(name=name, state="no", found="tracefs is not readable", enable=mount)
    functions = tracefs / FUNCTIONS
    try:
        with functions.open("rb") as file:  # what may be listed may still not be opened
            file.read(1)
    except FileNotFoundError:
        pass  # a kernel without ftrace: kprobes may be there
    except OSError as error:
        return Ability(
            name=name,
            state="no",
            found=f"{functions}: {error.strerror}",
            enable="Tracing needs root, and a kernel that is not locked down",
        )
    return Ability(name=name, state="yes", found=f"{tracefs} is readable")


def _ima() -> Ability:
    path = SECURITYFS / "ima" / "binary_runtime_measurements"
    if not path.exists():
        return Ability(
            name="IMA measurement list",
            state="no",
            found="no list in securityfs",
            enable="Boot with ima_policy=tcb on a kernel with CONFIG_IMA, and mount securityfs",
        )
    count = read_word(SECURITYFS / "ima" / "runtime_measurements_count")
    if not os.access(path, os.R_OK):
        return Ability(
            name="IMA measurement list",
            state="partly",
            found="present but not readable",
            enable="Run as root",
        )
    return Ability(name="IMA measurement list", state="yes", found=f"{count or '?'} entries")


def _tools() -> Iterator[Ability]:
    kvm = os.access("/dev/kvm", os.R_OK | os.W_OK)
    qemu = shutil.which("qemu-system-x86_64")
    swtpm = shutil.which("swtpm")
    missing = [name for name, path in (("qemu-system-x86", qemu), ("swtpm", swtpm)) if not path]
    yield Ability(
        name="kernels in QEMU with a software TPM",
        state="no" if missing else "yes",
        found=f"{', '.join(missing)} missing"
        if missing
        else f"KVM device {'present, tried when a guest boots' if kvm else 'absent'}",
        enable=f"apt-get install {' '.join(missing)}" if missing else "",
    )


def _file(name: str, path: str, enable: str) -> Ability:
    if not Path(path).exists():
        return Ability(name=name, state="no", found=f"no {path}", enable=enable)
    if not os.access(path, os.R_OK | os.W_OK):
        return Ability(
            name=name, state="partly", found=f"{path} may not be opened", enable="Join group tss"
        )
    return Ability(name=name, state="yes", found=path)


def _lists(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False
