"""systemd-boot on EFI firmware, with the entry that kernel-install wrote: a real guest."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from efi_guest import IMAGE, IMAGE_WORD, MACHINE_ID, TWO, efi_guest
from excise.campaign.target_spec import SshTarget
from excise.campaign.targets.rebooting import Booted, Rebooter
from excise.campaign.targets.ssh import address_of
from excise.collect.boot_entries import BootEntry
from excise.collect.boot_loaders import boot_loader, require_boot_loader
from excise.collect.remote import RemoteMachine
from reboot_guest import wait_until_up
from skips import skip

BOOTED: Final = (
    "cd /boot/efi && find . ! -name random-seed | sort && find loader -type f ! -name random-seed"
    " -exec sha256sum {} +; ls /var/lib/excise; ls /sys/firmware/efi/efivars | grep Entry"
)
ENTRIES: Final = "cd /boot/efi/loader/entries && ls && cat excise-*"
# Leaves less than the kernels of two entries.
FILL: Final = (
    "free=$(df --output=avail -B1 /boot/efi | tail -n 1)"
    " && head -c $((free - (16 << 20))) /dev/zero >/boot/efi/filling"
)
DIES: Final = BootEntry(number=1, words=())  # its first boot dies as by a power cut
ON: Final = BootEntry(number=2, words=("audit=1", "a.b=c,d|e"))


def rebooted(machine: RemoteMachine, target: SshTarget) -> Booted:
    booted = Rebooter(machine, spec=target).reboot()
    assert isinstance(booted, Booted), booted
    return booted


def without_initrd(words: Sequence[str]) -> list[str]:
    """Return a command line without the loader's own word, which says where the initrd is."""
    return [word for word in words if not word.startswith("initrd=")]


@pytest.mark.lab
@pytest.mark.long
def test_systemd_boot_boots_an_entry_once_and_is_put_back(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    entries = [DIES, ON]
    with efi_guest(tmp_path) as target:
        wait_until_up(target, settle="true")
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            reboot = partial(rebooted, machine, target)
            before = machine.run(BOOTED).text
            always = machine.run("cat /proc/cmdline").text
            release = machine.run("uname -r").text.strip()
            assert f"/loader/entries/{MACHINE_ID}-{release}.conf" in before
            loader = boot_loader(machine)
            assert loader.name == "systemd-boot"
            loader.require()

            loader.install(entries)
            by_tool = machine.run(ENTRIES).text
            loader.choose(DIES)
            died = reboot()
            loader.choose(ON)
            first = reboot()

            loader.undo()  # whose kernels would make room for the next
            machine.require(FILL, what="filling the partition")
            loader.install(entries)
            copied = machine.run(ENTRIES).text
            loader.choose(ON)
            second = reboot()

            loader.undo()  # to what was there, the filling with it
            machine.require("rm /boot/efi/filling", what="emptying the partition")
            after = machine.run(BOOTED).text
            last = reboot()
            loader.undo()
            now = machine.run("cat /proc/cmdline").text
    for number in (1, 2):
        assert f"excise-{number}-{release}.conf" in by_tool
        assert f"linux      /excise-{number}/{release}/linux" in by_tool
        assert f"excise-{number}.conf" in copied
    assert copied.count(f"/{MACHINE_ID}/{release}/linux") == 2
    assert by_tool.count("sort-key zz-excise") == copied.count("sort-key zz-excise") == 2
    added = [*ON.words, ON.mark]
    for booted in (first, second):
        assert booted.marks == [ON.mark]
        assert without_initrd(booted.words) == [*without_initrd(always.split()), *added]
    assert died.marks == last.marks == []
    assert now == always
    assert after == before


BOTH: Final = (
    "cd / && find boot efi ! -name random-seed | sort && find boot/loader efi/loader boot/EFI"
    " -type f ! -name random-seed -exec sha256sum {} +; ls /var/lib/excise; bootctl list"
)


@pytest.mark.lab
@pytest.mark.long
def test_entries_beside_the_loaders_partition_and_a_unified_kernel_image_are_booted_once(
    tmp_path: Path,
) -> None:
    if os.geteuid() != 0:
        skip("the guest's disk is built as root")
    with efi_guest(tmp_path, TWO) as target:
        wait_until_up(target, settle="true")
        with RemoteMachine(address_of(target)) as machine:
            machine.connect()
            reboot = partial(rebooted, machine, target)
            assert machine.run("bootctl -p; bootctl -x").text.split() == ["/efi", "/boot"]
            release = machine.run("uname -r").text.strip()
            loader = boot_loader(machine)
            found = []
            for image in (False, True):
                if image:  # from now on the machine boots it by itself
                    machine.require(f"bootctl set-default {IMAGE}", what="choosing the image")
                    reboot()
                always = machine.run("cat /proc/cmdline").text.split()
                assert (IMAGE_WORD in always) == image
                before = machine.run(BOTH).text
                assert "efi/loader/loader.conf\n" in before
                require_boot_loader(machine)
                loader.install([ON])
                written = machine.run("cd /boot/loader/entries && cat excise-*").text
                loader.choose(ON)
                once = reboot()
                loader.undo()
                last = reboot()
                found.append((always, once, written, before, machine.run(BOTH).text, last))
    for image, (always, once, written, before, after, last) in enumerate(found):
        where = f"efi /EFI/Linux/{IMAGE}" if image else f"/excise-2/{release}/linux"
        assert where in written
        assert without_initrd(once.words) == [*without_initrd(always), *ON.words, ON.mark]
        assert without_initrd(last.words) == without_initrd(always)
        assert after == before
