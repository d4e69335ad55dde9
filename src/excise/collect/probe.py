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


def ask_probe(*words: str) -> dict[str, Any]:
    """Return the JSON object that the probe prints for these arguments.

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
        answer: dict[str, Any] = msgspec.json.decode(done.stdout)
    except msgspec.DecodeError as error:
        raise HostError(
            f"printed no JSON object: {error}",
            source=f"excise-probe {words[0]}",
            hint="Rebuild it with `make build`",
        ) from error
    return answer
