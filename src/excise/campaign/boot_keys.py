"""Keys of a configuration that take a boot: words of the kernel's command line, by their names."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from excise.collect.boot_entries import MARK
from excise.errors import SpecError

# Linux 6.1 to 6.12, security/: those of which a kernel runs one at most.
_EXCLUSIVE: Final = frozenset({"apparmor", "selinux", "smack"})
# What a kernel lists unasked; `integrity` is added by us (see `words`).
_UNASKED: Final = ("capability", "lockdown", "integrity", "ima", "evm")
_POLICIES: Final = ("tcb", "appraise_tcb", "secure_boot", "critical_data", "fail_securely")
_OFF: Final = "off"
_NONE: Final = "none"


class BootKeys(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a configuration boots with; each key but `cmdline` is also proved in the boot.

    Attributes:
        cmdline: In the lab, and with reboots: words added to the kernel's command line.
        lsm: With reboots: security modules in order, such as `apparmor,landlock`, or `none`.
        fips: With reboots: whether the kernel's cryptography is in FIPS mode.
        ima_policy: With reboots: built-in policies, such as `tcb|appraise_tcb`, or `off`.
        ima_appraise: With reboots: what IMA does about a file whose label is wrong.
        relabel: With reboots: before each boot of this configuration, boot once with
            `ima_appraise=fix` and have the kernel label every file of root's, so that what other
            configurations wrote can be read.
    """

    cmdline: str = ""
    lsm: str | None = None
    fips: bool | None = None
    ima_policy: str | None = None
    ima_appraise: Literal["off", "log", "fix", "enforce"] | None = None
    relabel: bool = False

    @property
    def boot_words(self) -> tuple[str, ...]:
        """Return the words of the kernel's command line that all keys stand for."""
        return (*(f"{name}={value}" for name, value in self._parameters()), *self.cmdline.split())

    @property
    def modules_wanted(self) -> tuple[str, ...]:
        """Return the names in `lsm`; none where it is not given."""
        return () if self.lsm in (None, _NONE) else tuple(str(self.lsm).split(","))

    @property
    def measures(self) -> bool | None:
        """Tell whether the IMA list must grow; None where nothing is said of it."""
        if self.ima_policy is None:
            return None
        if self.ima_policy == _OFF:
            return False
        return "tcb" in self.ima_policy.split("|") or None

    def lsm_pattern(self) -> str:
        """Return a regular expression for /sys/kernel/security/lsm: those wanted and no other."""
        wanted = self.modules_wanted
        needed = "".join(rf"(?=.*\b{name}\b)" for name in wanted)
        allowed = "|".join(dict.fromkeys((*wanted, *_UNASKED)))
        return rf"^{needed}(?:(?:{allowed})(?:,|$))+$"

    def _parameters(self) -> Iterator[tuple[str, str]]:
        if self.lsm is not None:
            # On 6.1 `integrity` is the LSM that IMA keeps its records in; a kernel without it
            # ignores the name.
            others = (name for name in self.modules_wanted if name != "integrity")
            yield "lsm", ",".join(("integrity", *others))
        if self.fips is not None:
            yield "fips", str(int(self.fips))
        if self.ima_policy not in (None, _OFF):
            yield "ima_policy", str(self.ima_policy)
        if self.ima_appraise is not None:
            yield "ima_appraise", self.ima_appraise

    @property
    def keys_given(self) -> list[str]:
        """Return the names of the keys here that are given."""
        empty = BootKeys()
        names = BootKeys.__struct_fields__
        return [name for name in names if getattr(self, name) != getattr(empty, name)]


def check_boot_keys(keys: BootKeys, *, loads_policy: bool, source: str, key: str) -> None:
    """Refuse what no kernel can boot as it says.

    Args:
        keys: The keys of a configuration.
        loads_policy: Whether the configuration has a set-up, which may load a policy.
        source: File, for the error.
        key: Where the configuration is in it.

    Raises:
        SpecError: If a value is none, or keys contradict each other.
    """
    _check_lsm(keys, source, key)
    _check_ima(keys, source, key, loads_policy=loads_policy)
    given = {word.partition("=")[0] for word in keys.cmdline.split()}
    if (mark := MARK.removesuffix("=")) in given:
        raise SpecError(
            f"`{mark}` is the word by which a boot of a configuration is told",
            source=source,
            key=f"{key}.cmdline",
        )
    for name, _ in keys._parameters():
        if name in given:
            raise SpecError(
                f"`{name}` is given here and as a key of its own",
                source=source,
                key=f"{key}.cmdline",
            )
    if keys.ima_policy == _OFF and "ima_policy" in given:
        raise SpecError("`ima_policy` is off", source=source, key=f"{key}.cmdline")


def _check_lsm(keys: BootKeys, source: str, key: str) -> None:
    names = keys.modules_wanted
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or names.count(name) > 1 or name == _NONE:
            raise SpecError(
                f"{name!r} is not the name of one security module, given once",
                source=source,
                key=f"{key}.lsm",
                hint='Such as lsm = "apparmor,landlock"; `none` for no module beyond the usual',
            )
    if len(both := sorted(_EXCLUSIVE.intersection(names))) > 1:
        raise SpecError(
            f"a kernel runs one of {' and '.join(both)}, not both", source=source, key=f"{key}.lsm"
        )
    words = keys.cmdline.split()
    if keys.lsm is not None and any(word.startswith("security=") for word in words):
        raise SpecError("`security=` contradicts lsm", source=source, key=f"{key}.cmdline")
    for name in ("apparmor", "selinux"):
        said, wanted = {f"{name}=0", f"{name}=1"}.intersection(words), name in names
        if keys.lsm is not None and said and (f"{name}=1" in said) != wanted:
            raise SpecError(
                f"`{' '.join(sorted(said))}` contradicts lsm", source=source, key=f"{key}.cmdline"
            )


def _check_ima(keys: BootKeys, source: str, key: str, *, loads_policy: bool) -> None:
    policies = [] if keys.ima_policy in (None, _OFF) else str(keys.ima_policy).split("|")
    if unknown := [each for each in policies if each not in _POLICIES]:
        raise SpecError(
            f"{unknown[0]!r} is not a policy that kernels have built in",
            source=source,
            key=f"{key}.ima_policy",
            hint=f"Known: off, or {', '.join(_POLICIES)}, joined by |",
        )
    appraises = keys.ima_appraise not in (None, "off")
    if appraises and "appraise_tcb" not in policies and not loads_policy:
        raise SpecError(
            "no rule says what to appraise, so nothing would be",
            source=source,
            key=f"{key}.ima_appraise",
            hint='ima_policy = "tcb|appraise_tcb", or load a policy in setup',
        )
    if keys.relabel and keys.ima_appraise != "enforce":
        raise SpecError(
            'belongs to ima_appraise = "enforce": nothing else needs labels that are right',
            source=source,
            key=f"{key}.relabel",
        )
