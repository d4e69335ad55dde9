"""A preset with further rules from a file: what a larger policy costs.

`apparmor:FILE` has the lines of FILE inside the workload's profile, `tomoyo-…:FILE` first in its
domain, `selinux-…:FILE` as a CIL module beside the reference policy's, `landlock:FILE` as rules of
the probe's ruleset; `landlock:N` has N rules, each for a folder of its own. The file is read once;
the guest has a copy, whose digest it reports. TOMOYO, which passes over what it does not
understand, must also print every line as it was written, and Landlock take as many rules.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from excise.errors import HostError, UsageError
from excise.files import read_whole
from excise.lab import policies
from excise.lab.effects import Expectation

SEPARATOR: Final = ":"
_LIMIT_BYTES: Final = 16 << 20
_IN_GUEST: Final = "lab/rules"
_FACT: Final = "rules"
_NOT_TAKEN: Final = "rules_not_taken"
_TAKEN: Final = "landlock_rules"
_TOMOYO_PROOF: Final = f"""\
cat /sys/kernel/security/tomoyo/domain_policy >/run/domain_policy
n=$(grep -v -x -F -f /run/domain_policy /{_IN_GUEST} | head -n 1)
fact {_NOT_TAKEN} echo "${{n:-none}}"
"""

_MOST_LANDLOCK_RULES: Final = 100_000
_LANDLOCK_LINE: Final = re.compile(rb"[rwx]{1,3} /[^\0]*")
# What a rule names must be there: folders that the guest lacks are made.
_LANDLOCK_FOLDERS: Final = f"""\
while read -r _ path; do [ -e "$path" ] || printf '%s\\0' "$path"; done </{_IN_GUEST} |
    xargs -0 -r mkdir -p || refuse "a folder of a Landlock rule could not be made"
"""
_LANDLOCK_OPTIONS: Final = ("--landlock-rules", f"/{_IN_GUEST}")
_LANDLOCK_PROOF: Final = (
    f"fact {_TAKEN} excise-probe run --workload null --operations 2000 --batches 1 "
    f"--directory /excise/tmpfs {' '.join(_LANDLOCK_OPTIONS)}\n"
)

Files = Callable[[], Mapping[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a file of rules changes in a preset.

    Attributes:
        files: All files of the initramfs that its set-up loads, by path.
        mounted: Further shell fragment before the measurement.
        proof: Further shell fragment after the measurement.
        probe_options: Further options of the probe.
        expectations: What the guest's facts must say of them.
        sha256: Digest of the file.
    """

    files: Mapping[str, bytes]
    proof: str
    expectations: tuple[Expectation, ...]
    sha256: str
    mounted: str = ""
    probe_options: tuple[str, ...] = ()


def read_rules(path: str, *, preset: str, files: Files) -> Rules:
    """Return what the rules of a file change in a preset; they are compiled, which may take long.

    Args:
        path: The file; of Landlock also a number of rules.
        preset: Name of the preset.
        files: Makes the preset's files without them.

    Raises:
        UsageError: If the preset takes no rules, or the file cannot be read or is empty.
        HostError: If the rules do not compile, or the compiler cannot be fetched.
    """
    place, _, _ = preset.partition("-")
    if place not in (*_PLACES, "landlock"):
        raise UsageError(
            f"the preset {preset} takes no file of rules",
            hint="apparmor, landlock, tomoyo-learning, tomoyo-enforcing, selinux-permissive and "
            "selinux-enforcing do",
        )
    if not path:
        raise UsageError(f"no file is named after {preset}{SEPARATOR}", hint=f"{preset}:FILE")
    if place == "landlock":
        return _landlock_rules(path, files=files)
    rules = _read(path)
    try:
        made = _PLACES[place](files, rules)
    except HostError as error:
        error.source = error.source or path
        raise
    digest = hashlib.sha256(rules).hexdigest()
    proof = f"fact {_FACT} sha256sum /{_IN_GUEST}\n"
    expectations = [Expectation(fact=_FACT, rule="contains", expected=digest)]
    if place == "tomoyo":
        proof += _TOMOYO_PROOF
        expectations.append(Expectation(fact=_NOT_TAKEN, rule="equals", expected="none"))
    return Rules(
        files={**made, _IN_GUEST: rules},
        proof=proof,
        expectations=tuple(expectations),
        sha256=digest,
    )


def _read(path: str) -> bytes:
    try:
        rules = read_whole(Path(path), limit_bytes=_LIMIT_BYTES)
    except OSError as error:
        raise UsageError(f"cannot be read ({error.strerror})", source=path) from error
    if not rules.strip():
        raise UsageError("has no rule", source=path)
    return rules


def _landlock_rules(path: str, *, files: Files) -> Rules:
    """Return the rules of a file, or so many rules, each for a folder of its own."""
    rules = _numbered(int(path)) if path.isdecimal() else _read(path)
    seen: dict[bytes, int] = {}
    for number, line in enumerate(rules.split(b"\n"), start=1):
        if not line.strip():
            continue
        if not _LANDLOCK_LINE.fullmatch(line):
            raise UsageError(
                f"line {number} is no Landlock rule",
                source=path,
                hint="Rights (some of r, w, x), a space, an absolute path: rx /usr",
            )
        _, _, place = line.partition(b" ")
        if place in seen:
            raise UsageError(
                f"line {number} is of the same path as line {seen[place]}",
                source=path,
                hint="The kernel makes one rule of both: put their rights into one line",
            )
        seen[place] = number
    digest = hashlib.sha256(rules).hexdigest()
    taken = rf'"landlock_rules":{len(seen)}[,}}]'
    return Rules(
        files={**files(), _IN_GUEST: rules},
        mounted=_LANDLOCK_FOLDERS,
        proof=f"fact {_FACT} sha256sum /{_IN_GUEST}\n{_LANDLOCK_PROOF}",
        probe_options=_LANDLOCK_OPTIONS,
        expectations=(
            Expectation(fact=_FACT, rule="contains", expected=digest),
            Expectation(fact=_TAKEN, rule="matches", expected=taken),
        ),
        sha256=digest,
    )


def _numbered(number: int) -> bytes:
    if not 1 <= number <= _MOST_LANDLOCK_RULES:
        raise UsageError(
            f"landlock{SEPARATOR}{number}: from 1 to {_MOST_LANDLOCK_RULES:,} rules",
            hint="A file of that name is ./NAME",
        )
    return b"".join(b"r /run/landlock/%06d\n" % each for each in range(number))


def _apparmor(files: Files, rules: bytes) -> Mapping[str, bytes]:
    return {**files(), "lab/apparmor-profile": policies.apparmor_profile(rules=rules)}


def _tomoyo(files: Files, rules: bytes) -> Mapping[str, bytes]:
    name = "lab/tomoyo/domain_policy"
    found = files()
    head, use, tail = found[name].rpartition(b"use_group 0\n")
    return {**found, name: head + use + rules.rstrip(b"\n") + b"\n" + tail}


def _selinux(_files: Files, rules: bytes) -> Mapping[str, bytes]:
    return {"lab/selinux-policy": policies.selinux_policy(module=rules)}


_PLACES: Final[Mapping[str, Callable[[Files, bytes], Mapping[str, bytes]]]] = {
    "apparmor": _apparmor,
    "tomoyo": _tomoyo,
    "selinux": _selinux,
}
