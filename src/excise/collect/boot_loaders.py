"""Which configuration a machine boots next, through its own boot loader, and back again.

GRUB: a script of our own in `/etc/grub.d` has GRUB's own `10_linux` write the entry of the running
kernel once for each configuration, with its words added; `grub-reboot` chooses one of them for the
next boot alone. So a boot that fails falls back to the entry the machine always had. systemd-boot
is in `systemd_boot`. Nothing that was there is changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from excise.errors import HostError

if TYPE_CHECKING:
    from excise.collect.remote import Output

MARK: Final = "excise.configuration="
_GRUB_SCRIPT: Final = "/etc/grub.d/42_excise"
_GRUB_CFG: Final = "/boot/grub/grub.cfg"
_GRUB_ENVIRONMENT: Final = "/boot/grub/grubenv"
_KEPT: Final = "/var/lib/excise/boot"
# Variable in which the loader that was used tells its name (systemd.io/BOOT_LOADER_INTERFACE).
_LOADER_INFO: Final = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
# A block device below these is one that GRUB cannot write its environment to: the choice for one
# boot would stay for all.
_NOT_WRITABLE: Final = ("btrfs", "zfs", "f2fs", "squash4", "iso9660")
# Of all entries that GRUB's own script writes: that of the kernel that runs now, by another name.
_WORDS: Final = "excise.words"
_NAME: Final = "excise-entry"
_TAKE_RUNNING: Final = """\
/^menuentry / {
    inside = 1; mine = 0; recovery = /recovery/
    text = "menuentry \\"" name "\\" --id " name " {\\n"
    next
}
inside { text = text $0 "\\n" }
inside && $1 == "linux" && substr($2, length($2) - length(release)) == "-" release { mine = 1 }
inside && /^}/ {
    inside = 0
    if (mine && !recovery && !done) { printf "%s", text; done = 1 }
}
"""
_GRUB_HEAD: Final = """\
#!/bin/sh
# Written by excise for a campaign with reboots; `excise campaign undo` removes it.
set -e
GRUB_DISABLE_SUBMENU=true
GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {words}"
export GRUB_DISABLE_SUBMENU GRUB_CMDLINE_LINUX
entry=$(/etc/grub.d/10_linux 2>/dev/null |
    awk -v name={name} -v release="$(uname -r)" {take})
test -n "$entry"
"""


# GRUB writes to its environment itself, past the kernel, so that IMA's label of it is wrong after a
# choice; where IMA enforces, it cannot be read then, but made anew of what was kept. grub-editenv
# would make it anew without that.
_RENEW: Final = f"""\
cat {_GRUB_ENVIRONMENT} >/dev/null 2>&1 || {{
    grub-editenv - create
    while read -r each; do grub-editenv - set "$each"; done <{_KEPT}/grubenv
}}
"""


class Shell(Protocol):
    """Something that runs a script on the machine: over ssh, or here."""

    name: str

    def run(self, script: str, *, stdin: bytes = b"", timeout_s: float = 60.0) -> Output:
        """Run it and wait for its end."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BootEntry:
    """A configuration to boot.

    Attributes:
        number: Its number, which its entry is called by and `/proc/cmdline` tells.
        words: Words added to the kernel's command line.
    """

    number: int
    words: tuple[str, ...]

    @property
    def mark(self) -> str:
        """Return the word by which the running kernel says that it is this one."""
        return f"{MARK}{self.number}"


class BootLoader(Protocol):
    """A boot loader that can be told what to boot once."""

    name: str

    def require(self) -> None:
        """Refuse a machine whose boot loader cannot be told; nothing is changed on it."""
        ...

    def install(self, entries: Sequence[BootEntry]) -> None:
        """Add the entries. Doing it twice does no harm."""
        ...

    def choose(self, entry: BootEntry) -> None:
        """Have the next boot, and no other, use an entry."""
        ...

    def undo(self) -> None:
        """Remove what was added, and check that all is as it was."""
        ...


def boot_loader(shell: Shell) -> BootLoader:
    """Return the boot loader that the machine has.

    Raises:
        HostError: If it has none that is known, or one that cannot be told what to boot once.
    """
    from excise.collect.systemd_boot import SystemdBoot

    script = (
        f"tr -d '\\0' <{_LOADER_INFO} 2>/dev/null | grep -q systemd-boot && "
        "bootctl is-installed >/dev/null 2>&1 && echo systemd-boot && exit; "
        "command -v update-grub >/dev/null && command -v grub-reboot >/dev/null && "
        f"test -e {_GRUB_CFG} && echo grub && exit; "
        "bootctl is-installed >/dev/null 2>&1 && echo systemd-boot"
    )
    found = _root(shell).run(script).text.split()
    if "grub" in found:
        return Grub(_root(shell))
    if "systemd-boot" in found:
        return SystemdBoot(_root(shell))
    raise HostError(
        "has neither GRUB with update-grub and grub-reboot nor systemd-boot",
        source=shell.name,
        hint="A campaign with reboots tells the boot loader what to boot by its own tool",
    )


def require_boot_loader(shell: Shell) -> None:
    """Refuse a machine that cannot be told what to boot once; nothing is changed on it.

    Where a configuration of ours is up, the machine was asked before, in what it always boots.

    Raises:
        HostError: If it has no boot loader that is known, or one that cannot be told so.
    """
    loader = boot_loader(shell)
    if MARK not in shell.run("cat /proc/cmdline").text:
        loader.require()


def _root(shell: Shell) -> Shell:
    if shell.run("id -u").text.strip() != "0":
        raise HostError(
            "changing what is booted needs root", source=shell.name, hint='user = "root"'
        )
    return shell


class Grub:
    """GRUB as Debian, Ubuntu and their kin set it up."""

    name = "grub"

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def require(self) -> None:
        """Refuse a GRUB that could not forget what it is told to boot once.

        Raises:
            HostError: If it cannot write to the folder that it is in.
        """
        asked = self._shell.run(
            "grub-probe --target=fs /boot/grub; grub-probe --target=abstraction /boot/grub",
            timeout_s=120.0,
        )
        words = asked.text.split()
        wrong = [word for word in words if word in _NOT_WRITABLE] + words[1:]
        if not words or wrong:
            raise HostError(
                f"GRUB cannot write to the folder it is in ({' '.join(wrong) or asked.reason}), so "
                "it could not forget what it was told to boot once",
                source=self._shell.name,
                hint="Put /boot on a plain ext4, xfs or FAT partition",
            )

    def install(self, entries: Sequence[BootEntry]) -> None:
        """Add an entry for each configuration; what was there is kept first.

        Raises:
            HostError: If GRUB cannot forget a choice, or update-grub fails.
        """
        self.require()
        keep = (
            f"umask 077; mkdir -p {_KEPT} && cd {_KEPT} && "
            f"{{ test -e grub.cfg || {{ cp -p {_GRUB_CFG} grub.cfg.new && "
            "grub-editenv - list >grubenv.new && mv grubenv.new grubenv && sync && "
            "mv grub.cfg.new grub.cfg; }; }"
        )
        require_done(self._shell, keep, what="keeping the boot configuration")
        script = _grub_script(entries).encode()
        write = f"cat >{_GRUB_SCRIPT}.new && chmod 755 {_GRUB_SCRIPT}.new && "
        write += f"mv {_GRUB_SCRIPT}.new {_GRUB_SCRIPT} && update-grub && sync"
        require_done(self._shell, write, what="update-grub", stdin=script, timeout_s=600.0)
        for entry in entries:
            require_done(
                self._shell,
                f"grep -q {shlex.quote(_entry_id(entry))} {_GRUB_CFG}",
                what=f"finding the entry {_entry_id(entry)} in {_GRUB_CFG}",
            )

    def choose(self, entry: BootEntry) -> None:
        """Have the next boot, and no other, use an entry."""
        words = f"{_RENEW}grub-reboot {shlex.quote(_entry_id(entry))} && sync"
        require_done(self._shell, words, what="grub-reboot", timeout_s=120.0)

    def undo(self) -> None:
        """Remove the script, its entries and a choice not yet used; check that all is as it was.

        Raises:
            HostError: If grub.cfg or its environment is not what it was.
        """
        script = f"""\
rm -f {_GRUB_SCRIPT} {_GRUB_SCRIPT}.new
test -e {_KEPT}/grub.cfg || exit 0
{_RENEW}grub-editenv - unset next_entry
update-grub || exit 1
cmp -s {_KEPT}/grub.cfg {_GRUB_CFG} || {{
    # What it writes is in the language of whoever runs it.
    lang=$(sed -n 's/^ *set lang=//p' {_KEPT}/grub.cfg | head -n 1)
    unset LC_ALL LC_MESSAGES LANGUAGE LANG
    if test -n "$lang"; then LANG="$lang.UTF-8"; export LANG; fi
    update-grub || exit 1
}}
cmp {_KEPT}/grub.cfg {_GRUB_CFG} || {{
    echo "{_GRUB_CFG} is not what it was; the old one is {_KEPT}/grub.cfg" >&2; exit 1; }}
grub-editenv - list | cmp {_KEPT}/grubenv - || {{
    echo "GRUB's environment is not what it was; the old one is {_KEPT}/grubenv" >&2; exit 1; }}
rm -rf {_KEPT}; rmdir {_KEPT.rpartition("/")[0]} 2>/dev/null; sync
"""
        require_done(self._shell, script, what="restoring the boot configuration", timeout_s=600.0)


def _entry_id(entry: BootEntry) -> str:
    return f"excise-{entry.number}"


def _quoted_for_grub(word: str) -> str:
    """Return a word as GRUB's script language takes it."""
    plain = all(letter.isalnum() or letter in "_-.,=:/@+%" for letter in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"


def _grub_script(entries: Sequence[BootEntry]) -> str:
    """Return the script that update-grub runs: GRUB's own entry once for each configuration."""
    lines = [_GRUB_HEAD.format(take=shlex.quote(_TAKE_RUNNING), words=_WORDS, name=_NAME)]
    for entry in entries:
        words = " ".join(_quoted_for_grub(word) for word in (*entry.words, entry.mark))
        edits = f"s,{_WORDS},{_for_sed(words)},; s,{_NAME},{_entry_id(entry)},g"
        lines.append(f"printf '%s\\n' \"$entry\" | sed {shlex.quote(edits)}\n")
    return "".join(lines)


def _for_sed(text: str) -> str:
    """Return a text as the replacement of `s,,,`."""
    return re.sub(r"([\\&,])", r"\\\1", text)


def require_done(
    shell: Shell, script: str, *, what: str, stdin: bytes = b"", timeout_s: float = 60.0
) -> Output:
    """Run a script that must succeed; `what` is what was to be done.

    Raises:
        HostError: If its exit code is not 0.
    """
    done = shell.run(script, stdin=stdin, timeout_s=timeout_s)
    if done.exit_code != 0:
        raise HostError(f"{what} failed: {done.reason}", source=shell.name)
    return done
