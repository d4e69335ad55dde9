"""GRUB: which configuration a machine boots next, and back again.

A script of our own in `/etc/grub.d` has GRUB's own `10_linux` write the entry of the running kernel
once for each configuration, with its words added; `grub-reboot` chooses one of them for the next
boot alone. So a boot that fails falls back to the entry the machine always had. Nothing that was
there is changed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final

from excise.collect.boot_entries import KEPT, BootEntry, Shell, require_done
from excise.errors import HostError

_GRUB_SCRIPT: Final = "/etc/grub.d/42_excise"
GRUB_CFG: Final = "/boot/grub/grub.cfg"
_GRUB_ENVIRONMENT: Final = "/boot/grub/grubenv"
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
    while read -r each; do grub-editenv - set "$each"; done <{KEPT}/grubenv
}}
"""


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
            f"umask 077; mkdir -p {KEPT} && cd {KEPT} && "
            f"{{ test -e grub.cfg || {{ cp -p {GRUB_CFG} grub.cfg.new && "
            "grub-editenv - list >grubenv.new && mv grubenv.new grubenv && sync && "
            "mv grub.cfg.new grub.cfg; }; }"
        )
        require_done(self._shell, keep, what="keeping the boot configuration")
        script = grub_script(entries).encode()
        write = f"cat >{_GRUB_SCRIPT}.new && chmod 755 {_GRUB_SCRIPT}.new && "
        write += f"mv {_GRUB_SCRIPT}.new {_GRUB_SCRIPT} && update-grub && sync"
        require_done(self._shell, write, what="update-grub", stdin=script, timeout_s=600.0)
        for entry in entries:
            require_done(
                self._shell,
                f"grep -q {shlex.quote(_entry_id(entry))} {GRUB_CFG}",
                what=f"finding the entry {_entry_id(entry)} in {GRUB_CFG}",
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
test -e {KEPT}/grub.cfg || exit 0
{_RENEW}grub-editenv - unset next_entry
update-grub || exit 1
cmp -s {KEPT}/grub.cfg {GRUB_CFG} || {{
    # What it writes is in the language of whoever runs it.
    lang=$(sed -n 's/^ *set lang=//p' {KEPT}/grub.cfg | head -n 1)
    unset LC_ALL LC_MESSAGES LANGUAGE LANG
    if test -n "$lang"; then LANG="$lang.UTF-8"; export LANG; fi
    update-grub || exit 1
}}
cmp {KEPT}/grub.cfg {GRUB_CFG} || {{
    echo "{GRUB_CFG} is not what it was; the old one is {KEPT}/grub.cfg" >&2; exit 1; }}
grub-editenv - list | cmp {KEPT}/grubenv - || {{
    echo "GRUB's environment is not what it was; the old one is {KEPT}/grubenv" >&2; exit 1; }}
rm -rf {KEPT}; rmdir {KEPT.rpartition("/")[0]} 2>/dev/null; sync
"""
        require_done(self._shell, script, what="restoring the boot configuration", timeout_s=600.0)


def _entry_id(entry: BootEntry) -> str:
    return f"excise-{entry.number}"


def _quoted_for_grub(word: str) -> str:
    """Return a word as GRUB's script language takes it."""
    plain = all(letter.isalnum() or letter in "_-.,=:/@+%" for letter in word)
    return word if plain else "'" + word.replace("'", "'\\''") + "'"


def grub_script(entries: Sequence[BootEntry]) -> str:
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
