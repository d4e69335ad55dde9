"""systemd-boot, with the entry files of the boot loader specification.

An entry of ours is the one that was booted, with words added. Where kernel-install wrote that one,
it writes ours too, from the same kernel and initrd; without room for copies of them, or without
kernel-install, the entry file alone is copied. A unified kernel image gets an entry file that
starts it with its own words and ours. All are where the booted one is: on the EFI system partition,
or on the extended boot loader partition. `bootctl set-oneshot` chooses one for the next boot.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from excise.collect.boot_entries import KEPT, BootEntry, Shell, require_done
from excise.errors import HostError

_PLUGIN: Final = "/usr/lib/kernel/install.d/90-loaderentry.install"
_MARKS: Final = re.compile(r"\((default|selected)\)")
_PLACE: Final = re.compile(r" \(on the .*\)$")
# Entries are sorted by this key, and the first one is the default: ours are the last.
_SORT_KEY: Final = "zz-excise"
_ADD: Final = """\
set -e
umask 022
conf={kept}/{token}
mkdir -p $conf
cat >$conf/cmdline
echo {token} >$conf/entry-token
echo layout=bls >$conf/install.conf
export KERNEL_INSTALL_CONF_ROOT=$conf BOOT_ROOT={root} KERNEL_INSTALL_PLUGINS={plugin}
kernel-install add {files}
entry=$(ls {root}/loader/entries/{token}-*.conf)
sed 's/^title .*/title excise {number}/' "$entry" |
    sed {sort} >"$entry.new"
mv "$entry.new" "$entry"
"""
_IMAGES: Final = "/EFI/Linux/"
_COUNTED: Final = re.compile(r"\+\d+(-\d+)?\.efi$")
_PROFILE: Final = re.compile(r"\.efi@[1-9]\d*$")
# A continued value of `bootctl list` begins right of all keys.
_CONTINUED: Final = " " * 14
# An image takes words from its loader where Secure Boot is off, or where it has none inside.
_TAKES_NO_WORDS: Final = """\
test "$(od -An -tu1 -j4 -N1 {secure_boot} 2>/dev/null | tr -d ' ')" = 1 &&
    head -c 4096 {image} | grep -aq '\\.cmdline'
"""
_SECURE_BOOT: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# What must be the same at the end; the count of boots that is left is part of an entry's name.
_LISTED: Final = """\
cd {root} && {{
    ls
    find loader -type f ! -name random-seed -exec sha256sum {{}} + | sed 's/+[0-9-]*\\.conf$/.conf/'
}} | sort
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Booted:
    """The entry that was booted.

    Attributes:
        root: Where the file system is that entries and kernels are on.
        lines: Its lines.
    """

    root: str
    lines: tuple[str, ...]

    def values(self, key: str) -> list[str]:
        """Return the values of a key, in order."""
        parts = (line.split(None, 1) for line in self.lines)
        return [part[1].strip() for part in parts if len(part) == 2 and part[0] == key]


class SystemdBoot:
    """systemd-boot; see `excise.collect.boot_entries.BootLoader`."""

    name = "systemd-boot"

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    def require(self) -> None:
        """Refuse a machine whose booted entry cannot be given words.

        Raises:
            HostError: If the running kernel has no entry, or its image takes no words.
        """
        self._booted(self._entries())

    def install(self, entries: Sequence[BootEntry]) -> None:
        """Add an entry for each configuration; what is booted by itself stays what it was.

        Raises:
            HostError: If the running kernel has no entry file, or the default would change.
        """
        self._remove()
        listed = self._entries()
        booted = self._booted(listed)
        listing = _LISTED.format(root=shlex.quote(booted.root))
        keep = f"umask 077; mkdir -p {KEPT} && {{ test -e {KEPT}/root || {{ "
        keep += f"( {listing} ) >{KEPT}/listing && "
        keep += f"echo {shlex.quote(booted.root)} >{KEPT}/root.new && sync && "
        keep += f"mv {KEPT}/root.new {KEPT}/root; }}; }}"
        require_done(self._shell, keep, what="keeping the boot configuration")
        by_tool = self._kernel_install_has_room(booted, len(entries))
        for entry in entries:
            if by_tool:
                self._add_by_kernel_install(booted, entry)
            else:
                self._add_copy(booted, entry)
        require_done(self._shell, "sync", what="writing entries")
        before, after = _default(listed), _default(self._entries())
        if before != after:
            self._remove()
            raise HostError(
                f"systemd-boot would boot {after} by itself in place of {before}",
                source=self._shell.name,
                hint=f"Say what it is to boot: bootctl set-default {before}",
            )

    def choose(self, entry: BootEntry) -> None:
        """Have the next boot, and no other, use an entry."""
        script = f"cd $(cat {KEPT}/root)/loader/entries && "
        script += f"for each in excise-{entry.number}.conf excise-{entry.number}-*.conf; do "
        script += 'test -e "$each" && bootctl set-oneshot "$each" && sync && exit; done; exit 1'
        require_done(self._shell, script, what="bootctl set-oneshot")

    def undo(self) -> None:
        """Remove the entries and a choice not yet used; check that all is as it was.

        Raises:
            HostError: If the loader's files are not what they were.
        """
        self._remove()
        listing = _LISTED.format(root='"$(cat root)"')
        script = f"""\
cd {KEPT} 2>/dev/null && test -e root || exit 0
( {listing} ) | cmp listing - || {{
    echo "the loader's files are not what they were; a list of those is {KEPT}/listing" >&2
    exit 1; }}
cd / && rm -rf {KEPT}; rmdir {KEPT.rpartition("/")[0]} 2>/dev/null; sync
"""
        require_done(self._shell, script, what="restoring the boot configuration")

    def _remove(self) -> None:
        script = f"""\
cd {KEPT} 2>/dev/null && test -e root || exit 0
root=$(cat root)
bootctl set-oneshot '' 2>/dev/null
for conf in {KEPT}/excise-*; do
    test -d "$conf" || continue
    export KERNEL_INSTALL_CONF_ROOT="$conf" BOOT_ROOT="$root" KERNEL_INSTALL_PLUGINS={_PLUGIN}
    kernel-install remove "$(cat "$conf/release")"
    rmdir "$root/${{conf##*/}}"
    rm -rf "$conf"
done
rm -f "$root"/loader/entries/excise-[0-9]*.conf "$root"/loader/entries/excise-[0-9]*.new
sync
"""
        require_done(self._shell, script, what="removing entries")

    def _add_by_kernel_install(self, booted: _Booted, entry: BootEntry) -> None:
        token = f"excise-{entry.number}"
        names = [*booted.values("linux"), *booted.values("initrd")]
        release = self._release()
        files = [release, *(f"{booted.root}{name}" for name in names)]
        sort = f"s/^sort-key .*/sort-key {_SORT_KEY}/"
        if not booted.values("sort-key"):
            sort = "/^sort-key /d"
        script = f"mkdir -p {KEPT}/{token} && echo {shlex.quote(release)} >{KEPT}/{token}/release\n"
        script += _ADD.format(
            kept=KEPT,
            token=token,
            root=shlex.quote(booted.root),
            plugin=_PLUGIN,
            files=shlex.join(files),
            number=entry.number,
            sort=shlex.quote(sort),
        )
        require_done(
            self._shell,
            script,
            what="kernel-install add",
            stdin=_options(booted, entry).encode() + b"\n",
            timeout_s=300.0,
        )

    def _add_copy(self, booted: _Booted, entry: BootEntry) -> None:
        replaced = ("title", "options", "sort-key")
        kept = [
            line for line in booted.lines if line.split(None, 1)[:1] not in [[r] for r in replaced]
        ]
        sort = [f"sort-key {_SORT_KEY}"] if booted.values("sort-key") else []
        lines = [f"title excise {entry.number}", *sort, *kept, f"options {_options(booted, entry)}"]
        path = shlex.quote(f"{booted.root}/loader/entries/excise-{entry.number}.conf")
        require_done(
            self._shell,
            f"cat >{path}",
            what="writing an entry",
            stdin="\n".join([*lines, ""]).encode(),
        )

    def _kernel_install_has_room(self, booted: _Booted, count: int) -> bool:
        """Tell whether kernel-install wrote the booted entry and can write as many again."""
        kernels = booted.values("linux")
        release = self._release()
        if len(kernels) != 1 or PurePosixPath(kernels[0]).parent.name != release:
            return False
        files = shlex.join(
            [f"{booted.root}{name}" for name in (*kernels, *booted.values("initrd"))]
        )
        script = (
            f"command -v kernel-install >/dev/null && test -x {_PLUGIN} && cat {files} | wc -c && "
        )
        script += f"df --output=avail -B1 {shlex.quote(booted.root)} | tail -n 1"
        done = self._shell.run(script)
        words = done.text.split()
        if done.exit_code != 0 or len(words) != 2:
            return False
        needed, free = (int(word) for word in words)
        return count * needed + (1 << 20) < free

    def _release(self) -> str:
        return self._shell.run("uname -r").text.strip()

    def _entries(self) -> list[_Listed]:
        # As text: versions before 253 do not say in JSON what is the default.
        script = "SYSTEMD_COLORS=0 LC_ALL=C bootctl list --no-pager"
        listed = require_done(self._shell, script, what="bootctl list")
        return [_listed(part) for part in listed.text.split("\n\n") if part.strip()]

    def _booted(self, listed: list[_Listed]) -> _Booted:
        """Return the entry that was booted, or else the default one of the running kernel."""
        release = self._release()
        others = [each for each in listed if not each.is_ours]
        files = [each for each in others if each.path.endswith(".conf")]
        chosen = [each for each in others if "selected" in each.marks and each.is_file]
        chosen += [each for each in files if "default" in each.marks and each.version == release]
        chosen += [each for each in files if each.version == release]
        if not chosen:
            raise HostError(
                "has no entry file of the kernel that runs now, nor was it started from a unified "
                "kernel image",
                source=self._shell.name,
                hint="`bootctl list` shows what systemd-boot found. kernel-install add writes one",
            )
        if _PROFILE.search(chosen[0].id):
            raise HostError(
                f"{chosen[0].id} is a profile of a unified kernel image, which no entry file names",
                source=self._shell.name,
                hint="Boot the image without a profile, or install the kernel with layout=bls",
            )
        booted = chosen[0].image() if chosen[0].path.endswith(".efi") else self._read(chosen[0])
        for image in booted.values("efi"):
            self._require_takes_words(f"{booted.root}{image}")
        return booted

    def _read(self, entry: _Listed) -> _Booted:
        path = entry.path
        text = require_done(self._shell, f"cat {shlex.quote(path)}", what="reading it").text
        root = path.removesuffix(f"/loader/entries/{PurePosixPath(path).name}")
        return _Booted(root=root, lines=tuple(text.splitlines()))

    def _require_takes_words(self, image: str) -> None:
        """Refuse a unified kernel image that would be started with its own words, and no others."""
        script = _TAKES_NO_WORDS.format(secure_boot=_SECURE_BOOT, image=shlex.quote(image))
        if self._shell.run(script).exit_code == 0:
            raise HostError(
                f"{image} is a unified kernel image with a command line inside, and with Secure "
                "Boot it takes no words from the boot loader",
                source=self._shell.name,
                hint="Switch Secure Boot off, or install the kernel with layout=bls",
            )
        if _COUNTED.search(image):
            raise HostError(
                f"the name of {image} still counts its boots, and would change with the next",
                source=self._shell.name,
                hint="Mark it as good: /usr/lib/systemd/systemd-bless-boot good",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """An entry as `bootctl list` shows it; `marks` are among `default` and `selected`."""

    id: str
    path: str
    version: str
    sort_key: str
    options: str
    marks: frozenset[str]

    @property
    def is_ours(self) -> bool:
        """Tell whether it is one of ours."""
        return self.id.startswith("excise-")

    @property
    def is_file(self) -> bool:
        """Tell whether it is an entry file or a unified kernel image."""
        return self.path.endswith(".conf") or _IMAGES in self.path

    def image(self) -> _Booted:
        """Return a unified kernel image as the entry that starts it with the same words."""
        root, _, name = self.path.rpartition(_IMAGES)
        lines = [f"efi {_IMAGES}{name}", f"options {self.options}"]
        if self.sort_key:
            lines.append(f"sort-key {self.sort_key}")
        return _Booted(root=root, lines=tuple(lines))


def _listed(text: str) -> _Listed:
    joined = text.replace(f"\n{_CONTINUED}", "")
    pairs = (line.partition(":") for line in joined.splitlines())
    fields = {key.strip(): value.strip() for key, _, value in pairs}
    path = _PLACE.sub("", fields.get("source", "")).replace("//", "/")
    marks = _MARKS.findall(fields.get("title", ""))
    return _Listed(
        id=fields.get("id", ""),
        path=path,
        version=fields.get("version", ""),
        sort_key=fields.get("sort-key", ""),
        options=fields.get("options", ""),
        marks=frozenset(marks),
    )


def _default(listed: list[_Listed]) -> str:
    return next((each.id for each in listed if "default" in each.marks), "nothing")


def _options(booted: _Booted, entry: BootEntry) -> str:
    return " ".join((*booted.values("options"), *entry.words, entry.mark))
