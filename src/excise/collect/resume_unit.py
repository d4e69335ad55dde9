"""The systemd unit that goes on with a campaign after each boot of this machine.

It starts when the machine is up, once a boot; it is never restarted, and a failure disables it, so
that nothing loops. It needs no network. The environment it gives is what its maker had of the
variables that programs are found by.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from excise.capture.store import write_durably
from excise.collect.boot_entries import Shell
from excise.errors import HostError

NAME: Final = "excise-campaign.service"
UNIT: Final = Path("/etc/systemd/system") / NAME
VARIABLE: Final = "EXCISE_UNIT"
"""Variable that tells a process that it is this unit's."""

_PATIENCE_S: Final = 300.0
_KEPT: Final = re.compile(
    r"PATH|HOME|LANG|LC_\w+|TMPDIR|TZ|LD_LIBRARY_PATH|PYTHON\w+|VIRTUAL_ENV|EXCISE_\w+"
)
_CAPTURE: Final = re.compile(r"^# capture: (.*)$", re.M)
_TEXT: Final = """\
# Written by excise for a campaign with reboots; `excise campaign undo` removes it.
# capture: {capture}
[Unit]
Description=Campaign with reboots in {description}
After=multi-user.target
RequiresMountsFor={mounts}
StartLimitIntervalSec=1h
StartLimitBurst=5

[Service]
Type=exec
WorkingDirectory={directory}
{environment}
ExecStart={command}
ExecStopPost=/bin/sh -c '[ "$$SERVICE_RESULT" = success ] || systemctl disable {name}'
SuccessExitStatus=130
KillMode=mixed
Restart=no

[Install]
WantedBy=multi-user.target
"""


def is_ours() -> bool:
    """Tell whether this process was started by the unit."""
    return os.environ.get(VARIABLE) == NAME


def require_systemd(shell: Shell) -> None:
    """Refuse a machine that systemd does not run.

    Raises:
        HostError: If it does not.
    """
    if shell.run("test -d /run/systemd/system && command -v systemctl").exit_code != 0:
        raise HostError(
            "systemd does not run here, which goes on with the campaign after a boot",
            source=shell.name,
            hint='Measure it from another machine: kind = "ssh"',
        )


def install(shell: Shell, *, capture: Path, words: Sequence[str], folders: Sequence[str]) -> None:
    """Have systemd run a command once after each boot, until it fails or is removed.

    Args:
        shell: Scripts here, as root.
        capture: Capture of the campaign.
        words: Words after the program's name.
        folders: Folders whose file systems it needs.

    Raises:
        HostError: If another campaign's unit is there, or systemd does not take it.
    """
    require_free(capture)
    text = unit_text(
        capture=capture,
        words=words,
        folders=folders,
        directory=str(Path.cwd()),
        environment=os.environ,
    )
    try:
        if is_ours() and UNIT.read_text() == text:
            return
    except OSError:
        pass
    try:
        write_durably(UNIT, text.encode())
    except OSError as error:
        raise HostError(f"cannot be written ({error.strerror})", source=str(UNIT)) from error
    done = shell.run(f"systemctl daemon-reload && systemctl reenable {NAME}")
    if done.exit_code != 0:
        raise HostError(f"systemctl enable failed: {done.reason}", source=NAME)


def require_free(capture: Path) -> None:
    """Refuse where the unit is that of a campaign in another capture.

    Raises:
        HostError: Naming it.
    """
    try:
        found = _CAPTURE.search(UNIT.read_text())
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError(f"cannot be read ({error.strerror})", source=str(UNIT)) from error
    other = found[1] if found else "an unknown capture"
    if other != str(capture.resolve()):
        raise HostError(
            f"a campaign with reboots is under way on this machine, in {other}",
            source=str(UNIT),
            hint="Let it end, or `excise campaign undo` it",
        )


def stop(shell: Shell) -> None:
    """Remove the unit, and end what it runs as an interrupt does."""
    if UNIT.exists():
        remove(shell)
        shell.run(f"systemctl stop {NAME}; systemctl reset-failed {NAME}", timeout_s=_PATIENCE_S)


def remove(shell: Shell) -> bool:
    """Remove the unit; return whether it was there. What it runs goes on to its end.

    Raises:
        HostError: If it cannot be removed.
    """
    if not UNIT.exists():
        return False
    done = shell.run(f"systemctl disable {NAME}; rm -f {UNIT} && sync && systemctl daemon-reload")
    if done.exit_code != 0:
        raise HostError(f"cannot be removed: {done.reason}", source=str(UNIT))
    return True


def state(shell: Shell) -> str:
    """Return what systemd says of the unit: `enabled, active`, `disabled, failed (exit-code)`."""
    if not UNIT.exists():
        return ""
    done = shell.run(
        f"systemctl is-enabled {NAME}; systemctl show -p ActiveState -p Result --value {NAME}"
    )
    enabled, *further = [*done.text.split(), "unknown"][:3]
    active = next((word for word in further if word in _ACTIVE), "unknown")
    result = next((word for word in further if word not in (*_ACTIVE, "success")), "")
    return f"{enabled}, {active}" + (f" ({result})" if result else "")


_ACTIVE: Final = ("active", "inactive", "failed", "activating", "deactivating", "reloading")


def unit_text(
    *,
    capture: Path,
    words: Sequence[str],
    folders: Sequence[str],
    directory: str,
    environment: Mapping[str, str],
) -> str:
    """Return the unit's file; see `install`."""
    kept = {name: value for name, value in environment.items() if _KEPT.fullmatch(name)}
    kept[VARIABLE] = NAME
    lines = [f"Environment={_quoted(f'{name}={value}')}" for name, value in sorted(kept.items())]
    command = [sys.executable, "-m", "excise", *words]
    return _TEXT.format(
        name=NAME,
        capture=capture.resolve(),
        description=str(capture.resolve()).replace("%", "%%"),
        mounts=" ".join(_quoted(folder) for folder in (str(capture.resolve()), *folders)),
        directory=directory.replace("%", "%%"),
        environment="\n".join(lines),
        command=" ".join(_quoted(word.replace("$", "$$")) for word in command),
    )


def _quoted(word: str) -> str:
    """Return a word as systemd takes it in a unit's file."""
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n")
    return f'"{text}"'
