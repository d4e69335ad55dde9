"""Which boot loader a machine has that can be told what to boot next, and only next."""

from __future__ import annotations

from typing import Final

from excise.collect.boot_entries import MARK, BootLoader, Shell
from excise.collect.grub import GRUB_CFG, Grub
from excise.collect.systemd_boot import SystemdBoot
from excise.errors import HostError

# Variable in which the loader that was used tells its name (systemd.io/BOOT_LOADER_INTERFACE).
_LOADER_INFO: Final = "/sys/firmware/efi/efivars/LoaderInfo-4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"


def boot_loader(shell: Shell) -> BootLoader:
    """Return the boot loader that the machine has.

    Raises:
        HostError: If it has none that is known, or one that cannot be told what to boot once.
    """
    script = (
        f"tr -d '\\0' <{_LOADER_INFO} 2>/dev/null | grep -q systemd-boot && "
        "bootctl is-installed >/dev/null 2>&1 && echo systemd-boot && exit; "
        "command -v update-grub >/dev/null && command -v grub-reboot >/dev/null && "
        f"test -e {GRUB_CFG} && echo grub && exit; "
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
