"""Facts of a machine reached by ssh: those of `excise.collect.host`, asked with a shell script."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from excise.capture.manifest import Fact
from excise.collect.host import (
    DEVICE_TREE_MODEL,
    MECHANISM_LIBRARIES,
    PATH_OF_NONE,
    board_fact,
    cpu_model,
)
from excise.collect.remote import RemoteMachine
from excise.errors import HostError

_MARK: Final = "@excise-fact "
_SECURITYFS: Final = "/sys/kernel/security"
_CPU: Final = "/sys/devices/system/cpu"
# Name, what prints it, whether captures that differ in it may be compared, whether it is private.
_ASKED: Final[tuple[tuple[str, str, bool, bool], ...]] = (
    ("kernel.release", "uname -r", True, False),
    ("kernel.version", "uname -v", False, False),
    ("machine", "uname -m", True, False),
    ("kernel.cmdline", "cat /proc/cmdline", True, True),
    ("host.name", "uname -n", False, True),
    ("boot.id", "cat /proc/sys/kernel/random/boot_id", False, True),
    ("virtualisation", "systemd-detect-virt", True, False),
    ("cpu.governor", f"cat {_CPU}/cpu0/cpufreq/scaling_governor", True, False),
    ("cpu.smt", f"cat {_CPU}/smt/control", True, False),
    (
        "clocksource",
        "cat /sys/devices/system/clocksource/clocksource0/current_clocksource",
        True,
        False,
    ),
    ("security.lsm", f"cat {_SECURITYFS}/lsm", True, False),
    ("ima.measurements", f"cat {_SECURITYFS}/ima/runtime_measurements_count", False, False),
    ("libc", "getconf GNU_LIBC_VERSION", True, False),
)
_PARTS: Final = {
    "cpuinfo": "grep -E '^(model name|Processor|uarch|cpu model|CPU .*|)\\s*(:|$)' /proc/cpuinfo",
    "board": f"tr -d '\\0' < {DEVICE_TREE_MODEL}",
    "processors": "grep -c '^processor' /proc/cpuinfo",
    "load": "cat /proc/loadavg",
    "memory": "grep MemTotal /proc/meminfo",
    "fips": "cat /proc/sys/crypto/fips_enabled",
    "ima": f"test -d {_SECURITYFS}/ima && echo yes",
    "tpm": "test -e /sys/class/tpm/tpm0 && echo yes",
    "os": "grep '^PRETTY_NAME' /etc/os-release",
    "vulnerabilities": f"cd {_CPU}/vulnerabilities && grep -r . .",
    "mounts": "cat /proc/self/mounts",
}

# As the launcher looks for programs: along the child's PATH; what only the shell has built in does
# not count.
_FIND: Final = """\
find_program() {
    case $1 in */*) [ -f "$1" ] && [ -x "$1" ] && echo "$1"; return;; esac
    IFS=:
    for folder in $looked_in; do
        if [ -f "$folder/$1" ] && [ -x "$folder/$1" ]; then
            echo "$folder/$1"
            unset IFS
            return
        fi
    done
    unset IFS
    return 1
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePrograms:
    """Programs that one configuration needs there, and the environment it finds them by.

    Attributes:
        words: First words of its commands.
        environment: Variables added to that of a login.
        unset: Variables removed from it.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()

    @property
    def finder(self) -> str:
        """Return the script that defines `find_program` for a child of that environment.

        The script's own PATH stays: the commands that it needs may not be on the child's.
        """
        where = '"$PATH"'
        if "PATH" in self.environment:
            where = shlex.quote(self.environment["PATH"])
        elif "PATH" in self.unset:
            where = PATH_OF_NONE
        return f"looked_in={where}\n{_FIND}"

    @property
    def loader_environment(self) -> str:
        """Return the words that give a command the environment, but for where it is found."""
        kept = {name: value for name, value in self.environment.items() if name != "PATH"}
        words = [word for name in self.unset if name != "PATH" for word in ("-u", name)]
        return shlex.join(["env", *words, *(f"{name}={value}" for name, value in kept.items())])


def remote_facts(machine: RemoteMachine, *, work_directory: str) -> list[Fact]:
    """Return the facts of a machine and of its work folder.

    Args:
        machine: The machine, connected.
        work_directory: Folder whose file system is part of what is measured.
    """
    questions = {name: command for name, command, _, _ in _ASKED} | _PARTS
    questions["work"] = f"cd {shlex.quote(work_directory)} && pwd -P"
    answers = _answers(machine, questions)
    facts = [
        Fact(
            name=name,
            value=answers[name] or None,
            must_agree=must_agree,
            private=private,
            note="" if answers[name] else f"`{command}` gives nothing",
        )
        for name, command, must_agree, private in _ASKED
    ]
    return [*facts, *_composed(answers)]


def missing_programs(machine: RemoteMachine, programs: RemotePrograms) -> list[str]:
    """Return those words that are no command on the machine."""
    wanted = list(dict.fromkeys(programs.words))
    script = programs.finder + "".join(
        f"find_program {shlex.quote(word)} >/dev/null || echo {number}\n"
        for number, word in enumerate(wanted)
    )
    return [wanted[int(number)] for number in machine.run(script).text.split()]


def _answers(machine: RemoteMachine, questions: dict[str, str]) -> dict[str, str]:
    """Return what each command printed, all asked in one go."""
    script = "".join(
        f"echo {shlex.quote(_MARK + name)}; ( {command} ) 2>/dev/null; echo\n"
        for name, command in questions.items()
    )
    found = dict.fromkeys(questions, "")
    for part in machine.run(script).text.split(_MARK)[1:]:
        name, _, text = part.partition("\n")
        found[name] = text.strip()
    if not found["kernel.release"]:
        raise HostError(
            "has no POSIX shell that answers", source=machine.name, hint="Try `ssh HOST uname -r`"
        )
    return found


def _composed(answers: dict[str, str]) -> list[Fact]:
    count = answers["ima.measurements"]
    return [
        Fact(name="cpu.model", value=cpu_model(answers["cpuinfo"]), must_agree=True),
        *board_fact(answers["board"]),
        Fact(name="cpu.count", value=_number(answers["processors"]), unit="1", must_agree=True),
        Fact(
            name="cpu.mitigations",
            value=_mitigations(answers["vulnerabilities"]),
            must_agree=True,
        ),
        Fact(
            name="load.average_1min",
            value=float(answers["load"].split()[0]) if answers["load"] else None,
            unit="1",
        ),
        Fact(
            name="memory.size",
            value=_number(answers["memory"].split()[1], 1024) if answers["memory"] else None,
            unit="B",
        ),
        Fact(
            name="fips.enabled",
            value=answers["fips"] == "1" if answers["fips"] else None,
            must_agree=True,
            note="" if answers["fips"] else "the kernel has no FIPS switch",
        ),
        Fact(name="ima.present", value=answers["ima"] == "yes", must_agree=True),
        Fact(
            name="ima.policy_present",
            value=int(count) > 1 if count.isdecimal() else None if answers["ima"] else False,
            must_agree=True,
        ),
        Fact(name="tpm.present", value=answers["tpm"] == "yes", must_agree=True),
        Fact(name="system", value=answers["os"].partition("=")[2].strip('"') or None),
        Fact(
            name="work.file_system",
            value=_file_system(answers["mounts"], answers["work"]),
            must_agree=True,
        ),
    ]


def _number(text: str, factor: int = 1) -> int | None:
    return int(text) * factor if text.isdecimal() else None


def _mitigations(text: str) -> str | None:
    states = {}
    for line in text.splitlines():
        name, _, state = line.partition(":")
        states[name.removeprefix("./")] = state.split(";")[0]
    if not states:
        return None
    affected = [f"{n}: {state}" for n, state in sorted(states.items()) if state != "Not affected"]
    return ", ".join(affected) or "not affected by any known vulnerability"


def _file_system(mounts: str, folder: str) -> str | None:
    best, kind = "", None
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        inside = folder == point or folder.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def remote_program_facts(machine: RemoteMachine, programs: RemotePrograms) -> list[Fact]:
    """Return digests of programs and of the mechanism libraries they are linked with."""
    script = ""
    for word in dict.fromkeys(programs.words):
        script += (
            f'p=$(find_program {shlex.quote(word)}) && sha256sum "$(readlink -f "$p")"\n'
            f'{programs.loader_environment} ldd "$p" 2>/dev/null | '
            'sed -n "s/.*=> \\(\\/[^ ]*\\).*/\\1/p" | while read -r l; do '
            'sha256sum "$(readlink -f "$l")"; done\n'
        )
    facts: dict[str, Fact] = {}
    for line in machine.run(programs.finder + script).text.splitlines() if script else []:
        digest, _, path = line.partition(" ")
        name = path.strip(" *").rpartition("/")[2]
        library, dot, version = name.partition(".so")
        if dot and library not in MECHANISM_LIBRARIES:
            continue
        fact = f"library.{library}.version" if dot else f"program.{name}.sha256"
        value = f"{version.lstrip('.')}, {digest[:16]}" if dot else digest
        if re.fullmatch(r"[0-9a-f]{64}", digest):
            facts[fact] = Fact(name=fact, value=value, must_agree=True)
    return list(facts.values())
