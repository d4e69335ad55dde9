"""The kernel's own crypto self-tests: what /proc/crypto and the kernel's log tell of them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROC_CRYPTO: Final = Path("/proc/crypto")
FIPS_ENABLED: Final = Path("/proc/sys/crypto/fips_enabled")
_STAMP = re.compile(r"^(?:<\d+>)?\[\s*(\d+)\.(\d{6})\]\s+(.*)$")
# crypto/testmgr.c: "DRIVER (ALGORITHM) passed", in FIPS mode only; "ALGORITHM using DRIVER failed".
_PASSED = re.compile(r"alg: self-tests for (\S+) \((.+)\) passed")
_FAILED = re.compile(r"alg: self-tests for (\S+) using (\S+) failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm that is registered with the kernel.

    Attributes:
        driver: Its implementation, such as `sha256-avx2`.
        selftest: `passed` or `unknown`, as /proc/crypto prints it.
        fips: Whether FIPS mode allows it; None where the kernel does not say.
    """

    name: str
    driver: str
    selftest: str
    fips: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTest:
    """One line of the kernel's log about a self-test.

    Attributes:
        time_ns: The line's time stamp; None where the log has none.
        result: `passed` or `failed`.
    """

    driver: str
    algorithm: str
    result: str
    time_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTests:
    """What a kernel tells of its crypto self-tests.

    Attributes:
        fips_enabled: Its FIPS switch; None where it has none.
        selftests: Algorithms by the state of their self-test.
        logged: Tests that the log tells of: printed in FIPS mode, or where one failed.
    """

    fips_enabled: bool | None
    algorithms: int
    selftests: dict[str, int]
    logged: tuple[KernelTest, ...]


def read_proc_crypto(text: str) -> list[Algorithm]:
    """Return the algorithms of /proc/crypto; a block without a driver is none of them."""
    found = []
    for block in re.split(r"\n\s*\n", text):
        pairs = (line.partition(":") for line in block.splitlines())
        fields = {name.strip(): value.strip() for name, sign, value in pairs if sign}
        if {"name", "driver", "selftest"} <= fields.keys():
            fips = fields.get("fips")
            found.append(
                Algorithm(
                    name=fields["name"],
                    driver=fields["driver"],
                    selftest=fields["selftest"],
                    fips=None if fips is None else fips == "yes",
                )
            )
    return found


def read_kernel_log(text: str) -> Iterator[KernelTest]:
    """Yield the self-tests of a kernel's log, with or without time stamps (crypto/testmgr.c)."""
    for line in text.splitlines():
        stamp = _STAMP.match(line)
        time_ns = int(stamp[1]) * 1_000_000_000 + int(stamp[2]) * 1000 if stamp else None
        if passed := _PASSED.search(line):
            driver, algorithm, result = passed[1], passed[2], "passed"
        elif failed := _FAILED.search(line):
            driver, algorithm, result = failed[2], failed[1], "failed"
        else:
            continue
        yield KernelTest(driver=driver, algorithm=algorithm, result=result, time_ns=time_ns)


def kernel_tests(*, crypto: str, log: str, fips: str | None) -> KernelTests:
    """Return what a kernel tells, from the texts of its files."""
    algorithms = read_proc_crypto(crypto)
    return KernelTests(
        fips_enabled=None if fips is None else fips.strip() == "1",
        algorithms=len(algorithms),
        selftests=dict(Counter(each.selftest for each in algorithms)),
        logged=tuple(read_kernel_log(log)),
    )


def host_kernel_tests() -> KernelTests | None:
    """Return what this kernel tells, or None where it has no /proc/crypto."""
    try:
        crypto = PROC_CRYPTO.read_text(errors="replace")
    except OSError:
        return None
    try:
        fips = FIPS_ENABLED.read_text()
    except OSError:
        fips = None
    return kernel_tests(crypto=crypto, log=_host_log(), fips=fips)


def _host_log() -> str:
    """Return the kernel's log as far as this user may read it."""
    import subprocess

    try:
        done = subprocess.run(["dmesg"], capture_output=True, text=True, check=False, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
