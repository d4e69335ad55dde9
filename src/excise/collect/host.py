"""Host facts: what a reader must know of the machine, and what must agree to compare captures."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from excise.capture.manifest import Fact
from excise.capture.store import sha256_of
from excise.errors import HostError

CPU: Final = Path("/sys/devices/system/cpu")
DEVICE_TREE_MODEL: Final = Path("/proc/device-tree/model")
_ARM_FIELD: Final = re.compile(
    r"^CPU (implementer|variant|part|revision)\s*:\s*(0x[0-9a-fA-F]+|\d+)$", re.M
)
_ARM_FIELDS: Final = 4
# Where the launcher looks for programs where the child's environment has no PATH.
PATH_OF_NONE: Final = "/usr/local/bin:/usr/bin:/bin"
SECURITYFS: Final = Path("/sys/kernel/security")
# Libraries that carry a mechanism under test; their versions must agree between captures.
MECHANISM_LIBRARIES: Final = (
    "libcrypto",
    "libgcrypt",
    "libgnutls",
    "libnettle",
    "libnss3",
    "libseccomp",
    "libssl",
    "libwolfssl",
)
# Facts that what a machine is booted with may change; the others stay from boot to boot.
SET_AT_BOOT: Final = frozenset(
    {
        *("kernel.cmdline", "security.lsm", "fips.enabled", "ima.present", "ima.policy_present"),
        *("cpu.mitigations", "cpu.smt", "cpu.count", "cpu.governor", "clocksource", "tpm.present"),
    }
)


def read_word(path: Path) -> str | None:
    """Return a small file's text without surrounding white space, or None if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def host_facts() -> list[Fact]:
    """Return everything known of this host, each fact marked whether it must agree."""
    return [*_kernel(), *_cpu(), *_security(), *_software()]


def program_facts(
    programs: Iterable[Sequence[str]], *, environment: Mapping[str, str] | None = None
) -> list[Fact]:
    """Return facts of the programs under test: digest, and versions of mechanism libraries.

    Args:
        programs: Commands; only the first word of each is looked at.
        environment: That of the programs, which says where they and their libraries are found;
            this process's own when None.
    """
    facts: dict[str, Fact] = {}
    for words in programs:
        path = _found(words[0], environment)
        if path is None:
            continue
        name = Path(path).name
        real = Path(path).resolve()
        key = f"program.{name}.sha256"
        facts[key] = Fact(name=key, value=sha256_of(real), must_agree=True)
        for library, version in _libraries(str(real), environment).items():
            key = f"library.{library}.version"
            facts[key] = Fact(name=key, value=version, must_agree=True)
    return list(facts.values())


def facts_by_configuration(found: Mapping[str, Sequence[Fact]]) -> list[Fact]:
    """Return facts of the programs of all configurations, each once.

    Args:
        found: Facts by configuration, the baseline's first. What another configuration finds
            elsewhere is a fact of its own, with the configuration's name.
    """
    facts: dict[str, Fact] = {}
    for configuration, each in found.items():
        for fact in each:
            known = facts.setdefault(fact.name, fact)
            if known.value != fact.value:
                name = f"{fact.name} under {configuration}"
                facts[name] = msgspec.structs.replace(fact, name=name)
    return list(facts.values())


def require_programs(
    programs: Iterable[Sequence[str]],
    *,
    environment: Mapping[str, str] | None = None,
    source: str | None = None,
) -> None:
    """Refuse commands whose program is not on this machine.

    Args:
        programs: Commands; only the first word of each is looked at.
        environment: That of the programs; this process's own when None.
        source: What asks for them, for the error.

    Raises:
        HostError: Naming every one that is missing.
    """
    words = dict.fromkeys(words[0] for words in programs)
    if missing := [word for word in words if _found(word, environment) is None]:
        raise HostError(
            f"not found or not executable: {', '.join(missing)}",
            source=source,
            hint="Install it, or give its full path",
        )


def _found(program: str, environment: Mapping[str, str] | None) -> str | None:
    """Return where a child of that environment finds a program, as the launcher looks for it."""
    if environment is None:
        return shutil.which(program)
    return shutil.which(program, path=environment.get("PATH", PATH_OF_NONE))


def file_system_fact(folder: str) -> Fact:
    """Return the type of the file system that a folder is on, as the kernel lists its mounts."""
    name = "work.file_system"
    real = os.path.realpath(folder)
    best, kind = "", None
    for line in (read_word(Path("/proc/self/mounts")) or "").splitlines():
        _, point, found, *_ = line.split(" ")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return Fact(name=name, value=kind, must_agree=True)


def boot_id() -> str:
    """Return the kernel's identifier of this boot, or ""."""
    return read_word(Path("/proc/sys/kernel/random/boot_id")) or ""


def _kernel() -> list[Fact]:
    uname = platform.uname()
    return [
        Fact(name="kernel.release", value=uname.release, must_agree=True),
        Fact(name="kernel.version", value=uname.version),
        Fact(name="machine", value=uname.machine, must_agree=True),
        _word("kernel.cmdline", Path("/proc/cmdline"), must_agree=True, private=True),
        Fact(name="host.name", value=uname.node, private=True),
        Fact(name="boot.id", value=boot_id() or None, private=True),
        Fact(name="virtualisation", value=virtualisation(), must_agree=True),
    ]


def cpu_model(cpuinfo: str) -> str | None:
    """Return the processor's model of `/proc/cpuinfo`, or None where it has none.

    64-bit Arm kernels name no model but the registers that tell it (`MIDR_EL1`); each kind of core
    is given with its number where there are several, since what was measured may have run on any.
    """
    if named := re.search(r"^(?:model name|Processor|uarch|cpu model)\s*:\s*(.+)$", cpuinfo, re.M):
        return named[1].strip()
    cores = Counter(
        f"implementer {field['implementer']} part {field['part']} "
        f"r{int(field['variant'], 0)}p{field['revision']}"
        for field in (dict(_ARM_FIELD.findall(core)) for core in cpuinfo.split("\n\n"))
        if len(field) == _ARM_FIELDS
    )
    if len(cores) == 1:
        return next(iter(cores))
    return ", ".join(f"{number} × {core}" for core, number in sorted(cores.items())) or None


def board_fact(model: str) -> list[Fact]:
    """Return what a device tree calls its board, given its `model`; nothing where there is none."""
    name = model.strip("\0 \n")
    return [Fact(name="board", value=name)] if name else []


def _cpu() -> list[Fact]:
    clocksource = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    return [
        Fact(
            name="cpu.model",
            value=cpu_model(read_word(Path("/proc/cpuinfo")) or ""),
            must_agree=True,
        ),
        *board_fact(read_word(DEVICE_TREE_MODEL) or ""),
        Fact(name="cpu.count", value=os.cpu_count(), unit="1", must_agree=True),
        _word("cpu.governor", CPU / "cpu0/cpufreq/scaling_governor", must_agree=True),
        _word("cpu.smt", CPU / "smt/control", must_agree=True),
        Fact(name="cpu.mitigations", value=mitigations(), must_agree=True),
        _word("clocksource", clocksource, must_agree=True),
        Fact(name="load.average_1min", value=round(os.getloadavg()[0], 2), unit="1"),
        Fact(
            name="memory.size",
            value=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            unit="B",
        ),
    ]


def _security() -> list[Fact]:
    fips = read_word(Path("/proc/sys/crypto/fips_enabled"))
    ima = SECURITYFS / "ima"
    lsm = _word("security.lsm", SECURITYFS / "lsm", must_agree=True)
    if lsm.value is None:
        lsm = Fact(name=lsm.name, value=None, must_agree=True, note="securityfs is not mounted")
    return [
        lsm,
        Fact(
            name="fips.enabled",
            value=None if fips is None else fips == "1",
            must_agree=True,
            note="" if fips is not None else "the kernel has no FIPS switch",
        ),
        Fact(name="ima.present", value=ima.is_dir(), must_agree=True),
        _word("ima.measurements", ima / "runtime_measurements_count", unit="1"),
        Fact(name="ima.policy_present", value=_ima_policy_present(ima), must_agree=True),
        Fact(name="tpm.present", value=Path("/sys/class/tpm/tpm0").exists(), must_agree=True),
    ]


def _software() -> list[Fact]:
    release = read_word(Path("/etc/os-release")) or ""
    pretty = re.search(r'^PRETTY_NAME="?([^"\n]+)', release, re.M)
    return [
        Fact(name="system", value=pretty[1] if pretty else None),
        Fact(name="libc", value=" ".join(platform.libc_ver()) or None, must_agree=True),
    ]


def _word(
    name: str, path: Path, *, must_agree: bool = False, private: bool = False, unit: str = ""
) -> Fact:
    value = read_word(path)
    note = "" if value is not None else f"{path} cannot be read"
    return Fact(
        name=name, value=value, must_agree=must_agree, private=private, unit=unit, note=note
    )


def _ima_policy_present(ima: Path) -> bool | None:
    """Return whether a measuring policy is loaded: more entries than the boot aggregate."""
    if not ima.is_dir():
        return False
    count = read_word(ima / "runtime_measurements_count")
    return int(count) > 1 if count and count.isdecimal() else None


def mitigations() -> str | None:
    """Return the CPU vulnerabilities that affect this host and their state, sorted, or None."""
    folder = CPU / "vulnerabilities"
    if not folder.is_dir():
        return None
    states = {file.name: (read_word(file) or "?").split(";")[0] for file in folder.iterdir()}
    affected = [f"{n}: {state}" for n, state in sorted(states.items()) if state != "Not affected"]
    return ", ".join(affected) or "not affected by any known vulnerability"


def virtualisation() -> str:
    """Return the hypervisor or container this host runs in, `none`, or `unknown`."""
    if detect := shutil.which("systemd-detect-virt"):
        answer = subprocess.run([detect], capture_output=True, text=True, check=False)
        if answer.stdout.strip():
            return answer.stdout.strip()
    if "hypervisor" in (read_word(Path("/proc/cpuinfo")) or ""):
        return read_word(Path("/sys/class/dmi/id/product_name")) or "virtual machine"
    return "none" if platform.machine() == "x86_64" else "unknown"


def _libraries(program: str, environment: Mapping[str, str] | None) -> dict[str, str]:
    """Return mechanism libraries a program is linked with: name to the real file's version."""
    ldd = shutil.which("ldd")
    if ldd is None:
        return {}
    answer = subprocess.run(
        [ldd, program], capture_output=True, text=True, check=False, env=environment
    )
    found = {}
    for path in re.findall(r"=> (/\S+)", answer.stdout):
        name, _, version = Path(path).resolve().name.partition(".so")
        if name in MECHANISM_LIBRARIES:
            # `libcrypto.so.3` names an interface, not a version: then the content must agree.
            precise = version.count(".") > 1
            found[name] = version[1:] if precise else f"{version[1:]}, {sha256_of(Path(path))[:16]}"
    return found
