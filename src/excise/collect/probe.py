"""The static native program that launches and measures: where it is, and what it says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import msgspec

from excise.errors import HostError, UsageError

PROBE = Path(__file__).resolve().parent.parent / "_bin" / "excise-probe"


def probe_path() -> str:
    """Return the path of the native program.

    Raises:
        HostError: If this installation lacks it.
    """
    if not PROBE.is_file():
        raise HostError(
            "the native probe is missing from this installation",
            source=PROBE.name,
            hint="Build it with `make build`",
        )
    return str(PROBE)


class ProbeClock(msgspec.Struct, frozen=True, kw_only=True):
    """A clock as the probe measured it: smallest step, its own reading included."""

    name: str
    measured_resolution_ns: float


class CounterAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to open a hardware counter, with the error's name if it failed."""

    event: str
    scope: str
    works: bool
    errno: str | None = None


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """Which hardware counters the kernel gives, and in which scope."""

    instructions_scope: str | None = None
    cycles_scope: str | None = None
    attempts: list[CounterAttempt] = []


class ProbeInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What `excise-probe info` says of this kernel."""

    kernel_release: str
    landlock_abi: int
    seccomp_filter: bool
    clocks: list[ProbeClock]
    counters: Counters


def probe_info() -> ProbeInfo:
    """Return what the probe finds on this kernel; see `ask_probe` for errors."""
    return msgspec.convert(ask_probe("info"), type=ProbeInfo)


def ask_probe(*words: str) -> Any:
    """Return the JSON value that the probe prints for these arguments.

    Raises:
        HostError: If the kernel lacks what was asked for; the probe's own words are the reason.
        UsageError: If the probe does not know the arguments.
    """
    done = subprocess.run([probe_path(), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().removeprefix("excise-probe: ") or f"exit {done.returncode}"
        kind = UsageError if done.returncode == 2 else HostError
        raise kind(reason, source=f"excise-probe {words[0]}")
    try:
        return msgspec.json.decode(done.stdout)
    except msgspec.DecodeError as error:
        raise HostError(
            f"printed no JSON: {error}",
            source=f"excise-probe {words[0]}",
            hint="Rebuild it with `make build`",
        ) from error
