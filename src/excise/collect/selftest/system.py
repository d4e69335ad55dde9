"""What this system, or a process, is set to: switches and configuration that make self-tests run.

Nothing is run but `openssl version`; every source is named with what was found in it.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from excise.collect.host import read_word
from excise.collect.selftest.gobuild import ON as GO_ON
from excise.collect.selftest.gobuild import GoBuild, judge, read_build
from excise.collect.selftest.openssl import module_keys
from excise.errors import HostError

Points = Literal["yes", "no", "unseen", "context"]
FIPS_ENABLED: Final = Path("/proc/sys/crypto/fips_enabled")
PT_INTERP: Final = 3
GCRYPT_SWITCH: Final = Path("/etc/gcrypt/fips_enabled")
# Variable, values that switch FIPS mode off, and whose it is.
VARIABLES: Final = (
    ("LIBGCRYPT_FORCE_FIPS_MODE", (), "libgcrypt runs its self-tests in every process"),
    ("GNUTLS_FORCE_FIPS_MODE", ("0",), "GnuTLS runs its self-tests, if built with FIPS mode"),
    ("NSS_FIPS", ("0", "", "false", "off", "FALSE", "OFF"), "NSS runs in FIPS mode"),
    ("OPENSSL_FORCE_FIPS_MODE", ("0", ""), "OpenSSL as patched by Red Hat and SUSE"),
    ("OPENSSL_FIPS", ("0", ""), "programs of the OpenSSL 1.0 FIPS module"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was looked at.

    Attributes:
        source: The file, variable or process.
        found: What was found.
        points: Whether it speaks for `yes` (self-tests run though FIPS is off) or `no`, says that
            something could not be seen, or only helps to read the rest.
    """

    source: str
    found: str
    points: Points = "context"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleKey:
    """One key of fipsmodule.cnf and what it means for a version of OpenSSL."""

    key: str
    value: str
    meaning: str


def fips_enabled(*, path: Path = FIPS_ENABLED) -> bool | None:
    """Return the kernel's FIPS switch; None where the kernel has none."""
    word = read_word(path)
    return None if word is None else word == "1"


def kernel_evidence() -> list[Evidence]:
    """Return the kernel's switch and its command line."""
    state = fips_enabled()
    found = {None: "absent: the kernel has no FIPS switch", True: "1: FIPS is on"}
    words = (read_word(Path("/proc/cmdline")) or "").split()
    fips = [word for word in words if word.startswith("fips=")]
    return [
        Evidence(source=str(FIPS_ENABLED), found=found.get(state, "0: FIPS is off")),
        Evidence(source="/proc/cmdline", found=" ".join(fips) or "no fips= there"),
    ]


def environment_evidence(environment: Mapping[str, str]) -> Iterator[Evidence]:
    """Yield each variable that switches a library's FIPS mode, or where it reads its set-up."""
    for name, off, effect in VARIABLES:
        if name in environment:
            value = environment[name]
            points: Points = "context" if value in off else "yes"
            text = f"{value}: {effect}" if points == "yes" else f"{value}: off"
            yield Evidence(source=f"environment {name}", found=text, points=points)
    for setting in environment.get("GODEBUG", "").split(","):
        if setting.startswith("fips140="):
            on = setting.partition("=")[2] in GO_ON
            yield Evidence(
                source="environment GODEBUG",
                found=setting,
                points="yes" if on else "context",
            )


def gcrypt_evidence() -> Evidence:
    """Return libgcrypt's own switch, which forces FIPS mode whatever the kernel's says."""
    source = str(GCRYPT_SWITCH)
    if GCRYPT_SWITCH.exists():
        found = "is there: libgcrypt runs its self-tests in every process"
        return Evidence(source=source, found=found, points="yes")
    return Evidence(source=source, found="is not there")


def openssl_configuration(environment: Mapping[str, str]) -> Path | None:
    """Return the configuration file that OpenSSL reads here, or None where there is no OpenSSL."""
    if named := environment.get("OPENSSL_CONF"):
        return Path(named)
    try:
        done = subprocess.run(
            ["openssl", "version", "-d"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'OPENSSLDIR: "([^"]+)"', done.stdout)
    return Path(match[1]) / "openssl.cnf" if match else None


def openssl_version() -> str | None:
    """Return the version of the `openssl` program, or None where there is none."""
    try:
        done = subprocess.run(
            ["openssl", "version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.match(r"OpenSSL (\S+)", done.stdout)
    return match[1] if match else None


def configuration_sections(path: Path, *, depth: int = 0) -> dict[str, dict[str, str]]:
    """Return the sections of an OpenSSL configuration and of all that it includes.

    Args:
        path: The file; `.include` lines are followed, also into folders.
        depth: How many files lead here; more than eight are not followed.

    Raises:
        HostError: If it cannot be read.
    """
    try:
        text = path.read_text(errors="replace")
    except OSError as error:
        raise HostError(f"cannot be read ({error.strerror})", source=str(path)) from error
    sections: dict[str, dict[str, str]] = {"default": {}}
    current = "default"
    for raw in text.splitlines():
        line = raw.split("#")[0].strip()
        if match := re.fullmatch(r"\.include\s*=?\s*(.+)", line):
            for name, keys in _included(path, match[1].strip(), depth):
                sections.setdefault(name, {}).update(keys)
        elif match := re.fullmatch(r"\[\s*(.+?)\s*\]", line):
            current = match[1]
            sections.setdefault(current, {})
        elif "=" in line:
            key, _, value = line.partition("=")
            sections[current][key.strip()] = value.strip()
    return sections


def _included(path: Path, name: str, depth: int) -> Iterator[tuple[str, dict[str, str]]]:
    target = path.parent / name
    files = sorted(target.glob("*.c*nf")) if target.is_dir() else [target]
    for file in files if depth < 8 else []:
        try:
            yield from configuration_sections(file, depth=depth + 1).items()
        except HostError:
            continue  # OpenSSL too goes on without it, unless config_diagnostics is set


def activated_fips(sections: Mapping[str, Mapping[str, str]]) -> dict[str, str] | None:
    """Return the keys of the FIPS provider's section if it is activated, else None."""
    start = sections.get("default", {}).get("openssl_conf", "openssl_init")
    providers = sections.get(start, {}).get("providers", "")
    for name, section in sections.get(providers, {}).items():
        keys = dict(sections.get(section, {}))
        named = keys.get("identity", name)
        if named == "fips" and keys.get("activate", "0").lower() in ("1", "yes", "true", "on"):
            return keys
    return None


def openssl_evidence(environment: Mapping[str, str]) -> list[Evidence]:
    """Return whether OpenSSL's configuration loads the FIPS provider in every process."""
    path = openssl_configuration(environment)
    if path is None:
        return [Evidence(source="openssl", found="there is no openssl here")]
    try:
        keys = activated_fips(configuration_sections(path))
    except HostError as error:
        return [Evidence(source=str(path), found=error.reason)]
    if keys is None:
        return [Evidence(source=str(path), found="does not activate the FIPS provider")]
    version = openssl_version() or "3.0"
    found = "activates the FIPS provider in every process that reads it"
    rows = [Evidence(source=str(path), found=found, points="yes")]
    rows += [
        Evidence(source=f"{path}: {each.key}", found=f"{each.value}: {each.meaning}")
        for each in explain_keys(keys, version=version)
    ]
    return rows


def explain_keys(keys: Mapping[str, str] | str, *, version: str) -> list[ModuleKey]:
    """Return what each key of fipsmodule.cnf means for a version of OpenSSL.

    Args:
        keys: Keys and values, or the text of a fipsmodule.cnf.
        version: OpenSSL's version, such as `3.5.9`.

    Source: fips_config(5); for the effect of install-status from 3.1 on, measured on 3.5.9.
    """
    plain = module_keys(keys) if isinstance(keys, str) else keys
    numbers = [int(each) for each in re.findall(r"\d+", version)[:2]] or [3, 0]
    old = numbers < [3, 1]
    return [
        ModuleKey(key=key, value=value[:40], meaning=_meaning(key, old))
        for key, value in plain.items()
    ]


def _meaning(key: str, old: bool) -> str:
    known = {
        "activate": "1 loads the provider at the start of every process that reads the file",
        "install-version": "form of these keys",
        "module-mac": "HMAC-SHA-256 over the module, computed and compared at every load",
        "conditional-errors": "1: a conditional self-test that fails disables the module",
        "security-checks": "1: weak keys and curves are refused; no self-test",
        "install-mac": "HMAC over install-status, compared at every load"
        if old
        else "HMAC over install-status",
        "install-status": "known-answer tests ran at installation and are skipped at a load"
        if old
        else "no effect from 3.1 on: known-answer tests run at every load",
    }
    if key in known:
        return known[key]
    if key.endswith(("-check", "-disabled")) or key in ("no-short-mac", "drbg-no-trunc-md"):
        return "what the module refuses or marks as not approved; no self-test"
    return "not known to this excise"


def has_interpreter(path: Path) -> bool:
    """Return whether an ELF file names a dynamic loader (a PT_INTERP program header)."""
    try:
        with path.open("rb") as file:
            head = file.read(64)
            wide = head[4:5] == b"\2"
            order: Literal["little", "big"] = "little" if head[5:6] == b"\1" else "big"
            at, size, count = ((32, 8), (54, 2), (56, 2)) if wide else ((28, 4), (42, 2), (44, 2))
            offset, entry, number = (
                int.from_bytes(head[start : start + length], order)
                for start, length in (at, size, count)
            )
            file.seek(offset)
            table = file.read(entry * number)
    except OSError:
        return False
    starts = range(0, len(table), entry or 1)
    return head[:4] == b"\x7fELF" and any(
        int.from_bytes(table[start : start + 4], order) == PT_INTERP for start in starts
    )


def _go_evidence(program: str, build: GoBuild, environment: Mapping[str, str]) -> Evidence:
    verdict = judge(build, environment.get("GODEBUG", ""))
    points: Points = "unseen" if verdict.tests is None else "yes" if verdict.tests else "no"
    state = {None: "not known", True: "self-tests ran", False: "no self-test runs"}[verdict.tests]
    return Evidence(
        source=f"{program}, a Go program", found=f"{state}: {verdict.why}", points=points
    )


def process_evidence(pid: int) -> list[Evidence]:
    """Return what a running process has loaded and is set to.

    Raises:
        HostError: If there is no such process, or it may not be looked at.
    """
    folder = Path("/proc") / str(pid)
    try:
        maps = (folder / "maps").read_text(errors="replace")
        raw = (folder / "environ").read_bytes()
        program = str((folder / "exe").readlink())
    except OSError as error:
        raise HostError(
            f"cannot be looked at ({error.strerror})", source=f"process {pid}"
        ) from error
    rows = [Evidence(source=f"process {pid}", found=program)]
    pairs = (each.partition("=") for each in raw.decode(errors="replace").split("\0") if each)
    environment = {name: value for name, _, value in pairs}
    mapped = sorted({Path(path).name for path in re.findall(r"(/\S+)$", maps, re.M)})
    where = f"/proc/{pid}/maps"
    build = read_build(folder / "exe")
    if build is not None:
        rows.append(_go_evidence(program, build, environment))
    if not has_interpreter(folder / "exe") and not (build and build.own_code_only):
        found = "names no dynamic loader: a static program, which cannot be seen into"
        rows.append(Evidence(source=program, found=found, points="unseen"))
    if "fips.so" in mapped:
        found = "fips.so is mapped: its self-tests ran when it was loaded"
        rows.append(Evidence(source=where, found=found, points="yes"))
    switches = list(environment_evidence(environment))
    libraries = {"libgcrypt": "LIBGCRYPT_FORCE_FIPS_MODE", "libgnutls": "GNUTLS_FORCE_FIPS_MODE"}
    for library, variable in libraries.items():
        if any(name.startswith(library) for name in mapped):
            rows += [each for each in switches if each.source.endswith(variable)]
            if library == "libgcrypt" and GCRYPT_SWITCH.exists():
                rows.append(gcrypt_evidence())
            found = f"{library} is mapped; a mode that the program itself forced is not visible"
            forced = any(each.source.endswith(variable) for each in switches)
            rows.append(
                Evidence(source=where, found=found, points="context" if forced else "unseen")
            )
    if any(name.startswith("libfreebl") for name in mapped):
        found = "NSS's freebl is mapped; its self-tests leave no trace"
        rows.append(Evidence(source=where, found=found, points="unseen"))
    return rows
