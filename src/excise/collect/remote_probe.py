"""The probe for another machine: which file it is, and whether it runs there."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from excise.collect.probe import PROBE, ProbeInfo
from excise.collect.remote import Output, RemoteMachine
from excise.errors import HostError, UsageError

_PROJECT: Final = Path(__file__).resolve().parents[3]
_DO_IT_YOURSELF: Final = "See `Building it` in docs/probe.md"
# By what `uname -m` says: the machine in an ELF file's header, and what Rust calls it.
_ARCHITECTURES: Final = {
    "x86_64": (62, "x86_64-unknown-linux-gnu"),
    "aarch64": (183, "aarch64-unknown-linux-gnu"),
    "armv7l": (40, "armv7-unknown-linux-gnueabihf"),
    "armv8l": (40, "armv7-unknown-linux-gnueabihf"),
    "riscv64": (243, "riscv64gc-unknown-linux-gnu"),
}
_ELF_MACHINE: Final = slice(18, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignProbe:
    """A probe for another machine.

    Attributes:
        path: Its file here.
        data: Its bytes.
    """

    path: Path
    data: bytes


def probe_for(architecture: str, *, given: str | None = None) -> ForeignProbe:
    """Return the probe for a machine whose `uname -m` says so.

    Args:
        architecture: What `uname -m` says.
        given: File that the user named, in place of those that were built.

    Raises:
        HostError: If there is none; it names what to build.
        UsageError: If the file given is for other machines.
    """
    number, triple = _ARCHITECTURES.get(architecture, (None, None))
    places = (
        [Path(given).expanduser()]
        if given is not None
        else [
            PROBE,
            PROBE.with_name(f"{PROBE.name}.{architecture}"),
            _PROJECT / "target" / str(triple) / PROBE.name,
            _PROJECT / f"{PROBE.name}.{architecture}",
        ]
    )
    for path in places:
        if not path.is_file():
            continue
        data = path.read_bytes()
        if number is not None and _elf_machine(data) == number:
            return ForeignProbe(path=path, data=data)
        if given is not None:
            raise UsageError(
                f"is no program for {architecture}", source=str(path), hint=_DO_IT_YOURSELF
            )
    if given is not None:
        raise HostError("is not there", source=str(places[0]), hint=_DO_IT_YOURSELF)
    if triple is None:
        raise HostError(
            f"there is no probe for {architecture}",
            hint=f"Known: {', '.join(_ARCHITECTURES)}. Name one of your own: probe = ...",
        )
    raise HostError(
        f"the probe for {architecture} was not built",
        hint=f"tools/build-probe.sh --target {triple}; then name the file: probe = ... "
        f"{_DO_IT_YOURSELF}",
    )


def _elf_machine(data: bytes) -> int | None:
    if not data.startswith(b"\x7fELF"):
        return None
    return int.from_bytes(data[_ELF_MACHINE], "little")


def try_probe(machine: RemoteMachine, probe: ForeignProbe, *, parent: str) -> ProbeInfo:
    """Return what a probe says of the machine; it is copied there and removed at once.

    Args:
        machine: The machine, connected.
        probe: The probe.
        parent: Folder in which it lies for that moment.

    Raises:
        HostError: If it does not run there.
    """
    script = (
        "umask 077; d=$(mktemp -d "
        + shlex.quote(f"{parent}/excise-try-XXXXXX")
        + ") || exit 4; trap 'rm -rf \"$d\"' EXIT; "
        'cat >"$d/excise-probe" && chmod 700 "$d/excise-probe" && "$d/excise-probe" info'
    )
    done = machine.run(script, stdin=probe.data)
    if done.exit_code != 0:
        raise HostError(
            f"the probe does not run there: {done.reason}",
            source=machine.name,
            hint="work_directory must allow programs (not noexec), and the kernel be Linux 5.3 on",
        )
    return msgspec.convert(_json(done, machine, "info"), type=ProbeInfo)


def ask_remote_probe(machine: RemoteMachine, path: str, *words: str) -> Any:
    """Return the JSON value that the probe at a path there prints; see `ask_probe`.

    Raises:
        HostError: If the kernel there lacks what was asked for.
        UsageError: If the probe does not know the arguments.
    """
    done = machine.run(shlex.join([path, *words]), timeout_s=120.0)
    if done.exit_code:
        kind = UsageError if done.exit_code == 2 else HostError
        raise kind(
            done.reason.removeprefix("excise-probe: "),
            source=f"{machine.name}: excise-probe {words[0]}",
        )
    return _json(done, machine, words[0])


def _json(done: Output, machine: RemoteMachine, word: str) -> Any:
    try:
        return msgspec.json.decode(done.stdout)
    except msgspec.DecodeError as error:
        raise HostError(
            f"printed no JSON: {error}", source=f"{machine.name}: excise-probe {word}"
        ) from error
